# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of an evaluation: specification, defaults, checks. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._evaluation import EvaluationError, Plan
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_client import LEAST_TOKENS, Asked
from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import Limits
from ansible_collections.specdec.serving.plugins.module_utils._server_options import ADMIN_KEY, SERVER, check_server
from ansible_collections.specdec.serving.plugins.module_utils._starts import parse_timeout

#: The module's options; apart from it, since the controller checks them too.
ARGUMENT_SPEC: dict[str, dict[str, t.Any]] = {
    **SERVER,
    **ADMIN_KEY,
    "model": {"type": "str", "default": ""},
    "problems": {"type": "path"},
    "limit": {"type": "int", "default": 0},
    "coding": {"type": "bool", "default": True},
    "mode": {"type": "str", "choices": ["chat", "completion"], "default": "chat"},
    "thinking": {"type": "str", "choices": ["auto", "on", "off"], "default": "auto"},
    "chat_template_kwargs": {"type": "dict", "default": {}},
    "max_tokens": {"type": "int", "no_log": False, "default": 0},
    "concurrency": {"type": "int", "default": 8},
    "request_timeout": {"type": "float", "default": 900},
    "minimum": {"type": "float", "default": 0},
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "programs": {"type": "int", "default": 4},
    "program_timeout": {"type": "float", "default": 10},
    "program_memory": {"type": "int", "default": 1024},
    "parity": {"type": "str", "choices": ["off", "auto", "record", "compare"], "default": "off"},
    "parity_baseline": {"type": "path"},
    "parity_prompts": {"type": "int", "default": 24},
    "parity_tokens": {"type": "int", "no_log": False, "default": 128},
    "timeout": {"type": "str", "default": "3600"},
    "state_dir": {"type": "path", "default": "/var/lib/specdec/sglang"},
    "keep": {"type": "int", "default": 5},
    "lease": {"type": "str", "default": ""},
    "results_dir": {"type": "path"},
    "readiness": {"type": "dict"},
    "claim": {"type": "dict"},
    "slice": {"type": "float"},
    "run": {"type": "str", "default": ""},
    "content": {"type": "str", "default": ""},
    "resume": {"type": "dict"},
}

# name: least and largest value.
_RANGES: dict[str, tuple[float, float]] = {
    "limit": (0, 1_000_000),
    "max_tokens": (0, 1_000_000),
    "concurrency": (1, 1024),
    "request_timeout": (1, 86400),
    "minimum": (0, 1),
    "programs": (1, 64),
    "program_timeout": (0.1, 600),
    "program_memory": (64, 1_000_000),
    "parity_prompts": (1, 10_000),
    "parity_tokens": (1, 100_000),
    "keep": (1, 1000),
}


def check(params: t.Mapping[str, t.Any]) -> None:
    """Raises EvaluationError or SystemdError with the first option that cannot be used, and what to do."""
    try:
        check_server(params)
    except ValueError as error:
        raise EvaluationError(str(error)) from error
    for name, (low, high) in _RANGES.items():
        if not low <= params[name] <= high:
            raise EvaluationError(f"{name} {params[name]!r} is out of range: {low:g} to {high:g}")
    if 0 < params["max_tokens"] < LEAST_TOKENS:
        raise EvaluationError(
            f"max_tokens {params['max_tokens']}: a function does not fit; give {LEAST_TOKENS} or more, or 0 for the default"
        )
    if params["mode"] == "completion" and (params["thinking"] == "on" or params["chat_template_kwargs"]):
        raise EvaluationError(
            "mode 'completion' has no chat template: thinking and chat_template_kwargs need mode 'chat'"
        )
    if params["parity"] != "off" and not params["parity_baseline"]:
        raise EvaluationError(
            f"parity {params['parity']!r} needs parity_baseline, the file on the host that holds the baseline"
        )
    if params["parity_baseline"] and not params["parity_baseline"].startswith("/"):
        raise EvaluationError(
            f"parity_baseline {params['parity_baseline']!r} is relative, and to nothing: give its whole path on the host"
        )
    if params["parity"] == "off" and params["parity_baseline"]:
        raise EvaluationError("parity_baseline without parity does nothing: give parity auto, record or compare")
    if params["parity"] == "off" and not params["coding"]:
        raise EvaluationError("coding false and parity 'off' leave nothing to evaluate")
    try:
        if parse_timeout(params["timeout"]) is None:
            raise EvaluationError("timeout 'auto' is known of starts only: give seconds")
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def plan_from(params: t.Mapping[str, t.Any]) -> Plan:
    """What is to be done; after :func:`check`."""
    return Plan(
        unit=params["unit"],
        asked=Asked(
            mode=params["mode"],
            thinking=params["thinking"],
            chat_template_kwargs=params["chat_template_kwargs"] or {},
            max_tokens=params["max_tokens"],
        ),
        model=params["model"],
        coding=params["coding"],
        concurrency=params["concurrency"],
        programs=params["programs"],
        parity=params["parity"],
        baseline=params["parity_baseline"] or "",
        parity_prompts=params["parity_prompts"],
        parity_tokens=params["parity_tokens"],
        timeout=parse_timeout(params["timeout"]) or 0.0,
        slice_s=params["slice"],
        minimum=params["minimum"],
    )


def limits_from(params: t.Mapping[str, t.Any]) -> Limits:
    """What one program may use."""
    return Limits(seconds=params["program_timeout"], memory_mb=params["program_memory"])


def chosen(lines: t.Sequence[t.Any], limit: int) -> list[t.Any]:
    """So many of them, spread evenly from first to last, in their order; all for 0."""
    if not limit or limit >= len(lines):
        return list(lines)
    return [lines[number * len(lines) // limit] for number in range(limit)]


__all__ = ("ARGUMENT_SPEC", "check", "chosen", "limits_from", "plan_from")
