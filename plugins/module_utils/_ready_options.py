# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the wait for readiness: specification, defaults, checks. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._addresses import parse_server, parse_url
from ansible_collections.specdec.serving.plugins.module_utils._credentials import key_in
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint
from ansible_collections.specdec.serving.plugins.module_utils._readiness import (
    GATES,
    STATES,
    least_generation_tokens,
    too_few_tokens,
)
from ansible_collections.specdec.serving.plugins.module_utils._server_options import SERVER, check_server, endpoint_from
from ansible_collections.specdec.serving.plugins.module_utils._starts import LEAST_AUTO_S, parse_timeout

#: The module's options; apart from it so that the wait can be driven without Ansible, with the same defaults.
ARGUMENT_SPEC: dict[str, dict[str, t.Any]] = {
    **SERVER,
    "api_key_file": {"type": "path", "no_log": False},
    "model": {"type": "str", "default": ""},
    "model_path": {"type": "str", "default": ""},
    "settings": {"type": "dict", "default": {}},
    "replaces": {"type": "str", "default": ""},
    "markers": {"type": "str", "choices": ["auto", "require", "ignore"], "default": "auto"},
    "expected_markers": {"type": "int"},
    "generation_tokens": {"type": "int", "no_log": False},
    "min_total_tokens": {"type": "int", "no_log": False, "default": 0},
    "stable_for": {"type": "float", "default": 0},
    "timeout": {"type": "str", "default": "1350"},
    "stall_timeout": {"type": "float"},
    "spin_timeout": {"type": "float"},
    "max_restarts": {"type": "int", "default": 0},
    "wait": {"type": "bool", "default": True},
    "client_url": {"type": "str"},
    "leader": {"type": "str"},
    "state_dir": {"type": "path", "default": "/var/lib/specdec/sglang"},
    "lease": {"type": "str", "default": ""},
    "claim": {"type": "dict"},
    "keep_evidence": {"type": "int", "no_log": False, "default": 5},
    "slice": {"type": "float"},
    "log_lines": {"type": "int", "default": 20},
    "resume": {"type": "dict"},
}


def defaults() -> dict[str, t.Any]:
    """Every option with its default, None where there is none."""
    return {name: option.get("default") for name, option in ARGUMENT_SPEC.items()}


class OptionError(Exception):
    """An option's value cannot be used."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The module's options, checked. Times in seconds."""

    unit: str
    endpoint: Endpoint
    listen_host: str
    model: str = ""
    model_path: str = ""
    settings: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    replaces: str = ""
    markers: str = "auto"
    expected_markers: int | None = None
    generation_tokens: int | None = None
    #: Room in the KV cache below which the start is given up; 0 = any will do.
    min_total_tokens: int = 0
    stable_for: float = 0.0
    timeout: float = 1350.0
    #: ``timeout`` is the least, earlier starts may ask for more.
    auto_timeout: bool = False
    leader: Endpoint | None = None
    state_dir: str = ""
    #: Seconds, 0 = never.
    stall_timeout: float = 300.0
    spin_timeout: float = 600.0
    max_restarts: int = 0
    wait: bool = True
    slice_s: float | None = None
    log_lines: int = 20
    resume: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


def _invocation_id(text: str) -> str:
    """``replaces`` as systemd writes it. In any other spelling no start would equal it, and the old one would pass for new."""
    found = text.strip().lower().replace("-", "")
    if found and not re.fullmatch(r"[0-9a-f]{32}", found):
        raise OptionError(
            f"replaces {text!r} is no InvocationID: 32 hexadecimal digits, as"
            " `systemctl show --value --property=InvocationID UNIT` prints them, or empty"
        )
    return found


#: Options that are numbers of 0 or more, where they are given.
_NUMBERS = (
    "generation_tokens",
    "min_total_tokens",
    "stable_for",
    "max_restarts",
    "stall_timeout",
    "spin_timeout",
    "log_lines",
    "expected_markers",
    "keep_evidence",
)


