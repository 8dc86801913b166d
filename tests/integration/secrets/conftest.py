# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host on which keys are planted; everything that a deployment leaves or says is collected once."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host, remove_units
from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment
from ansible_collections.specdec.serving.tests.integration.secrets.search import ArgumentWatch, members
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

NAME = "secrets"

#: All signs that a key may hold (printable ASCII without a space), which quoting, YAML, shells, URLs and systemd treat each in its way.
KEY = """p1A"n\\t/e+d=$%25&<k>#e!y{0}~`^;|*?[x]@,:'-api"""
SECRETS = {
    "api_key": KEY,
    "api_key, replaced": "0ld/Pl4nted+key=with&signs-7b1f",
    "api_key, wrong": "wr0ng/Pl4nted+key=with&signs-52ce",
    "admin_api_key": """p1A"n\\t/e+d=$%25&<k>#e!y{0}~`^;|*?[x]@,:'-admin""",
    "HF_TOKEN": """hf/Pl4nted+tok'en"$x\\y%z&=-3d9a""",
    "HF_TOKEN, wrong": "hf/Pl4nted+token=wrong&signs-18aa",
    "DB_PASSWORD": "pass/Pl4nted+word=with&signs-c40e",
}
#: No secret: it has to be found wherever the search for secrets shall mean something.
CANARY = """c4n/Ary+w'ord"$x%z&=-9e61"""

#: All that may hold a trace, but the journal, which is read for itself, and what systemd passes to the server.
_TREES = ("etc", "home", "opt/specdec", "root", "run", "srv", "tmp", "var")
_LEFT_OUT = ("run/credentials", "run/log/journal", "var/log/journal", "etc/lab", "srv/wheelhouse", "models")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "host" in item.nodeid.rpartition("::")[2]:
            item.add_marker(pytest.mark.lab)


@dataclasses.dataclass
class Campaign:
    """What was said and left, step by step."""

    host: Host
    folder: Path
    said: dict[str, str] = dataclasses.field(default_factory=dict)
    codes: dict[str, int] = dataclasses.field(default_factory=dict)
    arguments: set[bytes] = dataclasses.field(default_factory=set)
    samples: int = 0
    #: By step: path on the host -> mode, owner, content.
    trees: dict[str, dict[str, tuple[int, str, bytes]]] = dataclasses.field(default_factory=dict)
    units: dict[str, bytes] = dataclasses.field(default_factory=dict)
    environments: dict[str, bytes] = dataclasses.field(default_factory=dict)
    #: Lines of the journal that are not the server's own, and those that are.
    journal: bytes = b""
    server_log: bytes = b""

    def bytes_of(self, command: str) -> bytes:
        """The output of a shell command on the host, as it is."""
        return subprocess.run(
            self.host.exec_argv(["sh", "-c", command]), stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).stdout

    def look(self, step: str) -> None:
        """Take what the host holds now."""
        left_out = " ".join(f"--exclude={path}" for path in _LEFT_OUT)
        archive = self.bytes_of(
            f"tar --create --directory=/ {left_out} --ignore-failed-read --warning=none {' '.join(_TREES)} 2>/dev/null"
        )
        self.trees[step] = {path: (mode, owner, content) for path, mode, owner, content in members(archive)}
        self.units[step] = self.bytes_of(
            "systemctl cat 'sglang-*'; systemctl show 'sglang-*'; systemctl status --full --lines=0 'sglang-*'"
        )
        self.environments[step] = self.bytes_of("for p in /proc/[0-9]*; do cat $p/environ; echo; done 2>/dev/null")

    def read_journal(self) -> None:
        for line in self.bytes_of("journalctl --sync; journalctl --all --output=json --no-pager").splitlines():
            entry = json.loads(line)
            texts = [
                bytes(value)
                if isinstance(value, list) and all(isinstance(one, int) for one in value)
                else json.dumps(value).encode() + str(value).encode()
                for value in entry.values()
            ]
            text = b"\n".join(texts)
            if entry.get("_SYSTEMD_UNIT", "").startswith("sglang-") and entry.get("_TRANSPORT") == "stdout":
                self.server_log += text + b"\n"
            else:
                self.journal += text + b"\n"


@pytest.fixture(scope="session")
def secrets_host() -> Host:
    return lab_host(NAME)


def planted(**changes: t.Any) -> dict[str, t.Any]:
    """An instance with every kind of secret, and the canary where everybody may see it."""
    values = instance(api_key=SECRETS["api_key"], admin_api_key=SECRETS["admin_api_key"])
    values["args"] = {**values["args"], "chat_template": CANARY}
    environment = {"HF_TOKEN": SECRETS["HF_TOKEN"], "DB_PASSWORD": SECRETS["DB_PASSWORD"], "CANARY": CANARY}
    values["env"] = {**values["env"], **environment, **changes.pop("env", {})}
    return {**values, **changes}


@pytest.fixture(scope="session")
def campaign(secrets_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Deployments that end in every way, each at the highest verbosity."""
    folder = tmp_path_factory.mktemp("campaign")
    remove_units(secrets_host, "/var/cache/specdec", then="journalctl --rotate --vacuum-time=1s --quiet")
    campaign = Campaign(secrets_host, folder)
    deployment = Deployment(secrets_host, folder, {NAME: {}}, dict(VARIABLES))
    home = folder / "ansible"

    def play(
        step: str, playbook: str, server: dict[str, t.Any], *switches: str, pipelining: str = "1", **variables: t.Any
    ) -> None:
        deployment.variables = {**VARIABLES, "sglang_instances": [server], **variables}
        environment = {
            "ANSIBLE_PIPELINING": pipelining,
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_LOG_PATH": str(folder / "ansible.log"),
        }
        done = deployment.play(playbook, "-vvvvv", *switches, environment=environment)
        campaign.said[step], campaign.codes[step] = done.output, done.returncode
        campaign.look(step)

    hang = {"STAND_IN_FAULT": json.dumps({"at": "load_target", "who": "TP1", "do": "stop"}), "STAND_IN_SCALE": "0.01"}
    with ArgumentWatch() as watch:
        play("check", "deploy.yml", planted(), "--check", "--diff")
        play("ready, first key", "deploy.yml", planted(api_key=SECRETS["api_key, replaced"]), "--diff", pipelining="0")
        play("ready, new key", "deploy.yml", planted(), "--diff")
        play("nothing changes", "deploy.yml", planted(), "--check", "--diff", pipelining="0")
        play("chat", "chat.yml", planted())
        play("status", "status.yml", planted())
        play("wrong key", "status.yml", planted(api_key=SECRETS["api_key, wrong"]))
        other = {"HF_TOKEN": SECRETS["HF_TOKEN, wrong"]}
        play("all differs", "status.yml", planted(api_key=SECRETS["api_key, wrong"], admin_api_key=None, env=other))
        play("hung", "deploy.yml", planted(env=hang), "--diff", sglang_ready_stall_timeout=3)
        play("crashed", "deploy.yml", planted(env={"STAND_IN_FAULT": "oom-load-target"}), "--diff", pipelining="0")
        play(
            "collect",
            "collect.yml",
            planted(),
            collect_all=True,
            collect_destination=str(folder / "collected"),
        )
        play("rolled back", "rollback.yml", planted(), "--diff")
        play("stop", "stop.yml", planted(), "--diff")
    campaign.arguments, campaign.samples = watch.seen, watch.samples
    campaign.read_journal()
    return campaign
