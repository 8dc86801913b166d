# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes and control groups of a unit, read from /proc and /sys/fs/cgroup. PRIVATE to specdec.serving.

A process is always meant by *pid and start time*: a pid alone is reused, and a poll that takes a
newcomer for the old server would call a dead server alive. See proc(5), cgroups(7), pidfd_open(2).

Every function takes the roots of the two file systems as arguments, so that tests use recorded trees.
"""

from __future__ import annotations

import errno
import os
import re
import select
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = [
    "STATE_NAMES",
    "ExitWatch",
    "Process",
    "Usage",
    "all_pids",
    "boot_id",
    "cgroup_folders",
    "cgroup_id",
    "cgroup_ids",
    "cgroup_pids",
    "cgroup_v2_root",
    "environ_of",
    "in_other_network",
    "is_frozen",
    "process_alive",
    "rank_of",
    "read_process",
    "read_usage",
    "role_of",
    "unit_of_cgroup",
    "unit_of_pid",
    "wait_channel",
]

PROC = "/proc"
CGROUP_ROOT = "/sys/fs/cgroup"

# The kernel cuts a task's name to 15 bytes (TASK_COMM_LEN, proc(5)).
_COMM_LENGTH = 15

_TITLES = {
    "scheduler": "sglang::scheduler",
    "detokenizer": "sglang::detokenizer",
    "data_parallel_controller": "sglang::data_parallel_controller",
    "tokenizer_worker": "sglang::tokenizer_worker",
}

# gcc and friends may carry a target triple and a version: x86_64-linux-gnu-g++-12.
_COMPILER = re.compile(
    r"(?:^|-)(?:nvcc|cicc|ptxas|fatbinary|nvlink|cudafe\+\+|ninja|gcc|g\+\+|c\+\+|cc1|cc1plus|clang|clang\+\+|collect2|ld|lld|as)"
    r"(?:-[\w.]+)?$"
)

#: The state letters of proc(5) in words.
STATE_NAMES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible sleep, mostly I/O",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "zombie",
    "X": "dead",
    "x": "dead",
    "I": "idle",
    "P": "parked",
}

_UNIT_SUFFIXES = (".service", ".scope", ".socket", ".mount", ".swap")


@dataclass(frozen=True)
class Process:
    """One process as /proc showed it.

    `state` is the letter of proc(5) (R, S, D, Z, ...), `start_ticks` the start time in clock ticks
    since boot (field 22 of stat): with the pid it names the process for this boot. `cmdline` is
    empty for kernel threads and zombies.
    """

    pid: int
    ppid: int
    state: str
    start_ticks: int
    comm: str
    cmdline: tuple[str, ...]


def _read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read_stat(pid: int, proc: str, *, least: int) -> tuple[str, list[bytes]] | None:
    """Name and fields of proc(5)'s stat, from the third (the state) on; None if there are not ``least`` or no process."""
    try:
        stat = _read_bytes(f"{proc}/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may hold spaces and parentheses itself: the last ")" ends it.
    opening, closing = stat.find(b"("), stat.rfind(b")")
    fields = stat[closing + 1 :].split()
    if opening < 0 or closing < opening or len(fields) < least:
        return None
    return stat[opening + 1 : closing].decode("utf-8", "replace"), fields


def read_process(pid: int, *, proc: str = PROC) -> Process | None:
    """The process with this pid, or None if there is none (any more)."""
    stat = _read_stat(pid, proc, least=20)
    if stat is None:
        return None
    comm, fields = stat
    try:
        raw = _read_bytes(f"{proc}/{pid}/cmdline")
    except (FileNotFoundError, ProcessLookupError):
        raw = b""
    except PermissionError:  # hidepid=1: the command line is hidden, the rest is not
        raw = b""
    words = raw.rstrip(b"\0").split(b"\0") if raw.strip(b"\0") else []
    try:
        return Process(
            pid=pid,
            ppid=int(fields[1]),
            state=fields[0].decode("ascii", "replace"),
            start_ticks=int(fields[19]),
            comm=comm,
            cmdline=tuple(word.decode("utf-8", "replace") for word in words),
        )
    except ValueError:
        return None


