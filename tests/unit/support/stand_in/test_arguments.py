# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-in's command line against the recorded one, and its reading of --config."""

from __future__ import annotations

import argparse
import typing as t
from pathlib import Path

import pytest
from sglang.stand_in import arguments
from sglang.stand_in.profile import Profile

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "sglang-0.5.23"


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    return arguments.build_parser(Profile("0.5.23"))


def test_usage_is_the_recorded_one(parser: argparse.ArgumentParser) -> None:
    """Words only: line breaks differ between Python releases (the integration test compares bytes on 3.11)."""
    text = (RECORDED / "fail-unknown-flag-rc2.log").read_text(encoding="utf-8")
    recorded = text[text.index("usage: ") : text.index("sglang serve: error:")]
    assert parser.format_usage().split() == recorded.split()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param(["--no-such-flag"], "unrecognized arguments: --no-such-flag", id="unknown"),
        pytest.param(
            ["--pp", "1"],
            "ambiguous option: --pp could match --pp-size, --pp-max-micro-batch-size, --pp-async-batch-depth",
            id="ambiguous",
        ),
        pytest.param(
            ["--cuda-graph-max-bs", "8"],
            "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
            id="gone-since-0.5.20",
        ),
        pytest.param(["--port", "x"], "argument --port: invalid int value: 'x'", id="int"),
        pytest.param(
            ["--context-length", "2q"],
            "argument --context-length: invalid human_readable_int value: '2q'",
            id="human-readable",
        ),
        pytest.param(
            ["--context-length", "2.5Ki"],
            "argument --context-length: Decimals are not allowed with IEC suffixes like 'Ki'. Use an integer IEC value"
            " such as '2Ki', or an SI value such as '2.5K'.",
            id="decimal-iec",
        ),
        pytest.param(
            ["--cuda-graph-backend-decode", "tc_piecewise"],
            "argument --cuda-graph-backend-decode: tc_piecewise was removed; select breakable, full, or disabled",
            id="retired-choice",
        ),
        pytest.param(["--mm-process-config", "{"], "argument --mm-process-config: invalid loads value: '{'", id="json"),
        pytest.param(
            ["--cuda-graph-bs-decode"], "argument --cuda-graph-bs-decode: expected at least one argument", id="nargs"
        ),
    ],
)
def test_errors(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--model-path", "/m", *words])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"sglang serve: error: {error}"


@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        pytest.param(["--context-length", "2k"], "context_length", 2000, id="si"),
        pytest.param(["--context-length", "25.6k"], "context_length", 25600, id="si-decimal"),
        pytest.param(["--max-total-tokens", "2Ki"], "max_total_tokens", 2048, id="iec"),
        pytest.param(["--tensor-parallel-size", "8"], "tp_size", 8, id="alias"),
        pytest.param(["--tp", "8"], "tp_size", 8, id="abbreviation"),
        pytest.param(["--cuda-graph-bs-decode", "1", "8"], "cuda_graph_bs_decode", [1, 8], id="list"),
        pytest.param(["--disable-cuda-graph"], "disable_cuda_graph", True, id="deprecated"),
        pytest.param(["--no-dllm-fdfo"], "dllm_fdfo", False, id="boolean-off"),
        pytest.param(
            ["--cuda-graph-config", '{"decode": {"max_bs": 4}}'],
            "cuda_graph_config",
            {"decode": {"max_bs": 4}},
            id="graph-config",
        ),
        pytest.param(["--quantization-param-path", "None"], "quantization_param_path", None, id="nullable"),
    ],
)
def test_values(parser: argparse.ArgumentParser, words: list[str], dest: str, value: t.Any) -> None:
    assert getattr(parser.parse_args(["--model-path", "/m", *words]), dest) == value


