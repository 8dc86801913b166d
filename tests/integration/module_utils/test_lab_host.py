# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Owners of sockets and the journal on a real systemd host, as root and as an ordinary user."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, up

pytestmark = pytest.mark.lab

CHECKOUT = Path(__file__).parents[3]
ROOT = "/srv/specdec-utils"
UTILS = "ansible_collections/specdec/serving/plugins/module_utils"
PORT = 30071

# Listens with SO_REUSEPORT, so that a second one can join.
_SERVER = f"""
import os, socket, sys, time
made = socket.socket()
made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
made.bind(("127.0.0.1", {PORT}))
made.listen()
time.sleep(3600)
"""

# Moves its child into a group below the unit's (Delegate=yes) before it listens.
_BELOW = """
import os
own = "/sys/fs/cgroup" + open("/proc/self/cgroup").read().split("0::")[1].strip()
os.mkdir(own + "/below")
if os.fork():
    os.wait()
open(own + "/below/cgroup.procs", "w").write(str(os.getpid()))
"""

_TALKER = r"""
import sys, time
for number in range(300):
    print("burst", number)
time.sleep(2.5)
print("a" * 100000)
print("\x1b[1mThe server is fired up\x1b[0m")
print("Loading:  25%\rLoading:  50%")
sys.stdout.buffer.write(b"not UTF-8: \xff\n")
print("last", flush=True)
time.sleep(3600)
"""

_PRELUDE = f"""
import json, os, subprocess, sys
sys.path.insert(0, {ROOT!r})
from ansible_collections.specdec.serving.plugins.module_utils import _journal, _processes, _sockets
def show(unit, name):
    words = ["systemctl", "show", "--value", "--property=" + name, unit]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
def runner(words):
    done = subprocess.run(words, capture_output=True, text=True, env={{**os.environ, **_journal.ENVIRONMENT}})
    return done.returncode, done.stdout, done.stderr
"""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    try:
        made = up(["utils"])["utils"]
    except LabError as error:
        pytest.skip(f"no lab host: {error}")
    for path in sorted((CHECKOUT / "plugins" / "module_utils").glob("_*.py")):
        made.write_file(f"{ROOT}/{UTILS}/{path.name}", path.read_text(encoding="utf-8"))
    made.write_file(f"{ROOT}/server.py", _SERVER)
    made.write_file(f"{ROOT}/below.py", _BELOW + _SERVER)
    made.write_file(f"{ROOT}/talker.py", _TALKER)
    units = {
        "utils-own": f"ExecStart=/usr/bin/python3 {ROOT}/server.py",
        "utils-below": f"Delegate=yes\nExecStart=/usr/bin/python3 {ROOT}/below.py",
        "utils-other": f"ExecStart=/usr/bin/python3 {ROOT}/server.py --api-key S3cret-Key",
        "utils-talker": (
            f"LogRateLimitIntervalSec=2\nLogRateLimitBurst=10\nExecStart=/usr/bin/python3 -u {ROOT}/talker.py\nSyslogIdentifier=t"
        ),
        "utils-spaced": "LogNamespace=utils\nExecStart=/usr/bin/python3 -u -c 'print(\"spaced\"); import time; time.sleep(3600)'",
        "utils-fails": "ExecStart=/usr/bin/python3 -uc 'import time; print(\"dying\"); time.sleep(0.5); exit(3)'",
        "utils-dies": "ExecStart=/usr/bin/python3 -c 'print(\"born\\\\ndying\"); exit(3)'",
    }
    for name, lines in units.items():
        made.write_file(f"/etc/systemd/system/{name}.service", f"[Service]\nType=exec\n{lines}\n")
    made.exec(["systemctl", "daemon-reload"])
    yield made
    made.exec(["systemctl", "stop", *units], check=False)


@pytest.fixture(autouse=True)
def stopped(host: Host) -> None:
    host.exec(["systemctl", "stop", "utils-own", "utils-below", "utils-other"])


def ask(host: Host, script: str, *, user: str = "root") -> Any:
    """What a script prints as JSON, run on the host with the collection's utils."""
    return json.loads(host.exec(["python3", "-"], input=_PRELUDE + script, user=user, timeout=60).stdout)


def start(host: Host, *units: str) -> None:
    """Start servers and wait until all listen."""
    host.exec(["systemctl", "start", *units])
    deadline = time.monotonic() + 20
    while ask(host, f"print(len(_sockets.listeners({PORT})[0]))") < len(units):
        assert time.monotonic() < deadline, f"{units} do not listen"
        time.sleep(0.05)


def owned(host: Host, unit: str, *, by: str, user: str = "root") -> bool | None:
    found = f"_sockets.listeners_{by}({PORT})"
    script = f"print(json.dumps(_sockets.owned_by_cgroup({found}, show('{unit}', 'ControlGroup'))))"
    answer: bool | None = ask(host, script, user=user)
    return answer


