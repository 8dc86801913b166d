# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `ansible-galaxy collection build` packs, and that an installed collection works without the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.support.lab.client import render_inventory, up
from ansible_collections.specdec.serving.tests.support.toolchain import source_tree
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT

#: Everything else at the root serves the checkout only.
TOP_LEVEL = {
    "CHANGELOG.md",
    "CHANGELOG.rst",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "changelogs",
    "meta",
    "playbooks",
    "plugins",
    "roles",
}
INVENTORY = {
    "sglang": {
        "hosts": {"gpu-host.example": {"ansible_connection": "local"}},
        "vars": {"sglang_instances": [{"name": "a", "port": 30001, "model_path": "/models/a"}]},
    }
}


class Installed(t.NamedTuple):
    tarball: Path
    collections: Path
    folder: Path
    environ: dict[str, str]

    @property
    def collection(self) -> Path:
        return self.collections / "ansible_collections" / "specdec" / "serving"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.folder, env=self.environ, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the working tree's collection and install it into a folder from which nothing leads to the checkout."""
    folder = tmp_path_factory.mktemp("tarball")
    collections = folder / "collections"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environ |= {
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
        "ANSIBLE_NOCOLOR": "1",
    }
    environ.pop("PYTHONPATH", None)
    tree = source_tree.make(root=ROOT, into=folder / "source")
    work = Installed(tarball=folder / "none", collections=collections, folder=folder, environ=environ)
    built = work.run("ansible-galaxy", "collection", "build", "--output-path", str(folder), str(tree))
    assert built.returncode == 0, built.stdout + built.stderr
    (tarball,) = folder.glob("specdec-serving-*.tar.gz")
    words = ("ansible-galaxy", "collection", "install", "--offline", "-p", str(collections), str(tarball))
    done = work.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "inventory.yml").write_text(yaml.safe_dump(INVENTORY))
    return work._replace(tarball=tarball)


def test_the_tarball_is_named_after_the_version(installed: Installed) -> None:
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    assert installed.tarball.name == f"specdec-serving-{version}.tar.gz"


def test_the_tarball_holds_the_collection_and_nothing_of_the_checkout(installed: Installed) -> None:
    with tarfile.open(installed.tarball) as tar:
        members = tar.getmembers()
    assert {member.name.split("/")[0] for member in members} <= TOP_LEVEL
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    assert [member.name for member in members if "__pycache__" in member.name or member.name.endswith(".pyc")] == []


def test_the_tarball_holds_all_plugins_roles_and_playbooks(installed: Installed) -> None:
    wanted = {
        name
        for name in source_tree.files(root=ROOT)
        if name.startswith(("meta/", "playbooks/", "plugins/", "roles/")) or name in ("LICENSE", "README.md")
    }
    files = json.loads((installed.collection / "FILES.json").read_text())["files"]
    packed = {row["name"] for row in files if row["ftype"] == "file"}
    assert wanted <= packed
    assert any(name.startswith("roles/sglang/") for name in wanted)
    assert "playbooks/deploy.yml" in wanted


@pytest.mark.parametrize("playbook", ["deploy", "status", "stop"])
def test_a_playbook_can_be_called_by_its_full_name(installed: Installed, playbook: str) -> None:
    done = installed.run(
        "ansible-playbook",
        f"specdec.serving.{playbook}",
        "--syntax-check",
        "-i",
        str(installed.folder / "inventory.yml"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(ROOT) not in done.stdout + done.stderr


def test_the_modules_are_documented(installed: Installed) -> None:
    done = installed.run("ansible-doc", "--json", "-t", "module", "specdec.serving.sglang_ready")
    assert done.returncode == 0, done.stderr
    assert "specdec.serving.sglang_ready" in json.loads(done.stdout)


@pytest.mark.lab
def test_the_installed_collection_deploys(installed: Installed) -> None:
    built = subprocess.run([ROOT / "tests" / "support" / "stand_in" / "build.py"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    host = up(["tarball"])["tarball"]
    variables = {
        "ansible_become": True,
        "sglang_version": "0.5.23",
        "sglang_wheelhouse": "/srv/wheelhouse/stand-in",
        "sglang_instances": [
            {
                "name": "a",
                "port": 30001,
                "model_path": "/models/stand-in-target",
                "served_model_name": "a",
                "args": {"tp_size": 8},
                "env": {"STAND_IN_SCALE": "0.002"},
            }
        ],
    }
    inventory = installed.folder / "inventory"
    inventory.mkdir()
    (inventory / "connection.yml").write_text(render_inventory([host]))
    (inventory / "hosts.yml").write_text(yaml.safe_dump({"sglang": {"hosts": {"tarball": {}}, "vars": variables}}))
    words = ("ansible-playbook", "specdec.serving.deploy", "-i", str(inventory))
    first = installed.run(*words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "sglang-a.service on tarball: READY" in first.stdout
    second = installed.run(*words)
    assert second.returncode == 0, second.stdout + second.stderr
    assert re.search(r"^tarball +: ok=\d+ +changed=0 ", second.stdout, re.MULTILINE), second.stdout
    status = installed.run("ansible-playbook", "specdec.serving.status", "-i", str(inventory))
    assert status.returncode == 0, status.stdout + status.stderr
    assert re.search(r"^ +tarball +a +ready +a +30001 ", status.stdout, re.MULTILINE), status.stdout
