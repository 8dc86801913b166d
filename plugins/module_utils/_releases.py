# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What SGLang's releases call the same things: the one place for it. PRIVATE to specdec.serving.

Data, each row with the first release that has it, newest first. Read from the PyPI wheels of 0.4.6, 0.4.7, 0.5.1, 0.5.4 and
0.5.8 to 0.5.23 (srt/server_args.py; from 0.5.20 on srt/arg_groups/fields; srt/environ.py, srt/managers/tokenizer_manager.py).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._server_args import ServerArgsError, parse_release

__all__ = [
    "ArgumentHistory",
    "Release",
    "advises_what_is_set",
    "argument_history",
    "flags",
    "release_features",
    "reports_verify_steps",
]

_Number = tuple[int, int, int]
_NEWEST: t.Final[_Number] = (999, 0, 0)


@dataclass(frozen=True)
class Release:
    """What one SGLang release calls things. Empty = the release has no such thing, or does it anyway.

    `prefill_graph_off`, `decode_graph_off` and `access_log_exclude` are arguments (dest to value) to merge; `config_file` says
    whether there is `--config FILE`, which alone keeps keys off the command line, `nccl_port` whether `--nccl-port`.
    """

    prefill_graph_off: t.Mapping[str, t.Any]
    decode_graph_off: t.Mapping[str, t.Any]
    access_log_exclude: t.Mapping[str, t.Any]
    jit_deepgemm_variable: str
    config_file: bool
    nccl_port: bool
    reports_verify_steps: bool


_FEATURES: t.Final[tuple[tuple[_Number, t.Mapping[str, t.Any]], ...]] = (
    # In 0.5.14 and 0.5.15 the DFLASH worker heeds only the switch for all graphs.
    ((0, 5, 16), {"decode_graph_off": {"cuda_graph_backend_decode": "disabled"}}),
    # Between 0.5.14 and 0.5.19 --disable-piecewise-cuda-graph is a deprecated alias, from 0.5.20 on it is an error.
    ((0, 5, 14), {"prefill_graph_off": {"cuda_graph_backend_prefill": "disabled"}}),
    ((0, 5, 10), {"prefill_graph_off": {"disable_piecewise_cuda_graph": True}}),
    ((0, 5, 8), {"access_log_exclude": {"uvicorn_access_log_exclude_prefixes": ["/health", "/ready", "/metrics"]}}),
    # Absent in 0.5.1; the releases between were not looked at.
    ((0, 5, 4), {"jit_deepgemm_variable": "SGLANG_ENABLE_JIT_DEEPGEMM", "config_file": True}),
    # Absent in 0.4.7; before, the port is drawn from the server's port + 100 to + 1000.
    ((0, 5, 1), {"nccl_port": True}),
    # meta_info's spec_verify_ct.
    ((0, 4, 7), {"reports_verify_steps": True}),
    (
        (0, 0, 0),
        {
            "access_log_exclude": {},
            "config_file": False,
            "decode_graph_off": {"disable_cuda_graph": True},
            "jit_deepgemm_variable": "SGL_ENABLE_JIT_DEEPGEMM",
            "nccl_port": False,
            # Up to 0.5.9 the piecewise prefill graph is off unless --enable-piecewise-cuda-graph asks for it.
            "prefill_graph_off": {},
            "reports_verify_steps": False,
        },
    ),
)

#: What remedies name beside the switches above.
_FLAGS: t.Final[t.Mapping[str, tuple[tuple[_Number, str], ...]]] = {
    "graph_max_bs": (((0, 5, 14), "--cuda-graph-max-bs-decode"), ((0, 0, 0), "--cuda-graph-max-bs")),
    "attention_dp": (((0, 5, 22), "--attn-dp-size"), ((0, 0, 0), "--enable-dp-attention")),
    "draft_unquantized": (
        ((0, 5, 9), "set --speculative-draft-model-quantization unquant"),
        ((0, 0, 0), "use a draft of the target's quantization"),
    ),
    "draft_attention_backend": (
        ((0, 5, 9), "--speculative-draft-attention-backend"),
        ((0, 0, 0), "--attention-backend"),
    ),
    "other_fp4_backend": (((0, 5, 9), "another --fp4-gemm-backend"), ((0, 0, 0), "other weights")),
    "fewer_loader_threads": (((0, 5, 1), " (--model-loader-extra-config)"), ((0, 0, 0), "")),
    "internal_ports": (((0, 5, 1), "--nccl-port and --dist-init-addr"), ((0, 0, 0), "--dist-init-addr")),
}


#: What remedies name -> the arguments, of any release, by which it is so already.
_SWITCHED_OFF: t.Final[t.Mapping[str, t.Mapping[str, t.Any]]] = {
    "decode_graph_off": {
        "disable_cuda_graph": True,
        "disable_decode_cuda_graph": True,
        "cuda_graph_backend_decode": "disabled",
    },
    "prefill_graph_off": {
        "disable_cuda_graph": True,
        "disable_piecewise_cuda_graph": True,
        "disable_prefill_cuda_graph": True,
        "cuda_graph_backend_prefill": "disabled",
    },
}


@dataclass(frozen=True)
class ArgumentHistory:
    """In which releases an argument exists, and what does its work in the others.

    `since` is the first release that has it, `until` the last one, `gone_by` the first that was seen without it where the last is not
    known; '' = not known to be limited. `later` replaces it in newer releases, `earlier` in older ones.
    """

    since: str = ""
    until: str = ""
    gone_by: str = ""
    later: str = ""
    earlier: str = ""

    @property
    def span(self) -> str:
        """The releases in words, to go after the argument's name."""
        if self.since and self.until:
            return f"exists from {self.since} to {self.until}"
        if self.until:
            return f"exists up to {self.until}"
        if self.gone_by:
            return f"is gone in {self.gone_by}"
        return f"exists since {self.since}"


