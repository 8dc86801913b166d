# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command line: the real parser's actions from the profile's data, and the merging of `--config FILE.yaml`."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from typing import Any, Callable

from sglang.stand_in.profile import Profile

_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


# The names of these functions are part of argparse's error text ("invalid human_readable_int value: ..."),
# so they are the engine's names.
def human_readable_int(value: str) -> int:
    """`2k` is 2000, `2Ki` is 2048; decimals only with SI suffixes (engine: utils/common.py:3394)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", value.strip())
    if not match:
        return int(value)
    number, suffix = match.groups()
    if suffix in _SI:
        from decimal import Decimal

        return int(Decimal(number) * _SI[suffix])
    if "." in number:
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with IEC suffixes like '{suffix}'. Use an integer IEC value such as "
            f"'{int(float(number))}{suffix}', or an SI value such as '{number}{suffix[0]}'."
        )
    return int(number) * _IEC[suffix]


def json_list_type(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {value}. Please provide a valid JSON list.") from None


def nullable_str(value: str) -> str | None:
    return None if not value or value == "None" else value


def parse_cuda_graph_backend_arg(value: str) -> str:
    if value == "tc_piecewise":
        raise argparse.ArgumentTypeError("tc_piecewise was removed; select breakable, full, or disabled")
    return value


def parse_cuda_graph_config_arg(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--cuda-graph-config must be JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError(f"--cuda-graph-config must be a JSON object, got {type(parsed).__name__}")
    for phase in parsed:
        if phase not in ("decode", "prefill"):
            raise argparse.ArgumentTypeError(
                f"--cuda-graph-config: unknown phase '{phase}', expected one of ('decode', 'prefill')"
            )
    return parsed


def loads(value: str) -> Any:
    return json.loads(value)


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "loads": loads,
    "human_readable_int": human_readable_int,
    "json_list_type": json_list_type,
    "nullable_str": nullable_str,
    "parse_cuda_graph_backend_arg": parse_cuda_graph_backend_arg,
    "parse_cuda_graph_config_arg": parse_cuda_graph_config_arg,
}

# What the warning of a deprecated flag recommends (engine: server_args.py:405-440).
_REPLACEMENTS = {
    "--disable-cuda-graph": "--cuda-graph-backend-{decode,prefill}=disabled",
    "--enable-dp-attention": "--attn-dp-size <dp-size>",
    "--monokernel-backend": "--enable-amd-monokernel",
}


class _Deprecated(argparse.Action):
    """Stores True, whatever came, and keeps the warning for the log."""

    def __call__(self, _parser: Any, namespace: Any, _values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, True)
        text = (
            f"\033[1;33m'{option_string}' is deprecated and will be removed in a future release."
            f" Use '{_REPLACEMENTS[self.option_strings[0]]}' instead.\033[0m"
        )
        namespace.warnings = [*getattr(namespace, "warnings", []), text]


class DeprecatedStoreTrueAction(_Deprecated):
    pass


class DeprecatedStoreConstAction(_Deprecated):
    pass


class DeprecatedAction(argparse.Action):
    """Takes no value and does nothing. (The real one warns; that of 0.4.6 ends with what to use instead.)"""

    def __call__(self, _parser: Any, _namespace: Any, _values: Any, _option_string: str | None = None) -> None:
        pass


class LoRAPathAction(argparse.Action):
    def __call__(self, _parser: Any, namespace: Any, values: Any, _option_string: str | None = None) -> None:
        setattr(namespace, self.dest, list(values or []))


_ACTIONS: dict[str, Any] = {
    "_StoreAction": "store",
    "_StoreTrueAction": "store_true",
    "DeprecatedAction": DeprecatedAction,
    "BooleanOptionalAction": argparse.BooleanOptionalAction,
    "DeprecatedStoreTrueAction": DeprecatedStoreTrueAction,
    "DeprecatedStoreConstAction": DeprecatedStoreConstAction,
    "LoRAPathAction": LoRAPathAction,
}


def build_parser(profile: Profile) -> argparse.ArgumentParser:
    """The real release's parser, flag by flag."""
    parser = argparse.ArgumentParser(prog=profile.traits["prog"])
    add_arguments(parser, profile)
    return parser


def add_arguments(parser: argparse.ArgumentParser, profile: Profile) -> None:
    """Add the flags of the release to a parser."""
    for entry in profile.load("arguments.json"):
        if entry["action"] == "_HelpAction":
            continue
        options: dict[str, Any] = {
            "dest": entry["dest"],
            "action": _ACTIONS[entry["action"]],
            "default": entry.get("default"),
        }
        if entry.get("hidden"):
            options["help"] = argparse.SUPPRESS
        if entry.get("required"):
            options["required"] = True
        flags = entry["flags"]
        if entry["action"] == "BooleanOptionalAction":
            flags = [flag for flag in flags if not flag.startswith("--no-")]
        elif entry["action"] in ("DeprecatedAction", "DeprecatedStoreTrueAction"):
            options["nargs"] = 0
        elif entry["action"] != "_StoreTrueAction":
            if entry.get("nargs") is not None:
                options["nargs"] = entry["nargs"]
            if entry.get("type") is not None:
                options["type"] = _TYPES[entry["type"]]
            if entry.get("choices") is not None:
                options["choices"] = entry["choices"]
        parser.add_argument(*flags, **options)