@pytest.mark.parametrize("unit", ["utils-own", "utils-below"])
def test_a_units_own_listener(host: Host, unit: str) -> None:
    start(host, unit)
    assert owned(host, unit, by="sock_diag") is True
    assert owned(host, unit, by="sock_diag", user="deploy") is True, "the cgroup id can be read by anyone"
    assert owned(host, unit, by="proc_net") is True
    assert owned(host, unit, by="proc_net", user="deploy") is None, "another user's descriptors cannot"
    assert owned(host, "ssh", by="sock_diag") is False
    assert owned(host, "ssh", by="proc_net") is False


def test_the_kernels_cgroup_id_is_the_folders_inode(host: Host) -> None:
    start(host, "utils-own")
    listener, folder = ask(
        host,
        f"found, reason = _sockets.listeners({PORT})\n"
        "assert reason == '', reason\n"
        "print(json.dumps([found[0].cgroup_id, _processes.cgroup_id(show('utils-own', 'ControlGroup'))]))",
    )
    assert listener == folder


@pytest.mark.parametrize("by", ["sock_diag", "proc_net"])
def test_a_neighbour_on_the_same_port_spoils_it(host: Host, by: str) -> None:
    start(host, "utils-own", "utils-other")
    assert owned(host, "utils-own", by=by) is False
    assert owned(host, "utils-other", by=by) is False


@pytest.mark.parametrize("user", ["root", "deploy"])
def test_owners_are_named(host: Host, user: str) -> None:
    start(host, "utils-other")
    pid = host.exec(["systemctl", "show", "--value", "--property=MainPID", "utils-other"]).stdout.strip()
    (text,) = ask(
        host,
        f"owners = _sockets.find_owners(_sockets.listeners({PORT})[0])\n"
        "print(json.dumps([_sockets.describe_owner(owner) for owner in owners]))",
        user=user,
    )
    who = {
        "root": f"pid {pid} (/usr/bin/python3 {ROOT}/server.py --api-key ********)",
        "deploy": "a process of user id 0 that is hidden from us",
    }[user]
    assert text == f"port {PORT} is held by {who} of utils-other.service, listening on 127.0.0.1"


def test_processes_of_a_unit(host: Host) -> None:
    start(host, "utils-below")
    pids, main, units, invocation, expected = ask(
        host,
        "pids = _processes.cgroup_pids(show('utils-below', 'ControlGroup'))\n"
        "main = int(show('utils-below', 'MainPID'))\n"
        "units = [_processes.unit_of_pid(pid) for pid in pids]\n"
        "names = _processes.environ_of(main)\n"
        "print(json.dumps([pids, main, units, names['INVOCATION_ID'], show('utils-below', 'InvocationID')]))",
    )
    assert len(pids) == 2
    assert main in pids
    assert units == ["utils-below.service"] * 2
    assert invocation == expected


def read(host: Host, unit: str, *, user: str = "root", namespace: str = "None") -> dict[str, Any]:
    answer: dict[str, Any] = ask(
        host,
        f"read = _journal.read_once(runner, invocation_id=show('{unit}', 'InvocationID'), namespace={namespace})\n"
        "print(json.dumps({'error': read.error, 'malformed': read.malformed, 'readable': _journal.system_journal_readable(),\n"
        "  'entries': [[e.message, e.own, e.suppressed, e.n_dropped, e.exit_code, e.exit_status, e.unit_result]\n"
        "              for e in read.entries]}))",
        user=user,
    )
    return answer


def test_the_journal_in_all_its_shapes(host: Host) -> None:
    host.exec(["systemctl", "restart", "utils-talker"])
    deadline = time.monotonic() + 30
    while not (messages := [entry[0] for entry in read(host, "utils-talker")["entries"]]) or messages[-1] != "last":
        assert time.monotonic() < deadline, messages[-3:]
        time.sleep(0.2)
    got = read(host, "utils-talker")
    assert (got["error"], got["malformed"], got["readable"]) == ("", 0, True)
    own = [entry[0] for entry in got["entries"] if entry[1]]
    assert own[-5:] == ["a" * 100000, "The server is fired up", "Loading:  50%", "not UTF-8: \ufffd", "last"]
    # journald dropped lines and says so: the notice is found though it is not the unit's own.
    bursts = len([text for text in own if text.startswith("burst")])
    dropped = sum(entry[3] for entry in got["entries"] if entry[2])
    # (The notice may count lines of the invocation before, too: the limit is the unit's.)
    assert bursts < 300
    assert bursts + dropped >= 300
    assert [entry[0] for entry in got["entries"] if not entry[1]][:2] == [
        "Starting utils-talker.service...",
        "Started utils-talker.service.",
    ]
    refused = read(host, "utils-talker", user="deploy")
    assert refused["entries"] == []
    assert refused["readable"] is False