#: By dest. The wheels of 0.5.8 to 0.5.23 were searched for these; `gone_by` compares the parsers of 0.4.6, 0.5.9, 0.5.12, 0.5.23.
_HISTORY: t.Final[t.Mapping[str, ArgumentHistory]] = {
    "admin_api_key": ArgumentHistory(since="0.5.8"),
    "attn_dp_size": ArgumentHistory(since="0.5.22", earlier="enable_dp_attention: true with dp_size"),
    "cuda_graph_backend_decode": ArgumentHistory(since="0.5.14", earlier="disable_cuda_graph: true"),
    "cuda_graph_backend_prefill": ArgumentHistory(
        since="0.5.14", earlier="disable_piecewise_cuda_graph: true (0.5.10 and newer)"
    ),
    "cuda_graph_bs": ArgumentHistory(until="0.5.19", later="cuda_graph_bs_decode (since 0.5.14)"),
    "cuda_graph_bs_decode": ArgumentHistory(since="0.5.14", earlier="cuda_graph_bs"),
    "cuda_graph_config": ArgumentHistory(since="0.5.14"),
    "cuda_graph_max_bs": ArgumentHistory(until="0.5.19", later="cuda_graph_max_bs_decode (since 0.5.14)"),
    "cuda_graph_max_bs_decode": ArgumentHistory(since="0.5.14", earlier="cuda_graph_max_bs"),
    "disable_decode_cuda_graph": ArgumentHistory(since="0.5.14", earlier="disable_cuda_graph: true"),
    "disable_piecewise_cuda_graph": ArgumentHistory(
        since="0.5.10", until="0.5.19", later="cuda_graph_backend_prefill: disabled (since 0.5.14)"
    ),
    "enable_deepep_moe": ArgumentHistory(gone_by="0.5.9", later="moe_a2a_backend: deepep"),
    "enable_ep_moe": ArgumentHistory(gone_by="0.5.9", later="ep_size"),
    "enable_flashinfer_mla": ArgumentHistory(gone_by="0.5.9", later="attention_backend: flashinfer"),
    "enable_flashmla": ArgumentHistory(gone_by="0.5.9", later="attention_backend: flashmla"),
    "enable_mfu_metrics": ArgumentHistory(since="0.5.10"),
    "gated_launch_port": ArgumentHistory(since="0.5.19"),
    "mamba_scheduler_strategy": ArgumentHistory(gone_by="0.5.23", later="mamba_radix_cache_strategy"),
    "min_free_slots_delay": ArgumentHistory(since="0.5.15"),
    "speculative_dflash_block_size": ArgumentHistory(since="0.5.11"),
    "speculative_dflash_draft_window_size": ArgumentHistory(
        since="0.5.11", until="0.5.19", later="speculative_draft_window_size (since 0.5.12)"
    ),
    "speculative_draft_kv_cache_dtype": ArgumentHistory(since="0.5.18"),
    "speculative_draft_sink_size": ArgumentHistory(since="0.5.21"),
    "speculative_draft_window_size": ArgumentHistory(since="0.5.12", earlier="speculative_dflash_draft_window_size"),
    "startup_weight_load_mode": ArgumentHistory(since="0.5.18"),
}


def argument_history(name: str) -> ArgumentHistory | None:
    """What is known of the releases that have an argument, by its name as it was written; None = nothing."""
    return _HISTORY.get(name.lstrip("-").replace("-", "_"))


def advises_what_is_set(remedy: str, arguments: t.Mapping[str, t.Any]) -> bool:
    """Whether all switches that a remedy names by their placeholders, such as ``{decode_graph_off}``, are set in ``arguments`` already.

    ``arguments``: by dest, typed or as the words of a command line.
    """
    named = [name for name in _SWITCHED_OFF if "{" + name + "}" in remedy]
    return bool(named) and all(
        any(str(arguments.get(dest)).lower() == str(value).lower() for dest, value in _SWITCHED_OFF[name].items())
        for name in named
    )


def release_features(version: str) -> Release:
    """How an SGLang release spells what the role sets and the wait reads.

    :raises ServerArgsError: when ``version`` is no version.
    """
    return _features(parse_release(version))


def _features(number: _Number) -> Release:
    found: dict[str, t.Any] = {}
    for first, features in _FEATURES:
        if number >= first:
            found = {**features, **found}
    return Release(**found)


def _number(version: str) -> _Number:
    try:
        return parse_release(version)
    except ServerArgsError:
        return _NEWEST


def reports_verify_steps(version: str) -> bool:
    """Whether replies count verify steps (``spec_verify_ct``); an unknown release is taken for the newest one."""
    return _features(_number(version)).reports_verify_steps


def _words(arguments: t.Mapping[str, t.Any]) -> str:
    parts = []
    for dest, value in arguments.items():
        flag = "--" + dest.replace("_", "-")
        parts.append(flag if value is True else f"{flag} {value}")
    return " ".join(parts)


def flags(version: str) -> dict[str, str]:
    """How a release spells what remedies name; an unknown release is taken for the newest one."""
    number = _number(version)
    features = _features(number)
    found = {name: next(flag for first, flag in rows if number >= first) for name, rows in _FLAGS.items()}
    found["decode_graph_off"] = _words(features.decode_graph_off)
    # "Set ..." stands before it.
    found["prefill_graph_off"] = _words(features.prefill_graph_off) or "no --enable-piecewise-cuda-graph"
    return found
