# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the stand-in lives and dies: port, processes, signals, crashes, keys, ranks, ground truth."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.stand_in.harness import (
    LIMIT,
    Factory,
    StandIn,
    children,
    group,
    title,
    wait_until,
)

STORY = ["--served-model-name", "kimi-k2.6", "--tp-size", "8", "--ep-size", "8", "--trust-remote-code"]
STORY += ["--disable-cuda-graph", "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "DRAFT"]
STORY += ["--speculative-dflash-block-size", "8"]
# A start that stands at one step: seconds at scale 1.
STILL = 60.0


@pytest.fixture
def story(stand_in: Factory) -> StandIn:
    server = stand_in.start(*STORY, model="stand-in-target")
    server.wait_ready()
    return server


def weight_ends(server: StandIn) -> list[tuple[str, str]]:
    """(rank, text) of each end of a load; one may follow another rank's progress bar in the same line."""
    return re.findall(r"\[[\d-]+ [\d:]+ ?([^]]*)\] Load weight end\. elapsed=[\d.]+ s, (.*)", server.log())


def long_request(server: StandIn) -> threading.Thread:
    """A request that generates until the server ends, in a thread of its own."""
    sent = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT)
        body = {"text": "long", "stream": True, "sampling_params": {"max_new_tokens": 10**6, "ignore_eos": True}}
        connection.request("POST", "/generate", json.dumps(body))
        response = connection.getresponse()
        response.readline()
        sent.set()
        try:
            response.read()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert sent.wait(LIMIT)
    return thread


# Start


def test_the_storys_log(story: StandIn) -> None:
    """16 weight lines, all targets before the first draft (sheet 3.3), from 8 ranks that interleave."""
    ends = weight_ends(story)
    target = "type=KimiK25ForConditionalGeneration, quant=compressed-tensors, avail mem=21.76 GB, mem usage=72.24 GB."
    assert [target in text for _, text in ends] == [True] * 8 + [False] * 8
    assert all("type=DFlashDraftModel, avail mem=" in text for _, text in ends[8:])
    ranks = [f"TP{n} EP{n}" for n in range(8)]
    assert sorted(rank for rank, _ in ends[:8]) == ranks
    assert sorted(rank for rank, _ in ends[8:]) == ranks
    begin = story.log().index("server_args={")
    assert "'served_model_name': 'kimi-k2.6'" in story.log()[begin:]
    assert "Capture " not in story.log()


def test_order_of_ranks_comes_from_the_seed(stand_in: Factory) -> None:
    def order(seed: str) -> list[str]:
        server = stand_in.start(
            "--tp-size",
            "4",
            scale=0.01,
            times={"load_target": 60.0, "rank_imports": 0, "imports": 0},
            STAND_IN_SEED=seed,
        )
        server.wait_for_log("Uvicorn running")
        return [rank for rank, _ in weight_ends(server)]

    assert len({tuple(order(seed)) for seed in ("1", "2", "3")}) > 1


