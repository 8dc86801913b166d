# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a row of the fault matrix is, how it gets its unit, and how its verdict is judged."""

from __future__ import annotations

import dataclasses
import json
import typing as t

from ansible_collections.specdec.serving.tests.support.observer import units

#: Where a row keeps what it makes on the host.
FOLDER = "/run/matrix"
#: Certificates of the TLS rows, see ``certificates.py``.
TLS = f"{FOLDER}/tls"
#: What a verdict may need after the fault's own time, in seconds.
LIMIT_S = 0.5
_WANTS = "/etc/systemd/system/multi-user.target.wants"
# Truth and verdict are stamped by two processes, one after the other.
_EARLY_S = 0.02
# A request is older than the server's note of it, and a process may have stood still before it said so.
_EARLY_HUNG_S = 0.5


@dataclasses.dataclass(frozen=True)
class Action:
    """Something done to the server while the wait runs.

    ``when``: ``after:SECONDS``, ``truth:EVENT`` (of the server's truth file) or ``shell:SCRIPT`` (until it succeeds);
    ``do``: a shell script.
    """

    when: str
    do: str


@dataclasses.dataclass(frozen=True)
class Fault:
    """One row.

    In all texts ``@UNIT@``, ``@NAME@``, ``@PORT@``, ``@DIR@`` (a folder of this row), ``@TLS@`` and ``@ADDRESS@`` (the
    host's own) are replaced.

    ``own_time`` is the instant from which the verdict's seconds count, never before the wait began:

    - ``exit``: when systemd says that the main process ended; ``inactive``, ``state``: when the unit became inactive, when
      it last changed;
    - ``truth:EVENT``: when the server noted it; ``action:N``: when action N began;
    - ``timeout``: when the wait's time was over; ``wait``: when the wait began, since the fault was there before.

    ``+SECONDS`` may follow (``truth:fault+2``). In options ``@INVOCATION@`` is the unit's at the wait's beginning.
    """

    id: str
    group: str
    what: str
    state: str
    cause: str = ""
    #: The row of the table of known failures that explains it ("" = any or none).
    row: str = ""
    #: Texts that the message, the diagnosis, the gates or the notices must hold.
    words: tuple[str, ...] = ()
    own_time: str = "exit"
    #: The stand-in's further arguments, the unit's environment, and lines of [Service] and [Unit].
    arguments: tuple[str, ...] = ()
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    service: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()
    #: ExecStart in place of the stand-in; the whole unit file in place of ours ("" = no file).
    command: str = ""
    text: str | None = None
    #: Further files.
    files: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    enabled: bool = True
    #: The start job waits for 0.7 s in systemd's queue, so that the fault strikes while the wait looks on.
    held: bool = False
    #: Scripts: when files are made, before and in place of the start, after the row, when files are removed.
    prepare: str = ""
    before: str = ""
    start: str = "systemctl start --no-block @UNIT@"
    after: str = ""
    remove: str = ""
    #: Commands that run beside the server, from before its start; the first must listen on the port.
    neighbours: tuple[tuple[str, ...], ...] = ()
    actions: tuple[Action, ...] = ()
    #: Changes to the wait's options.
    options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    switches: tuple[str, ...] = ()
    observer_environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Who waits: root, or a user without rights.
    observer_user: str = "root"
    #: What the host must have: ``kernel_log`` ("" = nothing special).
    needs: str = ""
    #: It takes the whole machine, so nothing runs beside it; it takes longer than half a minute.
    alone: bool = False
    slow: bool = False
    #: Why this row cannot run here ("" = it can).
    skip: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A row and what came of it. ``seconds`` from the fault's own time to the verdict, None where that is not known."""

    fault: Fault
    state: str
    cause: str
    seconds: float | None
    problems: tuple[str, ...]
    late: bool
    message: str
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problems and not self.late


