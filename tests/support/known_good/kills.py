# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deployments that are killed: which and when, what is found of them on the host, and the table of all.

Each configuration has a number, which stands in everything that belongs to it: an argument, a variable, a secret variable, the key.
So everything that is found tells which configuration it is of. Nothing here touches a host.
"""

from __future__ import annotations

import dataclasses
import random
import re
import typing as t

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import text_table

#: Shape of a kill to what is killed.
KINDS = {
    "boundary": "ansible-playbook by SIGKILL, between two tasks",
    "controller": "ansible-playbook, its workers and its ssh by SIGKILL, at a moment",
    "module": "the module that runs on the host by SIGKILL, at a moment",
    "reboot": "the host, as by a power cut, at a moment",
}
_MARK = re.compile(r"gen-(\d+)-")

#: Runs on the host as root; prints what belongs to the configuration in the unit file, in the process, and in the records.
LOOK = r"""
import glob, json, os, re, subprocess, sys
UNIT, NAME = sys.argv[1:3]
def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None
text = read("/etc/systemd/system/" + UNIT) or ""
shown = subprocess.run(["systemctl", "show", "--property=ActiveState,MainPID,InvocationID", UNIT], capture_output=True, text=True).stdout
state = dict(line.partition("=")[::2] for line in shown.splitlines())
named = re.findall(r"^EnvironmentFile=(\S+)$", text, re.M) + re.findall(r"^LoadCredential=[^:]+:(\S+)$", text, re.M)
words = re.search(r"^ExecStart=((?:.*\\\n)*.*)", text, re.M)
unit = {"command": words.group(1) if words else "", **{path: read(path) for path in named}} if text else None
process = None
if state["ActiveState"] == "active" and state["MainPID"] != "0":
    base = "/proc/" + state["MainPID"]
    environment = dict(item.partition("=")[::2] for item in (read(base + "/environ") or "").split("\0"))
    process = {
        "command": read(base + "/cmdline"),
        "environment": environment.get("GENERATION"),
        "secret environment": environment.get("HF_TOKEN"),
        "credential": read("/run/credentials/" + UNIT + "/" + NAME + ".yaml"),
    }
records, damaged = [], []
for path in glob.glob("/var/lib/specdec/sglang/known-good/" + NAME + "/*.json"):
    try:
        record = json.loads(read(path))
        files = [record["environment_file"], record["secret_environment_file"], record["credential"]]
        records.append({"sequence": record["sequence"], "content": record["content"], "files": {f: read(f) for f in files}})
    except (KeyError, TypeError, ValueError):
        damaged.append(path)
modules = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    cmdline = (read("/proc/" + pid + "/cmdline") or "").strip("\0").split("\0")
    if "AnsiballZ" in " ".join(cmdline) or (len(cmdline) == 1 and "/python3" in cmdline[0]):
        modules.append(int(pid))
print(json.dumps({"active": state["ActiveState"], "unit": unit, "process": process, "records": records, "damaged": damaged,
                  "modules": modules, "files": [p for p in glob.glob("/etc/specdec/sglang/**", recursive=True) if os.path.isfile(p)]}))
"""

#: Runs on the host as root: waits, then kills the first module that runs; prints its pid, or nothing.
KILL_MODULE = r"""
import os, signal, sys, time
time.sleep(float(sys.argv[1]))
deadline = time.monotonic() + float(sys.argv[2])
while time.monotonic() < deadline:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/" + pid + "/cmdline", "rb") as file:
                words = file.read().strip(b"\0").split(b"\0")
        except OSError:
            continue
        if len(words) == 1 and b"/python3" in words[0] or b"AnsiballZ" in b" ".join(words):
            os.kill(int(pid), signal.SIGKILL)
            print(pid)
            sys.exit()
    time.sleep(0.005)
