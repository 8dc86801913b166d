# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the processes of a failed start do: state, wait channel, stacks, CPU. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import os
import re
import threading

from ansible_collections.specdec.serving.plugins.module_utils._evidence_machine import Machine, read_or_why
from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    Process,
    cgroup_pids,
    read_process,
    read_usage,
    role_of,
    unit_of_pid,
    wait_channel,
)
from ansible_collections.specdec.serving.plugins.module_utils._redact import mask_command
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._sockets import describe_owner, find_owners, listeners
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

__all__ = ("ProcessList",)

_MOST_PROCESSES = 128
_MOST_THREADS = 256


@dataclasses.dataclass
class _Seen:
    """One process: what its row shows, and its file."""

    process: Process
    role: str
    own: bool
    unit: str
    wchan: str = ""
    rss: str = ""
    threads: int = 0
    cpu: tuple[float, float] | None = None  # at, seconds of CPU so far
    cpu_percent: float | None = None
    detail: list[str] = dataclasses.field(default_factory=list)
    environ: list[tuple[str, str]] = dataclasses.field(default_factory=list)


class ProcessList:
    """The unit's processes. Reading one that hangs may hang as well, so it is done in a thread that is left behind then."""

    def __init__(self, machine: Machine, state: UnitState, port: int) -> None:
        self._machine = machine
        self._proc = machine.proc
        self._state = state
        self._port = port
        self.seen: list[_Seen] = []
        self._seen: list[_Seen] = []
        self.owners: list[str] = []
        self.notes: list[str] = []
        self._ticks = float(os.sysconf("SC_CLK_TCK"))

    def collect(self, seconds: float) -> None:
        thread = threading.Thread(target=self._collect_or_say, daemon=True)
        thread.start()
        thread.join(seconds)
        self.seen = list(self._seen)
        if thread.is_alive():
            self.notes.append(
                f"not all processes could be read within {seconds:g} s: one that hangs may hold up its reader"
            )

    def _collect_or_say(self) -> None:
        try:
            self._collect_all()
        except Exception as error:  # noqa: BLE001  a thread's exception is seen by nobody
            self.notes.append(f"the processes could not be read: {type(error).__name__}: {error}")

    def _collect_all(self) -> None:
        try:
            own = cgroup_pids(self._state.control_group, cgroup_root=self._machine.cgroup_root)
        except OSError as error:
            own = []
            self.notes.append(f"the unit's control group cannot be read: {error}")
        for pid in own:
            self._add(pid, own=True)
        try:
            holders = find_owners(
                listeners(self._port, proc=self._proc)[0],
                proc=self._proc,
                cgroup_root=self._machine.cgroup_root,
                runner=command_runner(timeout=2.0),
            )
        except OSError as error:
            holders = []
            self.notes.append(f"the sockets cannot be read: {error}")
        self.owners = [describe_owner(owner) for owner in holders]
        for pid in sorted({pid for owner in holders for pid in owner.pids} - set(own)):
            self._add(pid, own=False)
        # The engine's own first: of a thousand others the last ones may be missing.
        ranks = {"main": 0, "scheduler": 1, "detokenizer": 2, "data_parallel_controller": 3, "tokenizer_worker": 4}
        self._seen.sort(key=lambda one: (not one.own, ranks.get(one.role, 9), one.process.pid))
        # What cannot block is read of all before what can.
        for one in self._seen[:_MOST_PROCESSES]:
            self._detail(one)
        if len(self._seen) > _MOST_PROCESSES:
            self.notes.append(f"details of {_MOST_PROCESSES} of {len(self._seen)} processes")

    def _add(self, pid: int, *, own: bool) -> None:
        process = read_process(pid, proc=self._proc)
        if process is None:
            return
        role = "main" if pid == self._state.main_pid else role_of(process)
        one = _Seen(process=process, role=role, own=own, unit=unit_of_pid(pid, proc=self._proc) or "")
        one.wchan = wait_channel(pid, proc=self._proc)
        status = dict(re.findall(r"^(\w+):\s*(.*)$", read_or_why(f"{self._proc}/{pid}/status"), re.MULTILINE))
        one.rss = status.get("VmRSS", "")
        one.threads = int(status.get("Threads", "0") or 0) if status.get("Threads", "0").isdigit() else 0
        one.cpu = self._cpu(pid, process.start_ticks)
        self._seen.append(one)

    def _cpu(self, pid: int, start_ticks: int) -> tuple[float, float] | None:
        """The time, and the seconds of CPU that this very process has used so far."""
        usage = read_usage(pid, proc=self._proc)
        if usage is None or usage.start_ticks != start_ticks:
            return None
        return self._machine.monotonic(), usage.cpu_ticks / self._ticks

    def sample_again(self) -> None:
        """A second look at the CPU: what each used meanwhile."""
        for one in self.seen:
            now = self._cpu(one.process.pid, one.process.start_ticks)
            if one.cpu is not None and now is not None and now[0] > one.cpu[0]:
                one.cpu_percent = 100 * (now[1] - one.cpu[1]) / (now[0] - one.cpu[0])

    def _detail(self, one: _Seen) -> None:
        folder = f"{self._proc}/{one.process.pid}"
        lines = [
            f"pid {one.process.pid}, parent {one.process.ppid}, {one.role}, unit {one.unit or 'none'}",
            f"command: {mask_command(one.process.cmdline) or one.process.comm}",
            f"state {one.process.state}, wait channel {one.wchan or '-'}",
            "",
            "kernel stack:",
            read_or_why(f"{folder}/stack"),
            "",
            "threads (id, name, state, wait channel):",
        ]
        try:
            threads = sorted(int(name) for name in os.listdir(f"{folder}/task"))
        except OSError as error:
            threads = []
            lines.append(f"({error.strerror or error})")
        for thread in threads[:_MOST_THREADS]:
            text = read_or_why(f"{folder}/task/{thread}/stat")
            name = text[text.find("(") + 1 : text.rfind(")")]
            letter = text.rpartition(")")[2].split()[:1] or ["?"]
            lines.append(f"  {thread} {name} {letter[0]} {read_or_why(f'{folder}/task/{thread}/wchan')}")
            if letter[0] == "D" and thread != one.process.pid:
                lines.append("    " + read_or_why(f"{folder}/task/{thread}/stack").replace("\n", "\n    "))
        if len(threads) > _MOST_THREADS:
            lines.append(f"  and {len(threads) - _MOST_THREADS} more")
        for name in ("status", "io", "limits", "cgroup", "oom_score"):
            lines += ["", f"{name}:", read_or_why(f"{folder}/{name}")]
        one.detail = lines
        if one.process.pid == self._state.main_pid:
            for item in read_or_why(f"{folder}/environ").split("\0"):
                name, equals, value = item.partition("=")
                if equals:
                    one.environ.append((name, value))

    def table(self) -> str:
        rows = [
            ("PID", "PARENT", "ROLE", "STATE", "WAIT CHANNEL", "CPU s", "CPU %", "RSS", "THREADS", "UNIT", "COMMAND")
        ]
        rows += [
            (
                str(one.process.pid),
                str(one.process.ppid),
                one.role if one.own else f"port holder ({one.role})",
                one.process.state,
                one.wchan or "-",
                f"{one.cpu[1]:.2f}" if one.cpu else "-",
                "-" if one.cpu_percent is None else f"{one.cpu_percent:.1f}",
                one.rss or "-",
                str(one.threads),
                one.unit or "-",
                mask_command(one.process.cmdline)[:200] or one.process.comm,
            )
            for one in self.seen
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]) for row in rows]
        if len(rows) == 1:
            lines = ["The unit has no process any more, and nobody else holds the port."]
        return "\n".join([*lines, "", *self.notes])
