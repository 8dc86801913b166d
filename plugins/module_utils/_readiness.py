# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates of readiness as pure functions of what was observed. PRIVATE to the collection.

No function here reads a clock, a file or a socket: the waiter (``_waiter.py``) observes, these judge. A gate answers
True (passed), False (failed) or None (not known yet); only six times True is ready, so what is unknown is never ready.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import signal
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._server_args import ALIASES, canonical_dest
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

READY = "ready"
LOADING = "loading"
#: Nothing moves any more, although it lives (``_progress.py``).
HUNG = "hung"
CRASHED = "crashed"
CRASH_LOOP = "crash_loop"
STOPPING = "stopping"
STOPPED = "stopped"
NOT_FOUND = "not_found"
#: Node rank above 0: its own HTTP proves nothing, and no leader was given to prove it by.
FOLLOWER = "follower"
#: Every state that a verdict can have in this release.
STATES = (READY, LOADING, HUNG, CRASHED, CRASH_LOOP, STOPPING, STOPPED, NOT_FOUND, FOLLOWER)

GATES = ("unit", "port_owner", "markers", "identity", "serving", "stability")

#: In the order of SGLang >= 0.5.14. Before, the draft was loaded after the target's graphs, and the last two recurred.
PHASES = (
    "starting",
    "waiting_at_gate",
    "loading_weights",
    "loading_draft",
    "allocating_kv_cache",
    "capturing_graphs",
    "binding",
    "warming_up",
)


@dataclasses.dataclass(frozen=True)
class Gate:
    """One check of readiness; ``passed`` None = not known yet; ``cause`` names a failure in one word."""

    name: str
    passed: bool | None
    detail: str
    cause: str = ""


@dataclasses.dataclass(frozen=True)
class UnitJudgement:
    """What systemd alone says: the state, whether waiting on can change it, and why."""

    state: str
    final: bool
    detail: str
    cause: str = ""
    remedy: str = ""


def judge_unit(
    unit: UnitState,
    *,
    replaces: str = "",
    restarts_before: int = 0,
    max_restarts: int = 0,
    stop_requested: bool = False,
    stop_logged: bool = False,
    ran: str = "",
) -> UnitJudgement:
    """Judge a unit by its systemd state.

    ``restarts_before`` is NRestarts when the wait began, ``stop_requested`` whether somebody asked systemd to stop
    this invocation (True also where that cannot be told; ``stop_logged`` only if systemd said so), ``ran`` an invocation
    that was seen before: systemd forgets one that ended well when nothing refers to the unit (it is not enabled).
    ``loading`` here means "alive, the other gates decide". A unit that waits in ``auto-restart`` has crashed, although
    systemd calls it ``activating`` (cases: ansible/ansible#24450, #35636).
    """
    if unit.load_state != "loaded":
        return _not_loaded(unit)
    old = bool(replaces) and unit.invocation_id == replaces
    # The counter of the start that is to be replaced is history: an explicit restart sets it back.
    restarts = 0 if old else unit.n_restarts - min(restarts_before, unit.n_restarts)
    ended = exit_sentence(unit)
    if unit.sub_state in ("auto-restart", "auto-restart-queued") and not (old and unit.job):
        # The counter rises when the next start is queued; until then this crash is not in it.
        counted = 1 if unit.job or unit.sub_state == "auto-restart-queued" else 0
        crashes = restarts + 1 - counted
        if crashes <= max_restarts:
            return UnitJudgement(LOADING, False, f"restart {crashes} of {max_restarts} allowed: {ended}")
        total = unit.n_restarts - counted
        if total > 0:
            return UnitJudgement(CRASH_LOOP, True, f"{ended} again after {total} automatic restarts", "crash_loop")
        # Whoever asked for the wait may stop it before that.
        return UnitJudgement(CRASHED, True, f"{ended}, and systemd was about to restart it", _exit_cause(unit))
    if restarts > max_restarts:
        return UnitJudgement(
            CRASH_LOOP,
            True,
            f"systemd restarted the unit {restarts} times during this wait ({max_restarts} allowed)",
            "crash_loop",
        )
    if unit.active_state == "failed":
        if unit.job:
            return UnitJudgement(LOADING, False, "the last start failed; a job of systemd is queued")
        if stop_logged and unit.result == "signal" and unit.exec_main_status == signal.SIGKILL:
            # SGLang up to 0.5.17 ends a drain so; systemd's own SIGKILL after its timeout gives the result "timeout".
            return UnitJudgement(STOPPED, True, "the unit was stopped; its main process ended by SIGKILL", "stopped")
        return UnitJudgement(CRASHED, True, _failure(unit) + _given_up(unit), _exit_cause(unit))
    if unit.active_state == "deactivating":
        if unit.result != "success" and not stop_requested:
            return UnitJudgement(CRASHED, True, _failure(unit), _exit_cause(unit))
        return UnitJudgement(STOPPING, False, f"the unit is stopping ({unit.sub_state})")
    if unit.active_state == "inactive":
        return _inactive(unit, replaces=replaces, stop_requested=stop_requested, ran=ran)
    if unit.active_state == "active" and unit.sub_state == "exited" and unit.main_exited and not old:
        detail = f"{ended} by itself; RemainAfterExit keeps the unit active"
        return UnitJudgement(CRASHED, True, detail, "exited", "Take RemainAfterExit out of the unit.")
    if old:
        return UnitJudgement(
            LOADING, False, "still the invocation that is to be replaced" + ("; a job is queued" if unit.job else "")
        )
    awaited = _AWAITED.get(unit.type, "") if unit.active_state == "activating" and unit.main_pid else ""
    detail = f"{unit.active_state} ({unit.sub_state})"
    if awaited:
        return UnitJudgement(LOADING, False, f"{detail}: Type={unit.type}, so systemd waits for {awaited}", "unit_type")
    return UnitJudgement(LOADING, False, detail)