@dataclass(frozen=True)
class Usage:
    """What a process has used so far: CPU of all its threads in clock ticks, memory in pages, I/O in bytes.

    `children_ticks` is the CPU of children that have ended and been waited for. `io_bytes` adds up what was read, also
    from the page cache (`rchar`) and by page faults (`read_bytes`), and written to storage; None without the permission.
    """

    pid: int
    start_ticks: int
    comm: str
    state: str
    cpu_ticks: int
    children_ticks: int
    rss_pages: int
    io_bytes: int | None


def read_usage(pid: int, *, proc: str = PROC) -> Usage | None:
    """What the process with this pid has used, or None if there is none (any more). Two small files: cheap."""
    stat = _read_stat(pid, proc, least=22)
    if stat is None:
        return None
    comm, fields = stat
    try:
        return Usage(
            pid=pid,
            start_ticks=int(fields[19]),
            comm=comm,
            state=fields[0].decode("ascii", "replace"),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            children_ticks=int(fields[13]) + int(fields[14]),
            rss_pages=int(fields[21]),
            io_bytes=_io_bytes(pid, proc),
        )
    except ValueError:
        return None


def _io_bytes(pid: int, proc: str) -> int | None:
    try:
        lines = _read_bytes(f"{proc}/{pid}/io").splitlines()
    except OSError:
        # Another user's process, a kernel without task accounting, or it has just ended.
        return None
    values = {name: int(value) for name, _colon, value in (line.partition(b":") for line in lines) if value.strip()}
    return sum(values.get(name, 0) for name in (b"rchar", b"read_bytes", b"write_bytes"))


def wait_channel(pid: int, *, proc: str = PROC) -> str:
    """The kernel function that the main thread sleeps in, or "" (it runs, it is gone, or that is hidden from us)."""
    try:
        text = _read_bytes(f"{proc}/{pid}/wchan").decode("ascii", "replace").strip()
    except OSError:
        return ""
    return "" if text == "0" else text


def process_alive(pid: int, start_ticks: int, *, proc: str = PROC) -> bool:
    """Whether that very process still runs. A zombie does not, and a reused pid is another process."""
    process = read_process(pid, proc=proc)
    return process is not None and process.start_ticks == start_ticks and process.state not in ("Z", "X", "x")


def in_other_network(pid: int, *, proc: str = PROC) -> bool:
    """Whether a process is known to live in another network namespace than we do (PrivateNetwork, a container)."""
    try:
        return not os.path.samestat(os.stat(f"{proc}/{pid}/ns/net"), os.stat(f"{proc}/self/ns/net"))
    except OSError:  # it is gone, or that is hidden from us
        return False


def all_pids(*, proc: str = PROC) -> list[int]:
    """All pids that /proc shows, ascending."""
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())


def environ_of(
    pid: int, names: Iterable[str] | None = ("INVOCATION_ID", "JOURNAL_STREAM"), *, proc: str = PROC
) -> dict[str, str]:
    """The asked variables of a process' *initial* environment, those that are set; with None all of them.

    Only the names asked for are ever decoded: the rest of an environment may hold secrets.
    Raises PermissionError for another user's process, ProcessLookupError or FileNotFoundError when it is gone.
    """
    wanted = None if names is None else set(names)
    found: dict[str, str] = {}
    for item in _read_bytes(f"{proc}/{pid}/environ").split(b"\0"):
        name, separator, value = item.partition(b"=")
        key = name.decode("utf-8", "replace")
        if separator and (wanted is None or key in wanted):
            found[key] = value.decode("utf-8", "replace")
    return found


def boot_id(*, proc: str = PROC) -> str:
    """The id of this boot, 32 hexadecimal digits (as `_BOOT_ID` in the journal)."""
    return _read_bytes(f"{proc}/sys/kernel/random/boot_id").decode("ascii", "replace").strip().replace("-", "")


# --- control groups -----------------------------------------------------------------------------------------------------


def cgroup_v2_root(*, cgroup_root: str = CGROUP_ROOT) -> str | None:
    """Where the cgroup v2 hierarchy is mounted: the root itself (unified), its `unified` (hybrid), or None (legacy)."""
    for root in (cgroup_root, f"{cgroup_root}/unified"):
        if os.path.exists(f"{root}/cgroup.controllers"):
            return root
    return None


