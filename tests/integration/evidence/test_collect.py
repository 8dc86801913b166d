# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`collect.yml` after a deployment that crashed, over SSH as a login user with sudo."""

from __future__ import annotations

import tarfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

KEY = "planted-api-key-0815"
FOLDER = "/var/lib/specdec/sglang/evidence/sglang-broken.service"
TOKEN = "planted-hugging-face-token"


@pytest.fixture
def deployment(evidence_host: Host, tmp_path: Path) -> t.Iterator[Deployment]:
    broken = instance("broken", 32200, api_key=KEY)
    broken["env"] = {**broken["env"], "HF_TOKEN": TOKEN, "STAND_IN_FAULT": "oom-load-target"}
    made = Deployment(evidence_host, tmp_path, variables={**VARIABLES, "sglang_instances": [broken]})
    made.hosts = {"crashing": {}, "well": {"sglang_instances": [instance("well", 32201)]}}
    yield made
    script = (
        "systemctl stop sglang-broken.service; systemctl reset-failed sglang-broken.service; rm -f /etc/systemd/system/sglang-broken.service;"
        f"systemctl daemon-reload; rm -rf {FOLDER}"
    )
    evidence_host.exec(["sh", "-c", script], check=False)


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read().decode()
        return found


def test_a_crash_is_collected_for_a_bug_report(deployment: Deployment, evidence_host: Host, tmp_path: Path) -> None:
    failed = deployment.play("deploy.yml", "--limit", "crashing")
    assert failed.returncode != 0
    assert "specdec.serving.collect" in failed.failure("crashing")
    # An older one of another start.
    older = f"20260101T000000Z-crashed-{'0' * 32}.tar.gz"
    evidence_host.exec(["sh", "-c", f"cd {FOLDER} && cp -p *.tar.gz {older}"])

    play = deployment.play("collect.yml", collect_destination=str(tmp_path / "newest"))
    assert play.returncode == 0, play.output
    (path,) = (tmp_path / "newest").iterdir()
    assert str(path) in play.output
    assert "No failed start of well has left evidence on well." in play.output
    assert "gpu_out_of_memory" in play.output
    files = contents(path)
    root = path.name.removesuffix(".tar.gz")
    assert all(name.startswith((f"{root}/crashing/sglang-broken.service/", f"{root}/index.txt")) for name in files)
    assert len([name for name in files if name.endswith("/verdict.json")]) == 1
    assert any("CUDA out of memory" in text for name, text in files.items() if name.endswith("journal.txt"))
    everything = "\n".join([*files, *files.values(), play.output, failed.output])
    assert KEY not in everything
    assert TOKEN not in everything

    play = deployment.play("collect.yml", collect_all=True, collect_destination=str(tmp_path / "all.tar.gz"))
    assert play.returncode == 0, play.output
    assert len([name for name in contents(tmp_path / "all.tar.gz") if name.endswith("/verdict.json")]) == 2

    play = deployment.play("collect.yml", collect_instances="well", collect_destination=str(tmp_path / "none"))
    assert play.returncode == 0, play.output
    assert not (tmp_path / "none").exists()

    # Had the masking on the host failed, the key would be found here.
    script = (
        f"set -e; cd {FOLDER}; name=$(ls -1 *.tar.gz | tail -n 1); mkdir x; tar -C x -xzf $name;"
        f"printf 'leak %s' '{KEY}' | tee -a x/*/journal.txt >/dev/null; tar -C x -czf $name $(ls x); rm -r x"
    )
    evidence_host.exec(["sh", "-c", script])
    play = deployment.play("collect.yml", collect_destination=str(tmp_path / "leak"))
    assert play.returncode != 0
    assert "a key of the inventory stands in journal.txt" in play.failure("crashing")
    assert KEY not in play.output
    assert list((tmp_path / "leak").iterdir()) == []
