# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a configuration that works to the best one: a ladder, a screened grid, gates. On a stand-in whose arguments decide how fast a step is."""

from __future__ import annotations

import json
import re
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.integration.evaluate.test_evaluate import FIRM, prompts, script
from ansible_collections.specdec.serving.tests.integration.sweep.conftest import (
    UNIT,
    Sweeping,
    swept_instance,
    verdicts,
)

pytestmark = pytest.mark.long("ten starts and measurements")

DFLASH = {
    "speculative_algorithm": "DFLASH",
    "speculative_draft_model_path": "/models/stand-in-draft",
}


def slower(seconds: float, **arguments: t.Any) -> dict[str, t.Any]:
    """Each step takes so much longer on a server with these arguments."""
    return {"at": "decode", "who": "ranks", "do": "hang", "for_s": seconds, "each": True, "with": arguments}


def instance(faults: t.Sequence[t.Mapping[str, t.Any]] = (), **args: t.Any) -> dict[str, t.Any]:
    own = swept_instance()
    own["args"] = {**own["args"], **args}
    own["env"] = {**own["env"], "STAND_IN_FAULT": json.dumps(list(faults))}
    return own


def steps(output: str) -> list[tuple[str, str, str]]:
    """Verdict, configuration and reason of each step that was printed."""
    text = output[output.rindex("ladder:") :].replace("\\n", "\n")
    return re.findall(r"^ *(start|kept|dropped) +trial +\d+ +\S+  (\S+(?: \S+)*) {2,}(\S.*)$", text, re.MULTILINE)


