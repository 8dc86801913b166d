# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-in beside the recordings of the real 0.5.23: the same lines in the same order, the same replies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.stand_in.harness import (
    LIMIT,
    Factory,
    StandIn,
    group,
    wait_until,
)

RECORDED = Path(__file__).resolve().parents[2] / "unit" / "fixtures" / "sglang-0.5.23"

PLAIN = ["--device", "cpu", "--max-total-tokens", "4096", "--enable-metrics"]
STANDALONE = [*PLAIN, "--attention-backend", "intel_amx", "--grammar-backend", "none", "--mem-fraction-static", "0.5"]
STANDALONE += ["--max-running-requests", "8", "--decode-log-interval", "5", "--speculative-algorithm", "STANDALONE"]
STANDALONE += ["--speculative-draft-model-path", "TINY-DRAFT", "--speculative-num-steps", "3"]
STANDALONE += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]

# Recorded lines that the stand-in does not write, and why.
NOT_MODELLED = {
    r"(?<!launch_server\.py:N): [A-Za-z]*Warning:": "a Python warning of a library that the stand-in does not have",
    r"^  warnings\.warn\((f|$)": "the source line of such a warning",
    r"^  return await original_handler": "the same",
    r"^\[TIME\] Ignore import error when loading": "a model class that a CPU host cannot import",
    r"^\[TIME\] The current platform does not support Intel AMX": "the recording host's CPU",
    r"^\[TIME\] Overlap schedule is not implemented for speculative decoding on CPU": "CPU only",
    r"^\[TIME\] Non-overlap \(synchronous\) spec": "CPU only",
    r"^\[TIME\] SPECULATIVE_MOE_(RUNNER|AN?A?)_?.*BACKEND is not initialized": "STANDALONE only, says nothing of a start",
    r"^\[TIME\] Fail to set RLIMIT_NOFILE": "the recording shell's limit",
    r"^\[TIME\] init_threads_binding|^\[TIME\] init_cpu_threads_env": "CPU only",
    r"^\[TIME\] Cannot detect CUDA architecture": "CPU only",
    r'"GET /(health|v1/models) HTTP': "the recorder's own polls",
    r"Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0,": "the recorder's own polls of /health",
    r"Decode batch": "how many there are depends on the luck of the drafts (their shape: test_batch_lines)",
}
_VARIABLE = [
    (re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?"), "[TIME"),
    (re.compile(r"(?:/[\w.@+-]+)+/sglang/launch_server\.py"), "launch_server.py"),
    (re.compile(r"(?:/[\w.@+-]+)+/(tiny-draft|tiny)\b"), r"MODELS/\1"),
    (re.compile(r"server_args=\{.*"), "server_args={...}"),
    (re.compile(r"\d+\.\d+"), "N"),
    (re.compile(r"\d+"), "N"),
    (re.compile(r"=-N"), "=N"),
    # tqdm pads slow rates.
    (re.compile(r",  Nit/s"), ", Nit/s"),
]


def shape(line: str) -> str:
    """A line without what changes from start to start."""
    for pattern, stays in _VARIABLE:
        line = pattern.sub(stays, line)
    return line.rstrip()


def shapes(text: str, until: str) -> list[str]:
    """The shapes of the lines that both should have, up to the line `until`. Carriage returns end lines too."""
    left_out = re.compile("|".join(NOT_MODELLED))
    found: list[str] = []
    for line in re.split(r"\r|\n", text):
        this = shape(line)
        if this and not left_out.search(this) and not left_out.search(line):
            found.append(this)
        if until in this:
            return found
    raise AssertionError(f"no line {until!r}")


def keys(value: t.Any, path: str = "") -> set[str]:
    """All key paths of a JSON value; of a list only its first item counts."""
    if isinstance(value, dict):
        found: set[str] = set()
        for key, item in value.items():
            found |= {f"{path}.{key}"} | keys(item, f"{path}.{key}")
        return found
    if isinstance(value, list) and value:
        return keys(value[0], f"{path}[]")
    return set()


@pytest.mark.parametrize(
    ("recording", "words"),
    [
        pytest.param("startup-cpu-plain.log", PLAIN, id="plain"),
        pytest.param("startup-cpu-standalone-draft.log", STANDALONE, id="standalone-draft"),
    ],
)
def test_start_and_stop_log(stand_in: Factory, recording: str, words: list[str]) -> None:
    server = stand_in.start(*words)
    server.wait_ready()
    server.process.terminate()
    assert server.exit() == 0
    recorded = (RECORDED / recording).read_text(encoding="utf-8", errors="replace")
    fired = "The server is fired up and ready to roll!"
    ours = shapes(server.log(), fired)
    theirs = shapes(recorded, fired)
    assert ours == theirs

    # From the signal on; requests between belong to the recorder.
    def stop(text: str) -> list[str]:
        tail = text[text.index("SIGTERM received") :]
        return [line for line in map(shape, tail.splitlines()) if "Health check request received" not in line]

    assert stop(server.log()) == stop(recorded)


@pytest.fixture
def standalone(stand_in: Factory) -> StandIn:
    server = stand_in.start(*STANDALONE)
    server.wait_ready()
    return server


def _recorded_json(name: str) -> t.Any:
    return json.loads((RECORDED / f"standalone-{name}.txt").read_text(encoding="utf-8"))


GENERATE = {"text": "Hello", "sampling_params": {"max_new_tokens": 64, "temperature": 0, "ignore_eos": True}}


@pytest.mark.parametrize(
    ("name", "path", "body", "status"),
    [
        pytest.param("GET_v1_models", "/v1/models", None, 200, id="models"),
        pytest.param("GET_model_info", "/model_info", None, 200, id="model_info"),
        pytest.param("GET_model_info", "/get_model_info", None, 200, id="get_model_info"),
        pytest.param("server_info_after", "/server_info", None, 200, id="server_info"),
        pytest.param("server_info_after", "/get_server_info", None, 200, id="get_server_info"),
        pytest.param("GET_v1_loads", "/v1/loads", None, 200, id="loads"),
        pytest.param("POST_generate", "/generate", GENERATE, 200, id="generate"),
        pytest.param(
            "POST_chat",
            "/v1/chat/completions",
            {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16},
            200,
            id="chat",
        ),
        pytest.param(
            "POST_toolong",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "abcd" * 12010}]},
            400,
            id="too-long",
        ),
    ],
)
def test_replies_have_the_recorded_keys(standalone: StandIn, name: str, path: str, body: t.Any, status: int) -> None:
    # The recorded figures of acceptance come after a few logged decode lines.
    standalone.ask("/generate", GENERATE)
    reply = standalone.ask(path, body)
    assert reply.status == status
    assert keys(reply.json()) == keys(_recorded_json(name))


