# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One sweep of twelve configurations of which four are sound, through the playbook, the role and SGLang's own client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.role.conftest import Deployment
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.sweeps import playbook, twelve

pytestmark = pytest.mark.long("fifteen starts, with their time-outs")


@pytest.fixture
def deployment(sweep_host: Host, tmp_path: Path) -> Deployment:
    return playbook.prepared(sweep_host, tmp_path, scale=0.002)


def files(host: Host) -> str:
    """What the unit consists of, with its digests: also what is enabled, and what overrides it."""
    script = f"sha256sum /etc/systemd/system/{twelve.UNIT} /etc/specdec/sglang/*; ls -l /etc/systemd/system/*.wants;"
    script += " find /run/systemd/system /run/specdec/trials -type f"
    return host.exec(["sh", "-c", script], check=False).stdout


def test_twelve_configurations_of_which_four_are_sound(deployment: Deployment, tmp_path: Path) -> None:
    host = deployment.host
    before, invocation = files(host), deployment.invocation(twelve.UNIT)
    swept, wall = playbook.swept(deployment)
    print(swept.output)
    rows, end = playbook.table_of(swept)

    # A row for each, with its verdict and the reason why it did not win.
    trials = twelve.planned()
    assert {number: row.verdict for number, row in rows.items()} == {
        number: one.verdict for number, (one, _again) in enumerate(trials)
    }
    assert sum(not again for _one, again in trials) == 12
    for number, (one, _again) in enumerate(trials):
        assert one.why in rows[number].rest, rows[number]
    assert [number for number, row in rows.items() if row.place == "★"] == [twelve.WINNER]

    # What to paste, and where the time went.
    assert f"to deploy trial {twelve.WINNER}, give the instance" in end
    assert "speculative_dflash_block_size: 8\n" in end
    for phase in ("claim", "preflight", "stop", "start", "benchmark", "evaluate", "put back"):
        assert re.search(rf"^  {phase} +\d", end, re.MULTILINE), (phase, end)

    # The account is whole: what it tells beside the trials is the rest of the run, less the start of Ansible and what precedes the sweep.
    told = sum(sum(one["details"]["times"].values()) for one in playbook.outcomes(tmp_path))
    assert told < wall

    # What ran before runs again, from the same files, as a start of its own.
    assert files(host) == before
    assert deployment.state(twelve.UNIT) == "active"
    assert deployment.invocation(twelve.UNIT) != invocation
    assert (
        host.exec(["curl", "--silent", "--fail", f"http://127.0.0.1:{twelve.PORT}/ready"], check=False).returncode == 0
    )
    pid = host.exec(["systemctl", "show", "--value", "--property=MainPID", twelve.UNIT]).stdout.strip()
    words = host.exec(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")
    assert words[words.index("--speculative-dflash-block-size") + 1] == "2"
    assert "--chunked-prefill-size" not in words
    kept = host.exec(["sh", "-c", f"ls /var/lib/specdec/sglang/evidence/{twelve.UNIT}"]).stdout.split()
    # Of each start that failed: crashed while loading and under load, hung, a wrong server.
    assert len(kept) == sum(
        one.verdict in ("illegal_memory_access", "gpu_out_of_memory", "stalled", "wrong_model")
        for one in twelve.CONFIGURATIONS
    )
