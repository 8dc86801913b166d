# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The check of client_url without a network; the real requests are in tests/integration/modules."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _client
from ansible_collections.specdec.serving.plugins.plugin_utils._client import (
    UNAUTHORIZED,
    UNREACHABLE,
    WRONG_MODEL,
    Answer,
    Finding,
    Unreachable,
    check,
    judge,
    merged,
    verification,
)

KEY = "sk-planted-key-9"
URL = "http://router.example:8000"


def models(*names: str) -> Answer:
    return Answer(200, json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode())


@pytest.mark.parametrize(
    ("answer", "cause", "part"),
    [
        (models("other", "k26"), "", "lists 'k26'"),
        (models("other"), WRONG_MODEL, "lists ['other'], not 'k26'"),
        (models(), WRONG_MODEL, "lists []"),
        (Answer(401, b"{}"), UNAUTHORIZED, "401"),
        (Answer(403, b""), UNAUTHORIZED, "403"),
        (Answer(302, b"", "https://login.example/"), UNREACHABLE, "'https://login.example/', which is not followed"),
        (Answer(503, b"no healthy worker"), UNREACHABLE, "answers 503: 'no healthy worker'"),
        (Answer(200, b"<html>It works!"), UNREACHABLE, "begins with '<html>It works!'"),
        (Answer(200, b"[]"), UNREACHABLE, "no list of models"),
        (Answer(200, b'{"data": 1}'), UNREACHABLE, "no list of models"),
        (Answer(200, b'{"data": [1]}'), UNREACHABLE, "no list of models"),
        (Answer(200, b'{"data": null}'), UNREACHABLE, "no list of models"),
        (Answer(200, b"[" * 100_000), UNREACHABLE, "no list of models"),
        (Answer(200, b"\xff\xfe"), UNREACHABLE, "no list of models"),
    ],
)
def test_answers(answer: Answer, cause: str, part: str) -> None:
    found, detail = judge(answer, "k26")
    assert found == cause
    assert part in detail
    assert len(detail) < 300


def test_any_model_will_do_when_none_is_expected() -> None:
    assert judge(models("whatever"), "")[0] == ""
    assert judge(models(), "")[0] == WRONG_MODEL


class Router:
    """Answers by a script, the last item again and again; each call takes a second."""

    def __init__(self, *script: Answer | Exception, takes: float = 1.0) -> None:
        self.script, self.takes, self.now = list(script), takes, 0.0
        self.asked: list[tuple[str, float]] = []
        self.complaints: list[str] = []

    def fetch(self, url: str, timeout: float) -> Answer:
        self.asked.append((url, timeout))
        self.now += min(self.takes, timeout)
        item = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(item, Exception):
            raise item
        return item

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def check(self, within: float = 1000.0, url: str = URL) -> Finding:
        return check(
            url,
            "k26",
            self.fetch,
            within=within,
            monotonic=lambda: self.now,
            sleep=self.sleep,
            complain=self.complaints.append,
        )


def test_the_model_is_listed_at_once() -> None:
    router = Router(models("k26"))
    assert router.check() == Finding(f"{URL}/v1/models", "", "lists 'k26'", 1.0)
    assert router.complaints == []


def test_a_router_that_needs_a_moment() -> None:
    router = Router(Answer(503, b""), Unreachable("Connection refused"), models("k26"))
    assert router.check().cause == ""
    assert router.complaints == [f"{URL}/v1/models answers 503: ''; trying again"]


def test_a_router_that_never_learns_is_given_up() -> None:
    router = Router(Unreachable("Connection refused"))
    found = router.check()
    assert (found.cause, found.detail) == (UNREACHABLE, "cannot be reached: Connection refused")
    assert 58 <= found.seconds <= 60


def test_a_host_that_drops_everything_does_not_hold_it_up() -> None:
    router = Router(Unreachable("timed out"), takes=1e9)
    assert router.check().seconds <= 60
    assert max(timeout for _url, timeout in router.asked) <= 10


@pytest.mark.parametrize(("answer", "cause"), [(models("other"), WRONG_MODEL), (Answer(401, b""), UNAUTHORIZED)])
def test_a_clear_answer_is_given_up_sooner(answer: Answer, cause: str) -> None:
    found = Router(answer).check()
    assert (found.cause, found.seconds < 10) == (cause, True)


def test_the_wait_itself_bounds_it() -> None:
    assert Router(Unreachable("refused")).check(within=5.0).seconds <= 5
    looked = Router(Unreachable("refused"))
    looked.check(within=0.0)
    assert len(looked.asked) == 1


def test_the_base_url_of_openai_clients() -> None:
    router = Router(models("k26"))
    router.check(url=f"{URL}/v1/")
    assert router.asked[0][0] == f"{URL}/v1/models"


READY = {"unit": "sglang-k26.service", "state": "ready", "ready": True, "diagnosis": {}, "changed": False}


def test_a_reachable_server_stays_ready() -> None:
    told = merged(READY, Finding(URL, "", "lists 'k26'", 0.1234), api_key="", fail=True)
    assert told == {**READY, "client": {"url": URL, "ok": True, "detail": "lists 'k26'", "seconds": 0.123}}


@pytest.mark.parametrize("cause", [UNREACHABLE, WRONG_MODEL, UNAUTHORIZED])
def test_an_unreachable_server_is_not_ready(cause: str) -> None:
    told = merged(READY, Finding(URL, cause, f"answers 418: {KEY!r}", 60.0), api_key=KEY, fail=True)
    assert (told["ready"], told["state"], told["failed"]) == (False, "loading", True)
    assert told["diagnosis"]["cause"] == cause
    assert told["diagnosis"]["remedy"] in told["msg"]
    assert "sglang-k26.service is not ready" in told["msg"]
    assert told["client"]["ok"] is False
    assert told["msg"].lower().count("the server itself is ready") == 1
    assert KEY not in json.dumps(told)


def test_who_only_looks_does_not_fail() -> None:
    told = merged(READY, Finding(URL, UNREACHABLE, "refused", 1.0), api_key="", fail=False)
    assert (told["ready"], "failed" in told, "msg" in told) == (False, False, False)


def test_what_certificates_are_checked_with(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    cases: list[tuple[dict[str, t.Any], dict[str, str], bool | str]] = [
        ({}, {}, True),
        ({"validate_certs": "no"}, {"REQUESTS_CA_BUNDLE": "/ca"}, False),
        ({"ca_path": str(bundle)}, {"REQUESTS_CA_BUNDLE": "/ca"}, str(bundle)),
        ({"ca_path": "/only/on/the/target.pem"}, {"REQUESTS_CA_BUNDLE": "/ca"}, "/ca"),
        ({"ca_path": "/only/on/the/target.pem"}, {}, True),
    ]
    for arguments, environment, verify in cases:
        assert verification(arguments, environment) == verify


def test_a_controller_without_requests_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _client.require()
    monkeypatch.setattr(_client, "_MISSING", ImportError("No module named 'requests'"))
    with pytest.raises(ValueError, match="client_url needs the Python library requests"):
        _client.require()
