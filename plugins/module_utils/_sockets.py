# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a port: TCP listeners, their control group, their owner. PRIVATE to specdec.serving.

A server that answers is no proof: it may be the old process that still drains, or another one that
took the port. So a listening socket is traced to the unit's control group. Asked first is the kernel
by NETLINK_SOCK_DIAG (sock_diag(7), linux/inet_diag.h): inode and cgroup id of each listener, readable
by any user. Where that is not possible (a seccomp filter, no inet_diag): /proc/net/tcp{,6} for the
inodes, and /proc/PID/fd of the unit's processes, which needs root or the same user.
"""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    CGROUP_ROOT,
    PROC,
    all_pids,
    cgroup_ids,
    cgroup_pids,
    cgroup_v2_root,
    read_process,
    unit_of_cgroup,
    unit_of_pid,
)
from ansible_collections.specdec.serving.plugins.module_utils._redact import mask_command
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

__all__ = [
    "Listener",
    "Owner",
    "connections",
    "covers",
    "describe_owner",
    "find_owners",
    "listeners",
    "listeners_proc_net",
    "listeners_sock_diag",
    "listens_on_all",
    "owned_by_cgroup",
    "parse_connections",
    "parse_diag",
    "parse_proc_net",
    "probe_host",
    "socket_inodes",
    "url_host",
]

_Found = TypeVar("_Found")

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_NOOP, _NLMSG_ERROR, _NLMSG_DONE, _NLMSG_OVERRUN = 1, 2, 3, 4
_NLM_F_REQUEST, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 0x01, 0x300, 0x10
_INET_DIAG_SKV6ONLY, _INET_DIAG_CGROUP_ID = 11, 21
_TCP_ESTABLISHED = 1
_TCP_LISTEN = 10
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_SOCKID_LENGTH = 48  # inet_diag_sockid: be16 sport, be16 dport, be32 src[4], be32 dst[4], u32 if, u32 cookie[2]
_MESSAGE_LENGTH = 4 + _SOCKID_LENGTH + 20  # inet_diag_msg
_BUFFER = 64 * 1024
_TIMEOUT = 2.0  # s; the kernel answers in microseconds, this only guards against waiting for ever


@dataclass(frozen=True)
class Listener:
    """One listening TCP socket.

    `family` is socket.AF_INET or AF_INET6, `address` the text form (`0.0.0.0`, `::`, `::ffff:127.0.0.1`),
    `cgroup_id` the v2 control group it was made in (None: the kernel does not say), `source` either
    `sock_diag` or `proc_net`. `v6only` is None where unknown, `interface` the index of the device that
    it is bound to, 0 for all.
    """

    family: int
    address: str
    port: int
    inode: int
    cgroup_id: int | None
    uid: int
    source: str
    v6only: bool | None = None
    interface: int = 0


@dataclass(frozen=True)
class Owner:
    """Who holds a listener. `pids` is empty and `comm` is "" where the processes are hidden from us.

    `cmdline_head` is the start of the command line with secrets masked. `socket_unit` is the .socket unit that systemd itself holds it for,
    `activates` what that starts.
    """

    listener: Listener
    pids: tuple[int, ...]
    unit: str | None
    comm: str
    cmdline_head: str
    socket_unit: str = ""
    activates: str = ""


# --- NETLINK_SOCK_DIAG --------------------------------------------------------------------------------------------------


def _diag_request(family: int, port: int, sequence: int, state: int) -> bytes:
    sockid = struct.pack("!HH", port, 0) + bytes(32) + struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << state) + sockid
    flags = _NLM_F_REQUEST | _NLM_F_DUMP
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, flags, sequence, 0) + body


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4 or offset + length > len(data):
            raise OSError(errno.EBADMSG, f"sock_diag: broken attribute of length {length!r}")
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _check_message(body: bytes) -> None:
    if len(body) < _MESSAGE_LENGTH:
        raise OSError(
            errno.EBADMSG, f"sock_diag: message of {len(body)} bytes is shorter than inet_diag_msg ({_MESSAGE_LENGTH})"
        )


def _parse_connection(body: bytes) -> bytes | None:
    """The kernel's identity of an established connection: addresses, ports and its cookie, which is never used again."""
    _check_message(body)
    return body[4 : 4 + _SOCKID_LENGTH] if body[1] == _TCP_ESTABLISHED else None


