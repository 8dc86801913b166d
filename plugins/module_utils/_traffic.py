# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many requests a running server has, and how to abort them all. PRIVATE to the collection.

Everything is learnt from the process that runs, not from the inventory: its port, its key and its release may be other ones
than those that are about to be deployed. Read in the source of 0.4.6, 0.5.9, 0.5.12, 0.5.18 and 0.5.23 (srt/entrypoints:
http_server.py, v1_loads.py; srt/managers/scheduler_components/load_inquirer.py; srt/utils/auth.py).
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._credentials import key_in
from ansible_collections.specdec.serving.plugins.module_utils._http import HttpError, Response

__all__ = ("Keys", "Load", "NotAsked", "Traffic", "keys_of", "parse_get_load", "parse_loads", "parse_metrics")

#: ``(method, path, key, payload)``: one request to the server with that key ('' = none); raises HttpError.
Transport = t.Callable[[str, str, str, t.Any], Response]


class NotAsked(Exception):
    """The server did not tell. ``final``: it never will, however often it is asked."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


@dataclasses.dataclass(frozen=True)
class Load:
    """Requests that a server works on (``running``) or will (``waiting``); ``source`` is the endpoint that told."""

    running: int
    waiting: int
    source: str = ""

    @property
    def total(self) -> int:
        return self.running + self.waiting


@dataclasses.dataclass(frozen=True)
class Keys:
    """What the server wants to be sent; '' = nothing."""

    api: str = dataclasses.field(default="", repr=False)
    admin: str = dataclasses.field(default="", repr=False)

    @property
    def administrative(self) -> str:
        """For ADMIN_OPTIONAL endpoints: with an administrator's key the other one is refused (srt/utils/auth.py)."""
        return self.admin or self.api


def _key_in(config: str, name: str) -> str:
    try:
        return key_in(config, name)
    except ValueError:
        # Not a file of ours; the server then says that it wants another key.
        return ""


def keys_of(arguments: t.Mapping[str, t.Any], config: str) -> Keys:
    """The keys of a process: on its command line (by dest), which wins, or in the text of its ``--config`` file."""

    def one(name: str) -> str:
        given = arguments.get(name)
        return given if isinstance(given, str) else _key_in(config, name)

    return Keys(api=one("api_key"), admin=one("admin_api_key"))


def _count(value: t.Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError(f"{value!r} is no number of requests")
    return int(value)


def parse_loads(body: t.Any) -> Load:
    """The answer of ``/v1/loads`` (0.5.9 and newer), added up over the data-parallel ranks. Raises ValueError."""
    if not isinstance(body, dict) or not isinstance(body.get("loads"), list):
        raise ValueError("there is no list 'loads' in it")
    running = waiting = 0
    for load in body["loads"]:
        if not isinstance(load, dict):
            raise ValueError("a load is no mapping")
        queues = load.get("queues") or {}
        one = _count(load["num_running_reqs"]) if "num_running_reqs" in load else _count(load.get("num_total_reqs"))
        more = _count(load.get("num_waiting_reqs", 0))
        # Requests whose grammar is compiled, and those of a paused engine, stand in queues of their own.
        more += sum(_count(queues.get(name) or 0) for name in ("grammar", "paused"))
        if not one + more and _count(load.get("num_waiting_uncached_tokens") or 0):
            # A long prompt that is being read in parts is in neither list.
            one = 1
        running, waiting = running + one, waiting + more
    return Load(running, waiting, "/v1/loads")


def parse_get_load(body: t.Any) -> Load:
    """The answer of ``/get_load`` (0.4.7 to 0.5.20), whose ``num_reqs`` holds the waiting ones. Raises ValueError."""
    if not isinstance(body, list):
        raise ValueError("it is no list")
    total = waiting = 0
    for load in body:
        if not isinstance(load, dict):
            raise ValueError("a load is no mapping")
        total += _count(load.get("num_reqs"))
        waiting += _count(load.get("num_waiting_reqs", 0))
    return Load(max(total - waiting, 0), waiting, "/get_load")


_METRIC = re.compile(
    r"^sglang:(num_running_reqs|num_queue_reqs|num_grammar_queue_reqs)(?:\{(.*)\})? (\S+)", re.MULTILINE
)
_DP_RANK = re.compile(r'dp_rank="([^"]*)"')


def parse_metrics(text: str) -> Load:
    """``/metrics``, where the server has them. All ranks of a replica may tell the same number. Raises ValueError."""
    found: dict[tuple[str, str], int] = {}
    for name, labels, value in _METRIC.findall(text):
        rank = _DP_RANK.search(labels)
        key = (name, rank.group(1) if rank else "")
        found[key] = max(found.get(key, 0), _count(float(value)))
    if not any(name == "num_running_reqs" for name, _rank in found):
        raise ValueError("it has no sglang:num_running_reqs")
    running = sum(count for (name, _rank), count in found.items() if name == "num_running_reqs")
    return Load(running, sum(found.values()) - running, "/metrics")


class Traffic:
    """Asks one server."""

    def __init__(self, transport: Transport, keys: Keys) -> None:
        self._transport = transport
        self._keys = keys
        self._known = ""

    def _ask(self, method: str, path: str, key: str, payload: t.Any = None) -> Response:
        """An answer of status 200, or 404 for what this release does not have."""
        try:
            response = self._transport(method, path, key, payload)
        except HttpError as error:
            raise NotAsked(str(error)) from error
        if response.status in (401, 403):
            raise NotAsked(
                f"{method} {path} answered {response.status}: the key that this server wants is not known", final=True
            )
        if response.status not in (200, 404):
            raise NotAsked(f"{method} {path} answered {response.status}")
        return response

    def load(self) -> Load:
        """Its requests now. Raises NotAsked."""
        sources: tuple[tuple[str, t.Callable[[Response], Load]], ...] = (
            ("/v1/loads?include=core,queues", lambda response: parse_loads(response.json())),
            ("/get_load", lambda response: parse_get_load(response.json())),
            ("/metrics", lambda response: parse_metrics(response.body.decode("utf-8", "replace"))),
        )
        for path, parse in sources:
            if self._known and path != self._known:
                continue
            response = self._ask("GET", path, self._keys.api)
            if response.status == 404:
                continue
            try:
                load = parse(response)
            except (HttpError, ValueError) as error:
                raise NotAsked(f"GET {path}: {error}") from error
            self._known = path
            return load
        raise NotAsked("this release tells its requests by /metrics alone, and enable_metrics is off", final=True)

    def abort_all(self) -> None:
        """Abort all requests: their clients get what there is so far, with finish_reason ``abort``. Raises NotAsked."""
        if self._ask("POST", "/abort_request", self._keys.administrative, {"abort_all": True}).status == 404:
            raise NotAsked("this release cannot abort requests (/abort_request is missing)", final=True)
