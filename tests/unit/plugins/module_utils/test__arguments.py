# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Command lines against the parsers of four releases, as they were recorded for the stand-in."""

from __future__ import annotations

import argparse
import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._arguments import (
    ArgumentsCheck,
    check_words,
    human_readable_int,
    shown,
)
from ansible_collections.specdec.serving.plugins.module_utils._engine_parser import EngineParser, load_actions
from ansible_collections.specdec.serving.plugins.module_utils._server_args import canonical_dest

PROFILES = Path(__file__).resolve().parents[3] / "support/stand_in/src/sglang/stand_in/profiles"
RELEASES = ("0.4.6", "0.5.9", "0.5.12", "0.5.23")
MODEL = ("--model-path", "/models/m")


def parser_of(release: str) -> EngineParser:
    return EngineParser(actions=load_actions(json.loads((PROFILES / release / "arguments.json").read_text())))


PARSERS = {release: parser_of(release) for release in RELEASES}


def check(*words: str, release: str = "0.5.23") -> ArgumentsCheck:
    return check_words(
        [*MODEL, *words], PARSERS[release], version=release, origin=lambda dest: f"instance: {dest or 'words'}"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_wrong(release: str) -> None:
    found = check(
        "--tp-size", "8", "--trust-remote-code", "--mem-fraction-static=0.8", "--host", "::1", release=release
    )
    assert (found.errors, found.warnings) == ([], [])
    values = {canonical_dest(dest): value for dest, value in found.values.items()}
    assert {name: values[name] for name in ("tp_size", "trust_remote_code", "mem_fraction_static")} == {
        "tp_size": 8,
        "trust_remote_code": True,
        "mem_fraction_static": 0.8,
    }
    # Defaults are the parser's own, whatever they are equal to.
    assert (values["port"], values["dp_size"]) == (30000, 1)
    assert {canonical_dest(dest) for dest in found.asked} == {
        "model_path",
        "tp_size",
        "trust_remote_code",
        "mem_fraction_static",
        "host",
    }


@pytest.mark.parametrize(
    ("release", "flag", "message"),
    [
        ("0.5.23", "--cuda-graph-max-bs", "it exists up to 0.5.19; use cuda_graph_max_bs_decode (since 0.5.14)"),
        ("0.5.12", "--cuda-graph-max-bs-decode", "it exists since 0.5.14; use cuda_graph_max_bs"),
        ("0.5.9", "--speculative-dflash-block-size", "it exists since 0.5.11"),
        ("0.5.9", "--disable-piecewise-cuda-graph", "it exists from 0.5.10 to 0.5.19"),
        ("0.5.12", "--attn-dp-size", "it exists since 0.5.22; use enable_dp_attention: true with dp_size"),
        ("0.4.6", "--admin-api-key", "it exists since 0.5.8"),
        ("0.5.9", "--enable-ep-moe", "it is gone in 0.5.9; use ep_size"),
        ("0.5.12", "--gated-launch-port", "it exists since 0.5.19"),
        ("0.5.23", "--speculative-dflash-blocksize", "did you mean 'speculative_dflash_block_size'?"),
        ("0.4.6", "--zzz", "'zzz' is no argument of SGLang 0.4.6"),
    ],
)
def test_an_argument_of_another_release(release: str, flag: str, message: str) -> None:
    (error,) = check(flag, "8", release=release).errors
    name = flag[2:].replace("-", "_")
    assert error.startswith(f"instance: {name}: {name!r} is no argument of SGLang {release}")
    assert message in error


def test_what_is_unknown_without_a_hint_has_none() -> None:
    (error,) = check("--zzz", "8").errors
    assert error == "instance: zzz: 'zzz' is no argument of SGLang 0.5.23"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tp-size", "eight"), "'tp_size' must be a whole number, not 'eight'"),
        (("--tp-size", "8.0"), "'tp_size' must be a whole number, not '8.0'"),
        (("--tp-size",), "'tp_size' needs one value, but got none"),
        (("--tp-size", "8", "9"), "'tp_size' needs one value, but got 2: '8', '9'"),
        (("--tp-size=8", "9"), "'tp_size' needs one value, but got 2"),
        (("--trust-remote-code", "yes"), "'trust_remote_code' takes no value, but got 'yes'"),
        (("--trust-remote-code=yes",), "'trust_remote_code' takes no value, but got 'yes'"),
        (("--mem-fraction-static", "most"), "'mem_fraction_static' must be a number, not 'most'"),
        (
            ("--context-length", "32K"),
            "'context_length' must be a whole number, as 2048, 2k (2000) or 2Ki (2048), not '32K'",
        ),
        (("--kv-cache-dtype", "fp8"), "'kv_cache_dtype' is 'fp8', but must be one of auto, fp8_e5m2"),
        (("--load-format", "safetensor"), "did you mean 'safetensors'?"),
        (("--log-requests-level", "9"), "'log_requests_level' is 9, but must be one of 0, 1, 2, 3"),
        (("--cuda-graph-bs-decode",), "'cuda_graph_bs_decode' needs one value at least, but got none"),
        (("--cuda-graph-bs-decode", "1", "x"), "'cuda_graph_bs_decode' must be a whole number, not 'x'"),
        (("--cuda-graph-config", '{"decod": {}}'), "unknown phase 'decod'"),
        (("--cuda-graph-config", "[]"), "a mapping is needed"),
        (("--cuda-graph-backend-prefill", "tc_piecewise"), "tc_piecewise was removed"),
        (("--cuda-graph-max-bs", "8"), "use cuda_graph_max_bs_decode"),
        (("-x", "8"), "'x' is no argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_one_fault(words: tuple[str, ...], message: str) -> None:
    (error,) = check(*words).errors
    assert message in error


def test_all_faults_at_once() -> None:
    assert len(check("--tp-size", "x", "--dtype", "fp16", "--nonsense", "--kv-cache-dtype", "fp8").errors) == 4


def test_words_that_belong_to_nothing() -> None:
    found = check_words(["8", *MODEL], PARSERS["0.5.23"], version="0.5.23", origin=lambda _dest: "instance")
    assert found.errors == ["instance: '8' belongs to no argument"]


def test_the_model_is_needed() -> None:
    found = check_words([], PARSERS["0.5.23"], version="0.5.23", origin=lambda dest: dest)
    assert found.errors == ["model_path: 'model_path' is missing"]


def test_abbreviations_and_old_flags_pass_with_a_warning() -> None:
    found = check("--mem-fraction", "0.8", "--disable-cuda-graph")
    assert found.errors == []
    assert "abbreviation of 'mem_fraction_static'" in found.warnings[0]
    assert "'disable_cuda_graph' is deprecated in SGLang 0.5.23" in found.warnings[1]
    assert found.values["mem_fraction_static"] == 0.8


@pytest.mark.parametrize(("flag", "name"), [("--por", "port"), ("--hos", "host"), ("--admin-api", "admin_api_key")])
def test_an_abbreviation_does_not_get_round_the_role(flag: str, name: str) -> None:
    found = check(flag, "12345678")
    assert f"is an abbreviation of {name!r}, which belongs to the role: set {name!r} of the instance" in found.errors[0]
    assert "12345678" not in str(found.errors)


def test_two_spellings_of_one_argument() -> None:
    found = check("--tp-size", "2", "--tensor-parallel-size", "4")
    assert found.values["tp_size"] == 4
    assert "'tp_size' and 'tensor_parallel_size' set the same argument" in found.warnings[0]


def test_negative_numbers_are_values() -> None:
    found = check("--chunked-prefill-size", "-1")
    assert (found.errors, found.values["chunked_prefill_size"]) == ([], -1)


def test_secrets_are_not_quoted() -> None:
    found = check("--ssl-keyfile-password", "one", "hunter22222")
    assert found.errors
    assert "hunter2" not in "".join(found.errors)
    assert shown("watermark_key_b", "abc") == "'********'"
    assert shown("tp_size", "x" * 500).endswith("...")


@pytest.mark.parametrize(
    ("text", "number"), [("2k", 2000), ("2Ki", 2048), ("25.6k", 25600), ("7", 7), ("1M", 10**6), (" 3 ", 3)]
)
def test_sizes(text: str, number: int) -> None:
    assert human_readable_int(text) == number


@pytest.mark.parametrize("text", ["1.5Ki", "2K", "", "k", "1e3"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        human_readable_int(text)


class _Refused(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> t.NoReturn:
        raise _Refused(message)


def real_parser(release: str) -> argparse.ArgumentParser:
    """argparse itself with the plain actions of a release, to hold ours against."""
    parser = _Parser(allow_abbrev=True)
    types: dict[str | None, t.Any] = {"int": int, "float": float, "human_readable_int": human_readable_int}
    for action in PARSERS[release].actions:
        if action.action == "_StoreTrueAction":
            parser.add_argument(*action.flags, dest=action.dest, action="store_true")
        elif action.action == "_StoreAction":
            options: dict[str, t.Any] = {
                "dest": action.dest,
                "type": types.get(action.type, str),
                "nargs": action.nargs,
            }
            if action.choices is not None:
                options["choices"] = list(action.choices)
            parser.add_argument(*action.flags, **options)
    return parser


PIECES: tuple[tuple[str, ...], ...] = (
    (),
    ("--tp-size", "8"),
    ("--tp-size", "x"),
    ("--tp-size",),
    ("--tp-size=4",),
    ("--tp", "2"),
    ("--pp", "2"),
    ("--trust-remote-code",),
    ("--trust-remote-code", "x"),
    ("--trust-remote-code=1",),
    ("--dtype", "half"),
    ("--dtype", "fp16"),
    ("--context-length", "2k"),
    ("--chunked-prefill-size", "-1"),
    ("--chunked-prefill-size", "-x"),
    ("--served-model-name", "a b"),
    ("--served-model-name=",),
    ("--zzz",),
    ("--log-requests-level", "2"),
    ("--log-requests-level", "4"),
)


@pytest.mark.parametrize("release", RELEASES)
def test_verdicts_are_those_of_argparse(release: str) -> None:
    parser = real_parser(release)
    different = []
    for first in PIECES:
        for second in PIECES:
            words = [*MODEL, *first, *second]
            try:
                parser.parse_args(words)
            except _Refused:
                refused = True
            else:
                refused = False
            if bool(check(*first, *second, release=release).errors) != refused:
                different.append((words, refused))
    assert different == []
