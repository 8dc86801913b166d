# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._credentials import credential_text
from ansible_collections.specdec.serving.plugins.module_utils._http import HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._traffic import (
    Keys,
    Load,
    NotAsked,
    Traffic,
    keys_of,
    parse_get_load,
    parse_loads,
    parse_metrics,
)

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "sglang-0.5.23"


def recorded_loads(**changes: t.Any) -> dict[str, t.Any]:
    body = t.cast(
        "dict[str, t.Any]", json.loads((RECORDED / "standalone-GET_v1_loads.txt").read_text().splitlines()[0])
    )
    queues = changes.pop("queues", {})
    body["loads"][0].update(changes)
    body["loads"][0]["queues"].update(queues)
    return body


@pytest.mark.parametrize(
    ("changes", "running", "waiting"),
    [
        ({}, 0, 0),
        ({"num_running_reqs": 3, "num_waiting_reqs": 2}, 3, 2),
        ({"queues": {"grammar": 1, "paused": 4}}, 0, 5),
        # A long prompt that is read in parts is neither running nor waiting.
        ({"num_waiting_uncached_tokens": 8192}, 1, 0),
        ({"num_waiting_uncached_tokens": 8192, "num_running_reqs": 2}, 2, 0),
    ],
)
def test_loads_as_recorded(changes: dict[str, t.Any], running: int, waiting: int) -> None:
    assert parse_loads(recorded_loads(**changes)) == Load(running, waiting, "/v1/loads")


def test_loads_of_all_replicas_add_up() -> None:
    body = recorded_loads(num_running_reqs=3)
    body["loads"].append({"dp_rank": 1, "num_running_reqs": 4, "num_waiting_reqs": 1})
    assert parse_loads(body).total == 8
    assert parse_loads({"loads": []}).total == 0


def test_get_load() -> None:
    body = [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 9}, {"dp_rank": 1, "num_reqs": 1}]
    assert parse_get_load(body) == Load(4, 2, "/get_load")


def test_metrics_as_recorded() -> None:
    text = (RECORDED / "standalone-GET_metrics.txt").read_text()
    assert parse_metrics(text) == Load(0, 0, "/metrics")
    text = text.replace('tp_rank="0"} 0.0', 'tp_rank="0"} 2.0')
    assert parse_metrics(text) == Load(2, 4, "/metrics")


def test_metrics_of_several_ranks() -> None:
    def line(name: str, dp: int, tp: int, value: float) -> str:
        return f'sglang:{name}{{dp_rank="{dp}",tp_rank="{tp}"}} {value}\n'

    # With --enable-metrics-for-all-schedulers each rank of a replica tells the same requests.
    text = "".join(line("num_running_reqs", dp, tp, 3.0 + dp) for dp in (0, 1) for tp in (0, 1))
    assert parse_metrics(text + line("num_queue_reqs", 1, 0, 2.0)) == Load(7, 2, "/metrics")
    assert parse_metrics("sglang:num_running_reqs 1.0\n").total == 1


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_loads, None),
        (parse_loads, []),
        (parse_loads, {"loads": {}}),
        (parse_loads, {"loads": [5]}),
        (parse_loads, {"loads": [{}]}),
        (parse_loads, {"loads": [{"num_running_reqs": "3"}]}),
        (parse_loads, {"loads": [{"num_running_reqs": -1}]}),
        (parse_loads, {"loads": [{"num_running_reqs": True}]}),
        (parse_get_load, {}),
        (parse_get_load, [None]),
        (parse_get_load, [{}]),
        (parse_metrics, ""),
        (parse_metrics, "sglang:num_queue_reqs 1.0\n"),
        (parse_metrics, "sglang:num_running_reqs NaN\n"),
        (parse_metrics, "sglang:num_running_reqs x\n"),
    ],
)
def test_what_tells_no_number(parse: t.Callable[[t.Any], Load], body: t.Any) -> None:
    with pytest.raises(ValueError):
        parse(body)


ODD_KEY = 'k"\\\u00fc: #x'


