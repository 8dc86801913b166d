# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tiers of `make`: which steps they have and what these wait for. PRIVATE to this checkout; standard library only."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT
from ansible_collections.specdec.serving.tests.support.toolchain.runner import Runner, Step, report

#: The variable that carries a tier's seed to every step. Set it to repeat a run.
SEED = "SPECDEC_SEED"
#: The variable that says after how many seconds a tier ends, whatever still runs.
LIMIT_S = "SPECDEC_LIMIT_S"
#: The variable that says how many restart races are run.
RACES = "SPECDEC_RACES"
#: The variable that has tests run as well that are marked as long.
LONG = "SPECDEC_LONG"
#: The variable that says how many deployments are killed at random moments; with it all task boundaries are tried as well.
KILLS = "SPECDEC_KILLS"
#: The variable that says how often sweeps are killed.
SWEEP_KILLS = "SPECDEC_SWEEP_KILLS"
#: The variable that lets each test session remove the lab hosts that it made.
REMOVE_HOSTS = "SPECDEC_REMOVE_HOSTS"
#: The variable that tells a Molecule scenario where its checks leave their JUnit file.
JUNIT = "SPECDEC_JUNIT"

_COLLECTION = "ansible_collections.specdec.serving"
_TOOLS = f"{_COLLECTION}.tests.support.toolchain"
_LAB = "tests/support/lab/lab.py"
#: A test on lab hosts that fails is run once more, and the report names it: two at once on two cores are late at times. A step in which more
#: than three fail is not late, and neither is one that says that this must never happen.
_ONCE_MORE = ("--reruns=1", "--max-suite-reruns=3", "--rerun-show-tracebacks", "--rerun-except=must never happen")
#: Of a test on lab hosts, in seconds: one that hangs says where, and leaves the others their time.
_HANGS_S = 900
#: Begun first, so that none of them is left alone at the end.
_LONGEST = ("benchmark", "boot", "controller", "known_good", "lease", "ready", "sweep")
#: Never run once more: one false verdict is one too many.
_FIRST_TIME_RIGHT = ("races", "fault_matrix")
#: Everything that is Python. The stand-in is checked as the package that it is on a host.
_TYPED = (f"{_COLLECTION}.plugins", f"{_COLLECTION}.tests", "sglang")
#: What runs on a managed host, tested on its oldest Python too.
_TARGET_SIDE = ("tests/unit/plugins/modules", "tests/unit/plugins/module_utils")


def _own(*words: str) -> tuple[str, ...]:
    """Return a command for the Python that runs this: it needs nothing but the standard library."""
    return (sys.executable, *words)


def _tool(name: str, *words: str) -> tuple[str, ...]:
    """Return a command for a tool of this folder that needs the environment."""
    return ("python", "-m", f"{_TOOLS}.{name}", *words)


#: What has to be there before a test can run, in the order in which it is best begun.
PREPARATIONS = (
    Step(name="environment", argv=_own("-m", f"{_TOOLS}.environments", ".venv"), preparation=True),
    Step(
        name="cpu-engine wheelhouse",
        argv=_own("tests/support/cpu_engine/build.py", "wheelhouse"),
        preparation=True,
        limit_s=2400,
    ),
    # A host that is made and removed leaves the image that all others start from.
    Step(name="lab image", argv=("sh", "-c", f"{_LAB} up image && {_LAB} down image"), preparation=True, limit_s=600),
    Step(name="stand-in wheelhouse", argv=_own("tests/support/stand_in/build.py"), preparation=True, limit_s=120),
    Step(
        name="environment py39",
        argv=_own("-m", f"{_TOOLS}.environments", "--may-lack", ".venv-py39"),
        preparation=True,
        may_skip=True,
    ),
    Step(
        name="demo hosts",
        argv=(_LAB, "up", "ct200", "b300", "--inventory", "inventories/demo/lab.yml"),
        preparation=True,
        limit_s=600,
    ),
    Step(
        name="cpu-engine models",
        argv=_own("tests/support/cpu_engine/build.py", "models"),
        needs=("cpu-engine wheelhouse",),
        preparation=True,
    ),
)

#: What `make bench` needs.
BENCH_NEEDS = ("environment", "lab image", "stand-in wheelhouse", "cpu-engine models")

#: Hosts that a person may be using while tests run.
DEMO_HOSTS = {"ct200", "b300"}

#: What `make demo ENGINE=` needs, by the name it takes.
DEMO_NEEDS = {
    "cpu_engine": ("environment", "demo hosts", "cpu-engine wheelhouse", "cpu-engine models"),
    "stand_in": ("environment", "demo hosts", "stand-in wheelhouse"),
}


