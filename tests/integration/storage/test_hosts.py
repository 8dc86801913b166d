# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One and two hosts of a play on one study, with a pause for a trial: what they share, and how long they take."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import typing as t
from collections import Counter
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[3]
#: In `make test-long` nothing else runs; without it the time is not judged.
LONG = bool(os.environ.get("SPECDEC_LONG"))
CONFIGURATIONS = 16 if LONG else 3
#: Of a trial: start, benchmark and all.
PAUSE_S = 15 if LONG else 1
#: At most so much of one host's time.
GOAL = 0.6

INSTANCE = {"name": "a", "model_path": "/models/a", "port": 30001, "args": {"tp_size": 1}}
SWEEP: dict[str, t.Any] = {
    "instance": "a",
    "space": {"chunked_prefill_size": [1024 * number for number in range(1, CONFIGURATIONS + 1)]},
    "workloads": ["./w.yml"],
    "levels": [1],
}
WORKLOAD = {"name": "w", "description": "For tests.", "kind": "fixed", "input_length": 8, "output_length": 8}
LEVEL = {"concurrency": 1, "valid": True, "summary": {"output_tok_s": {"median": 100.0, "mad": 1.0}}}
TRIAL = "specdec.serving.sglang_trial"
PLAY = {
    "hosts": "all",
    "gather_facts": False,
    "connection": "local",
    "strategy": "ansible.builtin.host_pinned",
    "module_defaults": {
        TRIAL: {
            "sweep": "{{ folder }}/night.yml",
            "study": "{{ study }}",
            "storage": "{{ folder }}/{{ study }}.journal",
            "instances": [INSTANCE],
            "resolve": {
                "version": "0.5.23",
                "engine": "{{ '0.5.23' | specdec.serving.sglang_engine(root='/opt/specdec') }}",
            },
            "platform": {"gpus": "{{ gpus | default(['NVIDIA B300']) }}"},
        }
    },
    "tasks": [
        {TRIAL: {"state": "planned"}, "register": "plan"},
        {"ansible.builtin.set_fact": {"over": ""}},
        {
            "ansible.builtin.include_tasks": "step.yml",
            "loop": "{{ range(plan.most) | list }}",
            "when": "over | length == 0",
        },
        {TRIAL: {"state": "shown"}, "register": "found"},
        {
            "ansible.builtin.copy": {
                "dest": "{{ folder }}/{{ study }}-{{ inventory_hostname }}.json",
                "content": "{{ found }}",
            }
        },
    ],
}
STEP = [
    {TRIAL: {"state": "claimed"}, "register": "claim"},
    {"ansible.builtin.set_fact": {"over": "{{ claim.over }}"}},
    {"ansible.builtin.command": f"sleep {PAUSE_S}", "when": "claim.trial | length > 0"},
    {
        TRIAL: {
            "state": "finished",
            "number": "{{ claim.trial.number }}",
            "benchmarks": {"./w.yml": {"levels": [LEVEL]}},
            "details": {"times": {"start": PAUSE_S}},
        },
        "when": "claim.trial | length > 0",
    },
]


class Controller:
    """Runs the play in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, content in (("night", SWEEP), ("w", WORKLOAD), ("play", [PLAY]), ("step", STEP)):
            (folder / f"{name}.yml").write_text(yaml.safe_dump(content, sort_keys=False))

    def run(self, study: str, hosts: dict[str, dict[str, t.Any]]) -> tuple[float, subprocess.CompletedProcess[str]]:
        values = {"ansible_python_interpreter": sys.executable, "folder": str(self.folder), "study": study}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": values}}))
        tool = shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert tool is not None
        began = time.monotonic()
        done = subprocess.run(
            [tool, "-i", str(self.folder / "hosts.yml"), str(self.folder / "play.yml")],
            cwd=CHECKOUT,
            env={**os.environ, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
            check=False,
        )
        return time.monotonic() - began, done

    def trials(self, study: str) -> list[dict[str, t.Any]]:
        """As the host that was done last saw them."""
        last = max(self.folder.glob(f"{study}-*.json"), key=lambda path: path.stat().st_mtime_ns)
        found: list[dict[str, t.Any]] = json.loads(last.read_text())["trials"]
        return found


def test_two_hosts_share_a_study_and_one_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = Controller(tmp_path)
    alone, done = controller.run("alone", {"one": {}})
    assert done.returncode == 0, done.stdout[-4000:]
    shared, done = controller.run("shared", {"one": {}, "two": {}})
    assert done.returncode == 0, done.stdout[-4000:]
    with capsys.disabled():
        print(
            f"\n{CONFIGURATIONS} configurations of {PAUSE_S} s: one host {alone:.1f} s, two {shared:.1f} s,"
            f" {shared / alone:.3f} (goal {GOAL})"
        )
    for study, baselines in (("alone", {"one": 3}), ("shared", {"one": 2, "two": 2})):
        trials = controller.trials(study)
        assert all((trial["state"], trial["attempt"]) == ("complete", 1) for trial in trials)
        configurations = [
            trial["point"]["chunked_prefill_size"] for trial in trials if "chunked_prefill_size" in trial["point"]
        ]
        assert sorted(configurations) == SWEEP["space"]["chunked_prefill_size"]
        assert Counter(trial["host"] for trial in trials if trial["configuration"].startswith("baseline")) == baselines
    # Each host claimed what the table says of it, and nothing twice.
    claimed = re.findall(r"^(one|two) \| trial (\d+) \(", done.stdout, re.MULTILINE)
    assert sorted(claimed) == sorted((trial["host"], str(trial["number"])) for trial in controller.trials("shared"))
    _took, done = controller.run("alone", {"one": {}, "two": {"gpus": ["NVIDIA H200"]}})
    assert done.returncode == 2, done.stdout[-4000:]
    assert "is of another sweep (gpus: ['NVIDIA B300'] there, ['NVIDIA H200'] asked)" in done.stdout
    assert re.search(r"^one +: ok=\d+ .* failed=0 ", done.stdout, re.MULTILINE), (
        "what another one lacks is none of its business"
    )
    assert re.search(r"^two +: ok=0 .* failed=1 ", done.stdout, re.MULTILINE)
    assert not LONG or shared / alone <= GOAL
