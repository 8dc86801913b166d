# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What needs no systemd; escapes are tried on a lab host, in tests/integration/evaluate."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _program_sandbox as _sandbox
from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import Limits, SandboxError, judge

WORD = "0123456789abcdef"
FINISHED = "Running as unit: x.service\nFinished with result: {}\nMain processes terminated with: code={}/status={}\n"
WELL = FINISHED.format("success", "exited", "0")


def launched(program: str, folder: Path) -> dict[str, t.Any]:
    """What the launcher reports of a program of ours, without a sandbox around it."""
    done = subprocess.run(
        [sys.executable, "-s", "-B", "-c", _sandbox.LAUNCHER],
        input=f"{WORD}\n{program}".encode("utf-8", "surrogateescape"),
        capture_output=True,
        cwd=folder,
        timeout=60,
    )
    lines = done.stdout.decode().splitlines()
    assert lines[0] == f"{WORD} {{}}"
    assert done.stderr == b""
    return t.cast("dict[str, t.Any]", json.loads(lines[1].split(" ", 1)[1])) if len(lines) > 1 else {}


@pytest.mark.parametrize(
    ("program", "verdict", "detail"),
    [
        ("x = 1", "passed", ""),
        (
            "assert 1 == 2, 'one is not two'",
            "wrong_answer",
            "AssertionError: one is not two at: assert 1 == 2, 'one is not two'",
        ),
        ("def f():\n    return None\n\n\nf() + 1", "wrong_answer", "TypeError: "),
        ("import sys\nsys.exit(0)", "wrong_answer", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "wrong_answer", "KeyboardInterrupt"),
        ("def f(n):\n    return f(n + 1)\n\n\nf(0)", "wrong_answer", "RecursionError: "),
        ("class E(Exception):\n    def __str__(self):\n        raise ValueError\n\n\nraise E", "wrong_answer", "E"),
        ("def f(:\n    pass", "syntax_error", "SyntaxError: "),
        ("if True:\npass", "syntax_error", "IndentationError: "),
        ("x = 1\x00", "syntax_error", ""),
        ("raise MemoryError", "memory", "MemoryError"),
        ("raise PermissionError(1, 'Operation not permitted')", "forbidden", "PermissionError: "),
        ("open('/no/such/folder/key')", "forbidden", "FileNotFoundError: "),
        ("open('missing')", "wrong_answer", "FileNotFoundError: "),
        (
            "try:\n    raise OSError(101, 'Network is unreachable')\nexcept OSError as e:\n    raise ValueError from e",
            "forbidden",
            "ValueError",
        ),
        (
            "import urllib.error\nraise urllib.error.URLError(OSError(1, 'Operation not permitted'))",
            "forbidden",
            "URLError: ",
        ),
        ("import socket\nraise socket.gaierror(-3, 'Temporary failure in name resolution')", "forbidden", "gaierror: "),
        ("raise BlockingIOError(11, 'Resource temporarily unavailable')", "forbidden", "BlockingIOError: "),
        ('raise RuntimeError("can\'t start new thread")', "forbidden", "RuntimeError: "),
        ("raise RuntimeError('other')", "wrong_answer", "RuntimeError: other"),
        (
            "print('passed')\nimport sys\nsys.stderr.write('x' * 100000)\ninput_ = sys.stdin.read()\nassert input_ == ''",
            "passed",
            "",
        ),
        (
            "import dataclasses, typing\n\n\n@dataclasses.dataclass\nclass P:\n    x: 'int' = 1\n\n\nassert typing.get_type_hints(P)",
            "passed",
            "",
        ),
        ("if __name__ == '__main__':\n    raise ValueError", "passed", ""),
        ("import sys\nassert '' not in sys.path and sys.argv == ['answer.py']", "passed", ""),
    ],
)
def test_the_launcher_names_what_happened(program: str, verdict: str, detail: str, tmp_path: Path) -> None:
    told = launched(program, tmp_path)
    assert told["verdict"] == verdict, told
    assert told["detail"].startswith(detail)
    assert len(told["detail"]) <= 400


def test_a_child_reports_nothing(tmp_path: Path) -> None:
    told = launched(
        "import os\nif os.fork() == 0:\n    raise ValueError\nos.wait()\nassert False, 'the parent'", tmp_path
    )
    assert told["detail"].startswith("AssertionError: the parent")


@pytest.mark.parametrize("program", ["import os\nos._exit(0)", "import os\nos.kill(os.getpid(), 9)"])
def test_a_program_that_ends_itself_reports_nothing(program: str, tmp_path: Path) -> None:
    assert launched(program, tmp_path) == {}


def report(**told: str) -> bytes:
    return f"{WORD} {{}}\n{WORD} {json.dumps(told)}\n".encode()


STARTED = f"{WORD} {{}}\n".encode()


