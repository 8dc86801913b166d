# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal of one invocation of a unit: commands, entries, a follower. PRIVATE to specdec.serving.

Read by journalctl, since the bindings exist only for the distribution's own Python. What may be much comes as
`--output=export`, which costs journalctl about half of what `--output=json` does; small reads come as JSON.

An invocation id is unique, so the first read needs no cursor. Later reads use `--cursor`, which includes the entry it
names, and drop that entry: `--after-cursor` loses the first line before systemd 255 (systemd issue 30288).

The service's own lines carry `_SYSTEMD_INVOCATION_ID`, PID 1's lines about it `INVOCATION_ID`, and
journald's notice that it suppressed lines `OBJECT_SYSTEMD_INVOCATION_ID`. See journalctl(1),
systemd.journal-fields(7) and the systemd project's JOURNAL_EXPORT_FORMATS text for both forms.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "ENVIRONMENT",
    "MESSAGE_EXITED",
    "MESSAGE_FAILED",
    "MESSAGE_STARTED",
    "MESSAGE_SUPPRESSED",
    "Entry",
    "ExportParser",
    "Follower",
    "LineJoiner",
    "Read",
    "clean",
    "command",
    "damage",
    "entry_of",
    "explain",
    "parse_entry",
    "read_once",
    "read_orphans",
    "sync",
    "system_journal_readable",
]

Runner = Callable[[list[str]], tuple[int, str, str]]

#: For every call of journalctl. SYSTEMD_COLORS=1 in the caller's environment would colour even the JSON.
ENVIRONMENT = {"SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"}

# MESSAGE_ID values (systemd's sd-messages.h).
MESSAGE_STARTED = "39f53479d3a045ac8e11786248231fbf"
MESSAGE_EXITED = "98e322203f7a4ed290d09fe03c09fe15"
MESSAGE_FAILED = "d9b373ed55a64feb8242e02dbe79a49c"
MESSAGE_SUPPRESSED = "a596d6fe7bfa4994828e72309e95d61e"

# Each field that an entry has costs journalctl about two microseconds: no more than are used.
_FIELDS = (
    "MESSAGE",
    "MESSAGE_ID",
    "_PID",
    "_SYSTEMD_INVOCATION_ID",
    "INVOCATION_ID",
    "EXIT_CODE",
    "EXIT_STATUS",
    "UNIT_RESULT",
    "N_DROPPED",
    "_LINE_BREAK",
    "_STREAM_ID",
)


class Entry(NamedTuple):
    """One entry of the journal.

    Times in microseconds: `realtime_us` since the epoch, `monotonic_us` since boot (the clock of
    `time.monotonic_ns() // 1000`). `message` is plain text: decoded, without colours, and of a progress
    line only what a terminal would show last. `line_break` is journald's `_LINE_BREAK` (`line-max`, `eof`, ...).
    `exit_code` (`exited`, `killed`, `dumped`), `exit_status` and `unit_result` stand in PID 1's entries only.
    `own` tells a line of the service itself from one about it; `invocation` is the writer's invocation id.
    """

    cursor: str
    realtime_us: int
    monotonic_us: int
    pid: int
    message: str
    message_id: str
    exit_code: str
    exit_status: int | None
    unit_result: str
    n_dropped: int
    line_break: str
    own: bool
    stream: str = ""
    invocation: str = ""

    @property
    def suppressed(self) -> bool:
        """Whether this is journald's notice that it dropped lines: the journal is incomplete."""
        return self.message_id == MESSAGE_SUPPRESSED


# --- commands -----------------------------------------------------------------------------------------------------------