#: What systemd takes for the end of a start (systemd.service(5)), where a server does not give it by itself.
_AWAITED = {
    "oneshot": "the main process to end",
    "forking": "the main process to fork and to end",
    "notify": "a message READY=1 of the main process",
    "notify-reload": "a message READY=1 of the main process",
    "dbus": "the main process to take a name on the bus",
}


def exit_sentence(unit: UnitState) -> str:
    """How the main process ended, as a sentence."""
    ended = unit.exit_text()
    if ended.startswith("exited"):
        return f"the main process {ended}"
    if ended:
        dumped = " and left a core dump" if ended.startswith("dumped") else ""
        return f"the main process was killed by signal {unit.exec_main_status}{dumped}"
    return "the main process ended"


#: Results that say no more than how the main process ended (ExecMainCode; systemd.exec(5), "$SERVICE_RESULT").
_PLAIN_RESULTS = {"exit-code": 1, "signal": 2, "core-dump": 3}


def _failure(unit: UnitState) -> str:
    """Why systemd counts the unit as failed."""
    if not unit.exit_text():
        return f"systemd result {unit.result}"
    ended = exit_sentence(unit)
    return ended if _PLAIN_RESULTS.get(unit.result) == unit.exec_main_code else f"systemd result {unit.result}: {ended}"


def _given_up(unit: UnitState) -> str:
    """That systemd does not start it again, where it did so before (after a boot, say)."""
    # The counter has the restart, too, that the start limit refused.
    return f"; systemd tried to restart it {unit.n_restarts} times and gave up" if unit.n_restarts > 1 else ""


def _inactive(unit: UnitState, *, replaces: str, stop_requested: bool, ran: str) -> UnitJudgement:
    if unit.job:
        return UnitJudgement(LOADING, False, "a job of systemd is queued")
    if unit.result == "exec-condition":
        return UnitJudgement(STOPPED, True, "an ExecCondition of the unit said no", "condition")
    if unit.main_exited and not stop_requested and unit.invocation_id and unit.invocation_id != replaces:
        return UnitJudgement(CRASHED, True, f"{exit_sentence(unit)} by itself", "exited")
    if ran and ran != replaces and not unit.invocation_id and not stop_requested:
        detail = "the main process ended by itself, with status 0 or by a SIGTERM (systemd has forgotten which)"
        return UnitJudgement(CRASHED, True, detail, "exited")
    return UnitJudgement(STOPPED, True, "the unit is not running", "stopped")


def _not_loaded(unit: UnitState) -> UnitJudgement:
    if unit.load_state == "not-found":
        return UnitJudgement(NOT_FOUND, True, f"systemd has no unit {unit.id!r}", "not_found")
    if unit.load_state == "masked":
        runtime = unit.unit_file_state == "masked-runtime"
        return UnitJudgement(
            NOT_FOUND,
            True,
            f"unit {unit.id!r} is masked" + (" until the next boot" if runtime else ""),
            "masked",
            f"Unmask it: `systemctl unmask {'--runtime ' if runtime else ''}{unit.id}`.",
        )
    detail = f"systemd cannot load unit {unit.id!r} ({unit.load_state})" + (
        f": {unit.load_error}" if unit.load_error else ""
    )
    return UnitJudgement(NOT_FOUND, True, detail, "bad_unit_file")


