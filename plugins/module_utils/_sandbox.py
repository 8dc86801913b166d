# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which settings of a sandbox work on this host, found out by a unit that lives for a moment. PRIVATE to the collection.

Inside of a container, what surrounds it decides: systemd either fails to start the unit (status 226/NAMESPACE and the like), or goes on
without the setting and does not say so. Both are found here, and so is whether credentials reach a unit. Nothing on the host is changed.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t
import uuid

from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

__all__ = ("SandboxView", "try_sandbox")

#: systemd.exec(5), "PROCESS EXIT CODES": what systemd's child exits with when it cannot set something up.
_STEPS: t.Final = {
    203: "EXEC",
    214: "SETSCHEDULER",
    216: "GROUP",
    217: "USER",
    218: "CAPABILITIES",
    224: "PAM",
    225: "NETWORK",
    226: "NAMESPACE",
    227: "NO_NEW_PRIVILEGES",
    228: "SECCOMP",
    232: "ADDRESS_FAMILIES",
    242: "NUMA_POLICY",
}
#: Settings that need a mount namespace of the unit's own, and nothing else.
_MOUNTS = frozenset(
    [
        "PrivateMounts",
        "PrivateTmp",
        "ProtectControlGroups",
        "ProtectHome",
        "ProtectKernelTunables",
        "ProtectProc",
        "ProtectSystem",
    ]
)
_SECCOMP = frozenset(
    [
        "LockPersonality",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "SystemCallArchitectures",
        "SystemCallErrorNumber",
        "SystemCallFilter",
    ]
)
_NO_UNIT = 127
_TOLD = re.compile(r"(?:^|: )(Failed (?:to|at) .*)$")


#: The same way as LoadCredential= (systemd 247). Where the root is mounted privately, as container managers do it, the unit finds an empty
#: folder and systemd says nothing (seen on systemd 252; on a real machine systemd itself makes the root shared).
_CREDENTIAL = "SetCredential=specdec-probe:is-here"
_SHOW = 'cat /proc/self/status /proc/self/mountinfo; echo "credential $(cat "$CREDENTIALS_DIRECTORY/specdec-probe" 2>/dev/null)"'


@dataclasses.dataclass(frozen=True)
class SandboxView:
    """``refused`` by property with the reason, ``credentials`` None where it was not tried, ``untried`` why nothing could be."""

    refused: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    credentials: bool | None = None
    untried: str = ""


class _Probe:
    """Starts units that show what they run under."""

    def __init__(self, runner: Runner, *, credentials: bool) -> None:
        self._runner = runner
        self._always = (_CREDENTIAL,) if credentials else ()

    def __call__(self, groups: t.Iterable[t.Sequence[str]]) -> tuple[int, str, str]:
        """Exit status, ``/proc/self/status`` with ``/proc/self/mountinfo``, and why it could not be started."""
        unit = f"specdec-probe-{uuid.uuid4().hex[:12]}.service"
        settings = [*self._always, *(setting for group in groups for setting in group)]
        options = [word for setting in settings for word in ("--property", setting)]
        code, out, err = self._runner(
            [
                *("systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--unit={unit}"),
                *options,
                *("sh", "-c", _SHOW),
            ]
        )
        if code == 0 or code == _NO_UNIT:
            return code, out, err.strip()
        return code, out, self._reason(unit, code, err)

    def _reason(self, unit: str, code: int, err: str) -> str:
        step = f"systemd fails at step {_STEPS[code]}" if code in _STEPS else ""
        if code in _STEPS:
            words = ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=20", f"--unit={unit}"]
            told = [found.group(1) for found in map(_TOLD.search, self._runner(words)[1].splitlines()) if found]
            # The first tells what, the last ("Failed at step NAMESPACE spawning ...") only where.
            return f"{step}: {told[0]}" if told else f"{step} (status {code})"
        last = (err.strip().splitlines() or [f"status {code}"])[-1]
        return f"systemd refuses it: {last}"