def _parse_message(body: bytes) -> Listener | None:
    _check_message(body)
    family, state = body[0], body[1]
    if state != _TCP_LISTEN or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    (port,) = struct.unpack_from("!H", body, 4)
    raw = body[8 : 8 + (16 if family == socket.AF_INET6 else 4)]
    (interface,) = struct.unpack_from("=I", body, 4 + 36)
    uid, inode = struct.unpack_from("=II", body, 4 + _SOCKID_LENGTH + 12)
    group: int | None = None
    v6only: bool | None = None
    for kind, value in _attributes(body[_MESSAGE_LENGTH:]):
        if kind == _INET_DIAG_CGROUP_ID and len(value) == 8:
            (group,) = struct.unpack("=Q", value)
        elif kind == _INET_DIAG_SKV6ONLY and value:
            v6only = bool(value[0])
    return Listener(
        family=family,
        address=socket.inet_ntop(family, raw),
        port=port,
        inode=inode,
        cgroup_id=group,
        uid=uid,
        source="sock_diag",
        v6only=v6only,
        interface=interface,
    )


def _parse_dump(
    data: bytes, *, sequence: int, parse: Callable[[bytes], _Found | None]
) -> tuple[list[_Found], bool, bool]:
    """One datagram of a sock_diag dump: (what it holds, the dump is complete, it was interrupted and must be repeated).

    Raises OSError: the kernel's own error (NLMSG_ERROR), or EBADMSG for what is no valid message.
    """
    found: list[_Found] = []
    interrupted = False
    offset = 0
    while offset < len(data):
        if offset + _HEADER.size > len(data):
            raise OSError(errno.EBADMSG, f"sock_diag: {len(data) - offset} bytes left are no message header")
        length, kind, flags, answered, _pid = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            raise OSError(errno.EBADMSG, f"sock_diag: message claims {length} of {len(data) - offset} bytes")
        body = data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3
        if answered != sequence:  # late answer to an earlier question
            continue
        interrupted = interrupted or bool(flags & _NLM_F_DUMP_INTR)
        if kind == _NLMSG_DONE:
            # A dump that failed on the way tells so in its last message.
            if len(body) >= 4 and struct.unpack_from("=i", body)[0] < 0:
                code = -struct.unpack_from("=i", body)[0]
                raise OSError(code, f"sock_diag: {os.strerror(code)}")
            return found, True, interrupted
        if kind == _NLMSG_ERROR:
            code = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else errno.EBADMSG
            if code == 0:  # an acknowledgement
                continue
            raise OSError(code, f"sock_diag: {os.strerror(code)}")
        if kind == _NLMSG_OVERRUN:
            raise OSError(errno.ENOBUFS, "sock_diag: data lost")
        if kind == _NLMSG_NOOP:
            continue
        one = parse(body)
        if one is not None:
            found.append(one)
    return found, False, interrupted


def parse_diag(data: bytes, *, sequence: int) -> tuple[list[Listener], bool, bool]:
    """One datagram of a dump of listeners, as `_parse_dump`."""
    return _parse_dump(data, sequence=sequence, parse=_parse_message)


def parse_connections(data: bytes, *, sequence: int) -> tuple[list[bytes], bool, bool]:
    """One datagram of a dump of established connections, as `_parse_dump`."""
    return _parse_dump(data, sequence=sequence, parse=_parse_connection)


def _dump(
    netlink: socket.socket,
    request: bytes,
    parse: Callable[[bytes], tuple[list[_Found], bool, bool]],
) -> tuple[list[_Found], bool]:
    netlink.sendto(request, (0, 0))
    found: list[_Found] = []
    interrupted = False
    while True:
        data, _ancillary, flags, address = netlink.recvmsg(_BUFFER)
        if flags & socket.MSG_TRUNC:
            raise OSError(errno.EMSGSIZE, f"sock_diag: answer longer than {_BUFFER} bytes")
        if address and address[0] != 0:  # only the kernel (port id 0) is believed
            continue
        part, done, broken = parse(data)
        found += part
        interrupted = interrupted or broken
        if done:
            return found, interrupted


