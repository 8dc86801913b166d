# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whenever a sweep is killed: the host gets its own configuration back by itself, and the same command goes on; each trial ends once."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import NEVER
from ansible_collections.specdec.serving.tests.integration.role.conftest import CHECKOUT
from ansible_collections.specdec.serving.tests.integration.sweep.conftest import HOLD_S, Sweeping
from ansible_collections.specdec.serving.tests.support.observer.task import interrupt
from ansible_collections.specdec.serving.tests.support.sweeps import kills

#: How many kills: SPECDEC_SWEEP_KILLS, or this.
KILLS = 2
#: A kill that finds its sweep at the end is tried again in the next one; so often at most.
_TRIES = 3
#: So many strike one sweep before it is left to end.
_EACH = 7
_OWN = 8


def _journal(sweeping: Sweeping) -> kills.Study:
    path = sweeping.folder / "results" / "nightly.journal"
    return kills.read(path.read_text() if path.exists() else "")


def _struck(sweeping: Sweeping, kill: kills.Kill) -> str:
    """Start the sweep, kill it; in which phase it struck, '' = it had ended."""
    process = sweeping.start()
    try:
        if not sweeping.wait_for_task(kills.anchor(kill), kill.number, process):
            return ""
        time.sleep(kill.after)
        if process.poll() is not None:
            return ""
        phase = kills.phase_of(sweeping.tasks())
        if kill.interrupt:
            interrupt(process, within=60)
        return phase
    finally:
        sweeping.kill(process)


def _check_figures(sweeping: Sweeping, study: kills.Study) -> None:
    """Every row has the figures of one start of its own, which ran what the row says."""
    starts, told = set(), 0
    for number, (result,) in study.results.items():
        assert result["state"] == "complete", (number, result)
        assert result["cause"] == "", (number, result)
        details = result["details"]
        (path,) = details["records"]
        record = json.loads(Path(path).read_text())
        assert record["invocation"]["invocation_id"] == details["invocation_id"]
        starts.add(details["invocation_id"])
        said = sweeping.host.exec(
            ["journalctl", "--quiet", "--output=cat", f"_SYSTEMD_INVOCATION_ID={details['invocation_id']}"]
        ).stdout
        wanted = sweeping.points[number].get("speculative_dflash_block_size", _OWN)
        if "speculative_dflash_block_size" in said:  # the lab's journal is small
            told += 1
            assert f"'speculative_dflash_block_size': {wanted}," in said, (number, said[:2000])
        assert record["arguments"]["speculative_dflash_block_size"] == wanted
    assert told > 0
    assert len(starts) == len(study.results), f"{NEVER}: a start was measured for two rows"


def test_no_kill_loses_or_doubles_a_trial(
    sweeping: Sweeping, seed: str, record_property: t.Callable[[str, t.Any], None], capfd: pytest.CaptureFixture[str]
) -> None:
    asked = os.environ.get("SPECDEC_SWEEP_KILLS")
    sweeping.deployment.variables["sglang_trial_hold"] = HOLD_S
    planned = kills.plan(seed, int(asked or KILLS))
    blocks = [4, 16] if asked else [4]
    sweeping.write({"speculative_dflash_block_size": blocks})
    rows: list[kills.Row] = []
    sweeps, text = 0, ""
    left = list(planned)
    missed = 0
    while left:
        study = kills.Study({}, {})
        for _number in range(min(_EACH, len(left))):
            kill = left.pop(0)
            phase = _struck(sweeping, kill)
            seconds = sweeping.wait_until_restored() if phase and kill.waits else None
            after = _journal(sweeping)
            assert kills.lost(study, after) == [], f"{NEVER}: a result is lost\n{text}"
            study = after
            if not phase:
                # The run had ended, it struck nothing: once more in the next sweep, sooner.
                missed += 1
                assert missed < _TRIES, f"{kill} found {missed} sweeps at their end\n{text}"
                left.insert(0, dataclasses.replace(kill, number=1, after=kill.after / 2))
                break
            missed = 0
            rows.append(kills.Row(kill, phase, seconds, len(after.results)))
            text = f"{len(rows)} kills, seed {seed}, {sweeps} sweeps to their end\n{kills.table(rows)}"
            (CHECKOUT / "build" / "sweep-kills.txt").write_text(text + "\n")
        swept = sweeping.sweep(timeout=900)
        assert swept.returncode == 0, f"{text}\n{swept.output[-6000:]}"
        done = _journal(sweeping)
        assert kills.lost(study, done) == [], f"{NEVER}: a result is lost\n{text}"
        assert done.wrong == [], f"{NEVER}: a trial ended more than once\n{text}"
        assert len(done.results) == len(blocks) + 1, text
        sweeping.points = dict(enumerate([{}, *({"speculative_dflash_block_size": block} for block in blocks)]))
        _check_figures(sweeping, done)
        assert sweeping.is_own()
        assert not sweeping.is_measured(), "the client of a killed measurement runs on"
        sweeps += 1
        sweeping.forget()
    text = f"{len(rows)} kills, seed {seed}, {sweeps} sweeps to their end\n{kills.table(rows)}"
    record_property("kills", text)
    (CHECKOUT / "build" / "sweep-kills.txt").write_text(text + "\n")
    with capfd.disabled():
        print(f"\n{text}")
    assert len(rows) == len(planned)
    # Kills that struck nothing would prove nothing.
    inside = [row for row in rows if row.phase in (*kills.LASTS, "evaluate")]
    assert len(inside) >= 0.6 * len(rows), text
