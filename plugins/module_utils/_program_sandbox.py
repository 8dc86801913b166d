# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a program that nobody has read, in a transient systemd unit of its own. PRIVATE to the collection.

The unit sees an empty root with ``/usr`` and the interpreter in it, has no network, no capability, a user that exists for
as long as it runs, and bounds on time, memory, processes, disk and output (systemd.exec(5), systemd.resource-control(5)).
The program can lie about its own verdict, since it runs in the process that reports; it can do no more than that.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _scores
from ansible_collections.specdec.serving.plugins.module_utils._runner import clean_environment
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

#: Begins the name of every such unit.
UNIT_PREFIX = "specdec-evaluate-"
#: Where the program may write. It is gone with the unit.
WORK = "/work"
#: What is read of a unit's output, in bytes.
MAX_OUTPUT = 64 * 1024
# systemd needs this long at most to make and unmake a unit on a busy machine.
_GRACE_S = 60.0
_MEGABYTE = 1024 * 1024

#: The unit's root: a folder with nothing in it but the places at which systemd shows something.
ROOT = "/run/specdec/sglang/evaluate-root"
#: Shut within that root: what systemd itself puts there, and by name where keys lie, should ever more of the host be shown.
_SHUT = ("/dev/shm", "/dev/mqueue", "/sys", "/tmp", "/var/tmp", "/root", "/home", "/etc/specdec", "/var/lib/specdec")
#: What an interpreter needs beside itself. /bin and /lib are links into /usr, or folders.
_SYSTEM_PATHS = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")

#: Runs in the unit. No dollar sign: systemd would take what follows for a variable.
#: The first line of its input is a secret word, the rest is the program.
LAUNCHER = r"""
import errno, json, os, sys, types
out = os.dup(1)
word, _, text = sys.stdin.buffer.read().partition(b"\n")
null = os.open("/dev/null", os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(null, number)
os.close(null)
main = os.getpid()
full = word + b' {"verdict": "memory", "detail": "MemoryError"}\n'
def tell(verdict, detail=""):
    if os.getpid() == main:
        os.write(out, word + b" " + json.dumps({"verdict": verdict, "detail": detail[:400]}).encode() + b"\n")
    os._exit(0)
os.write(out, word + b" {}\n")
denied = {errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.ENETUNREACH,
          errno.ENETDOWN, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EAFNOSUPPORT, errno.ENOSYS}
def refused(error):
    seen = []
    while isinstance(error, BaseException) and error not in seen:
        seen.append(error)
        if isinstance(error, OSError):
            name = error.filename if isinstance(error.filename, str) else ""
            outside = name.startswith("/") and not name.startswith(os.getcwd() + "/")
            if error.errno in denied or (error.errno == errno.ENOENT and outside) or type(error).__name__ == "gaierror":
                return True
            if error.errno == errno.EAGAIN and not name:
                return True
        if isinstance(error, RuntimeError) and "start new thread" in str(error):
            return True
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
    return False
sys.path[:] = [part for part in sys.path if part]
sys.argv[:] = ["answer.py"]
try:
    code = compile(text, "answer.py", "exec", 0, True)
except MemoryError:
    tell("syntax_error", "nested too deep")
except BaseException as error:
    tell("syntax_error", type(error).__name__ + ": " + str(error))
module = types.ModuleType("answer")
sys.modules["answer"] = module
try:
    exec(code, module.__dict__)
except MemoryError:
    if os.getpid() == main:
        os.write(out, full)
    os._exit(0)
except BaseException as error:
    name = type(error).__name__
    try:
        said = str(error)
    except BaseException:
        said = ""
    if refused(error):
        tell("forbidden", name + ": " + said)
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "answer.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    shown = text.split(b"\n")[line - 1].strip().decode("utf-8", "replace") if line else ""
    tell("wrong_answer", name + (": " + said if said else "") + (" at: " + shown if shown else ""))
tell("passed")
"""

