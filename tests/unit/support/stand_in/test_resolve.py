# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The resolved configuration against the recorded `server_args=` lines, and the rules that stop a start."""

from __future__ import annotations

import ast
import typing as t
from pathlib import Path

import pytest
from sglang.stand_in import arguments, resolve
from sglang.stand_in.profile import Profile
from sglang.stand_in.rank import ranks_of

from ansible_collections.specdec.serving.tests.support.stand_in.harness import make_models

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "sglang-0.5.23"

PLAIN = "--device cpu --host 127.0.0.1 --port 30001 --max-total-tokens 4096 --enable-metrics"
STANDALONE = (
    "--device cpu --host 127.0.0.1 --port 30001 --attention-backend intel_amx --grammar-backend none"
    " --max-total-tokens 4096 --mem-fraction-static 0.5 --enable-metrics --max-running-requests 8"
    " --decode-log-interval 5 --speculative-algorithm STANDALONE --speculative-draft-model-path DRAFT"
    " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)
# Recorded values that a stand-in cannot have, and why.
OTHER = {"random_seed": "drawn at each start"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


def settings(models: Path, words: str, target: str = "tiny") -> resolve.Settings:
    profile = Profile("0.5.23")
    argv = ["--model-path", str(models / target), *words.replace("DRAFT", str(models / "tiny-draft")).split()]
    args = arguments.build_parser(profile).parse_args(argv)
    return resolve.resolve(profile=profile, args=args, argv=argv, seed=1)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param("startup-cpu-plain.log", PLAIN, id="plain"),
        pytest.param("startup-cpu-standalone-draft.log", STANDALONE, id="standalone-draft"),
    ],
)
def test_resolved_arguments_are_the_recorded_ones(models: Path, log: str, words: str) -> None:
    lines = (RECORDED / log).read_text(encoding="utf-8", errors="replace").splitlines()
    line = next(line for line in lines if "server_args={" in line)
    recorded: dict[str, t.Any] = ast.literal_eval(line.partition("server_args=")[2].replace("/models/", f"{models}/"))
    resolved = settings(models, words).resolved
    assert list(resolved) == list(recorded)
    assert {k: v for k, v in resolved.items() if k not in OTHER} == {
        k: v for k, v in recorded.items() if k not in OTHER
    }


def test_the_story(models: Path) -> None:
    story = settings(
        models,
        "--tp-size 8 --ep-size 8 --disable-cuda-graph --speculative-algorithm dflash"
        f" --speculative-draft-model-path {models / 'stand-in-draft'}",
        target="stand-in-target",
    )
    assert story.draft is not None
    assert (story.target.architecture, story.draft.architecture) == (
        "KimiK25ForConditionalGeneration",
        "DFlashDraftModel",
    )
    assert story.block_size == 8
    assert story.max_running_requests == 48
    assert story.resolved["cuda_graph_config"]["decode"]["backend"] == "disabled"
    assert story.resolved["disable_cuda_graph"] is True
    assert round(story.target.size_gb / 8, 2) == 72.24


def test_graph_sizes_of_speculation(models: Path) -> None:
    graphs = settings(models, "--speculative-algorithm NGRAM").resolved["cuda_graph_config"]["decode"]
    assert graphs["bs"] == [*range(1, 9), *range(10, 33, 2), 40, 44, 48]


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        pytest.param(
            "--speculative-algorithm DFLASH --device cpu",
            ValueError,
            "DFLASH speculative decoding is not supported by CpuSRTPlatform on device 'cpu'.",
            id="dflash-on-cpu",
        ),
        pytest.param(
            "--speculative-algorithm DFLASH",
            ValueError,
            "DFLASH speculative decoding requires setting --speculative-draft-model-path.",
            id="dflash-without-draft",
        ),
        pytest.param(
            "--speculative-algorithm DFLASH --speculative-draft-model-path DRAFT --pp-size 2",
            ValueError,
            "Currently DFLASH speculative decoding only supports pp_size == 1.",
            id="dflash-pipeline",
        ),
        pytest.param(
            "--speculative-algorithm DFLASH --speculative-draft-model-path DRAFT --speculative-dflash-block-size 8"
            " --speculative-num-draft-tokens 16",
            ValueError,
            "Both --speculative-num-draft-tokens and --speculative-dflash-block-size are set but they differ. For DFLASH"
            " they must match. speculative_num_draft_tokens=16, speculative_dflash_block_size=8.",
            id="block-size-differs",
        ),
        pytest.param(
            "--speculative-algorithm DFLASH --speculative-draft-model-path DRAFT --speculative-dflash-block-size 0",
            ValueError,
            "DFLASH requires --speculative-dflash-block-size to be positive, got 0.",
            id="block-size-zero",
        ),
        pytest.param(
            "--speculative-algorithm DFLASH --speculative-draft-model-path DRAFT --speculative-draft-window-size 4",
            ValueError,
            "--speculative-draft-window-size must be >= --speculative-num-draft-tokens (block_size). window_size=4,"
            " block_size=16.",
            id="window",
        ),
        pytest.param(
            "--served-model-name a:b",
            AssertionError,
            "served_model_name cannot contain a colon (':') character. The colon is reserved for the 'model:adapter'"
            " syntax used in LoRA adapter specification. Invalid value: 'a:b'",
            id="colon",
        ),
        pytest.param(
            "--speculative-algorithm DFLASH --speculative-draft-model-path /models/nope",
            OSError,
            "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/nope'."
            " Use `repo_type` argument if needed.",
            id="draft-missing",
        ),
    ],
)
def test_rules(models: Path, words: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        settings(models, words)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("sizes", "titles"),
    [
        pytest.param({}, ["sglang::scheduler"], id="one"),
        pytest.param(
            {"tp_size": 2, "ep_size": 2}, ["sglang::scheduler_TP0_EP0", "sglang::scheduler_TP1_EP1"], id="tp-ep"
        ),
        pytest.param({"tp_size": 2, "ep_size": 1}, ["sglang::scheduler_TP0", "sglang::scheduler_TP1"], id="tp"),
        pytest.param({"pp_size": 2}, ["sglang::scheduler_PP0", "sglang::scheduler_PP1"], id="pp"),
        pytest.param({"dp_size": 2}, ["sglang::scheduler_DP0", "sglang::scheduler_DP1"], id="dp"),
        pytest.param(
            {"tp_size": 4, "ep_size": 2},
            [f"sglang::scheduler_TP{tp}_EP{tp // 2}" for tp in range(4)],
            id="ep-below-tp",
        ),
        pytest.param(
            {"tp_size": 4, "nnodes": 2, "node_rank": 1},
            ["sglang::scheduler_TP2", "sglang::scheduler_TP3"],
            id="second-node",
        ),
    ],
)
def test_ranks(sizes: dict[str, int], titles: list[str]) -> None:
    resolved = dict.fromkeys(("tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "nnodes"), 1)
    resolved.update({"node_rank": 0, **sizes})
    assert [rank.title for rank in ranks_of(resolved)] == titles
