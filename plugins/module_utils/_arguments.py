# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the words of a command line against the parser of an installed SGLang. PRIVATE to the collection.

argparse stops at the first fault; this tells all of them, each with the value, where it comes from and what to do. The
verdicts are argparse's own (CPython 3.11 ``argparse.py``), with three more that it lets pass as warnings: abbreviations, flags
that will not exist for long, and two spellings of one argument.
"""

from __future__ import annotations

import dataclasses
import decimal
import difflib
import json
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._engine_parser import EngineParser, ParserAction
from ansible_collections.specdec.serving.plugins.module_utils._redact import MASK, SECRET_ARGUMENTS
from ansible_collections.specdec.serving.plugins.module_utils._releases import argument_history
from ansible_collections.specdec.serving.plugins.module_utils._server_args import OWNED_ARGS, canonical_dest

__all__ = ("ArgumentsCheck", "Flag", "check_words", "human_readable_int", "shown", "split_flags")

_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_FACTORS = {
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_GRAPH_KEYS = ("backend", "max_bs", "bs", "max_seq_len", "max_context_size")


@dataclasses.dataclass
class ArgumentsCheck:
    """``values``: dest to the value that the server would have, defaults included. ``asked``: the dests that were given."""

    values: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    asked: dict[str, str] = dataclasses.field(default_factory=dict)
    errors: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    #: Values of arguments that the parser does not have: one word, a list of them, or True.
    unknown: dict[str, t.Any] = dataclasses.field(default_factory=dict)


def human_readable_int(text: str) -> int:
    """``2k`` is 2000, ``2Ki`` is 2048 (SGLang 0.5.23 ``utils/common.py:3394``).

    :raises ValueError: for anything that it does not take.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        return int(text)
    number, suffix = found.groups()
    if suffix.endswith("i"):
        if "." in number:
            raise ValueError(f"no decimals with {suffix!r}")
        return int(number) * _FACTORS[suffix]
    return int(decimal.Decimal(number) * _FACTORS[suffix])


def _graph_backend(text: t.Any) -> t.Any:
    if text == "tc_piecewise":
        raise ValueError("tc_piecewise was removed in 0.5.22; use breakable, full or disabled")
    return text