def read_yaml(text: str, origin: str) -> Any:
    """The YAML that a deployment writes: a flat mapping `key: value`, one a line, and comments.

    A value is JSON (string in double quotes, number, true, false, null, list, object), a single-quoted string, a
    plain word or a list of such words. Anything deeper raises ValueError: the real engine reads all of YAML, the stand-in this part.
    """
    result: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        match = re.fullmatch(r"""(?P<key>"[^"]+"|'[^']+'|[A-Za-z_][\w-]*)\s*:(?:\s+(?P<value>.*))?""", line.rstrip())
        if match is None:
            if not result and not line.startswith((" ", "-")) and ":" not in line:
                return stripped
            raise ValueError(
                f"{origin}:{number}: the stand-in reads only flat `key: value` lines of YAML, not {line.strip()[:20]!r}"
            )
        result[match["key"].strip("\"'")] = _scalar((match["value"] or "").strip())
    return result or None


def _scalar(text: str) -> Any:
    if text.startswith("'"):
        match = re.fullmatch(r"'((?:[^']|'')*)'\s*(?:#.*)?", text)
        if match is None:
            raise ValueError("a single-quoted string of the --config file does not end")
        return match[1].replace("''", "'")
    if text[:1] in ('"', "[", "{"):
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            words = re.fullmatch(r"\[([^\[\]{}\"']*)\]", text)
            if words is None:
                raise
            return [_scalar(word.strip()) for word in words[1].split(",")]
        if text[end:].strip() and not text[end:].strip().startswith("#"):
            raise ValueError("text after a JSON value in the --config file")
        return value
    plain = re.split(r"\s+#", text)[0].strip()
    lower = plain.lower()
    if lower in ("", "null", "~"):
        return None
    if lower in ("true", "yes", "on"):
        return True
    if lower in ("false", "no", "off"):
        return False
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return plain


def _keys(action: argparse.Action) -> set[str]:
    return {action.dest} | {flag[2:].replace("-", "_") for flag in action.option_strings if flag.startswith("--")}


def merge_config(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Put the options of `--config FILE` before the command line, which therefore wins.

    Raises ValueError with the real engine's texts (utils/server_args_config_parser.py): two files, no file, not
    YAML, missing, no mapping, an option that needs another action than store or store_true.
    """
    argv = list(argv)
    if "--config" not in parser._option_string_actions:
        return argv  # this release does not know it, and says so when it parses
    places = [index for index, word in enumerate(argv) if word == "--config"]
    if not places:
        return argv
    if len(places) > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    place = places[0]
    if place == len(argv) - 1:
        raise ValueError("No config file specified after --config flag!")
    return _config_words(parser, _read_config(argv[place + 1])) + argv[:place] + argv[place + 2 :]


def _read_config(path: str) -> dict[str, Any]:
    suffix = os.path.splitext(path)[1]
    if suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {suffix}")
    if not os.path.exists(path):
        raise ValueError(f"Config file not found: {path}")
    with open(path, encoding="utf-8") as stream:
        config = read_yaml(stream.read(), path)
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise ValueError("Config file must contain a dictionary at root level")
    return config


def _config_words(parser: argparse.ArgumentParser, config: dict[str, Any]) -> list[str]:
    actions = parser._actions
    flags = {key for action in actions if _is_flag(action) for key in _keys(action)}
    supported = {key for action in actions if _is_supported(action) for key in _keys(action)}
    unsupported = {
        key: action
        for action in actions
        if not _is_supported(action) and action.dest not in ("help", "config")
        for key in _keys(action)
        if key not in supported
    }
    words: list[str] = []
    for key, value in config.items():
        name = key.replace("-", "_")
        if name in unsupported:
            raise ValueError(f"Unsupported config option '{name}' with action '{type(unsupported[name]).__name__}'")
        if isinstance(value, bool):
            if name not in flags:
                words += [f"--{key}", str(value).lower()]
            elif value:
                words.append(f"--{key}")
        elif isinstance(value, list):
            if value:
                words += [f"--{key}", *map(str, value)]
        elif isinstance(value, dict):
            words += [f"--{key}", json.dumps(value)]
        else:
            words += [f"--{key}", str(value)]
    return words


def _is_flag(action: argparse.Action) -> bool:
    return type(action).__name__ == "_StoreTrueAction"


def _is_supported(action: argparse.Action) -> bool:
    return _is_flag(action) or type(action).__name__ == "_StoreAction" or action.nargs is None
