# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One evaluation of a running server: coding problems, then greedy parity, in as many calls as it takes. PRIVATE to the collection.

What was answered lies in a folder of the run on the target, one line an answer, so that the next call (a slice of the same
task, also after a dropped connection) goes on where the last one ended.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import threading
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import (
    _code_extract,
    _parity,
    _problems,
    _run_facts,
    _scores,
)
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_client import (
    Answer,
    Asked,
    AskError,
    Client,
    Server,
    token_limit,
)
from ansible_collections.specdec.serving.plugins.module_utils._files import discard, stage, write_file
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp, hung_up
from ansible_collections.specdec.serving.plugins.module_utils._parity import Baseline, Generation, ParityError
from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem
from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import Judgement, Sandbox
from ansible_collections.specdec.serving.plugins.module_utils._scores import Outcome
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, UnitState

#: Phases of a run, in order.
CODING, FIRST_PASS, SECOND_PASS, COMPARING = "coding", "baseline, first pass", "baseline, second pass", "parity"

_LOCK_S = 60.0
_POLL_S = 0.1
_KEPT_TEXT = 200_000
_BASELINE_ROOM = 1 << 20
_RUN = re.compile(r"[0-9A-Za-z-]{1,64}")


class EvaluationError(Exception):
    """The evaluation cannot be made, or did not come to its end."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be done. Times in seconds.

    ``parity``: ``off``, ``record``, ``compare``, or ``auto`` (record when the server does not speculate, else compare).
    """

    unit: str
    asked: Asked = dataclasses.field(default_factory=Asked)
    model: str = ""
    coding: bool = True
    concurrency: int = 8
    #: Programs run side by side.
    programs: int = 4
    parity: str = "off"
    baseline: str = ""
    parity_prompts: int = 24
    parity_tokens: int = 128
    timeout: float = 3600.0
    slice_s: float | None = None
    minimum: float = 0.0