def _dump_both(port: int, state: int, parse: Callable[..., tuple[list[_Found], bool, bool]]) -> list[_Found]:
    """The sockets of a local port in one state, IPv4 and IPv6."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        raise OSError(errno.EAFNOSUPPORT, "sock_diag: this Python has no AF_NETLINK")
    with socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_TIMEOUT)
        found: list[_Found] = []
        sequence = 0
        for inet in (socket.AF_INET, socket.AF_INET6):
            for _attempt in range(5):
                sequence += 1
                request = _diag_request(inet, port, sequence, state)
                part, interrupted = _dump(netlink, request, partial(parse, sequence=sequence))
                if not interrupted:
                    break
            else:
                raise OSError(errno.EAGAIN, "sock_diag: the list changed during five reads in a row")
            found += part
        return found


def listeners_sock_diag(port: int) -> list[Listener]:
    """The listeners on a TCP port in our network namespace, IPv4 and IPv6, from the kernel by NETLINK_SOCK_DIAG.

    Raises OSError where that is not possible (no AF_NETLINK, no inet_diag, a seccomp filter).
    """
    # Kernels filter by port in the dump; older ones may not.
    return [listener for listener in _dump_both(port, _TCP_LISTEN, parse_diag) if listener.port == port]


def connections(port: int) -> frozenset[bytes]:
    """Identities of the established connections to a local TCP port, each good for comparing alone.

    Raises OSError as `listeners_sock_diag`. The kernel walks all its connections for it.
    """
    wanted = struct.pack("!H", port)
    return frozenset(one for one in _dump_both(port, _TCP_ESTABLISHED, parse_connections) if one[:2] == wanted)


# --- /proc/net ----------------------------------------------------------------------------------------------------------


def parse_proc_net(text: str, port: int, *, family: int) -> list[Listener]:
    """The listeners on `port` in the text of /proc/net/tcp (AF_INET) or tcp6 (AF_INET6)."""
    found: list[Listener] = []
    needle = f":{port:04X} "
    for line in text.splitlines():
        if needle not in line:
            continue
        fields = line.split()
        if len(fields) < 10 or fields[3] != "0A":
            continue
        address, _colon, digits = fields[1].partition(":")
        if len(address) != (32 if family == socket.AF_INET6 else 8):
            continue
        try:
            if int(digits, 16) != port:
                continue
            # Each group of eight digits is a 32-bit word of the address, printed in the machine's byte order.
            raw = b"".join(
                struct.pack("=I", int(address[index : index + 8], 16)) for index in range(0, len(address), 8)
            )
            uid, inode = int(fields[7]), int(fields[9])
        except ValueError:
            continue
        found.append(
            Listener(
                family=int(family),
                address=socket.inet_ntop(family, raw),
                port=port,
                inode=inode,
                cgroup_id=None,
                uid=uid,
                source="proc_net",
            )
        )
    return found


def listeners_proc_net(port: int, *, proc: str = PROC, pid: int | str = "self") -> list[Listener]:
    """The listeners on a TCP port by /proc/PID/net/tcp and tcp6, in the network namespace of `pid`.

    Raises OSError when neither can be read. A missing tcp6 is a machine without IPv6.
    """
    found: list[Listener] = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            with open(f"{proc}/{pid}/net/{name}", encoding="ascii", errors="replace") as file:
                text = file.read()
        except FileNotFoundError:
            if name == "tcp":
                raise
            continue
        found += parse_proc_net(text, port, family=family)
    return found


def listeners(
    port: int,
    *,
    proc: str = PROC,
    pid: int | str = "self",
    sock_diag: Callable[[int], list[Listener]] = listeners_sock_diag,
) -> tuple[list[Listener], str]:
    """The listeners on a TCP port, and why sock_diag could not be used ("" when it was).

    Raises OSError when /proc/net cannot be read either: then the owner is unknown.
    """
    try:
        return sock_diag(port), ""
    except OSError as error:
        reason = f"sock_diag is not available ({error.strerror or error}), /proc/net is used"
    return listeners_proc_net(port, proc=proc, pid=pid), reason


# --- owners -------------------------------------------------------------------------------------------------------------


def socket_inodes(pid: int, *, proc: str = PROC) -> set[int] | None:
    """The inodes of all sockets that a process has open; None: no permission; empty: none, or it is gone."""
    found: set[int] = set()
    folder = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except PermissionError:
        return None
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return found
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except PermissionError:
            return None
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:[") and target.endswith("]"):
            found.add(int(target[8:-1]))
    return found


def _head(words: Sequence[str], limit: int = 120) -> str:
    # Masked first, cut then: a cut through a secret could leave its start unrecognised.
    text = " ".join(mask_command(words).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _folder_of_id(group: int, *, cgroup_root: str) -> str | None:
    """The path of a control group, relative to the v2 root, by its id."""
    root = cgroup_v2_root(cgroup_root=cgroup_root)
    if root is None:
        return None
    for folder, _names, _files in os.walk(root):
        try:
            if os.stat(folder).st_ino == group:
                return folder[len(root) :]
        except FileNotFoundError:
            continue
    return None


def _holders(inodes: set[int], candidates: Iterable[int], *, proc: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in candidates:
        for inode in (socket_inodes(pid, proc=proc) or set()) & inodes:
            found.setdefault(inode, []).append(pid)
    return found


def _socket_units(runner: Runner) -> list[tuple[str, str, str]]:
    """Address, unit and what it activates of each .socket unit that listens."""
    words = ["systemctl", "list-sockets", "--no-legend", "--plain", "--full", "--no-pager"]
    rows = [line.split() for line in runner(words)[1].splitlines()]
    return [(row[0], row[-2], row[-1]) for row in rows if len(row) >= 3 and row[-2].endswith(".socket")]


def _with_socket_unit(owner: Owner, units: Sequence[tuple[str, str, str]]) -> Owner:
    address = f"[{owner.listener.address}]" if ":" in owner.listener.address else owner.listener.address
    ports = [unit for unit in units if unit[0].endswith(f":{owner.listener.port}")]
    # Several may share the port on several addresses.
    for _address, name, activates in [unit for unit in ports if unit[0].startswith(f"{address}:")] or ports:
        return dataclasses.replace(owner, socket_unit=name, activates=activates)
    return owner


def find_owners(
    sockets: Sequence[Listener], *, proc: str = PROC, cgroup_root: str = CGROUP_ROOT, runner: Runner | None = None
) -> list[Owner]:
    """Who holds each listener, for messages: pid, command and unit as far as we may see them. Never raises for hidden ones.

    With `runner` systemd is asked for which .socket unit it holds a listener.
    """
    holders = _holders({listener.inode for listener in sockets}, all_pids(proc=proc), proc=proc)
    owners: list[Owner] = []
    for listener in sockets:
        holding = sorted(holders.get(listener.inode, []))
        processes = [process for process in (read_process(pid, proc=proc) for pid in holding) if process is not None]
        # A server that forked shares its socket with its children: name the one they come from.
        tops = [process for process in processes if process.ppid not in holding] or processes
        unit: str | None = None
        if tops:
            unit = unit_of_pid(tops[0].pid, proc=proc)
        elif listener.cgroup_id is not None:
            path = _folder_of_id(listener.cgroup_id, cgroup_root=cgroup_root)
            unit = unit_of_cgroup(path) if path else None
        owners.append(
            Owner(
                listener=listener,
                pids=tuple(
                    [process.pid for process in tops] + [process.pid for process in processes if process not in tops]
                ),
                unit=unit,
                comm=tops[0].comm if tops else "",
                cmdline_head=_head(tops[0].cmdline) if tops else "",
            )
        )
    if runner is not None and any(owner.pids[:1] == (1,) for owner in owners):
        units = _socket_units(runner)
        owners = [_with_socket_unit(owner, units) if owner.pids[:1] == (1,) else owner for owner in owners]
    return owners


def describe_owner(owner: Owner) -> str:
    """One sentence part: `port 30001 is held by pid 4242 (python -m sglang.launch_server ...) of session-3.scope`."""
    if owner.socket_unit:
        return (
            f"port {owner.listener.port} is held by systemd for {owner.socket_unit}, which starts {owner.activates},"
            f" listening on {owner.listener.address}"
        )
    if owner.pids:
        who = f"pid {owner.pids[0]} ({owner.cmdline_head or owner.comm})"
    else:
        who = f"a process of user id {owner.listener.uid} that is hidden from us"
    unit = f" of {owner.unit}" if owner.unit else ""
    return f"port {owner.listener.port} is held by {who}{unit}, listening on {owner.listener.address}"


def owned_by_cgroup(
    sockets: Iterable[Listener],
    control_group: str,
    *,
    host: str | None = None,
    proc: str = PROC,
    cgroup_root: str = CGROUP_ROOT,
) -> bool | None:
    """Whether every listener that could answer belongs to a unit's control group (`ControlGroup` of systemd).

    With `host` only those count that a connection to it could reach. False as soon as one is foreign: two
    listeners on one port (SO_REUSEPORT, or a specific address beside the wildcard) share the connections.
    None: unknown, or nothing listens. Neither is proof of readiness.
    """
    relevant = [listener for listener in sockets if host is None or covers(listener, host)]
    if not relevant:
        return None
    own_ids = cgroup_ids(control_group, cgroup_root=cgroup_root)
    root_id = _root_id(cgroup_root)
    own_inodes: set[int] | None = None
    complete = True
    verdict: bool | None = True
    for listener in relevant:
        # The id of the root group says nothing: kernels before 5.16 give it wherever net_cls or net_prio is in use.
        if own_ids and listener.cgroup_id not in (None, 0, root_id):
            if listener.cgroup_id not in own_ids:
                return False
            continue
        if own_inodes is None:
            own_inodes, complete = _inodes_of_group(control_group, proc=proc, cgroup_root=cgroup_root)
        if listener.inode not in own_inodes:
            if complete:
                return False
            verdict = None
    return verdict


def _root_id(cgroup_root: str) -> int | None:
    root = cgroup_v2_root(cgroup_root=cgroup_root)
    return None if root is None else os.stat(root).st_ino


def _inodes_of_group(control_group: str, *, proc: str, cgroup_root: str) -> tuple[set[int], bool]:
    """The socket inodes of a unit's processes, and whether all of them could be read."""
    members = cgroup_pids(control_group, cgroup_root=cgroup_root)
    inodes: set[int] = set()
    # No members: no folder, an empty one, or one that we cannot see. Nothing follows from that.
    complete = bool(members)
    for pid in members:
        held = socket_inodes(pid, proc=proc)
        if held is None:
            complete = False
        else:
            inodes |= held
    return inodes, complete


