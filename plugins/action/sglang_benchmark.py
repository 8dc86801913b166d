# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the workload, runs the module of the same name in slices, writes the record."""

from __future__ import annotations

import re
import time
import typing as t
import uuid

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.specdec.serving.plugins.module_utils._benchmark import LEASE_S
from ansible_collections.specdec.serving.plugins.plugin_utils import _benchmark, _record, _workload
from ansible_collections.specdec.serving.plugins.plugin_utils._kept_claim import claim_keeper
from ansible_collections.specdec.serving.plugins.plugin_utils._parent import ansible_pid, end_with_parent, is_abandoned
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import GRACE_S, SliceLoop, keep_alive, plain

display = Display()

#: A level's figures move; who watches wants to see it.
_SLICE_S = 20.0
#: What the target needs to know nothing of.
_OWN_OPTIONS = ("baseline", "claim", "readiness", "results_dir")
#: Nobody looked at the client for so long, and it has ended itself: there is nothing to come back to.
_PATIENCE_S = LEASE_S + GRACE_S


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_benchmark.py`` for the options; ``async`` is refused by ActionBase."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = task_vars or {}
        arguments = plain(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        width = max(map(len, map(str, variables.get("ansible_play_batch") or [host])), default=0)
        try:
            if not arguments.get("workload"):
                raise ValueError("workload is required: the name of one, the path of a file, or a mapping")
            baseline = _record.read(str(arguments["baseline"])) if arguments.get("baseline") else None
            workload, prompts = self._loaded(arguments)
            plan = _benchmark.plan(workload, prompts)
            shown = {**workload.as_dict(), "dataset_sha256": prompts.sha256 if prompts else None}
            if baseline is not None:
                _benchmark.add_speedups({"levels": []}, shown, baseline)
            _record.check_options(arguments, check_mode=bool(self._task.check_mode))
            end_with_parent()
            keep_alive(self._connection)
            answer = self._loop(arguments, plan, workload, host, width, task_vars).run()
            if answer.get("levels") is not None:
                answer = self._recorded(arguments, answer, shown, workload, baseline, host)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        result.update(answer)
        return result

    @staticmethod
    def _loaded(arguments: t.Mapping[str, t.Any]) -> tuple[_workload.Workload, _workload.Prompts | None]:
        content, folder = _workload.load(arguments["workload"])
        changes: dict[str, t.Any] = {}
        # '' and [] are what a variable that is not set comes to. Numbers come as text from a template.
        if arguments.get("levels") not in (None, "", []):
            changes["levels"] = arguments["levels"]
        repeats = arguments.get("repeats")
        if repeats not in (None, ""):
            changes["repeats"] = int(repeats) if re.fullmatch(r"\d{1,9}", str(repeats), re.ASCII) else repeats
        if changes:
            content = _workload.parse({**content.as_dict(), **changes}, "the task")
        return content, None if content.kind == _workload.FIXED else _workload.read_prompts(content, folder)

    def _loop(
        self,
        arguments: dict[str, t.Any],
        plan: _benchmark.Plan,
        workload: _workload.Workload,
        host: str,
        width: int,
        task_vars: dict[str, t.Any] | None,
    ) -> SliceLoop:
        # The id tells our own run from another's, should the first answer be lost.
        made = {"id": uuid.uuid4().hex, "job": plan.job, "files": {}, "reduced": list(plan.reduced)}
        given = {name: value for name, value in arguments.items() if name not in _OWN_OPTIONS}

        def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
            if "resume" not in extra and not self._task.check_mode:
                made["files"] = {name: self._put(name, text) for name, text in plan.files.items()}
            answer: dict[str, t.Any] = self._execute_module(
                module_name="specdec.serving.sglang_benchmark",
                module_args={
                    **given,
                    "plan": made,
                    **extra,
                    "slice": min(float(extra.get("slice", _SLICE_S)), _SLICE_S),
                },
                task_vars=task_vars,
            )
            return answer

        def report(answer: dict[str, t.Any]) -> None:
            # As soon as it is known; whoever wants no such figures need not wait for them. Ansible shows the same words once.
            for warning in _workload.warnings(workload, speculative=bool(answer.get("speculative"))):
                display.warning(warning)
            display.display(_benchmark.progress_line(host, answer, width))

        return SliceLoop(
            # With `wait` it is the loop of a look, without slices.
            arguments={"timeout": str(arguments.get("timeout") or 14400)},
            check_mode=bool(self._task.check_mode),
            execute=execute,
            lost=AnsibleConnectionFailure,
            report=report,
            complain=lambda text: display.display(f"{host:<{width}} | {text}", color="dark gray"),
            monotonic=time.monotonic,
            sleep=time.sleep,
            abandoned=is_abandoned,
            patience=_PATIENCE_S,
            keep=claim_keeper(arguments.get("claim"), host=host, parent=ansible_pid()),
        )

    def _put(self, name: str, text: str) -> str:
        """A file of prompts on the target, in the folder that Ansible removes after the task."""
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        folder = self._connection._shell.tmpdir
        path = self._connection._shell.join_path(folder, name)
        self._transfer_data(path, text)
        self._fixup_perms2((folder, path))
        return str(path)

    def _recorded(
        self,
        arguments: t.Mapping[str, t.Any],
        answer: dict[str, t.Any],
        shown: dict[str, t.Any],
        workload: _workload.Workload,
        baseline: t.Mapping[str, t.Any] | None,
        host: str,
    ) -> dict[str, t.Any]:
        """The answer with its record, which is written where ``results_dir`` says."""
        warnings = list(answer.get("warnings") or [])
        warnings += _workload.warnings(workload, speculative=bool(answer["speculative"]))
        if baseline is not None:
            warnings += _benchmark.add_speedups(answer, shown, baseline)
        invalid = [str(level["concurrency"]) for level in answer["levels"] if not level["valid"]]
        if invalid:
            warnings.append(f"figures with {', '.join(invalid)} in flight are not valid; the reasons stand with them")
        results = {
            key: answer[key] for key in ("levels", "api", "client_command", "speculative", "valid", "ended", "elapsed")
        }
        parts = answer.pop("parts")
        answer["invocation_id"] = parts["invocation"]["invocation_id"]
        record = _record.make(
            _record.BENCHMARK,
            host=host,
            parts={**parts, "workload": shown, "results": results},
            readiness=arguments.get("readiness"),
            now=time.time(),
        )
        answer["table"] = _benchmark.table(record)
        answer["record"] = ""
        if arguments.get("results_dir"):
            secrets = [str(arguments.get(name) or "") for name in ("api_key", "admin_api_key")]
            answer = _record.keep(answer, record, str(arguments["results_dir"]), secrets=secrets)
        if warnings:
            answer["warnings"] = warnings
        return answer