def test_another_invocations_lines_are_not_read(host: Host) -> None:
    # Slow enough that each start has written its line before the next one.
    for _start in range(2):
        host.exec(["systemctl", "restart", "utils-fails"])
        deadline = time.monotonic() + 20
        while ["dying", True] not in (got := [entry[:2] for entry in read(host, "utils-fails")["entries"]]):
            assert time.monotonic() < deadline, got
            time.sleep(0.05)
    assert got.count(["dying", True]) == 1
    assert host.journal("utils-fails").count("dying") >= 2


def test_the_end_of_a_service(host: Host) -> None:
    host.exec(["systemctl", "restart", "utils-fails"])
    deadline = time.monotonic() + 20
    while host.exec(["systemctl", "is-failed", "utils-fails"], check=False).stdout.strip() != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    host.exec(["journalctl", "--sync"])
    got = read(host, "utils-fails")["entries"]
    assert next(entry[:2] for entry in got if entry[1]) == ["dying", True]
    assert [entry[4:6] for entry in got if entry[4]] == [["exited", 3]]
    assert [entry[6] for entry in got if entry[6]] == ["exit-code"]


def test_the_last_words_of_a_process_that_journald_did_not_know(host: Host) -> None:
    # While journald stands still the process starts, writes and dies; then it cannot be looked up any more.
    host.exec(["systemctl", "kill", "--signal=STOP", "systemd-journald"])
    try:
        since_us = ask(host, "import time; print(time.monotonic_ns() // 1000)")
        host.exec(["systemctl", "restart", "--no-block", "utils-dies"])
        deadline = time.monotonic() + 20
        while host.exec(["systemctl", "is-failed", "utils-dies"], check=False).stdout.strip() != "failed":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        host.exec(["systemctl", "kill", "--signal=CONT", "systemd-journald"])
    host.exec(["journalctl", "--sync"])
    assert [entry[0] for entry in read(host, "utils-dies")["entries"] if entry[1]] == []
    assert ask(
        host,
        f"found = _journal.read_orphans(runner, unit='utils-dies.service', boot_id=_processes.boot_id(), since_us={since_us})\n"
        "print(json.dumps([[e.message, e.own] for e in found]))",
    ) == [["born", True], ["dying", True]]


def test_a_namespace_is_read_together_with_the_default_one(host: Host) -> None:
    host.exec(["systemctl", "restart", "utils-spaced"])
    deadline = time.monotonic() + 20
    while ["spaced", True] not in (
        got := [entry[:2] for entry in read(host, "utils-spaced", namespace="'utils'")["entries"]]
    ):
        assert time.monotonic() < deadline, got
        time.sleep(0.1)
    assert ["Started utils-spaced.service.", False] in got
    assert ["spaced", True] not in [entry[:2] for entry in read(host, "utils-spaced")["entries"]]


_FOLLOW = """
import select, time
invocation = show("utils-talker", "InvocationID")
whole = _journal.read_once(runner, invocation_id=invocation).entries
got, cursor = [], None
# In two runs of the follower, cut anywhere: nothing twice, nothing lost.
for enough in (7, len(whole)):
    with _journal.Follower(invocation_id=invocation, cursor=cursor, chunk=4096) as follower:
        deadline = time.monotonic() + 20
        while len(got) < enough and time.monotonic() < deadline:
            select.select([follower.fileno()], [], [], 0.5)
            got += follower.read()
        cursor = follower.cursor
        assert follower.error == "", follower.error
print(json.dumps([[e.message for e in got], [e.message for e in whole], cursor == whole[-1].cursor]))
"""


def test_following_goes_on_exactly_where_it_ended(host: Host) -> None:
    host.exec(["systemctl", "restart", "utils-talker"])
    time.sleep(4)
    got, whole, at_the_end = ask(host, _FOLLOW)
    assert len(whole) > 20
    assert got == whole
    assert at_the_end


_ORPHAN = """
import signal, time
parent = subprocess.Popen([sys.executable, "-c", '''
import sys, time
sys.path.insert(0, sys.argv[1])
from ansible_collections.specdec.serving.plugins.module_utils._journal import Follower
follower = Follower(invocation_id=sys.argv[2])
while not follower.read():
    time.sleep(0.01)
print(follower.pid, flush=True)
time.sleep(60)
''', sys.path[0], show("utils-talker", "InvocationID")], stdout=subprocess.PIPE, text=True)
process = _processes.read_process(int(parent.stdout.readline()))
name = process.comm
parent.send_signal(signal.SIGKILL)
parent.wait()
deadline = time.monotonic() + 10
while _processes.process_alive(process.pid, process.start_ticks) and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps([name, _processes.process_alive(process.pid, process.start_ticks)]))
"""


def test_journalctl_dies_with_its_killed_parent(host: Host) -> None:
    host.exec(["systemctl", "restart", "utils-talker"])
    assert ask(host, _ORPHAN) == ["journalctl", False]