def prepared(fault: Fault, *, serial: int, port: int, address: str) -> dict[str, t.Any]:
    """The row as ``guest.py`` takes it."""
    name = f"m-{fault.id}-{serial}"
    folder = f"{FOLDER}/{name}"
    truth = f"{folder}/truth"
    unit = f"sglang-{name}.service"
    hold = f"matrix-hold-{name}.service"
    files = dict(fault.files)
    enable = f"ln -s ../{unit} {_WANTS}/{unit}; " if fault.enabled and fault.text != "" else ""
    if fault.text != "":
        files[f"/etc/systemd/system/{unit}"] = fault.text if fault.text is not None else _unit_text(fault, truth, hold)
    if fault.held:
        files[f"/etc/systemd/system/{hold}"] = "[Service]\nType=oneshot\nExecStart=/bin/sleep 0.7\n"
    command = ["env", f"PYTHONPATH={units.ROOT}", "python3", "-B", units.OBSERVER, *fault.switches]
    if fault.observer_user != "root":
        command = ["runuser", "-u", fault.observer_user, "--", *command]
    row = {
        "id": fault.id,
        "unit": unit,
        "port": port,
        "truth": truth,
        "files": files,
        # Enabled, as the role leaves it: systemd forgets how a unit ended that nothing refers to.
        "prepare": f"mkdir -p {folder} {_WANTS}; chmod 0777 {folder}; {enable}{fault.prepare}",
        "before": fault.before,
        "start": fault.start,
        "after": fault.after,
        "remove": f"{fault.remove}\nrm -rf {folder} {_WANTS}/{unit}",
        "neighbours": [list(argv) for argv in fault.neighbours],
        "actions": [dataclasses.asdict(action) for action in fault.actions],
        "options": {**units.ready_options(unit=unit, port=port), **fault.options},
        "observer": command,
        "words": list(fault.words),
        "alone": fault.alone,
        # What an observer may need at the very most.
        "limit_s": 230.0 if fault.slow else 90.0,
        "observer_environment": dict(fault.observer_environment),
    }
    words = {"@UNIT@": unit, "@NAME@": name, "@PORT@": str(port), "@DIR@": folder, "@TLS@": TLS, "@ADDRESS@": address}
    text = json.dumps(row)
    for word, value in words.items():
        text = text.replace(word, value)
    return t.cast("dict[str, t.Any]", json.loads(text))


def _unit_text(fault: Fault, truth: str, hold: str) -> str:
    command = fault.command or " ".join([units.server_command(port="@PORT@"), *fault.arguments])
    lines = [f"Wants={hold}", f"After={hold}"] if fault.held else []
    return units.unit_file(
        command,
        environment={**units.server_environment(truth), **fault.environment},
        service=fault.service,
        unit=[*lines, *fault.unit],
    )


def judged(fault: Fault, found: t.Mapping[str, t.Any], *, words: t.Sequence[str], limit_s: float) -> Outcome:
    """Compare what was found (a line of ``guest.py``) with what was expected; ``words`` are those of the prepared row."""
    verdict = found["verdict"]
    diagnosis = verdict.get("diagnosis") or {}
    state, cause = verdict.get("state", "none"), diagnosis.get("cause", "")
    problems = list(found["trouble"])
    if state != fault.state:
        problems.append(f"state {state!r}, expected {fault.state!r}")
    if cause != fault.cause:
        problems.append(f"cause {cause!r}, expected {fault.cause!r}")
    said = json.dumps(
        [
            verdict.get(name)
            for name in ("msg", "diagnosis", "gates", "notices", "log_incomplete", "weights", "log_tail")
        ],
        ensure_ascii=False,
    )
    if fault.row and diagnosis.get("id") != fault.row:
        problems.append(f"row {diagnosis.get('id')!r}, expected {fault.row!r}")
    problems += [f"not said: {word!r}" for word in words if json.dumps(word, ensure_ascii=False)[1:-1] not in said]
    seconds = _seconds(fault, found)
    if seconds is None and not found["trouble"]:
        problems.append(f"the fault's own time ({fault.own_time}) is not known")
    early_s = _EARLY_HUNG_S if fault.state == "hung" else _EARLY_S
    if seconds is not None and seconds < -early_s:
        problems.append(f"the verdict came {-seconds:.3f} s before the fault's own time")
    return Outcome(
        fault=fault,
        state=state,
        cause=cause,
        seconds=seconds,
        problems=tuple(problems),
        late=seconds is not None and seconds > limit_s,
        message=verdict.get("msg", ""),
        wall_s=found["wall_s"],
    )


def _seconds(fault: Fault, found: t.Mapping[str, t.Any]) -> float | None:
    verdict, stamps, marks = found["verdict"], found["stamps"], found["marks"]
    if verdict.get("state") == "refused":
        return float(marks["answered"] - marks["started"])
    if "detected_at_monotonic" not in verdict:
        return None
    at = verdict["detected_at_monotonic"]
    began = at - verdict["elapsed"]
    kind, _, more = fault.own_time.partition("+")
    source, _, name = kind.partition(":")
    times: dict[str, float | None] = {
        "exit": stamps.get("ExecMainExitTimestampMonotonic"),
        "inactive": stamps.get("InactiveEnterTimestampMonotonic"),
        "state": stamps.get("StateChangeTimestampMonotonic"),
        "truth": found["truth"].get(name),
        "action": marks.get(f"action {name}"),
        "timeout": began + float(str(fault.options.get("timeout", 60))),
        "wait": began,
    }
    struck = times[source]
    if struck is None:
        return None
    return float(at - max(struck + float(more or 0), began))


__all__ = ("FOLDER", "LIMIT_S", "TLS", "Action", "Fault", "Outcome", "judged", "prepared")
