# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults on demand: STAND_IN_FAULT is the name of an entry of `faults.json`, or a fault, or a list of faults, as JSON.

A fault strikes `at` a step or point of the processes that `who` names, or `on` the requests for a path. README.md has the
table. Durations of faults are seconds as they are, not scaled. `python -m sglang.stand_in.faults` prints the catalogue.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from sglang.stand_in import conditions, processes
from sglang.stand_in.log import Log
from sglang.stand_in.truth import Truth

if TYPE_CHECKING:
    from sglang.stand_in.http import Request, Response

#: Points beside the steps of `times.py`. `arguments`: main knows its arguments and has no children; `ready`: main is up;
#: `term`: main was told to stop.
POINTS = ("arguments", "ready", "term")
STEPS = (
    *("imports", "rank_imports", "init_parallel", "load_target", "load_draft", "kv_cache", "capture"),
    *("scheduler_ready", "bind", "warm_up"),
)
#: The leading rank's decode steps (speculating: its verify steps), each for itself.
DECODE = "decode"
_CATALOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults.json")
_KERNEL_LOG = "/dev/kmsg"
# Who sends the warm-up's own requests, which faults spare unless told otherwise.
_OWN_AGENT = "python-requests/"
_CHAINED = "\nDuring handling of the above exception, another exception occurred:\n"


