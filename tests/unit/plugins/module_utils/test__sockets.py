# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listeners, their owners and addresses, from netlink messages and trees that look like /proc."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils import _sockets
from ansible_collections.specdec.serving.plugins.module_utils._sockets import (
    Listener,
    Owner,
    covers,
    describe_owner,
    find_owners,
    listeners,
    listeners_proc_net,
    owned_by_cgroup,
    parse_connections,
    parse_diag,
    parse_proc_net,
    probe_host,
    socket_inodes,
    url_host,
)

V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)


def listener(
    address: str = "127.0.0.1",
    *,
    inode: int = 5555,
    cgroup_id: int | None = None,
    v6only: bool | None = None,
    port: int = 30000,
    uid: int = 0,
) -> Listener:
    family = V6 if ":" in address else V4
    return Listener(family, address, port, inode, cgroup_id, uid, "sock_diag", v6only)


# --- sock_diag: messages as linux/inet_diag.h lays them out


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def diag(
    address: str,
    port: int,
    *,
    inode: int = 71897,
    uid: int = 998,
    state: int = 10,
    interface: int = 0,
    attributes: bytes = b"",
) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    source = socket.inet_pton(family, address).ljust(16, b"\0")
    sockid = struct.pack("!HH", port, 0) + source + bytes(16) + struct.pack("=III", interface, 77, 0)
    return (
        struct.pack("=BBBB", family, state, 0, 0) + sockid + struct.pack("=IIIII", 0, 0, 128, uid, inode) + attributes
    )


def message(kind: int, body: bytes, *, sequence: int = 7, flags: int = 2, length: int | None = None) -> bytes:
    size = 16 + len(body) if length is None else length
    return struct.pack("=IHHII", size, kind, flags, sequence, 4242) + body + bytes(-len(body) % 4)


DONE = message(3, struct.pack("=i", 0))
CGROUP = attribute(21, struct.pack("=Q", 2**33 + 5))


def test_diag_ipv4_with_cgroup() -> None:
    found, done, interrupted = parse_diag(message(20, diag("127.0.0.1", 30001, attributes=CGROUP)) + DONE, sequence=7)
    assert found == [Listener(V4, "127.0.0.1", 30001, 71897, 2**33 + 5, 998, "sock_diag", None, 0)]
    assert done
    assert not interrupted


@pytest.mark.parametrize(("flag", "expected"), [(0, False), (1, True)])
def test_diag_ipv6_only(flag: int, expected: bool) -> None:
    attributes = attribute(5, b"\0") + attribute(11, bytes([flag])) + attribute(8, b"\0") + CGROUP
    found, _done, _interrupted = parse_diag(message(20, diag("::", 30001, attributes=attributes)) + DONE, sequence=7)
    assert [(one.address, one.v6only, one.cgroup_id) for one in found] == [("::", expected, 2**33 + 5)]


def test_diag_before_linux_5_8_tells_no_cgroup() -> None:
    found, _done, _interrupted = parse_diag(message(20, diag("0.0.0.0", 30001, interface=3)), sequence=7)
    assert [(one.cgroup_id, one.interface) for one in found] == [(None, 3)]


def test_connections_differ_by_what_the_kernel_calls_them() -> None:
    listening, other = diag("127.0.0.1", 30001), diag("127.0.0.1", 30001, state=1, interface=3)
    established = diag("127.0.0.1", 30001, state=1)
    found, done, _interrupted = parse_connections(
        message(20, listening) + message(20, established) + message(20, other) + DONE, sequence=7
    )
    assert found == [established[4:52], other[4:52]]
    assert done
    with pytest.raises(OSError, match="shorter"):
        parse_connections(message(20, established[:40]), sequence=7)


def test_diag_in_several_datagrams() -> None:
    first, done, _interrupted = parse_diag(
        message(20, diag("127.0.0.1", 1)) + message(20, diag("127.0.0.2", 1)), sequence=7
    )
    assert [one.address for one in first] == ["127.0.0.1", "127.0.0.2"]
    assert not done
    assert parse_diag(message(20, diag("::1", 1)) + DONE, sequence=7)[1] is True