def test_a_ladder_from_works_to_best(sweeping: Sweeping) -> None:
    """The KV cache has room for 64 tokens where 2 x (16 + 24) are needed: that start is given up, and would have hung."""
    faults = [
        slower(0.02),
        slower(0.1, disable_cuda_graph=True),
        slower(0.05, chunked_prefill_size=2048),
        {"at": "bind", "do": "hang", "with": {"max_total_tokens": 64}},
        {"fault": "oom-load-target", "with": {"disable_radix_cache": True}},
    ]
    sweeping.deployment.variables["sglang_instances"] = [instance(faults, chunked_prefill_size=2048)]
    deployed = sweeping.deployment.play()
    assert deployed.returncode == 0, deployed.output[-4000:]
    sweeping.write(
        {
            "max_total_tokens": [64],
            "disable_cuda_graph": [False],
            "disable_radix_cache": [True],
            "chunked_prefill_size": [8192],
            "speculative_dflash_block_size": [2],
        },
        sampler="ladder",
    )
    swept = sweeping.sweep("--diff", sweep_apply=True, timeout=1200)
    print(swept.output.replace("\\n", "\n"))
    assert swept.returncode == 0, swept.output[-6000:]
    graphs, both = "disable_cuda_graph=False", "disable_cuda_graph=False chunked_prefill_size=8192"
    found = steps(swept.output)
    assert [(verdict, configuration) for verdict, configuration, _reason in found] == [
        ("start", "baseline"),
        ("dropped", "max_total_tokens=64"),
        ("kept", graphs),
        ("dropped", f"{graphs} disable_radix_cache=True"),
        ("kept", both),
        ("dropped", f"{both} speculative_dflash_block_size=2"),
    ]
    reasons = [reason for _verdict, _configuration, reason in found]
    assert (reasons[1], reasons[3]) == ("kv_cache_too_small", "gpu_out_of_memory")
    assert "better than trial 0" in reasons[2]
    assert "better than trial 2" in reasons[4]
    assert "worse than trial 4" in reasons[5]
    assert "start given up, its KV cache is too small" in swept.output
    assert verdicts(swept.output)[6] == "complete", "the baseline once more"

    # The winner was deployed, and is what runs.
    assert sweeping.is_own()
    pid = sweeping.host.exec(["systemctl", "show", "--value", "--property=MainPID", UNIT]).stdout.strip()
    words = sweeping.host.exec(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")
    assert words[words.index("--chunked-prefill-size") + 1] == "8192"
    assert not {"--disable-cuda-graph", "--disable-radix-cache", "--max-total-tokens"} & set(words)
    unit = sweeping.host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout
    assert "--chunked-prefill-size 8192" in unit
    kept = sweeping.host.exec(["sh", "-c", "cat /var/lib/specdec/sglang/known-good/a/*.json"]).stdout
    assert "--chunked-prefill-size 8192" in kept


def test_the_best_of_a_screened_grid_is_deployed(sweeping: Sweeping) -> None:
    """Of two configurations the faster one is measured in full, wins, and is what runs afterwards."""
    times = {name: json.dumps({"decode_step": seconds}) for name, seconds in (("slow", 6.0), ("fast", 2.0))}
    own = sweeping.deployment.variables["sglang_instances"][0]
    own["env"] = {**own["env"], "STAND_IN_TIMES": json.dumps({"decode_step": 4.0})}
    deployed = sweeping.deployment.play()
    assert deployed.returncode == 0, deployed.output[-4000:]
    sweeping.write({"env.STAND_IN_TIMES": list(times.values())}, levels=[1, 2], screen={"levels": [2], "share": 0.4})
    swept = sweeping.sweep(sweep_apply=True)
    print(swept.output.replace("\\n", "\n"))
    assert swept.returncode == 0, swept.output[-6000:]
    assert verdicts(swept.output) == dict.fromkeys(range(4), "complete")
    assert "2 of 2 in the screening, not measured in full" in swept.output
    assert "1 of 2 in the screening, measured in full as trial 3" in swept.output
    assert "Trial 3 is deployed on role and ready. The inventory does not have it yet" in swept.output
    assert sweeping.is_own()
    assert f"STAND_IN_TIMES={times['fast']}" in sweeping.environment()


def test_gates_by_answers(sweeping: Sweeping) -> None:
    """Block size 4 answers other tokens than without speculation, block size 16 writes no code."""
    gates = {"parity": True, "min_pass_at_1": 0.5}
    space: dict[str, t.Any] = {
        **{name: [value] for name, value in DFLASH.items()},
        "speculative_dflash_block_size": [4, 16],
    }
    sweeping.write(space, gates=gates)
    invocation = sweeping.deployment.invocation(UNIT)
    sweeping.host.exec(["rm", "-rf", "/var/lib/specdec/sglang/parity"])

    refused = sweeping.sweep()
    assert refused.returncode == 2
    assert "a speculates itself (DFLASH), so no trial records them" in refused.output
    assert "-e parity=record -e parity_baseline=/var/lib/specdec/sglang/parity/a.json" in refused.output
    assert sweeping.deployment.invocation(UNIT) == invocation, "something was started"

    # Of 36 problems, a limit of 4 takes 0, 9, 18 and 27.
    answers = [
        {"match": '"role"', "text": "I would rather not.", "with": {"speculative_dflash_block_size": 16}},
        *prompts(9, tokens={"3": 12}, **{"with": {"speculative_dflash_block_size": 4}}),
        *prompts(9, **FIRM),
        *script(),
    ]
    own = instance()
    own["args"] = {name: value for name, value in own["args"].items() if not name.startswith("speculative")}
    own["env"]["STAND_IN_ANSWERS"] = json.dumps(answers)
    sweeping.deployment.variables.update(sglang_instances=[own], sglang_evaluate_limit=4)
    deployed = sweeping.deployment.play()
    assert deployed.returncode == 0, deployed.output[-4000:]
    (sweeping.folder / "results" / "nightly.journal").unlink(missing_ok=True)
    swept = sweeping.sweep()
    print(swept.output.replace("\\n", "\n"))
    assert swept.returncode == 0, swept.output[-6000:]
    assert verdicts(swept.output) == {0: "complete", 1: "parity", 2: "incorrect"}
    assert "nothing is better than the instance as it is" in swept.output
    assert sweeping.is_own()
