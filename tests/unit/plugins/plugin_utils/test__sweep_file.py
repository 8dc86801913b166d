# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _sweep_file
from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import (
    METRICS,
    Budget,
    Parameter,
    SweepFileError,
    load_sweep,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import grid_points

CHECKOUT = Path(__file__).resolve().parents[4]

WHOLE = """\
---
instance: k26-dflash
space:
  speculative-dflash-block-size: [4, 8, 16]
  mem_fraction_static: {low: 0.8, high: 0.9, step: 0.05}
  env.SGLANG_X: ["0", "1"]
  tp: [4, 8]
include:
  - {speculative_dflash_block_size: 32}
exclude:
  - {tp_size: 4, speculative_dflash_block_size: 16}
conditions:
  - when: {tp_size: 8}
    only: [env.SGLANG_X]
repeats: 3
workloads: [natural-mixed, fixed-1k-1k]
levels: [1, 8]
gates: {min_pass_at_1: 0.8, parity: true, min_acceptance_length: 1.5}
objective: {metric: user_tok_s, level: 1}
sampler: grid
budget: {trials: 60, hours: 12.5}
stop: {patience: 10, failures: 5}
monotone:
  - {cause: gpu_out_of_memory, parameter: mem_fraction_static}
"""
LEAST = "instance: a\nspace:\n  tp_size: [1, 2]\nworkloads: [w]\nlevels: [1, 4]\n"


def errors(text: str) -> tuple[str, ...]:
    with pytest.raises(SweepFileError) as caught:
        load_sweep(text, path="s.yml")
    return caught.value.errors


def test_a_whole_file() -> None:
    sweep = load_sweep(WHOLE, path="s.yml")
    assert [parameter.key for parameter in sweep.space] == [
        "speculative_dflash_block_size",
        "mem_fraction_static",
        "env.SGLANG_X",
        "tp_size",
    ]
    assert sweep.parameter("env.SGLANG_X").name == "SGLANG_X"
    assert sweep.parameter("mem_fraction_static").values() == (0.8, 0.85, 0.9)
    assert sweep.exclude == ({"tp_size": 4, "speculative_dflash_block_size": 16},)
    assert sweep.conditions[0].when == {"tp_size": (8,)}
    assert sweep.gates.valid
    assert sweep.gates.parity
    assert sweep.budget == Budget(trials=60, hours=12.5)
    assert (sweep.objectives[0].direction, sweep.objectives[0].workload) == ("maximize", "natural-mixed")


def test_what_is_left_out() -> None:
    sweep = load_sweep(LEAST, path="s.yml")
    assert (sweep.sampler, sweep.repeats, sweep.budget) == ("grid", 1, Budget())
    # The largest level: a server is tuned for its load.
    assert (sweep.objectives[0].metric, sweep.objectives[0].level) == ("output_tok_s", 4)


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        pytest.param(Parameter("a", "argument", low=1, high=4, step=1), (1, 2, 3, 4), id="whole numbers stay whole"),
        pytest.param(
            Parameter("a", "argument", low=0.1, high=0.3, step=0.1), (0.1, 0.2, 0.3), id="no 0.30000000000000004"
        ),
        pytest.param(Parameter("a", "argument", low=0, high=1, step=0.4), (0.0, 0.4, 0.8), id="ends below high"),
    ],
)
def test_values_of_a_range(parameter: Parameter, values: tuple[float, ...]) -> None:
    assert parameter.values() == values
    assert [type(value) for value in parameter.values()] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("[1, 2", "s.yml:1: this is no YAML", id="no YAML"),
        pytest.param("[1, 2]", "s.yml:1: a sweep file is a mapping", id="a list"),
        pytest.param("", "s.yml:1: a sweep file is a mapping", id="empty"),
        pytest.param(LEAST + "sampler: gird\n", "s.yml:6: sampler: 'gird' is not one of", id="unknown sampler"),
        pytest.param(
            LEAST + "sampler: ladder\nscreen: true\n", "s.yml:7: 'screen' is for sampler 'grid'", id="a ladder screened"
        ),
        pytest.param(
            LEAST + "screen: {levels: [3]}\n", "s.yml:6: level 3 is not among 'levels'", id="screened at no level"
        ),
        pytest.param(
            LEAST + "screen: {share: 1}\n",
            "s.yml:6: screen.share: 1 is greater than or equal to the maximum of 1",
            id="all of it promoted",
        ),
        pytest.param(
            LEAST + "min_total_tokens: -1\n", "s.yml:6: min_total_tokens: -1 is less", id="fewer than no tokens"
        ),
        pytest.param(
            LEAST + "budgets: {}\n", "s.yml:6: unknown key 'budgets'; did you mean 'budget'?", id="unknown key"
        ),
        pytest.param(
            LEAST + "budget:\n  hour: 3\n",
            "s.yml:7: unknown key 'hour' in budget; did you mean 'hours'?",
            id="unknown key below",
        ),
        pytest.param(
            LEAST + "budget: {hours: 0}\n", "s.yml:6: budget.hours: 0 is less than or equal to", id="no hours"
        ),
        pytest.param(LEAST.replace("levels: [1, 4]\n", ""), "s.yml:1: 'levels' is a required property", id="no levels"),
        pytest.param(
            LEAST.replace("[1, 2]", "[]"), "s.yml:3: space.tp_size: [] is not a list of values", id="no values"
        ),
        pytest.param(LEAST.replace("[1, 2]", "2"), "s.yml:3: space.tp_size: 2 is not a list of values", id="no list"),
        pytest.param(LEAST.replace("[1, 2]", "[1, 2, 1]"), "s.yml:3: tp_size: 1 is listed twice", id="twice"),
        pytest.param(
            LEAST.replace("  tp_size", "  tp: [3]\n  tp_size"),
            "s.yml:4: 'tp_size' is the argument 'tp_size' once more",
            id="two names",
        ),
        pytest.param(LEAST + "space: {a: [1]}\n", "s.yml:6: 'space' stands here a second time", id="duplicate key"),
        pytest.param(
            LEAST.replace("tp_size", "port"), "s.yml:3: 'port' cannot be swept: it belongs to the role", id="owned"
        ),
        pytest.param(LEAST.replace("tp_size", "api-key"), "s.yml:3: 'api-key' cannot be swept", id="a key"),
        pytest.param(
            LEAST.replace("tp_size", "env.A B"), "s.yml:3: 'A B' is no name of an environment variable", id="variable"
        ),
        pytest.param(LEAST.replace("tp_size", "env.HF_TOKEN"), "s.yml:3: 'HF_TOKEN' looks like a secret", id="secret"),
        pytest.param(
            LEAST.replace("[1, 2]", "{low: 3, high: 3}"),
            "s.yml:3: tp_size: low 3 is not below high 3",
            id="empty range",
        ),
        pytest.param(
            LEAST.replace("[1, 2]", "{low: 1, high: 3}"),
            "s.yml:3: tp_size: sampler 'grid' needs 'step'",
            id="grid without step",
        ),
        pytest.param(LEAST.replace("[1, 2]", "{low: 0, high: 3, step: 0.001}"), "more than 1000 values", id="too fine"),
        pytest.param(LEAST.replace("[1, 2]", "{low: 0, high: 3, log: true}"), "'log' wants low above 0", id="log of 0"),
        pytest.param(
            LEAST + "exclude: [{ep_size: 3}]\n", "s.yml:6: 'ep_size' is not in 'space'", id="unknown in exclude"
        ),
        pytest.param(LEAST + "exclude: [{tp_sizes: 3}]\n", "did you mean 'tp_size'?", id="nearest"),
        pytest.param(LEAST + "exclude: [{tp_size: '1'}]\n", "s.yml:6: tp_size is never '1'", id="excludes nothing"),
        pytest.param(
            LEAST + "conditions: [{when: {tp_size: 9}, only: [tp_size]}]\n", "tp_size is never 9", id="never holds"
        ),
        pytest.param(
            LEAST + "conditions: [{when: {tp_size: 1}, only: [tp_size]}]\n", "cannot depend on itself", id="of itself"
        ),
        pytest.param(
            LEAST + "objective: {metric: speed}\n",
            "s.yml:6: objective.metric: 'speed' is not one of",
            id="unknown metric",
        ),
        pytest.param(
            LEAST + "objective: {metric: user_tok_s, level: 2}\n",
            "s.yml:6: level 2 is not among 'levels' [1, 4]",
            id="level",
        ),
        pytest.param(
            LEAST + "objective: {metric: user_tok_s, workload: x}\n",
            "workload 'x' is not among 'workloads' ['w']",
            id="workload",
        ),
        pytest.param(
            LEAST + "objective: fast\n", "s.yml:6: objective: 'fast' is not one objective", id="no form of it"
        ),
        pytest.param(
            LEAST + "objective: [{metric: user_tok_s}, {metric: user_tok_s}]\n",
            "is an objective already",
            id="one twice",
        ),
        pytest.param(LEAST + "seed: 1.0\n", "s.yml:6: seed: 1.0 is not of type 'integer'", id="no whole number"),
        pytest.param(LEAST + "repeats: 1001\n", "s.yml:6: repeats: 1001 is greater", id="repeats for weeks"),
        pytest.param(LEAST.replace("4]", "4097]"), "s.yml:5: levels.1: 4097 is greater", id="level of no client"),
        pytest.param(LEAST.replace("[1, 2]", "[.nan]"), "s.yml:3: space.tp_size.0: nan is no number", id="nan"),
        pytest.param(
            LEAST + "budget: {hours: .inf}\n", "s.yml:6: budget.hours: inf is no number", id="infinite budget"
        ),
        pytest.param(LEAST.replace("[1, 2]", f"[{10**30}]"), "s.yml:3: space.tp_size.0: a whole", id="huge number"),
        pytest.param(LEAST.replace("[1, 2]", "[2026-01-01]"), "is a date to YAML; put it in quotes", id="date"),
        pytest.param(LEAST.replace("[1, 2]", "[2026-13-01]"), "month must be in 1..12", id="date that is none"),
        pytest.param(
            LEAST.replace("[1, 2]", "{low: 1, high: 2, step: 0}"), "space.tp_size.step: 0 is less", id="step 0"
        ),
        pytest.param(LEAST.replace("tp_size", "1"), "s.yml:3: space.1: the key 1 is no text", id="key of no text"),
        pytest.param(
            LEAST + "? [a]\n: 1\n", "s.yml:6: this is no YAML: a key is a list or a mapping", id="key of a list"
        ),
        pytest.param(LEAST + "seed: \x01\n", "s.yml:6: this is no YAML: the character '\\x01'", id="control character"),
        pytest.param(LEAST.replace("[1, 2]", "&a [*a]"), "nested without end", id="alias in its own anchor"),
        pytest.param(
            LEAST + "include: [{tp: 3, tp_size: 4}]\n", "s.yml:6: ['tp', 'tp_size'] name the same", id="two names"
        ),
        pytest.param(
            LEAST + "conditions: [{when: {tp_size: []}, only: [tp_size]}]\n", "no values here", id="when nothing"
        ),
        pytest.param(LEAST + "sampler: tpe\n", "s.yml:6: sampler 'tpe' never ends by itself", id="endless"),
        pytest.param(
            LEAST + "sampler: nsga2\nbudget: {trials: 3}\n", "'nsga2' is for two objectives", id="one for nsga2"
        ),
        pytest.param(
            LEAST + "sampler: ladder\nobjective: [{metric: user_tok_s}, {metric: output_tok_s}]\n",
            "takes one objective",
            id="two for a ladder",
        ),
        pytest.param(
            LEAST.replace("[1, 2]", "[a, b]") + "monotone: [{cause: oom, parameter: tp_size}]\n",
            "no numbers",
            id="monotone words",
        ),
        pytest.param(
            LEAST + "monotone: [{cause: out_of_memory, parameter: tp_size}]\n",
            "s.yml:6: no failure has the cause 'out_of_memory'; did you mean 'gpu_out_of_memory'?",
            id="monotone slip",
        ),
    ],
)
def test_errors_name_the_line(text: str, wanted: str) -> None:
    assert any(wanted in error for error in errors(text)), errors(text)