def command(
    *,
    invocation_id: str,
    cursor: str | None = None,
    namespace: str | None = None,
    follow: bool = False,
    lines: int | None = None,
    about: bool = False,
    output: str = "json",
    program: Sequence[str] = ("journalctl",),
) -> list[str]:
    """The journalctl command line for one invocation of a unit.

    `about` reads only what PID 1 says of it: a few lines, however much the service itself logs. `namespace` is the
    unit's `LogNamespace`: its own lines are only there, PID 1's only in the default one, so both are read. `lines`
    limits the read to the newest ones; without it everything is read.
    """
    if not re.fullmatch(r"[0-9a-f]{32}", invocation_id):
        raise ValueError(f"invocation id {invocation_id!r} is not 32 hexadecimal digits, as systemd's InvocationID is")
    words = [*program, "--quiet", "--no-pager", f"--output={output}", "--all", f"--output-fields={','.join(_FIELDS)}"]
    if follow:
        # --follow alone shows the last ten lines only, with a cursor too.
        words += ["--follow", "--lines=all" if lines is None else f"--lines={lines}"]
    elif lines is not None:
        words.append(f"--lines={lines}")
    if namespace:
        words.append(f"--namespace=+{namespace}")
    if cursor:
        words.append(f"--cursor={cursor}")
    # Any user may log a field of a name without an underscore before it. So that nobody can have a unit stopped, or its
    # journal incomplete, by words alone, such lines must come from root, as those of PID 1 and journald do.
    told = [f"INVOCATION_ID={invocation_id}", "_UID=0"]
    if about:
        return [*words, *told]
    words += [f"_SYSTEMD_INVOCATION_ID={invocation_id}", "+", *told]
    # journald's own notice about lines it dropped.
    return [*words, "+", f"OBJECT_SYSTEMD_INVOCATION_ID={invocation_id}", "_UID=0"]


def sync(*, namespace: str | None = None, program: Sequence[str] = ("journalctl",)) -> list[str]:
    """The command that waits until journald has written what it received (needs root), for the last read after a crash."""
    return [*program, "--quiet", *([f"--namespace={namespace}"] if namespace else []), "--sync"]


def explain(returncode: int, stderr: str) -> str:
    """What went wrong with journalctl, "" if nothing did. No permission is told apart from no lines."""
    text = " ".join(stderr.split())
    if "insufficient permissions" in text or "Permission denied" in text:
        return f"no permission to read the journal (root or membership of the group systemd-journal is needed): {text}"
    if "Failed to seek to cursor" in text or "Failed to parse cursor" in text:
        return f"the journal does not know the cursor it was asked to go on from: {text}"
    if returncode != 0:
        return f"journalctl ended with {returncode}: {text or 'no message'}"
    return ""


def damage(stderr: str) -> str:
    """Which journal files journalctl passed over because they are damaged, in its words; "" if none.

    The rest is read and the exit status is 0, so nothing else tells that lines are missing.
    """
    found = [line.strip() for line in stderr.splitlines() if "ignoring file" in line]
    return "; ".join(dict.fromkeys(found))


def system_journal_readable(*, roots: Iterable[str] = ("/var/log/journal", "/run/log/journal")) -> bool | None:
    """Whether we may read the system's journal files; None if there are none.

    A user who may read only some files gets a part of the lines with code 0 and, with --quiet, no hint: this tells.
    """
    seen = False
    for root in roots:
        try:
            machines = os.listdir(root)
        except PermissionError:
            return False
        except (FileNotFoundError, NotADirectoryError):
            continue
        for machine in machines:
            path = os.path.join(root, machine, "system.journal")
            if os.path.exists(path):
                seen = True
                if not os.access(path, os.R_OK):
                    return False
    return True if seen else None


# --- entries ------------------------------------------------------------------------------------------------------------

# CSI (colours, cursor), OSC (titles, links), and the remaining two-character escapes: ECMA-48.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DIRTY = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clean(text: str) -> str:
    """Text as a terminal would leave it: no escape sequences, and of each line only what follows its last carriage return."""
    if not _DIRTY.search(text):
        return text
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        shown = []
        for line in text.split("\n"):
            # A trailing return moves the cursor only; blank segments overwrite nothing.
            parts = [part for part in line.split("\r") if part.strip()]
            shown.append(parts[-1] if parts else "")
        text = "\n".join(shown)
    return _CONTROLS.sub("", text)


