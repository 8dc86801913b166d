# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of SGLang's arguments do not go together, as data. PRIVATE to the collection.

Each row is a rule that SGLang 0.5.23 has in its source, or that running it taught; most of them would end the server
after its weights were asked for, some leave one that starts and is wrong. Sources are relative to ``sglang/srt/`` of the 0.5.23
wheel, ``#N`` is an issue of sgl-project/sglang. What needs a GPU is only judged where the GPU is known.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._argument_config import Config, Number, context_length_of
from ansible_collections.specdec.serving.plugins.module_utils._rules_common import Rule
from ansible_collections.specdec.serving.plugins.module_utils._rules_parallel import PARALLEL_RULES
from ansible_collections.specdec.serving.plugins.module_utils._rules_serving import SERVING_RULES
from ansible_collections.specdec.serving.plugins.module_utils._rules_speculation import SPECULATION_RULES

__all__ = ("RULES", "Broken", "broken_rules")

#: The release whose source the rules were read from.
READ_FROM: t.Final[Number] = (0, 5, 23)


#: In the order in which they are told.
RULES: t.Final[tuple[Rule, ...]] = (*PARALLEL_RULES, *SPECULATION_RULES, *SERVING_RULES)


@dataclasses.dataclass(frozen=True)
class Broken:
    """A rule that an instance breaks. ``dest`` is the argument to look at, ``text`` what to tell, without the origin."""

    rule: Rule
    dest: str
    text: str
    is_error: bool


class _Values(t.Mapping[str, t.Any]):
    """What a message may name: every argument, and the config itself as ``c``."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getitem__(self, name: str) -> t.Any:
        if name == "c":
            return _Shown(self._config)
        value = self._config[name]
        return "not set" if value is None else value

    def __iter__(self) -> t.Iterator[str]:
        return iter(self._config.values)

    def __len__(self) -> int:
        return len(self._config.values)


class _Shown:
    """The config's properties for a message: tuples become lists of words."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getattr__(self, name: str) -> t.Any:
        if name == "model_context":
            return context_length_of(self._config.target)
        if name == "card_or_device":
            known = self._config.compute_capability
            return self._config.card_architecture if known else f"the device {self._config.device}"
        value = getattr(self._config, name)
        return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def broken_rules(config: Config, rules: t.Iterable[Rule] = RULES) -> list[Broken]:
    """The rules that the arguments of one instance break, in the order of the table."""
    found = []
    for rule in rules:
        if not rule.since <= config.release <= rule.until:
            continue
        try:
            broken = rule.broken(config)
        except (TypeError, ValueError, ZeroDivisionError):
            # A value of another type than the rule is about; the parser's own check tells that.
            continue
        if not broken:
            continue
        values = _Values(config)
        elsewhere = not rule.certain and config.release != READ_FROM and not rule.since > (0, 0, 0)
        note = "" if not elsewhere or rule.warning else " (so in SGLang 0.5.23)"
        text = f"{rule.message.format_map(values)}{note}; {rule.remedy.format_map(values)} [{rule.id}]"
        dest = next((dest for dest in rule.dests if dest in config.asked), rule.dests[0])
        found.append(Broken(rule, dest, re.sub(r"\s+", " ", text), not rule.warning and not elsewhere))
    return found
