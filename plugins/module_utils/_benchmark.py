# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The target's half of sglang_benchmark: start the client, look at it and at the server meanwhile, judge what it measured. PRIVATE to specdec.serving."""

from __future__ import annotations

import abc
import dataclasses
import re
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _bench_job as job
from ansible_collections.specdec.serving.plugins.module_utils import _run_facts as facts
from ansible_collections.specdec.serving.plugins.module_utils._bench_result import (
    THROTTLE_BITS,
    Context,
    level_result,
)
from ansible_collections.specdec.serving.plugins.module_utils._gpus import Query, find_nvidia_smi
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._ready_host import SystemHost
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._server_options import (
    ADMIN_KEY,
    SERVER,
    check_server,
    endpoint_from,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState, show, show_program

__all__ = (
    "ARGUMENT_SPEC",
    "Benchmark",
    "BenchmarkError",
    "Machine",
    "Options",
    "SystemMachine",
    "options_from",
    "throttled",
)

ARGUMENT_SPEC: dict[str, dict[str, t.Any]] = {
    **SERVER,
    **ADMIN_KEY,
    "workload": {"type": "raw", "required": True},
    "levels": {"type": "list", "elements": "int", "default": []},
    "repeats": {"type": "int"},
    "baseline": {"type": "path"},
    "readiness": {"type": "dict"},
    "claim": {"type": "dict"},
    "results_dir": {"type": "path"},
    "python": {"type": "path"},
    "stall_timeout": {"type": "float", "default": 300},
    "timeout": {"type": "float", "default": 14400},
    "state_dir": {"type": "path", "default": "/run/specdec/benchmark"},
    "lease": {"type": "str", "default": ""},
    "plan": {"type": "dict"},
    "slice": {"type": "float"},
    "resume": {"type": "dict"},
}

_POLL_S = 1.0
_GPU_EVERY_S = 15.0
_HTTP_S = 30.0
#: Nobody has looked for so long: the controller is gone. A slice looks every second, and a lost connection is retried.
LEASE_S = 180.0
#: The same, once our own connection was closed: a play that lost it is back sooner, one that was interrupted never comes.
GONE_S = 30.0


class BenchmarkError(Exception):
    """The benchmark cannot be run; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The module's options, checked. Times in seconds.

    ``plan`` is what the action plugin made of the workload: ``job`` (for `_bench_driver`), ``files`` (name to path on the target),
    ``reduced`` and ``steady_s``.
    """

    unit: str
    endpoint: Endpoint
    admin_api_key: str
    plan: t.Mapping[str, t.Any]
    python: str
    stall_s: float
    timeout: float
    state_dir: str
    slice_s: float | None
    resume: t.Mapping[str, t.Any]

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.endpoint.api_key or "", self.admin_api_key)))


def options_from(params: t.Mapping[str, t.Any]) -> Options:
    """Check the parameters. Raises BenchmarkError or SystemdError."""
    try:
        check_server(params)
    except ValueError as error:
        raise BenchmarkError(str(error)) from error
    if not params["plan"]:
        raise BenchmarkError(
            "sglang_benchmark runs by its action plugin, which reads the workload; call it from a playbook"
        )
    for name in ("stall_timeout", "timeout"):
        if not 0 < params[name] < float("inf"):
            raise BenchmarkError(f"{name} {params[name]!r} must be a number of seconds above 0")
    if params["scheme"] == "https" and not params["validate_certs"]:
        raise BenchmarkError(
            "SGLang's client cannot be told to trust any certificate; give the authority of the server's as ca_path instead of"
            " validate_certs: false"
        )
    return Options(
        unit=params["unit"],
        endpoint=endpoint_from(params),
        admin_api_key=params["admin_api_key"] or "",
        plan=params["plan"],
        python=params["python"] or "",
        stall_s=params["stall_timeout"],
        timeout=params["timeout"],
        state_dir=params["state_dir"],
        slice_s=params["slice"],
        resume=params["resume"] or {},
    )


