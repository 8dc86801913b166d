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

from ansible_collections.specdec.serving.plugins.module_utils._diagnosis import Diagnosis, diagnose, log_warnings
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
    STATES,
    STOPPED,
    STOPPING,
    Difference,
    EngineProcess,
    Gate,
    UnitJudgement,
    compare_settings,
    cross_check,
    default_generation_tokens,
    gate_generation,
    gate_identity,
    gate_markers,
    gate_port_owner,
    gate_stability,
    gate_unit,
    generation_request,
    judge_unit,
    least_generation_tokens,
    resembling,
    small,
)
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import OptionError, Options
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact
from ansible_collections.specdec.serving.plugins.module_utils._releases import reports_verify_steps
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
    PHASES,
    SERVING,
    StartupLog,
    expected_markers,
    markers_unavailable,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

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
_LAST_LINES_S = 0.3
# A long journal of a start is read this long before anything else is looked at.
_HISTORY_S = 2.0
# After its main process ended, systemd needs a moment to say so.
_SETTLE_S = 3.0
# A generation that fails otherwise than by a refused argument may be a passing state of a server under load.
_GENERATION_TRIES = 3


@dataclasses.dataclass(frozen=True)
class _Finding:
    """An end of the wait, or what holds it up."""

    state: str
    final: bool
    cause: str = ""
    summary: str = ""
    remedy: str = ""


