# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import struct
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._argument_config import Config
from ansible_collections.specdec.serving.plugins.module_utils._memory_estimate import (
    GIB,
    Estimate,
    ModelFolder,
    Weights,
    estimate,
    kv_bytes_per_token,
    read_model,
)

#: Kimi K2.6 as the story has it: 72.24 GiB of target weights on each of eight GPUs.
KIMI = {
    "text_config": {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "max_position_embeddings": 262144,
    },
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152},
}
DRAFT = {
    "block_size": 8,
    "num_hidden_layers": 5,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 7168,
}
STORY = {
    "tp_size": 8,
    "ep_size": 8,
    "disable_cuda_graph": True,
    "speculative_algorithm": "DFLASH",
    "speculative_dflash_block_size": 8,
}


def config(**values: t.Any) -> Config:
    return Config(values=values, asked=set(values), version="0.5.23", target=KIMI)


def folder(total_gib: float, content: dict[str, t.Any], basis: str = "index") -> ModelFolder:
    return ModelFolder("/models/m", content, Weights(other=int(total_gib * GIB), basis=basis), 8)


def tensors(path: Path, sizes: dict[str, int], *, cut: int = 0) -> None:
    """A safetensors file with tensors of these bytes, `cut` bytes short."""
    header, position = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [position, position + size]}
        position += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * (position - cut))


class TestModel:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        (tmp_path / "config.json").write_text('{"model_type": "x"}')
        tensors(
            tmp_path / "model-1.safetensors",
            {
                "model.embed_tokens.weight": 1000,
                "model.layers.0.self_attn.q_b_proj.weight": 200,
                "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": 30,
            },
        )
        tensors(
            tmp_path / "model-2.safetensors",
            {
                "model.layers.0.mlp.experts.0.up_proj.weight": 4000,
                "model.layers.0.mlp.shared_experts.up_proj.weight": 500,
                "model.layers.0.mlp.gate.weight": 6,
                "model.norm.weight": 7,
            },
        )
        names = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
        (tmp_path / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 5743}, "weight_map": names})
        )
        return tmp_path

    def test_sizes_of_tensors(self, model: Path) -> None:
        found = read_model(str(model))
        assert found.weights == Weights(experts=4000, attention=200, whole=43, other=1500, basis="headers")
        assert (found.shards, found.missing, found.problem) == (2, (), "")
        assert found.weights.total == 5743

    def test_without_an_index(self, model: Path) -> None:
        (model / "model.safetensors.index.json").unlink()
        assert read_model(str(model)).weights.total == 5743

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-1.safetensors"])
    def test_a_file_that_is_nothing_but_brackets(self, model: Path, name: str) -> None:
        text = b"[" * 100_000
        (model / name).write_bytes(struct.pack("<Q", len(text)) + text if name.endswith("rs") else text)
        found = read_model(str(model))
        assert found.weights.basis != "headers"

    def test_an_index_with_an_impossible_name(self, model: Path) -> None:
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x\0y"}}))
        assert read_model(str(model)).missing == ("x\0y",)

    def test_a_missing_and_an_empty_shard(self, model: Path) -> None:
        (model / "model-1.safetensors").unlink()
        (model / "model-2.safetensors").write_bytes(b"")
        found = read_model(str(model))
        assert found.missing == ("model-1.safetensors", "model-2.safetensors")
        assert found.weights == Weights()

    def test_a_shard_that_was_cut_off(self, model: Path) -> None:
        tensors(model / "model-1.safetensors", {"x": 1000}, cut=1)
        found = read_model(str(model))
        assert (
            found.problem
            == "is not complete: 'model-1.safetensors' holds 999 of 1000 bytes of weights; fetch the file again"
        )

    def test_headers_that_account_for_little(self, model: Path) -> None:
        content = json.loads((model / "model.safetensors.index.json").read_text())
        content["metadata"]["total_size"] = 10**12
        (model / "model.safetensors.index.json").write_text(json.dumps(content))
        assert read_model(str(model)).weights == Weights(other=10**12, basis="index")

    def test_files_that_are_something_else(self, model: Path) -> None:
        (model / "model.safetensors.index.json").unlink()
        for name in ("model-1.safetensors", "model-2.safetensors"):
            (model / name).write_bytes(b"x" * 50)
        assert read_model(str(model)).weights == Weights(other=100, basis="files")

    @pytest.mark.parametrize(
        ("name", "text", "problem"),
        [
            ("config.json", "{", "has a config.json that cannot be read"),
            ("config.json", "[]", "has a config.json that cannot be read: no JSON object"),
            ("model.safetensors.index.json", "[]", "has a model.safetensors.index.json that cannot be read"),
        ],
    )
    def test_a_file_that_cannot_be_read(self, model: Path, name: str, text: str, problem: str) -> None:
        (model / name).write_text(text)
        assert problem in read_model(str(model)).problem

    def test_no_folder(self, tmp_path: Path) -> None:
        assert read_model("org/name") == ModelFolder("org/name")
        assert read_model(str(tmp_path)).problem == "has no config.json"