def lint() -> list[Step]:
    """Return the steps of `make lint`, the longest first."""
    needs = ("environment",)
    return [
        Step(name="lint ansible-test sanity", argv=_tool("sanity", "sanity"), needs=needs),
        Step(name="lint ansible-lint", argv=("ansible-lint", "--offline", "--nocolor"), needs=needs),
        Step(name="lint mypy", argv=("mypy", *(word for name in _TYPED for word in ("-p", name))), needs=needs),
        Step(name="lint antsibull-docs", argv=_tool("sanity", "docs"), needs=needs),
        Step(name="lint ruff check", argv=("ruff", "check", "."), needs=needs),
        Step(name="lint ruff format", argv=("ruff", "format", "--check", "--diff", "."), needs=needs),
        Step(name="lint yamllint", argv=("yamllint", "--strict", "."), needs=needs),
        Step(name="lint antsibull-changelog", argv=("antsibull-changelog", "lint"), needs=needs),
        Step(name="lint shellcheck", argv=_tool("shell_scripts"), needs=needs),
        Step(name="lint self-contained", argv=_tool("self_contained"), needs=needs),
    ]


def _pytest(name: str, *words: str, seed: int, python: str = "python", **more: t.Any) -> Step:
    options = ("--quiet", "--junit-xml={junit}", f"--hypothesis-seed={seed}")
    return Step(name=name, argv=(python, "-m", "pytest", *options, *words), **more)


def unit(*, seed: int) -> list[Step]:
    """Return the steps of `make test-unit`."""
    old = ".venv-py39/bin/python"
    return [
        _pytest("unit", "tests/unit", seed=seed, needs=("environment",)),
        _pytest("unit py39", *_TARGET_SIDE, seed=seed, python=old, needs=("environment py39",)),
    ]


def integration(*, seed: int) -> list[Step]:
    """Return the steps of `make test-integration`: one for each folder, since each has lab hosts of its own."""
    lab = ("environment", "lab image", "stand-in wheelhouse")
    # The first asks the real engine on this machine: no lab host, but the wheelhouse and the models. The others run its client.
    client = (*lab, "cpu-engine models")
    others = {
        "preflight": ("environment", "cpu-engine models"),
        "benchmark": client,
        "sweep": client,
        "storage": ("environment",),
    }
    folders = sorted(
        {file.relative_to(ROOT).parent for file in (ROOT / "tests" / "integration").rglob("test_*.py")},
        key=lambda folder: (folder.name not in _LONGEST, folder.name),
    )
    return [
        _pytest(
            f"integration {folder.name}",
            str(folder),
            "--durations=10",
            f"--timeout={_HANGS_S}",
            *(() if folder.name in _FIRST_TIME_RIGHT else _ONCE_MORE),
            seed=seed,
            needs=others.get(folder.name, lab),
            limit_s=1800,  # hundreds of starts, each with a wait beside it: long on a busy machine
        )
        for folder in folders
    ]


def long(*, seed: int) -> list[Step]:
    """Return the steps of `make test-long`: what takes longer than `make test` may. Each runs alone, since most of them judge times."""
    lab = ("environment", "lab image", "stand-in wheelhouse")
    client = (*lab, "cpu-engine models")
    flood = ("python", "-m", f"{_COLLECTION}.tests.performance.flood", "--seconds", "60")
    counted = {
        "races": ("tests/integration/races", {RACES: os.environ.get(RACES) or "1000"}),
        "kills": ("tests/integration/known_good/test_kills.py", {KILLS: os.environ.get(KILLS) or "50"}),
        "killed sweeps": (
            "tests/integration/sweep/test_sweep_kills.py",
            {SWEEP_KILLS: os.environ.get(SWEEP_KILLS) or "20"},
        ),
        "shared study": ("tests/integration/storage/test_hosts.py", {LONG: "1"}),
    }
    marked = [
        file.relative_to(ROOT)
        for file in sorted((ROOT / "tests" / "integration").rglob("test_*.py"))
        if "pytest.mark.long(" in file.read_text(encoding="utf-8")
    ]
    alone: dict[str, t.Any] = {"slots": 2, "limit_s": 5400}
    scenarios = [
        dataclasses.replace(step, name=f"long {step.name}", environ={**step.environ, LONG: "1"}, **alone)
        for step in molecule()
        if step.name == "molecule real_engine"
    ]
    return [
        Step(name="long flood", argv=flood, needs=lab, slots=2, limit_s=600),
        *scenarios,
        *(
            _pytest(f"long {name}", path, seed=seed, needs=client, environ=environ, **alone)
            for name, (path, environ) in counted.items()
        ),
        *(
            _pytest(
                f"long {file.parent.name} {file.stem}",
                *(str(file), "-m", "long"),
                seed=seed,
                needs=client,
                environ={LONG: "1"},
                **alone,
            )
            for file in marked
        ),
    ]