_REMEDIES = {
    "port_conflict": "Stop the process that holds the port, or give this instance another port.",
    "port_owned_by_other": "Stop the process that holds the port, or give this instance another port.",
    "wrong_port": "Give the port that the server was started with, or restart it with the one that is wanted.",
    "wrong_model": "Correct served_model_name, or the id that is expected.",
    "wrong_model_path": "Correct model_path; a server of another model runs in this unit.",
    "settings_mismatch": "Restart the unit so that it runs what its file says, or correct the arguments.",
    "unauthorized": "Give the key that the server was started with as api_key.",
    "wrong_address": "Give the host that the server was started with, or restart it with the one that is wanted.",
    "port_not_permitted": "Give the instance a port above 1023, or its unit AmbientCapabilities=CAP_NET_BIND_SERVICE.",
    "address_not_available": "Give the instance an address that this host has (`ip address`).",
    "tls_certificate": "Give the authority that signed the certificate as ca_path, or a certificate for this host and time.",
    "tls_expected": "Set scheme to https.",
    "tls_missing": "Set scheme to http, or give the server --ssl-certfile and --ssl-keyfile.",
    "redirected": "See what the unit starts: its answers are not those of an SGLang server.",
    "not_http": "See what the unit starts: its answers are not those of an SGLang server.",
    "not_json": "See what the unit starts: its answers are not those of an SGLang server.",
    "huge_answer": "See what the unit starts: its answers are not those of an SGLang server.",
    "speculation_not_exercised": "Check the speculative arguments: the server answers without its draft model.",
    "argument_error": "Correct the argument (with the role, under args of the instance): the installed release does not know it, or "
    "refuses its value.",
    "exec_failed": "The program could not be started: see systemd.exec(5) for the status, and the unit's ExecStart, User and paths.",
    "not_found": "Deploy the instance first, or correct the unit's name.",
    "no_scheduler": "See what the unit starts: a server that answers for another one is not this model.",
    "unit_type": "Set Type=exec in the unit: SGLang tells systemd nothing, and stays where it was started.",
    "other_network": "Take PrivateNetwork, NetworkNamespacePath and the like out of the unit, or start the server without a container.",
    "leader_unreachable": (
        "Check leader, that rank 0 runs, and that it listens on an address that this host reaches, not on 127.0.0.1 only."
    ),
    "timeout": "Raise timeout if the server was still at work; log_tail has its last lines.",
}


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
        self._secrets = {options.endpoint.api_key} if options.endpoint.api_key else set()
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
        self._ready_path = "/ready"
        self._generation_failures = 0
        #: The cause of the last answers that were none, and how many there were of it.
        self._unusable_in_a_row = ("", 0)
        self._held_since: float | None = None
        self._held_engine: frozenset[EngineProcess] = frozenset()
        self._gates: dict[str, Gate] = {}
        #: What the last HTTP checks saw, until the next ones.
        self._last_http: dict[str, Gate] = {}
        self._port = PortView()
        self._server: dict[str, t.Any] = {}
        self._phase = ""
        self._phase_since = 0.0
        self._notices: list[str] = []
        self._log_incomplete = ""
        #: Of the settings that were asked for, those that the server does not know, each with what may be meant.
        self._unknown_settings: dict[str, str] = {}
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
        self._ready_path = "/ready"
        self._generation_failures = 0
        self._server = {}
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
        return self._server.get("arguments") or {**self._main_arguments(), **self._options.settings}

    def _asked(self, *names: str) -> t.Any:
        """An argument by its name, or by other names for it on the command line."""
        for source in (self._options.settings, self._server.get("arguments") or {}, self._main_arguments()):
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
        if self._subject is None or self._server:
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

    def _decide(self) -> _Finding:
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

    def _not_running(self, judged: UnitJudgement) -> _Finding:
        reason = None if self._stop_requested else self._host.reason(self._unit)
        if reason is not None:
            return self._for_reason(judged, reason)
        remedy = judged.remedy or _REMEDIES.get(judged.cause, "")
        return _Finding(judged.state, True, judged.cause, judged.detail, remedy)

    def _for_reason(self, judged: UnitJudgement, reason: Reason) -> _Finding:
        """What systemd said in place of the server."""
        evidence = tuple(line for line in (*reason.evidence, self._log.last_line) if line)
        self._diagnosed = Diagnosis(
            "", reason.cause, reason.summary, reason.remedy, "error", "systemd", "", evidence, ()
        )
        return _Finding(judged.state, True, reason.cause, reason.summary, reason.remedy)

    def _crashed(self, judged: UnitJudgement) -> _Finding:
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
            log=log, unit=self._unit, kernel=kernel, release=self._release(), gpus=self._host.gpus() if kernel else {}
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
            remedy = judged.remedy or _REMEDIES.get(judged.cause, "")
            summary = "; ".join(part for part in (judged.detail, self._log_incomplete) if part)
            return _Finding(judged.state, True, judged.cause, summary, remedy)
        summary = found.summary
        if judged.state == CRASH_LOOP or not found.by_exit:
            summary += f" ({judged.detail})"
        return _Finding(judged.state, True, found.cause, summary, found.remedy)

    def _release(self) -> str:
        return str(self._server.get("version") or "") or self._host.release()

    # -- the HTTP gates -----------------------------------------------------------------------------------------

    def _check_server(self) -> _Finding | None:
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

    def _ask_server(self) -> _Finding | None:
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
            finding = self._identity() or self._generate()
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

    def _alone(self, before: UnitState, engine_before: frozenset[EngineProcess]) -> _Finding | None:
        """A follower without a leader: its own processes are all that can be judged."""
        text = f"node rank {self._node_rank()} answers for nobody; only its leader can tell"
        self._gates["identity"] = Gate("identity", None, text)
        self._gates["serving"] = Gate("serving", None, text)
        self._stable(before, engine_before)
        if self._gates["stability"].passed is not True:
            return None
        return self._finding(FOLLOWER, True, "", "its own processes run; no leader was given to prove more")

    def _unusable(self, error: HttpError) -> _Finding | None:
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

    def _get(self, path: str) -> Response:
        # A connection that is not even taken up cannot be aborted: it must not outlive the stall clocks.
        most = min(_HTTP_TIMEOUT_S, self._stalls.due_in(self._host.monotonic()) + 0.5)
        return self._request("GET", path, timeout=self._time_left(most))

    def _get_json(self, *paths: str) -> t.Any:
        """The first of several names of one endpoint that this release has."""
        for path in paths:
            response = self._get(path)
            if response.status == 404 and path != paths[-1]:
                continue
            return _expect_200(path, response).json()
        raise HttpError("no path")

    def _identity(self) -> _Finding | None:
        response = self._get("/v1/models")
        if response.status in (401, 403):
            given = (
                "the api_key that was given is not the server's"
                if self._options.endpoint.api_key
                else "no api_key was given"
            )
            text = f"/v1/models answered {response.status}: the server wants a key, and {given}"
            self._gates["identity"] = Gate("identity", False, text, "unauthorized")
            return self._finding(LOADING, True, "unauthorized", text)
        models = [str(item.get("id")) for item in _dicts(_expect_200("/v1/models", response).json(), "data")]
        model_info = _mapping(self._get_json("/model_info", "/get_model_info"))
        info = _mapping(self._get_json("/server_info", "/get_server_info"))
        self._secrets.update(
            key for key in (str(info.get(name) or "") for name in ("api_key", "admin_api_key")) if _can_be_masked(key)
        )
        differences, unreported = self._compare(info)
        self._remember_server(info, models, differences)
        self._unknown_settings = {name: resembling(name, info) for name in unreported}
        gate = gate_identity(
            model=self._options.model,
            model_path=self._options.model_path,
            models=models,
            running_path=str(model_info.get("model_path", "")),
            differences=differences,
            unreported=unreported,
        )
        self._gates["identity"] = gate
        self._gates["markers"] = self._markers_gate()
        if gate.passed is False:
            return self._finding(LOADING, True, gate.cause, gate.detail)
        return None

    def _compare(self, info: t.Mapping[str, t.Any]) -> tuple[list[Difference], list[str]]:
        """What was asked against what runs. A leader has another rank than its follower, and must know of all nodes."""
        if not self._node_rank():
            return compare_settings(self._options.settings, info)
        asked = {**self._options.settings, "nnodes": self._asked_nodes()}
        own = ("node_rank", "host", "port")
        differences, unreported = compare_settings(
            {name: value for name, value in asked.items() if name not in own}, info
        )
        return [
            dataclasses.replace(difference, held=difference.held or difference.name == "nnodes")
            for difference in differences
        ], unreported

    def _asked_nodes(self) -> t.Any:
        value = self._options.settings.get("nnodes")
        return self._main_arguments().get("nnodes") if value is None else value

    def _remember_server(self, info: t.Mapping[str, t.Any], models: list[str], differences: list[Difference]) -> None:
        names = (
            "attention_backend",
            "context_length",
            "dp_size",
            "ep_size",
            "log_level",
            "max_running_requests",
            "mem_fraction_static",
            "model_path",
            "nnodes",
            "node_rank",
            "pp_size",
            "quantization",
            "speculative_algorithm",
            "speculative_draft_model_path",
            "speculative_num_draft_tokens",
            "startup_weight_load_mode",
            "tp_size",
        )
        self._server = {
            "version": small(info.get("version")),
            "model": models[0][:256] if models else "",
            "arguments": {name: small(info[name]) for name in names if small(info.get(name)) is not None},
            "max_total_num_tokens": small(info.get("max_total_num_tokens")) or self._log.max_total_num_tokens,
            "startup_time": small(info.get("startup_time")),
            "engine_changed": [
                change
                for change in (
                    small(dataclasses.asdict(difference)) for difference in differences if not difference.held
                )
                if change is not None
            ],
            "skip_tokenizer_init": bool(info.get("skip_tokenizer_init")),
        }

    def _serving(self) -> bool:
        response = self._get(self._ready_path)
        if response.status == 404 and self._ready_path == "/ready":
            # Before 0.5.20. This one generates a token and takes a second in every release; /health is 200 from the
            # beginning in 0.4.6, and wherever SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is 0.
            self._ready_path = "/health_generate"
            response = self._get(self._ready_path)
        if response.status == 200:
            self._gates["serving"] = Gate("serving", None, f"{self._ready_path} is 200")
            return True
        text = f"{self._ready_path} answers {response.status}: warming up, draining or unhealthy"
        self._gates["serving"] = Gate("serving", None, text, "unhealthy" if self._log.fired_up else "")
        self._let_go()
        self._retry_http()
        return False

    def _generate(self) -> _Finding | None:
        algorithm = self._asked("speculative_algorithm")
        block_size = self._asked("speculative_dflash_block_size") or self._asked("speculative_num_draft_tokens") or 0
        tokens = self._options.generation_tokens
        if tokens is None:
            tokens = default_generation_tokens(_whole(block_size) if algorithm else 0)
        if tokens == 0:
            self._gates["serving"] = Gate("serving", True, f"{self._ready_path} is 200; no generation was asked for")
            return None
        payload = generation_request(tokens, skip_tokenizer_init=self._server["skip_tokenizer_init"])
        response = self._request(
            "POST",
            "/generate",
            timeout=self._time_left(_GENERATE_TIMEOUT_S if self._options.wait else _GENERATE_ONCE_S),
            payload=payload,
        )
        if response.status == 200:
            gate = gate_generation(
                response.json(),
                tokens=tokens,
                speculation=bool(algorithm),
                counted=reports_verify_steps(self._release()),
                block_size=_whole(block_size),
            )
        else:
            body = response.body[:300].decode("utf-8", "replace")
            gate = Gate("serving", False, f"/generate answered {response.status}: {body}", "generation_failed")
        self._gates["serving"] = gate
        if gate.passed:
            self._generation_failures = 0
            return None
        self._generation_failures += 1
        self._let_go()
        self._retry_http()
        hopeless = (
            gate.cause in ("speculation_not_exercised", "generation_too_short")
            or self._generation_failures >= _GENERATION_TRIES
        )
        if gate.cause == "generation_too_short":
            least = least_generation_tokens(_whole(block_size))
            remedy = f"Set generation_tokens to {least} or more, or leave it out."
            return _Finding(LOADING, True, gate.cause, gate.detail, remedy)
        return self._finding(LOADING, hopeless, gate.cause, gate.detail)

    def _stable(self, before: UnitState, engine_before: frozenset[EngineProcess]) -> _Finding | None:
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

    def _loaded_nothing(self) -> bool:
        """Whether nothing but the answers speaks for a model: neither the log nor a process."""
        if self._options.markers == "ignore" or self._log.markers >= max(self._expected_markers(), 1):
            return False
        return not any(process.role == "scheduler" for process in self._host.engine(self._unit))

    # -- the result ---------------------------------------------------------------------------------------------

    def _finding(self, state: str, final: bool, cause: str, summary: str) -> _Finding:
        return _Finding(state, final, cause, summary, _REMEDIES.get(cause, ""))

    def _timed_out(self, finding: _Finding, now: float) -> _Finding:
        summary = (
            f"not ready within {self._timeout():g} s{self._compared(now)}; in phase {self._phase or 'none'} "
            f"for {now - self._phase_since:.0f} s; {finding.summary}"
        )
        if self._can_hang():
            self._hang_lists = self._stalls.lists(now, last_line=self._log.last_line)
        found = diagnose(log=self._log, unit=self._unit, release=self._release(), ended=False)
        remedy = finding.remedy or _REMEDIES["timeout"]
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
        return _Finding(finding.state, True, finding.cause or "timeout", summary, remedy)

    def _hung(self, now: float) -> _Finding:
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
        )
        silence = look_up(self._log.last_line, "last")
        if explained.certain and silence is not None and silence[0].id == found.id:
            # Who stands still is seen; a guess from the last line says less.
            found = dataclasses.replace(found, id="", cause="", summary="", remedy="", rank="", evidence=())
        self._diagnosed = dataclasses.replace(found, evidence=(*found.evidence, *explained.evidence))
        if found.source == "kernel log":
            return _Finding(HUNG, True, found.cause, f"{found.summary}; {explained.summary}", found.remedy)
        summary = explained.summary + (f". The log says: {found.summary}" if found.summary else "")
        remedy = explained.remedy if explained.certain or not found.remedy else found.remedy
        # A line that nothing followed is as good a cause as silence.
        by_silence = silence is not None and silence[0].id == found.id
        return _Finding(HUNG, True, found.cause if by_silence else explained.cause, summary, remedy)

    def _compared(self, now: float) -> str:
        """How long earlier starts took, for a message."""
        if not self._estimate(now, []):
            return ""
        totals = [start.total_s for start in similar(self._starts, self.subject())]
        return f" (earlier starts of this kind: {len(totals)}, the slowest {max(totals):.0f} s)"

    def _gate_list(self) -> list[Gate]:
        text = "not checked: the server does not run" if self._judged.final else "not checked yet"
        return [self._gates.get(name, Gate(name, None, text)) for name in GATES]

    def _result(self, finding: _Finding, *, finished: bool) -> dict[str, t.Any]:
        now, realtime = self._host.monotonic(), self._host.realtime()
        self._set_phase(now)
        if finding.state == READY:
            self._await_last_lines(now)
        unit, log = self._unit, self._log
        ready = finding.state == READY
        timeline = self._timeline(now)
        start = unit.exec_main_start_us / 1e6
        gates = [{"name": gate.name, "passed": gate.passed, "detail": gate.detail} for gate in self._gate_list()]
        weights = [{**dataclasses.asdict(model), "ranks": len(model.ranks)} for model in log.weights]
        result: dict[str, t.Any] = {
            "changed": False,
            "state": finding.state,
            "ready": ready,
            "elapsed": round(now - self._started, 3),
            "phase": SERVING if ready else self._phase,
            "phase_for": round(now - self._phase_since, 3),
            "gates": gates,
            "unit": self._options.unit,
            "port": self._options.endpoint.port,
            "invocation_id": unit.invocation_id,
            "main_pid": unit.main_pid,
            "uptime": round(now - start, 3) if unit.main_pid and start else 0.0,
            "timeline": timeline,
            "weights": weights,
            "markers": {"seen": log.markers, "expected": self._expected_markers()},
            "server": {key: value for key, value in self._server.items() if key != "skip_tokenizer_init"},
            "detected_at": realtime,
            "detected_at_monotonic": now,
            "timeout": self._timeout(),
            "diagnosis": {} if ready or finding.state == FOLLOWER else self._diagnosis(finding),
            "log_tail": log.tail(self._options.log_lines),
            "log_incomplete": self._log_incomplete,
            "finished": finished,
            "notices": self._all_notices(ready, timeline),
        }
        if log.draining is not None and finding.state == STOPPING:
            result["draining"] = log.draining.remaining
        rank = self._node_rank()
        if rank:
            result["node_rank"] = rank
        left = self._estimate(now, timeline) if finding.state == LOADING else {}
        if left:
            result["estimate"] = left
        if not finished:
            result["resume"] = {
                "boot_id": self._host.boot_id(),
                "started": self._started,
                "elapsed": now - self._started,
                "restarts_before": self._restarts_before,
                "phase": self._phase,
                "held": {
                    "boot_id": self._host.boot_id(),
                    "invocation_id": self._watched[0],
                    "main_pid": self._watched[1],
                    "since": self._held_since,
                    "engine": [dataclasses.asdict(process) for process in sorted(self._held_engine)],
                },
                "stalls": {
                    "boot_id": self._host.boot_id(),
                    "invocation_id": self._watched[0],
                    "main_pid": self._watched[1],
                    **self._stalls.dump(),
                },
                "journal": {
                    "invocation_id": self._watched[0],
                    "cursor": self._host.cursor(),
                    "began": self._began_in_journal,
                    "stop_requested": self._stop_requested,
                    "log": log.dump(tail=self._options.log_lines),
                },
            }
        if finding.state == FOLLOWER:
            result["notices"].append(
                f"{self._options.unit}: node rank {rank} runs; give leader (host:port of rank 0) to prove that it serves"
            )
        elif finished and self._options.wait and not ready:
            result["msg"] = self._message(finding, now)
        return t.cast("dict[str, t.Any]", redact(result, self._secrets))

    def _await_last_lines(self, now: float) -> None:
        """The verdict is made; journald may be a moment behind with the lines that complete the timeline."""
        while self._following and not self._log.fired_up and self._host.monotonic() - now < _LAST_LINES_S:
            self._host.pause(_TICK_BUSY_S)
            self._feed(self._host.follow())

    def _all_notices(self, ready: bool, timeline: list[dict[str, t.Any]]) -> list[str]:
        notices = list(self._notices)
        if not self._log_incomplete and not self._node_rank():
            # A follower's answers are its leader's, its journal is its own.
            notices += cross_check(timeline, self._server.get("startup_time"))
        for name, meant in self._unknown_settings.items():
            guess = f"; {meant} may be meant" if meant else ""
            notices.append(
                f"{self._options.unit}: settings has {name!r}, which this release does not report, so it was not compared:"
                f" it may be misspelt{guess}"
            )
        if ready and self._log_incomplete:
            notices.append(f"{self._options.unit}: {self._log_incomplete}; the other gates decided")
        if ready:
            warnings = log_warnings(self._log, str(self._server.get("version") or ""), severities=("warning",))
            notices += [f"{self._options.unit}: {warning}" for warning in warnings]
        if ready and self._unit.n_restarts:
            notices.append(f"{self._options.unit}: systemd has restarted it {self._unit.n_restarts} times by itself")
        if self._unit.need_daemon_reload:
            notices.append(
                f"{self._options.unit}: its file changed on disk, and systemd has not read it yet (daemon-reload)"
            )
        return notices

    def _timeline(self, now: float) -> list[dict[str, t.Any]]:
        start_us = self._unit.exec_main_start_us
        if not start_us or not self._unit.invocation_id:
            return []
        ended_us = self._unit.exec_main_exit_us
        until_us = ended_us if ended_us > start_us and not self._unit.main_pid else int(now * 1e6)
        return [
            {
                "phase": span.phase,
                "start": round((span.start_us - start_us) / 1e6, 3),
                "duration": round(
                    (max(until_us - span.start_us, 0) if span.duration_us is None else span.duration_us) / 1e6, 3
                ),
                **({"model": span.model} if span.model else {}),
            }
            for span in self._log.timeline
        ]

    def _diagnosis(self, finding: _Finding) -> dict[str, t.Any]:
        found = self._diagnosed
        evidence = list(found.evidence) if found else []
        if self._log.argument_error and not evidence:
            evidence.append(self._log.argument_error)
        return {
            "id": found.id if found else "",
            "cause": finding.cause,
            "summary": finding.summary,
            "remedy": finding.remedy,
            "severity": found.severity if found else "error",
            "rank": found.rank if found else "",
            "evidence": evidence,
            "warnings": list(found.warnings) if found else log_warnings(self._log),
            "exit": self._unit.exit_text(),
            **self._hang_lists,
        }

    def _unit_name(self) -> str:
        """The unit as it was asked for, and what systemd calls it if that is an alias."""
        asked, known = self._options.unit, self._unit.id
        return f"{asked} (an alias of {known})" if known and known != asked else asked

    def _message(self, finding: _Finding, now: float) -> str:
        verdict = f"{self._unit_name()} is not ready: {finding.state}"
        if finding.cause and finding.cause != finding.state:
            verdict += f" ({finding.cause})"
        parts = [f"{verdict} after {now - self._started:.1f} s", finding.summary]
        if finding.remedy:
            parts.append(finding.remedy)
        return ". ".join(part.rstrip(".") for part in parts if part) + "."


def _can_be_masked(key: str) -> bool:
    """Whether the result stays readable without this text. The name beside a value masks it in any case."""
    return len(key) >= 4 and not any(key in word for word in (*STATES, *GATES, *PHASES, SERVING))


def _whole(value: t.Any) -> int:
    try:
        return int(value)
    except (OverflowError, TypeError, ValueError):
        return 0


def _mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    if not isinstance(value, dict):
        raise HttpError(f"expected a JSON object, got {str(value)[:120]!r}", "not_json")
    return value


def _expect_200(path: str, response: Response) -> Response:
    if 300 <= response.status < 400:
        raise HttpError(f"GET {path} is redirected to {response.location!r}; SGLang never does that", "redirected")
    if response.status != 200:
        raise HttpError(f"GET {path} answered {response.status}: {response.body[:200]!r}", "http_status")
    return response


def _dicts(value: t.Any, key: str) -> list[dict[str, t.Any]]:
    items = _mapping(value).get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


__all__ = ("STARTING_MESSAGE_ID", "STOPPING_MESSAGE_ID", "Waiter")
