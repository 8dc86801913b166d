# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the answers of a server say. When they are asked for, and what follows, is tested with the waiter."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._http import HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import defaults, options_from
from ansible_collections.specdec.serving.plugins.module_utils._server_checks import ServerChecks

KEY, ADMIN = "sk-planted-key", "adm-planted-key"
ANSWERS: dict[str, t.Any] = {
    "/v1/models": {"data": [{"id": "k26"}]},
    "/model_info": {"model_path": "/models/k26"},
    "/server_info": {"version": "0.5.23", "model_path": "/models/k26", "tp_size": 8, "admin_api_key": ADMIN},
    "/ready": {},
    "/generate": {"meta_info": {"completion_tokens": 17, "spec_verify_ct": 3}},
}


class Server:
    """Answers by path: a status, or a value with 200."""

    def __init__(self, **options: t.Any) -> None:
        self.answers = dict(ANSWERS)
        self.asked: list[str] = []
        self.payload: t.Any = None
        values = {
            **defaults(),
            "unit": "sglang-x.service",
            "port": 30001,
            "model": "k26",
            "model_path": "/models/k26",
            **options,
        }
        self.checks = ServerChecks(options_from(values), self.get, self.post)

    def get(self, path: str) -> Response:
        self.asked.append(path)
        answer = self.answers.get(path, 404)
        return (
            Response(answer, b"", 0.0) if isinstance(answer, int) else Response(200, json.dumps(answer).encode(), 0.0)
        )

    def post(self, path: str, payload: t.Any) -> Response:
        self.payload = payload
        return self.get(path)

    def identity(self, **changes: t.Any) -> t.Any:
        values: dict[str, t.Any] = {"node_rank": 0, "nodes": None, "max_total_num_tokens": None}
        return self.checks.identity(**{**values, **changes})

    def generation(self, **changes: t.Any) -> t.Any:
        values: dict[str, t.Any] = {"speculation": True, "block_size": 8, "release": lambda: "0.5.23"}
        self.identity()
        return self.checks.generation(**{**values, **changes})


def test_the_expected_model() -> None:
    server = Server(settings={"tp_size": 8, "max_running_requests": 64}, api_key=KEY)
    server.answers["/server_info"] = {**ANSWERS["/server_info"], "max_running_requests": 48}
    gate = server.identity(max_total_num_tokens=4096)
    assert (gate.name, gate.passed) == ("identity", True)
    told = server.checks.server
    assert (told["version"], told["model"], told["max_total_num_tokens"]) == ("0.5.23", "k26", 4096)
    assert [one["name"] for one in told["engine_changed"]] == ["max_running_requests"]
    assert told["mismatched"] == []
    assert server.checks.secrets == {KEY, ADMIN}


def test_other_settings() -> None:
    server = Server(settings={"tp_size": 4, "no_such_thing": 1})
    gate = server.identity()
    assert (gate.passed, gate.cause) == (False, "settings_mismatch")
    assert [(one["name"], one["asked"], one["running"]) for one in server.checks.server["mismatched"]] == [
        ("tp_size", 4, 8)
    ]
    assert list(server.checks.unknown_settings) == ["no_such_thing"]


@pytest.mark.parametrize(("key", "text"), [("", "no api_key was given"), (KEY, "is not the server's")])
def test_a_key_is_wanted(key: str, text: str) -> None:
    server = Server(api_key=key)
    server.answers["/v1/models"] = 401
    gate = server.identity()
    assert (gate.passed, gate.cause) == (False, "unauthorized")
    assert text in gate.detail
    assert server.checks.server == {}


def test_older_names_of_endpoints() -> None:
    server = Server()
    for name in ("model_info", "server_info"):
        server.answers[f"/get_{name}"] = server.answers.pop(f"/{name}")
    assert server.identity().passed
    assert server.asked == ["/v1/models", "/model_info", "/get_model_info", "/server_info", "/get_server_info"]


def test_a_leader_has_another_rank_and_all_nodes() -> None:
    server = Server(settings={"node_rank": 1, "nnodes": 2, "tp_size": 8})
    server.answers["/server_info"] = {**ANSWERS["/server_info"], "node_rank": 0, "nnodes": 1}
    gate = server.identity(node_rank=1, nodes=2)
    assert (gate.passed, gate.cause) == (False, "settings_mismatch")
    server.answers["/server_info"]["nnodes"] = 2
    assert server.identity(node_rank=1, nodes=2).passed


@pytest.mark.parametrize(("answer", "cause"), [([], "not_json"), (500, "http_status"), (301, "redirected")])
def test_answers_that_are_none(answer: t.Any, cause: str) -> None:
    server = Server()
    server.answers["/model_info"] = answer
    with pytest.raises(HttpError) as caught:
        server.identity()
    assert caught.value.cause == cause


def test_serving() -> None:
    server = Server()
    up, gate = server.checks.serving(fired_up=False)
    assert (up, gate.passed, gate.detail) == (True, None, "/ready is 200")
    server.answers["/ready"] = 503
    assert [server.checks.serving(fired_up=said)[1].cause for said in (False, True)] == ["", "unhealthy"]


def test_a_release_without_ready_is_asked_otherwise_until_the_next_start() -> None:
    server = Server()
    server.answers.pop("/ready")
    server.answers["/health_generate"] = {}
    assert server.checks.serving(fired_up=False)[0]
    assert server.checks.serving(fired_up=False)[0]
    server.checks.begin()
    server.checks.serving(fired_up=False)
    assert server.asked == ["/ready", "/health_generate", "/health_generate", "/ready", "/health_generate"]
    assert server.checks.server == {}


def test_generation() -> None:
    server = Server()
    assert server.generation().passed
    assert server.payload["sampling_params"]["max_new_tokens"] == 17
    server.answers["/generate"] = {"meta_info": {"completion_tokens": 17, "spec_verify_ct": 0}}
    assert server.generation().cause == "speculation_not_exercised"
    server.answers["/generate"] = 500
    assert server.generation().cause == "generation_failed"
    assert Server(generation_tokens=0).generation().passed