@pytest.mark.parametrize(
    ("stdout", "stderr", "verdict"),
    [
        (report(verdict="passed"), WELL, "passed"),
        (report(verdict="wrong_answer", detail="x"), WELL, "wrong_answer"),
        # Nothing of what the program prints itself counts.
        (STARTED + b'passed\n0000000000000000 {"verdict": "passed"}\n', WELL, "wrong_answer"),
        (report(verdict="excellent"), WELL, "wrong_answer"),
        (STARTED + f"{WORD} [1]\n{WORD} no json\n".encode(), WELL, "wrong_answer"),
        (STARTED, FINISHED.format("timeout", "killed", "KILL"), "timeout"),
        (report(verdict="passed"), FINISHED.format("timeout", "killed", "KILL"), "timeout"),
        (STARTED, FINISHED.format("oom-kill", "killed", "KILL"), "memory"),
        (STARTED, FINISHED.format("signal", "killed", "SYS"), "forbidden"),
        (STARTED, FINISHED.format("core-dump", "dumped", "SEGV"), "wrong_answer"),
        (STARTED, FINISHED.format("exit-code", "exited", "226"), "wrong_answer"),
    ],
)
def test_the_verdict_comes_from_the_report_and_from_systemd(stdout: bytes, stderr: str, verdict: str) -> None:
    assert judge(WORD, stdout, stderr, 0.5).verdict == verdict


@pytest.mark.parametrize(
    ("stdout", "stderr"),
    [
        (b"", FINISHED.format("exit-code", "exited", "226/NAMESPACE")),
        (b"", "Failed to connect to bus: No such file or directory\n"),
        (STARTED, ""),
        (b"passed", WELL),
    ],
)
def test_a_program_that_never_ran_is_no_verdict(stdout: bytes, stderr: str) -> None:
    with pytest.raises(SandboxError, match="could not run a program in a sandbox"):
        judge(WORD, stdout, stderr, 0.5)


def test_the_command_has_what_shuts_the_program_in() -> None:
    words = _sandbox.command(
        "specdec-evaluate-1.service", "/opt/py/bin/python3", Limits(seconds=3, memory_mb=256), ["/opt/py"]
    )
    assert words[: words.index("--")].count("-p") == len(
        _sandbox.properties(Limits(seconds=3, memory_mb=256), ["/opt/py"])
    )
    assert words[words.index("--") + 1] == "/opt/py/bin/python3"
    for needed in (
        "DynamicUser=yes",
        "PrivateNetwork=yes",
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "RuntimeMaxSec=3",
        "MemoryMax=256M",
        "LimitAS=256M",
        "KillSignal=SIGKILL",
    ):
        assert needed in words
    assert any("/etc/specdec" in word and word.startswith("InaccessiblePaths=") for word in words)
    assert any(word.startswith("BindReadOnlyPaths=") and word.endswith(" /opt/py") for word in words)


def test_systemd_would_take_no_part_of_the_launcher_for_a_variable_or_specifier() -> None:
    assert "$" not in _sandbox.LAUNCHER


def answering(status: int, stdout: str) -> t.Any:
    return lambda _argv: (status, stdout, "no")


def test_the_folders_of_an_interpreter_outside_of_usr_are_found() -> None:
    paths = json.dumps(["/opt/venv", "/usr", "/usr/bin"])
    assert _sandbox.find_python(answering(0, paths), "/opt/venv/bin/python") == ("/opt/venv", "/opt/venv/bin")
    assert _sandbox.find_python(answering(0, json.dumps(["/usr", "/usr", "/usr/bin"])), "/usr/bin/python3") == ()


@pytest.mark.parametrize(("status", "stdout"), [(127, ""), (0, "hello"), (0, "7")])
def test_what_is_no_interpreter_is_refused(status: int, stdout: str) -> None:
    with pytest.raises(SandboxError, match="'/usr/bin/perl' is no Python interpreter"):
        _sandbox.find_python(answering(status, stdout), "/usr/bin/perl")


def test_an_interpreter_that_needs_the_whole_host_is_refused() -> None:
    with pytest.raises(SandboxError, match="the whole host"):
        _sandbox.find_python(answering(0, json.dumps(["/", "/", "/bin"])), "/bin/python3")


@pytest.mark.parametrize(
    ("text", "missing"),
    [("cpuset cpu io memory pids\n", ()), ("cpu pids\n", ("MemoryMax",)), ("", ("MemoryMax", "TasksMax", "CPUQuota"))],
)
def test_controllers_that_a_host_lacks_are_told(text: str, missing: tuple[str, ...]) -> None:
    assert _sandbox.missing_controllers(text) == missing


def test_what_a_program_says_does_no_harm() -> None:
    said = json.dumps({"verdict": "wrong_answer", "detail": "half \ud800, \x1b[2J\nand é"})
    found = judge(WORD, f"{WORD} {{}}\n{WORD} {said}\n".encode(), WELL, 0.1)
    assert found.detail == "half \\ud800, \\x1b[2J\\nand é"
    nested = f"{WORD} {{}}\n{WORD} ".encode() + b"[" * 60_000
    assert judge(WORD, nested, WELL, 0.1).verdict == "wrong_answer"
