# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps what explains a failed start, as one archive on the host. PRIVATE to the collection.

What a hung server does is gone with its next restart, and a journal is rotated away. So the moment a wait ends without
readiness, everything that a bug report needs is collected: within bounds of time and memory, without secrets, and without
ever changing the verdict. Archives lie in ``STATE_DIR/evidence/UNIT/TIME-LABEL-INVOCATION.tar.gz``; the label is the state, or
the cause where the state says too little. One is written under another name first, so that a name like this is a whole archive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import glob
import io
import json
import os
import re
import select
import selectors
import shlex
import shutil
import stat
import subprocess
import tarfile
import threading
import time
import typing as t
import zlib

from ansible_collections.specdec.serving.plugins.module_utils import _journal as journal
from ansible_collections.specdec.serving.plugins.module_utils._gpus import find_nvidia_smi
from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import kernel_command, parse_kernel_log
from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    Process,
    cgroup_folders,
    cgroup_pids,
    read_process,
    read_usage,
    role_of,
    unit_of_pid,
    wait_channel,
)
from ansible_collections.specdec.serving.plugins.module_utils._readiness import (
    CRASH_LOOP,
    CRASHED,
    LOADING,
    NOT_FOUND,
    READY,
    STOPPED,
)
from ansible_collections.specdec.serving.plugins.module_utils._redact import (
    MASK,
    Masker,
    is_secret_variable,
    mask_command,
    secret_words,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import clean_environment, command_runner, within
from ansible_collections.specdec.serving.plugins.module_utils._sockets import describe_owner, find_owners, listeners
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState, show

__all__ = ("FOLDER", "Archives", "Machine", "Output", "Spool", "keep", "run_all")

#: Below the folder of the records.
FOLDER = "evidence"

#: All of it, from the verdict to the archive.
BUDGET_S = 15.0
_PROCESSES_S = 3.0
_COMMANDS_S = 6.0
# For writing the archive, and for a second wait that writes its own.
_WRITING_S = 3.0

_COMMAND_BYTES = 4 * 1024 * 1024
_HEAD_BYTES = 4 * 1024 * 1024
_TAIL_BYTES = 12 * 1024 * 1024
_TAIL_LINES = 100_000
_UNIT_LINES = 2000
_MESSAGE_CHARACTERS = 64 * 1024
_SMALL_FILE = 64 * 1024
_MOST_PROCESSES = 128
_MOST_THREADS = 256
_MOST_DUMPS = 16

#: No start has failed: nothing was there, nobody asked for one, or it serves.
_NO_FAILED_START = (READY, NOT_FOUND, STOPPED, "follower")
#: Verdicts about processes that have gone.
_DEAD = (CRASHED, CRASH_LOOP)

#: What is in an archive, in the order in which it is best read.
_FILES = {
    "verdict.json": "the result of sglang_ready: state, cause, remedy, gates, timeline",
    "journal.txt": "the journal of this start: UTC time, seconds since boot, [pid], message; PID 1's fields in braces",
    "systemd.txt": "what systemd says of this start",
    "unit-journal.txt": f"the last {_UNIT_LINES} lines of the unit in any start, also those that bear no start",
    "kernel.txt": "the kernel's log since the start: seconds since boot, message",
    "processes.txt": "the unit's processes and who holds the port: state (R runs, S sleeps, D waits for a device, T stopped, Z dead), "
    "wait channel, CPU, memory",
    "processes/": "one file a process: threads with state and wait channel, kernel stack, status, input and output, Python stack",
    "sockets.txt": "who listens on the port, and its connections",
    "unit.txt": "the unit's files as systemd finds them",
    "properties.txt": "the unit as systemd has it in memory",
    "environment.txt": "the environment that the unit gives, and that of the main process; secrets are masked",
    "arguments.txt": "the command line, one argument a line",
    "gpus.txt": "nvidia-smi: one line a GPU",
    "nvidia-smi.txt": "nvidia-smi -q",
    "gpu-processes.txt": "which processes use which GPU",
    "gpu-topology.txt": "how the GPUs are linked",
    "nvidia-driver.txt": "/proc/driver/nvidia",
    "memory.txt": "memory, pressure and load of the host; memory of the unit's control group",
    "disks.txt": "space and inodes of the file systems that matter",
    "releases.txt": "host, kernel, driver, SGLang and the packages beside it",
}


class EvidenceError(Exception):
    """An archive cannot be kept; the message says why."""


# --- commands ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Output:
    """What a command printed, and why that is not all ('' = it is)."""

    text: str
    note: str = ""


def run_all(
    commands: t.Mapping[str, t.Sequence[str]], *, timeout: float, limit: int = _COMMAND_BYTES
) -> dict[str, Output]:
    """Run commands side by side without input; none holds us up for longer than ``timeout`` seconds.

    One that hangs in the driver cannot be killed: it is sent the signal and left alone. Of more than ``limit`` bytes the
    last ones are kept. A program that is not there gives the note `not found`.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    output: dict[str, bytearray] = {}
    notes: dict[str, str] = {}
    with selectors.DefaultSelector() as selector:
        for name, argv in commands.items():
            output[name] = bytearray()
            try:
                process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # several at once, in bounded time
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=clean_environment(),
                )
            except OSError as error:
                notes[name] = "not found" if error.errno == errno.ENOENT else str(error.strerror or error)
                continue
            running[name] = process
            if process.stdout is not None:
                os.set_blocking(process.stdout.fileno(), False)
                selector.register(process.stdout, selectors.EVENT_READ, name)
        deadline = time.monotonic() + timeout
        while selector.get_map() and time.monotonic() < deadline:
            for key, _events in selector.select(max(deadline - time.monotonic(), 0)):
                part = os.read(key.fd, 64 * 1024)
                if not part:
                    selector.unregister(key.fileobj)
                    continue
                kept = output[key.data]
                kept += part
                if len(kept) > 2 * limit:
                    del kept[:-limit]
                    notes[key.data] = f"only the last {limit} bytes"
        late = {str(key.data) for key in selector.get_map().values()}
    for name, process in running.items():
        if name in late:
            notes[name] = f"no end after {timeout:.1f} s"
            process.kill()
        if process.stdout is not None:
            process.stdout.close()
        try:
            if name not in late and process.wait(timeout=1.0) != 0:
                notes.setdefault(name, f"ended with {process.returncode}")
        except subprocess.TimeoutExpired:  # it closed its output and stays
            process.kill()
    return {name: Output(bytes(kept).decode("utf-8", "replace"), notes.get(name, "")) for name, kept in output.items()}


def _read_journal(
    invocation_id: str, namespace: str, lines: int | None, deadline: float
) -> t.Iterator[list[journal.Entry]]:
    """The journal of one start in parts, until its end or ``deadline`` (monotonic); with ``lines`` the newest ones only."""
    with journal.Follower(invocation_id=invocation_id, namespace=namespace, follow=False, lines=lines) as reader:
        while not reader.ended and time.monotonic() < deadline:
            select.select([reader.fileno()], [], [], 0.2)
            yield reader.read()
        if not reader.ended:
            raise TimeoutError("the journal takes too long to read")
        if reader.error:
            raise OSError(reader.error)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is needed of the host, for tests to replace."""

    run_all: t.Callable[..., dict[str, Output]] = run_all
    show: t.Callable[[str], UnitState] = dataclasses.field(
        default_factory=lambda: lambda unit: show(command_runner(timeout=5.0), unit)
    )
    journal: t.Callable[[str, str, int | None, float], t.Iterator[list[journal.Entry]]] = _read_journal
    monotonic: t.Callable[[], float] = time.monotonic
    wall: t.Callable[[], float] = time.time
    sleep: t.Callable[[float], None] = time.sleep
    proc: str = "/proc"
    cgroup_root: str = "/sys/fs/cgroup"


# --- text in bounded memory ---------------------------------------------------------------------------------------------------


class Spool:
    """Masked text, compressed in memory. With ``limit`` only the last bytes stay, by whole blocks."""

    _BLOCK = 256 * 1024

    def __init__(self, masker: Masker, *, limit: int | None = None) -> None:
        self._masker = masker
        self._limit = limit
        self._pending: list[str] = []
        self._pending_size = 0
        self._blocks: list[tuple[int, bytes]] = []
        self.size = 0
        self.cut = False

    def add(self, line: str) -> None:
        """Add one line."""
        self._pending.append(line)
        self._pending_size += len(line) + 1
        if self._pending_size >= self._BLOCK:
            self.flush()

    def flush(self) -> None:
        """Take what was added so far into the blocks."""
        if not self._pending:
            return
        data = (self._masker.text("\n".join(self._pending)) + "\n").encode("utf-8", "replace")
        self._pending, self._pending_size = [], 0
        self._blocks.append((len(data), zlib.compress(data, 1)))
        self.size += len(data)
        while self._limit is not None and self.size > self._limit and len(self._blocks) > 1:
            self.size -= self._blocks.pop(0)[0]
            self.cut = True

    def clear(self) -> None:
        """Forget everything."""
        self._pending, self._pending_size = [], 0
        self._blocks = []
        self.size, self.cut = 0, False

    def take(self, other: Spool) -> None:
        """Append what another one holds."""
        self.flush()
        other.flush()
        self._blocks += other._blocks
        self.size += other.size

    def blocks(self) -> t.Iterator[bytes]:
        """The text in parts."""
        self.flush()
        for _size, packed in self._blocks:
            yield zlib.decompress(packed)


class _Blocks(io.RawIOBase):
    """Parts of bytes as a file to read."""

    def __init__(self, parts: t.Iterable[bytes]) -> None:
        super().__init__()
        self._parts = iter(parts)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = part
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _stamp(wall: float, *, pattern: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return time.strftime(pattern, time.gmtime(wall))


def _entry_line(entry: journal.Entry) -> str:
    seconds, micros = divmod(entry.realtime_us, 1_000_000)
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z {entry.monotonic_us / 1e6:.6f}"
    fields = {
        "MESSAGE_ID": entry.message_id,
        "EXIT_CODE": entry.exit_code,
        "EXIT_STATUS": "" if entry.exit_status is None else str(entry.exit_status),
        "UNIT_RESULT": entry.unit_result,
        "N_DROPPED": str(entry.n_dropped or ""),
    }
    known = " ".join(f"{name}={value}" for name, value in fields.items() if value)
    message = entry.message
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[:_MESSAGE_CHARACTERS] + f" [... {len(message) - _MESSAGE_CHARACTERS} more characters]"
    message = message.replace("\n", "\n    ")
    return f"{at} [{entry.pid}] {message}" + (f" {{{known}}}" if known else "")


def _entries_text(output: str) -> str:
    """JSON of journalctl as text."""
    joiner = journal.LineJoiner()
    lines = []
    for raw in output.split("\n"):
        entry = journal.parse_entry(raw) if raw else None
        whole = joiner.feed(entry) if entry is not None else None
        if whole is not None:
            lines.append(_entry_line(whole))
    return "\n".join(lines)


# --- files ------------------------------------------------------------------------------------------------------------------


def _read(path: str, limit: int = _SMALL_FILE) -> str:
    """A small file's text; raises OSError, also for what is no plain file: a pipe would be waited for, and emptied."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        return file.read(limit).decode("utf-8", "replace")


def _read_or_why(path: str) -> str:
    try:
        return _read(path).rstrip("\n")
    except OSError as error:
        return f"({error.strerror or error})"


_SETTING = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\n]*)", re.MULTILINE | re.DOTALL
)


def _plain_value(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _settings(text: str) -> list[tuple[str, str]]:
    """NAME and value of each line of an environment file (systemd.exec(5)), without quotes."""
    return [(match.group(1), _plain_value(match.group(2))) for match in _SETTING.finditer(text)]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


_YAML_LINE = re.compile(r"^[ \t]*['\"]?([\w-]+)['\"]?[ \t]*:[ \t]*(.*)$", re.MULTILINE)


def _yaml_value(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


class _Secrets:
    """Collects what must not be seen."""

    #: Of these each text holds plenty that is no secret.
    _COMMON = re.compile(r"(?:true|false|none|null|auto|default|enabled|disabled|[0-9.]{0,7})\Z", re.IGNORECASE)

    def __init__(self, given: t.Iterable[str] = ()) -> None:
        self.found = {secret for secret in given if secret}

    def value(self, value: str) -> None:
        """A value under a name that looks secret. A path tells where a secret lies, and is needed to understand a failure."""
        if len(value) >= 6 and not self._COMMON.match(value) and not (value.startswith("/") and os.path.exists(value)):
            self.found.add(value)
            if "\n" in value:  # a log shows its lines one by one
                self.found.update(line for line in value.splitlines() if len(line) >= 6)

    def variables(self, settings: t.Iterable[tuple[str, str]]) -> None:
        for name, value in settings:
            if is_secret_variable(name):
                self.value(value)

    def command(self, words: t.Sequence[str]) -> None:
        for value in secret_words(words):
            self.value(value)

    def credential(self, text: str, *, every: bool) -> None:
        """A file of keys: with ``every`` each value in it, else those of names that look secret."""
        pairs = [(name, _yaml_value(value)) for name, value in _YAML_LINE.findall(text)]
        if not pairs and every:
            self.value(text.strip())
        for name, value in pairs:
            if every or is_secret_variable(name.replace("-", "_")):
                self.value(value)


# --- processes --------------------------------------------------------------------------------------------------------------


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


class _ProcessList:
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
                listeners(self._port, proc=self._proc)[0], proc=self._proc, cgroup_root=self._machine.cgroup_root
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
        status = dict(re.findall(r"^(\w+):\s*(.*)$", _read_or_why(f"{self._proc}/{pid}/status"), re.MULTILINE))
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
            _read_or_why(f"{folder}/stack"),
            "",
            "threads (id, name, state, wait channel):",
        ]
        try:
            threads = sorted(int(name) for name in os.listdir(f"{folder}/task"))
        except OSError as error:
            threads = []
            lines.append(f"({error.strerror or error})")
        for thread in threads[:_MOST_THREADS]:
            text = _read_or_why(f"{folder}/task/{thread}/stat")
            name = text[text.find("(") + 1 : text.rfind(")")]
            letter = text.rpartition(")")[2].split()[:1] or ["?"]
            lines.append(f"  {thread} {name} {letter[0]} {_read_or_why(f'{folder}/task/{thread}/wchan')}")
            if letter[0] == "D" and thread != one.process.pid:
                lines.append("    " + _read_or_why(f"{folder}/task/{thread}/stack").replace("\n", "\n    "))
        if len(threads) > _MOST_THREADS:
            lines.append(f"  and {len(threads) - _MOST_THREADS} more")
        for name in ("status", "io", "limits", "cgroup", "oom_score"):
            lines += ["", f"{name}:", _read_or_why(f"{folder}/{name}")]
        one.detail = lines
        if one.process.pid == self._state.main_pid:
            for item in _read_or_why(f"{folder}/environ").split("\0"):
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


# --- collecting -------------------------------------------------------------------------------------------------------------

_QUERY = (
    "index,name,uuid,pci.bus_id,driver_version,pstate,utilization.gpu,utilization.memory,memory.used,memory.total,power.draw,"
    "power.limit,temperature.gpu,clocks.sm,ecc.errors.uncorrected.volatile.total"
)


class _Collector:
    """Collects everything about one failed start; `files` maps names to text or spools, `notes` says what is missing."""

    def __init__(
        self, machine: Machine, result: t.Mapping[str, t.Any], params: t.Mapping[str, t.Any], deadline: float
    ) -> None:
        self._machine = machine
        self._result = result
        self._params = params
        self._deadline = deadline
        self._unit = str(result["unit"])
        self._invocation = str(result.get("invocation_id") or "")
        self._started = machine.monotonic()
        self._masker = Masker()
        self.files: dict[str, str | Spool] = {}
        self.notes: list[str] = []

    def collect(self) -> None:
        state = self._show()
        # Whatever else is read can be read later; processes end.
        processes = _ProcessList(self._machine, state, int(self._params["port"]))
        processes.collect(min(_PROCESSES_S, self._left()))
        commands = self._commands(state, processes)
        outputs = self._machine.run_all(commands, timeout=max(min(_COMMANDS_S, self._left() - _WRITING_S), 0.5))
        processes.sample_again()
        self._masker = Masker(self._secrets(outputs, processes))
        self._add_verdict()
        self._add_processes(processes, outputs)
        self._add_outputs(outputs, state)
        self._add_environment(outputs, processes)
        self._add_memory(state)
        self._add_releases(outputs)
        self._add_journal(state)

    def _left(self) -> float:
        return self._deadline - self._machine.monotonic()

    def _show(self) -> UnitState:
        try:
            return self._machine.show(self._unit)
        except Exception as error:  # noqa: BLE001  the rest is worth keeping all the same
            self.notes.append(f"systemctl show: {error}")
            return UnitState()

    def _add(self, name: str, text: str) -> None:
        self.files[name] = self._masker.text(text)

    # -- commands -----------------------------------------------------------------------------------------------

    def _commands(self, state: UnitState, processes: _ProcessList) -> dict[str, list[str]]:
        namespace = [f"--namespace=+{state.log_namespace}"] if state.log_namespace else []
        nvidia_smi = find_nvidia_smi() or "nvidia-smi"
        json_output = ["--quiet", "--no-pager", "--output=json", "--all", *namespace]
        commands = {
            "sync": journal.sync(namespace=state.log_namespace),
            "unit": ["systemctl", "cat", "--no-pager", "--", self._unit],
            "properties": ["systemctl", "show", "--no-pager", "--", self._unit],
            "unit-journal": ["journalctl", *json_output, f"--lines={_UNIT_LINES}", f"--unit={self._unit}"],
            "kernel": kernel_command(),
            "connections": [
                "ss",
                "-H",
                "-tanpoe",
                f"sport = :{self._params['port']} or dport = :{self._params['port']}",
            ],
            "disks": ["df", "-PTh", "--", *self._paths()],
            "inodes": ["df", "-Pi", "--", *self._paths()],
            "gpus": [nvidia_smi, f"--query-gpu={_QUERY}", "--format=csv"],
            "nvidia-smi": [nvidia_smi, "-q"],
            "gpu-processes": [
                nvidia_smi,
                "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
                "--format=csv",
            ],
            "gpu-topology": [nvidia_smi, "topo", "-m"],
            "nvidia-driver": [
                "grep",
                "-rs",
                "",
                f"{self._machine.proc}/driver/nvidia/version",
                f"{self._machine.proc}/driver/nvidia/gpus",
            ],
        }
        if self._invocation:
            about = journal.command(invocation_id=self._invocation, namespace=state.log_namespace, about=True)
            commands["systemd"] = [*about, f"--lines={_UNIT_LINES}"]
        dump = self._py_spy(processes)
        wanted = [one for one in processes.seen if one.own and one.role in ("main", "scheduler", "detokenizer")]
        for one in wanted[:_MOST_DUMPS] if dump else ():
            # --nonblocking: a server that may yet recover is not stopped for it.
            commands[f"py-spy {one.process.pid}"] = [dump, "dump", "--nonblocking", "--pid", str(one.process.pid)]
        return commands

    def _py_spy(self, processes: _ProcessList) -> str:
        folders = [os.path.dirname(one.process.cmdline[0]) for one in processes.seen[:1] if one.process.cmdline]
        path = os.pathsep.join([*filter(os.path.isabs, folders), os.environ.get("PATH", os.defpath), "/usr/local/bin"])
        return shutil.which("py-spy", path=path) or ""

    def _paths(self) -> list[str]:
        model = str(self._params.get("model_path") or "")
        records = str(self._params["state_dir"])
        while not os.path.exists(records) and records != "/":
            records = os.path.dirname(records) or "/"
        paths = ["/", "/tmp", "/dev/shm", "/var/log", records, model]
        return [path for path in dict.fromkeys(paths) if path.startswith("/")]

    # -- secrets ------------------------------------------------------------------------------------------------

    def _secrets(self, outputs: t.Mapping[str, Output], processes: _ProcessList) -> set[str]:
        found = _Secrets([str(self._params.get("api_key") or "")])
        properties, unit = outputs["properties"].text, outputs["unit"].text
        for text in re.findall(r"^\s*Environment=(.*)$", properties + "\n" + unit, re.MULTILINE):
            found.variables(_settings("\n".join(_words(text))))
        for path in self._environment_files(properties):
            found.variables(_settings(self._text_of(path)))
        for text in re.findall(r"argv\[\]=(.*?) ; ignore_errors=", properties):
            self._learn_command(found, text.split())
        for text in re.findall(r"^\s*ExecStart=((?:[^\n]*\\\n)*[^\n]*)", unit, re.MULTILINE):
            self._learn_command(found, _words(text.replace("\\\n", " ")))
        for path in re.findall(r"^\s*LoadCredential=[^:\n]+:(/.*)$", unit, re.MULTILINE):
            found.credential(self._text_of(path.strip()), every=True)
        for value in re.findall(r"^\s*SetCredential=[^:\n]+:(.*)$", unit, re.MULTILINE):
            found.value(value.strip())
        for name in glob.glob(f"/run/credentials/{self._unit}/*"):
            found.credential(self._text_of(name), every=True)
        for one in processes.seen:
            if one.own:
                self._learn_command(found, one.process.cmdline)
                found.variables(one.environ)
        return found.found

    @staticmethod
    def _environment_files(properties: str) -> list[str]:
        patterns = re.findall(r"^EnvironmentFiles=(.+) \(ignore_errors=\w+\)$", properties, re.MULTILINE)
        return [path for pattern in patterns for path in sorted(glob.glob(pattern)) or [pattern]]

    def _learn_command(self, found: _Secrets, words: t.Sequence[str]) -> None:
        found.command(words)
        for word, following in zip(words, [*words[1:], ""]):
            path = following if word == "--config" else word[9:] if word.startswith("--config=") else ""
            if path.startswith("/"):
                found.credential(self._text_of(path), every=False)

    def _text_of(self, path: str) -> str:
        try:
            return _read(path)
        except OSError as error:
            # Its secrets are then known by their names alone.
            self.notes.append(f"{path}: {error.strerror or error}")
            return ""

    # -- files --------------------------------------------------------------------------------------------------

    def _add_verdict(self) -> None:
        kept = {key: value for key, value in self._result.items() if key not in ("resume", "changed")}
        # Masked before it is JSON, where a secret may be spelt another way.
        self._add("verdict.json", json.dumps(self._masker.value(kept), indent=2, sort_keys=True, default=str) + "\n")

    def _add_processes(self, processes: _ProcessList, outputs: t.Mapping[str, Output]) -> None:
        self._add("processes.txt", processes.table() + "\n")
        for one in processes.seen:
            lines = list(one.detail)
            dump = outputs.get(f"py-spy {one.process.pid}")
            if dump is not None:
                lines += ["", f"Python stack (py-spy{', ' + dump.note if dump.note else ''}):", dump.text]
            if lines:
                self._add(f"processes/{one.process.pid}-{_safe(one.role)}.txt", "\n".join(lines) + "\n")
        lines = processes.owners or ["Nobody listens on the port."]
        connections = outputs["connections"]
        lines += [
            "",
            "Connections (ss):",
            connections.text or f"(none{'; ' + connections.note if connections.note else ''})",
        ]
        self._add("sockets.txt", "\n".join(lines) + "\n")

    def _add_outputs(self, outputs: t.Mapping[str, Output], state: UnitState) -> None:
        texts = {
            "unit.txt": outputs["unit"].text,
            "properties.txt": outputs["properties"].text,
            "unit-journal.txt": _entries_text(outputs["unit-journal"].text),
            "kernel.txt": self._kernel(outputs["kernel"].text, state),
            # Several folders may lie on one file system.
            "disks.txt": "\n\n".join(
                "\n".join(dict.fromkeys(outputs[name].text.splitlines())) for name in ("disks", "inodes")
            )
            + "\n",
        }
        if "systemd" in outputs:
            texts["systemd.txt"] = _entries_text(outputs["systemd"].text)
        for name in ("gpus", "nvidia-smi", "gpu-processes", "gpu-topology", "nvidia-driver"):
            texts[f"{name}.txt"] = outputs[name].text
        no_driver = outputs["nvidia-smi"].note == "not found" and not outputs["nvidia-driver"].text
        if no_driver:
            self.notes.append("no NVIDIA driver: neither nvidia-smi nor /proc/driver/nvidia is there")
        for name, text in texts.items():
            if text.strip():
                self._add(name, text if text.endswith("\n") else text + "\n")
        for name, output in outputs.items():
            if output.note and not (no_driver and ("gpu" in name or "nvidia" in name)):
                first = next((line for line in output.text.splitlines() if line.strip()), "")
                self.notes.append(self._masker.text(f"{name}: {output.note}" + (f": {first[:200]}" if first else "")))

    def _kernel(self, output: str, state: UnitState) -> str:
        lines = parse_kernel_log(output, since_us=state.exec_main_start_us)
        if not lines:
            return f"The kernel logged nothing since {state.exec_main_start_us / 1e6:.6f} s after boot, or its log cannot be read here.\n"
        return "\n".join(f"{line.at_us / 1e6:.6f} {line.text}" for line in lines)

    def _add_environment(self, outputs: t.Mapping[str, Output], processes: _ProcessList) -> None:
        properties = outputs["properties"].text
        sections = [
            ("Environment= of the unit", _settings("\n".join(_words(text))))
            for text in re.findall(r"^Environment=(.*)$", properties, re.MULTILINE)
        ]
        sections += [(path, _settings(self._text_of(path))) for path in self._environment_files(properties)]
        for one in processes.seen:
            if one.environ:
                sections.append((f"main process {one.process.pid}", one.environ))
            if one.process.pid and one.role == "main" and one.own:
                words = [self._masker.text(word) for word in one.process.cmdline]
                masked = [MASK if word in secret_words(one.process.cmdline) else word for word in words]
                self._add("arguments.txt", "\n".join(masked) + "\n")
        if "arguments.txt" not in self.files:
            found = re.findall(r"argv\[\]=(.*?) ; ignore_errors=", properties)
            self._add(
                "arguments.txt",
                "\n".join(mask_command(text.split()) for text in found[:1]).replace(" --", "\n--") + "\n",
            )
        lines = []
        for title, settings in sections:
            lines.append(f"# {title}")
            lines += [
                f"{name}={MASK if is_secret_variable(name) and value else value}" for name, value in sorted(settings)
            ]
            lines.append("")
        self._add("environment.txt", "\n".join(lines))

    def _add_memory(self, state: UnitState) -> None:
        proc = self._machine.proc
        paths = [
            f"{proc}/{name}"
            for name in ("meminfo", "loadavg", "uptime", "pressure/cpu", "pressure/io", "pressure/memory")
        ]
        for folder in list(cgroup_folders(state.control_group, cgroup_root=self._machine.cgroup_root))[:1]:
            paths += [
                f"{folder}/{name}"
                for name in ("memory.current", "memory.max", "memory.swap.current", "memory.events", "pids.current")
            ]
            paths += [f"{folder}/cpu.stat"]
        self._add("memory.txt", "\n\n".join(f"{path}:\n{_read_or_why(path)}" for path in paths) + "\n")

    def _add_releases(self, outputs: t.Mapping[str, Output]) -> None:
        proc = self._machine.proc
        system = os.uname()
        lines = [
            f"host {system.nodename}, {system.sysname} {system.release} {system.version} {system.machine}",
            f"boot id {_read_or_why(f'{proc}/sys/kernel/random/boot_id')}",
            f"kernel command line {_read_or_why(f'{proc}/cmdline')}",
            f"driver {(_read_or_why(f'{proc}/driver/nvidia/version').splitlines() or ['-'])[0]}",
            "",
            _read_or_why("/etc/os-release"),
            "",
        ]
        program = re.search(r"^ExecStart=\{ path=(\S+) ;", outputs["properties"].text, re.MULTILINE)
        root = os.path.dirname(os.path.dirname(program.group(1))) if program else ""
        folders = glob.glob(os.path.join(root, "lib*", "python3*", "site-packages", "*.dist-info")) if root else []
        # lib64 is a link to lib in a virtual environment.
        names = sorted({os.path.basename(path)[: -len(".dist-info")] for path in folders})
        lines += [f"SGLang {name.partition('-')[2]}" for name in names if name.startswith("sglang-")]
        lines += ["", f"packages in {root}:" if names else "no packages beside the unit's program", *names]
        self._add("releases.txt", "\n".join(lines) + "\n")

    # -- the journal --------------------------------------------------------------------------------------------

    def _add_journal(self, state: UnitState) -> None:
        if not self._invocation:
            self.notes.append("the unit has no invocation: there is no journal of this start")
            return
        head, tail = Spool(self._masker), Spool(self._masker, limit=_TAIL_BYTES)
        last = self._machine.monotonic() + max(self._left() - _WRITING_S, 0.5)
        complete = True
        try:
            cursor, complete, rate = self._read_head(head, state, (self._machine.monotonic() + last) / 2)
            if not complete:
                # As many of the newest as can be read in the time that is left, with some to spare.
                lines = int(min(max(rate * (last - self._machine.monotonic()) / 2, _UNIT_LINES), _TAIL_LINES))
                self._read_tail(tail, state, cursor, lines, last)
        except (OSError, ValueError) as error:
            self.notes.append(f"journal: {error}")
        if complete or not tail.size:
            self.files["journal.txt"] = head
            return
        whole = Spool(self._masker)
        whole.take(head)
        if tail.cut:
            self.notes.append("the journal of this start is long: its middle is left out where journal.txt says so")
            whole.add("[... lines are left out here ...]")
        whole.take(tail)
        self.files["journal.txt"] = whole

    def _read_head(self, head: Spool, state: UnitState, until: float) -> tuple[str, bool, float]:
        """The beginning of the journal; gives the last cursor, whether that was all, and lines read per second."""
        cursor = ""
        count = 0
        began = self._machine.monotonic()
        complete = True
        try:
            for entries in self._machine.journal(self._invocation, state.log_namespace, None, until):
                for entry in entries:
                    head.add(_entry_line(entry))
                    cursor = entry.cursor
                count += len(entries)
                if head.size >= _HEAD_BYTES:
                    complete = False
                    break
        except TimeoutError:
            complete = False
        head.flush()
        return cursor, complete, count / max(self._machine.monotonic() - began, 0.001)

    def _read_tail(self, tail: Spool, state: UnitState, cursor: str, lines: int, until: float) -> None:
        """The end of the journal, from after the head's last line where they meet."""
        tail.cut = True
        for entries in self._machine.journal(self._invocation, state.log_namespace, lines, until):
            for entry in entries:
                if entry.cursor == cursor:
                    tail.clear()  # the head has all of this
                    continue
                tail.add(_entry_line(entry))
        tail.flush()

    # -- the index ----------------------------------------------------------------------------------------------

    def index(self) -> str:
        """What each file is."""
        diagnosis = self._result.get("diagnosis") or {}
        lines = [
            f"Evidence of a failed start of {self._unit}",
            "",
            f"state       {self._result.get('state')}",
            f"cause       {diagnosis.get('cause', '')}",
            f"summary     {diagnosis.get('summary', '')}",
            f"invocation  {self._invocation or 'none'}",
            f"verdict     {_stamp(float(self._result.get('detected_at') or self._machine.wall()))}",
            f"collected   {_stamp(self._machine.wall())}, in {self._machine.monotonic() - self._started:.1f} s",
            "",
            "Values that look secret are replaced by asterisks. Look through the files all the same before you publish them.",
            "",
        ]
        for name, about in _FILES.items():
            there = any(one.startswith(name) for one in self.files) if name.endswith("/") else name in self.files
            lines.append(f"{name:<20} {about}" if there else f"{name:<20} (missing) {about}")
        if self.notes:
            lines += ["", "What could not be had:", *(f"- {note}" for note in dict.fromkeys(self.notes))]
        return self._masker.text("\n".join(lines) + "\n")


# --- archives on disk ---------------------------------------------------------------------------------------------------------


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)


_ARCHIVE = re.compile(r"(?P<stamp>\d{8}T\d{6}Z)-(?P<label>[A-Za-z0-9_]+)-(?P<invocation>[0-9a-f]{32}|none)\.tar\.gz\Z")
_UNFINISHED = ".unfinished-"


class Archives:
    """The archives of one unit in ``state_dir/evidence/UNIT``. Only one process changes them at a time."""

    def __init__(self, state_dir: str, unit: str) -> None:
        self.folder = os.path.join(state_dir, FOLDER, unit)
        self._lock: int | None = None

    def open(self, wait: t.Callable[[], bool]) -> None:
        """Make the folder and take its lock; ``wait`` pauses a moment and tells whether to try again. Raises EvidenceError, OSError."""
        parent = os.path.dirname(self.folder)
        os.makedirs(os.path.dirname(parent), mode=0o755, exist_ok=True)
        for folder in (parent, self.folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise EvidenceError(f"{folder} is no folder of user id {os.geteuid()}: move it away")
            if stat.S_IMODE(found.st_mode) != 0o700:
                os.chmod(folder, 0o700)
        self._lock = os.open(
            os.path.join(self.folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait():
                    raise EvidenceError("another wait is keeping evidence of this unit at the same time") from None
        # Whoever left these behind does not hold the lock any more: it was killed.
        for name in os.listdir(self.folder):
            if name.startswith(_UNFINISHED):
                os.unlink(os.path.join(self.folder, name))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def names(self) -> list[str]:
        """The archives, the oldest first."""
        return sorted(name for name in os.listdir(self.folder) if _ARCHIVE.match(name))

    def write(self, name: str, files: t.Mapping[str, str | Spool], *, at: float) -> str:
        """Write an archive whole or not at all; gives its path. ``at`` is the time of its files. Raises OSError."""
        path = os.path.join(self.folder, name)
        unfinished = os.path.join(self.folder, f"{_UNFINISHED}{os.getpid()}")
        root = name[: -len(".tar.gz")]
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive:
                    for inner, content in files.items():
                        _add_member(archive, f"{root}/{inner}", content, at)
                file.flush()
                os.fsync(file.fileno())
            os.rename(unfinished, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return path

    def prune(self, newest: str, keep: int) -> None:
        """Remove what ``newest`` replaces, and all but the last ``keep``.

        One start judged again replaces its archive, unless the earlier one saw processes that have gone since.
        """
        new = _ARCHIVE.match(newest)
        names = self.names()
        others = []
        for name in names:
            old = _ARCHIVE.match(name)
            if name == newest or old is None or new is None:
                continue
            same = old.group("invocation") == new.group("invocation")
            dead_again = new.group("label") in _DEAD and old.group("label") not in _DEAD
            if same and not dead_again:
                os.unlink(os.path.join(self.folder, name))
            else:
                others.append(name)
        for name in others[: max(len(others) - (keep - 1), 0)]:
            os.unlink(os.path.join(self.folder, name))


def _add_member(archive: tarfile.TarFile, name: str, content: str | Spool, at: float) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = int(at)
    member.mode = 0o600
    if isinstance(content, Spool):
        content.flush()
        member.size = content.size
        archive.addfile(member, t.cast("t.IO[bytes]", io.BufferedReader(_Blocks(content.blocks()))))
    else:
        data = content.encode("utf-8", "replace")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


# --- the one call -------------------------------------------------------------------------------------------------------------


def _label(result: t.Mapping[str, t.Any]) -> str:
    cause = str((result.get("diagnosis") or {}).get("cause") or "")
    state = str(result["state"])
    return re.sub(r"[^A-Za-z0-9_]", "_", cause if state == LOADING and cause else state)[:40]


def _keep(result: dict[str, t.Any], params: t.Mapping[str, t.Any], machine: Machine) -> str:
    deadline = machine.monotonic() + BUDGET_S
    collector = _Collector(machine, result, params, deadline)
    collector.collect()
    archives = Archives(str(params["state_dir"]), str(result["unit"]))

    def wait() -> bool:
        machine.sleep(0.1)
        return machine.monotonic() < deadline

    try:
        archives.open(wait)
        now = machine.wall()
        invocation = str(result.get("invocation_id") or "") or "none"
        name = f"{_stamp(now, pattern='%Y%m%dT%H%M%SZ')}-{_label(result)}-{invocation}.tar.gz"
        path = archives.write(name, {"index.txt": collector.index(), **collector.files}, at=now)
        archives.prune(name, int(params["keep_evidence"]))
    finally:
        archives.close()
    return path


def keep(
    result: dict[str, t.Any], params: t.Mapping[str, t.Any], *, wait: bool, machine: Machine | None = None
) -> None:
    """Keep the evidence of a failed start; the result gets the key ``evidence``, and its message says where that is.

    Nothing is done for a start that has not failed, without ``wait`` (also in check mode), between slices, and where ``state_dir`` is
    empty or ``keep_evidence`` 0. What goes wrong is a notice of the result, never an exception: the verdict stands.
    """
    if not wait or not result.get("finished") or result.get("ready") or result.get("state") in _NO_FAILED_START:
        return
    if not params.get("state_dir") or int(params.get("keep_evidence") or 0) <= 0:
        return
    folder = os.path.join(str(params["state_dir"]), FOLDER, str(result["unit"]))
    try:
        kept = dict(result)
        path = within(BUDGET_S + _WRITING_S, lambda: _keep(kept, params, machine or Machine()))
    except Exception as error:  # noqa: BLE001  a bug here must not cost the verdict; it is told
        why = f"{type(error).__name__}: {error}" if not isinstance(error, EvidenceError) else str(error)
        result.setdefault("notices", []).append(f"evidence of this failed start was not kept in {folder}: {why}")
        return
    result["evidence"] = path
    told = f"Evidence is on the host: {path}; `ansible-playbook specdec.serving.collect` fetches it."
    result["msg"] = " ".join(part for part in (str(result.get("msg", "")), told) if part)