def test_graphs_are_captured_unless_disabled(stand_in: Factory) -> None:
    server = stand_in.start("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "DRAFT")
    server.wait_ready()
    begins = [line.split("] ", 1)[1] for line in server.log().splitlines() if "Capture " in line and " begin." in line]
    assert [begin.split(" CUDA graph")[0] for begin in begins] == [
        "Capture target prefill",
        "Capture target verify",
        "Capture draft verify",
    ]
    assert "num_tokens_per_req=8" in begins[1]


def test_port_is_closed_until_the_end_of_the_load(stand_in: Factory) -> None:
    server = stand_in.start(times={"load_target": STILL, "warm_up": STILL}, scale=0.01)
    server.wait_for_log("Load weight begin")
    assert not server.port_open()
    server.wait_for_log("Uvicorn running")
    # Bound, warming up: /v1/models answers, readiness does not.
    assert server.ask("/v1/models").status == 200
    assert server.ask("/model_info").status == 200
    assert server.ask("/ready").status == 503
    assert server.ask("/health").status == 503
    assert "fired up" not in server.log()
    server.wait_ready()
    assert server.ask("/ready").status == 200
    assert server.ask("/health").status == 200
    bound, ready = server.truth("port_bound")[0], server.truth("ready")[0]
    assert 0.5 < ready["monotonic"] - bound["monotonic"] < 10
    assert server.truth("started")[0]["monotonic"] < bound["monotonic"]


def test_skip_server_warmup(stand_in: Factory) -> None:
    server = stand_in.start("--skip-server-warmup", times={"warm_up": STILL})
    server.wait_for_event("ready")
    assert server.ask("/ready").status == 200
    server.wait_ready()
    assert len(server.truth("ready")) == 1


def test_health_takes_its_time(stand_in: Factory) -> None:
    server = stand_in.start(times={"health": 40.0}, scale=0.01)
    server.wait_ready()
    assert server.ask("/health").seconds >= 0.4
    assert server.ask("/ready").seconds < 0.3


def test_a_start_in_milliseconds(stand_in: Factory) -> None:
    """Eight ranks, from the first instruction to ready; the best of three, since other tests run beside this one."""
    seconds = []
    for _ in range(3):
        server = stand_in.start(*STORY, model="stand-in-target")
        server.wait_for_event("ready")
        seconds.append(server.truth("ready")[0]["monotonic"] - server.truth("started")[0]["monotonic"])
    assert min(seconds) < 1.5


# Processes


def test_titles(story: StandIn) -> None:
    titles = [title(pid) for pid in children(story.pid)]
    assert titles == [
        f"{sys.executable} -c from multiprocessing.resource_tracker import main;main(6)",
        *(f"sglang::scheduler_TP{n}_EP{n}" for n in range(8)),
        "sglang::detokenizer",
    ]
    assert Path(f"/proc/{story.schedulers()[0]}/comm").read_text(encoding="utf-8") == "sglang::schedul\n"
    assert "-m sglang.launch_server --model-path" in title(story.pid)
    (detokenizer,) = (pid for pid in children(story.pid) if title(pid) == "sglang::detokenizer")
    for pid in (*story.schedulers(), detokenizer):
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        )
        assert not int(status["SigCgt"], 16) & 1 << (signal.SIGTERM - 1), "a child has no SIGTERM handler"
        assert not int(status["SigIgn"], 16) & 1 << (signal.SIGTERM - 1)


def test_spawned_children_look_like_python_first(stand_in: Factory) -> None:
    server = stand_in.start(times={"rank_imports": STILL}, scale=0.1)
    wait_until("children", lambda: len(children(server.pid)) == 3)
    assert all("multiprocessing" in title(pid) for pid in children(server.pid))


def test_data_parallel_replicas_have_a_controller(stand_in: Factory) -> None:
    server = stand_in.start("--dp-size", "2", "--tp-size", "2")
    server.wait_ready()
    (controller,) = (pid for pid in children(server.pid) if title(pid) == "sglang::data_parallel_controller")
    assert [title(pid) for pid in children(controller)] == [
        f"sglang::scheduler_DP{dp}_TP{tp}" for dp in range(2) for tp in range(2)
    ]
    assert sorted(rank for rank, _ in weight_ends(server)) == ["DP0 TP0", "DP0 TP1", "DP1 TP0", "DP1 TP1"]
    assert len(server.ask("/server_info").json()["internal_states"]) == 2
    ranks = {server.ask("/generate", {"text": "x"}).json()["meta_info"]["dp_rank"] for _ in range(2)}
    assert ranks == {0, 1}
    os.kill(children(controller)[0], signal.SIGKILL)
    assert server.exit() == -signal.SIGKILL
    wait_until("all processes gone", lambda: not group(server.pid))


def test_sigkill_of_main_takes_all_children(story: StandIn) -> None:
    assert len(group(story.pid)) == 11
    story.process.kill()
    assert story.exit() == -signal.SIGKILL
    wait_until("all processes gone", lambda: not group(story.pid))


# Signals


def test_sigterm_while_loading(stand_in: Factory) -> None:
    server = stand_in.start(times={"load_target": 100 * STILL}, scale=0.01)
    server.wait_for_log("Load weight begin")
    server.process.terminate()
    assert server.exit() == -signal.SIGTERM
    assert "SIGTERM received" not in server.log()
    wait_until("all processes gone", lambda: not group(server.pid))


def test_sigterm_between_binding_and_the_first_request(stand_in: Factory) -> None:
    """Seen on the real 0.5.23: the port closes, the warm-up thread asks on for 120 polls, then SIGKILL (122.5 s)."""
    server = stand_in.start(times={"warm_up_poll": 30.0}, scale=0.01)
    server.wait_for_log("Uvicorn running")
    server.process.terminate()
    server.wait_for_log("Waiting for application shutdown.")
    assert not server.port_open()
    assert "SIGTERM received" not in server.log()
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.5)
    assert "Application shutdown complete." not in server.log()