#: A program that passes when nothing of the host is within reach.
PROBE = """
import os, socket

def check(claim, text):
    if not claim:
        raise AssertionError(text)

check(os.getuid() != 0, "it runs as root")
status = {}
try:
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
except OSError:
    pass
check(int(status.get("CapEff", "0"), 16) == 0, "it has capabilities")
check(int(status.get("NoNewPrivs", "1")) == 1, "it may gain privileges")
try:
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
except OSError:
    others = []
check(not others, "it sees other processes")
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        continue
    raise AssertionError("it may open sockets")
for path in ("/etc/shadow", "/etc/passwd", "/etc/specdec", "/run/credentials", "/run/dbus", "/run/systemd/system",
             "/root", "/home", "/srv", "/var/log", "/var/lib", "/sys/fs/cgroup"):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).close()
    except OSError:
        continue
    raise AssertionError("it can read " + path)
for path in ("/", "/usr", "/etc", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/run", "/proc"):
    try:
        open(os.path.join(path, "specdec-probe"), "w").close()
    except OSError:
        continue
    raise AssertionError("it can write to " + path)
with open("probe", "w") as file:
    file.write("here it may")
"""


class SandboxError(Exception):
    """Programs cannot be run in a sandbox here; nothing was run outside of one."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one program may use: seconds of wall clock, MiB of memory and of disk, processes and threads."""

    seconds: float = 10.0
    memory_mb: int = 1024
    disk_mb: int = 16
    tasks: int = 32


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What became of one program; ``seconds`` with all that systemd had to do for it."""

    verdict: str
    detail: str = ""
    seconds: float = 0.0


def properties(limits: Limits, python_paths: t.Iterable[str] = ()) -> list[str]:
    """Properties of the unit, as ``systemd-run -p`` takes them. ``python_paths``: folders of an interpreter outside of /usr."""
    shown = [f"-{path}" for path in _SYSTEM_PATHS] + sorted(python_paths)
    return [
        # Who it is.
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        "KeyringMode=private",
        "UMask=0077",
        # What it sees.
        f"RootDirectory={ROOT}",
        "MountAPIVFS=no",
        "BindReadOnlyPaths=" + " ".join(shown),
        f"TemporaryFileSystem={WORK}:rw,mode=1777,size={limits.disk_mb}M,nr_inodes=1024,nosuid,nodev,noexec",
        f"WorkingDirectory={WORK}",
        # '+': below RootDirectory.
        "InaccessiblePaths=" + " ".join(f"-+{path}" for path in _SHUT),
        # systemd needs it itself while it makes the rest, so that it cannot be shut.
        "ReadOnlyPaths=+/run",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "PrivateDevices=yes",
        "PrivateIPC=yes",
        "ProtectProc=invisible",
        "ProcSubset=pid",
        "ProtectKernelTunables=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelLogs=yes",
        "ProtectControlGroups=yes",
        "ProtectClock=yes",
        "ProtectHostname=yes",
        # What it may do. Sockets by number of the call: D-Bus and others listen on paths, which no network namespace shuts.
        "PrivateNetwork=yes",
        "RestrictNamespaces=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "LockPersonality=yes",
        "SystemCallArchitectures=native",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged @keyring socket connect bind listen accept accept4 io_uring_setup ptrace process_vm_readv process_vm_writev",
        "SystemCallErrorNumber=EPERM",
        # How much. The limits of processes hold where there is no controller for the group.
        f"RuntimeMaxSec={limits.seconds:g}",
        "TimeoutStopSec=10",
        "KillMode=control-group",
        "KillSignal=SIGKILL",
        f"TasksMax={limits.tasks}",
        f"LimitNPROC={limits.tasks}",
        f"MemoryMax={limits.memory_mb}M",
        "MemorySwapMax=0",
        f"LimitAS={limits.memory_mb}M",
        f"LimitFSIZE={limits.disk_mb}M",
        "LimitNOFILE=256",
        "LimitCORE=0",
        "LimitMSGQUEUE=0",
        "LimitMEMLOCK=0",
        "OOMPolicy=kill",
        # The server is what this host is for.
        "OOMScoreAdjust=1000",
        "CPUWeight=10",
        "IOWeight=10",
        "Nice=10",
        "CPUQuota=100%",
    ]


def command(unit: str, python: str, limits: Limits, python_paths: t.Iterable[str] = ()) -> list[str]:
    """The argument vector that runs the launcher in a unit of this name."""
    words = ["systemd-run", "--wait", "--pipe", "--collect", "--service-type=exec", f"--unit={unit}"]
    words += ["--description=Program of a coding evaluation"]
    words += [word for value in properties(limits, python_paths) for word in ("-p", value)]
    # The order of sets is the same in each run.
    environment = {"HOME": WORK, "TMPDIR": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    words += [f"--setenv={name}={value}" for name, value in environment.items()]
    return [*words, "--", python, "-s", "-B", "-c", LAUNCHER]


_FINISHED = re.compile(r"^Finished with result: (\S+)", re.MULTILINE)
_ENDED = re.compile(r"^Main processes terminated with: code=(\w+)(?:, |/)status=(\S+)", re.MULTILINE)


def _printable(text: str) -> str:
    """A program's words for terminals and files: without half characters and what steers a terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def judge(word: str, stdout: bytes, stderr: str, seconds: float) -> Judgement:
    """The verdict from what the launcher wrote and what systemd-run said. Raises SandboxError when the program did not run."""
    reports = []
    for line in stdout.split(b"\n"):
        if line.startswith(word.encode("ascii") + b" "):
            try:
                reports.append(json.loads(line[len(word) + 1 :]))
            except (ValueError, RecursionError):
                continue
    finished = _FINISHED.search(stderr)
    result = finished.group(1) if finished else ""
    ended = _ENDED.search(stderr)
    how = f"{ended.group(1)} {ended.group(2)}" if ended else result
    if not reports or not result:
        raise SandboxError(
            f"systemd could not run a program in a sandbox ({how or 'no result'}): {stderr.strip()[-600:] or 'it said nothing'}"
        )
    told = reports[-1]
    if result == "timeout":
        return Judgement(_scores.TIMEOUT, "", seconds)
    if result == "oom-kill":
        return Judgement(_scores.MEMORY, "killed for its memory", seconds)
    if isinstance(told, dict) and told.get("verdict") in _scores.VERDICTS:
        return Judgement(told["verdict"], _printable(str(told.get("detail", ""))[:500]), seconds)
    if ended and ended.group(2) in ("SYS", str(int(signal.SIGSYS))):
        return Judgement(_scores.FORBIDDEN, "a system call that the sandbox does not have", seconds)
    if result in ("signal", "core-dump"):
        return Judgement(_scores.WRONG_ANSWER, f"it ended by signal ({how}) before its tests did", seconds)
    return Judgement(_scores.WRONG_ANSWER, f"it ended ({how}) before its tests did", seconds)


