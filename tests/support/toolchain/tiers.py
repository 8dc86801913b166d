# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tiers of `make`: which steps they have and what these wait for. PRIVATE to this checkout; standard library only."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.toolchain import runner
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT

#: The variable that carries a tier's seed to every step. Set it to repeat a run.
SEED = "SPECDEC_SEED"

_COLLECTION = "ansible_collections.specdec.serving"
_TOOLS = f"{_COLLECTION}.tests.support.toolchain"
#: What runs on a managed host, tested on its oldest Python too.
_TARGET_SIDE = ("tests/unit/plugins/modules", "tests/unit/plugins/module_utils")


def _tool(name: str, *words: str) -> tuple[str, ...]:
    return ("python", "-m", f"{_TOOLS}.{name}", *words)


def _pytest(*words: str, seed: int) -> tuple[str, ...]:
    return ("-m", "pytest", "--junit-xml={junit}", f"--hypothesis-seed={seed}", "--quiet", *words)


def environments() -> list[runner.Step]:
    """Return the steps that make the environments. They run with whatever Python runs this."""
    make = (sys.executable, "-m", f"{_TOOLS}.environments")
    return [runner.Step(name="environment", argv=(*make, ".venv"), preparation=True)]


def lint() -> list[runner.Step]:
    """Return the steps of `make lint`, the longest first."""
    needs = ("environment",)
    return [
        runner.Step(name="lint ansible-test sanity", argv=_tool("sanity", "sanity"), needs=needs),
        runner.Step(name="lint ansible-lint", argv=("ansible-lint", "--offline", "--nocolor"), needs=needs),
        runner.Step(
            name="lint mypy",
            argv=("mypy", "-p", f"{_COLLECTION}.plugins", "-p", _TOOLS),
            needs=needs,
        ),
        runner.Step(name="lint antsibull-docs", argv=_tool("sanity", "docs"), needs=needs),
        runner.Step(name="lint ruff check", argv=("ruff", "check", "."), needs=needs),
        runner.Step(name="lint ruff format", argv=("ruff", "format", "--check", "--diff", "."), needs=needs),
        runner.Step(name="lint yamllint", argv=("yamllint", "--strict", "."), needs=needs),
        runner.Step(name="lint antsibull-changelog", argv=("antsibull-changelog", "lint"), needs=needs),
        runner.Step(name="lint shellcheck", argv=_tool("shell_scripts"), needs=needs),
        runner.Step(name="lint self-contained", argv=_tool("self_contained"), needs=needs),
    ]


def unit(*, seed: int) -> list[runner.Step]:
    """Return the steps of `make test-unit`."""
    make = (sys.executable, "-m", f"{_TOOLS}.environments", "--may-lack", ".venv-py39")
    return [
        runner.Step(name="unit", argv=("python", *_pytest("tests/unit", seed=seed)), needs=("environment",)),
        runner.Step(name="environment py39", argv=make, may_skip=True, preparation=True),
        runner.Step(
            name="unit py39",
            argv=(".venv-py39/bin/python", *_pytest(*_TARGET_SIDE, seed=seed)),
            needs=("environment py39",),
        ),
    ]


def steps(tier: str, *, seed: int) -> list[runner.Step]:
    """Return the steps of a tier."""
    parts: dict[str, t.Callable[[], list[runner.Step]]] = {
        "lint": lint,
        "unit": lambda: unit(seed=seed),
    }
    wanted = list(parts) if tier == "test" else [tier]
    return environments() + [step for part in wanted for step in parts[part]()]


def environ(*, root: Path, seed: int, outer: t.Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every step: our tools first on PATH, the seed, no colours, no question to a terminal."""
    return {
        **outer,
        "PATH": f"{root / '.venv' / 'bin'}{os.pathsep}{outer.get('PATH', os.defpath)}",
        "PYTHONPATH": str(root / ".collections"),
        "PYTHONUNBUFFERED": "1",
        SEED: str(seed),
        "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "NO_COLOR": "1",
    }


def main(argv: list[str] | None = None) -> int:
    """Run a tier; exit 0 if everything passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=["lint", "unit", "test"])
    tier = parser.parse_args(argv).tier
    given = os.environ.get(SEED)
    if given and not given.isdigit():
        parser.error(f"{SEED} is {given!r}: a whole number, or unset for a new one")
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    started = time.monotonic()

    def say(line: str) -> None:
        print(line, flush=True)

    say(f"make {tier}: seed {seed} (repeat with {SEED}={seed})")
    work = runner.Runner(
        root=ROOT,
        logs=ROOT / "build" / "logs" / tier,
        slots=max(2, os.cpu_count() or 1),
        environ=environ(root=ROOT, seed=seed, outer=os.environ),
        say=say,
    )
    try:
        results = work.run(steps(tier, seed=seed))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0 if runner.report(results, say=say, elapsed_s=time.monotonic() - started, seed=seed) else 1


if __name__ == "__main__":
    sys.exit(main())