def _decode(value: Any) -> str:
    """A field in any of journalctl's shapes: text, null (too long), a list of bytes, a list of values."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 255 for item in value):
            return bytes(value).decode("utf-8", "replace")
        return "\n".join(_decode(item) for item in value)
    return ""


def _number(text: str | None) -> int:
    try:
        return int(text) if text else 0
    except ValueError:
        return 0


def entry_of(fields: Mapping[str, str], *, invocation_id: str | None = None) -> Entry:
    """The entry that has these fields. With `invocation_id` only lines of that very invocation count as `own`."""
    # In the order of the fields: thousands of lines a second may come.
    get = fields.get
    invocation = get("_SYSTEMD_INVOCATION_ID", "")
    message_id = get("MESSAGE_ID", "")
    status = get("EXIT_STATUS")
    # journald's notices carry journald's own invocation, PID 1's lines none.
    own = invocation == invocation_id if invocation_id else bool(invocation) and message_id != MESSAGE_SUPPRESSED
    message = get("MESSAGE", "")
    return Entry(
        get("__CURSOR", ""),
        _number(get("__REALTIME_TIMESTAMP")),
        _number(get("__MONOTONIC_TIMESTAMP")),
        _number(get("_PID")),
        message if message.isprintable() else clean(message),
        message_id,
        get("EXIT_CODE", ""),
        None if status is None else _number(status),
        get("UNIT_RESULT", ""),
        _number(get("N_DROPPED")),
        get("_LINE_BREAK", ""),
        own,
        get("_STREAM_ID", ""),
        invocation,
    )


def _place(cursor: str | None) -> tuple[str, int, int]:
    """(sequence, number in it, monotonic time in microseconds) of a cursor; -1 for what it does not tell."""
    parts = dict(part.partition("=")[::2] for part in (cursor or "").split(";"))
    try:
        return parts.get("s", ""), int(parts.get("i", "-1"), 16), int(parts.get("m", "-1"), 16)
    except ValueError:
        return "", -1, -1


def parse_entry(line: str | bytes, *, invocation_id: str | None = None) -> Entry | None:
    """One line of `--output=json`, or None if it is no entry; `invocation_id` as in `entry_of`."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        return None
    if not isinstance(data, dict):
        return None
    fields = {name: _decode(value) for name, value in data.items() if value is not None}
    return entry_of(fields, invocation_id=invocation_id)