def _graph_config(text: str) -> dict[str, t.Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("a mapping is needed")
    for phase, settings in content.items():
        if phase not in ("decode", "prefill"):
            raise ValueError(f"unknown phase {phase!r}; there are 'decode' and 'prefill'")
        if not isinstance(settings, dict):
            raise ValueError(f"{phase!r} must be a mapping")
        for key in settings:
            if key not in _GRAPH_KEYS:
                raise ValueError(f"{phase!r} has no key {key!r}; there are {', '.join(_GRAPH_KEYS)}")
        _graph_backend(settings.get("backend"))
    return content


#: Converters by the name that SGLang's have, with what they take in words.
_CONVERTERS: t.Final[t.Mapping[str, tuple[t.Callable[[str], t.Any], str]]] = {
    "float": (float, "a number"),
    "human_readable_int": (human_readable_int, "a whole number, as 2048, 2k (2000) or 2Ki (2048)"),
    "int": (int, "a whole number"),
    "json_list_type": (json.loads, "JSON"),
    "loads": (json.loads, "JSON"),
    "nullable_str": (lambda text: None if not text or text == "None" else text, "text"),
    "parse_cuda_graph_backend_arg": (_graph_backend, "a CUDA graph backend"),
    "parse_cuda_graph_config_arg": (_graph_config, "a mapping of CUDA graph settings"),
    "str": (str, "text"),
}


def shown(dest: str, value: t.Any) -> str:
    """A value for a message; secrets are masked, and long ones cut."""
    if dest in SECRET_ARGUMENTS or re.search(r"(password|secret|token|(^|_)key(_b)?)$", dest):
        return repr(MASK)
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


@dataclasses.dataclass
class Flag:
    """One flag with the words that follow it; ``joined``: ``--flag=value``."""

    flag: str
    words: list[str]
    joined: bool = False


def split_flags(words: t.Sequence[str]) -> tuple[list[Flag], list[str]]:
    """Split a command line as argparse does; the second are words that belong to no flag."""
    groups: list[Flag] = []
    stray: list[str] = []
    for word in words:
        if (
            word.startswith("-")
            and len(word) > 1
            and not _NEGATIVE_NUMBER.match(word)
            and " " not in word.partition("=")[0]
        ):
            flag, equals, value = word.partition("=")
            groups.append(Flag(flag, [value] if equals else [], bool(equals)))
        elif groups:
            groups[-1].words.append(word)
        else:
            stray.append(word)
    return groups, stray


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _nearest(name: str, parser: EngineParser) -> str:
    known = {
        _name(flag): action for flag, action in parser.by_flag.items() if flag.startswith("--") and not action.hidden
    }
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return close[0] if close else ""


def _unknown(flag: str, candidates: t.Sequence[str], parser: EngineParser, version: str) -> str:
    """What is to be said of a flag that the engine does not have."""
    name = _name(flag)
    text = f"{name!r} is no argument of SGLang {version}"
    if candidates:
        text += f", and as an abbreviation it could be {', '.join(sorted(map(_name, candidates)))}"
    history = argument_history(name)
    if history is not None:
        there = {_name(other) for other in parser.by_flag}
        text += f": it {history.span}"
        for successor in (history.later, history.earlier):
            if re.split(r"\W", successor)[0] in there:
                return f"{text}; use {successor}"
        return text
    near = "" if candidates else _nearest(name, parser)
    return f"{text}; did you mean {near!r}?" if near else f"{text}; write one of them in full" if candidates else text


def _look_up(group: Flag, parser: EngineParser) -> tuple[ParserAction | None, list[str]]:
    """The action of a flag, and the flags that it could be an abbreviation of."""
    known = parser.by_flag
    if group.flag in known:
        return known[group.flag], []
    if not group.flag.startswith("--"):
        return None, []
    candidates = [flag for flag in known if flag.startswith(group.flag)]
    return (known[candidates[0]] if len(candidates) == 1 else None), candidates


def _count_error(action: ParserAction, group: Flag) -> str:
    """What argparse says of the number of words, in the words of the mapping; '' = right."""
    count = len(group.words)
    given = ", ".join(shown(action.dest, word) for word in group.words[:4])
    if action.takes_nothing:
        return f"takes no value, but got {given}; write true or leave it out" if count else ""
    if action.nargs is None:
        if count == 1:
            return ""
        return f"needs one value, but got {f'{count}: {given}' if count else 'none'}"
    if action.nargs == "+" and not count:
        return "needs one value at least, but got none"
    if action.nargs == "?" and count > 1:
        return f"takes one value at most, but got {count}: {given}"
    if isinstance(action.nargs, int) and count != action.nargs:
        return f"needs {action.nargs} values, but got {count}"
    if group.joined and count > 1:
        return f"got {count} values, of which only the first belongs to it: {given}"
    return ""


def _converted(action: ParserAction, word: str) -> tuple[t.Any, str]:
    """The value of one word, and what is wrong with it ('' = nothing)."""
    converter, wanted = _CONVERTERS.get(action.type or "str", (str, "text"))
    try:
        value = converter(word)
    except (ArithmeticError, TypeError, ValueError) as exc:
        reason = "" if action.type in ("int", "float", "human_readable_int") else f" ({exc})"
        return None, f"must be {wanted}, not {shown(action.dest, word)}{reason}"
    if action.choices is not None and value not in action.choices:
        texts = [str(choice) for choice in action.choices]
        close = difflib.get_close_matches(str(value), texts, n=1, cutoff=0.6)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return None, f"is {shown(action.dest, value)}, but must be one of {', '.join(texts)}{hint}"
    return value, ""


def _value(action: ParserAction, group: Flag) -> tuple[t.Any, str]:
    """The value that the action stores, and what is wrong ('' = nothing)."""
    problem = _count_error(action, group) if action.known else ""
    if problem:
        return None, problem
    if action.action == "BooleanOptionalAction":
        return not group.flag.startswith("--no-"), ""
    if action.takes_nothing:
        return True, ""
    values = []
    for word in group.words:
        value, problem = _converted(action, word) if action.known else (word, "")
        if problem:
            return None, problem
        values.append(value)
    single = action.nargs is None or (action.nargs == "?" and values) or (not action.known and len(values) == 1)
    return (values[0] if values else True) if single or not values else values, ""


def check_words(
    words: t.Sequence[str], parser: EngineParser, *, version: str, origin: t.Callable[[str], str]
) -> ArgumentsCheck:
    """Check the words after ``sglang.launch_server``.

    :param origin: dest to where the argument comes from, for the messages.
    :returns: every fault that was found; without any, ``values`` are what the server would start to resolve.
    """
    result = ArgumentsCheck(values={action.dest: action.default for action in parser.actions})
    groups, stray = split_flags(words)
    result.errors.extend(f"{origin('')}: {word!r} belongs to no argument" for word in stray)
    for group in groups:
        action, candidates = _look_up(group, parser)
        where = origin(action.dest if action else _name(group.flag))
        if action is None:
            result.errors.append(f"{where}: {_unknown(group.flag, candidates, parser, version)}")
            result.unknown[_name(group.flag)] = group.words[0] if len(group.words) == 1 else list(group.words) or True
            continue
        name = _name(group.flag)
        owned = canonical_dest(action.dest)
        if candidates and owned in OWNED_ARGS:
            result.errors.append(
                f"{where}: {name!r} is an abbreviation of {_name(candidates[0])!r}, which belongs to the role: {OWNED_ARGS[owned]}"
            )
            continue
        if candidates:
            result.warnings.append(
                f"{where}: {name!r} is taken as an abbreviation of {_name(candidates[0])!r}; write it in full, since a release"
                " that adds another such name refuses it"
            )
        if action.error_message:
            result.errors.append(f"{where}: {name!r} was retired: {action.error_message}")
            continue
        if action.old:
            use = f"; use {action.new_flag}" if action.new_flag else ""
            result.warnings.append(f"{where}: {name!r} is deprecated in SGLang {version}{use}")
        value, problem = _value(action, group)
        if problem:
            result.errors.append(f"{where}: {name!r} {problem}")
            continue
        if action.dest in result.asked:
            result.warnings.append(
                f"{where}: {result.asked[action.dest]!r} and {name!r} set the same argument; SGLang takes the last"
            )
        result.asked[action.dest] = name
        result.values[action.dest] = value
    result.errors.extend(
        f"{origin(action.dest)}: {action.dest!r} is missing"
        for action in parser.actions
        if action.required and action.dest not in result.asked
    )
    return result
