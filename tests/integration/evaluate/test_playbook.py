# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook as users run it: readiness first, the table at its end, a failure after what was found was shown."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _record
from ansible_collections.specdec.serving.tests.integration.evaluate.conftest import STATE_DIR, Server
from ansible_collections.specdec.serving.tests.integration.evaluate.test_evaluate import (
    FIRM,
    PROBLEMS,
    prompts,
    script,
    stub,
)
from ansible_collections.specdec.serving.tests.support.lab.client import render_inventory
from ansible_collections.specdec.serving.tests.support.observer import units
from ansible_collections.specdec.serving.tests.support.observer.task import start


class Playbook:
    """evaluate.yml with one instance, whose unit is a stand-in's."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.results = folder / "results"

    def run(self, *switches: str, speculates: bool = True, **variables: t.Any) -> tuple[int, str]:
        """Its status and what it printed."""
        hosts = self.folder / "hosts.yml"
        hosts.write_text(render_inventory([self.server.host]), encoding="utf-8")
        arguments = {**units.SETTINGS, "speculative_draft_model_path": "/models/stand-in-draft"}
        if not speculates:
            arguments = {name: value for name, value in arguments.items() if not name.startswith("speculative")}
        instance = {
            "name": self.server.name,
            "model_path": units.MODEL_PATH,
            "served_model_name": units.MODEL,
            "port": self.server.port,
            "args": arguments,
        }
        group = {
            "sglang": {
                "hosts": {self.server.host.name: {}},
                "vars": {"sglang_instances": [instance], "sglang_state_dir": f"{STATE_DIR}/{self.server.name}"},
            }
        }
        inventory = self.folder / "group.yml"
        inventory.write_text(json.dumps(group), encoding="utf-8")
        given = json.dumps({"results_dir": str(self.results), **variables})
        words = ["ansible-playbook", "-i", str(hosts), "-i", str(inventory), "evaluate.yml", "-e", given, *switches]
        environment = {
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
        }
        process = start(words, environment)
        output = process.communicate(timeout=150)[0]
        return process.returncode, output

    def record(self) -> dict[str, t.Any]:
        """The newest record."""
        return _record.read(str(max(self.results.iterdir())))


@pytest.fixture
def playbook(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Playbook:
    return Playbook(server, tmp_path_factory.mktemp("p"))


def test_the_table_and_the_record(server: Server, playbook: Playbook) -> None:
    server.start(script({0: stub(PROBLEMS[0])}))
    code, output = playbook.run(evaluate_limit=6, evaluate_thinking="off")
    assert code == 0, output
    assert "5 of 6" in output
    assert "95 % interval" in output
    assert "detects breakage, not quality" in output
    record = playbook.record()
    assert record["readiness"]["ready"] is True
    assert record["workload"]["thinking"] == "off"
    assert record["results"]["coding"]["passed"] == 5


def test_a_share_below_the_minimum_fails_after_the_table(server: Server, playbook: Playbook) -> None:
    server.start(script({0: stub(PROBLEMS[0])}))
    code, output = playbook.run(evaluate_limit=6, evaluate_minimum=0.9)
    assert code == 2, output
    assert output.index("5 of 6") < output.index("is below minimum 0.9", output.index("5 of 6"))


def test_parity_is_recorded_without_speculation_and_compared_with_it(server: Server, playbook: Playbook) -> None:
    baseline: dict[str, t.Any] = {"evaluate_coding": False, "parity_baseline": f"{STATE_DIR}/{server.name}/parity.json"}
    server.start(prompts(5, **FIRM), speculates=False)
    code, output = playbook.run(speculates=False, **baseline)
    assert code == 0, output
    assert "baseline recorded: 24 prompts" in output
    server.start(prompts(5, **FIRM))
    code, output = playbook.run(**baseline)
    assert code == 0, output
    assert "parity: 24 of 24 equal" in output
    server.start(prompts(5, tokens={"3": 12}))
    code, output = playbook.run(**baseline)
    assert code == 2, output
    assert "NO parity: 23 of 24 equal, 0 ties, 1 mismatches" in output
    # The server's hundreds of arguments are in the record, and not between the reader and the table.
    assert playbook.record()["arguments"]["tp_size"] == units.SETTINGS["tp_size"]
    assert "chunked_prefill_size" not in output


def test_what_is_not_there_or_not_ready_is_told(server: Server, playbook: Playbook) -> None:
    server.start()
    code, output = playbook.run(evaluate_instances="other")
    assert code == 2
    assert "sglang_evaluate_instances names other" in output
    server.host.exec(["systemctl", "stop", server.unit])
    code, output = playbook.run()
    assert code == 2
    assert f"{server.unit} is stopped, not ready" in output


def test_check_mode_asks_nothing(server: Server, playbook: Playbook) -> None:
    server.start(script())
    code, output = playbook.run("--check")
    assert code == 0, output
    assert not playbook.results.exists()