class Raised(Exception):
    """A fault's exception on its way up; `text` is its traceback as Python would print it."""

    def __init__(self, text: str, quit_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.text = text
        self.quit_after_s = quit_after_s


@dataclass(frozen=True)
class Fault:
    """One strike. `options` are the keys of its JSON object that belong to what it does."""

    name: str
    number: int
    do: str
    at: str
    on: tuple[str, ...]
    who: tuple[str, ...]
    when: str | float
    options: dict[str, Any]
    only: Mapping[str, tuple[Any, ...]]

    def hits(self, who: str) -> bool:
        words = who.split()
        rank = who not in ("main", "detokenizer")
        return any(name == "*" or name in words or (name == "ranks" and rank) for name in self.who)


def catalogue() -> dict[str, dict[str, Any]]:
    """Entries by name, as in faults.json."""
    with open(_CATALOGUE, encoding="utf-8") as stream:
        entries: dict[str, dict[str, Any]] = json.load(stream)
    return entries


def parse(text: str) -> list[Fault]:
    """The faults that STAND_IN_FAULT names. Raises ValueError that says what is wrong with it."""
    name, source = "own", f"STAND_IN_FAULT is {text!r}"
    items: Any
    if text.lstrip()[:1] in ("{", "["):
        try:
            items = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{source}: no JSON ({error})") from None
    else:
        entries = catalogue()
        if text not in entries:
            raise ValueError(f"{source}: the catalogue has {sorted(entries)}; or give a JSON object")
        name, items = text, entries[text].get("faults", [])
    found: list[Fault] = []
    for item in items if isinstance(items, list) else [items]:
        for part, own in _named(item, name, source):
            found.append(_fault(own, len(found), part, source))
    return found


def _named(item: Any, name: str, source: str) -> Iterator[tuple[Any, str]]:
    """A fault with its name; one that names an entry of the catalogue (`fault`) is each of the entry's, with the rest of its keys."""
    if not isinstance(item, dict) or "fault" not in item:
        yield item, name
        return
    entries = catalogue()
    if item["fault"] not in entries:
        raise ValueError(f"{source}: fault is {item['fault']!r}, the catalogue has {sorted(entries)}")
    more = {key: value for key, value in item.items() if key != "fault"}
    for one in entries[item["fault"]].get("faults", []):
        yield {**one, **more}, item["fault"]


def _fault(name: str, number: int, item: Any, source: str) -> Fault:
    if not isinstance(item, dict):
        raise ValueError(f"{source}: give objects, not {item!r}")
    options = dict(item)
    do = options.pop("do", None)
    at, on, who = options.pop("at", None), options.pop("on", ()), options.pop("who", "main")
    when, only = options.pop("when", "begin"), conditions.check(options.pop("with", {}), source)
    on, who = ((one,) if isinstance(one, str) else tuple(one) for one in (on, who))
    if bool(at) == bool(on):
        raise ValueError(f"{source}: name either a step (at) or a path (on) in {item!r}")
    known = _ANSWERS if on else (*_ACTIONS, "listen")
    if do not in known:
        raise ValueError(f"{source}: do is {do!r}, it can be one of {sorted(known)} here")
    if at and at not in (*STEPS, *POINTS, DECODE):
        raise ValueError(f"{source}: at is {at!r}, it can be one of {[*STEPS, *POINTS, DECODE]}")
    number_between = isinstance(when, (int, float)) and not isinstance(when, bool) and 0 <= when <= 1
    if when not in ("begin", "end") and not number_between:
        raise ValueError(f"{source}: when is {when!r}, give begin, end or a part of the step between 0 and 1")
    return Fault(name=name, number=number, do=do, at=at or "", on=on, who=who, when=when, options=options, only=only)


class Faults:
    """What shall go wrong in this server. Raises ValueError when STAND_IN_FAULT is no use.

    Children get a copy when they are forked: each process counts for itself what struck.
    """

    def __init__(self, environment: Mapping[str, str], truth: Truth) -> None:
        text = environment.get("STAND_IN_FAULT", "")
        self._all = parse(text) if text else []
        self._truth = truth
        self._lock = threading.Lock()
        self._met: dict[int, int] = {}
        self._first: dict[int, float] = {}
        self._due: list[tuple[float, Fault, str]] = []

    # Steps and points

    def strike(self, point: str, who: str, moment: str, seconds: float = 0.0, **details: Any) -> None:
        """Let the faults of this point happen. May never return, end the process, or raise `Raised`."""
        for fault in self._all:
            if fault.at != point or fault.do == "listen" or not fault.hits(who) or not conditions.holds(fault.only):
                continue
            if moment != ("end" if fault.when == "end" else "begin"):
                continue
            if any(details.get(key, value) != value for key, value in fault.options.items() if key in details):
                continue
            met, skip = self._count(fault), int(fault.options.get("skip", 0))
            if met != skip and not (fault.options.get("each") and met > skip):
                continue
            wait = float(fault.options.get("after_s", 0.0))
            if isinstance(fault.when, (int, float)):
                wait += fault.when * seconds
            if wait and threading.current_thread() is threading.main_thread():
                self._later(fault, who, wait)
            else:
                time.sleep(wait)
                self._act(fault, who)

    def _count(self, fault: Fault) -> int:
        """How often this fault's place was met before."""
        with self._lock:
            met = self._met.get(fault.number, 0)
            self._met[fault.number] = met + 1
            return met

    def _later(self, fault: Fault, who: str, wait: float) -> None:
        """By a timer of the main thread, so that what strikes later can still stop or end what runs by then."""
        self._due.append((time.monotonic() + wait, fault, who))
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._arm()

    def _arm(self) -> None:
        if self._due:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, min(due[0] for due in self._due) - time.monotonic()))

    def _on_alarm(self, _signum: int, _frame: Any) -> None:
        for due in sorted(self._due, key=lambda item: item[0]):
            if due[0] <= time.monotonic():
                self._due.remove(due)
                # A fault that hangs here must not keep the ones that come after it.
                self._arm()
                self._act(due[1], due[2])
        self._arm()

    def _act(self, fault: Fault, who: str) -> None:
        self._truth.note("fault", name=fault.name, who=who, do=fault.do)
        log = Log("info", prefix=f" {who}" if who not in ("main", "detokenizer", "scheduler") else "")
        _write_lines(fault.options, log)
        action = _ACTIONS[fault.do]
        if fault.options.get("background"):
            threading.Thread(target=action, args=(fault.options, log, self._truth), daemon=True).start()
        else:
            action(fault.options, log, self._truth)

    # Port and requests

    def listen(self, host: str, port: int) -> tuple[str, int, bool]:
        """Where to bind instead: host, port, and whether with SO_REUSEPORT."""
        for fault in self._all:
            if fault.do == "listen" and conditions.holds(fault.only):
                self._truth.note("fault", name=fault.name, who="main", do=fault.do)
                host = fault.options.get("host", host)
                port = int(fault.options.get("port", port + int(fault.options.get("port_offset", 0))))
                return host, port, bool(fault.options.get("reuse_port", False))
        return host, port, False

    def answer(self, request: Request, usual: Callable[[], Response]) -> Response:
        """The response to a request: the usual one, or what the fault of its path makes of it."""
        for fault in self._all:
            if fault.on and ("*" in fault.on or request.path in fault.on) and conditions.holds(fault.only):
                own = request.headers.get("user-agent", "").startswith(_OWN_AGENT)
                if own and not fault.options.get("own"):
                    continue
                met = self._count(fault) - int(fault.options.get("skip", 0))
                if met < 0 or met % int(fault.options.get("every", 1)):
                    continue
                now = time.monotonic()
                first = self._first.setdefault(fault.number, now)
                if now - first > float(fault.options.get("for_s", now)):
                    continue
                if now == first:
                    self._truth.note("fault", name=fault.name, who="main", do=fault.do, path=request.path)
                return _ANSWERS[fault.do](fault.options, usual)
        return usual()


