# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An evaluation on a real host: its options, its systemd, its sandbox. PRIVATE to the collection."""

from __future__ import annotations

import os
import threading
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _evaluation, _problems, _systemd
from ansible_collections.specdec.serving.plugins.module_utils._evaluation import Evaluation, EvaluationError, Spool
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_client import Client, token_limit
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_options import check, limits_from, plan_from
from ansible_collections.specdec.serving.plugins.module_utils._lease import renew
from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem
from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import (
    Sandbox,
    find_python,
    missing_controllers,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._server_options import endpoint_from

_CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"


def evaluate(params: t.Mapping[str, t.Any], *, check_mode: bool = False) -> dict[str, t.Any]:
    """One call of the module: a slice of the run, or all of it. Gives the result so far; raises what went wrong, in words."""
    check(params)
    plan = plan_from(params)
    if params["lease"]:
        renew(params["lease"])
    runner = command_runner(timeout=60.0)
    stop = threading.Event()
    client = Client(
        endpoint_from(params),
        timeout=params["request_timeout"],
        admin_api_key=params["admin_api_key"],
        stopped=stop.is_set,
    )
    if check_mode:
        problems = _problems.parse(params["content"])
        server = client.server(plan.model)
        limit = token_limit(plan.asked, problems, server.context_length) if plan.coding else 0
        return {
            "finished": True,
            "notices": [],
            "would": {"problems": len(problems), "max_tokens": limit, "parity": plan.parity},
        }
    if os.geteuid() != 0:
        raise EvaluationError("only root can run programs in a sandbox of systemd: run the task with become")
    run = params["run"] or _evaluation.new_run(time.time())
    try:
        return _advance(params, plan, run, client=client, runner=runner, stop=stop)
    except OSError as error:
        # A full disk, a folder that is a file, a read-only place.
        raise EvaluationError(
            f"{error}; what was answered so far lies below state_dir {params['state_dir']!r}. Make room there, or give another one"
        ) from error


def _advance(
    params: t.Mapping[str, t.Any],
    plan: _evaluation.Plan,
    run: str,
    *,
    client: Client,
    runner: _systemd.Runner,
    stop: threading.Event,
) -> dict[str, t.Any]:
    with Spool(_evaluation.run_folder(params["state_dir"], plan.unit, run), keep=params["keep"]) as spool:
        problems = _problems_of(spool, params["content"])
        sandbox = Sandbox(
            params["python"],
            limits_from(params),
            find_python(runner, params["python"]) if plan.coding else (),
            stopped=stop.is_set,
        )
        run_of = Evaluation(
            plan,
            problems,
            client=client,
            sandbox=sandbox,
            spool=spool,
            state=lambda: _systemd.show(runner, plan.unit),
            stop=stop,
        )
        result = run_of.advance()
        if not result["finished"]:
            # What the next slice needs lies in the folder of the run.
            result["resume"] = {"run": run}
            return result
        if plan.coding:
            result["notices"] += _without_effect()
        result["parts"] = _evaluation.record_parts(
            result,
            run_of.info,
            _systemd.show(runner, plan.unit),
            program=_systemd.show_program(runner, plan.unit),
            runner=runner,
            secrets=[key for key in (params["api_key"], params["admin_api_key"]) if key],
        )
        return result


def _problems_of(spool: Spool, content: str) -> list[Problem]:
    text = content or spool.read("problems.jsonl")
    if not text:
        raise EvaluationError("there are no problems: the task runs through its action plugin, which hands them over")
    problems = _problems.parse(text)
    if content:
        spool.write("problems.jsonl", content)
    return problems


def _without_effect() -> list[str]:
    try:
        with open(_CONTROLLERS, encoding="ascii") as file:
            missing = missing_controllers(file.read())
    except OSError:
        missing = missing_controllers("")
    if not missing:
        return []
    text = (
        f"this host has no control group controller for {', '.join(missing)}: the programs were held by the limits of their "
        "processes alone (address space, processes of a user, time)"
    )
    return [text]


__all__ = ("evaluate",)