def test_all_faults_are_told_at_once() -> None:
    text = LEAST.replace("tp_size", "port") + "exclude: [{a: 1}, {b: 1}]\nsampler: tpe\n"
    assert [error.split(": ")[0] for error in errors(text)] == ["s.yml:3", "s.yml:7", "s.yml:6", "s.yml:6"]


def test_the_schema_is_one_and_knows_the_metrics() -> None:
    schema = json.loads(_sweep_file._SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$defs"]["objective"]["properties"]["metric"]["enum"] == sorted(METRICS)


@pytest.mark.parametrize("path", sorted(CHECKOUT.glob("roles/sglang/files/sweeps/*.yml")), ids=lambda path: path.name)
def test_sweep_files_that_come_with_the_role(path: Path) -> None:
    sweep = load_sweep(path.read_text(), path=str(path))
    points = grid_points(sweep)
    assert len(points) == {"dflash.yml": 16, "drafts.yml": 3, "ladder.yml": 9}[path.name]


def test_the_example_of_the_roles_readme() -> None:
    text = (CHECKOUT / "roles/sglang/README.md").read_text()
    part = text[text.index("## Sweeps") :]
    sweep = load_sweep(part.split("```yaml\n")[1].split("```")[0], path="README.md")
    assert (sweep.sampler, len(grid_points(sweep))) == ("grid", 7)


@pytest.mark.parametrize(
    ("more", "levels", "share"),
    [
        pytest.param("screen: true\n", (1, 32), 1 / 3, id="what ranks, and the other end"),
        pytest.param(
            "screen: true\nobjective: {metric: user_tok_s, level: 1}\n", (1, 32), 1 / 3, id="the small end ranks"
        ),
        pytest.param(
            "screen: true\nobjective: {metric: user_tok_s, level: 8}\n", (8, 32), 1 / 3, id="the middle ranks"
        ),
        pytest.param("screen: {levels: [32], share: 0.25}\n", (32,), 0.25, id="as given"),
    ],
)
def test_two_levels_are_screened(more: str, levels: tuple[int, ...], share: float) -> None:
    text = LEAST.replace("[1, 4]", "[1, 8, 32]") + more
    screen = load_sweep(text, path="s.yml").screen
    assert screen is not None
    assert (screen.levels, screen.share) == (levels, share)


def test_what_ranks_must_be_screened() -> None:
    text = LEAST.replace("[1, 4]", "[1, 8]") + "screen: {levels: [1]}\n"
    with pytest.raises(SweepFileError, match=r"s\.yml:6: the objective is ranked at level 8, which is not screened"):
        load_sweep(text, path="s.yml")