@pytest.mark.parametrize(
    ("values", "content", "expected"),
    [
        # One latent vector of 576 numbers, whole on each rank.
        ({"tp_size": 8}, KIMI, 576 * 61 * 2),
        ({"tp_size": 8, "kv_cache_dtype": "fp8_e4m3"}, KIMI, 576 * 61),
        ({"tp_size": 4, "pp_size": 2}, KIMI, 576 * 61),
        # Grouped heads are split as far as there are any.
        ({"tp_size": 4}, DRAFT, 2 * 2 * 128 * 5 * 2),
        ({"tp_size": 16}, DRAFT, 2 * 1 * 128 * 5 * 2),
        ({"tp_size": 4, "attn_dp_size": 4}, DRAFT, 2 * 8 * 128 * 5 * 2),
        ({"kv_cache_dtype": "nvfp4"}, DRAFT, int(2 * 8 * 128 * 5 * 0.5625)),
        ({}, {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "dtype": "float32"}, 2 * 4 * 16 * 2 * 4),
        ({}, {}, 0),
    ],
)  # fmt: skip
def test_bytes_of_a_token(values: dict[str, t.Any], content: dict[str, t.Any], expected: int) -> None:
    assert kv_bytes_per_token(config(**values), content) == expected


class TestEstimate:
    def of(
        self, *, card_mib: float = 97887, wanted_tokens: int = 0, weights: float = 577.92, **values: t.Any
    ) -> Estimate:
        found = estimate(
            config(**{**STORY, **values}),
            folder(weights, KIMI),
            folder(6.0, DRAFT),
            card_mib=card_mib,
            wanted_tokens=wanted_tokens,
        )
        assert found is not None
        return found

    def test_the_story(self) -> None:
        found = self.of(mem_fraction_static=0.85)
        assert round(found.weights_gib, 2) == 72.24
        assert round(found.draft_gib, 2) == 0.75
        assert (found.fits, found.mem_fraction_static) == (True, 0.85)
        # 95.6 GiB, of which 1.5 are taken before: 94.1 x 0.85 = 80.0, less the weights.
        assert found.kv_cache_gib == pytest.approx(7.0, abs=0.05)
        assert found.kv_bytes_per_token == 576 * 61 * 2 + 2 * 1 * 128 * 5 * 2
        assert found.kv_tokens == pytest.approx(7.0 * GIB / 72832, rel=0.01)
        assert found.wanted_tokens == 262144

    def test_more_than_the_card(self) -> None:
        assert self.of(mem_fraction_static=0.85, tp_size=4).fits is False
        assert self.of(mem_fraction_static=0.6).fits is False

    def test_close_is_not_certain(self) -> None:
        assert self.of(mem_fraction_static=0.775).fits is None

    def test_the_fraction_that_sglang_would_choose(self) -> None:
        # max(512 + 8192 x 1.5 + 8/8 x 1024, 10 GiB) reserved of 97,887 MiB, and 5 % and more for the vision tower.
        plain = self.of(language_only=True).mem_fraction_static
        assert plain == pytest.approx((97887 - 13824) / 97887, abs=0.001)
        assert self.of().mem_fraction_static == pytest.approx(plain * 0.95 * 0.957, abs=0.003)
        # Graphs take more.
        assert self.of(language_only=True, disable_cuda_graph=False).mem_fraction_static < plain

    def test_wanted(self) -> None:
        assert self.of(wanted_tokens=160000).wanted_tokens == 160000
        assert self.of(context_length=4096).wanted_tokens == 4096
        assert self.of(max_total_tokens=100, mem_fraction_static=0.85).kv_tokens == 100

    def test_without_a_card_only_the_weights(self) -> None:
        found = self.of(card_mib=0)
        assert (found.fits, found.card_gib, round(found.weights_gib, 2)) == (None, 0.0, 72.24)

    def test_without_weights_nothing(self) -> None:
        assert estimate(config(), ModelFolder("org/name"), None, card_mib=97887) is None

    def test_what_is_kept_whole(self) -> None:
        target = ModelFolder(
            "/m", KIMI, Weights(experts=8 * GIB, attention=8 * GIB, whole=GIB, other=8 * GIB, basis="headers"), 1
        )
        found = estimate(config(tp_size=8), target, None, card_mib=0)
        assert found is not None
        assert found.weights_gib == pytest.approx(4.0)
        found = estimate(config(tp_size=8, attn_dp_size=8), target, None, card_mib=0)
        assert found is not None
        assert found.weights_gib == pytest.approx(11.0)

    def test_assumptions_are_named(self) -> None:
        texts = " ".join(self.of().assumptions)
        for word in (
            "weights: size by the index",
            "draft:",
            "as SGLang 0.5.23 would choose it",
            "1.5 GiB per GPU",
            "wanted:",
        ):
            assert word in texts

    def test_rounded(self) -> None:
        assert self.of().as_dict()["weights_gib"] == 72.24
