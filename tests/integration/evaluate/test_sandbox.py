# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs that try to get out of the sandbox: each is contained, named, and leaves the host as it was."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import PROBE, ROOT, UNIT_PREFIX
from ansible_collections.specdec.serving.tests.support.lab.client import Host

CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"
KEY = "/etc/specdec/sglang/credentials/x.yaml"

FORK_BOMB = """
import os, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
    except OSError:
        break
assert made < 40, f"{made} processes"
os.fork()
"""
QUIET_FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
READ_ENVIRON = """
import os
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        raise AssertionError(f"it sees process {name}")
open("/proc/1/environ").read()
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.1)
    os._exit(0)
os.wait()
"""
FILL_WORK = """
with open("big", "wb") as file:
    while True:
        file.write(bytes(1024 * 1024))
"""
FILL_WITH_MANY = """
number = 0
while True:
    with open(f"{number}", "wb") as file:
        file.write(bytes(1024 * 1024))
    number += 1
"""
WRITE_ELSEWHERE = """
import os
for folder in ("/", "/usr", "/bin", "/etc", "/tmp", "/var", "/var/tmp", "/dev", "/dev/shm", "/run", "/proc", "/sys", "/run/systemd/incoming"):
    try:
        with open(os.path.join(folder, "escape"), "w") as file:
            file.write("x")
    except OSError:
        continue
    raise AssertionError(f"it wrote to {folder}")
open("/etc/escape", "w")
"""
NETWORK = """
import socket
socket.create_connection(({address!r}, {port}), 3).close()
"""
OUTPUT_TO_REPORT = """
import os
for number in range(3, 20):
    try:
        while True:
            os.write(number, b"x" * 65536)
    except OSError:
        continue
raise AssertionError("nothing to write to")
"""

# Program, and the verdicts that are right.
ESCAPES: dict[str, tuple[str, set[str]]] = {
    "fork bomb": (FORK_BOMB, {"forbidden"}),
    "fork bomb that goes on": (QUIET_FORK_BOMB, {"timeout"}),
    "threads without end": (
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()",
        {"forbidden", "memory"},
    ),
    "key file": (f"open({KEY!r}).read()", {"forbidden"}),
    "shadow": ("open('/etc/shadow').read()", {"forbidden"}),
    "credentials of units": ("import os\nos.listdir('/run/credentials')", {"forbidden"}),
    "environ of others": (READ_ENVIRON, {"forbidden"}),
    "disk, one file": (FILL_WORK, {"forbidden"}),
    "disk, many files": (FILL_WITH_MANY, {"forbidden"}),
    "kill the parent": ("import os, signal\nos.kill(os.getppid() or 1, signal.SIGKILL)", {"forbidden"}),
    "kill everybody": ("import os, signal\nos.kill(-1, signal.SIGKILL)", {"passed", "forbidden"}),
    "write elsewhere": (WRITE_ELSEWHERE, {"forbidden"}),
    "output without end": ("while True:\n    print('x' * 10000)", {"timeout"}),
    "output to the report": (OUTPUT_TO_REPORT, {"forbidden"}),
    "network, loopback": (NETWORK.format(address="127.0.0.1", port=22), {"forbidden"}),
    "unix sockets": (
        "import socket\nsocket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')",
        {"forbidden"},
    ),
    "name resolution": ("import socket\nsocket.gethostbyname('localhost')", {"forbidden"}),
    "become root": ("import os\nos.setuid(0)", {"forbidden"}),
    "setuid program": (
        "import subprocess\nsubprocess.run(['/usr/bin/mount', '-t', 'tmpfs', 'x', '/work'], check=True)",
        {"wrong_answer"},
    ),
    "mount": (
        "import ctypes\nif ctypes.CDLL(None, use_errno=True).mount(b'x', b'/work', b'tmpfs', 0, None):\n    raise PermissionError(ctypes.get_errno(), 'mount')",
        {"forbidden"},
    ),
    "new namespace": (
        "import ctypes\nif ctypes.CDLL(None, use_errno=True).unshare(0x10000000):\n    raise PermissionError(ctypes.get_errno(), 'unshare')",
        {"forbidden"},
    ),
    "execute what it wrote": (
        "import os\nopen('x', 'w').write('#!/bin/sh\\n')\nos.chmod('x', 0o755)\nos.execv('./x', ['x'])",
        {"forbidden"},
    ),
    "memory": ("x = bytearray(8 * 1024 ** 3)", {"memory"}),
    "memory bit by bit": ("x = []\nwhile True:\n    x.append(bytearray(1024 ** 2))", {"memory"}),
    "endless loop": ("while True:\n    pass", {"timeout"}),
    "sleep": ("import time\ntime.sleep(600)", {"timeout"}),
    "ends early": ("import os\nos._exit(0)", {"wrong_answer"}),
    "status of a broken sandbox": ("import os\nos._exit(226)", {"wrong_answer"}),
    "stops itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
    "ignores signals": (
        "import signal, time\nfor s in (1, 2, 15):\n    signal.signal(s, signal.SIG_IGN)\ntime.sleep(600)",
        {"timeout"},
    ),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", {"wrong_answer"}),
    "nested too deep": ("(" * 100000, {"syntax_error"}),
}