# --- hosts and addresses ------------------------------------------------------------------------------------------------


def _bare(host: str) -> str:
    host = host.strip()
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def listens_on_all(host: str) -> bool:
    """Whether a server's `--host` means all addresses of a family."""
    bare = _bare(host)
    if bare in ("", "*"):
        return True
    try:
        return ipaddress.ip_address(bare).is_unspecified
    except ValueError:
        return False


def probe_host(host: str) -> str:
    """The address to connect to for a server's `--host`: all addresses become the loopback of that family."""
    bare = _bare(host)
    if bare in ("", "0.0.0.0", "*"):
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return bare
    if address.is_unspecified:
        return "::1" if address.version == 6 else "127.0.0.1"
    return bare


def url_host(host: str) -> str:
    """`probe_host` as it stands in a URL: IPv6 in brackets, a zone's percent sign escaped (RFC 6874)."""
    address = probe_host(host)
    return f"[{address.replace('%', '%25')}]" if ":" in address else address


def covers(listener: Listener, host: str) -> bool:
    """Whether a connection to a server that listens on `host` could reach this listener.

    `host` is an address or `localhost`; other names are resolved by the caller. All addresses (`''`, `0.0.0.0`, `::`)
    are reached by every listener of that family: one on a specific address would answer for that address. Where
    IPV6_V6ONLY is unknown the listener is taken as dual stack. Raises ValueError for a name.
    """
    if listens_on_all(host):
        asked_version = 6 if ":" in host else 4
        address = ipaddress.ip_address(listener.address)
        if address.version == 6 and address.is_unspecified:
            return asked_version == 6 or listener.v6only is not True
        return _unmapped(address).version == asked_version
    bare = probe_host(host)
    if bare == "localhost":
        return covers(listener, "127.0.0.1") or covers(listener, "::1")
    try:
        asked = _unmapped(ipaddress.ip_address(bare.partition("%")[0]))
        address = ipaddress.ip_address(listener.address)
    except ValueError:
        raise ValueError(f"{bare!r} is not an address: resolve names before asking which listener answers") from None
    own = _unmapped(address)
    if address.version == 6 and address.is_unspecified:
        return asked.version == 6 or listener.v6only is not True
    if own.version != asked.version:
        return False
    return own.is_unspecified or own == asked


def _unmapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