def test_diag_passes_over_what_is_not_asked_for() -> None:
    data = (
        message(20, diag("127.0.0.9", 1), sequence=6)  # a late answer
        + message(1, b"")  # NLMSG_NOOP
        + message(2, struct.pack("=i", 0))  # an acknowledgement
        + message(20, diag("127.0.0.8", 1, state=1))  # an established connection
        + DONE
    )
    assert parse_diag(data, sequence=7) == ([], True, False)


def test_diag_interrupted_dump() -> None:
    assert parse_diag(message(20, diag("127.0.0.1", 1), flags=2 | 0x10) + DONE, sequence=7)[2] is True


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(message(2, struct.pack("=i", -errno.ENOENT) + bytes(16)), errno.ENOENT, id="no inet_diag"),
        pytest.param(message(2, struct.pack("=i", -errno.EPERM)), errno.EPERM, id="not allowed"),
        pytest.param(message(2, b""), errno.EBADMSG, id="error without a number"),
        pytest.param(message(3, struct.pack("=i", -errno.EINVAL)), errno.EINVAL, id="dump failed on the way"),
        pytest.param(message(4, b""), errno.ENOBUFS, id="overrun"),
        pytest.param(DONE[:10], errno.EBADMSG, id="half a header"),
        pytest.param(message(20, b"", length=400), errno.EBADMSG, id="longer than the datagram"),
        pytest.param(message(20, b"", length=0), errno.EBADMSG, id="no length"),
        pytest.param(message(20, diag("127.0.0.1", 1)[:40]), errno.EBADMSG, id="half a message"),
        pytest.param(message(20, diag("::", 1, attributes=b"\x02\0\x15\0")), errno.EBADMSG, id="broken attribute"),
        pytest.param(
            message(20, diag("::", 1, attributes=b"\xff\0\x15\0abcd")), errno.EBADMSG, id="attribute too long"
        ),
    ],
)
def test_diag_errors(data: bytes, code: int) -> None:
    with pytest.raises(OSError, match="sock_diag") as caught:
        parse_diag(data, sequence=7)
    assert caught.value.errno == code


@given(st.binary(max_size=300))
def test_diag_of_anything_gives_a_list_or_an_os_error(data: bytes) -> None:
    try:
        found, _done, _interrupted = parse_diag(data, sequence=7)
    except OSError:
        return
    assert isinstance(found, list)


# --- /proc/net

_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000080 00:00000000 00000000   998        0 71897 1 0000000000000000 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 5556 1 0000000000000000 100 0 0 10 0
   2: 0100007F:7530 0100007F:B2C4 01 00000000:00000000 00:00000000 00000000     0        0 5557 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:B2C4 0100007F:7530 01 00000000:00000000 00:00000000 00000000     0        0 5558 1 0000000000000000 20 4 30 10 -1
"""
_TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 0:0 00:00000000 0     0        0 5555 1 0 100 0 0
   1: 0000000000000000FFFF00000100007F:7530 00000000000000000000000000000000:0000 0A 0:0 00:00000000 0     0        0 5559 1 0 100 0 0
   2: B80D0120000000000000000005000000:7530 00000000000000000000000000000000:0000 0A 0:0 00:00000000 0     0        0 5560 1 0 100 0 0
   3: 00000000000000000000000001000000:7530 00000000000000000000000000000000:0000 0A 0:0 00:00000000 0     0        0 5561 1 0 100 0 0
"""

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.skipif(
    struct.pack("=H", 1) != struct.pack("<H", 1), reason="the recorded tables are of a little-endian machine"
)
def test_proc_net_rows() -> None:
    assert parse_proc_net(_TCP, 30000, family=socket.AF_INET) == [
        Listener(V4, "127.0.0.1", 30000, 71897, None, 998, "proc_net")
    ]
    assert [(one.address, one.inode) for one in parse_proc_net(_TCP6, 30000, family=socket.AF_INET6)] == [
        ("::", 5555),
        ("::ffff:127.0.0.1", 5559),
        ("2001:db8::5", 5560),
        ("::1", 5561),
    ]
    assert parse_proc_net(_TCP, 30001, family=socket.AF_INET) == []