class Spool:
    """The folder of one run; only root reads it. One process at a time works in it."""

    def __init__(self, folder: str, *, keep: int = 5) -> None:
        self.folder = folder
        self._keep = keep
        self._lock_fd = -1
        self._write_lock = threading.Lock()

    def __enter__(self) -> Spool:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._lock_fd = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except BlockingIOError:
                # The call before this one, whose connection broke, notices it within moments.
                if time.monotonic() > deadline:
                    os.close(self._lock_fd)
                    raise EvaluationError(f"{self.folder}: another process is at work on this run") from None
                time.sleep(_POLL_S)

    def __exit__(self, *_exception: object) -> None:
        os.close(self._lock_fd)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str, text: str) -> str:
        """Replace a file at once; gives its path."""
        path = self._path(name)
        write_file(path, text)
        return path

    def read(self, name: str) -> str:
        """A file's text, '' when there is none."""
        try:
            # What a power cut left of a line is no text, maybe; the others count.
            with open(self._path(name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def append(self, name: str, value: t.Mapping[str, t.Any]) -> None:
        """Add a line."""
        line = json.dumps(value) + "\n"
        with self._write_lock:
            descriptor = os.open(self._path(name), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "a", encoding="utf-8") as file:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    # A full disk or a crash cut the line before; this one must not become a part of it.
                    line = "\n" + line
                file.write(line)

    def lines(self, name: str) -> list[dict[str, t.Any]]:
        """The lines so far; a last line that was cut off by a crash is passed over."""
        found = []
        for line in self.read(name).split("\n"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found

    def rotate(self) -> None:
        """Remove the oldest runs beside this one, so that ``keep`` are left. Their names begin with the time."""
        parent, name = os.path.split(self.folder)
        others = sorted(other for other in os.listdir(parent) if _RUN.fullmatch(other) and other != name)
        for other in others[: max(len(others) - max(self._keep - 1, 0), 0)]:
            shutil.rmtree(os.path.join(parent, other), ignore_errors=True)


def new_run(now: float) -> str:
    """A name for a run: its time and something random."""
    stamp = dt.datetime.fromtimestamp(now, dt.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{os.urandom(3).hex()}"


def run_folder(state_dir: str, unit: str, run: str) -> str:
    """Where a run lies. Raises EvaluationError for a name that is none."""
    if not _RUN.fullmatch(run):
        raise EvaluationError(f"run {run!r} is no name of a run: letters, digits and '-' only")
    return os.path.join(state_dir, "evaluations", unit, run)


def judge_answer(
    problem: Problem, answer: Answer, *, mode: str, execute: t.Callable[[str], Judgement]
) -> tuple[Outcome, str]:
    """The verdict on one answer, and the code that was found in it."""
    found = (
        _code_extract.complete(answer.text)
        if mode == "completion"
        else _code_extract.extract(answer.text, problem.entry_point)
    )
    cut = answer.finish_reason == "length"
    seconds = 0.0
    if not found.code:
        verdict = _scores.TRUNCATED if cut else _scores.NO_CODE
        detail = ""
        if answer.reasoning_characters and not answer.text.strip():
            detail = "nothing but thinking; raise max_tokens" if cut else "nothing but thinking"
    else:
        judgement = execute(_code_extract.program(problem, found))
        verdict, detail, seconds = judgement.verdict, judgement.detail, judgement.seconds
        if cut and verdict != _scores.PASSED:
            verdict, detail = _scores.TRUNCATED, f"{verdict}: {detail}" if detail else verdict
    outcome = Outcome(
        task_id=problem.task_id,
        verdict=verdict,
        detail=detail,
        difficulty=problem.difficulty,
        source=found.source,
        finish_reason=answer.finish_reason,
        loop=_code_extract.loops(answer.text) or _code_extract.loops(answer.reasoning_tail),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        reasoning_characters=answer.reasoning_characters,
        seconds=round(answer.seconds, 3),
        sandbox_s=round(seconds, 3),
    )
    return outcome, found.code


class Evaluation:
    """One run. ``advance`` does as much as a slice allows and gives the result so far."""

    #: ``/server_info`` of the last call.
    info: t.Mapping[str, t.Any] = {}

    def __init__(
        self,
        plan: Plan,
        problems: t.Sequence[Problem],
        *,
        client: Client,
        sandbox: Sandbox,
        spool: Spool,
        state: t.Callable[[], UnitState],
        stop: threading.Event,
        monotonic: t.Callable[[], float] = time.monotonic,
        realtime: t.Callable[[], float] = time.time,
        listener_gone: t.Callable[[], bool] = hung_up,
    ) -> None:
        """``stop``: set when requests and programs in flight must end; client and sandbox watch it."""
        self._plan = plan
        self._problems = problems
        self._client = client
        self._sandbox = sandbox
        self._spool = spool
        self._state = state
        self._stop = stop
        self._monotonic = monotonic
        self._realtime = realtime
        self._gone = listener_gone
        self._begun = monotonic()
        self._programs = threading.BoundedSemaphore(max(plan.programs, 1))
        self._meta: dict[str, t.Any] = {}

    # What is known of the run

    def _elapsed(self) -> float:
        return max(self._realtime() - float(self._meta["started_at"]), 0.0)

    def _outcomes(self) -> list[Outcome]:
        names = {field.name for field in dataclasses.fields(Outcome)}
        found: dict[str, Outcome] = {}
        for line in self._spool.lines("answers.jsonl"):
            outcome = Outcome(**{name: value for name, value in line.items() if name in names})
            found.setdefault(outcome.task_id, outcome)
        return [found[problem.task_id] for problem in self._problems if problem.task_id in found]

    def _generations(self, name: str) -> dict[int, Generation]:
        return {
            int(line["prompt"]): Generation(
                tuple(line["ids"]),
                tuple(tuple((int(token), float(chance)) for token, chance in row) for row in line["top"]),
            )
            for line in self._spool.lines(name)
        }

    def _invocation(self) -> str:
        state = self._state()
        if state.active_state != "active" or not state.main_pid:
            raise EvaluationError(
                f"{self._plan.unit} is {state.active_state} ({state.sub_state}): start it and see that it is ready first"
            )
        return state.invocation_id

    def _same_server(self) -> None:
        state = self._state()
        if state.invocation_id != self._meta["invocation_id"] or not state.main_pid:
            ended = state.exit_text() or f"now {state.active_state}, invocation {state.invocation_id or 'none'}"
            raise EvaluationError(
                f"{self._plan.unit} is not the start any more that this evaluation began with ({ended}): what it answered is "
                "not one server's, and nothing of it counts"
            )

    def _begin(self) -> Server:
        text = self._spool.read("run.json")
        if text:
            self._meta = json.loads(text)
            self._same_server()
            return self._client.server(self._plan.model)
        meta: dict[str, t.Any] = {"started_at": self._realtime(), "invocation_id": self._invocation()}
        server = self._client.server(self._plan.model)
        if self._plan.coding:
            meta["max_tokens"] = token_limit(self._plan.asked, self._problems, server.context_length)
        mode = self._plan.parity
        if mode == "auto":
            mode = "compare" if _parity.speculates(server.info) else "record"
        if mode == "record" and _parity.speculates(server.info):
            raise EvaluationError(
                f"a baseline is recorded without speculation, and this server runs {server.info.get('speculative_algorithm')}: "
                "restart it without, or ask for the comparison"
            )
        if mode == "compare":
            self._read_baseline()
        if mode == "record":
            self._check_place()
        meta["parity"] = mode
        meta["notes"] = []
        if self._plan.coding:
            self._sandbox.prove()
        self._meta = meta
        self._spool.write("run.json", json.dumps(meta) + "\n")
        return server

    def _note(self, text: str) -> None:
        if text not in self._meta["notes"]:
            self._meta["notes"].append(text)
            self._spool.write("run.json", json.dumps(self._meta) + "\n")

    # The work

    def advance(self) -> dict[str, t.Any]:
        """The result: ``finished`` tells whether it is the last. Raises EvaluationError, AskError, SandboxError, HangUp."""
        server = self._begin()
        self.info = server.info
        coding_left = self._coding(server) if self._plan.coding else 0
        phase, left, total = CODING, coding_left, len(self._problems)
        passes = iter(()) if coding_left else self._parity_passes()
        for name, missing, count in passes:
            phase, left, total = name, missing, count
            if left:
                break
        self._same_server()
        result = self._result(server)
        result.update(phase=phase, done=total - left, total=total, finished=not left)
        if left:
            if self._elapsed() >= self._plan.timeout:
                raise EvaluationError(
                    f"not finished within timeout {self._plan.timeout:g}: {phase} has {total - left} of {total}; raise timeout, "
                    "lower max_tokens or limit, or raise concurrency"
                )
            return result
        if self._meta["parity"] != "off":
            result["parity"] = self._parity_result(server)
        self._spool.rotate()
        return result

    def _slice_over(self) -> bool:
        plan = self._plan
        over = plan.slice_s is not None and self._monotonic() - self._begun >= plan.slice_s
        return over or self._elapsed() >= plan.timeout

    def _work(self, items: t.Iterable[t.Any], workers: int, do: t.Callable[[t.Any], None]) -> int:
        """Do items side by side until the slice is over; what was begun is finished. Gives how many are left."""
        queue = collections.deque(items)
        failures: list[BaseException] = []
        gone = False

        def loop() -> None:
            while not self._stop.is_set() and not self._slice_over():
                try:
                    item = queue.popleft()
                except IndexError:
                    return
                try:
                    do(item)
                except BaseException as error:  # noqa: BLE001  it is raised again below
                    failures.append(error)
                    self._stop.set()

        threads = [threading.Thread(target=loop, daemon=True) for _number in range(min(workers, len(queue)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL_S)
                if self._gone():
                    gone = True
                    self._stop.set()
        if gone:
            raise HangUp
        if failures:
            # A server that ended explains its connections.
            self._same_server()
            raise failures[0]
        return len(queue)

    def _coding(self, server: Server) -> int:
        done = {outcome.task_id for outcome in self._outcomes()}

        def execute(program: str) -> Judgement:
            with self._programs:
                return self._sandbox.run(program)

        def do(problem: Problem) -> None:
            answer = self._client.answer(problem, server, self._plan.asked, self._meta["max_tokens"])
            outcome, code = judge_answer(problem, answer, mode=self._plan.asked.mode, execute=execute)
            line = {**dataclasses.asdict(outcome), "answer": answer.text[:_KEPT_TEXT], "code": code[:_KEPT_TEXT]}
            self._spool.append("answers.jsonl", line)

        return self._work([one for one in self._problems if one.task_id not in done], self._plan.concurrency, do)

    def _prompts(self) -> list[str]:
        return [problem.prompt for problem in self._problems[: self._plan.parity_prompts]]

    def _parity_passes(self) -> t.Iterator[tuple[str, int, int]]:
        """Name, prompts left and prompts in all of each pass, in order."""
        passes = {"off": (), "record": (FIRST_PASS, SECOND_PASS), "compare": (COMPARING,)}[self._meta["parity"]]
        prompts = self._prompts()
        for phase in passes:
            name = phase.replace(", ", "-").replace(" ", "-") + ".jsonl"
            done = self._generations(name)
            left = [number for number in range(len(prompts)) if number not in done]
            if left and not done:
                flushed = self._client.flush()
                self._meta["flushed"] = flushed and self._meta.get("flushed", True)
                self._spool.write("run.json", json.dumps(self._meta) + "\n")
            if left and not self._slice_over():
                others = self._client.running()
                if others:
                    self._note(
                        f"{others} requests of others ran during the {phase} pass: parity is meant for one at a time"
                    )

            def do(number: int, name: str = name, phase: str = phase) -> None:
                # A speculative server may refuse log-probabilities (DFLASH up to SGLang 0.5.13), and needs none.
                found = self._client.generate(prompts[number], self._plan.parity_tokens, top=phase == FIRST_PASS)
                self._spool.append(name, {"prompt": number, "ids": found.ids, "top": found.top})

            yield phase, self._work(left, 1, do), len(prompts)

    # The results

    def _read_baseline(self) -> Baseline:
        path = self._plan.baseline
        try:
            # Not waiting for a pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "not a file, but a pipe or a device")
                text = file.read().decode("utf-8", "replace")
        except OSError as error:
            raise EvaluationError(
                f"parity_baseline {path!r} cannot be read ({error.strerror}): record it first, with the same server without speculation"
            ) from error
        try:
            baseline = _parity.read_baseline(text, name=f"parity_baseline {path!r}")
        except ParityError as error:
            raise EvaluationError(str(error)) from error
        prompts = self._prompts()
        like = baseline.prompts == _parity.prompts_digest(prompts) and len(baseline.generations) == len(prompts)
        if not like or baseline.max_new_tokens != self._plan.parity_tokens:
            raise EvaluationError(
                f"parity_baseline {path!r} has {len(baseline.generations)} prompts of {baseline.max_new_tokens} tokens, and not the "
                f"{len(prompts)} of {self._plan.parity_tokens} tokens that are asked now: record it again"
            )
        return baseline

    def _check_place(self) -> None:
        """See whether a baseline can be written, before it is made."""
        path = self._plan.baseline
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, "it is a folder; give the path of a file", path)
            discard(stage(path, bytes(_BASELINE_ROOM)))
        except OSError as error:
            raise EvaluationError(f"parity_baseline cannot be written: {error}; nothing was begun") from error

    def _pass(self, phase: str) -> list[Generation]:
        found = self._generations(phase.replace(", ", "-").replace(" ", "-") + ".jsonl")
        return [found[number] for number in range(len(self._prompts()))]

    def _parity_result(self, server: Server) -> dict[str, t.Any]:
        settings = _parity.settings_of(server.info)
        if self._meta["parity"] == "compare":
            result = _parity.compared(
                self._read_baseline(), self._pass(COMPARING), settings, flushed=bool(self._meta.get("flushed"))
            )
        else:
            first, second = self._pass(FIRST_PASS), self._pass(SECOND_PASS)
            baseline = Baseline(
                settings=settings,
                prompts=_parity.prompts_digest(self._prompts()),
                max_new_tokens=self._plan.parity_tokens,
                generations=tuple(first),
                floor=tuple(_parity.differences(first, second)),
                recorded_at=dt.datetime.fromtimestamp(self._realtime(), dt.timezone.utc).isoformat(timespec="seconds"),
                flushed=bool(self._meta.get("flushed")),
            )
            os.makedirs(os.path.dirname(self._plan.baseline), mode=0o700, exist_ok=True)
            write_file(self._plan.baseline, baseline.to_text())
            result = _parity.recorded(baseline)
        result["baseline"] = self._plan.baseline
        result["max_new_tokens"] = self._plan.parity_tokens
        result["text"] = _parity.verdict_text(result)
        return result

    def _result(self, server: Server) -> dict[str, t.Any]:
        outcomes = self._outcomes() if self._plan.coding else []
        info = server.info
        result: dict[str, t.Any] = {
            "elapsed": round(self._elapsed(), 3),
            "timeout": self._plan.timeout,
            "invocation_id": self._meta["invocation_id"],
            "folder": self._spool.folder,
            "notices": list(self._meta["notes"]),
            "server": {
                "model": server.model,
                "version": info.get("version"),
                "context_length": server.context_length,
                "reasoning_parser": server.reasoning_parser,
                "speculative_algorithm": info.get("speculative_algorithm"),
                "speculative_draft_model_path": info.get("speculative_draft_model_path"),
            },
            "passed": sum(outcome.verdict == _scores.PASSED for outcome in outcomes),
        }
        if self._plan.coding:
            result["workload"] = {
                "problems": len(self._problems),
                "digest": _problems.digest(self._problems),
                "mode": self._plan.asked.mode,
                "thinking": self._plan.asked.thinking if self._plan.asked.mode == "chat" else "off",
                "max_tokens": self._meta["max_tokens"],
                "temperature": 0,
                "concurrency": self._plan.concurrency,
            }
            result["coding"] = _scores.summary(outcomes)
            result["outcomes"] = [dataclasses.asdict(outcome) for outcome in outcomes]
        return result


def record_parts(
    result: t.Mapping[str, t.Any],
    info: t.Mapping[str, t.Any],
    state: UnitState,
    *,
    program: str,
    runner: Runner,
    secrets: t.Iterable[str] = (),
) -> dict[str, t.Any]:
    """The target's parts of the record of a run, see ``roles/sglang/files/record.schema.json``."""
    models = [_run_facts.model_facts(str(info.get("model_path") or ""), "target")]
    draft = info.get("speculative_draft_model_path")
    if draft:
        models.append(_run_facts.model_facts(str(draft), "draft"))
    workload = result.get("workload") or {}
    words = ["coding", workload.get("mode"), "thinking" if workload.get("thinking") == "on" else ""] if workload else []
    if result.get("parity"):
        words += ["parity", result["parity"]["mode"]]
    return {
        "host": _run_facts.host_facts(runner),
        "engine": _run_facts.engine_facts(program, str(info.get("version") or "")),
        "models": models,
        "arguments": _run_facts.server_arguments(info, secrets),
        "invocation": _run_facts.invocation_facts(state),
        "workload": {"name": "-".join(filter(None, words)), **workload},
        "results": {name: result[name] for name in ("coding", "outcomes", "parity", "elapsed") if name in result},
    }


def failure(plan: Plan, result: t.Mapping[str, t.Any]) -> str:
    """Why a finished evaluation fails the task; '' when it does not."""
    reasons = []
    parity = result.get("parity")
    if parity and not parity["passed"]:
        reasons.append(parity["text"])
    share = result.get("coding", {}).get("pass_at_1")
    if share is not None and share < plan.minimum:
        reasons.append(f"pass@1 {share:.3f} is below minimum {plan.minimum:g}")
    return "; ".join(reasons)


__all__ = (
    "CODING",
    "COMPARING",
    "FIRST_PASS",
    "SECOND_PASS",
    "AskError",
    "Evaluation",
    "EvaluationError",
    "ParityError",
    "Plan",
    "Spool",
    "failure",
    "judge_answer",
    "new_run",
    "record_parts",
    "run_folder",
)
