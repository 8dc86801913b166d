# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Listeners, against real sockets on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._sockets import (
    Listener,
    connections,
    covers,
    describe_owner,
    find_owners,
    listeners,
    listeners_proc_net,
    listeners_sock_diag,
    socket_inodes,
)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine's loopback")


@contextmanager
def listening(
    address: str, port: int = 0, *, v6only: bool | None = None, reuse: bool = False
) -> Iterator[tuple[socket.socket, int]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as made:
        if v6only is not None:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        if reuse:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((address, port))
        made.listen()
        yield made, made.getsockname()[1]


def inode_of(made: socket.socket) -> int:
    return os.fstat(made.fileno()).st_ino


def connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("address", "v6only"),
    [
        pytest.param("127.0.0.1", None, id="loopback"),
        pytest.param("0.0.0.0", None, id="all IPv4"),
        pytest.param("127.0.0.2", None, id="another loopback address"),
        pytest.param("::1", None, id="IPv6 loopback", marks=needs_ipv6),
        pytest.param("::", True, id="all IPv6", marks=needs_ipv6),
        pytest.param("::", False, id="dual stack", marks=needs_ipv6),
        pytest.param("::ffff:127.0.0.1", False, id="IPv4-mapped", marks=needs_ipv6),
    ],
)
def test_both_sources_see_the_listener_and_tell_who_reaches_it(address: str, v6only: bool | None) -> None:
    with listening(address, v6only=v6only) as (made, port):
        (by_diag,) = listeners_sock_diag(port)
        (by_proc,) = listeners_proc_net(port)
        assert by_diag == Listener(
            int(made.family), address, port, inode_of(made), by_diag.cgroup_id, os.getuid(), "sock_diag", by_diag.v6only
        )
        assert by_proc == Listener(int(made.family), address, port, inode_of(made), None, os.getuid(), "proc_net")
        if v6only is not None:
            assert by_diag.v6only is v6only
        assert listeners(port) == ([by_diag], "")
        # What covers() says is what a connection does.
        for host in ["127.0.0.1", "127.0.0.2", *(["::1"] if has_ipv6() else [])]:
            assert covers(by_diag, host) is connects(host, port), host


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_connections_come_and_go(address: str) -> None:
    with listening(address) as (made, port):
        assert connections(port) == frozenset()
        with socket.create_connection((address, port)):
            taken, _peer = made.accept()
            (first,) = connections(port)
            with socket.create_connection((address, port)):
                assert connections(port) > {first}
            assert connections(port) == {first}
        # The client has gone; the server's end has not been closed yet.
        assert connections(port) == frozenset()
        taken.close()


def test_connections_and_other_ports_are_no_listeners() -> None:
    with listening("127.0.0.1") as (_made, port), socket.create_connection(("127.0.0.1", port)) as client:
        assert len(listeners_sock_diag(port)) == 1
        assert listeners_sock_diag(client.getsockname()[1]) == []
        assert listeners_proc_net(client.getsockname()[1]) == []
    assert listeners_sock_diag(port) == []


def test_a_bound_socket_that_does_not_listen_yet_is_none() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        assert listeners_sock_diag(made.getsockname()[1]) == []


def test_many_listeners_on_one_port() -> None:
    with ExitStack() as stack:
        made, port = stack.enter_context(listening("127.0.0.1", reuse=True))
        inodes = {inode_of(made)}
        for _number in range(299):  # several netlink datagrams
            more, _port = stack.enter_context(listening("127.0.0.1", port, reuse=True))
            inodes.add(inode_of(more))
        assert {found.inode for found in listeners_sock_diag(port)} == inodes
        assert {found.inode for found in listeners_proc_net(port)} == inodes


_SERVER = """
import socket, sys
made = socket.socket()
made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
made.bind(("127.0.0.1", int(sys.argv[1])))
made.listen()
print(made.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def server(port: int, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(port), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_owners_are_named_and_their_keys_are_not() -> None:
    with (
        server(0, "--api-key", "S3cret-Key") as (first, port),
        server(port, "--admin-api-key=S3cret-Key") as (second, _),
    ):
        found = listeners_sock_diag(port)
        owners = find_owners(found)
        assert {owner.pids for owner in owners} == {(first.pid,), (second.pid,)}
        for owner in owners:
            text = describe_owner(owner)
            assert text.startswith(f"port {port} is held by pid {owner.pids[0]} ({sys.executable} -c import socket")
            assert "S3cret" not in text
        held = socket_inodes(first.pid)
        assert held is not None
        assert len({one.inode for one in found} & held) == 1