# Text


def render(line: str, *, stamp: str, pid: int, rank: str = "") -> str:
    """One line of the catalogue with its placeholders filled."""
    site = os.path.join(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    for name, value in (("{stamp}", stamp), ("{pid}", str(pid)), ("{site}", site), ("{rank}", rank)):
        line = line.replace(name, value)
    return line


def _write_lines(options: dict[str, Any], log: Log) -> None:
    """`lines` to stderr, or to `stream`, one write each, `gap_s` apart; a line that ends in `\\r` gets no line feed."""
    fd = 1 if options.get("stream") == "stdout" else 2
    encoding = options.get("encoding", "utf-8")
    for line in options.get("lines", ()):
        text = render(line, stamp=log.stamp(), pid=os.getpid(), rank=log.prefix.strip())
        text += "x" * int(options.get("pad", 0))
        data = text.encode(encoding) + (b"" if line.endswith("\r") else b"\n")
        while data:
            data = data[os.write(fd, data) :]
        time.sleep(float(options.get("gap_s", 0.0)))


def traceback_lines(options: Mapping[str, Any]) -> list[str]:
    """The traceback of `frames` (`FILE:FUNCTION`, below site-packages, outermost first) and `error`; `before` came first."""
    lines = []
    if "before" in options:
        lines += [*traceback_lines(options["before"]), *_CHAINED.split("\n")]
    lines.append("Traceback (most recent call last):")
    for frame in options.get("frames", ()):
        file, _, function = frame.rpartition(":")
        number = zlib.crc32(frame.encode()) % 2000 + 20
        lines += [f'  File "{{site}}/{file}", line {number}, in {function}', "    result = self.run(batch)"]
    return lines + str(options["error"]).split("\n")


# What a process does; each gets its options, its log and the truth


def _print(_options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    """Only its lines."""


def _hang(options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    for _ in _until(options):
        time.sleep(min(3600.0, float(options.get("for_s", 3600.0))))


def _stop(_options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _spin(options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    for _ in _until(options):
        _burn(float(options.get("share", 0.2)))


def _burn(share: float) -> None:
    """A tenth of a second, of which this share on the CPU."""
    begin = time.monotonic()
    while time.monotonic() < begin + 0.1 * share:
        pass
    time.sleep(0.1 * (1 - share))


def _grow(options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    """Memory (`what` rss) or reads and writes of a file (io), without a word."""
    share = int(float(options.get("bytes_per_s", 4e6)) / 10)
    kept = []
    with tempfile.TemporaryFile(dir=options.get("folder", "/var/tmp")) as file:
        for _ in _until(options):
            time.sleep(0.1)
            data = os.urandom(4096) * (1 + share // 4096)
            if options.get("what", "rss") == "rss":
                kept.append(data)
                continue
            file.seek(0)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            # From the disk again, not from memory: only that counts as I/O.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            file.read()


def _until(options: dict[str, Any]) -> Iterator[None]:
    """For `for_s` seconds, or for ever."""
    begin = time.monotonic()
    while time.monotonic() - begin < float(options.get("for_s", float("inf"))):
        yield


def _flood(options: dict[str, Any], log: Log, _truth: Truth) -> None:
    """`rate` lines a second."""
    line = options.get("line", "{stamp} INFO flood of lines, number {number}")
    begin, sent = time.monotonic(), 0
    for _ in _until(options):
        time.sleep(0.02)
        wanted = int((time.monotonic() - begin) * float(options.get("rate", 1000)))
        stamp = log.stamp()
        text = [render(line, stamp=stamp, pid=os.getpid()).replace("{number}", str(n)) for n in range(sent, wanted)]
        if text:
            log.raw("\n".join(text) + "\n")
        sent = wanted


def _compile(options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    """A compiler at work as a child; `program` is its name."""
    program = options.get("program", "ptxas")
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        processes.die_with_parent(parent)
        processes.set_title(f"{program}\0-arch=sm_120a\0-o\0/tmp/kernel.cubin")
        with contextlib.suppress(BaseException):
            _spin(options, _log, _truth)
        os._exit(0)
    os.waitpid(pid, 0)


def _exit(options: dict[str, Any], _log: Log, truth: Truth) -> NoReturn:
    code = int(options.get("code", 1))
    if truth.is_main():
        truth.note("crashed" if code else "exited", code=code)
    os._exit(code)


def _kill(options: dict[str, Any], _log: Log, truth: Truth) -> None:
    number = int(signal.Signals[options["signal"]] if isinstance(options["signal"], str) else options["signal"])
    if truth.is_main():
        truth.note("crashed", signal=number)
    # Not by Python's handler: also a thread, which may set none, can end the process so.
    processes.default_action(number)
    os.kill(os.getpid(), number)
    time.sleep(5)


def _raise(options: dict[str, Any], log: Log, _truth: Truth) -> NoReturn:
    lines = [render(line, stamp=log.stamp(), pid=os.getpid()) for line in traceback_lines(options)]
    raise Raised("\n".join(lines), float(options.get("quit_after_s", 0.0)))


def _quit(_options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    """SIGQUIT to the parent, as SGLang's watchdog does (utils/watchdog.py:166)."""
    os.kill(os.getppid(), signal.SIGQUIT)
    time.sleep(3600)


def _survive(options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    """A child that stays when this process ends, with the open port if there is one."""
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.set_title(options.get("title", "sglang::scheduler_TP0"))
        time.sleep(float(options.get("for_s", 3600)))
        os._exit(0)


def _kernel(options: dict[str, Any], _log: Log, _truth: Truth) -> None:
    """Lines of the kernel's log, where /dev/kmsg is a pipe that journald reads (see README.md). Raises OSError elsewhere."""
    if os.path.exists(_KERNEL_LOG) and not os.path.isfile(_KERNEL_LOG):
        with open(_KERNEL_LOG, "wb", buffering=0) as pipe:
            for line in options["kernel_lines"]:
                at = time.monotonic_ns() // 1000
                text = render(line, stamp="", pid=os.getpid())
                pipe.write(f"2,{at},{at},-;{text}\n".encode())
                # One record a read is what journald expects of the kernel.
                time.sleep(0.02)
        return
    raise OSError(errno.ENODEV, "a fault wants to write to the kernel's log, which is no pipe here", _KERNEL_LOG)


_ACTIONS: dict[str, Callable[[dict[str, Any], Log, Truth], None]] = {
    "print": _print,
    "hang": _hang,
    "stop": _stop,
    "spin": _spin,
    "grow": _grow,
    "flood": _flood,
    "compile": _compile,
    "exit": _exit,
    "kill": _kill,
    "raise": _raise,
    "quit": _quit,
    "survive": _survive,
    "kernel": _kernel,
}


# What becomes of a request; each gets its options and what gives the usual response


def _answer(options: dict[str, Any], usual: Callable[[], Response]) -> Response:
    """Another response; with `merge` the usual JSON with that laid over it (RFC 7396: null takes a key away)."""
    from sglang.stand_in.http import Response

    if "merge" in options:
        response = usual()
        if response.chunks is None and response.body[:1] in (b"{", b"["):
            response.body = json.dumps(merge(json.loads(response.body), options["merge"])).encode()
        return response
    return Response(
        status=int(options.get("status", 200)),
        body=str(options.get("body", "")).encode() * int(options.get("times", 1)),
        content_type=options.get("content_type"),
        headers=dict(options.get("headers", {})),
    )


def merge(value: Any, patch: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), change)
    return merged


def _delay(options: dict[str, Any], usual: Callable[[], Response]) -> Response:
    """Hangs without `seconds`."""
    time.sleep(float(options.get("seconds", 10**6)))
    return usual()


def _miscount(options: dict[str, Any], usual: Callable[[], Response]) -> Response:
    """The usual answer, whose counts of generated tokens are wrong by `by`."""
    response = usual()

    def wrong(text: bytes) -> bytes:
        return re.sub(
            rb'("completion_tokens":\s*)(\d+)',
            lambda match: match[1] + str(int(match[2]) + int(options.get("by", 1))).encode(),
            text,
        )

    if response.chunks is None:
        response.body = wrong(response.body)
    else:
        response.chunks = map(wrong, response.chunks)
    return response


def _wire(send: Callable[[dict[str, Any], socket.socket, bytes, bytes], None]) -> Any:
    """An answer whose status line and body are right, and which goes out in a way of its own."""

    def answer(options: dict[str, Any], usual: Callable[[], Response]) -> Response:
        response = usual()
        response.deliver = lambda connection, head, body: send(options, connection, head, body)
        return response

    return answer


def _reset(_options: dict[str, Any], connection: socket.socket, _head: bytes, _body: bytes) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _cut(options: dict[str, Any], connection: socket.socket, head: bytes, body: bytes) -> None:
    """A part of the body; its length is told right (`length` whole) or as that of the part (`length` part)."""
    part = body[: int(len(body) * float(options.get("share", 0.5)))]
    told = len(part) if options.get("length") == "part" else len(body)
    connection.sendall(_head(head, f"content-length: {told}") + part)


def _length(options: dict[str, Any], connection: socket.socket, head: bytes, body: bytes) -> None:
    """A content-length that is wrong by `by` bytes, or the words of `value`."""
    told = options.get("value", len(body) + int(options.get("by", 100)))
    connection.sendall(_head(head, f"content-length: {told}") + body)
    time.sleep(float(options.get("open_s", 0.0)))


def _slow(options: dict[str, Any], connection: socket.socket, head: bytes, body: bytes) -> None:
    connection.sendall(_head(head, f"content-length: {len(body)}"))
    for number in range(len(body)):
        connection.sendall(body[number : number + 1])
        time.sleep(1 / float(options.get("bytes_per_s", 1)))


def _endless(options: dict[str, Any], connection: socket.socket, head: bytes, _body: bytes) -> None:
    """Chunks for ever, as fast as they are taken unless `gap_s` is given."""
    connection.sendall(_head(head, "transfer-encoding: chunked"))
    chunk = b" " * int(options.get("chunk", 1024))
    while True:
        connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        time.sleep(float(options.get("gap_s", 0.0)))


def _garbage(options: dict[str, Any], connection: socket.socket, _head: bytes, _body: bytes) -> None:
    """No HTTP at all."""
    connection.sendall(str(options.get("bytes", "SSH-2.0-OpenSSH_9.2p1 Debian\r\n")).encode("latin-1"))


def _head(head: bytes, last: str) -> bytes:
    """A head with another line about the body's length."""
    kept = [line for line in head.split(b"\r\n") if line and not line.startswith((b"content-length", b"transfer-"))]
    return b"\r\n".join([*kept, last.encode(), b"", b""])


_ANSWERS: dict[str, Callable[[dict[str, Any], Callable[[], Response]], Response]] = {
    "answer": _answer,
    "delay": _delay,
    "miscount": _miscount,
    "reset": _wire(_reset),
    "cut": _wire(_cut),
    "length": _wire(_length),
    "slow": _wire(_slow),
    "endless": _wire(_endless),
    "garbage": _wire(_garbage),
}


# The catalogue as text


def printed(entry: Mapping[str, Any], *, stamp: str, pid: int) -> list[str]:
    """What the faults of an entry print, as one process would: for who reads logs and has no server."""
    lines: list[str] = []
    for fault in entry.get("faults", ()):
        lines += fault.get("lines", ())
        if fault.get("do") == "raise":
            trace = traceback_lines(fault)
            if not fault.get("who", "main").startswith(("main", "detokenizer")):
                trace[0] = f"{{stamp}} Scheduler hit an exception: {trace[0]}"
            lines += trace
    return [render(line, stamp=stamp, pid=pid) for line in lines]


if __name__ == "__main__":
    print(json.dumps([{"name": name, **entry} for name, entry in catalogue().items()], indent=1))
