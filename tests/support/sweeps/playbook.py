# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sweep of twelve configurations by the checkout's own playbooks, and what it said."""

from __future__ import annotations

import dataclasses
import re
import time
import typing as t
from pathlib import Path

import optuna
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment, Play
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.observer.host import MODELS, PYTHON
from ansible_collections.specdec.serving.tests.support.sweeps import twelve


def _checked(play: Play) -> Play:
    if play.returncode != 0:
        raise RuntimeError(f"ansible-playbook ended with {play.returncode}:\n{play.output[-4000:]}")
    return play


def prepared(host: Host, folder: Path, *, scale: float) -> Deployment:
    """The instance as it is known to be good, deployed, the answers that parity is compared with, and the files of the sweep in ``folder``."""
    own = twelve.instance(tokenizer_path=f"{MODELS}/tiny", scale=scale)
    variables = {
        **VARIABLES,
        "sglang_instances": [twelve.without_speculation(own)],
        "sglang_benchmark_python": PYTHON,
        "sglang_ready_timeout": f"{max(60, 1350 * scale):g}",
        # Of the default of 300 s.
        "sglang_ready_stall_timeout": max(8, 300 * scale),
    }
    deployment = Deployment(host, folder, variables=variables)
    _checked(deployment.play(timeout=900))
    record: dict[str, t.Any] = {"evaluate_coding": False, "parity": "record", "parity_baseline": twelve.PARITY_BASELINE}
    _checked(deployment.play("evaluate.yml", timeout=900, results_dir=str(folder / "recorded"), **record))
    deployment.variables["sglang_instances"] = [own]
    deployment.variables["sglang_evaluate_parity_baseline"] = twelve.PARITY_BASELINE
    _checked(deployment.play(timeout=900))
    (folder / "short.yml").write_text(yaml.safe_dump(dict(twelve.WORKLOAD)), encoding="utf-8")
    (folder / "tuning.yml").write_text(yaml.safe_dump(dict(twelve.SWEEP), sort_keys=False), encoding="utf-8")
    return deployment


def swept(deployment: Deployment) -> tuple[Play, float]:
    """Run the playbook; what it said, and the seconds of the whole command."""
    folder = deployment.folder
    began = time.monotonic()
    play = deployment.play(
        "sweep.yml", timeout=3600, sweep=str(folder / "tuning.yml"), results_dir=str(folder / "results")
    )
    return _checked(play), time.monotonic() - began


@dataclasses.dataclass(frozen=True)
class Told:
    """A row of the sweep's table."""

    place: str
    verdict: str
    rest: str


def table_of(play: Play) -> tuple[dict[int, Told], str]:
    """The rows of the last table by number, and the text from there to the end."""
    end = play.output[play.output.rindex("why not") :].replace("\\n", "\n")
    found = re.findall(r"^ *([★\d]*) +(\d+)  +([a-z_]+) +(.*)$", end, re.MULTILINE)
    return {int(number): Told(place, verdict, rest) for place, number, verdict, rest in found}, end


def outcomes(folder: Path) -> list[dict[str, t.Any]]:
    """How each trial that ran ended, from the study's own file."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / "results" / "tuning.journal")))
    (study,) = optuna.get_all_study_names(storage)
    attributes = optuna.load_study(study_name=study, storage=storage).user_attrs
    return [value for key, value in sorted(attributes.items()) if key.startswith("result:")]


__all__ = ("Told", "outcomes", "prepared", "swept", "table_of")