@pytest.mark.parametrize(
    ("arguments", "config", "keys"),
    [
        ({}, "", Keys()),
        ({}, credential_text({"api_key": "sk-1234567"}), Keys(api="sk-1234567")),
        ({}, credential_text({"api_key": "sk-1", "admin_api_key": ODD_KEY}), Keys(api="sk-1", admin=ODD_KEY)),
        ({"api_key": "sk-line"}, credential_text({"api_key": "sk-file"}), Keys(api="sk-line")),
        ({"admin_api_key": "adm"}, 'api_key: "sk"\nother: [1]\n', Keys(api="sk", admin="adm")),
        ({"api_key": True}, "api_key: plain\n# a comment\n", Keys()),
    ],
)
def test_keys(arguments: dict[str, t.Any], config: str, keys: Keys) -> None:
    assert keys_of(arguments, config) == keys


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(Keys(api="secret-1", admin="secret-2"))


def test_the_key_for_aborts() -> None:
    assert [Keys(*keys).administrative for keys in (("a", "b"), ("a", ""), ("", "b"), ("", ""))] == ["b", "a", "b", ""]


class Scripted:
    """Answers by path: a status with a body, or an error."""

    def __init__(self, answers: dict[str, t.Any]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, str, str, t.Any]] = []

    def __call__(self, method: str, path: str, key: str, payload: t.Any) -> Response:
        self.calls.append((method, path, key, payload))
        answer = self.answers.get(path.partition("?")[0], (404, {}))
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        return Response(status, body.encode() if isinstance(body, str) else json.dumps(body).encode(), 0.0)


LOADS = (200, recorded_loads(num_running_reqs=2))
GET_LOAD = (200, [{"num_reqs": 3, "num_waiting_reqs": 0}])
METRICS = (200, "sglang:num_running_reqs 4.0\n")


@pytest.mark.parametrize(
    ("answers", "load", "paths"),
    [
        ({"/v1/loads": LOADS, "/get_load": GET_LOAD}, Load(2, 0, "/v1/loads"), ["/v1/loads?include=core,queues"]),
        ({"/get_load": GET_LOAD, "/metrics": METRICS}, Load(3, 0, "/get_load"), ["/get_load"]),
        ({"/metrics": METRICS}, Load(4, 0, "/metrics"), ["/metrics"]),
    ],
)
def test_each_release_is_asked_what_it_has(answers: dict[str, t.Any], load: Load, paths: list[str]) -> None:
    transport = Scripted(answers)
    traffic = Traffic(transport, Keys(api="sk", admin="adm"))
    assert traffic.load() == load
    assert traffic.load() == load
    # Once it is known, the others are not asked again.
    assert [path for _method, path, _key, _payload in transport.calls][-1:] == paths
    assert {key for _method, _path, key, _payload in transport.calls} == {"sk"}


@pytest.mark.parametrize(
    ("answers", "text", "final"),
    [
        ({}, "by /metrics alone, and enable_metrics is off", True),
        ({"/v1/loads": (401, {"error": "Unauthorized"})}, "is not known", True),
        ({"/v1/loads": (500, "")}, "/v1/loads.* answered 500", False),
        ({"/v1/loads": (200, "<html>")}, "not JSON", False),
        ({"/v1/loads": (200, {"loads": 5})}, "no list 'loads'", False),
        ({"/v1/loads": HttpError("no answer before the deadline")}, "no answer before", False),
    ],
)
def test_a_server_that_does_not_tell(answers: dict[str, t.Any], text: str, final: bool) -> None:
    with pytest.raises(NotAsked, match=text) as caught:
        Traffic(Scripted(answers), Keys()).load()
    assert caught.value.final is final


def test_abort() -> None:
    transport = Scripted({"/abort_request": (200, "")})
    Traffic(transport, Keys(api="sk", admin="adm")).abort_all()
    assert transport.calls == [("POST", "/abort_request", "adm", {"abort_all": True})]
    with pytest.raises(NotAsked, match="cannot abort") as caught:
        Traffic(Scripted({}), Keys()).abort_all()
    assert caught.value.final