def _write(descriptor: int, view: memoryview) -> memoryview:
    """Write what a pipe takes now; gives the rest, nothing once nobody reads."""
    try:
        return view[os.write(descriptor, view[:32768]) :]
    except BlockingIOError:
        return view
    except BrokenPipeError:
        return view[:0]


class Sandbox:
    """Runs programs, one unit each. Safe to use from several threads."""

    def __init__(
        self,
        python: str,
        limits: Limits,
        python_paths: t.Iterable[str] = (),
        *,
        stopped: t.Callable[[], bool] = lambda: False,
    ) -> None:
        """``stopped`` is asked many times a second; once it is true, running programs are ended and SandboxError is raised."""
        self._python = python
        self._limits = limits
        self._paths = tuple(python_paths)
        self._stopped = stopped

    def run(self, program: str) -> Judgement:
        """Run one program. Raises SandboxError when it could not be run."""
        os.makedirs(ROOT, exist_ok=True)
        os.chmod(ROOT, 0o755)
        word = secrets.token_hex(16)
        unit = f"{UNIT_PREFIX}{secrets.token_hex(6)}.service"
        started = time.monotonic()
        data = word.encode("ascii") + b"\n" + program.encode("utf-8", "replace")
        try:
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # there is no AnsibleModule here
                command(unit, self._python, self._limits, self._paths),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean_environment(),
            )
        except OSError as error:
            raise SandboxError(f"systemd-run cannot be executed: {error}") from error
        outputs = [b"", b""]
        try:
            complete = self._exchange(process, data, outputs, started + self._limits.seconds + _GRACE_S)
        except BaseException:
            self._end(process, unit)
            raise
        if not complete:
            self._end(process, unit)
            return Judgement(
                _scores.FORBIDDEN, f"it wrote more than {MAX_OUTPUT} bytes to the report", time.monotonic() - started
            )
        process.wait()
        return judge(word, outputs[0], outputs[1].decode("utf-8", "replace"), time.monotonic() - started)

    def _exchange(self, process: subprocess.Popen[bytes], data: bytes, outputs: list[bytes], deadline: float) -> bool:
        """Write the input, read both outputs to their ends; False when there was too much of it."""
        stdin, stdout, stderr = (
            t.cast("t.IO[bytes]", pipe) for pipe in (process.stdin, process.stdout, process.stderr)
        )
        view = memoryview(data)
        try:
            os.set_blocking(stdin.fileno(), False)
            with selectors.DefaultSelector() as selector:
                selector.register(stdin, selectors.EVENT_WRITE)
                selector.register(stdout, selectors.EVENT_READ, 0)
                selector.register(stderr, selectors.EVENT_READ, 1)
                while selector.get_map():
                    if self._stopped():
                        raise SandboxError("stopped")
                    if time.monotonic() > deadline:
                        raise SandboxError("systemd-run gave no answer: is systemd overloaded?")
                    for key, _events in selector.select(0.1):
                        if key.fileobj is stdin:
                            view = _write(stdin.fileno(), view)
                            if not view:
                                selector.unregister(stdin)
                                stdin.close()
                            continue
                        part = os.read(key.fd, 32768)
                        outputs[key.data] += part
                        if len(outputs[key.data]) > MAX_OUTPUT:
                            return False
                        if not part:
                            selector.unregister(key.fileobj)
        finally:
            for pipe in (stdin, stdout, stderr):
                pipe.close()
        return True

    @staticmethod
    def _end(process: subprocess.Popen[bytes], unit: str) -> None:
        subprocess.run(  # pylint: disable=ansible-bad-function  # there is no AnsibleModule here
            ["systemctl", "stop", "--", unit],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=clean_environment(),
        )
        process.kill()
        process.wait()

    def prove(self) -> None:
        """Run a program that looks for ways out. Raises SandboxError when it finds one, or when no program can be run."""
        found = self.run(PROBE)
        if found.verdict != _scores.PASSED:
            raise SandboxError(
                f"the sandbox does not hold, so no foreign program was run: {found.detail or found.verdict}. "
                "systemd 252 or newer with seccomp and mount namespaces is needed"
            )


