# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host with a deployed stand-in, and what `status.yml` says of it."""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host
from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment, Play
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

#: A second wheelhouse of the same release under another lock, and a second model: other paths, same content.
WHEELHOUSE, MODEL = "/opt/drift/wheelhouse", "/opt/drift/other-target"
KEY, TOKEN = "sk-planted-drift-a61", "hf_planted_drift_a61"


class Row(t.NamedTuple):
    """One line below the table."""

    where: str
    name: str
    asked: str
    found: str
    needs: str


@dataclasses.dataclass(frozen=True)
class Status:
    """What a run of `status.yml` showed of one instance."""

    play: Play
    state: str
    word: str
    rows: list[Row]


def status(deployment: Deployment, *switches: str, environment: t.Mapping[str, str] | None = None) -> Status:
    """Run `status.yml`, which must change nothing, and read its table."""
    play = deployment.play("status.yml", *switches, environment=environment)
    assert play.returncode == 0, play.output
    assert play.recap("role")["changed"] == 0
    message = re.findall(r'^ +"msg": (".*HOST .*")$', play.output, re.MULTILINE)[-1]
    table, _blank, below = json.loads(message).partition("\n\n")
    ((_host, _name, state, *rest),) = [re.split(r" {2,}", line) for line in table.splitlines()[1:]]
    rows = [Row(*re.split(r" {2,}", line)[2:]) for line in below.splitlines()[1:]]
    return Status(play, state, rest[-1], rows)


@pytest.fixture(scope="session")
def drift_host() -> Host:
    host = lab_host("drift")
    script = (
        f"rm -rf /opt/drift; mkdir -p /opt/drift; cp -r /srv/wheelhouse/stand-in {WHEELHOUSE};"
        f" echo '# another lock' >> {WHEELHOUSE}/requirements.lock; cp -r /models/stand-in-target {MODEL}"
    )
    host.exec(["sh", "-c", script])
    return host


@pytest.fixture
def deployed(drift_host: Host, tmp_path: Path) -> Deployment:
    """An instance with keys that runs as asked, whatever an earlier test left."""
    script = "rm -rf /etc/systemd/system/sglang-a.service.d; systemctl daemon-reload; systemctl reset-failed"
    drift_host.exec(["sh", "-c", script], check=False)
    asked = instance(api_key=KEY)
    asked["env"] = {**asked["env"], "HF_TOKEN": TOKEN, "NCCL_DEBUG": "INFO"}
    asked["args"] = {**asked["args"], "page_size": 64, "mem_fraction_static": 0.85}
    deployment = Deployment(drift_host, tmp_path, variables={**VARIABLES, "sglang_instances": [asked]})
    play = deployment.play()
    assert play.returncode == 0, play.output
    return deployment