def test_deprecated_flag_warns_in_yellow(parser: argparse.ArgumentParser) -> None:
    args = parser.parse_args(["--model-path", "/m", "--disable-cuda-graph"])
    (warning,) = args.warnings
    assert warning == (
        "\033[1;33m'--disable-cuda-graph' is deprecated and will be removed in a future release."
        " Use '--cuda-graph-backend-{decode,prefill}=disabled' instead.\033[0m"
    )


def test_config_comes_before_the_command_line(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    path = tmp_path / "k26.yaml"
    path.write_text(
        "# written by a deployment\n"
        "api-key: \"sk-'quoted' #1\"\n"
        "tp-size: 8\n"
        "trust-remote-code: true\n"
        "enable-metrics: false\n"
        "cuda-graph-bs-decode: [1, 8]\n"
        'model-loader-extra-config: {"enable_multithread_load": true}\n'
        "served-model-name: 'it''s'\n",
        encoding="utf-8",
    )
    words = arguments.merge_config(parser, ["--model-path", "/m", "--config", str(path), "--tp-size", "4"])
    args = parser.parse_args(words)
    assert words[:2] == ["--api-key", "sk-'quoted' #1"]
    assert args.api_key == "sk-'quoted' #1"
    assert args.tp_size == 4
    assert args.trust_remote_code is True
    assert args.enable_metrics is False
    assert args.cuda_graph_bs_decode == [1, 8]
    assert args.model_loader_extra_config == '{"enable_multithread_load": true}'
    assert args.served_model_name == "it's"


@pytest.mark.parametrize(
    ("words", "text", "error"),
    [
        pytest.param(
            ["--config", "FILE", "--config", "FILE"], "", "Multiple config files specified! Only one allowed.", id="two"
        ),
        pytest.param(["--config"], "", "No config file specified after --config flag!", id="none"),
        pytest.param(["--config", "/nowhere/x.json"], "", "Config file must be YAML format, got: .json", id="suffix"),
        pytest.param(["--config", "/nowhere/x.yaml"], "", "Config file not found: /nowhere/x.yaml", id="missing"),
        pytest.param(
            ["--config", "FILE"], "word\n", "Config file must contain a dictionary at root level", id="no-mapping"
        ),
        pytest.param(
            ["--config", "FILE"],
            "disable_cuda_graph: true\n",
            "Unsupported config option 'disable_cuda_graph' with action 'DeprecatedStoreTrueAction'",
            id="deprecated",
        ),
        pytest.param(
            ["--config", "FILE"],
            "dllm-fdfo: false\n",
            "Unsupported config option 'dllm_fdfo' with action 'BooleanOptionalAction'",
            id="boolean-optional",
        ),
        pytest.param(
            ["--config", "FILE"],
            "lora_paths: [a]\n",
            "Unsupported config option 'lora_paths' with action 'LoRAPathAction'",
            id="lora",
        ),
        pytest.param(
            ["--config", "FILE"],
            "a:\n  b: 1\n",
            "FILE:2: the stand-in reads only flat `key: value` lines of YAML, not 'b: 1'",
            id="nested-is-not-modelled",
        ),
    ],
)
def test_config_errors(
    parser: argparse.ArgumentParser, tmp_path: Path, words: list[str], text: str, error: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        arguments.merge_config(parser, [word.replace("FILE", str(path)) for word in words])
    assert str(caught.value) == error.replace("FILE", str(path))


def test_config_keys_with_underscores_become_unknown_flags(
    parser: argparse.ArgumentParser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen on 0.5.23: the key becomes the flag as it is written, and argparse knows no `--tp_size`."""
    path = tmp_path / "c.yaml"
    path.write_text("tp_size: 8\ntrust_remote_code: true\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        parser.parse_args(arguments.merge_config(parser, ["--model-path", "/m", "--config", str(path)]))
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "sglang serve: error: unrecognized arguments: --tp_size 8 --trust_remote_code"


def test_config_with_an_equals_sign_is_not_merged(parser: argparse.ArgumentParser) -> None:
    assert arguments.merge_config(parser, ["--config=/nowhere/x.yaml"]) == ["--config=/nowhere/x.yaml"]