def test_drain_keeps_answering_until_the_port_closes(stand_in: Factory) -> None:
    server = stand_in.start(STAND_IN_DRAIN_S="1.0")
    server.wait_ready()
    server.process.terminate()
    server.wait_for_log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    assert server.ask("/v1/models").status == 200
    assert server.ask("/health").status == 503
    assert server.ask("/ready").status == 503
    # Whoever asks still gets an answer: the old server's last breath.
    assert server.ask("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 4}}).status == 200
    assert "Health check request received during shutdown. Returning 503." in server.log()
    assert server.exit() == 0
    assert not server.port_open()
    term, closed = server.truth("term_received")[0], server.truth("port_closed")[0]
    assert 1.0 <= closed["monotonic"] - term["monotonic"] < 5


def test_drain_waits_for_requests_without_a_limit(stand_in: Factory) -> None:
    server = stand_in.start(times={"decode_step": 1.0}, scale=0.01)
    server.wait_ready()
    thread = long_request(server)
    server.process.terminate()
    wait_until("two drain lines", lambda: server.log().count("Remaining number of requests 1.") >= 2)
    assert server.process.poll() is None
    assert server.ask("/abort_request", {"abort_all": True}).status == 200
    assert server.exit() == 0
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_force_shutdown_waits_for_clients_only(stand_in: Factory) -> None:
    """The drain and the schedulers end at once; uvicorn still waits until the client of a request in flight leaves."""
    server = stand_in.start(times={"decode_step": 1.0}, scale=0.01, SGL_FORCE_SHUTDOWN="1")
    server.wait_ready()
    with socket.create_connection((server.host, server.port)) as client:
        body = json.dumps(
            {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 10**6, "ignore_eos": True}}
        )
        client.sendall(f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        assert client.recv(1) == b"H"
        server.process.terminate()
        server.wait_for_log("Waiting for connections to close. (CTRL+C to force quit)")
        assert "Signal SIGTERM received while force shutdown flag set. Force exiting." in server.log()
        assert "Remaining number of requests" not in server.log()
        assert server.schedulers() == []
        assert not server.port_open()
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
    assert server.exit() == 0


def test_scheduler_killed_while_serving(story: StandIn) -> None:
    victim = story.schedulers()[3]
    os.kill(victim, signal.SIGKILL)
    assert story.exit() == -signal.SIGKILL
    log = story.log()
    assert f"Subprocess scheduler_3 (pid={victim}) crashed with exit code -9. Triggering SIGQUIT for cleanup..." in log
    assert "SIGQUIT received. signum=None, frame=None. It usually means one child failed." in log
    assert "No live scheduler processes found" not in log
    assert story.truth("crashed")[0]["signal"] == signal.SIGKILL
    wait_until("all processes gone", lambda: not group(story.pid))


def test_a_crashing_main_holds_its_port_and_answers_nobody(stand_in: Factory) -> None:
    server = stand_in.start(times={"crash_settle": STILL}, scale=1 / STILL)
    server.wait_ready()
    os.kill(server.schedulers()[0], signal.SIGKILL)
    server.wait_for_log("SIGQUIT received")
    assert server.port_open()
    with pytest.raises(TimeoutError):
        server.ask("/v1/models", timeout=0.3)
    assert server.exit() == -signal.SIGKILL


@pytest.mark.parametrize("victim", [0, 1], ids=["rank-0", "rank-1"])
def test_scheduler_killed_while_loading(stand_in: Factory, victim: int) -> None:
    server = stand_in.start("--tp-size", "2", times={"load_target": 100 * STILL}, scale=0.01)
    wait_until("both ranks load", lambda: server.log().count("Load weight begin") == 2)
    os.kill(server.schedulers()[victim], signal.SIGKILL)
    assert server.exit() == 1
    assert server.log().splitlines()[-1] == (
        f"RuntimeError: Rank {victim} scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL),"
        " a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
    )
    assert server.truth("crashed")[0]["code"] == 1


@pytest.mark.parametrize("which", ["sglang::scheduler_TP1", "sglang::detokenizer"])
def test_a_stopped_process_makes_health_fail(stand_in: Factory, which: str) -> None:
    server = stand_in.start("--tp-size", "2", times={"health_timeout": 30.0}, scale=0.01)
    server.wait_ready()
    (victim,) = (pid for pid in children(server.pid) if title(pid) == which)
    os.kill(victim, signal.SIGSTOP)
    try:
        assert server.ask("/health").status == 503
        assert server.ask("/ready").status == 503
        assert server.ask("/v1/models").status == 200
        assert "Health check failed. Server couldn't get a response from detokenizer for last" in server.log()
    finally:
        os.kill(victim, signal.SIGCONT)
    wait_until("health again", lambda: server.ask("/health").status == 200)


# Requests


def test_one_token_never_speculates(story: StandIn) -> None:
    def meta(tokens: int) -> dict[str, t.Any]:
        body = {"text": "x", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        value: dict[str, t.Any] = story.ask("/generate", body).json()["meta_info"]
        return value

    assert not [key for key in meta(1) if key.startswith("spec_")]
    seventeen = meta(17)
    assert seventeen["spec_verify_ct"] >= 2
    # The first token comes from prefill, each verify step gives one and the correct drafts.
    assert 1 + seventeen["spec_verify_ct"] + seventeen["spec_num_correct_drafts"] == 17
    assert sum(seventeen["spec_correct_drafts_histogram"]) == seventeen["spec_verify_ct"]


def test_greedy_answers_repeat(story: StandIn) -> None:
    body = {"text": "same", "sampling_params": {"max_new_tokens": 32, "temperature": 0}}
    assert story.ask("/generate", body).json()["text"] == story.ask("/generate", body).json()["text"]


def test_scripted_answers_thinking_and_log_probabilities(stand_in: Factory) -> None:
    script = [
        {"match": "def half", "text": "<think>divide</think>n // 2"},
        {"match": "", "tokens": {"3": 7}, "top": {"3": [[-0.69, 7], [-0.7, 8]]}},
    ]
    server = stand_in.start("--reasoning-parser", "kimi_k2", STAND_IN_ANSWERS=json.dumps(script))
    server.wait_ready()
    chat = server.ask(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "def half(n):"}], "max_tokens": 90}
    )
    choice = chat.json()["choices"][0]
    assert choice["message"]["content"] == "n // 2"
    assert choice["message"]["reasoning_content"] == "divide"
    assert choice["finish_reason"] == "stop"
    cut = server.ask(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "def half(n):"}], "max_tokens": 9}
    )
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    body = {"text": "y", "sampling_params": {"max_new_tokens": 5}, "return_logprob": True, "top_logprobs_num": 2}
    answer = server.ask("/generate", body).json()
    assert answer["output_ids"][3] == 7
    assert answer["meta_info"]["output_top_logprobs"][3] == [[-0.69, 7, None], [-0.7, 8, None]]
    assert answer["meta_info"]["output_token_logprobs"][3] == [-0.69, 7, None]
    assert len(answer["meta_info"]["output_top_logprobs"]) == 5
    assert "output_top_logprobs" not in server.ask("/generate", {**body, "return_logprob": False}).json()["meta_info"]


