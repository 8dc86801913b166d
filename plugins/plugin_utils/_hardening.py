# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The sandbox of a unit: what a server with GPUs survives, what it would not, and why. PRIVATE to the collection.

The role's README shows both tables; a test keeps them equal. Names are those of systemd.exec(5).
"""

from __future__ import annotations

import difflib
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import QuotingError, list_word

__all__ = ["HARDENING", "LEFT_OUT", "Directive", "hardening_settings"]


@dataclass(frozen=True)
class Directive:
    """One property of the unit with its values, one a line, and what it is good for."""

    name: str
    values: tuple[str, ...]
    reason: str

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={value}" for value in self.values)


#: The default, in the order in which the unit has it.
HARDENING: t.Final[Sequence[Directive]] = (
    Directive("NoNewPrivileges", ("yes",), "no set-uid program gives the server more rights than its user has"),
    Directive("CapabilityBoundingSet", ("",), "a server needs none: memory is locked by LimitMEMLOCK="),
    Directive("UMask", ("0077",), "caches, traces and dumps are the service user's alone"),
    Directive("PrivateTmp", ("yes",), "sockets and traces in /tmp are out of reach for other users"),
    Directive("PrivateMounts", ("yes",), "its mounts are its own"),
    Directive("ProtectSystem", ("strict",), "all is read-only but the caches and sglang_writable_paths"),
    Directive("ProtectHome", ("read-only",), "not hidden: models, templates and adapters may lie in a home"),
    Directive("ProtectProc", ("invisible",), "other users' command lines are hidden; engines read their own"),
    Directive("ProtectControlGroups", ("yes",), "limits cannot be changed"),
    Directive("ProtectHostname", ("yes",), "the host's name cannot be changed"),
    Directive("ProtectKernelLogs", ("yes",), "the kernel's log cannot be read"),
    Directive("ProtectKernelModules", ("yes",), "no modules are loaded; the driver's are there before"),
    Directive("ProtectKernelTunables", ("yes",), "/proc/sys and /sys are read-only; NCCL only reads them"),
    Directive(
        "RestrictAddressFamilies",
        ("AF_UNIX AF_INET AF_INET6 AF_NETLINK",),
        "AF_NETLINK stays: NCCL and getifaddrs ask it for interfaces; AF_UNIX carries handles of GPU memory",
    ),
    Directive("RestrictNamespaces", ("yes",), "no containers within"),
    Directive("RestrictRealtime", ("yes",), "a spinning scheduler cannot lock the host up"),
    Directive("RestrictSUIDSGID", ("yes",), "no set-uid files are left behind"),
    Directive("LockPersonality", ("yes",), "no other execution domain is needed"),
    Directive("RemoveIPC", ("yes",), "a killed server's shared memory (NCCL, torch) does not stay in /dev/shm"),
    Directive("SystemCallArchitectures", ("native",), "no 32-bit system calls"),
    Directive(
        "SystemCallFilter",
        (
            # A deny list: a call that is newer than this systemd stays possible, which an allow list would break (the GPU driver's
            # libraries and glibc follow the kernel). @resources stays: set_mempolicy, mbind, sched_setaffinity bind to NUMA nodes.
            "~@clock @cpu-emulation @debug @module @mount @obsolete @privileged @raw-io @reboot @swap",
            # pidfd_getfd: torch shares expandable segments with it; ptrace: py-spy, which SGLang starts before it crashes; @chown:
            # part of @privileged, but changing one's own files needs no right.
            "@chown pidfd_getfd ptrace",
        ),
        "what only administrators need; NUMA binding, io_uring, py-spy and torch's sharing of memory stay possible",
    ),
    Directive(
        "SystemCallErrorNumber", ("EPERM",), "what is filtered is refused, not fatal: libraries have a way round"
    ),
)

#: Not set, since a server would not survive it or since it would say more than is true.
LEFT_OUT: t.Final[Mapping[str, str]] = {
    "DeviceAllow": (
        "device numbers of nvidia, nvidia-uvm, nvidia-caps and InfiniBand exist only once their modules are loaded, and are read when the"
        " unit starts: one that loads later is shut out for good"
    ),
    "IPAddressDeny": "clients and other nodes come from anywhere; a firewall is the place",
    "MemoryDenyWriteExecute": "Triton, FlashInfer, torch.compile and CUDA itself write code and run it",
    "NoExecPaths": "compiled kernels are run from the caches",
    "PrivateDevices": "hides /dev/nvidia*",
    "PrivateNetwork": "clients could not reach it",
    "PrivateUsers": "owners of device nodes become nobody, locked memory is counted anew, and containers often refuse it",
    "ProcSubset": "engines read /proc/cpuinfo and /proc/meminfo",
    "ProtectClock": "implies DeviceAllow=, which hides /dev/nvidia*; without capabilities the clock cannot be set anyway",
    "RestrictFileSystems": "needs BPF LSM, and models lie on file systems of every kind",
    "RootDirectory": "the driver's libraries belong to the host",
}


def hardening_settings(
    *,
    cache_dir: str,
    writable_paths: Iterable[t.Any],
    omitted: t.Any,
    refused: Mapping[str, str],
    system_user: bool,
    errors: list[str],
) -> tuple[tuple[str, ...], list[str]]:
    """Return the lines of the unit, and a warning for each directive that the host refuses.

    :param omitted: names that the user leaves out.
    :param refused: what does not work on the host, by name, with the reason (RV(facts) of M(specdec.serving.sglang_preflight)).
    :param system_user: False = the service user may be a person, whose shared memory RemoveIPC= would remove.
    """
    names = [directive.name for directive in HARDENING]
    if isinstance(omitted, (str, bytes, Mapping)) or not isinstance(omitted, Sequence):
        errors.append(f"sglang_hardening_omit: {omitted!r} is no list of names such as 'ProtectProc'")
        omitted = ()
    for name in omitted:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
            errors.append(f"sglang_hardening_omit: {name!r} is no directive of the sandbox{hint}")
    words = [cache_dir]
    for path in writable_paths:
        try:
            words.append(list_word(path, origin="sglang_writable_paths"))
        except QuotingError as exc:
            errors.append(str(exc))
        if not isinstance(path, str) or not path.startswith("/"):
            errors.append(f"sglang_writable_paths: {path!r} is no absolute path")
    gone = {*omitted, *refused, *(() if system_user else ("RemoveIPC",))}
    lines = [line for directive in HARDENING if directive.name not in gone for line in directive.settings]
    warnings = [
        f"the units run without {name}=: {reason}"
        for name, reason in refused.items()
        if name in names and name not in omitted
    ]
    return (*lines, f"ReadWritePaths={' '.join(words)}"), warnings
