# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wait for readiness: observes a host, lets the gates judge, until there is a verdict. PRIVATE to the collection.

Everything that touches the machine is behind :class:`Host`, so that the wait is tested with a scripted host and without
sleeping. Nothing is decided by elapsed time but the timeout.
"""

from __future__ import annotations

import dataclasses
import errno
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._diagnosis import Diagnosis, diagnose
from ansible_collections.specdec.serving.plugins.module_utils._expected_markers import (
    expected_markers,
    markers_unavailable,
)
from ansible_collections.specdec.serving.plugins.module_utils._findings import REMEDIES, Finding
from ansible_collections.specdec.serving.plugins.module_utils._host import Host, PortView
from ansible_collections.specdec.serving.plugins.module_utils._http import (
    HttpError,
    Response,
)
from ansible_collections.specdec.serving.plugins.module_utils._hung import Situation, StallWatch
from ansible_collections.specdec.serving.plugins.module_utils._journal import MESSAGE_STARTED, Entry
from ansible_collections.specdec.serving.plugins.module_utils._not_started import Reason
from ansible_collections.specdec.serving.plugins.module_utils._readiness import (
    CRASH_LOOP,
    CRASHED,
    FOLLOWER,
    GATES,
    HUNG,
    LOADING,
    NOT_FOUND,
    READY,
    STOPPED,
    STOPPING,
    EngineProcess,
    Gate,
    UnitJudgement,
    gate_markers,
    gate_port_owner,
    gate_stability,
    gate_unit,
    judge_unit,
    least_generation_tokens,
)
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import OptionError, Options
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact
from ansible_collections.specdec.serving.plugins.module_utils._server_checks import ServerChecks
from ansible_collections.specdec.serving.plugins.module_utils._signatures import look_up
from ansible_collections.specdec.serving.plugins.module_utils._starts import (
    Start,
    Subject,
    auto_timeout,
    card_names,
    estimate,
    release_of,
    similar,
)
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import (
    SERVING,
    StartupLog,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState
from ansible_collections.specdec.serving.plugins.module_utils._wait_result import Outcome, timeline_of

#: PID 1's "Stopping X..." (systemd, SD_MESSAGE_UNIT_STOPPING): somebody asked for the stop.
STOPPING_MESSAGE_ID = "de5b426a63be47a7b6ac3eaac82e2f6f"
#: PID 1's "Starting X...": without it the beginning of the start is no longer in the journal.
STARTING_MESSAGE_ID = "7d4958e842da4a758f6c1cdc7b36dcc5"
# Of these types PID 1 logs no "Starting X...", only "Started X" at the very beginning: nothing lies between.
_STARTED_AT_ONCE = ("simple", "idle")

# A phase must hold this long before its change ends a slice: short phases would cost a connection each.
_PHASE_HOLD_S = 2.0
# systemctl costs 25 ms of CPU; the journal and the pidfd tell of every change long before.
_UNIT_REFRESH_S = 5.0
# While systemd itself is at work (a queued job, a stop) no event of the new invocation can reach us yet.
_UNIT_REFRESH_BUSY_S = 0.2
_TICK_S = 0.1
# A log that tells of the start wakes us when there is news.
_TICK_FOLLOWING_S = 0.2
_TICK_BUSY_S = 0.02
# Requests are logged by the server: none before its log says that they can succeed, few when the log says nothing.
_HTTP_RETRY_S = 0.1
_HTTP_RETRY_QUIET_S = 2.0
# journalctl passes a lone line on after a third of a second. The server's own warm-up is a connection to itself, whose end
# can be seen at once; "up" follows within this time.
_HTTP_CLIENT_LEFT_S = 0.3
# A follower cannot see when its leader can answer; each follower asks.
_LEADER_RETRY_S = 0.5
_HTTP_TIMEOUT_S = 10.0
_GENERATE_TIMEOUT_S = 120.0
# Who looks once wants an answer soon: as long as the server's own health check (SGLANG_HEALTH_CHECK_TIMEOUT).
_GENERATE_ONCE_S = 20.0
# While a request waits for its answer, the rest is looked at this often.
_MEANWHILE_S = 0.25
_LAST_LINES_S = 1.0
# A long journal of a start is read this long before anything else is looked at.
_HISTORY_S = 2.0
# After its main process ended, systemd needs a moment to say so.
_SETTLE_S = 3.0
# How long a server that is up waits for its first generation when its log lags behind: journalctl takes as long to begin.
_MARKERS_LATE_S = 0.4
# A generation that fails otherwise than by a refused argument may be a passing state of a server under load.
_GENERATION_TRIES = 3


#: Of a leader these say that nothing of it was heard; '' is a route, or a name, that is not there.
_SILENT = ("", "refused", "reset", "no_answer")

#: Why a server could not bind its port, where that is no other server.
_BIND_CAUSES = {errno.EACCES: "port_not_permitted", errno.EADDRNOTAVAIL: "address_not_available"}


class Waiter:
    """One wait, or one slice of it."""

    def __init__(self, options: Options, host: Host, starts: t.Sequence[Start] = ()) -> None:
        """``starts`` are the host's earlier verified ones, for the estimate and the automatic timeout."""
        self._options = options
        self._host = host
        self._starts = starts
        self._subject: Subject | None = None
        self._arguments_of_main: t.Mapping[str, t.Any] = {}
        self._checks = ServerChecks(options, self._get, self._post)
        self._unit = UnitState()
        self._judged = UnitJudgement(LOADING, False, "")
        self._new_log()
        self._following = False
        self._watched: tuple[str, int] = ("", 0)
        self._unit_at = float("-inf")
        self._dirty = True
        self._exit_seen_at: float | None = None
        self._next_http = 0.0
        self._clients: frozenset[bytes] = frozenset()
        self._client_left_at = float("-inf")
        self._warming = False
        self._early_identity = ""
        self._generation_failures = 0
        #: The cause of the last answers that were none, and how many there were of it.
        self._unusable_in_a_row = ("", 0)
        self._held_since: float | None = None
        self._held_engine: frozenset[EngineProcess] = frozenset()
        self._gates: dict[str, Gate] = {}
        #: What the last HTTP checks saw, until the next ones.
        self._last_http: dict[str, Gate] = {}
        self._port = PortView()
        self._phase = ""
        self._phase_since = 0.0
        self._notices: list[str] = []
        self._log_incomplete = ""
        self._diagnosed: Diagnosis | None = None
        #: What each process did, in the diagnosis of a server that hung or took too long.
        self._hang_lists: t.Mapping[str, t.Any] = {}
        self._meanwhile_at = 0.0

        now = host.monotonic()
        self._stalls = self._new_stalls(now)
        resume = options.resume
        same_boot = resume.get("boot_id") == host.boot_id()
        self._slice_started = now
        self._started = float(resume["started"]) if same_boot else now - float(resume.get("elapsed", 0.0))
        self._restarts_before: int | None = resume.get("restarts_before")
        # Without an earlier slice, what is found at first is no change.
        self._reported_phase: str | None = resume.get("phase")

    # -- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> dict[str, t.Any]:
        """Observe until there is a verdict, the timeout, or the end of the slice; give the module's result."""
        while True:
            self._observe()
            finding = self._decide()
            if finding.final or not self._options.wait:
                return self._result(finding, finished=True)
            now = self._host.monotonic()
            timeout = self._timeout()
            if now - self._started >= timeout:
                return self._result(self._timed_out(finding, now), finished=True)
            if self._can_hang() and self._stalls.is_hung(now):
                return self._result(self._hung(now), finished=True)
            if self._slice_is_over(now):
                return self._result(finding, finished=False)
            self._host.pause(min(self._tick(), max(self._started + timeout - now, 0.0)))

    def _slice_is_over(self, now: float) -> bool:
        length = self._options.slice_s
        if length is None:
            return False
        if now - self._slice_started >= length:
            return True
        changed = self._phase != self._reported_phase and now - self._phase_since >= _PHASE_HOLD_S
        return changed and not self._port.listening

    def _tick(self) -> float:
        if self._exit_seen_at is not None:
            return _TICK_BUSY_S
        close_to_verdict = self._port.listening or self._log.uvicorn_running or self._phase == "binding"
        if close_to_verdict:
            return _TICK_BUSY_S
        return _TICK_FOLLOWING_S if self._following and self._log.began else _TICK_S

    # -- observing ----------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        now = self._host.monotonic()
        if self._main_ended() and self._exit_seen_at is None:
            self._exit_seen_at = now
        refresh = _UNIT_REFRESH_S
        if self._judged.state == STOPPING or self._unit.job or not self._unit.main_pid or self._is_replaced():
            refresh = _UNIT_REFRESH_BUSY_S
        settling = self._exit_seen_at is not None and now - self._exit_seen_at < _SETTLE_S
        if self._dirty or settling or now - self._unit_at >= refresh:
            self._refresh_unit(now)
        if self._following:
            self._feed(self._host.follow())
            self._journal_error = self._host.journal_error()
            self._following = not self._journal_error
        self._set_phase(now)
        self._look(now)

    def _can_hang(self) -> bool:
        """Whether it is this start, alive, and asked for nothing but to go on."""
        return (
            self._options.wait
            and self._judged.state == LOADING
            and self._exit_seen_at is None
            and bool(self._unit.invocation_id and self._unit.main_pid)
            and not self._unit.job
            and not self._is_replaced()
        )

    def _look(self, now: float) -> None:
        """Whether it moves. A sample is taken every two seconds."""
        if not self._can_hang():
            return
        owned = self._port.owned is True
        situation = Situation(
            unit=self._unit,
            phase=self._phase,
            port_open=owned and not self._node_rank(),
            fired_up=self._log.fired_up,
            # At a gate it waits for an operator, a follower for its leader; and one that says that it is up has done its
            # part, whatever else is wrong (another port than asked, say).
            held=self._phase == "waiting_at_gate" or self._node_rank() > 0 or (self._log.fired_up and not owned),
        )
        self._stalls.look(situation, now)

    def _new_stalls(self, now: float, kept: t.Mapping[str, t.Any] | None = None) -> StallWatch:
        return StallWatch(
            self._host,
            stall_s=self._options.stall_timeout,
            spin_s=self._options.spin_timeout,
            now=now,
            started=self._unit.exec_main_start_us / 1e6,
            kept=kept,
        )

    def _refresh_unit(self, now: float) -> None:
        self._unit = self._host.show()
        self._unit_at = now
        self._dirty = False
        identity = (self._unit.invocation_id, self._unit.main_pid)
        if identity[0] and (identity[0] != self._watched[0] or (identity[1] and identity[1] != self._watched[1])):
            self._watch(identity)
        if self._restarts_before is None:
            # An explicit restart sets the counter back; without one, earlier restarts are history.
            self._restarts_before = 0 if self._options.replaces else self._unit.n_restarts
        self._judged = judge_unit(
            self._unit,
            replaces=self._options.replaces,
            restarts_before=self._restarts_before,
            max_restarts=self._options.max_restarts,
            stop_logged=self._stop_requested,
            # What cannot be read is no sign of a crash.
            stop_requested=self._stop_requested or bool(self._journal_error) or not self._unit.logs_to_journal,
            ran=self._watched[0],
        )

    def _watch(self, identity: tuple[str, int]) -> None:
        new_invocation = identity[0] != self._watched[0]
        self._watched = identity
        self._arguments_of_main = {}
        self._host.watch(self._unit)
        self._exit_seen_at = None
        self._let_go()
        self._resume_hold(identity)
        self._resume_stalls(identity)
        if not new_invocation:
            return
        self._new_log()
        self._subject = None
        self._early_identity = ""
        self._checks.begin()
        self._generation_failures = 0
        self._last_http = {}
        self._next_http = 0.0
        if not self._unit.logs_to_journal:
            self._following = False
            return
        self._resume_log(identity[0])
        began = self._host.monotonic()
        for entries in self._host.history(self._cursor):
            self._feed(entries)
            if self._options.wait and self._host.monotonic() - began >= _HISTORY_S:
                # The rest comes like new lines, while the other gates are looked at.
                break
        self._journal_error = self._host.journal_error()
        self._following = not self._journal_error

    def _new_log(self) -> None:
        self._log = StartupLog(started_us=self._unit.exec_main_start_us or None)
        self._cursor: str | None = None
        self._journal_error = ""
        self._began_in_journal = False
        self._stop_requested = False
        self._unheard: int | None = None
        self._unlogged = False
        self._markers_due: float | None = None

    def _resume_log(self, invocation_id: str) -> None:
        """Go on where the last slice ended, if it was about the same invocation."""
        kept = self._options.resume.get("journal") or {}
        if kept.get("invocation_id") != invocation_id:
            return
        self._log = StartupLog.load(kept["log"])
        self._cursor = kept["cursor"]
        self._began_in_journal = kept["began"]
        self._stop_requested = kept["stop_requested"]

    def _let_go(self) -> None:
        """What has held so far holds no more: ``stable_for`` begins anew."""
        self._held_since = None
        self._held_engine = frozenset()

    def _resume_hold(self, identity: tuple[str, int]) -> None:
        """What held at the end of the last slice still holds, if it is the same start with the same processes."""
        kept = self._options.resume.get("held") or {}
        same = kept.get("boot_id") == self._host.boot_id() and (kept["invocation_id"], kept["main_pid"]) == identity
        if same and kept["since"] is not None:
            self._held_since = kept["since"]
            self._held_engine = frozenset(EngineProcess(**process) for process in kept["engine"])

    def _resume_stalls(self, identity: tuple[str, int]) -> None:
        """The stall clocks go on, if it is the same start; what changed between two slices is progress."""
        kept = self._options.resume.get("stalls") or {}
        same = kept.get("boot_id") == self._host.boot_id() and (kept["invocation_id"], kept["main_pid"]) == identity
        self._stalls = self._new_stalls(self._host.monotonic(), kept if same else None)

    def _feed(self, entries: t.Iterable[Entry]) -> None:
        fired_up, markers = self._log.fired_up, self._log.markers
        for entry in entries:
            if not entry.own:
                # PID 1 speaks of the unit: it changed state.
                self._dirty = True
                if entry.message_id == STOPPING_MESSAGE_ID:
                    self._stop_requested = True
                elif entry.message_id == (
                    MESSAGE_STARTED if self._unit.type in _STARTED_AT_ONCE else STARTING_MESSAGE_ID
                ):
                    self._began_in_journal = True
            before = self._log.last_line
            self._log.feed(entry)
            # Lines of polls are not kept there. The times of several processes need not be in order.
            if entry.own and self._log.last_line is not before:
                self._stalls.note_line(
                    message=entry.message,
                    text=self._log.last_line,
                    pid=entry.pid,
                    at=entry.monotonic_us / 1e6,
                    probing=self._port.listening,
                )
        if (self._log.fired_up and not fired_up) or self._log.markers > markers:
            self._next_http = 0.0

    def _set_phase(self, now: float) -> None:
        if self._judged.state in (NOT_FOUND, STOPPED) or not self._unit.invocation_id:
            phase = ""
        elif self._port.owned and not self._node_rank():
            phase = "warming_up"
        else:
            phase = self._log.phase
            # It says so before it is proven, and also when another server answered its warm-up.
            phase = "warming_up" if phase == SERVING else phase
        if self._reported_phase is None:
            self._reported_phase = phase
        if phase != self._phase:
            self._phase, self._phase_since = phase, now

    def _main_ended(self) -> bool:
        return self._host.main_alive() is False

    def _is_replaced(self) -> bool:
        return bool(self._options.replaces) and self._unit.invocation_id == self._options.replaces

    def _journal_gap(self) -> str:
        """Why the journal cannot hold all markers, or ''."""
        if not self._unit.logs_to_journal:
            return f"the unit's {self._unit.log_output}, not the journal"
        if self._journal_error:
            return self._journal_error
        if self._log.log_incomplete:
            return "journald dropped lines of this start (rate limit)"
        damage = self._host.journal_damage()
        if damage:
            return f"the journal is damaged: {damage}"
        unavailable = markers_unavailable(self._arguments())
        if unavailable:
            return unavailable
        # Each part of the journal is cut by itself: PID 1's lines may be left where the server's (in a namespace) are not.
        began = self._began_in_journal and (self._log.began or not self._port.owned)
        if not began and self._host.monotonic() - self._unit.exec_main_start_us / 1e6 > 2.0:
            return "the beginning of this start is not in the journal (any more)"
        if self._unlogged:
            return "the server answers, and nothing of that reaches the journal (rate limit)"
        return ""

    def _unread(self) -> str:
        """Why the journal cannot explain an end, or ''."""
        if not self._unit.logs_to_journal:
            return f"its log is not in the journal: the unit's {self._unit.log_output}"
        if self._journal_error:
            return f"its log could not be read: {self._journal_error}"
        if self._log.log_incomplete:
            return "journald dropped lines of its log (rate limit)"
        return ""

    def _listen(self) -> None:
        """The server logs our requests; when no line comes of a whole round of them, journald lets none pass.

        journald tells that it dropped lines only with the first one that it lets pass again.
        """
        if self._unheard == self._log.lines and self._following:
            self._unlogged = True
        self._unheard = self._log.lines

    def _arguments(self) -> t.Mapping[str, t.Any]:
        """What the server runs with, as far as it is known: from itself, else from what was asked and its command line."""
        return self._checks.server.get("arguments") or {**self._main_arguments(), **self._options.settings}

    def _asked(self, *names: str) -> t.Any:
        """An argument by its name, or by other names for it on the command line."""
        for source in (self._options.settings, self._checks.server.get("arguments") or {}, self._main_arguments()):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        return None

    def _main_arguments(self) -> t.Mapping[str, t.Any]:
        """The main process's; they stay the same once it runs the server, and reading them costs more than a look."""
        if not self._arguments_of_main:
            arguments = self._host.main_arguments()
            # Before its exec, the process has the words of systemd.
            if not {"model_path", "model", "config"}.intersection(arguments):
                return arguments
            self._arguments_of_main = arguments
        return self._arguments_of_main

    def _node_rank(self) -> int:
        """What was asked and the command line tell; a follower's HTTP answers come from another server."""
        for source in (self._options.settings, self._main_arguments()):
            if source.get("node_rank") is not None:
                return _whole(source["node_rank"])
        return 0

    # -- earlier starts -----------------------------------------------------------------------------------------

    def subject(self) -> Subject:
        """What kind of start this is, as far as it is known by now."""
        if self._subject is None or self._checks.server:
            known = self._subject
            self._subject = Subject(
                model_path=str(self._asked("model_path", "model") or self._options.model_path),
                draft_model_path=str(self._asked("speculative_draft_model_path") or ""),
                release=release_of(self._release()),
                driver=known.driver if known else self._host.driver(),
                gpus=known.gpus if known else card_names(self._host.gpus()),
                tp_size=_whole(self._asked("tp_size", "tensor_parallel_size", "tp") or 1),
                ep_size=_whole(self._asked("ep_size", "expert_parallel_size", "ep") or 1),
                node_rank=self._node_rank(),
            )
        return self._subject

    def _timeout(self) -> float:
        """Seconds that the wait may take in all."""
        if not self._options.auto_timeout or not self._starts or not self._unit.main_pid:
            return self._options.timeout
        return auto_timeout(self._starts, self.subject())

    def _estimate(self, now: float, timeline: list[dict[str, t.Any]]) -> dict[str, t.Any]:
        """How long such starts took and what is left of this one; {} when no earlier one tells."""
        start = self._unit.exec_main_start_us / 1e6
        if not self._starts or not self._unit.main_pid or not start or self._is_replaced():
            return {}
        found = estimate(self._starts, self.subject(), timeline, now - start)
        return found.result() if found else {}

    # -- deciding -----------------------------------------------------------------------------------------------

    def _decide(self) -> Finding:
        self._gates = {}
        judged = self._judged
        if judged.final:
            self._gates["unit"] = Gate("unit", False, judged.detail, judged.cause)
            if judged.state in (CRASHED, CRASH_LOOP):
                return self._crashed(judged)
            return self._not_running(judged)
        if judged.state == STOPPING:
            self._port = PortView()
            return self._finding(STOPPING, False, "stopping", judged.detail)
        gate = gate_unit(self._unit, judged, replaces=self._options.replaces, alive=self._host.main_alive())
        known = self._unit.id
        if known and known != self._options.unit:
            gate = dataclasses.replace(gate, detail=f"{gate.detail}; {self._options.unit} is an alias of {known}")
        self._gates["unit"] = gate
        if self._unit.active_state not in ("active", "activating") or self._is_replaced():
            self._port = PortView()
            return self._finding(LOADING, False, self._gates["unit"].cause, judged.detail)
        self._port = self._host.port(self._unit)
        self._gates["port_owner"] = self._port_gate()
        self._gates["markers"] = self._markers_gate()
        if self._log.bind_failed and self._port.owned is not True and not self._node_rank():
            # uvicorn gives up for good after Errno 98; what it logs afterwards speaks of another server.
            self._diagnosed = diagnose(log=self._log, unit=self._unit, ended=False)
            return self._finding(CRASHED, True, self._conflict_cause(), self._conflict_text())
        too_small = self._kv_cache_too_small()
        if too_small:
            # It would get ready, and then let the requests wait for each other.
            return self._finding(LOADING, True, "kv_cache_too_small", too_small)
        if self._gates["port_owner"].cause in ("wrong_address", "other_network") and self._log.uvicorn_running:
            # It listens where it was told to, and has said that this is all.
            return self._finding(LOADING, True, self._gates["port_owner"].cause, self._gates["port_owner"].detail)
        if self._gates["port_owner"].cause == "wrong_port" and self._log.fired_up:
            # Until then it may yet open another port.
            return self._finding(LOADING, True, "wrong_port", self._gates["port_owner"].detail)
        if self._gates["unit"].passed and self._gates["port_owner"].passed:
            finding = self._check_server()
            if finding is not None:
                return finding
        else:
            self._let_go()
            self._last_http = {}
        missing = [gate for gate in self._gate_list() if gate.passed is not True]
        # One that says why tells more than one that only waits.
        waiting = next((gate for gate in missing if gate.cause), missing[0] if missing else None)
        return self._finding(
            LOADING, False, waiting.cause if waiting else "", waiting.detail if waiting else judged.detail
        )

    def _kv_cache_too_small(self) -> str:
        """Why the KV cache that this start has logged is less than was asked for; '' = it is not, or is not known yet."""
        each = self._log.max_total_num_tokens
        if not self._options.min_total_tokens or each is None:
            return ""
        # Each replica, and each rank of attention data parallelism, has a cache of its own.
        replicas = max(_whole(self._asked("dp_size", "data_parallel_size", "dp")), 1)
        replicas *= max(_whole(self._asked("attn_dp_size", "attention_data_parallel_size")), 1)
        if each * replicas >= self._options.min_total_tokens:
            return ""
        room = f"{each} tokens" + (f" in each of {replicas} replicas" if replicas > 1 else "")
        return (
            f"the KV cache has room for {room} (max_total_num_tokens), and {self._options.min_total_tokens} are needed"
        )

    def _port_gate(self) -> Gate:
        port, elsewhere = self._port, self._log.uvicorn_running
        rank = self._node_rank()
        if rank:
            # What listens there answers 200 to /health from the beginning (sglang 0.5.23 entrypoints/engine.py:1281).
            return Gate("port_owner", True, f"node rank {rank} serves nobody; its port proves nothing")
        if port.owned is not True and elsewhere and not elsewhere.endswith(f":{self._options.endpoint.port}"):
            seen = f"nothing listens on port {self._options.endpoint.port}"
            if port.listening:
                # Whoever holds a port that was asked for by mistake does no harm.
                seen = "; ".join(port.owners) or f"port {self._options.endpoint.port} is open"
            detail = f"{seen}: the server says that it runs on {elsewhere}"
            return Gate("port_owner", port.owned, detail, "wrong_port")
        if port.other_network:
            detail = (
                f"nothing listens on port {self._options.endpoint.port} of this host: the main process"
                f" {self._unit.main_pid} runs in a network namespace of its own"
            )
            return Gate("port_owner", None, detail, "other_network")
        if not port.listening and port.elsewhere:
            asked = self._options.listen_host or "all addresses"
            detail = (
                f"nothing listens on port {self._options.endpoint.port} of {asked}: the server listens on"
                f" {', '.join(port.elsewhere)}"
            )
            return Gate("port_owner", None, detail, "wrong_address")
        return gate_port_owner(
            port=self._options.endpoint.port,
            listening=port.listening,
            owned=port.owned,
            owners=port.owners,
            source=port.source,
        )

    def _markers_gate(self) -> Gate:
        self._log_incomplete = self._journal_gap()
        return gate_markers(
            mode=self._options.markers,
            seen=self._log.markers,
            expected=self._expected_markers(),
            incomplete=self._log_incomplete,
            by_model=self._log.marker_counts,
        )

    def _expected_markers(self) -> int:
        if self._options.expected_markers is not None:
            return self._options.expected_markers
        asked = self._options.settings
        refused = ""
        # What a server says of itself, or was started with, may make no sense; what was asked must.
        for arguments in (self._arguments(), {**self._main_arguments(), **asked}, asked):
            try:
                return expected_markers(arguments)
            except ValueError as error:
                refused = str(error)
        raise OptionError(refused)

    def _conflict_cause(self) -> str:
        failed = self._log.bind_failed
        return _BIND_CAUSES.get(failed.errno if failed else 0, "port_conflict")

    def _conflict_text(self) -> str:
        failed = self._log.bind_failed
        held = "; ".join(self._port.owners) or "the process that held it has gone since"
        if self._conflict_cause() == "port_not_permitted":
            held = "its user may not"
        elif self._conflict_cause() == "address_not_available":
            held = "this host does not have the address"
        return (
            f"the server could not bind {failed.address}:{failed.port} (errno {failed.errno}): {held}"
            if failed
            else held
        )

    def _not_running(self, judged: UnitJudgement) -> Finding:
        reason = None if self._stop_requested else self._host.reason(self._unit)
        if reason is not None:
            return self._for_reason(judged, reason)
        remedy = judged.remedy or REMEDIES.get(judged.cause, "")
        return Finding(judged.state, True, judged.cause, judged.detail, remedy)

    def _for_reason(self, judged: UnitJudgement, reason: Reason) -> Finding:
        """What systemd said in place of the server."""
        evidence = tuple(line for line in (*reason.evidence, self._log.last_line) if line)
        self._diagnosed = Diagnosis(
            "", reason.cause, reason.summary, reason.remedy, "error", "systemd", "", evidence, ()
        )
        return Finding(judged.state, True, reason.cause, reason.summary, reason.remedy)

    def _crashed(self, judged: UnitJudgement) -> Finding:
        self._feed(self._host.last_entries())
        if self._stop_requested:
            # Its end may have been noticed before the journal said that somebody had asked for it.
            self._refresh_unit(self._host.monotonic())
            if self._judged.state not in (CRASHED, CRASH_LOOP):
                return self._decide()
        # What is inactive ended by itself: it was started, and nothing beside it failed.
        reason = self._host.reason(self._unit) if self._unit.active_state != "inactive" else None
        if reason is not None:
            return self._for_reason(judged, reason)
        log = self._log
        self._log_incomplete = self._unread()
        if log.markers:
            # How far it had come.
            self._gates["markers"] = gate_markers(
                mode=self._options.markers,
                seen=log.markers,
                expected=self._expected_markers(),
                incomplete="",
                by_model=log.marker_counts,
            )
        if not (log.bind_failed or log.first_exception or log.argument_error):
            self._feed(self._host.orphans())
        kernel, error = self._host.kernel_lines(self._unit)
        if error:
            self._notices.append(f"{self._options.unit}: the kernel's log was not looked at for GPU faults: {error}")
        found = diagnose(
            log=log,
            unit=self._unit,
            kernel=kernel,
            release=self._release(),
            gpus=self._host.gpus() if kernel else {},
            arguments=self._arguments(),
        )
        self._diagnosed = found
        if found.cause == "port_conflict":
            self._port = self._host.port(self._unit)
            return self._finding(
                judged.state, True, self._conflict_cause(), f"{self._conflict_text()}; {judged.detail}"
            )
        if not found.id and not found.cause and log.argument_error:
            summary = f"SGLang refused its arguments: {log.argument_error} ({judged.detail})"
            return self._finding(judged.state, True, "argument_error", summary)
        if not found.cause:
            remedy = judged.remedy or REMEDIES.get(judged.cause, "")
            summary = "; ".join(part for part in (judged.detail, self._log_incomplete) if part)
            return Finding(judged.state, True, judged.cause, summary, remedy)
        summary = found.summary
        if judged.state == CRASH_LOOP or not found.by_exit:
            summary += f" ({judged.detail})"
        return Finding(judged.state, True, found.cause, summary, found.remedy)

    def _release(self) -> str:
        return str(self._checks.server.get("version") or "") or self._host.release()

    # -- the HTTP gates -----------------------------------------------------------------------------------------

    def _check_server(self) -> Finding | None:
        """Gates 4 to 6. None: nothing final; the gates say what is missing."""
        if self._warming:
            self._attend_clients()
        if self._host.monotonic() < self._next_http:
            self._gates.update(self._last_http)
            return None
        self._warming = False
        finding = self._ask_server()
        names = ("identity", "serving", "stability")
        self._last_http = {
            # What passed then need not pass now.
            name: dataclasses.replace(self._gates[name], passed=self._gates[name].passed and None)
            for name in names
            if name in self._gates
        }
        return finding

    def _ask_server(self) -> Finding | None:
        before, engine_before = self._unit, self._held_engine or self._host.engine(self._unit)
        if self._node_rank():
            missing = self._missing_of_follower(engine_before)
            if missing:
                self._gates["identity"] = Gate("identity", None, missing)
                self._let_go()
                self._retry_http()
                return None
            if self._options.leader is None:
                return self._alone(before, engine_before)
        try:
            if not self._early_identity:
                finding = self._identity()
                if finding is not None:
                    return finding
                # Once early, so that a wrong model is told before the warm-up ends; again in the deciding pass.
                self._early_identity = before.invocation_id
            if not self._serving():
                return None
            finding = self._identity()
            if finding is None and self._awaits_markers():
                return None
            finding = finding or self._generate()
            if finding is not None:
                return finding
        except HttpError as error:
            return self._unusable(error)
        self._unusable_in_a_row = ("", 0)
        if self._gates["serving"].passed is not True:
            return None
        self._stalls.answered("", self._host.monotonic(), proven=True)
        return self._stable(before, engine_before)

    def _missing_of_follower(self, engine: frozenset[EngineProcess]) -> str:
        """What the follower itself lacks, before its leader is asked."""
        if self._gates["markers"].passed is not True:
            return self._gates["markers"].detail
        return "" if any(process.role == "scheduler" for process in engine) else "no scheduler process runs yet"

    def _alone(self, before: UnitState, engine_before: frozenset[EngineProcess]) -> Finding | None:
        """A follower without a leader: its own processes are all that can be judged."""
        text = f"node rank {self._node_rank()} answers for nobody; only its leader can tell"
        self._gates["identity"] = Gate("identity", None, text)
        self._gates["serving"] = Gate("serving", None, text)
        self._stable(before, engine_before)
        if self._gates["stability"].passed is not True:
            return None
        return self._finding(FOLLOWER, True, "", "its own processes run; no leader was given to prove more")

    def _unusable(self, error: HttpError) -> Finding | None:
        """An answer that was none. What cannot get better ends the wait."""
        text, said = str(error), error.cause
        if self._node_rank() and said in _SILENT:
            text, said = f"the leader {self._leader_url()} does not answer: {text}", "leader_unreachable"
        self._gates.setdefault("identity", Gate("identity", None, text, said))
        self._gates["serving"] = Gate("serving", None, text, said)
        self._dirty = True
        self._let_go()
        self._retry_http()
        cause, count = self._unusable_in_a_row
        count = count + 1 if error.cause == cause else 1
        self._unusable_in_a_row = (error.cause, count)
        # A follower asks its leader, of which it knows nothing else.
        if error.tries and count >= error.tries and not self._node_rank():
            return self._finding(LOADING, True, error.cause, str(error))
        return None

    def _leader_url(self) -> str:
        return self._options.leader.url if self._options.leader else ""

    def _retry_http(self) -> None:
        if self._node_rank():
            self._next_http = self._host.monotonic() + _LEADER_RETRY_S
            return
        now = self._host.monotonic()
        self._warming = not self._log.fired_up
        quiet = self._log.uvicorn_running and self._warming and now > self._client_left_at + _HTTP_CLIENT_LEFT_S
        self._next_http = now + (_HTTP_RETRY_QUIET_S if quiet else _HTTP_RETRY_S)

    def _attend_clients(self) -> None:
        """Ask again when a connection to the server has ended: it may have been the warm-up."""
        clients = self._host.clients()
        if clients is None:
            return
        if self._clients - clients:
            self._client_left_at = self._host.monotonic()
            self._next_http = 0.0
        self._clients = clients

    def _time_left(self, most: float) -> float:
        """Seconds that a request may take: no more than the wait itself."""
        if not self._options.wait:
            return most
        return max(min(most, self._started + self._timeout() - self._host.monotonic()), 0.25)

    def _request(self, method: str, path: str, *, timeout: float, payload: t.Any = None) -> Response:
        """To the server that can prove this start: a follower's is its leader's."""
        ask = self._host.request_leader if self._node_rank() else self._host.request
        began, what, stopping = self._host.monotonic(), f"{method} {path}", self._stop_requested

        def abort() -> bool:
            return self._meanwhile() or self._stop_requested != stopping

        try:
            response = ask(method, path, timeout=timeout, payload=payload, abort=abort)
        except HttpError:
            now = self._host.monotonic()
            if now - began >= 0.9 * timeout or self._stalls.is_hung(now):
                self._stalls.unanswered(what, began)
            raise
        self._stalls.answered(what, self._host.monotonic())
        return response

    def _meanwhile(self) -> bool:
        """Watch on while a request waits for its answer. True when the answer no longer matters: the server hangs."""
        now = self._host.monotonic()
        if now < self._meanwhile_at:
            return False
        self._meanwhile_at = now + _MEANWHILE_S
        self._host.pause(0.0)
        if self._following:
            self._feed(self._host.follow())
        self._look(now)
        return self._can_hang() and self._stalls.is_hung(now)

    def _post(self, path: str, payload: t.Any) -> Response:
        timeout = self._time_left(_GENERATE_TIMEOUT_S if self._options.wait else _GENERATE_ONCE_S)
        return self._request("POST", path, timeout=timeout, payload=payload)

    def _get(self, path: str) -> Response:
        # A connection that is not even taken up cannot be aborted: it must not outlive the stall clocks.
        most = min(_HTTP_TIMEOUT_S, self._stalls.due_in(self._host.monotonic()) + 0.5)
        return self._request("GET", path, timeout=self._time_left(most))

    def _asked_nodes(self) -> t.Any:
        value = self._options.settings.get("nnodes")
        return self._main_arguments().get("nnodes") if value is None else value

    def _identity(self) -> Finding | None:
        gate = self._checks.identity(
            node_rank=self._node_rank(), nodes=self._asked_nodes(), max_total_num_tokens=self._log.max_total_num_tokens
        )
        self._gates["identity"] = gate
        if gate.cause != "unauthorized":
            # The server's own arguments tell how many there should be.
            self._gates["markers"] = self._markers_gate()
        return self._finding(LOADING, True, gate.cause, gate.detail) if gate.passed is False else None

    def _serving(self) -> bool:
        up, self._gates["serving"] = self._checks.serving(fired_up=self._log.fired_up)
        if not up:
            self._let_go()
            self._retry_http()
        return up

    def _generate(self) -> Finding | None:
        block_size = _whole(
            self._asked("speculative_dflash_block_size") or self._asked("speculative_num_draft_tokens") or 0
        )
        gate = self._checks.generation(
            speculation=bool(self._asked("speculative_algorithm")), block_size=block_size, release=self._release
        )
        self._gates["serving"] = gate
        if gate.passed:
            self._generation_failures = 0
            return None
        self._generation_failures += 1
        self._let_go()
        self._retry_http()
        if gate.cause == "generation_too_short":
            least = least_generation_tokens(block_size)
            remedy = f"Set generation_tokens to {least} or more, or leave it out."
            return Finding(LOADING, True, gate.cause, gate.detail, remedy)
        hopeless = gate.cause == "speculation_not_exercised" or self._generation_failures >= _GENERATION_TRIES
        return self._finding(LOADING, hopeless, gate.cause, gate.detail)

    def _stable(self, before: UnitState, engine_before: frozenset[EngineProcess]) -> Finding | None:
        self._refresh_unit(self._host.monotonic())
        after = self._unit
        self._port = self._host.port(after)
        now = self._host.monotonic()
        if self._held_since is None:
            self._held_since, self._held_engine = now, engine_before
        alive = self._host.main_alive()
        gate = gate_stability(
            before=before,
            after=after,
            engine_before=engine_before,
            engine_after=self._host.engine(after),
            owned_after=True if self._node_rank() else self._port.owned,
            held_for=now - self._held_since,
            stable_for=self._options.stable_for,
        )
        self._gates["stability"] = gate
        if gate.passed is None:
            self._next_http = min(self._held_since + self._options.stable_for, now + 1.0)
            return None
        if not gate.passed or alive is not True or self._judged.final:
            self._let_go()
            self._dirty = True
            self._retry_http()
            return None
        if self._loaded_nothing():
            # What answers here may be a proxy in front of another server, an old one for example.
            text = "the journal does not show that this start loaded a model, and no scheduler process of it runs"
            self._gates["stability"] = Gate("stability", None, text, "no_scheduler")
            self._let_go()
            self._next_http = now + _HTTP_RETRY_QUIET_S
            return None
        if any(item.passed is not True for item in self._gate_list()):
            # All but the markers passed, which are on their way through journald; they call at once.
            self._listen()
            self._next_http = now + (0.0 if self._unlogged else _HTTP_RETRY_QUIET_S)
            return None
        return self._finding(READY, True, "", "all six gates passed")

    def _awaits_markers(self) -> bool:
        """Whether to give markers a moment that journald may still hold back: for late ones it would generate once more."""
        if self._gates["markers"].passed is True or not self._following:
            return False
        now = self._host.monotonic()
        if self._markers_due is None:
            self._markers_due = now + _MARKERS_LATE_S
        if now >= self._markers_due:
            return False
        self._gates["serving"] = Gate("serving", None, f"{self._checks.ready_path} is 200; the markers come first")
        self._next_http = self._markers_due
        return True

    def _loaded_nothing(self) -> bool:
        """Whether nothing but the answers speaks for a model: neither the log nor a process."""
        if self._options.markers == "ignore" or self._log.markers >= max(self._expected_markers(), 1):
            return False
        return not any(process.role == "scheduler" for process in self._host.engine(self._unit))

    # -- the result ---------------------------------------------------------------------------------------------

    def _finding(self, state: str, final: bool, cause: str, summary: str) -> Finding:
        found = Finding.of(state, final, cause, summary)
        if not self._port.socket_units or cause not in ("port_conflict", "port_owned_by_other"):
            return found
        # Its process is systemd.
        units = " ".join(self._port.socket_units)
        remedy = f"End the socket activation (`systemctl disable --now {units}`), or give this instance another port."
        return dataclasses.replace(found, remedy=remedy)

    def _timed_out(self, finding: Finding, now: float) -> Finding:
        summary = (
            f"not ready within {self._timeout():g} s{self._compared(now)}; in phase {self._phase or 'none'} "
            f"for {now - self._phase_since:.0f} s; {finding.summary}"
        )
        if self._can_hang():
            self._hang_lists = self._stalls.lists(now, last_line=self._log.last_line)
        found = diagnose(
            log=self._log, unit=self._unit, release=self._release(), ended=False, arguments=self._arguments()
        )
        remedy = finding.remedy or REMEDIES["timeout"]
        if self._held_since is not None and self._options.stable_for and not finding.cause:
            # It was only not watched for long enough.
            held = f"all other gates passed, and held for {now - self._held_since:.0f} s of the"
            summary = (
                f"not ready within {self._timeout():g} s: {held} {self._options.stable_for:g} s that stable_for asks"
            )
            remedy = "Raise timeout, which has to hold the start and stable_for, or lower stable_for."
        elif found.id and not finding.remedy:
            self._diagnosed = found
            summary, remedy = f"{summary}. The log says: {found.summary}", found.remedy
        return Finding(finding.state, True, finding.cause or "timeout", summary, remedy)

    def _hung(self, now: float) -> Finding:
        """Nothing moves: say since when, who stands still, and what the logs know of it."""
        explained = self._stalls.explain(now, last_line=self._log.last_line, port=self._options.endpoint.port)
        self._hang_lists = explained.lists
        kernel, _error = self._host.kernel_lines(self._unit)
        found = diagnose(
            log=self._log,
            unit=self._unit,
            kernel=kernel,
            release=self._release(),
            gpus=self._host.gpus() if kernel else {},
            ended=False,
            arguments=self._arguments(),
        )
        silence = look_up(self._log.last_line, "last")
        if explained.certain and silence is not None and silence[0].id == found.id:
            # Who stands still is seen; a guess from the last line says less.
            found = dataclasses.replace(found, id="", cause="", summary="", remedy="", rank="", evidence=())
        self._diagnosed = dataclasses.replace(found, evidence=(*found.evidence, *explained.evidence))
        if found.source == "kernel log":
            return Finding(HUNG, True, found.cause, f"{found.summary}; {explained.summary}", found.remedy)
        summary = explained.summary + (f". The log says: {found.summary}" if found.summary else "")
        remedy = explained.remedy if explained.certain or not found.remedy else found.remedy
        # A line that nothing followed is as good a cause as silence.
        by_silence = silence is not None and silence[0].id == found.id
        return Finding(HUNG, True, found.cause if by_silence else explained.cause, summary, remedy)

    def _compared(self, now: float) -> str:
        """How long earlier starts took, for a message."""
        if not self._estimate(now, []):
            return ""
        totals = [start.total_s for start in similar(self._starts, self.subject())]
        return f" (earlier starts of this kind: {len(totals)}, the slowest {max(totals):.0f} s)"

    def _gate_list(self) -> list[Gate]:
        text = "not checked: the server does not run" if self._judged.final else "not checked yet"
        return [self._gates.get(name, Gate(name, None, text)) for name in GATES]

    def _result(self, finding: Finding, *, finished: bool) -> dict[str, t.Any]:
        now, realtime = self._host.monotonic(), self._host.realtime()
        self._set_phase(now)
        if finding.state == READY:
            self._await_last_lines(now)
        timeline = timeline_of(self._log, self._unit, now)
        outcome = Outcome(
            finding=finding,
            finished=finished,
            options=self._options,
            unit=self._unit,
            log=self._log,
            gates=self._gate_list(),
            server=self._checks.server,
            now=now,
            realtime=realtime,
            started=self._started,
            phase=self._phase,
            phase_since=self._phase_since,
            timeout=self._timeout(),
            timeline=timeline,
            estimate=self._estimate(now, timeline) if finding.state == LOADING else {},
            expected_markers=self._expected_markers(),
            node_rank=self._node_rank(),
            log_incomplete=self._log_incomplete,
            notices=self._notices,
            unknown_settings=self._checks.unknown_settings,
            diagnosed=self._diagnosed,
            hang_lists=self._hang_lists,
        )
        result = outcome.result()
        if not finished:
            result["resume"] = self._kept_for_the_next_slice(now)
        return t.cast("dict[str, t.Any]", redact(result, self._checks.secrets))

    def _kept_for_the_next_slice(self, now: float) -> dict[str, t.Any]:
        boot_id = self._host.boot_id()
        start = {"invocation_id": self._watched[0], "main_pid": self._watched[1]}
        engine = [dataclasses.asdict(process) for process in sorted(self._held_engine)]
        return {
            "boot_id": boot_id,
            "started": self._started,
            "elapsed": now - self._started,
            "restarts_before": self._restarts_before,
            "phase": self._phase,
            "held": {"boot_id": boot_id, **start, "since": self._held_since, "engine": engine},
            "stalls": {"boot_id": boot_id, **start, **self._stalls.dump()},
            "journal": {
                "invocation_id": self._watched[0],
                "cursor": self._host.cursor(),
                "began": self._began_in_journal,
                "stop_requested": self._stop_requested,
                "log": self._log.dump(tail=self._options.log_lines),
            },
        }

    def _await_last_lines(self, now: float) -> None:
        """The verdict is made; journald may be a moment behind with the lines that complete the timeline."""
        while self._following and not self._log.fired_up and self._host.monotonic() - now < _LAST_LINES_S:
            self._host.pause(_TICK_BUSY_S)
            self._feed(self._host.follow())


def _whole(value: t.Any) -> int:
    try:
        return int(value)
    except (OverflowError, TypeError, ValueError):
        return 0


__all__ = ("STARTING_MESSAGE_ID", "STOPPING_MESSAGE_ID", "Waiter")
