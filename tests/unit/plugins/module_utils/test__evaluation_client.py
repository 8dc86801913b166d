# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _evaluation_client as client_module
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_client import (
    Asked,
    AskError,
    Client,
    Server,
    parse_answer,
    template_kwargs,
    token_limit,
)
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem

PROBLEM = Problem("t/1", "def f(x):\n", "f", "def check(candidate):\n    pass\n")
MODELS = {"data": [{"id": "kimi", "max_model_len": 4096}, {"id": "other"}]}
INFO = {"version": "0.5.23", "reasoning_parser": "kimi_k2", "api_key": "sk-secret-1"}


class Wire:
    """A scripted server: by path, or one after the other."""

    def __init__(self, *script: t.Any, **paths: t.Any) -> None:
        self.script, self.paths = list(script), {"/v1/models": MODELS, "/server_info": INFO, **paths}
        self.sent: list[tuple[str, str, t.Any, str | None]] = []
        self.slept = 0.0

    def __call__(
        self, endpoint: Endpoint, method: str, path: str, *, payload: t.Any = None, **_rest: t.Any
    ) -> Response:
        self.sent.append((method, path, payload, endpoint.api_key))
        item = self.script.pop(0) if self.script else self.paths[path]
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Response):
            return item
        return Response(200, json.dumps(item).encode(), 0.5)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def client(self, **changes: t.Any) -> Client:
        endpoint = Endpoint("127.0.0.1", 1, api_key="sk-normal-1")
        return Client(endpoint, timeout=9.0, send=self, sleep=self.sleep, **changes)


SERVER = Server("kimi", 4096, INFO)


def chat(content: t.Any, reason: t.Any = "stop", **message: t.Any) -> dict[str, t.Any]:
    return {
        "choices": [{"message": {"content": content, **message}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 9},
    }


def test_the_server_tells_what_it_is() -> None:
    found = Wire().client().server()
    assert (found.model, found.context_length, found.reasoning_parser) == ("kimi", 4096, "kimi_k2")
    assert Wire().client().server("other").context_length == 0


def test_another_model_than_asked_for_is_refused() -> None:
    with pytest.raises(AskError, match=r"serves 'kimi', 'other', and 'llama' was asked for"):
        Wire().client().server("llama")


@pytest.mark.parametrize(
    ("asked", "kwargs"),
    [
        (Asked(), None),
        (Asked(thinking="off"), {"thinking": False, "enable_thinking": False}),
        (Asked(thinking="on"), {"thinking": True, "enable_thinking": True}),
        (
            Asked(thinking="on", chat_template_kwargs={"thinking": "deep"}),
            {"thinking": "deep", "enable_thinking": True},
        ),
    ],
)
def test_a_chat_request(asked: Asked, kwargs: t.Any) -> None:
    wire = Wire(chat("x"))
    answer = wire.client().answer(PROBLEM, SERVER, asked, 512)
    method, path, body, key = wire.sent[0]
    assert (method, path, key) == ("POST", "/v1/chat/completions", "sk-normal-1")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("kimi", 0, 512)
    assert body.get("chat_template_kwargs") == kwargs
    assert PROBLEM.prompt.strip() in body["messages"][0]["content"]
    assert (answer.text, answer.completion_tokens, answer.seconds) == ("x", 9, 0.5)


def test_a_completion_request() -> None:
    wire = Wire({"choices": [{"text": "    return x", "finish_reason": "length"}]})
    answer = wire.client().answer(PROBLEM, SERVER, Asked(mode="completion"), 64)
    _method, path, body, _key = wire.sent[0]
    assert path == "/v1/completions"
    assert body["prompt"] == PROBLEM.prompt
    assert "\ndef " in body["stop"]
    assert (answer.text, answer.finish_reason) == ("    return x", "length")


def test_the_content_alone_is_the_answer() -> None:
    answer = parse_answer(chat(None, "length", reasoning_content="I think"), chat=True)
    assert (answer.text, answer.reasoning_characters, answer.reasoning_tail) == ("", 7, "I think")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"choices": []},
        [],
        {"choices": [{}]},
        chat(["x"]),
        chat("x", "abort"),
        chat("x", None),
        chat("x", reasoning_content=1),
    ],
)
def test_an_answer_that_is_none_is_told(value: t.Any) -> None:
    with pytest.raises(AskError, match="the answer"):
        parse_answer(value, chat=True)


@pytest.mark.parametrize(
    ("asked", "context", "limit"),
    [
        (Asked(), 0, 16384),
        (Asked(thinking="off"), 0, 2048),
        (Asked(thinking="on"), 262144, 16384),
        (Asked(mode="completion"), 131072, 1024),
        # As far as it fits beside the prompt.
        (Asked(), 4096, 4096 - 10 - 200),
        (Asked(max_tokens=3000), 4096, 3000),
    ],
)
def test_the_limit_of_tokens_fits(asked: Asked, context: int, limit: int) -> None:
    assert token_limit(asked, [PROBLEM], context) == limit