def _folder(root: str, control_group: str) -> str:
    return f"{root}/{control_group.strip('/')}"


def _is_unit_group(control_group: str) -> bool:
    # systemd shows "" for a unit that does not run. "/" would mean the whole machine: never a unit's.
    return bool(control_group.strip("/")) and ".." not in control_group.split("/")


def cgroup_folders(control_group: str, *, cgroup_root: str = CGROUP_ROOT) -> Iterator[str]:
    """The folder of a unit's control group and all below it, on the hierarchy that systemd keeps processes in.

    `control_group` is systemd's `ControlGroup` (`/system.slice/x.service`), relative to the root of
    systemd's own cgroup namespace, so it fits /sys/fs/cgroup in a container too.
    """
    if not _is_unit_group(control_group):
        return
    roots = [cgroup_v2_root(cgroup_root=cgroup_root), f"{cgroup_root}/systemd"]
    for root in roots:
        if root is not None and os.path.isdir(_folder(root, control_group)):
            for folder, _names, _files in os.walk(_folder(root, control_group)):
                yield folder
            return


def cgroup_pids(control_group: str, *, cgroup_root: str = CGROUP_ROOT) -> list[int]:
    """The pids of a unit's control group and of all groups below it, ascending; [] if there is none."""
    found: set[int] = set()
    for folder in cgroup_folders(control_group, cgroup_root=cgroup_root):
        try:
            text = _read_bytes(f"{folder}/cgroup.procs")
        except OSError as error:
            # The group went away meanwhile, or it is threaded: its processes are listed in the group above.
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                continue
            raise
        # 0 stands for a process outside our pid namespace.
        found.update(int(word) for word in text.split() if word.isdigit() and word != b"0")
    return sorted(found)


def cgroup_id(control_group: str, *, cgroup_root: str = CGROUP_ROOT) -> int | None:
    """The kernel's id of a unit's control group on the v2 hierarchy: the inode of its folder. None if unknown."""
    root = cgroup_v2_root(cgroup_root=cgroup_root)
    if root is None or not _is_unit_group(control_group):
        return None
    try:
        return os.stat(_folder(root, control_group)).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def cgroup_ids(control_group: str, *, cgroup_root: str = CGROUP_ROOT) -> set[int]:
    """The ids of a unit's control group and of all groups below it (v2 hierarchy); empty if unknown."""
    found: set[int] = set()
    if cgroup_id(control_group, cgroup_root=cgroup_root) is None:
        return found
    for folder in cgroup_folders(control_group, cgroup_root=cgroup_root):
        try:
            found.add(os.stat(folder).st_ino)
        except FileNotFoundError:
            continue
    return found


def is_frozen(control_group: str, *, cgroup_root: str = CGROUP_ROOT) -> bool:
    """Whether the processes of a unit's control group are frozen (`systemctl freeze`, cgroup v2 only)."""
    root = cgroup_v2_root(cgroup_root=cgroup_root)
    if root is None or not _is_unit_group(control_group):
        return False
    try:
        lines = _read_bytes(f"{_folder(root, control_group)}/cgroup.events").splitlines()
    except OSError:
        return False
    return b"frozen 1" in lines


def unit_of_cgroup(path: str) -> str | None:
    """The unit that a cgroup path belongs to, as systemd finds it: `session-3.scope`, `user@0.service/app.service`.

    Leading slices are skipped; what lies below the unit is its own business (delegation). For a user
    manager the user's unit follows after a slash. None: no unit (kernel threads, plain containers).
    """
    parts = [part for part in path.replace(" (deleted)", "").split("/") if part not in ("", "..")]
    # systemd puts "_" before names that would clash with the kernel's own files (cg_escape).
    names = [part.removeprefix("_") for part in parts]

    def first_unit(start: int) -> int | None:
        for index in range(start, len(names)):
            if names[index].endswith(".slice"):
                continue
            return index if names[index].endswith(_UNIT_SUFFIXES) else None
        return None

    index = first_unit(0)
    if index is None:
        return None
    unit = names[index]
    if unit.startswith("user@") and unit.endswith(".service"):
        inner = first_unit(index + 1)
        if inner is not None:
            return f"{unit}/{names[inner]}"
    return unit