def test_too_long_is_told_in_the_recorded_words(standalone: StandIn) -> None:
    body = {"messages": [{"role": "user", "content": "abcd" * 12010}]}
    assert standalone.ask("/v1/chat/completions", body).json() == _recorded_json("POST_toolong")


def test_wrong_model_is_echoed(standalone: StandIn) -> None:
    body = {"model": "nope", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    reply = standalone.ask("/v1/chat/completions", body)
    assert (reply.status, reply.json()["model"]) == (200, _recorded_json("POST_wrongmodel")["model"])


def test_server_info_values(standalone: StandIn) -> None:
    """Values too, but for what belongs to the recorded start."""
    ours, theirs = standalone.ask("/server_info").json(), _recorded_json("GET_server_info")
    own = {"model_path", "tokenizer_path", "served_model_name", "speculative_draft_model_path", "port", "random_seed"}
    own |= {"launch_command", "startup_time", "internal_states"}
    assert {k: v for k, v in ours.items() if k not in own} == {k: v for k, v in theirs.items() if k not in own}
    words = theirs["launch_command"].replace("/models/tiny-draft", "D").replace("/models/tiny", "T").split()
    place = words.index("--host")
    del words[place : place + 2]
    mine = ours["launch_command"].split()
    assert sorted(word for word in words if word.startswith("--")) == sorted(
        word for word in mine if word.startswith("--")
    )


def test_batch_lines(standalone: StandIn) -> None:
    standalone.ask("/generate", GENERATE)
    recorded = (RECORDED / "startup-cpu-standalone-draft.log").read_text(encoding="utf-8", errors="replace")

    def batches(text: str) -> set[str]:
        return {shape(line) for line in text.splitlines() if "Decode batch" in line or "Prefill batch" in line}

    assert len(batches(recorded)) == 2
    assert batches(standalone.log()) == batches(recorded)


def test_metrics_have_the_recorded_names(standalone: StandIn) -> None:
    standalone.ask("/generate", GENERATE)

    def names(text: str) -> set[str]:
        labels = re.compile(r'="[^"]*"')
        lines = (labels.sub("", line.rpartition(" ")[0]) for line in text.splitlines() if not line.startswith("#"))
        return {line for line in lines if "http_requests_active" not in line}

    text = standalone.ask("/metrics").body.decode()
    assert names(text) == names((RECORDED / "standalone-metrics_after.txt").read_text(encoding="utf-8"))
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    model = standalone.ask("/v1/models").json()["data"][0]["id"]
    base = f'{{engine_type="unified",is_streaming="false",model_name="{model}"}}'
    # 64 of ours and 8 of the warm-up.
    assert float(figures[f"sglang:generation_tokens_total{base}"]) == 72.0


def _python_311() -> str | None:
    for name in ("python3.11", "/usr/bin/python3.11", "python3"):
        path = shutil.which(name)
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True)
        if done.stdout.startswith("Python 3.11."):
            return path
    return None