"""


@dataclasses.dataclass(frozen=True)
class Kill:
    """``at``: number of the task for a boundary, else seconds since the play began. ``bad``: the configuration crashes."""

    kind: str
    at: float
    bad: bool = False
    name: str = ""

    def __str__(self) -> str:
        when = f"before {self.name!r}" if self.kind == "boundary" else f"{self.kind} at {self.at:.2f} s"
        return f"{when}{' of a bad one' if self.bad else ''}"


@dataclasses.dataclass(frozen=True)
class Found:
    """Of which configurations what was found is; ``process`` is empty when none runs. ``wrong``: what must not be."""

    unit: frozenset[int]
    process: frozenset[int]
    records: tuple[int, ...]
    wrong: tuple[str, ...]

    def is_all(self, number: int) -> bool:
        """Unit and process are wholly of one configuration."""
        return self.unit == self.process == {number} and not self.wrong


@dataclasses.dataclass(frozen=True)
class Row:
    """One kill: what ran before and was asked for, what was found, and what the next run made of it."""

    kill: Kill
    old: int
    new: int
    struck: bool
    found: Found
    healed: bool
    seconds: float


def marks(number: int) -> dict[str, str]:
    """What stands in the parts of a configuration."""
    return {part: f"gen-{number}-{part}" for part in ("argument", "variable", "token", "apikey")}


def _numbers(parts: t.Mapping[str, str | None], what: str) -> tuple[frozenset[int], list[str]]:
    found, wrong = set(), []
    for name, text in parts.items():
        seen = {int(number) for number in _MARK.findall(text or "")}
        if not seen:
            wrong.append(f"{what}: {name} is {'missing' if text is None else 'of no configuration'}")
        found |= seen
    if len(found) > 1:
        wrong.append(f"{what}: a mixture of {sorted(found)}")
    return frozenset(found), wrong


def judge(look: t.Mapping[str, t.Any]) -> Found:
    """What ``LOOK`` saw. All parts of the unit must be there and of one configuration, and all parts of the process."""
    unit, wrong = _numbers(look["unit"], "unit") if look["unit"] is not None else (frozenset(), ["unit: there is none"])
    process: frozenset[int] = frozenset()
    if look["process"] is not None:
        process, more = _numbers(look["process"], "process")
        wrong += more
    wrong += [f"record: {path} is damaged" for path in look["damaged"]]
    records = []
    for record in sorted(look["records"], key=lambda one: -one["sequence"]):
        numbers, more = _numbers({"command": record["content"], **record["files"]}, "record")
        wrong += more
        records += sorted(numbers)[:1]
    return Found(unit, process, tuple(records), tuple(wrong))


def lost(before: Found, after: Found, *, keep: int) -> list[int]:
    """The configurations that were known-good before and are not any more, though only ``keep`` newer ones may drop one."""
    return [number for number in before.records[: keep - 1] if number not in after.records]


def plan(seed: str, number: int, *, good_s: tuple[float, float], bad_s: tuple[float, float]) -> list[Kill]:
    """``number`` kills at random moments. ``good_s`` and ``bad_s``: when the host is first changed in a deployment that gets ready,
    or crashes and is rolled back, and when it ends, in seconds. Most strike between the two."""
    choose = random.Random(seed)
    kills = []
    for position in range(number):
        bad = position % 3 == 2
        first, last = bad_s if bad else good_s
        start = 0.3 if choose.random() < 0.2 else first
        kind = "module" if position % 2 else "controller"
        kills.append(Kill(kind, round(choose.uniform(start, last), 3), bad))
    return kills


def _side(numbers: frozenset[int], row: Row) -> str:
    if not numbers:
        return "none"
    if len(numbers) > 1:
        return "MIXTURE"
    (number,) = numbers
    return {row.old: "old", row.new: "new"}.get(number, f"OTHER ({number})")


def table(rows: t.Sequence[Row]) -> str:
    """One line for each kill."""
    lines = [("KILLED", "STRUCK", "UNIT", "PROCESS", "WRONG", "NEXT RUN")]
    lines += [
        (
            str(row.kill),
            "yes" if row.struck else "no",
            _side(row.found.unit, row),
            _side(row.found.process, row),
            "; ".join(row.found.wrong) or "-",
            f"ready, {row.seconds:.1f} s" if row.healed else "NOT READY",
        )
        for row in rows
    ]
    return text_table(lines)