def unit_of_pid(pid: int, *, proc: str = PROC) -> str | None:
    """The unit that a process belongs to (see `unit_of_cgroup`), or None: no unit, no such process."""
    try:
        text = _read_bytes(f"{proc}/{pid}/cgroup").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    paths: dict[str, str] = {}
    for line in text.splitlines():
        hierarchy, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        if hierarchy == "0" and controllers == "":
            paths["v2"] = path
        elif controllers == "name=systemd":
            paths["systemd"] = path
    for key in ("v2", "systemd"):
        unit = unit_of_cgroup(paths.get(key, ""))
        if unit is not None:
            return unit
    return None


# --- what a process is, and its end -------------------------------------------------------------------------------------


def role_of(process: Process) -> str:
    """What a process of an SGLang unit does.

    One of `scheduler`, `detokenizer`, `data_parallel_controller`, `tokenizer_worker`, `resource_tracker`,
    `compiler`, `main`, `other`. SGLang's children name themselves (setproctitle: `sglang::scheduler_TP0_EP0`,
    managers/scheduler.py:6294); compilers are told by program name, torch's by its entry file.
    """
    title = process.cmdline[0] if process.cmdline else ""
    for role, prefix in _TITLES.items():
        if title.startswith(prefix) or process.comm == prefix[:_COMM_LENGTH]:
            return role
    command = " ".join(process.cmdline)
    if "multiprocessing.resource_tracker" in command:
        return "resource_tracker"
    if "torch/_inductor/compile_worker" in command or "torch._inductor.compile_worker" in command:
        return "compiler"
    # A pip-installed ninja is `python .../bin/ninja`: look at the first word after the interpreter too.
    programs = [process.comm] + [os.path.basename(word) for word in process.cmdline[:2]]
    if any(_COMPILER.search(program) for program in programs):
        return "compiler"
    words = process.cmdline
    if any(
        first == "-m" and second in ("sglang.launch_server", "sglang.cli.main")
        for first, second in zip(words, words[1:])
    ):
        return "main"
    if any(
        os.path.basename(word) == "sglang" and words[index + 1 : index + 2] == ("serve",)
        for index, word in enumerate(words[:3])
    ):
        return "main"
    return "other"


def rank_of(process: Process) -> str:
    """The ranks in a scheduler's title, as they stand in its log lines: `TP0 EP0`; "" without."""
    title = process.cmdline[0] if process.cmdline else ""
    prefix = _TITLES["scheduler"]
    return title[len(prefix) :].replace("_", " ").strip() if title.startswith(prefix) else ""


class ExitWatch:
    """Notices the end of one process: by pidfd where the kernel has it, else by its start time in /proc.

    `fileno()` is a descriptor that becomes readable at the exit, for select or poll, or None: then
    `exited()` must be asked from time to time. Works for processes that are not our children.
    """

    def __init__(self, pid: int, start_ticks: int, *, proc: str = PROC) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self._proc = proc
        self._fd: int | None = None
        self._exited = False
        pidfd_open = getattr(os, "pidfd_open", None)  # missing where Python was built against old headers
        if pidfd_open is not None:
            try:
                self._fd = pidfd_open(pid)
            except ProcessLookupError:
                self._exited = True
            except OSError as error:
                # ENOSYS: before Linux 5.3. EPERM, EACCES: a seccomp filter. EINVAL: a thread's id.
                if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL):
                    raise
        # Only now: had the pid been reused before pidfd_open, the start time tells.
        if not self._exited and not process_alive(pid, start_ticks, proc=proc):
            self._exited = True

    def fileno(self) -> int | None:
        """A descriptor that is readable once the process has ended, or None where the kernel has none."""
        return self._fd

    def exited(self) -> bool:
        """Whether the process has ended (a zombie has). Never goes back to False."""
        if not self._exited:
            if self._fd is not None:
                poller = select.poll()
                poller.register(self._fd, select.POLLIN)
                self._exited = bool(poller.poll(0))
            else:
                self._exited = not process_alive(self.pid, self.start_ticks, proc=self._proc)
        return self._exited

    def close(self) -> None:
        """Give the descriptor back. Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> ExitWatch:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()
