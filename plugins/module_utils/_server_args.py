# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Turn a mapping of SGLang's server arguments into words of a command line. PRIVATE to the collection.

Argument names are SGLang's own, written with ``-`` or ``_``. The tables below were read from the parsers of the
PyPI releases 0.4.6 to 0.5.23 (``srt/server_args.py``; from 0.5.20 on ``srt/arg_groups/fields/*.py``).
"""

from __future__ import annotations

import json
import math
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._redact import SECRET_ARGUMENTS, is_secret_flag

__all__ = [
    "OWNED_ARGS",
    "ServerArgs",
    "ServerArgsError",
    "build_server_args",
    "canonical_dest",
    "merge_server_args",
    "owned_dest",
    "parse_release",
]

#: Other spellings of one argument -> the name (argparse "dest") that release 0.5.23 uses for it.
#: Only true synonyms: a deprecated flag with a meaning of its own (disable_piecewise_cuda_graph) is not one.
ALIASES: t.Final[t.Mapping[str, str]] = {
    "attention_context_parallel_size": "attn_cp_size",
    "attention_data_parallel_size": "attn_dp_size",
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "data_parallel_size": "dp_size",
    "decode_context_parallel_size": "dcp_size",
    "enable_hicache": "enable_hierarchical_cache",
    "expert_parallel_size": "ep_size",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
    "grpc_http_sidecar_port": "smg_http_sidecar_port",
    "hierarchical_sparse_attention_extra_config": "hisparse_config",
    "mamba_scheduler_strategy": "mamba_radix_cache_strategy",
    "model": "model_path",
    "moe_data_parallel_size": "moe_dp_size",
    "nccl_init_addr": "dist_init_addr",
    "pipeline_parallel_size": "pp_size",
    "speculative_dflash_draft_window_size": "speculative_draft_window_size",
    "speculative_draft_model": "speculative_draft_model_path",
    "tensor_parallel_size": "tp_size",
}

#: What argparse takes as an abbreviation and people write; a unit always gets the full flag, since an abbreviation
#: becomes ambiguous as soon as a release adds a flag (``--pp`` already is).
ABBREVIATIONS: t.Final[t.Mapping[str, str]] = {
    "dp": "dp_size",
    "ep": "ep_size",
    "pp": "pp_size",
    "tp": "tp_size",
}

#: Arguments that the role sets itself -> what to use instead.
OWNED_ARGS: t.Final[t.Mapping[str, str]] = {
    "admin_api_key": "set 'admin_api_key' of the instance (a key among the arguments would show in the process list)",
    "api_key": "set 'api_key' of the instance (a key among the arguments would show in the process list)",
    "config": "SGLang takes one --config only and the role needs it for the keys; put its content under 'args'",
    "help": "it would print a text and end",
    "host": "set 'host' of the instance",
    "model_path": "set 'model_path' of the instance",
    "port": "set 'port' of the instance",
    "served_model_name": "set 'served_model_name' of the instance",
    "ssl_keyfile_password": (
        "a password among the arguments would show in the process list; let 'ssl_keyfile' name a key without one that only the service"
        " user can read"
    ),
}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*\Z")
_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(?:post|dev|rc|a|b)\d*)*(?:\+[A-Za-z0-9.]+)?\Z")


class ServerArgsError(ValueError):
    """Arguments that cannot become a command line; ``errors`` holds every reason."""

    def __init__(self, errors: t.Sequence[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


@dataclass(frozen=True)
class ServerArgs:
    """``words``: the command line's words in the order of the mapping. ``settings``: dest -> value that was asked."""

    words: tuple[str, ...]
    settings: t.Mapping[str, t.Any]


def parse_release(version: str) -> tuple[int, int, int]:
    """Return (major, minor, patch) of an SGLang version; post, pre-release and local parts do not count.

    :raises ServerArgsError: when the text is no version.
    """
    if not isinstance(version, str):
        # YAML takes 0.6 for a number.
        raise ServerArgsError([f"{version!r} is no text; quote it, as in '0.5.23'"])
    found = _RELEASE.match(version)
    if not found:
        raise ServerArgsError([f"{version!r} is no SGLang version such as '0.5.23'"])
    return int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)


def canonical_dest(name: str) -> str:
    """Return the one name under which all spellings of an argument are compared (``tp`` -> ``tp_size``)."""
    dest = "".join(name).replace("-", "_")
    dest = ABBREVIATIONS.get(dest, dest)
    return ALIASES.get(dest, dest)


def owned_dest(name: str) -> str:
    """The argument of :data:`OWNED_ARGS` that a name means, '' = none. argparse takes ``api_ke`` for ``api_key``: a key gets through by
    no abbreviation either."""
    dest = canonical_dest(name)
    if dest in OWNED_ARGS:
        return dest
    meant = (
        secret
        for secret in SECRET_ARGUMENTS
        if secret.startswith(dest) and is_secret_flag(f"--{dest.replace('_', '-')}")
    )
    return next(meant, "")


def merge_server_args(*layers: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Merge mappings of arguments, a later layer over an earlier one, by meaning and not by spelling.

    A later ``null`` or ``false`` takes an argument of an earlier layer away. Two spellings in one layer both stay,
    so that :func:`build_server_args` can name the conflict.
    """
    merged: dict[str, t.Any] = {}
    for layer in layers:
        dests = {canonical_dest(str(name)) for name in layer}
        merged = {name: value for name, value in merged.items() if canonical_dest(name) not in dests}
        merged.update(layer)
    return merged


def _plain(value: t.Any) -> t.Any:
    """A copy without Ansible's tagged subclasses, for results and comparisons."""
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, t.Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(type(value).__name__)


def _number_word(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number that an argument can hold")
    return repr(value)


def _scalar_word(value: t.Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        raise ValueError(f"{value!r} cannot be one of several values; write it as a string if SGLang wants that word")
    if isinstance(value, (int, float)):
        return _number_word(value)
    if isinstance(value, dict):
        return _json_word(value)
    if value is None:
        raise ValueError("null cannot be one of several values")
    raise ValueError(f"{value!r} cannot be one of several values")


def _json_word(value: dict[str, t.Any]) -> str:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"the key {key!r} of the mapping is not a string, so it cannot become JSON; quote it")
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError as exc:
        raise ValueError(f"{value!r} cannot become JSON: {exc}") from exc


def _words_of(flag: str, value: t.Any) -> list[str]:
    if value is True:
        return [flag]
    if isinstance(value, list):
        words = [_scalar_word(item) for item in value]
        for word, item in zip(words, value):
            if isinstance(item, str) and word.startswith("-"):
                raise ValueError(f"{item!r} starts with '-', so SGLang would take it for another option")
        return [flag, *words] if words else []
    word = _json_word(value) if isinstance(value, dict) else _scalar_word(value)
    if isinstance(value, str) and word.startswith("-"):
        # argparse takes a separate word that starts with '-' for an option.
        return [f"{flag}={word}"]
    return [flag, word]


def build_server_args(args: t.Mapping[t.Any, t.Any], *, origin: str) -> ServerArgs:
    """Map arguments to words, checking everything first.

    ``true`` is a bare flag; ``false``, ``null`` and an empty list are left out; a list becomes several words, a
    mapping compact JSON; a text that starts with ``-`` is joined to its flag with ``=``.

    :param args: SGLang's names to values.
    :param origin: where the mapping comes from, for the errors.
    :raises ServerArgsError: with every fault that was found.
    """
    errors: list[str] = []
    seen: dict[str, str] = {}
    words: list[str] = []
    settings: dict[str, t.Any] = {}
    for raw_name, raw_value in args.items():
        if not isinstance(raw_name, str):
            errors.append(f"{origin}: {raw_name!r} is no argument name (not a string)")
            continue
        name = "".join(raw_name)
        if not _NAME.match(name):
            hint = f"; write it as {name.lstrip('-')!r}" if _NAME.match(name.lstrip("-")) else ""
            errors.append(f"{origin}: {name!r} is no argument name{hint}")
            continue
        dest = canonical_dest(name)
        owned = owned_dest(name)
        if owned:
            errors.append(f"{origin}: {name!r} belongs to the role: {OWNED_ARGS[owned]}")
            continue
        if dest in seen:
            errors.append(f"{origin}: {seen[dest]!r} and {name!r} are the same argument ({dest}); keep one of them")
            continue
        seen[dest] = name
        try:
            value = _plain(raw_value)
            if value is None or value is False:
                continue
            flag_name = name.replace("-", "_")
            flag = "--" + ABBREVIATIONS.get(flag_name, flag_name).replace("_", "-")
            new_words = _words_of(flag, value)
        except TypeError as exc:
            errors.append(f"{origin}: {name!r}: {raw_value!r} has the type {exc}; quote it if it is meant as text")
        except ValueError as exc:
            errors.append(f"{origin}: {name!r}: {exc}")
        else:
            if new_words:
                words.extend(new_words)
                settings[dest] = value
    if errors:
        raise ServerArgsError(errors)
    return ServerArgs(words=tuple(words), settings=settings)