@pytest.mark.parametrize(
    ("asked", "context", "message"),
    [
        (
            Asked(max_tokens=5000),
            4096,
            r"max_tokens 5000 and the longest prompt do not fit into the server's context of 4096",
        ),
        (Asked(), 256, r"context of 256 tokens leaves 46 for an answer, and 128 are needed"),
    ],
)
def test_a_limit_that_cannot_fit_is_refused(asked: Asked, context: int, message: str) -> None:
    with pytest.raises(AskError, match=message):
        token_limit(asked, [PROBLEM], context)


def test_a_lost_connection_is_tried_again() -> None:
    wire = Wire(HttpError("closed", "reset"), Response(503, b"", 0.1), chat("x"))
    assert wire.client().answer(PROBLEM, SERVER, Asked(), 64).text == "x"
    assert len(wire.sent) == client_module.TRIES
    assert wire.slept > 0


@pytest.mark.parametrize(
    ("item", "tries", "message"),
    [
        (HttpError("refused", "refused"), 3, "refused"),
        (HttpError("no answer before the deadline", "no_answer"), 1, "no answer before the deadline"),
        (Response(400, b'{"message": "too long"}', 0.1), 1, "answered with 400: .*too long"),
        (Response(401, b"", 0.1), 1, "answered with 401"),
        (Response(500, b"oops", 0.1), 3, "answered with 500: oops"),
    ],
)
def test_what_does_not_help_is_not_repeated(item: t.Any, tries: int, message: str) -> None:
    wire = Wire(*[item] * 5)
    with pytest.raises(AskError, match=message):
        wire.client().answer(PROBLEM, SERVER, Asked(), 64)
    assert len(wire.sent) == tries


def test_nothing_is_asked_once_it_is_stopped() -> None:
    wire = Wire()
    with pytest.raises(AskError, match="stopped"):
        wire.client(stopped=lambda: True).answer(PROBLEM, SERVER, Asked(), 64)
    assert wire.sent == []


@pytest.mark.parametrize("top", [True, False])
def test_tokens_are_generated_with_log_probabilities_only_where_they_are_needed(top: bool) -> None:
    rows = {"output_top_logprobs": [[[-0.1, 4, None], [-2.0, 5, None]]]} if top else {}
    wire = Wire({"output_ids": [4], "meta_info": rows})
    found = wire.client().generate("def f", 1, top=top)
    body = wire.sent[0][2]
    assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    assert ("return_logprob" in body) is top
    assert found.ids == (4,)
    assert bool(found.top) is top


def test_a_baseline_without_log_probabilities_is_refused() -> None:
    with pytest.raises(AskError, match="no log-probabilities"):
        Wire({"output_ids": [4], "meta_info": {}}).client().generate("x", 1, top=True)
    with pytest.raises(AskError, match="no output_ids"):
        Wire({"text": "x"}).client().generate("x", 1, top=False)


@pytest.mark.parametrize(
    ("item", "flushed"), [(Response(200, b"", 0.1), True), (Response(400, b"", 0.1), False), (HttpError("x"), False)]
)
def test_the_cache_is_flushed_with_the_administrative_key(item: t.Any, flushed: bool) -> None:
    wire = Wire(item)
    assert wire.client(admin_api_key="sk-admin-1").flush() is flushed
    assert wire.sent[0][1].startswith("/flush_cache?timeout=")
    assert wire.sent[0][3] == "sk-admin-1"


@pytest.mark.parametrize(
    ("item", "running"),
    [
        ({"loads": [{"num_running_reqs": 2}, {"num_running_reqs": 1}]}, 3),
        (Response(404, b"{}", 0.1), 0),
        (HttpError("x"), 0),
        ([], 0),
    ],
)
def test_requests_of_others_are_counted_where_the_server_tells(item: t.Any, running: int) -> None:
    assert Wire(item).client().running() == running


def test_template_arguments_of_users_win() -> None:
    asked = Asked(thinking="off", chat_template_kwargs={"enable_thinking": True, "x": 1})
    assert template_kwargs(asked) == {"thinking": False, "enable_thinking": True, "x": 1}


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [1],
        "x",
        {"completion_tokens": float("nan")},
        {"completion_tokens": "7"},
        {"completion_tokens": -7},
        {"completion_tokens": True},
    ],
)
def test_a_count_that_is_none_does_not_end_the_run(usage: t.Any) -> None:
    found = parse_answer({**chat("x"), "usage": usage}, chat=True)
    assert (found.text, found.completion_tokens) == ("x", 0)


@pytest.mark.parametrize("listed", [[], "x", {"data": 5}, {"data": {"id": "kimi"}}, {"data": [None]}])
def test_a_list_of_models_that_is_none_is_told(listed: t.Any) -> None:
    with pytest.raises(AskError, match="serves no model"):
        Wire(listed).client().server()


def test_no_half_of_a_key_is_told() -> None:
    for key in ("sk-normal-1", "sk-admin-1"):
        wire = Wire(Response(400, b"." * 295 + key.encode(), 0.1))
        with pytest.raises(AskError) as error:
            wire.client(admin_api_key="sk-admin-1").answer(PROBLEM, SERVER, Asked(), 64)
        assert str(error.value).endswith("." * 295 + "*****")


def test_an_older_release_tells_its_settings_elsewhere() -> None:
    wire = Wire(**{"/server_info": Response(404, b"{}", 0.1), "/get_server_info": {**INFO, "version": "0.5.4"}})
    assert wire.client().server().info["version"] == "0.5.4"