def find_python(runner: Runner, python: str) -> tuple[str, ...]:
    """Folders outside of /usr that an interpreter needs. Raises SandboxError when it is none."""
    code = "import json,os,sys; print(json.dumps([sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))]))"
    status, stdout, stderr = runner([python, "-s", "-B", "-c", code])
    try:
        paths = [str(path) for path in json.loads(stdout)] if status == 0 else []
    except (ValueError, TypeError):
        paths = []
    if not paths:
        raise SandboxError(f"python {python!r} is no Python interpreter: {stderr.strip()[-300:] or f'status {status}'}")
    outside = {
        path
        for path in [*paths, os.path.dirname(python)]
        if not path.startswith(("/usr/", "/bin", "/lib")) and path != "/usr"
    }
    if "/" in outside:
        raise SandboxError(f"python {python!r} has the prefix '/', which would show the whole host to the programs")
    return tuple(sorted(outside))


def missing_controllers(text: str) -> tuple[str, ...]:
    """Of ``/sys/fs/cgroup/cgroup.controllers``: properties that have no effect on this host."""
    there = set(text.split())
    needed = {"memory": "MemoryMax", "pids": "TasksMax", "cpu": "CPUQuota"}
    return tuple(name for controller, name in needed.items() if controller not in there)


__all__ = (
    "LAUNCHER",
    "MAX_OUTPUT",
    "PROBE",
    "ROOT",
    "UNIT_PREFIX",
    "WORK",
    "Judgement",
    "Limits",
    "Sandbox",
    "SandboxError",
    "command",
    "find_python",
    "judge",
    "missing_controllers",
    "properties",
)