def test_many_short_steps_of_many_requests_do_not_block_it(stand_in: Factory) -> None:
    server = stand_in.start()
    server.wait_ready()
    body = {"sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.ask, "/generate", {**body, "text": f"x{n}"}, timeout=60) for n in range(8)]
        answers = [future.result().json() for future in asked]
    assert [len(answer["output_ids"]) for answer in answers] == [3000] * 8


def test_streams(story: StandIn) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "ignore_eos": True, "stream": True}
    whole = story.ask("/v1/chat/completions", {**body, "stream": False}).json()
    events = story.ask("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}).body.decode()
    assert events.endswith("data: [DONE]\n\n")
    chunks = [json.loads(event[6:]) for event in events.split("\n\n") if event.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]
    native = story.ask(
        "/generate", {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 8}}
    ).body.decode()
    last = json.loads(native.split("\n\n")[-3][6:])
    assert last["meta_info"]["completion_tokens"] == 8


def test_a_client_that_leaves_is_aborted(stand_in: Factory) -> None:
    server = stand_in.start(times={"decode_step": 1.0}, scale=0.01)
    server.wait_ready()
    with socket.create_connection((server.host, server.port)) as client:
        body = json.dumps({"text": "x", "sampling_params": {"max_new_tokens": 10**6, "ignore_eos": True}}).encode()
        client.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        wait_until("running", lambda: server.ask("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
    server.process.terminate()
    assert server.exit() == 0


def test_flush_cache(stand_in: Factory) -> None:
    server = stand_in.start(times={"decode_step": 1.0}, scale=0.01)
    server.wait_ready()
    body = {"text": "once", "sampling_params": {"max_new_tokens": 1}}

    def cached() -> int:
        count: int = server.ask("/generate", body).json()["meta_info"]["cached_tokens"]
        return count

    tokens = server.ask("/generate", {**body, "text": "once more " * 10}).json()["meta_info"]["prompt_tokens"]
    assert tokens == 25
    assert server.ask("/flush_cache", method="POST").status == 200
    long_request(server)
    assert server.ask("/flush_cache", method="POST").status == 400
    assert server.ask("/abort_request", {"abort_all": True}).status == 200
    assert server.ask("/flush_cache?timeout=10", method="POST").status == 200
    assert cached() == 0


def test_not_counted_when_asked(story: StandIn) -> None:
    before = story.ask("/v1/loads").json()["loads"][0]["total_prefill_uncached_tokens"]
    story.ask("/health")
    story.ask("/generate", {"text": "abcd" * 9, "log_metrics": False, "sampling_params": {"max_new_tokens": 3}})
    assert story.ask("/v1/loads").json()["loads"][0]["total_prefill_uncached_tokens"] == before
    story.ask("/generate", {"text": "abcd" * 9, "sampling_params": {"max_new_tokens": 3}})
    assert story.ask("/v1/loads").json()["loads"][0]["total_prefill_uncached_tokens"] == before + 9


def test_unknown_paths_and_methods(story: StandIn) -> None:
    assert story.ask("/get_load").status == 404
    assert story.ask("/version").json() == {"detail": "Not Found"}
    assert story.ask("/metrics").status == 404, "only with --enable-metrics"
    assert story.ask("/v1/models", {}).status == 405
    assert story.ask("/v1/models/nope").json()["error"]["code"] == "model_not_found"
    assert story.ask("/v1/models/kimi-k2.6").json()["id"] == "kimi-k2.6"


def test_connections_are_kept_alive(story: StandIn) -> None:
    connection = http.client.HTTPConnection(story.host, story.port, timeout=LIMIT)
    try:
        for _ in range(3):
            connection.request("GET", "/ready")
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            assert connection.sock is not None
    finally:
        connection.close()
    # Three requests from one client port.
    lines = [line.split('"')[0] for line in story.log().splitlines() if "GET /ready" in line]
    assert len(lines) == 3
    assert len({line.split("INFO:")[1] for line in lines}) == 1


# Keys and configuration


def test_keys_from_a_config_file(stand_in: Factory, tmp_path: Path) -> None:
    """Absent from the command line, but in the log and in /server_info, like the real one."""
    path = tmp_path / "keys.yaml"
    path.write_text('api-key: "sk-test-0123456789"\nadmin-api-key: "adm-9876543210"\n', encoding="utf-8")
    server = stand_in.start("--config", str(path))
    server.wait_ready()
    right, admin = {"Authorization": "Bearer sk-test-0123456789"}, {"Authorization": "Bearer adm-9876543210"}
    reply = server.ask("/v1/models")
    assert (reply.status, reply.json()) == (401, {"error": "Unauthorized"})
    assert server.ask("/v1/models", headers=right).status == 200
    assert server.ask("/v1/models", headers=admin).status == 401
    assert server.ask("/health").status == 200
    assert server.ask("/flush_cache", method="POST", headers=right).status == 401
    assert server.ask("/flush_cache", method="POST", headers=admin).status == 200
    assert "sk-test" not in title(server.pid)
    info = server.ask("/server_info", headers=right).json()
    assert info["api_key"] == "sk-test-0123456789"
    assert "--api-key sk-test-0123456789 --admin-api-key adm-9876543210" in info["launch_command"]
    assert "'api_key': 'sk-test-0123456789'" in server.log()


def test_access_lines_can_be_excluded(stand_in: Factory) -> None:
    server = stand_in.start("--uvicorn-access-log-exclude-prefixes", "/health", "/ready")
    server.wait_ready()
    server.ask("/health")
    server.ask("/ready")
    server.ask("/v1/models?x=1")
    assert "GET /health" not in server.log()
    assert "GET /ready" not in server.log()
    assert '"GET /v1/models?x=1 HTTP/1.1" 200 OK' in server.log()
    # An idle /health still logs its prefill.
    assert server.log().count("#new-token: 1,") == 1


def test_log_level_hides_the_markers(stand_in: Factory) -> None:
    server = stand_in.start("--log-level", "warning")
    server.wait_for_event("ready")
    assert server.ask("/v1/models").status == 200
    assert "fired up" not in server.log()
    assert "Load weight" not in server.log().replace("Loading", "")
    assert "INFO" not in server.log()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "localhost"])