class ExportParser:
    """The entries in `--output=export`, fed in pieces that are cut anywhere: field names to text.

    A field is `NAME=text`, or, where its value is no plain line, `NAME`, a newline, the length in 8 bytes, the value. An
    empty line ends an entry. Of a field that repeats, the values come one a line. An entry with a value beyond `longest`
    bytes is passed over and counted in `malformed`, as is anything that is no field.
    """

    _NAME = re.compile(rb"[A-Z0-9_]{1,64}")

    def __init__(self, *, longest: int = 4 * 1024 * 1024) -> None:
        self.malformed = 0
        self._longest = longest
        self._rest = b""
        self._skip = 0
        self._spoilt = False

    def feed(self, data: bytes) -> list[dict[str, str]]:
        """The entries that are complete with these bytes."""
        if self._skip:
            passed = min(self._skip, len(data))
            self._skip -= passed
            data = data[passed:]
        data = self._rest + data if self._rest else data
        found: list[dict[str, str]] = []
        at = 0
        while True:
            end = -1 if self._spoilt else data.find(b"\n\n", at)
            if end >= 0:
                fields = self._plain(data[at:end])
                if fields is not None:
                    found.append(fields)
                    at = end + 2
                    continue
            spoilt, before = self._spoilt, at
            at = self._pass_over(data, at) if spoilt else self._any(data, at, found)
            if at == before and self._spoilt is spoilt:
                break
        self._rest = data[at:]
        if len(self._rest) > 2 * self._longest:
            self._spoil()
            self._rest = b""
        return found

    def close(self) -> list[dict[str, str]]:
        """The last entry, where what wrote it ended before the empty line."""
        return self.feed(b"\n" if self._rest.endswith(b"\n") else b"\n\n") if self._rest else []

    @staticmethod
    def _plain(block: bytes) -> dict[str, str] | None:
        """What nearly all entries are: fields of one line each. None: this one has others, whose line has no "="."""
        pairs = [line.split("=", 1) for line in block.decode("utf-8", "replace").split("\n")]
        try:
            fields: dict[str, str] = dict(pairs)
        except ValueError:
            return None
        if len(fields) < len(pairs):
            for name in fields:
                fields[name] = "\n".join(value for key, value in pairs if key == name)
        return fields

    def _spoil(self) -> None:
        self.malformed += not self._spoilt
        self._spoilt = True

    def _any(self, data: bytes, begin: int, found: list[dict[str, str]]) -> int:
        """Take one entry of any kind, and give where it ends; `begin` when it is not complete or turns out spoilt."""
        values: dict[str, list[bytes]] = {}
        at = begin
        while True:
            end = data.find(b"\n", at)
            if end < 0:
                return begin
            if end == at:
                if values:
                    found.append({name: b"\n".join(parts).decode("utf-8", "replace") for name, parts in values.items()})
                return at + 1
            name, equals, value = data[at:end].partition(b"=")
            at = end + 1
            if not self._NAME.fullmatch(name):
                self._spoil()
                return begin
            if not equals:
                size = int.from_bytes(data[at : at + 8], "little")
                if len(data) >= at + 8 and size > self._longest:
                    self._spoil()
                    return begin
                at += 8 + size + 1
                if len(data) < at:
                    return begin
                value = data[at - size - 1 : at - 1]
            values.setdefault(name.decode(), []).append(value)

    def _pass_over(self, data: bytes, at: int) -> int:
        """Take one field of a spoilt entry, or its end, and give where that ends; `at` when it is not complete."""
        end = data.find(b"\n", at)
        if end < 0:
            return at
        if end == at:
            self._spoilt = False
            return at + 1
        name, equals, _value = data[at:end].partition(b"=")
        if equals or not self._NAME.fullmatch(name):
            return end + 1
        if len(data) < end + 9:
            return at
        stop = end + 9 + int.from_bytes(data[end + 1 : end + 9], "little") + 1
        self._skip = max(0, stop - len(data))
        return min(stop, len(data))


class LineJoiner:
    """Joins the parts of a line that journald cut at its `LineMax` (48 KiB): `_LINE_BREAK=line-max` on all but the last.

    Parts of one stream follow each other, lines of other streams may stand between. A joined line has the cursor
    and the time of its last part and is cut at `limit` characters.
    """

    def __init__(self, *, limit: int = 1024 * 1024) -> None:
        self._limit = limit
        self._begun: dict[str, str] = {}

    @property
    def pending(self) -> bool:
        """Whether parts of a line are still to come."""
        return bool(self._begun)

    def feed(self, entry: Entry) -> Entry | None:
        """The entry, whole; or None while parts of its line are still to come."""
        key = entry.stream or str(entry.pid)
        begun = self._begun.pop(key, None)
        if entry.line_break == "line-max":
            self._begun[key] = ((begun or "") + entry.message)[: self._limit]
            return None
        if begun is None:
            return entry
        return entry._replace(message=(begun + entry.message)[: self._limit])


# --- one read -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """What one read gave: `entries`, the `cursor` to go on from, the number of `malformed` lines, and `error` ("" = none)."""

    entries: tuple[Entry, ...]
    cursor: str | None
    malformed: int
    error: str


def read_once(
    runner: Runner,
    *,
    invocation_id: str,
    cursor: str | None = None,
    namespace: str | None = None,
    lines: int | None = None,
    about: bool = False,
) -> Read:
    """Read what the journal has now, by `runner` (which sets `ENVIRONMENT`). All of it is held in memory: see `lines`."""
    code, out, err = runner(
        command(invocation_id=invocation_id, cursor=cursor, namespace=namespace, lines=lines, about=about)
    )
    entries: list[Entry] = []
    malformed = 0
    last = cursor
    joiner = LineJoiner()
    for line in out.split("\n"):
        if not line.strip():
            continue
        entry = parse_entry(line, invocation_id=invocation_id)
        if entry is None:
            malformed += 1
            continue
        if cursor is not None and entry.cursor == cursor:
            continue
        last = entry.cursor or last
        whole = joiner.feed(entry)
        if whole is not None:
            entries.append(whole)
    return Read(entries=tuple(entries), cursor=last, malformed=malformed, error=explain(code, err))