def test_unknown_flag_is_refused_byte_for_byte(stand_in: Factory) -> None:
    python = _python_311()
    if python is None:
        pytest.skip("no Python 3.11 here: argparse of other releases breaks usage lines elsewhere")
    server = stand_in.start("--no-such-flag", python=python)
    assert server.exit() == 2
    recorded = (RECORDED / "fail-unknown-flag-rc2.log").read_text(encoding="utf-8")
    assert server.log()[server.log().index("usage:") :] == recorded[recorded.index("usage:") :]


@pytest.mark.parametrize(
    ("recording", "words", "model"),
    [
        pytest.param(
            "fail-dflash-on-cpu-rc1.log",
            ["--device", "cpu", "--speculative-algorithm", "DFLASH"],
            "tiny",
            id="dflash-on-cpu",
        ),
        pytest.param(
            "fail-model-path-missing-rc1.log",
            ["--device", "cpu", "--model-path", "/models/nope"],
            "tiny",
            id="no-model",
        ),
    ],
)
def test_failed_rules_end_like_the_recording(stand_in: Factory, recording: str, words: list[str], model: str) -> None:
    server = stand_in.start(*words, model=model)
    assert server.exit() == 1
    recorded = (RECORDED / recording).read_text(encoding="utf-8").splitlines()
    ours = server.log().splitlines()
    assert ours[-1] == recorded[-1]
    kill = next(index for index, line in enumerate(recorded) if "kill_process_tree" in line)
    place = next(index for index, line in enumerate(ours) if "kill_process_tree" in line)
    assert shape(ours[place]) == shape(recorded[kill])
    assert ours[place + 1] == recorded[kill + 1] == "Traceback (most recent call last):"
    assert server.truth("crashed")[0]["code"] == 1


def _holder(stand_in: Factory, port: int) -> StandIn:
    holder = stand_in.start(*PLAIN, port=port)
    holder.wait_ready()
    return holder


def test_port_held_by_another_sglang(stand_in: Factory) -> None:
    port = stand_in.free_port()
    _holder(stand_in, port)
    server = stand_in.start(*PLAIN, port=port)
    assert server.exit() == 3
    recorded = (RECORDED / "fail-port-held-by-other-sglang.log").read_text(encoding="utf-8")
    last = "kill_process_tree called"
    assert shapes(server.log(), last) == shapes(recorded, last)
    assert "The server is fired up and ready to roll!" in server.log()
    assert server.truth("ready") == []
    assert server.truth("port_bound") == []
    assert server.truth("exited")[0]["code"] == 3


def test_port_held_by_a_foreign_server(stand_in: Factory, foreign: int) -> None:
    server = stand_in.start(*PLAIN, port=foreign, times={"warm_up_poll": 10}, scale=0.01)
    server.wait_for_log("Waiting for application shutdown.")
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(1.0)
    os.killpg(server.pid, 15)
    assert server.exit() == -9
    recorded = (RECORDED / "fail-port-held-by-foreign-server-hangs.log").read_text(encoding="utf-8")
    last = "kill_process_tree called"
    assert shapes(server.log(), last) == shapes(recorded, last)


def test_port_held_by_a_foreign_server_to_the_end(stand_in: Factory, foreign: int) -> None:
    server = stand_in.start(*PLAIN, port=foreign)
    assert server.exit() == -9
    assert "Initialization failed. warmup error: Traceback" in server.log()
    assert server.truth("ready") == []


@pytest.fixture
def foreign() -> t.Iterator[int]:
    """A server that knows no /model_info."""
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002 (the library's name)
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(LIMIT)


def test_signal_to_the_whole_group(stand_in: Factory) -> None:
    # The real one finds its dead scheduler before the 5 s rhythm of its drain; so must we.
    server = stand_in.start(*PLAIN, STAND_IN_DRAIN_S="20")
    server.wait_ready()
    os.killpg(server.pid, 15)
    assert server.exit() == -9
    recorded = (RECORDED / "stop-sigterm-to-group.log").read_text(encoding="utf-8")

    def stop(text: str) -> list[str]:
        return [shape(line) for line in text[text.index("SIGTERM received") :].splitlines()]

    assert stop(server.log()) == stop(recorded)
    wait_until("all processes of the group gone", lambda: not group(server.pid))