def _without_effect(names: t.Iterable[str], seen: str) -> dict[str, str]:
    """What systemd passed over without a word, by what the unit's process says of itself."""
    status = dict(re.findall(r"^(NoNewPrivs|Seccomp|CapBnd):\s*(\S+)$", seen, re.MULTILINE))
    # ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE SUPER-OPTIONS (proc(5)); the last at a point is in force.
    mounts = {
        found.group("point"): found
        for found in re.finditer(
            r"^\d+ \d+ \d+:\d+ \S+ (?P<point>\S+) (?P<options>\S+) .*- (?P<type>\S+) \S+ (?P<super>\S+)$",
            seen,
            re.MULTILINE,
        )
    }
    found: dict[str, str] = {}
    ordered = list(names)
    names = set(ordered)
    if "NoNewPrivileges" in names and status.get("NoNewPrivs") != "1":
        found["NoNewPrivileges"] = "it has no effect on this kernel"
    if "CapabilityBoundingSet" in names and status.get("CapBnd", "").strip("0"):
        found["CapabilityBoundingSet"] = "it has no effect here: capabilities are left"
    if status.get("Seccomp") != "2":
        found.update(dict.fromkeys(names & _SECCOMP, "it has no effect here: the kernel filters no system calls"))
    if "ProtectSystem" in names and ("/" not in mounts or "ro" not in mounts["/"].group("options").split(",")):
        text = "it has no effect here: systemd may not make mount namespaces (a container without CAP_SYS_ADMIN)"
        found.update(dict.fromkeys(names & _MOUNTS, text))
    elif "ProtectProc" in names and not (
        "/proc" in mounts and re.search(r"\bhidepid=(invisible|2)\b", mounts["/proc"].group(0))
    ):
        found["ProtectProc"] = (
            "it has no effect here: this kernel, or the container, does not let /proc be mounted anew"
        )
    return found


def try_sandbox(settings: t.Sequence[str], runner: Runner, *, credentials: bool = False) -> SandboxView:
    """Which properties of ``settings`` (``NAME=VALUE``) do not work here, and with ``credentials`` whether these reach a unit.

    Lines of one property belong together. One unit is started where everything works, and about one for each property where not.
    """
    groups: dict[str, list[str]] = {}
    for setting in settings:
        groups.setdefault(setting.partition("=")[0], []).append(setting)
    if not groups and not credentials:
        return SandboxView()
    probe = _Probe(runner, credentials=credentials)
    code, seen, why = probe(groups.values())
    refused: dict[str, str] = {}
    left = list(groups)
    if code == _NO_UNIT:
        return SandboxView(untried=f"systemd-run cannot be started: {why}")
    if code != 0:
        control, _seen, why_not = probe([])
        if control != 0:
            return SandboxView(untried=f"no unit can be started to try it: {why_not}")
        refused = _refused(groups, probe)
        left = [name for name in groups if name not in refused]
        _code, seen, _why = probe([groups[name] for name in left])
    refused.update(_without_effect(left, seen))
    return SandboxView(
        refused={name: refused[name] for name in groups if name in refused},
        credentials=bool(re.search("^credential is-here$", seen, re.MULTILINE)) if credentials else None,
    )


def _refused(groups: t.Mapping[str, t.Sequence[str]], probe: _Probe) -> dict[str, str]:
    """What systemd cannot set up, by name with the reason: each alone, then what only works without another."""
    refused: dict[str, str] = {}
    for name, group in groups.items():
        code, _seen, reason = probe([group])
        if code != 0:
            refused[name] = reason
    left = [name for name in groups if name not in refused]
    if probe([groups[name] for name in left])[0] == 0:
        return refused
    kept: list[str] = []
    for name in left:
        code, _seen, why = probe([groups[one] for one in (*kept, name)])
        if code == 0:
            kept.append(name)
        else:
            refused[name] = f"not together with {', '.join(kept)}: {why}"
    return refused