def read_orphans(
    runner: Runner, *, unit: str, boot_id: str, since_us: int, namespace: str | None = None, lines: int = 1000
) -> tuple[Entry, ...]:
    """The unit's lines of this boot since `since_us` (monotonic) that bear no invocation id, as `own` entries.

    A process that writes its first line as it dies is gone when journald looks it up: the line is stored with the unit's
    name and no invocation (seen with systemd 252). Such are the lines that explain a start that fails at once, so
    read them after a failure. Only the newest `lines` of the unit are searched. The time of day plays no part: it may
    have been set since.
    """
    words = ["journalctl", "--quiet", "--no-pager", "--output=json", "--all", f"--output-fields={','.join(_FIELDS)}"]
    words += [f"--lines={lines}", *([f"--namespace=+{namespace}"] if namespace else [])]
    _code, out, _err = runner([*words, f"_SYSTEMD_UNIT={unit}", f"_BOOT_ID={boot_id.replace('-', '')}"])
    found: list[Entry] = []
    joiner = LineJoiner()
    for line in out.split("\n"):
        entry = parse_entry(line) if line else None
        if entry is None or entry.invocation or entry.monotonic_us < since_us:
            continue
        whole = joiner.feed(entry._replace(own=True))
        if whole is not None:
            found.append(whole)
    return tuple(found)


# --- following ----------------------------------------------------------------------------------------------------------

# fcntl(2); the name exists from Python 3.10 on. 64 KiB would be full after a hundredth of a second of 10,000 lines a second.
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1024 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Run between us and journalctl. A preexec_fn would run Python between fork and exec, where a lock held by another
# thread is held for ever, and is refused in subinterpreters. A second exec has neither fault, and the setting
# survives it (prctl(2): cleared only for programs that gain privileges). The check of the parent closes the gap
# before prctl.
_GUARD = """\
import os, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, ctypes.c_ulong(15), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write("%s: %s" % (sys.argv[2], error.strerror))
    sys.exit(127)
"""


