# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine that the wait observes: systemctl, journalctl, /proc, sockets, HTTP. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import select
import socket
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _journal as journal
from ansible_collections.specdec.serving.plugins.module_utils._gpus import GpuView, GpuWatch, find_nvidia_smi
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp, is_hang_up
from ansible_collections.specdec.serving.plugins.module_utils._host import Host, PortView
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, HttpError, Response, request
from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import (
    KernelLine,
    kernel_command,
    parse_gpu,
    parse_kernel_log,
)
from ansible_collections.specdec.serving.plugins.module_utils._not_started import (
    Reason,
    failed_command,
    failed_requirements,
    manager_lines,
    not_started_reason,
    unit_file_reason,
)
from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    ExitWatch,
    Process,
    boot_id,
    cgroup_pids,
    environ_of,
    in_other_network,
    is_frozen,
    rank_of,
    read_process,
    read_usage,
    role_of,
    wait_channel,
)
from ansible_collections.specdec.serving.plugins.module_utils._progress import ProcessSample
from ansible_collections.specdec.serving.plugins.module_utils._readiness import ENGINE_ROLES, EngineProcess
from ansible_collections.specdec.serving.plugins.module_utils._runner import TooLate, command_runner, within
from ansible_collections.specdec.serving.plugins.module_utils._sockets import (
    Listener,
    Owner,
    connections,
    covers,
    describe_owner,
    find_owners,
    listeners,
    listens_on_all,
    owned_by_cgroup,
    socket_inodes,
)
from ansible_collections.specdec.serving.plugins.module_utils._starts import driver_version
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import FIRED_UP
from ansible_collections.specdec.serving.plugins.module_utils._systemd import (
    SystemdError,
    UnitState,
    show,
    show_program,
)

# Lines arrive in bursts: a moment later they can be taken together. Of a chatty server more at a time, since each look at
# the machine costs more than a line; the pipe holds what comes meanwhile.
_GATHER_S = 0.005
_GATHER_CHATTY_S = 0.05
_CHATTY_LINES = 50
# The history of a start is read in one go; one that takes longer than this is not waited for.
_HISTORY_S = 30.0
# The last words of a crash with eight ranks and their tracebacks; all that is unread is taken if that is quick.
_LAST_ENTRIES = 5000
_LAST_S = 0.5
# A journalctl that ends while it should follow is replaced, but not for ever.
_LOST_FOLLOWERS = 5
_FOLLOW_AGAIN_S = 1.0
# Of a chatty server it would in the end map hundreds of megabytes of the journal.
_FOLLOWER_BYTES = 20 * 1024 * 1024
_WEIGH_LINES = 5000
# While systemd runs itself anew (an update of its package, `systemctl daemon-reexec`) it answers nobody.
_MANAGER_BACK_S = 10.0
_MANAGER_POLL_S = 0.2
_MANAGER_GONE = re.compile("endpoint is not connected|[Cc]onnection (?:reset|refused|timed out)|disconnected|no reply")
# The engine may lie on a mount that does not answer, which may be why the start hangs.
_RELEASE_S = 5.0
_RUN = command_runner(timeout=30.0)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resolve(host: str, port: int) -> str:
    """The first address of a name; an address is given back. Raises SystemdError when the name is unknown here."""
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, ValueError) as error:  # a ValueError for what can be no name, such as an empty label
        raise SystemdError(f"host {host!r} has no address on this machine: {error}") from error


