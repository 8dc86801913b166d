# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration import lab_hosts
from ansible_collections.specdec.serving.tests.support.toolchain import runner, tiers
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT

TIERS = ("lint", "unit", "integration", "molecule", "test")


@pytest.mark.parametrize("tier", [*TIERS, "long"])
def test_the_steps_of_a_tier_can_run(tier: str) -> None:
    runner.check_steps(tiers.tier_steps(tier, seed=1), slots=2)


def test_everything_is_in_make_test() -> None:
    everything = {step.name for step in tiers.tier_steps("test", seed=1)}
    parts = {step.name for tier in TIERS for step in tiers.tier_steps(tier, seed=1)}
    assert everything == parts


def test_every_test_is_in_a_step() -> None:
    words = {word for step in tiers.tier_steps("test", seed=1) for word in step.argv}
    for file in (ROOT / "tests" / "integration").rglob("test_*.py"):
        assert str(file.relative_to(ROOT).parent) in words, f"no step runs {file}"
    assert "tests/unit" in words
    scenarios = {path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml")}
    assert scenarios <= words


def test_a_long_tier_runs_many_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tiers.RACES, raising=False)
    (step,) = [step for step in tiers.tier_steps("long", seed=4711) if "tests/integration/races" in step.argv]
    assert step.environ == {tiers.RACES: "1000"}
    assert "--hypothesis-seed=4711" in step.argv
    monkeypatch.setenv(tiers.RACES, "50")
    assert any(step.environ == {tiers.RACES: "50"} for step in tiers.tier_steps("long", seed=1))


def test_a_long_tier_kills_many_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tiers.KILLS, raising=False)
    (step,) = [step for step in tiers.tier_steps("long", seed=4711) if step.name == "long kills"]
    assert step.environ == {tiers.KILLS: "50"}
    monkeypatch.setenv(tiers.KILLS, "9")
    assert any(step.environ == {tiers.KILLS: "9"} for step in tiers.tier_steps("long", seed=1))


def test_twenty_sweeps_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tiers.SWEEP_KILLS, raising=False)
    (step,) = [step for step in tiers.tier_steps("long", seed=1) if step.name == "long killed sweeps"]
    assert step.environ == {tiers.SWEEP_KILLS: "20"}
    monkeypatch.setenv(tiers.SWEEP_KILLS, "2")
    assert any(step.environ == {tiers.SWEEP_KILLS: "2"} for step in tiers.tier_steps("long", seed=1))


def test_what_must_never_happen_is_not_run_once_more() -> None:
    steps = [step for step in tiers.tier_steps("integration", seed=1) if "--reruns=1" in step.argv]
    assert steps
    assert all(f"--rerun-except={lab_hosts.NEVER}" in step.argv for step in steps)


def test_every_long_test_is_in_the_long_tier() -> None:
    steps = tiers.tier_steps("long", seed=1)
    words = {word: step for step in steps if "long" in step.argv for word in step.argv}
    marked = [file for file in (ROOT / "tests" / "integration").rglob("test_*.py") if "mark.long(" in file.read_text()]
    assert marked
    for file in marked:
        step = words[str(file.relative_to(ROOT))]
        assert step.environ == {tiers.LONG: "1"}
        assert step.slots == 2, "what is measured beside other work is not what a person would see"
    (scenario,) = [step for step in steps if step.name == "long molecule real_engine"]
    assert scenario.environ[tiers.LONG] == "1"


def test_a_preparation_brings_what_it_needs() -> None:
    names = [step.name for step in tiers.preparations(["cpu-engine models"])]
    assert names == ["cpu-engine wheelhouse", "cpu-engine models"]


def test_the_demo_prepares_its_engine_only() -> None:
    runner.check_steps(tiers.preparations(tiers.DEMO_NEEDS["cpu_engine"]), slots=2)
    names = {step.name for step in tiers.preparations(tiers.DEMO_NEEDS["stand_in"])}
    assert not {name for name in names if name.startswith("cpu-engine")}


def test_the_seed_reaches_every_test_step() -> None:
    steps = [step for step in tiers.tier_steps("test", seed=4711) if "pytest" in step.argv]
    assert steps
    assert all("--hypothesis-seed=4711" in step.argv for step in steps)
    assert tiers.environ(root=ROOT, seed=4711, outer={})[tiers.SEED] == "4711"


def test_our_tools_come_first_on_path(tmp_path: Path) -> None:
    environ = tiers.environ(root=tmp_path, seed=1, outer={"PATH": "/usr/bin", "KEPT": "x"})
    assert environ["PATH"] == f"{tmp_path}/.venv/bin:/usr/bin"
    assert environ["KEPT"] == "x"


@pytest.mark.parametrize("name", [tiers.SEED, tiers.LIMIT_S])
@pytest.mark.parametrize("given", ["x", "-1", "1.5"])
def test_a_bad_number_is_refused(
    name: str, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, given)
    with pytest.raises(SystemExit) as caught:
        tiers.main(["lint"])
    assert caught.value.code == 2
    assert repr(given) in capsys.readouterr().err


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z][a-z-]+)", (ROOT / "README.md").read_text()))
    assert named <= targets, f"README names {sorted(named - targets)}"
    assert {"demo", "test"} <= named


def test_continuous_integration_calls_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in script