def _exit_cause(unit: UnitState) -> str:
    if unit.result == "start-limit-hit":
        return "start_limit"
    if unit.result == "timeout":
        return "timeout"
    if unit.result in ("signal", "core-dump"):
        return "signal"
    if unit.exec_main_code == 1 and unit.exec_main_status >= 200:
        # systemd.exec(5), "PROCESS EXIT CODES": 200 and above are systemd's own, before the program ran.
        return "exec_failed"
    return "exited"


def gate_unit(unit: UnitState, judged: UnitJudgement, *, replaces: str, alive: bool | None) -> Gate:
    """Gate 1: the unit is active, this is a new invocation, and its main process lives (a zombie does not)."""
    if replaces and unit.invocation_id == replaces:
        return Gate("unit", False, f"invocation {replaces} is the one that is to be replaced", "not_restarted")
    if unit.active_state != "active" or judged.state != LOADING:
        return Gate("unit", False, judged.detail, judged.cause)
    if unit.job:
        # A restart or stop is queued: what answers now is about to go.
        return Gate("unit", None, "active, but a job of systemd is queued")
    if not unit.main_pid:
        return Gate("unit", None, "active, but systemd names no main process yet")
    if alive is not True:
        return Gate("unit", False, f"the main process {unit.main_pid} is gone or a zombie", "main_process_gone")
    return Gate("unit", True, f"active, main process {unit.main_pid}, invocation {unit.invocation_id}")


def gate_port_owner(*, port: int, listening: bool, owned: bool | None, owners: t.Sequence[str], source: str) -> Gate:
    """Gate 2: every listener that could answer on the port belongs to the unit's cgroup.

    ``owned``: True, False, or None where the kernel does not say; ``owners`` says of each listener who holds it.
    """
    if not listening:
        return Gate("port_owner", None, f"nothing listens on port {port} yet")
    held = "; ".join(owners) or f"port {port} is open"
    if owned is None:
        return Gate("port_owner", None, f"{held}; whether that is this unit cannot be told ({source})")
    if not owned:
        return Gate("port_owner", False, f"{held}, and not by this unit", "port_owned_by_other")
    return Gate("port_owner", True, f"{held} ({source})")


def gate_markers(*, mode: str, seen: int, expected: int, incomplete: str, by_model: t.Mapping[str, int]) -> Gate:
    """Gate 3: the journal of this invocation holds the expected number of ``Load weight end`` lines.

    ``mode``: auto, require or ignore. ``incomplete``: why the journal cannot hold them all, '' = it can.
    """
    counts = ", ".join(f"{name} {count}" for name, count in by_model.items())
    text = f"{seen} of {expected} 'Load weight end' lines" + (f" ({counts})" if counts else "")
    if mode == "ignore":
        return Gate("markers", True, f"{text}; ignored as asked")
    if expected <= 0:
        return Gate("markers", True, "no 'Load weight end' lines are expected of this configuration")
    if seen >= expected:
        return Gate("markers", True, text)
    if incomplete and mode == "auto":
        return Gate("markers", True, f"{text}; the journal cannot tell ({incomplete}), so the other gates decide")
    return Gate("markers", None, text + (f"; {incomplete}" if incomplete else ""))


# ---- identity -------------------------------------------------------------------------------------------------

#: Differences in these are never excused as "resolved by the engine".
HELD_SETTINGS = frozenset(
    (
        "attn_dp_size",
        "cuda_graph_backend_decode",
        "cuda_graph_backend_prefill",
        "disable_cuda_graph",
        "disable_decode_cuda_graph",
        "disable_prefill_cuda_graph",
        "dp_size",
        "ep_size",
        "model_path",
        "pp_size",
        "speculative_algorithm",
        "speculative_dflash_block_size",
        "speculative_draft_model_path",
        "speculative_num_draft_tokens",
        "tp_size",
    )
)