def number_faults(params: t.Mapping[str, t.Any], *, spelt: t.Callable[[str], str] = str) -> list[str]:
    """What is wrong with ``timeout`` and the other numbers of the wait: one text each, [] when nothing is.

    ``params`` may hold some of the options only. ``spelt`` gives the name of an option in the texts: a caller's own
    variables pass the same checks before anything is changed.
    """
    faults = []
    timeout, spelt_timeout = None, spelt("timeout")
    try:
        timeout = parse_timeout(params["timeout"], name=spelt_timeout)
    except ValueError as error:
        faults.append(str(error))
    for option in _NUMBERS:
        value, name = params.get(option), spelt(option)
        if value is None:
            # A default above the timeout says nothing: the wait ends before.
            continue
        hang = option in ("stall_timeout", "spin_timeout")
        if not 0 <= value < float("inf"):
            rule = "must not be below 0" if value < 0 else "must be a number of seconds" + ", 0 = never" * hang
            faults.append(f"{name} {value!r} {rule}")
        elif timeout is None:
            # It is worked out later, so there is nothing to compare with.
            continue
        elif hang and value > timeout:
            faults.append(
                f"{name} {value:g} is above {spelt_timeout} {timeout:g}: the wait would end before anything could count as"
                f" hung; lower {name}, raise {spelt_timeout}, or give {name} 0 to switch it off"
            )
        elif option == "stable_for" and value >= timeout:
            faults.append(
                f"{name} {value:g} is not below {spelt_timeout} {timeout:g}: the wait would end before it has held that"
                f" long; lower {name}, or raise {spelt_timeout}"
            )
    return faults


def generation_fault(
    tokens: int | None,
    settings: t.Mapping[str, t.Any],
    *,
    name: str = "generation_tokens",
    default: str = "leave it out",
) -> str:
    """Why so few tokens prove no speculation of the block size that ``settings`` ask for; '' = they do, or it is not known.

    ``name`` and ``default``: how the caller spells the option, and how it leaves the number to the wait.
    """
    if tokens is None or str(settings.get("speculative_algorithm") or "none").lower() == "none":
        return ""
    asked = str(settings.get("speculative_dflash_block_size") or settings.get("speculative_num_draft_tokens") or "")
    size = int(asked) if asked.isdigit() else 0
    reason = too_few_tokens(tokens, size) if size else ""
    if not reason:
        return ""
    return f"{name} {tokens}: {reason}; ask for {least_generation_tokens(size)} or more, {default}, or give 0 to generate none"


def key_from_file(path: str) -> str:
    """The key in the credential file of a unit, '' when it holds none. Raises OptionError, which never quotes the content."""
    try:
        with open(path, encoding="utf-8") as file:
            return key_in(file.read())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"api_key_file {path!r} cannot be read as a file of keys: {reason}") from None


def options_from(params: t.Mapping[str, t.Any], *, check_mode: bool = False) -> Options:
    """Check the module's parameters. Raises OptionError or SystemdError with what is wrong and what to do."""
    faults = number_faults(params)
    if faults:
        raise OptionError(faults[0])
    fault = generation_fault(params["generation_tokens"], params["settings"] or {})
    if fault:
        raise OptionError(fault)
    timeout = parse_timeout(params["timeout"])
    try:
        leader = parse_server(params["leader"], name="leader", scheme=params["scheme"]) if params["leader"] else None
        if params["client_url"]:
            # Asked by the controller; a typo is told before the wait.
            parse_url(params["client_url"], name="client_url")
    except ValueError as error:
        raise OptionError(str(error)) from None
    try:
        check_server(params, schemes=(leader.scheme,) if leader else ())
    except ValueError as error:
        raise OptionError(str(error)) from error
    # Ansible masks a key wherever it stands in the result.
    if params["api_key"] in {
        *STATES,
        *GATES,
        params["unit"],
        params["model"],
        params["model_path"],
        str(params["port"]),
    }:
        raise OptionError("api_key equals a state, gate, unit, model, path or port of the result; choose another key")
    return Options(
        unit=params["unit"],
        endpoint=endpoint_from(params),
        listen_host=params["host"],
        model=params["model"],
        model_path=params["model_path"],
        settings=params["settings"] or {},
        replaces=_invocation_id(params["replaces"]),
        markers=params["markers"],
        expected_markers=params["expected_markers"],
        generation_tokens=0 if check_mode else params["generation_tokens"],
        min_total_tokens=params["min_total_tokens"],
        stable_for=params["stable_for"],
        timeout=LEAST_AUTO_S if timeout is None else timeout,
        auto_timeout=timeout is None,
        leader=None
        if leader is None
        else endpoint_from(params, host=leader.host, port=leader.port, scheme=leader.scheme),
        state_dir=params["state_dir"] or "",
        stall_timeout=Options.stall_timeout if params["stall_timeout"] is None else params["stall_timeout"],
        spin_timeout=Options.spin_timeout if params["spin_timeout"] is None else params["spin_timeout"],
        max_restarts=params["max_restarts"],
        wait=params["wait"] and not check_mode,
        slice_s=params["slice"],
        log_lines=params["log_lines"],
        resume=params["resume"] or {},
    )


__all__ = (
    "ARGUMENT_SPEC",
    "OptionError",
    "Options",
    "defaults",
    "generation_fault",
    "key_from_file",
    "number_faults",
    "options_from",
)