class SystemHost(Host):
    """The real one. Use it as a context manager: it holds a pidfd and, while following, a journalctl."""

    def __init__(self, unit: str, endpoint: Endpoint, listen_host: str = "", leader: Endpoint | None = None) -> None:
        """``listen_host`` is what the server was told to listen on, where that is more than the endpoint's address."""
        self._unit_name = unit
        #: What the journal calls it: another name when it was asked for by an alias.
        self._unit_id = ""
        self._manager_answered = False
        self._listen_host = listen_host or endpoint.host
        self._endpoint = dataclasses.replace(endpoint, address=resolve(endpoint.host, endpoint.port))
        self._leader = leader
        self._exit: ExitWatch | None = None
        self._follower: journal.Follower | None = None
        self._invocation_id = ""
        self._namespace = ""
        self._cursor: str | None = None
        self._started_us = 0
        self._read_us = 0
        self._journal_error = ""
        self._journal_damage = ""
        self._lost_followers = 0
        self._follow_again_at = 0.0
        self._chatty = False
        self._lines_since = 0
        self._from_the_end = False
        self._owners: tuple[frozenset[Listener], tuple[Owner, ...], tuple[str, ...]] = (frozenset(), (), ())
        self._invocations: dict[tuple[int, int], str] = {}
        self._clients: frozenset[bytes] | None = None
        self._clients_at = 0.0
        self._roles: dict[tuple[int, int, str], tuple[str, str]] = {}
        self._gpus: GpuWatch | None = None

    def __enter__(self) -> SystemHost:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._end_following()
        if self._gpus is not None:
            self._gpus.close()
        if self._exit is not None:
            self._exit.close()
            self._exit = None

    def _end_following(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def monotonic(self) -> float:
        return time.monotonic()

    def realtime(self) -> float:
        return time.time()

    def boot_id(self) -> str:
        return boot_id()

    def show(self) -> UnitState:
        deadline = time.monotonic() + _MANAGER_BACK_S
        while True:
            try:
                unit = show(_RUN, self._unit_name)
            except SystemdError as error:
                # Without an answer so far, it may be no systemd at all.
                if not (self._manager_answered or _MANAGER_GONE.search(str(error))) or time.monotonic() >= deadline:
                    raise
                self.pause(_MANAGER_POLL_S)
            else:
                self._manager_answered = True
                return unit

    def watch(self, unit: UnitState) -> None:
        if self._exit is not None:
            self._exit.close()
            self._exit = None
        if unit.main_pid:
            process = read_process(unit.main_pid)
            # Start ticks of -1 fit no process: one that is gone already counts as ended.
            self._exit = ExitWatch(unit.main_pid, process.start_ticks if process is not None else -1)
        self._unit_id = unit.id
        self._started_us = unit.exec_main_start_us
        if unit.invocation_id != self._invocation_id:
            self._end_following()
            self._invocation_id = unit.invocation_id
            self._namespace = unit.log_namespace
            self._cursor = None
            self._read_us = 0
            self._journal_damage = ""
            self._lost_followers = 0
            self._follow_again_at = 0.0
            self._chatty = False
            self._from_the_end = False

    def main_alive(self) -> bool | None:
        return None if self._exit is None else not self._exit.exited()

    def main_arguments(self) -> t.Mapping[str, t.Any]:
        process = read_process(self._exit.pid) if self._exit is not None else None
        return arguments_of(process.cmdline) if process is not None else {}

    def engine(self, unit: UnitState) -> frozenset[EngineProcess]:
        found = []
        for pid in cgroup_pids(unit.control_group) if unit.control_group else ():
            process = read_process(pid)
            if process is None or process.state in ("Z", "X"):
                continue
            role = "main" if pid == unit.main_pid else role_of(process)
            if role in ENGINE_ROLES:
                found.append(EngineProcess(role=role, pid=pid, start_ticks=process.start_ticks))
        return frozenset(found)

    def samples(self, unit: UnitState) -> tuple[ProcessSample, ...]:
        found = []
        roles: dict[tuple[int, int, str], tuple[str, str]] = {}
        for pid in cgroup_pids(unit.control_group) if unit.control_group else ():
            usage = read_usage(pid)
            if usage is None or usage.state in ("Z", "X"):
                continue
            # A process becomes another one by exec or by its title, which both change its name.
            key = (pid, usage.start_ticks, usage.comm)
            known = self._roles.get(key)
            if known is None:
                process = read_process(pid)
                if process is None:
                    continue
                known = ("main" if pid == unit.main_pid else role_of(process), rank_of(process))
            roles[key] = known
            found.append(
                ProcessSample(
                    pid=pid,
                    start_ticks=usage.start_ticks,
                    role=known[0],
                    rank=known[1],
                    state=usage.state,
                    cpu_s=usage.cpu_ticks / _TICKS,
                    children_cpu_s=usage.children_ticks / _TICKS,
                    rss_bytes=usage.rss_pages * _PAGE,
                    io_bytes=usage.io_bytes,
                )
            )
        self._roles = roles
        return tuple(found)

    def frozen(self, unit: UnitState) -> bool:
        return is_frozen(unit.control_group)

    def wait_channel(self, pid: int) -> str:
        return wait_channel(pid)

    def _gpu_watch(self) -> GpuWatch:
        if self._gpus is None:
            self._gpus = GpuWatch(clock=time.monotonic, program=find_nvidia_smi())
        return self._gpus

    def ask_gpus(self) -> None:
        self._gpu_watch().ask()

    def gpu_view(self, pids: t.Collection[int]) -> GpuView:
        return self._gpu_watch().view(pids)

    def port(self, unit: UnitState) -> PortView:
        address = self._endpoint.address
        try:
            found, fallback = listeners(self._endpoint.port)
        except OSError as error:
            return PortView(listening=True, owned=None, source=f"neither sock_diag nor /proc/net can be read: {error}")
        everywhere = listens_on_all(self._listen_host)
        relevant = [
            listener
            for listener in found
            if covers(listener, address) or (everywhere and covers(listener, self._listen_host))
        ]
        if not relevant:
            own = [listener for listener in found if owned_by_cgroup([listener], unit.control_group)]
            apart = bool(unit.main_pid) and in_other_network(unit.main_pid)
            return PortView(elsewhere=tuple(sorted({listener.address for listener in own})), other_network=apart)
        owners, described = self._owners_of(relevant)
        owned = owned_by_cgroup(relevant, unit.control_group) if unit.control_group else None
        if owned:
            owned = self._held_by_this_start(unit, relevant, owners)
        units = tuple(dict.fromkeys(owner.socket_unit for owner in owners if owner.socket_unit))
        source = fallback or "sock_diag"
        return PortView(listening=True, owned=owned, owners=described, socket_units=units, source=source)

    def clients(self) -> frozenset[bytes] | None:
        now = time.monotonic()
        if now >= self._clients_at:
            try:
                self._clients = connections(self._endpoint.port)
            except OSError:
                self._clients = None
            ended = time.monotonic()
            # On a host with many connections this costs milliseconds: never more than a twentieth of our time.
            self._clients_at = ended + 20 * (ended - now)
        return self._clients

    def _owners_of(self, relevant: t.Sequence[Listener]) -> tuple[tuple[Owner, ...], tuple[str, ...]]:
        """Who holds the listeners, and that in words. Searching all of /proc is slow: only when it may have changed."""
        key = frozenset(relevant)
        known, owners, _described = self._owners
        if known != key or any(read_process(pid) is None for owner in owners for pid in owner.pids):
            owners = tuple(find_owners(relevant, runner=_RUN))
            self._owners = (key, owners, tuple(describe_owner(owner) for owner in owners))
        return self._owners[1:]

    def _held_by_this_start(
        self, unit: UnitState, relevant: t.Sequence[Listener], owners: t.Sequence[Owner]
    ) -> bool | None:
        """Whether the listeners are held by processes of this start alone.

        A socket belongs to the control group that it was made in, wherever its holders went. And with KillMode=process,
        or when a process survived the stop, the control group outlives the invocation: what an earlier start left there
        is older than the main process or, forked since, bears another invocation in its environment.
        """
        main = read_process(unit.main_pid) if unit.main_pid else None
        if main is None:
            return None
        members = {pid: read_process(pid) for pid in cgroup_pids(unit.control_group)}
        holders = {pid for owner in owners for pid in owner.pids}
        if any(read_process(pid) is not None for pid in holders - set(members)):
            return False
        strangers = [
            pid
            for pid, process in members.items()
            if process is not None
            and (process.start_ticks < main.start_ticks or self._invocation_of(process) not in ("", unit.invocation_id))
        ]
        if not strangers:
            return True
        inodes = {listener.inode for listener in relevant}
        held = [socket_inodes(pid) for pid in strangers]
        if any(sockets & inodes for sockets in held if sockets is not None):
            return False
        return None if None in held else True

    def _invocation_of(self, process: Process) -> str:
        """The invocation that a process was started in, '' where that cannot be seen."""
        key = (process.pid, process.start_ticks)
        if key not in self._invocations:
            try:
                self._invocations[key] = environ_of(process.pid, ("INVOCATION_ID",)).get("INVOCATION_ID", "")
            except OSError:
                return ""
        return self._invocations[key]

    def cursor(self) -> str | None:
        return self._cursor

    def history(self, cursor: str | None) -> t.Iterator[list[journal.Entry]]:
        self._cursor = cursor
        self._journal_error = ""
        deadline = time.monotonic() + _HISTORY_S
        empty = True
        try:
            reader = journal.Follower(
                invocation_id=self._invocation_id, cursor=cursor, namespace=self._namespace, follow=False
            )
        except (OSError, ValueError) as error:
            self._journal_error = f"the journal cannot be read: {error}"
            return
        with reader:
            while not reader.ended:
                if time.monotonic() > deadline:
                    self._journal_error = "the journal of this start takes too long to read"
                    return
                select.select([reader.fileno()], [], [], 1.0)
                part = self._taken(reader)
                empty = empty and not part
                yield part
                if any(FIRED_UP in entry.message for entry in part):
                    # What a server logs once it serves is no part of its start, and may be gigabytes.
                    self._from_the_end = True
                    yield self._about()
                    return
            self._journal_error = reader.error
        if empty and not self._journal_error and journal.system_journal_readable() is False:
            self._journal_error = "no permission to read the journal (root or the group systemd-journal is needed)"

    def journal_error(self) -> str:
        return self._journal_error

    def journal_damage(self) -> str:
        return self._journal_damage

    def _taken(self, reader: journal.Follower) -> list[journal.Entry]:
        """What a reader has, and where it stands."""
        entries = reader.read()
        self._cursor = reader.cursor
        if entries:
            self._read_us = max(self._read_us, entries[-1].monotonic_us)
        self._journal_damage = self._journal_damage or reader.damage
        return entries

    def _newest(self, *, follow: bool) -> journal.Follower:
        return journal.Follower(
            invocation_id=self._invocation_id, namespace=self._namespace, follow=follow, lines=_LAST_ENTRIES
        )

    def _about(self) -> list[journal.Entry]:
        """What PID 1 says of this invocation: few lines, however long the server has been logging."""
        read = journal.read_once(_RUN, invocation_id=self._invocation_id, namespace=self._namespace, about=True)
        return list(read.entries)

    def follow(self) -> list[journal.Entry]:
        if self._follower is None:
            if time.monotonic() < self._follow_again_at:
                return []
            if self._from_the_end:
                self._follower = self._newest(follow=True)
            else:
                self._follower = journal.Follower(
                    invocation_id=self._invocation_id,
                    cursor=self._cursor,
                    namespace=self._namespace,
                    quick=self._chatty,
                )
        known_us = self._read_us
        entries = self._taken(self._follower)
        self._chatty = len(entries) >= _CHATTY_LINES
        self._lines_since += len(entries)
        if entries:
            self._lost_followers = 0
            if self._from_the_end:
                entries = [entry for entry in entries if entry.monotonic_us > known_us]
                self._from_the_end = not entries
        if self._follower.ended:
            # Somebody killed it, or journald took its files away; another one goes on where it was.
            self._lost_followers += 1
            if self._lost_followers >= _LOST_FOLLOWERS:
                self._journal_error = self._follower.error or "journalctl ends again and again"
            self._end_following()
            self._follow_again_at = time.monotonic() + _FOLLOW_AGAIN_S
        elif self._lines_since >= _WEIGH_LINES and not self._follower.in_a_line:
            self._lines_since = 0
            if self._follower.resident_bytes > _FOLLOWER_BYTES:
                self._end_following()
        return entries

    def last_entries(self) -> t.Iterator[journal.Entry]:
        self._end_following()
        if not self._invocation_id:
            return
        _RUN(journal.sync(namespace=self._namespace))
        deadline = time.monotonic() + _LAST_S
        try:
            if not self._from_the_end:
                with journal.Follower(
                    invocation_id=self._invocation_id, cursor=self._cursor, namespace=self._namespace, follow=False
                ) as reader:
                    while not reader.ended and time.monotonic() < deadline:
                        select.select([reader.fileno()], [], [], _LAST_S)
                        yield from self._taken(reader)
                    if reader.ended:
                        return
            # The rest from its end: a server that ran for weeks has logged more than can be read now.
            known_us = self._read_us
            with self._newest(follow=False) as reader:
                while not reader.ended:
                    select.select([reader.fileno()], [], [], _LAST_S)
                    yield from (entry for entry in self._taken(reader) if entry.monotonic_us > known_us)
        except OSError as error:
            self._journal_error = f"the journal cannot be read: {error}"

    def orphans(self) -> list[journal.Entry]:
        return list(
            journal.read_orphans(
                _RUN,
                unit=self._unit_id or self._unit_name,
                boot_id=boot_id(),
                since_us=self._started_us,
                namespace=self._namespace,
            )
        )

    def kernel_lines(self, unit: UnitState) -> tuple[tuple[KernelLine, ...], str]:
        if not unit.exec_main_start_us:
            return (), ""
        code, out, err = _RUN(kernel_command())
        return parse_kernel_log(out, since_us=unit.exec_main_start_us), journal.explain(code, err)

    def gpus(self) -> t.Mapping[str, str]:
        return read_gpus()

    def reason(self, unit: UnitState) -> Reason | None:
        if unit.load_state == "loaded":
            if unit.active_state == "inactive":
                lines = manager_lines(_RUN, unit.id, boot_id=boot_id())
                return not_started_reason(lines, requirements=failed_requirements(_RUN, unit.id))
            # A main process that ended with a status of its own is the reason by itself.
            own_end = unit.exec_main_code == 1 and unit.exec_main_status != 0
            beside = unit.result in ("exit-code", "timeout") or unit.exec_main_code == 0
            return failed_command(_RUN, unit.id) if beside and not own_end else None
        if unit.load_state in ("not-found", "masked"):
            return None
        lines = manager_lines(_RUN, unit.id, boot_id=boot_id())
        return unit_file_reason(lines, unit=unit.id, path=unit.fragment_path, load_error=unit.load_error)

    def release(self) -> str:
        try:
            return within(_RELEASE_S, lambda: installed_release(show_program(_RUN, self._unit_name)))
        except TooLate:
            return ""

    def request(
        self, method: str, path: str, *, timeout: float, payload: t.Any = None, abort: t.Callable[[], bool]
    ) -> Response:
        return request(
            self._endpoint,
            method,
            path,
            timeout=timeout,
            payload=payload,
            abort=lambda: (self._exit is not None and self._exit.exited()) or abort(),
        )

    def request_leader(
        self, method: str, path: str, *, timeout: float, payload: t.Any = None, abort: t.Callable[[], bool]
    ) -> Response:
        if self._leader is None:
            raise HttpError("no leader was given")
        return request(
            self._leader,
            method,
            path,
            timeout=timeout,
            payload=payload,
            abort=lambda: (self._exit is not None and self._exit.exited()) or abort(),
        )

    def driver(self) -> str:
        return driver_version()

    def pause(self, seconds: float) -> None:
        poller = select.poll()
        # Nothing is read from our own output; only its hang-up is of interest: the connection or the controller is gone.
        poller.register(1, 0)
        exit_fd = self._exit.fileno() if self._exit is not None and not self._exit.exited() else None
        if exit_fd is not None:
            poller.register(exit_fd, select.POLLIN)
        follower = self._follower
        log_fd = follower.fileno() if follower is not None and not follower.ended else None
        if log_fd is not None:
            poller.register(log_fd, select.POLLIN)
        events = poller.poll(max(seconds, 0.001) * 1000)
        if (
            log_fd is not None
            and [fd for fd, _event in events] == [log_fd]
            and follower is not None
            and follower.drained
        ):
            poller.unregister(log_fd)
            events = poller.poll((_GATHER_CHATTY_S if self._chatty else _GATHER_S) * 1000)
        if any(fd == 1 and is_hang_up(event) for fd, event in events):
            raise HangUp


def read_gpus(root: str = "/proc/driver/nvidia/gpus") -> dict[str, str]:
    """Names of the GPUs by PCI address without function. The driver's files answer also when a GPU no longer does."""
    found = {}
    for path in sorted(glob.glob(os.path.join(root, "*", "information"))):
        address = os.path.basename(os.path.dirname(path)).lower().rpartition(".")[0]
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found[address] = parse_gpu(file.read())
        except OSError:
            found[address] = ""
    return found


def installed_release(program: str) -> str:
    """The SGLang release in the environment of a program such as `/opt/engine/bin/python`; "" when that is not to be seen."""
    pattern = os.path.join(
        os.path.dirname(os.path.dirname(program)), "lib*", "python3*", "site-packages", "sglang-*.dist-info"
    )
    names = [os.path.basename(path)[len("sglang-") : -len(".dist-info")] for path in glob.glob(pattern)]
    return names[0] if program and len(names) == 1 else ""


def arguments_of(cmdline: t.Sequence[str]) -> dict[str, t.Any]:
    """Arguments of a command line by dest: ``--tp-size 8`` gives ``{"tp_size": "8"}``, a bare flag gives True."""
    found: dict[str, t.Any] = {}
    name = ""
    for word in cmdline:
        if word.startswith("--"):
            name, separator, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if separator else True
            if separator:
                name = ""
        elif name:
            found[name] = word
            name = ""
    return found


__all__ = ("SystemHost", "arguments_of", "installed_release", "read_gpus", "resolve")