@pytest.fixture
def unharmed(host: Host) -> t.Iterator[None]:
    """After the test the host has no unit, process, file or user of a program, and is as healthy as before."""
    host.exec(["mkdir", "-p", "-m", "0700", KEY.rpartition("/")[0]])
    host.write_file(KEY, "api-key: sk-planted-key-9\n")
    host.exec(["chmod", "600", KEY])

    def state() -> dict[str, t.Any]:
        # The disk below is shared with others: only what is the host's own.
        memory = host.exec(["df", "--output=used", "/tmp", "/dev/shm", "/run"]).stdout.split()
        disk = host.exec(["du", "-sxk", "/var", "/etc", "/root", "/home"], check=False).stdout.split()
        return {
            "system": host.exec(["systemctl", "is-system-running"], check=False).stdout.strip(),
            "failed": host.exec(["systemctl", "list-units", "--failed", "--no-legend", "--plain"]).stdout,
            "ssh": host.ssh("echo well").stdout,
            "used": [int(word) for word in [*memory, *disk] if word.isdigit()],
        }

    before = state()
    yield
    after = state()
    assert after["system"] == before["system"]
    assert after["failed"] == before["failed"]
    assert all(now - was < 4096 for was, now in zip(before["used"], after["used"], strict=True)), (before, after)
    left = host.exec(["systemctl", "list-units", "--all", "--no-legend", "--plain", f"{UNIT_PREFIX}*"]).stdout
    assert left == ""
    users = "ps -e -o uid=,pid=,args= | awk '$1 >= 61184 && $1 <= 65519'"
    assert host.exec(["sh", "-c", users]).stdout == ""
    escaped = f"find / -xdev -name 'escape*' -not -path '/proc/*' -not -path '*/site-packages/*' 2>/dev/null; find {ROOT} -type f -size +100k"
    assert [
        line for line in host.exec(["sh", "-c", escaped], check=False).stdout.split() if "ld.so.cache" not in line
    ] == []


def test_the_probe_finds_no_way_out(programs: t.Any, unharmed: None) -> None:
    assert programs.run(PROBE)["verdict"] == "passed"


def test_escapes_are_contained_and_named(programs: t.Any, unharmed: None) -> None:
    judgements, _wall = programs.judgements(
        programs.start(jobs=4, limits={"seconds": 4}, **{name: text for name, (text, _) in ESCAPES.items()})
    )
    wrong = {
        name: judgements[name] for name, (_, verdicts) in ESCAPES.items() if judgements[name]["verdict"] not in verdicts
    }
    assert not wrong
    slow = {name: found["seconds"] for name, found in judgements.items() if found["seconds"] > 20}
    assert not slow


def test_another_host_is_out_of_reach(programs: t.Any, lab_hosts: dict[str, Host], host: Host, unharmed: None) -> None:
    address = lab_hosts["evaluate-neighbour"].address
    reached = host.exec(["timeout", "5", "bash", "-c", f"</dev/tcp/{address}/22"], check=False)
    assert reached.returncode == 0, "the host itself must reach its neighbour, or the test proves nothing"
    found = programs.run(NETWORK.format(address=address, port=22))
    assert found["verdict"] == "forbidden"
    assert "Operation not permitted" in found["detail"]


def test_a_daemon_does_not_outlive_its_program(programs: t.Any, unharmed: None) -> None:
    assert programs.run(DAEMON)["verdict"] == "passed"


def test_what_honest_programs_need_is_there(programs: t.Any, unharmed: None) -> None:
    text = """
import asyncio, concurrent.futures, decimal, hashlib, re, sqlite3, subprocess, tempfile, threading

assert asyncio.run(asyncio.sleep(0, 7)) == 7
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert sum(pool.map(lambda n: n * n, range(10))) == 285
with tempfile.TemporaryFile() as file:
    file.write(b"x" * 100000)
assert subprocess.run(["/usr/bin/echo", "x"], check=True, capture_output=True).stdout.strip() == b"x"
x = [0] * 10**7
assert sorted({"b", "a"}) == ["a", "b"]
assert sqlite3.connect(":memory:").execute("select 1").fetchone() == (1,)
"""
    found = programs.run(text)
    assert found["verdict"] == "passed", found


def test_programs_side_by_side_do_not_meet(programs: t.Any, unharmed: None) -> None:
    write = "import time\nopen('mine', 'w').write('x')\ntime.sleep(1.5)"
    look = "import os, time\ntime.sleep(0.7)\nassert os.listdir('.') == [], os.listdir('.')\nassert len([n for n in os.listdir('/proc') if n.isdigit()]) == 1"
    judgements, _wall = programs.judgements(programs.start(jobs=2, one=write, two=look))
    assert [found["verdict"] for found in judgements.values()] == ["passed", "passed"], judgements


def test_the_cost_of_a_program(programs: t.Any, host: Host, record_property: t.Callable[[str, object], None]) -> None:
    text = {f"p{number}": "x = 1" for number in range(24)}
    alone, alone_s = programs.judgements(programs.start(jobs=1, **text))
    beside, beside_s = programs.judgements(programs.start(jobs=4, **text))
    assert {found["verdict"] for found in [*alone.values(), *beside.values()]} == {"passed"}
    record_property("seconds_each_one_by_one", round(alone_s / len(text), 3))
    record_property("seconds_each_four_side_by_side", round(beside_s / len(text), 3))
    print(f"cost of a program: {alone_s / len(text):.3f} s one by one, {beside_s / len(text):.3f} s four side by side")
    assert alone_s / len(text) < 3


def test_the_memory_of_the_group_is_bounded(programs: t.Any, host: Host, unharmed: None) -> None:
    if "memory" not in host.exec(["cat", CONTROLLERS]).stdout.split():
        pytest.skip("this host has no memory controller: MemoryMax has no effect here, LimitAS alone is tested above")
    # Each process stays below its own limit; together they pass that of the group.
    text = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(200 * 1024 ** 2)\n        time.sleep(60)\ntime.sleep(60)"
    assert programs.run(text, memory_mb=512)["verdict"] == "memory"