class Follower:
    """Follows the journal of one invocation without ever blocking.

    `fileno()` is for select or poll; `read()` gives what is there, at most `chunk` bytes a call. What is not read
    stays in the pipe, so that a chatty server slows journalctl down instead of filling our memory.

    journalctl dies with us, even by SIGKILL: by PR_SET_PDEATHSIG, which is bound to the *thread* that starts it, so
    make a Follower in the main thread; and where ctypes is missing, journalctl itself ends when its output is
    closed. `quick` leaves that to setpriv(1) where it exists, which starts faster; if we are killed in that very moment
    journalctl lives until its next line. With `follow=False` the same bounded reading serves a single pass: `ended` tells its end.
    """

    def __init__(
        self,
        *,
        invocation_id: str,
        cursor: str | None = None,
        namespace: str | None = None,
        follow: bool = True,
        lines: int | None = None,
        chunk: int = 256 * 1024,
        longest_line: int = 4 * 1024 * 1024,
        quick: bool = False,
        program: Sequence[str] = ("journalctl",),
    ) -> None:
        words = command(
            invocation_id=invocation_id,
            cursor=cursor,
            namespace=namespace,
            follow=follow,
            lines=lines,
            output="export",
            program=program,
        )
        self.cursor = cursor
        self.drained = False
        self.ended = False
        self.returncode: int | None = None
        self._invocation_id = invocation_id
        self._resumed_at = cursor
        self._place = _place(cursor)
        self._chunk = chunk
        self._parser = ExportParser(longest=longest_line)
        self._stderr = b""
        self._joiner = LineJoiner()
        # A single pass ends by itself, or when it writes to a closed pipe.
        setpriv = shutil.which("setpriv") if quick and follow else None
        guarded: list[str] = []
        if setpriv:
            guarded = [setpriv, "--pdeathsig", "TERM"]
        elif sys.executable and follow:
            guarded = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
        self._process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # read while it runs
            [*guarded, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **ENVIRONMENT},
        )
        if self._process.stdout is None or self._process.stderr is None:
            raise OSError(errno.EPIPE, "journalctl was started without pipes")
        self._stdout_fd = self._process.stdout.fileno()
        self._stderr_fd = self._process.stderr.fileno()
        os.set_blocking(self._stdout_fd, False)
        os.set_blocking(self._stderr_fd, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._stdout_fd, _F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def pid(self) -> int:
        """The pid of journalctl."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor that is readable when `read` has something to give (or the end was reached)."""
        return self._stdout_fd

    @property
    def resident_bytes(self) -> int:
        """Memory of journalctl. It maps what it reads of the journal, and gives hardly anything of that up; 0 = unknown."""
        try:
            with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0

    @property
    def in_a_line(self) -> bool:
        """Whether a part of a cut line was read whose rest is still to come: another Follower would not know it."""
        return self._joiner.pending

    @property
    def malformed(self) -> int:
        """How much of the output was no entry."""
        return self._parser.malformed

    @property
    def damage(self) -> str:
        """Which journal files were passed over because they are damaged; "" = none."""
        self._read_stderr()
        return damage(self._stderr.decode("utf-8", "replace"))

    @property
    def error(self) -> str:
        """Why nothing (more) comes: no permission, an unknown cursor, journalctl missing or failed. "" = nothing wrong."""
        self._read_stderr()
        text = self._stderr.decode("utf-8", "replace")
        if self.returncode is None:
            # Still running: only what is certain already.
            return explain(0, text)
        return explain(self.returncode, text)

    def read(self) -> list[Entry]:
        """The entries that have arrived. [] at once when there is none.

        Afterwards `drained` tells whether the pipe was emptied, `ended` whether journalctl has closed it, and
        `cursor` where a later Follower goes on. (Empty is not complete: right after the start journalctl may still
        be searching. For certainty, `read_once` from `cursor`.)
        """
        if self.ended:
            return []
        data = bytearray()
        self.drained = False
        while len(data) < self._chunk:
            try:
                part = os.read(self._stdout_fd, self._chunk - len(data))
            except BlockingIOError:
                self.drained = True
                break
            if not part:
                self.drained = True
                self._finish()
                break
            data += part
        self._read_stderr()
        return self._take(bytes(data))

    def _take(self, data: bytes) -> list[Entry]:
        found = self._parser.feed(data)
        if self.ended:
            found += self._parser.close()
        entries: list[Entry] = []
        for fields in found:
            entry = entry_of(fields, invocation_id=self._invocation_id)
            if self._resumed_at is not None and self._is_known(entry):
                continue
            if entry.cursor:
                self.cursor = entry.cursor
            whole = self._joiner.feed(entry)
            if whole is not None:
                entries.append(whole)
        return entries

    def _is_known(self, entry: Entry) -> bool:
        """Whether an entry is that of the cursor, or comes before it.

        Where the clock was set and the journal has several files of different origin (a namespace's and the default one),
        journalctl begins some of them too early (seen with systemd 252). An invocation has one boot, so its monotonic
        times tell.
        """
        sequence, number, monotonic_us = self._place
        if entry.monotonic_us != monotonic_us or entry.cursor == self._resumed_at:
            return entry.monotonic_us < monotonic_us or entry.cursor == self._resumed_at
        other = _place(entry.cursor)
        return other[0] == sequence and other[1] <= number

    def _read_stderr(self) -> None:
        while self._stderr_fd >= 0:
            try:
                part = os.read(self._stderr_fd, 4096)
            except BlockingIOError:
                return
            if not part:
                return
            self._stderr = (self._stderr + part)[-4096:]

    def _finish(self) -> None:
        self.ended = True
        # Its output is closed, so it is about to end; the bound only guards against a stopped one.
        try:
            self.returncode = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.returncode = self._process.wait()

    def close(self) -> None:
        """End journalctl and give everything back. Safe to call twice."""
        if self._stderr_fd < 0:
            return
        self._read_stderr()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.ended = True
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._stderr_fd = -1

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()