@pytest.mark.parametrize(
    "row",
    [
        "0: 0100007F:7530 00000000:0000 0A",
        "0: 01:7530 00000000:0000 0A 0:0 00:0 0 0 0 1 1",
        "0: 0100007Z:7530 00000000:0000 0A 0:0 00:0 0 0 0 1 1",
        "0: 0100007F:7530 00000000:0000 0A 0:0 00:0 0 x 0 1 1",
        "",
    ],
)
def test_proc_net_passes_over_broken_rows(row: str) -> None:
    assert parse_proc_net(row + "\n", 30000, family=socket.AF_INET) == []


@given(st.text(max_size=300))
def test_proc_net_never_raises(text: str) -> None:
    assert isinstance(parse_proc_net(text + " :7530 " + text, 30000, family=socket.AF_INET), list)


def add_net(proc: Path, pid: str, *, tcp: str | None = _TCP, tcp6: str | None = _TCP6) -> None:
    folder = proc / pid / "net"
    folder.mkdir(parents=True)
    for name, text in (("tcp", tcp), ("tcp6", tcp6)):
        if text is not None:
            (folder / name).write_text(text)


def test_proc_net_of_the_right_namespace(tmp_path: Path) -> None:
    add_net(tmp_path, "self", tcp="", tcp6="")
    add_net(tmp_path, "40")
    assert listeners_proc_net(8080, proc=str(tmp_path)) == []
    assert [one.inode for one in listeners_proc_net(8080, proc=str(tmp_path), pid=40)] == [5556]


def test_proc_net_without_ipv6_and_without_anything(tmp_path: Path) -> None:
    add_net(tmp_path, "self", tcp6=None)
    assert [one.inode for one in listeners_proc_net(30000, proc=str(tmp_path))] == [71897]
    with pytest.raises(FileNotFoundError):
        listeners_proc_net(30000, proc=str(tmp_path), pid=9)


def test_listeners_prefer_sock_diag_and_keep_the_reason_otherwise(tmp_path: Path) -> None:
    add_net(tmp_path, "self")

    def works(port: int) -> list[Listener]:
        return [listener(port=port)]

    def refused(_port: int) -> list[Listener]:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    assert listeners(30000, proc=str(tmp_path), sock_diag=works) == ([listener()], "")
    found, reason = listeners(8080, proc=str(tmp_path), sock_diag=refused)
    assert [one.source for one in found] == ["proc_net"]
    assert "Operation not permitted" in reason
    with pytest.raises(OSError, match="No such file"):
        listeners(8080, proc=str(tmp_path / "no"), sock_diag=refused)


# --- owners: a machine made of folders