# Where several names mean one value in /server_info (0.5.23 spec.py:66-70: the block size is an alias).
_RUNNING_ALIASES = {
    # What is asked bears the newest name; older releases report the argument under theirs.
    **{newest: older for older, newest in ALIASES.items()},
    "speculative_dflash_block_size": "speculative_num_draft_tokens",
}
# Compared by the gate itself (the id in /v1/models), or deprecated actions that leave no value behind.
_NOT_COMPARED = frozenset(("enable_dp_attention", "served_model_name"))
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


# Every release reports these (0.4.6 and later): where they are missing, something else answers.
_ALWAYS_REPORTED = frozenset(
    ("dp_size", "model_path", "speculative_algorithm", "speculative_draft_model_path", "tp_size")
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One argument that runs with another value than asked; ``held`` ones fail the gate."""

    name: str
    asked: t.Any
    running: t.Any
    held: bool


def _algorithm(value: t.Any) -> str:
    # SGLang upper-cases the name and runs NEXTN as EAGLE (0.5.23 arg_groups/speculative_hook.py).
    name = str(value or "").upper()
    return "EAGLE" if name == "NEXTN" else name


def _number(value: t.Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    text = str(value).strip()
    scale = 1
    if text[-1:] in _SUFFIXES:
        scale, text = _SUFFIXES[text[-1]], text[:-1]
    try:
        return float(text) * scale
    except (OverflowError, ValueError):
        return None


def _truth(value: t.Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())


def same_value(asked: t.Any, running: t.Any) -> bool:
    """Compare two argument values as SGLang's parser reads them: ``2k`` is 2000 (1000 for small, 1024 for capital)."""
    if isinstance(asked, bool) or isinstance(running, bool):
        # Before ==, for which True is 1.
        return _truth(asked) == _truth(running) and _truth(asked) is not None
    if asked == running:
        return True
    if isinstance(asked, (list, tuple)) or isinstance(running, (list, tuple)):
        left = list(asked) if isinstance(asked, (list, tuple)) else [asked]
        right = list(running) if isinstance(running, (list, tuple)) else [running]
        return len(left) == len(right) and all(same_value(a, b) for a, b in zip(left, right))
    if isinstance(asked, dict) and isinstance(running, dict):
        return set(asked) == set(running) and all(same_value(asked[key], running[key]) for key in asked)
    left_number, right_number = _number(asked), _number(running)
    if left_number is not None and right_number is not None:
        return left_number == right_number
    return str(asked).rstrip("/") == str(running).rstrip("/")


def _running_value(name: str, info: t.Mapping[str, t.Any]) -> tuple[bool, t.Any]:
    """Give (is it reported, value) of an argument in ``/server_info``."""
    if info.get(name) is not None:
        return True, info[name]
    alias = _RUNNING_ALIASES.get(name)
    if alias is not None and info.get(alias) is not None:
        return True, info[alias]
    graph = info.get("cuda_graph_config")
    if isinstance(graph, dict):
        for phase in ("decode", "prefill"):
            settings = graph.get(phase)
            backend = settings.get("backend") if isinstance(settings, dict) else None
            if backend is None:
                continue
            if name == f"cuda_graph_backend_{phase}":
                return True, backend
            if name == f"disable_{phase}_cuda_graph":
                return True, backend == "disabled"
            if name == "disable_cuda_graph" and phase == "decode":
                return True, backend == "disabled"
    if name == "max_running_requests":
        states = info.get("internal_states")
        for state in states if isinstance(states, list) else ():
            value = state.get("effective_max_running_requests_per_dp") if isinstance(state, dict) else None
            if value is not None:
                return True, value
    return name in info, info.get(name)


def compare_settings(asked: t.Mapping[str, t.Any], info: t.Mapping[str, t.Any]) -> tuple[list[Difference], list[str]]:
    """Compare what was asked with ``/server_info``; give (differences, names that it does not report).

    A value of None, False or 'auto' that the engine resolved by itself is no difference.
    """
    differences: list[Difference] = []
    unreported: list[str] = []
    for name in sorted(asked):
        wanted = asked[name]
        if wanted is None or name in _NOT_COMPARED:
            continue
        reported, running = _running_value(name, info)
        if not reported:
            unreported.append(name)
            if name in _ALWAYS_REPORTED and wanted is not False:
                differences.append(Difference(name=name, asked=wanted, running=None, held=True))
            continue
        if same_value(wanted, running):
            continue
        if name == "speculative_algorithm" and _algorithm(wanted) == _algorithm(running):
            continue
        if wanted is False and running is None:
            continue
        held = name in HELD_SETTINGS
        if str(wanted) == "auto" and not held:
            continue
        differences.append(Difference(name=name, asked=wanted, running=running, held=held))
    return differences, unreported


def resembling(name: str, info: t.Mapping[str, t.Any]) -> str:
    """The argument of ``/server_info`` that a name which it does not report may stand for, or ''."""
    dest = canonical_dest(name)
    if dest in info:
        return dest
    return next(iter(difflib.get_close_matches(dest, list(info), n=1, cutoff=0.8)), "")


def describe_differences(differences: t.Iterable[Difference]) -> str:
    return "; ".join(f"{d.name} asked {_shown(d.asked)}, running {_shown(d.running)}" for d in differences)


def _shown(value: t.Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def small(value: t.Any) -> t.Any:
    """A value of a server's answer for the result; None for one of more than 4 KiB as JSON, which no SGLang gives."""
    return value if len(json.dumps(value)) <= 4096 else None


def gate_identity(
    *,
    model: str,
    model_path: str,
    models: t.Sequence[str],
    running_path: str,
    differences: t.Sequence[Difference],
    unreported: t.Sequence[str],
) -> Gate:
    """Gate 4: the expected id is listed, the expected path is loaded, and no held argument differs."""
    if model and model not in models:
        return Gate(
            "identity",
            False,
            f"wrong model: expected {model!r}, /v1/models lists {_shown(list(models))}",
            "wrong_model",
        )
    if not models:
        return Gate("identity", False, "/v1/models lists no model", "wrong_model")
    if model_path and not same_value(model_path, running_path):
        detail = f"wrong model path: expected {model_path!r}, /model_info says {_shown(running_path)}"
        return Gate("identity", False, detail, "wrong_model_path")
    held = [difference for difference in differences if difference.held]
    if held:
        return Gate("identity", False, f"other settings run: {describe_differences(held)}", "settings_mismatch")
    notes = []
    if differences:
        notes.append(f"engine changed: {describe_differences(differences)}")
    if unreported:
        notes.append(f"not reported by /server_info: {', '.join(unreported)}")
    text = f"serves {_shown(models[0])} from {_shown(running_path)}"
    return Gate("identity", True, "; ".join([text, *notes]))


# ---- serving ---------------------------------------------------------------------------------------------------


def default_generation_tokens(block_size: int) -> int:
    """Tokens that make speculation run at least two verify steps: 2 x block size + 1, at least 4.

    One token ends in prefill and never reaches draft or verify (sglang 0.5.23, seen on CPU), so it would miss a crash in
    a CUDA graph replay.
    """
    return max(4, 2 * block_size + 1)


def generation_request(tokens: int, *, skip_tokenizer_init: bool = False) -> dict[str, t.Any]:
    """The body of our own ``POST /generate``: greedy, of exact length, and not counted in the server's metrics."""
    prompt: dict[str, t.Any] = (
        {"input_ids": [1, 2, 3, 4]} if skip_tokenizer_init else {"text": "The capital of France is"}
    )
    return {
        **prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        "log_metrics": False,
    }


def least_generation_tokens(block_size: int) -> int:
    """Fewer tokens can fit in one verify step: the first comes of the prefill, and one step gives up to a block of them."""
    return max(block_size, 1) + 2


def too_few_tokens(tokens: int, block_size: int) -> str:
    """Why so few tokens cannot prove that speculation runs; '' when they can, or none are asked for."""
    least = least_generation_tokens(block_size)
    if tokens == 0 or tokens >= least:
        return ""
    block = f" of block size {block_size}" if block_size else ""
    return f"{tokens} tokens can fit in one verify step{block}, and two are the proof that speculation runs"


def gate_generation(
    answer: t.Any, *, tokens: int, speculation: bool, counted: bool = True, block_size: int = 0
) -> Gate:
    """The second half of gate 5: the answer to :func:`generation_request` is complete, and speculation took part.

    ``counted``: whether this release tells the number of verify steps at all; ``block_size`` 0 = not known.
    """
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        return Gate("serving", False, f"/generate gave no meta_info: {str(answer)[:200]!r}", "generation_failed")
    count = meta.get("completion_tokens")
    if not isinstance(count, int) or count < tokens:
        reason = meta.get("finish_reason")
        return Gate(
            "serving",
            False,
            f"asked for {tokens} tokens, got {count!r} (finish_reason {reason!r})",
            "generation_failed",
        )
    text = f"generated {count} tokens"
    if not speculation:
        return Gate("serving", True, text)
    steps = meta.get("spec_verify_ct")
    if steps is None and not counted:
        return Gate("serving", True, f"{text}; this release does not tell how many verify steps that took")
    if not isinstance(steps, int) or steps < 2:
        too_few = too_few_tokens(tokens, block_size)
        if too_few:
            return Gate("serving", False, f"{text}, with spec_verify_ct {steps!r}: {too_few}", "generation_too_short")
        detail = f"{text}, but spec_verify_ct is {steps!r}: speculation was asked for and did not run"
        return Gate("serving", False, detail, "speculation_not_exercised")
    return Gate("serving", True, f"{text} in {steps} verify steps")


@dataclasses.dataclass(frozen=True, order=True)
class EngineProcess:
    """A process of the server that must not die: main, scheduler, detokenizer or data parallel controller."""

    role: str
    pid: int
    start_ticks: int


#: Compilers and workers may come and go; these may not (design: gate 6).
ENGINE_ROLES = frozenset(("main", "scheduler", "detokenizer", "data_parallel_controller"))


def gate_stability(
    *,
    before: UnitState,
    after: UnitState,
    engine_before: t.Collection[EngineProcess],
    engine_after: t.Collection[EngineProcess],
    owned_after: bool | None,
    held_for: float,
    stable_for: float,
) -> Gate:
    """Gate 6: invocation, main process, socket owner and engine processes are after the HTTP checks as before them."""
    if before.invocation_id != after.invocation_id:
        detail = f"the invocation changed during the checks from {before.invocation_id} to {after.invocation_id}"
        return Gate("stability", False, detail, "invocation_changed")
    if after.active_state != "active" or before.main_pid != after.main_pid or after.job:
        queued = ", a job of systemd is queued" if after.job else ""
        detail = f"during the checks the unit became {after.active_state}, main process {after.main_pid}{queued}"
        return Gate("stability", False, detail, "main_process_gone")
    gone = sorted((p.role, p.pid) for p in set(engine_before) - set(engine_after))
    if gone:
        names = ", ".join(f"{role} {pid}" for role, pid in gone)
        return Gate("stability", False, f"processes of the server died: {names}", "child_died")
    if owned_after is not True:
        return Gate("stability", False, "the port changed hands during the checks", "port_owned_by_other")
    if held_for < stable_for:
        return Gate("stability", None, f"holds for {held_for:.1f} s of the {stable_for:g} s asked")
    count = len(engine_after)
    return Gate("stability", True, f"invocation, main process, port owner and {count} engine processes are unchanged")


# What the server measures lies within these phases of the journal's timeline.
_MEASURED = {
    "load_weight": ("loading_weights", "loading_draft"),
    "cuda_graph": ("capturing_graphs",),
}


def cross_check(timeline: t.Sequence[t.Mapping[str, t.Any]], startup_time: t.Any) -> list[str]:
    """Where the server's own ``startup_time`` (``/server_info``, seconds) does not fit into the journal's timeline.

    More than 20 % and a second too long: lines of the log were late, lost, or read wrongly.
    """
    if not timeline or not isinstance(startup_time, dict):
        return []
    notes = []
    for name, phases in _MEASURED.items():
        value = startup_time.get(name)
        parts = value.values() if isinstance(value, dict) else (value,)
        measured = sum(part for part in parts if isinstance(part, (int, float)))
        logged = sum(phase["duration"] for phase in timeline if phase["phase"] in phases)
        if measured > logged * 1.2 + 1.0:
            notes.append(
                f"the server measured {measured:.1f} s of {name}, the journal shows {logged:.1f} s in {' and '.join(phases)}"
            )
    return notes


__all__ = (
    "CRASHED",
    "CRASH_LOOP",
    "ENGINE_ROLES",
    "FOLLOWER",
    "GATES",
    "HELD_SETTINGS",
    "HUNG",
    "LOADING",
    "NOT_FOUND",
    "PHASES",
    "READY",
    "STATES",
    "STOPPED",
    "STOPPING",
    "Difference",
    "EngineProcess",
    "Gate",
    "UnitJudgement",
    "compare_settings",
    "cross_check",
    "default_generation_tokens",
    "describe_differences",
    "exit_sentence",
    "gate_generation",
    "gate_identity",
    "gate_markers",
    "gate_port_owner",
    "gate_stability",
    "gate_unit",
    "generation_request",
    "judge_unit",
    "least_generation_tokens",
    "resembling",
    "same_value",
    "small",
    "too_few_tokens",
)
