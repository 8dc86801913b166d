# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server is asked by HTTP, and what its answers say: gates 4 and 5 of readiness. PRIVATE to the collection.

Nothing here waits, repeats or decides when to ask: the waiter (``_waiter.py``) does, and brings the requests.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._http import HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._readiness import (
    GATES,
    PHASES,
    STATES,
    Difference,
    Gate,
    compare_settings,
    default_generation_tokens,
    gate_generation,
    gate_identity,
    generation_request,
    resembling,
    small,
)
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import Options
from ansible_collections.specdec.serving.plugins.module_utils._releases import reports_verify_steps
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import SERVING

#: Arguments of ``/server_info`` that matter to people.
_SHOWN = (
    "attention_backend",
    "context_length",
    "dp_size",
    "ep_size",
    "log_level",
    "max_running_requests",
    "mem_fraction_static",
    "model_path",
    "nnodes",
    "node_rank",
    "pp_size",
    "quantization",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_draft_tokens",
    "startup_weight_load_mode",
    "tp_size",
)


class ServerChecks:
    """The questions to one server, and what it has told so far."""

    def __init__(
        self, options: Options, get: t.Callable[[str], Response], post: t.Callable[[str, t.Any], Response]
    ) -> None:
        """``get`` takes a path, ``post`` a path and a JSON value; both raise HttpError."""
        self._options = options
        self._get = get
        self._post = post
        self._ready_path = "/ready"
        #: ``server`` of the result; empty until it has answered.
        self.server: dict[str, t.Any] = {}
        #: Texts that must not leave the host.
        self.secrets = {options.endpoint.api_key} if options.endpoint.api_key else set()
        #: Of the settings that were asked for, those that the server does not know, each with what may be meant.
        self.unknown_settings: dict[str, str] = {}

    def begin(self) -> None:
        """Another start: nothing is known of its server."""
        self._ready_path = "/ready"
        self.server = {}

    @property
    def ready_path(self) -> str:
        """The endpoint that tells readiness in this release, as far as it is known."""
        return self._ready_path

    def identity(self, *, node_rank: int, nodes: t.Any, max_total_num_tokens: int | None) -> Gate:
        """Gate 4: the model that is expected, from the path and with the settings that were asked for.

        ``nodes``: how many a follower (``node_rank`` above 0) belongs to; ``max_total_num_tokens`` as logged.
        """
        response = self._get("/v1/models")
        if response.status in (401, 403):
            given = (
                "the api_key that was given is not the server's"
                if self._options.endpoint.api_key
                else "no api_key was given"
            )
            text = f"/v1/models answered {response.status}: the server wants a key, and {given}"
            return Gate("identity", False, text, "unauthorized")
        models = [str(item.get("id")) for item in _dicts(_expect_200("/v1/models", response).json(), "data")]
        model_info = _mapping(self._get_json("/model_info", "/get_model_info"))
        info = _mapping(self._get_json("/server_info", "/get_server_info"))
        self.secrets.update(
            key for key in (str(info.get(name) or "") for name in ("api_key", "admin_api_key")) if _can_be_masked(key)
        )
        differences, unreported = self._compare(info, node_rank=node_rank, nodes=nodes)
        self._remember(info, models, differences, max_total_num_tokens)
        self.unknown_settings = {name: resembling(name, info) for name in unreported}
        return gate_identity(
            model=self._options.model,
            model_path=self._options.model_path,
            models=models,
            running_path=str(model_info.get("model_path", "")),
            differences=differences,
            unreported=unreported,
        )

    def _compare(
        self, info: t.Mapping[str, t.Any], *, node_rank: int, nodes: t.Any
    ) -> tuple[list[Difference], list[str]]:
        """What was asked against what runs. A leader has another rank than its follower, and must know of all nodes."""
        if not node_rank:
            return compare_settings(self._options.settings, info)
        asked = {**self._options.settings, "nnodes": nodes}
        own = ("node_rank", "host", "port")
        differences, unreported = compare_settings(
            {name: value for name, value in asked.items() if name not in own}, info
        )
        return [
            dataclasses.replace(difference, held=difference.held or difference.name == "nnodes")
            for difference in differences
        ], unreported

    def _remember(
        self,
        info: t.Mapping[str, t.Any],
        models: t.Sequence[str],
        differences: t.Sequence[Difference],
        max_total_num_tokens: int | None,
    ) -> None:
        self.server = {
            "version": small(info.get("version")),
            "model": models[0][:256] if models else "",
            "arguments": {name: small(info[name]) for name in _SHOWN if small(info.get(name)) is not None},
            "max_total_num_tokens": small(info.get("max_total_num_tokens")) or max_total_num_tokens,
            "startup_time": small(info.get("startup_time")),
            "engine_changed": _small_changes(difference for difference in differences if not difference.held),
            "mismatched": _small_changes(difference for difference in differences if difference.held),
            "skip_tokenizer_init": bool(info.get("skip_tokenizer_init")),
        }

    def serving(self, *, fired_up: bool) -> tuple[bool, Gate]:
        """The first half of gate 5: whether the server says that it serves. ``fired_up``: its log has said so."""
        response = self._get(self._ready_path)
        if response.status == 404 and self._ready_path == "/ready":
            # Before 0.5.20. This one generates a token and takes a second in every release; /health is 200 from the
            # beginning in 0.4.6, and wherever SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is 0.
            self._ready_path = "/health_generate"
            response = self._get(self._ready_path)
        if response.status == 200:
            return True, Gate("serving", None, f"{self._ready_path} is 200")
        text = f"{self._ready_path} answers {response.status}: warming up, draining or unhealthy"
        return False, Gate("serving", None, text, "unhealthy" if fired_up else "")

    def generation(self, *, speculation: bool, block_size: int, release: t.Callable[[], str]) -> Gate:
        """The second half of gate 5: tokens come, and speculation takes part in it. ``block_size`` 0: not known."""
        tokens = self._options.generation_tokens
        if tokens is None:
            tokens = default_generation_tokens(block_size if speculation else 0)
        if tokens == 0:
            return Gate("serving", True, f"{self._ready_path} is 200; no generation was asked for")
        payload = generation_request(tokens, skip_tokenizer_init=self.server["skip_tokenizer_init"])
        response = self._post("/generate", payload)
        if response.status != 200:
            body = response.body[:300].decode("utf-8", "replace")
            return Gate("serving", False, f"/generate answered {response.status}: {body}", "generation_failed")
        return gate_generation(
            response.json(),
            tokens=tokens,
            speculation=speculation,
            counted=reports_verify_steps(release()),
            block_size=block_size,
        )

    def _get_json(self, *paths: str) -> t.Any:
        """The first of several names of one endpoint that this release has."""
        for path in paths:
            response = self._get(path)
            if response.status == 404 and path != paths[-1]:
                continue
            return _expect_200(path, response).json()
        raise HttpError("no path")


def _can_be_masked(key: str) -> bool:
    """Whether the result stays readable without this text. The name beside a value masks it in any case."""
    return len(key) >= 4 and not any(key in word for word in (*STATES, *GATES, *PHASES, SERVING))


def _small_changes(differences: t.Iterable[Difference]) -> list[dict[str, t.Any]]:
    changes = (small(dataclasses.asdict(difference)) for difference in differences)
    return [change for change in changes if change is not None]


def _mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    if not isinstance(value, dict):
        raise HttpError(f"expected a JSON object, got {str(value)[:120]!r}", "not_json")
    return value


def _expect_200(path: str, response: Response) -> Response:
    if 300 <= response.status < 400:
        raise HttpError(f"GET {path} is redirected to {response.location!r}; SGLang never does that", "redirected")
    if response.status != 200:
        raise HttpError(f"GET {path} answered {response.status}: {response.body[:200]!r}", "http_status")
    return response


def _dicts(value: t.Any, key: str) -> list[dict[str, t.Any]]:
    items = _mapping(value).get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


__all__ = ("ServerChecks",)