class Machine:
    """/proc and /sys/fs/cgroup with processes, their groups and their sockets."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        self.proc.mkdir()
        self.cgroup.mkdir()
        (self.cgroup / "cgroup.controllers").write_text("")

    def group(self, path: str) -> int:
        folder = self.cgroup / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        procs = folder / "cgroup.procs"
        if not procs.exists():
            procs.write_text("")
        return folder.stat().st_ino

    def process(
        self, pid: int, group: str, *, inodes: tuple[int, ...] = (), ppid: int = 1, cmdline: str = "python"
    ) -> None:
        self.group(group)
        procs = self.cgroup / group.strip("/") / "cgroup.procs"
        procs.write_text(procs.read_text() + f"{pid}\n")
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python) S {ppid} " + "0 " * 17 + "100 0 0\n")
        (folder / "cmdline").write_bytes(cmdline.replace(" ", "\0").encode() + b"\0")
        (folder / "cgroup").write_text(f"0::{group}\n")
        os.symlink("/dev/null", folder / "fd" / "0")
        os.symlink("pipe:[99]", folder / "fd" / "1")
        for index, inode in enumerate(inodes):
            os.symlink(f"socket:[{inode}]", folder / "fd" / str(index + 5))

    def owned(
        self, found: list[Listener], *, host: str | None = None, group: str = "/system.slice/own.service"
    ) -> bool | None:
        return owned_by_cgroup(found, group, host=host, proc=str(self.proc), cgroup_root=str(self.cgroup))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.process(40, "/system.slice/own.service", inodes=(5555,))
    made.process(41, "/system.slice/own.service/worker", inodes=(5556,), ppid=40)
    made.process(100, "/system.slice/old.service", inodes=(7777,))
    return made


OWN, BELOW, OLD = "/system.slice/own.service", "/system.slice/own.service/worker", "/system.slice/old.service"


def test_socket_inodes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert socket_inodes(40, proc=str(machine.proc)) == {5555}
    assert socket_inodes(4711, proc=str(machine.proc)) == set()

    def refuse(_path: str) -> list[str]:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        assert socket_inodes(40, proc=str(machine.proc)) is None
    with monkeypatch.context() as patched:
        patched.setattr(os, "readlink", refuse)
        assert socket_inodes(40, proc=str(machine.proc)) is None


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param([OWN], True, id="the unit's"),
        pytest.param([BELOW], True, id="of a group below it"),
        pytest.param([OLD], False, id="another's"),
        pytest.param([OWN, BELOW], True, id="two of its own"),
        pytest.param([OWN, OLD], False, id="SO_REUSEPORT neighbour"),
        pytest.param([OLD, OWN], False, id="neighbour first"),
        pytest.param([], None, id="nothing listens"),
    ],
)
def test_owned_by_cgroup_id(machine: Machine, groups: list[str], expected: bool | None) -> None:
    # The inodes belong to nobody: the answer comes from the ids alone.
    found = [listener(inode=1, cgroup_id=machine.group(group)) for group in groups]
    assert machine.owned(found) is expected


@pytest.mark.parametrize(
    ("inodes", "expected"),
    [
        pytest.param([5555], True, id="the unit's"),
        pytest.param([5556], True, id="of a group below it"),
        pytest.param([7777], False, id="another's"),
        pytest.param([5555, 7777], False, id="SO_REUSEPORT neighbour"),
        pytest.param([1], False, id="nobody's that we see"),
    ],
)
@pytest.mark.parametrize("root_id", [False, True], ids=["no id", "id of the root group"])
def test_owned_by_inode(machine: Machine, inodes: list[int], expected: bool | None, root_id: bool) -> None:
    group = machine.cgroup.stat().st_ino if root_id else None
    assert machine.owned([listener(inode=inode, cgroup_id=group) for inode in inodes]) is expected


def test_owned_is_unknown_where_a_process_is_hidden(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket_inodes

    def hidden(pid: int, *, proc: str) -> set[int] | None:
        return None if pid == 41 else real(pid, proc=proc)

    monkeypatch.setattr(_sockets, "socket_inodes", hidden)
    assert machine.owned([listener(inode=5555)]) is True
    assert machine.owned([listener(inode=5556)]) is None
    assert machine.owned([listener(inode=7777)]) is None
    assert machine.owned([listener(inode=7777, cgroup_id=machine.group(OLD))]) is False


@pytest.mark.parametrize("group", ["", "/", "/system.slice/gone.service"])
def test_owned_is_unknown_without_the_units_group(machine: Machine, group: str) -> None:
    assert machine.owned([listener(cgroup_id=machine.group(OWN))], group=group) is None


def test_owned_counts_only_who_could_answer(machine: Machine) -> None:
    own = listener("0.0.0.0", inode=1, cgroup_id=machine.group(OWN))
    foreign = listener("127.0.0.2", inode=2, cgroup_id=machine.group(OLD))
    assert machine.owned([own, foreign]) is False
    assert machine.owned([own, foreign], host="127.0.0.1") is True
    # Whoever listens on all addresses is meant to answer on that one too.
    assert machine.owned([own, foreign], host="0.0.0.0") is False
    assert machine.owned([own, foreign], host="127.0.0.2") is False
    assert machine.owned([foreign], host="127.0.0.1") is None


def test_find_owners_name_pid_unit_and_command(machine: Machine) -> None:
    machine.process(
        4242,
        "/user.slice/user-0.slice/session-3.scope",
        inodes=(8888,),
        cmdline="python -m sglang.launch_server --api-key sk-test-123 --port 30000",
    )
    machine.process(4243, "/user.slice/user-0.slice/session-3.scope", inodes=(8888,), ppid=4242)
    (owner,) = find_owners([listener(inode=8888)], proc=str(machine.proc), cgroup_root=str(machine.cgroup))
    assert owner.pids == (4242, 4243)
    assert owner.unit == "session-3.scope"
    assert describe_owner(owner) == (
        "port 30000 is held by pid 4242 (python -m sglang.launch_server --api-key ******** --port 30000) "
        "of session-3.scope, listening on 127.0.0.1"
    )


def test_find_owners_name_the_unit_where_the_process_is_hidden(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(_pid: int, *, proc: str) -> set[int] | None:
        return None

    monkeypatch.setattr(_sockets, "socket_inodes", hidden)
    found = [listener(inode=7777, cgroup_id=machine.group(OLD), uid=998), listener(inode=1)]
    known, unknown = find_owners(found, proc=str(machine.proc), cgroup_root=str(machine.cgroup))
    assert known == Owner(found[0], (), "old.service", "", "")
    assert describe_owner(known) == (
        "port 30000 is held by a process of user id 998 that is hidden from us of old.service, listening on 127.0.0.1"
    )
    assert unknown.unit is None


LISTED = (
    "/run/systemd/journal/stdout systemd-journald.socket systemd-journald.service\n"
    "kobject-uevent 1            systemd-udevd-kernel.socket systemd-udevd.service\n"
    "127.0.0.1:3000              other.socket other.service\n"
    "[::]:30000                  six.socket six.service\n"
    "127.0.0.1:30000             web.socket web.service\n"
)


@pytest.mark.parametrize(
    ("address", "unit"),
    [("127.0.0.1", "web"), ("::", "six"), ("0.0.0.0", "six")],
    ids=["exactly", "ipv6", "by its port"],
)
def test_find_owners_name_the_socket_unit_that_systemd_holds_it_for(machine: Machine, address: str, unit: str) -> None:
    asked: list[list[str]] = []

    def systemctl(argv: Sequence[str]) -> tuple[int, str, str]:
        asked.append(list(argv))
        return 0, LISTED, ""

    machine.process(1, "/init.scope", inodes=(8888,), cmdline="/sbin/init", ppid=0)
    machine.process(60, "/system.slice/web.service", inodes=(8888,), cmdline="web", ppid=1)
    roots = {"proc": str(machine.proc), "cgroup_root": str(machine.cgroup)}
    (owner,) = find_owners([listener(address, inode=8888)], runner=systemctl, **roots)
    assert describe_owner(owner) == (
        f"port 30000 is held by systemd for {unit}.socket, which starts {unit}.service, listening on {address}"
    )
    # Nobody is asked where it is not systemd.
    machine.process(61, "/system.slice/x.service", inodes=(9,), cmdline="x", ppid=1)
    assert find_owners([listener(inode=9)], runner=systemctl, **roots)[0].socket_unit == ""
    assert len(asked) == 1
    # Nothing is listed: as ever.
    (owner,) = find_owners([listener(inode=8888)], runner=lambda _argv: (1, "", "no bus"), **roots)
    assert "pid 1 (/sbin/init) of init.scope" in describe_owner(owner)


def test_command_heads_are_cut_after_masking(machine: Machine) -> None:
    machine.process(50, OLD, inodes=(9,), cmdline="python " + "x" * 103 + " --api-key " + "k" * 40)
    (owner,) = find_owners([listener(inode=9)], proc=str(machine.proc), cgroup_root=str(machine.cgroup))
    assert len(owner.cmdline_head) == 120
    assert "kk" not in owner.cmdline_head


# --- hosts and addresses (a wildcard host was used as a URL: sglang issues 18201, 21236)


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("::", "::1", "[::1]"),
        ("[::]", "::1", "[::1]"),
        ("0:0:0:0:0:0:0:0", "::1", "[::1]"),
        ("::1", "::1", "[::1]"),
        ("[::1]", "::1", "[::1]"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("2001:db8::5", "2001:db8::5", "[2001:db8::5]"),
        ("fe80::1%eth0", "fe80::1%eth0", "[fe80::1%25eth0]"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1", "[::ffff:10.0.0.1]"),
        ("gpu1.example.org", "gpu1.example.org", "gpu1.example.org"),
        ("localhost", "localhost", "localhost"),
        (" 127.0.0.1 ", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_probe_and_url_host(host: str, address: str, url: str) -> None:
    assert probe_host(host) == address
    assert url_host(host) == url


@pytest.mark.parametrize(
    ("address", "v6only", "host", "expected"),
    [
        ("0.0.0.0", None, "127.0.0.1", True),
        ("0.0.0.0", None, "", True),
        ("0.0.0.0", None, "10.1.2.3", True),
        ("0.0.0.0", None, "::1", False),
        ("0.0.0.0", None, "::", False),
        ("127.0.0.1", None, "127.0.0.1", True),
        ("127.0.0.1", None, "0.0.0.0", True),
        ("127.0.0.1", None, "127.0.0.2", False),
        ("10.1.2.3", None, "0.0.0.0", True),
        ("10.1.2.3", None, "", True),
        ("10.1.2.3", None, "::", False),
        ("2001:db8::5", None, "::", True),
        ("2001:db8::5", None, "0.0.0.0", False),
        ("::ffff:10.1.2.3", None, "0.0.0.0", True),
        ("::", True, "0.0.0.0", False),
        ("127.0.0.2", None, "127.0.0.1", False),
        ("127.0.0.1", None, "localhost", True),
        ("10.1.2.3", None, "127.0.0.1", False),
        ("127.0.0.1", None, "::ffff:127.0.0.1", True),
        ("::", False, "127.0.0.1", True),
        ("::", None, "127.0.0.1", True),
        ("::", True, "127.0.0.1", False),
        ("::", True, "::1", True),
        ("::", False, "::", True),
        ("::", False, "2001:db8::5", True),
        ("::", False, "fe80::1%eth0", True),
        ("::1", None, "::1", True),
        ("::1", None, "::", True),
        ("::1", None, "localhost", True),
        ("::1", None, "127.0.0.1", False),
        ("2001:db8::5", None, "2001:db8::5", True),
        ("2001:db8::5", None, "2001:0db8:0:0::5", True),
        ("2001:db8::5", None, "::1", False),
        ("::ffff:127.0.0.1", False, "127.0.0.1", True),
        ("::ffff:127.0.0.1", False, "127.0.0.2", False),
        ("::ffff:0.0.0.0", False, "127.0.0.1", True),
        ("::ffff:0.0.0.0", False, "::1", False),
    ],
)
def test_covers(address: str, v6only: bool | None, host: str, expected: bool) -> None:
    assert covers(listener(address, v6only=v6only), host) is expected


def test_covers_refuses_names() -> None:
    with pytest.raises(ValueError, match=r"'gpu1\.example\.org' is not an address"):
        covers(listener(), "gpu1.example.org")