def molecule() -> list[Step]:
    """Return the steps of `make molecule`. A scenario counts as a test beside the checks that it makes on its hosts."""
    lab = ("environment", "lab image")
    scenarios = {"real_engine": (*lab, "cpu-engine models"), "default": (*lab, "stand-in wheelhouse")}
    return [
        Step(
            name=f"molecule {name}",
            argv=("molecule", "test", "--scenario-name", name),
            needs=needs,
            environ={JUNIT: "{junit}", "MOLECULE_GLOB": "molecule/*/molecule.yml"},
            counts_itself=True,
        )
        for name, needs in scenarios.items()
    ]


def tier_steps(tier: str, *, seed: int) -> list[Step]:
    """Return the steps of a tier with the preparations that they need."""
    tiers: dict[str, t.Callable[[], list[Step]]] = {
        "molecule": molecule,  # the longest first
        "lint": lint,
        "unit": lambda: unit(seed=seed),
        "integration": lambda: integration(seed=seed),
    }
    tests = long(seed=seed) if tier == "long" else []
    tests += [step for name, steps in tiers.items() if tier in ("test", name) for step in steps()]
    return [*preparations({need for step in tests for need in step.needs}), *tests]


def preparations(names: t.Collection[str]) -> list[Step]:
    """Return the preparations called so and those that they need in turn."""
    wanted = set(names)
    for step in reversed(PREPARATIONS):  # a need stands before what needs it
        if step.name in wanted:
            wanted.update(step.needs)
    return [step for step in PREPARATIONS if step.name in wanted]


def environ(*, root: Path, seed: int, outer: t.Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every step: our tools first on PATH, the seed, no colours."""
    return {
        **outer,
        "PATH": f"{root / '.venv' / 'bin'}{os.pathsep}{outer.get('PATH', os.defpath)}",
        "PYTHONPATH": str(root / ".collections"),
        "PYTHONUNBUFFERED": "1",
        SEED: str(seed),
        REMOVE_HOSTS: "1",
        "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "NO_COLOR": "1",
    }


def lab_hosts(*, root: Path) -> set[str]:
    """Return the names of this checkout's lab hosts; none where the lab says that it cannot run."""
    words = [str(root / _LAB), "status", "--json"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return {row["name"] for row in json.loads(done.stdout)} if done.returncode == 0 else set()


def remove_hosts(names: t.Collection[str], *, root: Path) -> None:
    """Remove lab hosts that tests have left for each other."""
    if names:
        words = [str(root / _LAB), "down", *sorted(names)]
        subprocess.run(words, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


def _say(line: str) -> None:
    print(line, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run a tier, or make what the demo or the bench needs; exit 0 if everything passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=["lint", "unit", "integration", "molecule", "test", "long", "demo", "bench"])
    parser.add_argument("--engine", choices=sorted(DEMO_NEEDS), default="cpu_engine", help="of the demo")
    options = parser.parse_args(argv)
    given = os.environ.get(SEED)
    if given and not given.isdigit():
        parser.error(f"{SEED} is {given!r}: a whole number, or unset for a new one")
    limit = os.environ.get(LIMIT_S)
    if limit and not limit.isdigit():
        parser.error(f"{LIMIT_S} is {limit!r}: a whole number of seconds, or unset for no limit")
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    needs = {"demo": DEMO_NEEDS[options.engine], "bench": BENCH_NEEDS}.get(options.tier)
    steps = tier_steps(options.tier, seed=seed) if needs is None else preparations(needs)
    runner = Runner(
        root=ROOT,
        logs=ROOT / "build" / "logs" / options.tier,
        slots=max(2, os.cpu_count() or 1),
        environ=environ(root=ROOT, seed=seed, outer=os.environ),
        say=_say,
        limit_s=float(limit) if limit else None,
    )
    started = time.monotonic()
    if needs is not None:  # preparations only
        keep = None
    else:
        _say(f"{options.tier}: seed {seed} (repeat with {SEED}={seed})")
        keep = DEMO_HOSTS | lab_hosts(root=ROOT)
    try:
        results = runner.run(steps)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    finally:
        if keep is not None:
            remove_hosts(lab_hosts(root=ROOT) - keep, root=ROOT)
    if needs is not None:
        return 1 if any(result.count.failed for result in results) else 0
    return 0 if report(results, say=_say, elapsed_s=time.monotonic() - started, seed=seed) else 1


if __name__ == "__main__":
    sys.exit(main())
