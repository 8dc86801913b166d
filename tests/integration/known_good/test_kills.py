# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whenever a deployment is killed: no mixture of two configurations, no known-good lost, and the next run makes it ready."""

from __future__ import annotations

import dataclasses
import os
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.integration.known_good.conftest import CHECKOUT, KEEP, Killable
from ansible_collections.specdec.serving.tests.integration.lab_hosts import NEVER
from ansible_collections.specdec.serving.tests.support.known_good import kills

#: How many kills at random moments: SPECDEC_KILLS, or this; with SPECDEC_KILLS also those at every task boundary.
KILLS = 3
#: Between these tasks something is on its way; the other boundaries only repeat what was there before or after.
BOUNDARIES = (
    "Write the units",
    "Restart what changed, once its requests have ended",
    "Wait until ready",
    "Keep what was proven ready as known-good",
)
FAULT = "oom-load-target"


def _window(tasks: t.Sequence[t.Mapping[str, t.Any]], took: float) -> tuple[float, float]:
    """From the first change on the host to the end of the run."""
    (first,) = [task["at"] for task in tasks if task["name"].endswith("Write the units")]
    return first, took


def test_no_kill_leaves_a_mixture(
    deployment: Killable, seed: str, record_property: t.Callable[[str, t.Any], None], capfd: pytest.CaptureFixture[str]
) -> None:
    asked = os.environ.get("SPECDEC_KILLS")
    number = 1
    assert deployment.deploy(number).returncode == 0

    def measured(fault: str) -> tuple[list[dict[str, t.Any]], tuple[float, float]]:
        nonlocal number
        number += 1
        started = time.monotonic()
        play, _struck = deployment.killed(number, fault=fault)
        assert (play.returncode == 0) is (fault == ""), play.output[-3000:]
        tasks = deployment.tasks()
        return tasks, _window(tasks, time.monotonic() - started)

    tasks, good_s = measured("")
    _tasks, bad_s = measured(FAULT)
    names = [task["name"].rpartition(" : ")[2] for task in tasks]
    assert set(BOUNDARIES) <= set(names), names
    planned = [
        kills.Kill("boundary", task["number"], name=name)
        for task, name in zip(tasks, names, strict=True)
        if asked or name in BOUNDARIES
    ]
    planned += kills.plan(seed, int(asked or KILLS), good_s=good_s, bad_s=bad_s)
    planned.append(kills.Kill("reboot", round((good_s[0] + good_s[1]) / 2, 3)))
    rows: list[kills.Row] = []
    lost: list[int] = []
    outputs: list[str] = []
    healthy = number - 1
    # How long runs take by now, as a share of those that were measured: what else the machine does changes over an hour.
    pace = 1.0
    for moment in planned:
        kill = moment if moment.kind == "boundary" else dataclasses.replace(moment, at=moment.at * pace)
        before = deployment.found()
        assert before.is_all(healthy), rows[-1:]
        number += 1
        play, struck = deployment.killed(number, kill, fault=FAULT if kill.bad else "")
        if not struck and kill.kind != "boundary":
            # It came too late: the run had ended.
            pace = deployment.tasks()[-1]["at"] / (bad_s if kill.bad else good_s)[1]
        found = deployment.found()
        new = number
        lost += kills.lost(before, found, keep=KEEP)
        if kill.bad:
            number += 1
        started = time.monotonic()
        healing = deployment.deploy(number)
        after = deployment.found()
        healed = healing.returncode == 0 and after.is_all(number)
        took = time.monotonic() - started
        pace = (pace + took / good_s[1]) / 2
        rows.append(kills.Row(kill, healthy, new, struck, found, healed, took))
        if found.wrong or not healed:
            outputs += [str(rows[-1]), play.output[-2000:], healing.output[-3000:]]
        healthy = number
        lost += kills.lost(found, after, keep=KEEP)
        if not healed:
            break
    text = f"{len(rows)} kills, seed {seed}\n{kills.table(rows)}"
    record_property("kills", text)
    (CHECKOUT / "build" / "kills.txt").write_text(text + "\n")
    with capfd.disabled():
        print(f"\n{text}")
    assert [row for row in rows if row.found.wrong] == [], "\n".join([f"{NEVER}: a mixture", *outputs])
    assert lost == [], f"{NEVER}: known-good records are lost\n{text}"
    assert all(row.healed for row in rows), "\n".join(outputs)
    assert len(rows) == len(planned)
    assert all(row.found.unit | row.found.process <= {row.old, row.new} for row in rows)
    # Kills that struck nothing would prove nothing.
    assert sum(row.struck for row in rows) >= 0.6 * len(rows), text
    assert any(row.found.unit != row.found.process for row in rows), text
    # Nothing that no configuration needs is left: a file may hold a key.
    seen = deployment.look()
    needed = {path for path in seen["unit"] if path.startswith("/")}
    needed |= {path for record in seen["records"] for path in record["files"]}
    assert set(seen["files"]) == needed