def test_hosts(stand_in: Factory, host: str) -> None:
    server = stand_in.start("--host", host)
    server.wait_ready()
    server.host = "::1" if ":" in host else "127.0.0.1"
    assert server.ask("/v1/models").status == 200


def test_access_lines_go_to_stdout(stand_in: Factory) -> None:
    server = stand_in.start()
    server.wait_ready()
    targets = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in (1, 2)]
    assert targets[0] == targets[1], "the harness gives one file for both"
    engine, models = stand_in.engine, stand_in.models
    done = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(models / "tiny"),
            "--port",
            str(stand_in.free_port()),
        ],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(engine), "STAND_IN_SCALE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stderr is not None
    for line in done.stderr:
        if "fired up" in line:
            break
    done.terminate()
    out, _ = done.communicate(timeout=LIMIT)
    assert all(' - "' in line for line in out.splitlines())
    assert len(out.splitlines()) == 3


def test_bad_environment_is_told(stand_in: Factory) -> None:
    server = stand_in.start(STAND_IN_SEED="x")
    assert server.exit() == 1
    assert server.log().splitlines()[-1] == "ValueError: STAND_IN_SEED is 'x': give an integer"


# Truth


def test_ready_is_true_to_the_instant(stand_in: Factory) -> None:
    """A probe sent right after the noted instant succeeds, generation included; one sent before it does not."""
    server = stand_in.start(times={"warm_up": STILL}, scale=0.01)
    server.wait_for_event("port_bound")
    last_no, first_yes = 0.0, 0.0
    while not first_yes:
        now = time.monotonic()
        status = server.ask("/ready").status
        if status == 200:
            first_yes = time.monotonic()
        else:
            last_no = now
    assert server.ask("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}}).status == 200
    assert last_no < server.truth("ready")[0]["monotonic"] <= first_yes


def test_truth_knows_the_invocation(stand_in: Factory) -> None:
    server = stand_in.start("--tp-size", "2", INVOCATION_ID="0123456789abcdef0123456789abcdef")
    server.wait_ready()
    server.process.terminate()
    assert server.exit() == 0
    events = ("started", "port_bound", "ready", "term_received", "port_closed", "exited")
    entries = [server.truth(event)[0] for event in events]
    assert [entry["monotonic"] for entry in entries] == sorted(entry["monotonic"] for entry in entries)
    assert {entry["invocation_id"] for entry in entries} == {"0123456789abcdef0123456789abcdef"}
    assert {entry["main_pid"] for entry in server.truth("step_end")} == {server.pid}
    steps = [(entry["who"], entry["step"]) for entry in server.truth("step_end")]
    assert ("TP1", "load_target") in steps
    assert ("TP0", "warm_up") in steps


def test_engine_installs_as_a_host_installs_it(wheelhouse: Path, tmp_path: Path) -> None:
    """The role's own commands: a venv and pip without an index."""
    engine = tmp_path / "engine"
    subprocess.run([sys.executable, "-m", "venv", engine], check=True)
    pip: list[str | Path] = [engine / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    lock = wheelhouse / "requirements.lock"
    subprocess.run([*pip, "--find-links", wheelhouse, "-r", lock], check=True)
    done = subprocess.run([engine / "bin" / "sglang", "version"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "sglang version: 0.5.23"
    script = "import importlib.metadata as m; print(m.version('sglang'))"
    done = subprocess.run([engine / "bin" / "python", "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "0.5.23+standin\n"
    done = subprocess.run([engine / "bin" / "sglang", "serve", "--port", "x"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "sglang serve: error: argument --port: invalid int value: 'x'"