class Machine(abc.ABC):
    """What a benchmark needs of the host; tests script one."""

    @abc.abstractmethod
    def monotonic(self) -> float:
        """CLOCK_MONOTONIC in seconds."""

    @abc.abstractmethod
    def show(self) -> UnitState:
        """The server's unit."""

    @abc.abstractmethod
    def client_active(self) -> bool:
        """Whether the client's unit runs."""

    @abc.abstractmethod
    def request(self, path: str) -> Response:
        """GET; raises HttpError."""

    @abc.abstractmethod
    def start(self, work: t.Mapping[str, t.Any]) -> None:
        """Start the client with a job. Raises JobError."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the client and wait for its end."""

    @abc.abstractmethod
    def folder(self) -> job.Folder:
        """What is shared with the client."""

    @abc.abstractmethod
    def throttle(self) -> str:
        """What nvidia-smi last said of throttling, '' = nothing or no GPU."""

    @abc.abstractmethod
    def facts(self, info: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Parts of the record: host, engine and models."""

    @abc.abstractmethod
    def pause(self, seconds: float) -> None:
        """Wait; raises HangUp when nobody listens to us any more."""


def throttled(text: str) -> str:
    """The answer to ``nvidia-smi --query-gpu=index,clocks_throttle_reasons.active --format=csv,noheader`` in words; '' = none."""
    found = []
    for line in text.splitlines():
        index, _comma, value = line.partition(",")
        with_bits = re.fullmatch(r"\s*0x([0-9a-fA-F]+)\s*", value)
        bits = int(with_bits.group(1), 16) if with_bits else 0
        names = [name for bit, name in THROTTLE_BITS.items() if bits & bit]
        if names:
            found.append(f"GPU {index.strip()}: {', '.join(names)}")
    return "; ".join(found)


class SystemMachine(Machine):
    """The real one. Use it as a context manager."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._host = SystemHost(options.unit, options.endpoint)
        self._run = command_runner(timeout=60)
        self._unit = job.job_unit(options.unit)
        self._folder = job.Folder(f"{options.state_dir}/{self._unit[: -len('.service')]}")
        self._query: Query | None = None
        self._asked_at = float("-inf")
        self._throttle = ""
        self._smi = find_nvidia_smi()

    def __enter__(self) -> SystemMachine:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._host.__exit__()
        if self._query is not None:
            self._query.give_up()

    def monotonic(self) -> float:
        return time.monotonic()

    def show(self) -> UnitState:
        return self._host.show()

    def client_active(self) -> bool:
        return show(self._run, self._unit).active_state in ("active", "activating", "deactivating", "reloading")

    def request(self, path: str) -> Response:
        return self._host.request("GET", path, timeout=_HTTP_S, abort=lambda: False)

    def start(self, work: t.Mapping[str, t.Any]) -> None:
        options = self._options
        python = options.python or job.python_of(show_program(self._run, options.unit))
        if not python:
            raise job.JobError(f"the Python of {options.unit} cannot be told from its ExecStart; give it as python")
        user = job.unit_user(self._run, options.unit)
        keys = {"api_key": options.endpoint.api_key or "", "admin_api_key": options.admin_api_key}
        try:
            self._folder.make({**work, "environment": self._environment()}, keys, options.plan["files"], user)
            job.start(self._run, self._unit, self._folder, python=python, user=user, longest_s=options.timeout)
        except job.JobError:
            # It holds the server's keys, which only a client that runs removes.
            self._folder.discard()
            raise

    def _environment(self) -> dict[str, str]:
        try:
            with open(f"/proc/{self.show().main_pid}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            environ = b""
        more = {"SSL_CERT_FILE": self._options.endpoint.ca_path} if self._options.endpoint.ca_path else {}
        return {**job.client_environment(environ), **more}

    def stop(self) -> None:
        job.stop(self._run, self._unit)

    def folder(self) -> job.Folder:
        return self._folder

    def throttle(self) -> str:
        if self._query is not None:
            answer = self._query.answer()
            if answer is None:
                return self._throttle
            self._query = None
            self._throttle = throttled(answer[1]) if answer[0] == 0 else ""
        if self._smi and self.monotonic() - self._asked_at >= _GPU_EVERY_S:
            self._asked_at = self.monotonic()
            argv = [self._smi, "--query-gpu=index,clocks_throttle_reasons.active", "--format=csv,noheader"]
            self._query = Query(argv, self._asked_at)
        return self._throttle

    def facts(self, info: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        models = [facts.model_facts(str(info.get("model_path") or ""), "target")]
        if info.get("speculative_draft_model_path"):
            models.append(facts.model_facts(str(info["speculative_draft_model_path"]), "draft"))
        return {
            "host": facts.host_facts(self._run),
            "engine": facts.engine_facts(show_program(self._run, self._options.unit), str(info.get("version") or "")),
            "models": models,
        }

    def pause(self, seconds: float) -> None:
        self._host.pause(seconds)


def _speculates(info: t.Mapping[str, t.Any]) -> bool:
    return str(info.get("speculative_algorithm") or "none").lower() not in ("none", "null")


def _most_running(info: t.Mapping[str, t.Any]) -> int:
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], dict):
        each = states[0].get("effective_max_running_requests_per_dp")
        if isinstance(each, int) and each > 0:
            return each * len(states)
    limit = info.get("max_running_requests")
    return limit if isinstance(limit, int) else 0


@dataclasses.dataclass
class Benchmark:
    """One call of the module: begins or goes on, until the client has ended or the slice is over."""

    options: Options
    machine: Machine
    notices: list[str] = dataclasses.field(default_factory=list)

    def run(self) -> dict[str, t.Any]:
        """The module's result; ``finished`` says whether it is the last one. Raises BenchmarkError, JobError or HangUp."""
        machine = self.machine
        try:
            known = dict(self.options.resume) or self._begin()
            began = machine.monotonic()
            while machine.client_active():
                machine.folder().touch()
                self._look(known)
                if known["observed_now"]:
                    break
                if machine.monotonic() - known["began"] > self.options.timeout:
                    known["late"] = True
                    break
                if self.options.slice_s is not None and machine.monotonic() - began >= self.options.slice_s:
                    return self._unfinished(known)
                machine.pause(_POLL_S)
        except HangUp:
            # The connection or the play is gone. It may come back, so the client goes on, for a while only.
            machine.folder().touch(ago=LEASE_S - GONE_S)
            raise
        machine.stop()
        # Its requests may have failed, and the client ended, sooner than we could look.
        self._look(known)
        try:
            return self._result(known)
        finally:
            machine.folder().remove()

    # --- the beginning ---------------------------------------------------------------------------------------------------

    def _begin(self) -> dict[str, t.Any]:
        machine, unit = self.machine, self.machine.show()
        if unit.active_state != "active" or not unit.main_pid:
            raise BenchmarkError(
                f"{self.options.unit} is {unit.active_state}, so there is nothing to measure; deploy it first"
            )
        if machine.client_active():
            kept = machine.folder().kept()
            if kept.get("id") == self.options.plan["id"]:
                # Our own first call, whose answer was lost with the connection.
                return dict(kept["known"])
            raise BenchmarkError(
                f"another benchmark of {self.options.unit} runs on this host ({job.job_unit(self.options.unit)}); wait for it, or stop that unit"
            )
        info = self._server_info()
        cards = self._json("/v1/models").get("data")
        card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
        if not isinstance(info.get("model_path"), str) or not info["model_path"]:
            raise BenchmarkError(
                f"{self.options.unit} cannot be measured: its /server_info tells no model_path ({info.get('model_path')!r}), so it is"
                " no server of SGLang; correct host and port"
            )
        served = str(card.get("id") or info.get("served_model_name") or info.get("model_path"))
        self._check_context(card.get("max_model_len"))
        work = {
            **self.options.plan["job"],
            "base_url": self.options.endpoint.url,
            "model_path": str(info.get("model_path")),
            "served_model_name": served,
            "tokenizer": str(info.get("tokenizer_path") or info.get("model_path")),
            "stall_s": self.options.stall_s,
            "lease_s": LEASE_S,
        }
        machine.start(work)
        known = {
            "began": machine.monotonic(),
            "invocation": facts.invocation_facts(unit),
            "speculative": _speculates(info),
            "most_running": _most_running(info),
            "own_template": bool(info.get("chat_template")),
            "observed": {},
            "observed_now": False,
        }
        # In the folder, and not in what goes to the controller and back with each slice.
        try:
            parts = {**machine.facts(info), "arguments": facts.server_arguments(info, self.options.secrets)}
            machine.folder().keep({"id": self.options.plan["id"], "known": known, "parts": parts})
        except OSError as error:
            machine.stop()
            machine.folder().remove()
            raise BenchmarkError(
                f"what belongs to the benchmark cannot be kept: {error}; make room there, or give another state_dir"
            ) from error
        return known

    def _check_context(self, context: t.Any) -> None:
        """Raise BenchmarkError where the server would refuse a request for its length."""
        longest = self.options.plan["job"]["longest"]
        if isinstance(context, int) and 0 < context < longest:
            raise BenchmarkError(
                f"the workload asks for {longest} tokens of prompt and answer in one request, and the context of {self.options.unit}"
                f" has {context}; take a workload with a smaller output_length (smoke asks for 16 tokens), or deploy a larger context_length"
            )

    def _server_info(self) -> dict[str, t.Any]:
        try:
            return self._json("/server_info")
        except BenchmarkError:
            return self._json("/get_server_info")

    def _json(self, path: str) -> dict[str, t.Any]:
        try:
            answer = self.machine.request(path)
            content = answer.json() if answer.status == 200 else None
        except HttpError as error:
            raise BenchmarkError(f"{self.options.unit} cannot be measured: {error}") from error
        if not isinstance(content, dict):
            key = " (a wrong or missing api_key)" if answer.status == 401 else ""
            raise BenchmarkError(f"{self.options.unit} cannot be measured: {path} answered {answer.status}{key}")
        return content

    # --- meanwhile -------------------------------------------------------------------------------------------------------

    def _look(self, known: dict[str, t.Any]) -> None:
        """Note what happens to the server and its GPUs, under the level that is measured."""
        unit, was = self.machine.show(), known["invocation"]
        level = str(self.machine.folder().progress().get("level") or "")
        seen: dict[str, str] = known["observed"].setdefault(level, {})
        if unit.invocation_id != was["invocation_id"] and unit.active_state in ("active", "activating"):
            seen["invocation_changed"] = f"{self.options.unit} was started again meanwhile"
            known["observed_now"] = True
        elif unit.active_state != "active" or unit.main_pid != was["main_pid"]:
            seen["died"] = f"{self.options.unit} is {unit.active_state} ({unit.exit_text() or unit.sub_state})"
            known["observed_now"] = True
        slowed = self.machine.throttle()
        if slowed and self.machine.folder().progress().get("phase") == "measured":
            seen["throttled"] = slowed

    def _unfinished(self, known: dict[str, t.Any]) -> dict[str, t.Any]:
        progress = self.machine.folder().progress()
        return {
            "finished": False,
            "changed": False,
            "unit": self.options.unit,
            "progress": progress,
            "speculative": known["speculative"],
            "elapsed": round(self.machine.monotonic() - known["began"], 1),
            "timeout": self.options.timeout,
            "resume": known,
        }

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _result(self, known: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        folder, work = self.machine.folder(), self.options.plan["job"]
        runs, end = folder.runs(), folder.end()
        measured = [run for run in runs if run.get("kind") == "measured"]
        why = self._why(known, end)
        if not measured:
            # A refusal says all there is to say.
            log = "" if end.get("reason") == "refused" else "\n".join(folder.log().splitlines()[-12:])
            raise BenchmarkError(f"nothing was measured: {why or 'the client ended at once'}\n{log}".strip())
        kept = folder.kept()
        if "parts" not in kept:
            raise BenchmarkError(
                f"{folder.path} was changed by others while the client ran, so nothing is known of what was measured; measure again"
            )
        levels = []
        for index, level in enumerate(work["levels"]):
            concurrency = level["concurrency"]
            context = Context(
                speculative=known["speculative"],
                fixed_length=work["output_length"] if work["kind"] == "fixed" else None,
                most_running=known["most_running"],
                steady_s=work["steady_state_s"],
                reduced=tuple(self.options.plan["reduced"]),
                first=index == 0,
                observed=known["observed"].get(str(concurrency), {}),
            )
            own = [run for run in measured if run["concurrency"] == concurrency]
            levels.append(level_result(concurrency, own, work["repeats"], context))
        api = measured[0]["api"]
        if api == "generate" and work["kind"] == "natural" and known["own_template"]:
            self.notices.append(
                "the server has a chat_template of its own; this release's client applies the tokenizer's, so prompts may differ from a chat's"
            )
        return {
            "finished": True,
            "changed": False,
            "unit": self.options.unit,
            "elapsed": round(self.machine.monotonic() - known["began"], 1),
            "valid": all(level["valid"] for level in levels),
            "ended": why,
            "levels": levels,
            "api": api,
            "client_command": measured[0]["argv"],
            "speculative": known["speculative"],
            "parts": {**kept["parts"], "invocation": known["invocation"]},
        }

    def _why(self, known: t.Mapping[str, t.Any], end: t.Mapping[str, t.Any]) -> str:
        """Why it ended before all was measured; '' = it did not."""
        seen: list[str] = [
            text for one in known["observed"].values() for name, text in one.items() if name != "throttled"
        ]
        if seen:
            return seen[0]
        if known.get("late"):
            return f"timeout {self.options.timeout:g} s is over"
        if end.get("reason") == "done":
            return ""
        return str(end.get("detail") or end.get("reason") or "the client ended without a word")
