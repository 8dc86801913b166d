# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each kind of fault seen to strike: in the process that it names, at its step, and with its end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
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

RANKS = ("--tp-size", "2", "--ep-size", "2")
GENERATE = {"text": "x", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
PTXAS = "ptxas -arch=sm_120a -o /tmp/kernel.cubin"


def start(stand_in: Factory, *faults: t.Any, **more: t.Any) -> StandIn:
    text = faults[0] if isinstance(faults[0], str) else json.dumps(list(faults))
    return stand_in.start(*RANKS, STAND_IN_FAULT=text, **more)


def process(server: StandIn, name: str) -> int:
    return next(pid for pid in children(server.pid) if title(pid) == name)


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def cpu_ticks(pid: int) -> int:
    return int(stat(pid)[11]) + int(stat(pid)[12])


# Processes


def test_a_bad_fault_is_refused(stand_in: Factory) -> None:
    server = start(stand_in, "no-such-fault")
    assert server.exit() == 1
    assert "STAND_IN_FAULT is 'no-such-fault'" in server.log()


def test_hang_is_quiet_and_endless(stand_in: Factory) -> None:
    server = start(stand_in, {"at": "load_target", "who": "TP1", "do": "hang"})
    server.wait_for_log("TP0 EP0] Load weight end")
    server.wait_for_event("fault")
    (struck,) = server.truth("fault")
    assert (struck["name"], struck["who"], struck["do"]) == ("own", "TP1 EP1", "hang")
    victim = struck["pid"]
    before = cpu_ticks(victim)
    time.sleep(0.3)
    assert cpu_ticks(victim) == before
    assert stat(victim)[0] == "S"
    assert "TP1 EP1] Load weight end" not in server.log()


def test_hang_for_a_while_only_delays(stand_in: Factory) -> None:
    server = start(stand_in, {"at": "bind", "do": "hang", "for_s": 0.5})
    server.wait_ready()
    assert server.truth("port_bound")[0]["monotonic"] - server.truth("fault")[0]["monotonic"] >= 0.5


@pytest.mark.parametrize("who", ["TP1", "detokenizer", "main"])
def test_stop(stand_in: Factory, who: str) -> None:
    server = start(stand_in, {"at": "imports" if who == "main" else "rank_imports", "who": who, "do": "stop"})
    server.wait_for_event("fault")
    pid = server.truth("fault")[0]["pid"]
    wait_until("stopped", lambda: stat(pid)[0] == "T")


def test_spin_burns_cpu_and_says_nothing(stand_in: Factory) -> None:
    server = start(stand_in, {"at": "load_target", "who": "TP0", "do": "spin", "share": 0.5})
    server.wait_for_event("fault")
    pid = server.truth("fault")[0]["pid"]
    before, log = cpu_ticks(pid), len(server.log())
    wait_until("CPU time", lambda: cpu_ticks(pid) >= before + 10)
    assert len(server.log()) - log < 1000, "the other rank may end its load, nothing more"


def test_grow_shows_in_memory_and_io(stand_in: Factory) -> None:
    def used(pid: int) -> tuple[int, int]:
        io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text(encoding="utf-8").splitlines())
        return int(stat(pid)[21]), int(io["rchar"]) + int(io["wchar"])

    server = start(
        stand_in,
        {"at": "load_target", "who": "TP0", "do": "grow", "what": "rss", "bytes_per_s": 20e6},
        {"at": "load_target", "who": "TP1", "do": "grow", "what": "io", "bytes_per_s": 20e6},
    )
    wait_until("both", lambda: len(server.truth("fault")) == 2)
    pids = {entry["who"][:3]: entry["pid"] for entry in server.truth("fault")}
    before = {who: used(pid) for who, pid in pids.items()}
    wait_until("memory", lambda: used(pids["TP0"])[0] > before["TP0"][0] + 1000)
    wait_until("I/O", lambda: used(pids["TP1"])[1] > before["TP1"][1] + 4_000_000)


def test_a_compiler_is_a_child_at_work(stand_in: Factory) -> None:
    server = start(
        stand_in, {"at": "kv_cache", "who": "TP1", "do": "compile", "program": "ptxas", "share": 0.5, "for_s": 3}
    )
    server.wait_for_event("fault")
    rank = server.truth("fault")[0]["pid"]
    (compiler,) = wait_until("the compiler", lambda: [pid for pid in children(rank) if title(pid) == PTXAS])
    assert Path(f"/proc/{compiler}/comm").read_text(encoding="utf-8") == "ptxas\n"
    wait_until("its work", lambda: cpu_ticks(compiler) >= 5)
    server.wait_ready()
    assert children(rank) == []


@pytest.mark.parametrize(
    ("fault", "code", "last"),
    [
        pytest.param({"at": "imports", "do": "exit", "code": 7}, 7, "", id="main"),
        pytest.param({"at": "arguments", "do": "exit", "code": 0}, 0, "", id="main-0"),
        pytest.param(
            {"at": "load_target", "who": "TP1", "do": "exit", "code": 3}, 1, "Rank 1 .*exit code: 3", id="rank"
        ),
        pytest.param({"at": "bind", "do": "kill", "signal": "SIGSEGV"}, -signal.SIGSEGV, "", id="main-signal"),
        pytest.param(
            {"at": "load_target", "who": "TP0", "when": 0.5, "do": "kill", "signal": 9},
            *(1, "Rank 0 .*exit code: -9"),
            id="rank-signal",
        ),
        pytest.param(
            {"at": "ready", "after_s": 0.2, "do": "kill", "signal": "SIGTERM"}, -signal.SIGTERM, "", id="main-thread"
        ),
        pytest.param({"at": "load_target", "who": "TP1", "do": "quit"}, -9, "Received sigquit", id="quit"),
        pytest.param(
            {"at": "rank_imports", "who": "detokenizer", "when": "end", "do": "kill", "signal": 9},
            *(-9, "Subprocess detokenizer .*exit code -9"),
            id="detokenizer",
        ),
    ],
)
def test_ends(stand_in: Factory, fault: dict[str, t.Any], code: int, last: str) -> None:
    server = start(stand_in, fault)
    assert server.exit() == code
    assert re.search(last, server.log())
    ends = [entry for event in ("crashed", "exited") for entry in server.truth(event)]
    assert [entry.get("code", -entry.get("signal", 0)) for entry in ends] == [code]
    assert server.truth("fault")[0]["monotonic"] <= ends[0]["monotonic"]
    wait_until("all processes gone", lambda: not group(server.pid))


def test_the_storys_crash_strikes_every_rank_in_the_first_forward_pass(stand_in: Factory) -> None:
    server = start(stand_in, "story-graph-replay", times={"crash_settle": 30.0}, scale=0.01)
    server.wait_for_log("SIGQUIT received.")
    wait_until("both ranks", lambda: server.log().count("TypeError: 'NoneType' object is not subscriptable") == 2)
    assert server.exit() == -signal.SIGKILL
    log = server.log()
    assert log.index("Uvicorn running on") < log.index("Scheduler hit an exception: Traceback")
    assert "/sglang/srt/speculative/dflash_worker.py" in log
    assert "fired up" not in log
    assert [entry["name"] for entry in server.truth("fault")] == ["story-graph-replay"] * 2
    assert not server.truth("ready")


def test_a_rank_dies_under_load_with_certain_arguments(stand_in: Factory) -> None:
    dies = {
        "at": "decode",
        "who": "TP0",
        "skip": 30,
        "with": {"chunked_prefill_size": 4096},
        "do": "raise",
        "error": "RuntimeError: CUDA error: an illegal memory access was encountered",
    }
    well = start(stand_in, dies)
    well.wait_ready()
    long = {"text": "x", "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}
    assert well.ask("/generate", long).status == 200

    server = stand_in.start(*RANKS, "--chunked-prefill-size", "4096", STAND_IN_FAULT=json.dumps(dies))
    server.wait_ready()
    with pytest.raises((OSError, http.client.HTTPException)):
        server.ask("/generate", long)
    assert server.exit() == -signal.SIGKILL
    assert "TP0 EP0] Scheduler hit an exception" in server.log()
    assert server.truth("fault")[0]["monotonic"] > server.truth("ready")[0]["monotonic"]


@pytest.mark.parametrize("at", ["imports", "arguments", "bind"])
def test_main_raises_like_python(stand_in: Factory, at: str) -> None:
    server = start(stand_in, {"at": at, "do": "raise", "frames": ["a/b.py:f"], "error": "ValueError: of main"})
    assert server.exit() == 1
    assert server.log().splitlines()[-1] == "ValueError: of main"
    assert "stand_in" not in server.log().partition("Traceback")[2], "no frame of the stand-in itself"
    wait_until("all processes gone", lambda: not group(server.pid))


def test_a_raise_later_interrupts_what_runs_by_then(stand_in: Factory) -> None:
    server = start(stand_in, "rank-straggler")
    assert server.exit() == -signal.SIGKILL
    log = server.log()
    assert "TP0 EP0] Load weight end" in log
    assert "TP0 EP0] Scheduler hit an exception" in log
    assert "TP1 EP1] Load weight end" not in log


def test_a_survivor_keeps_the_port_that_nobody_answers(stand_in: Factory) -> None:
    server = start(
        stand_in,
        {"at": "ready", "do": "survive", "for_s": 60},
        {"at": "ready", "after_s": 0.2, "do": "kill", "signal": 9},
    )
    server.wait_ready()
    assert server.exit() == -signal.SIGKILL
    # It has left the process group. It also holds the pipe by which the resource tracker would notice main's end.
    survivors = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _environment(entry).get("STAND_IN_TRUTH") == str(server._folder / "truth.jsonl")
    ]
    try:
        assert "sglang::scheduler_TP0" in [title(pid) for pid in survivors]
        assert server.port_open()
        with pytest.raises(TimeoutError):
            server.ask("/v1/models", timeout=0.3)
    finally:
        for pid in survivors:
            os.kill(pid, signal.SIGKILL)


def _environment(entry: Path) -> dict[str, str]:
    try:
        words = (entry / "environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(word.partition("=")[::2] for word in words)


# The log


def test_lines_of_every_kind(stand_in: Factory) -> None:
    server = start(
        stand_in,
        {"at": "load_target", "who": "ranks", "do": "print", "lines": ["{stamp} by {rank} {pid}"]},
        {"at": "load_target", "who": "TP0", "do": "print", "pad": 60000, "lines": ["huge "]},
        {"at": "load_target", "who": "TP0", "do": "print", "encoding": "latin-1", "lines": ["caf\xe9 \x1b[1m", "a\r"]},
        {
            "at": "load_target",
            "who": "TP1",
            "do": "flood",
            "rate": 2000,
            "for_s": 0.5,
            "line": "{stamp} flood {number}",
        },
    )
    wait_until("the flood", lambda: (server._folder / "log").read_bytes().count(b" flood ") > 500)
    data = (server._folder / "log").read_bytes()
    assert re.search(rb"\[[-0-9]+ [0-9:]+ TP1 EP1\] by TP1 EP1 \d+\n", data)
    assert b"huge " + b"x" * 60000 + b"\n" in data
    assert b"caf\xe9 \x1b[1m\n" in data
    assert b"a\r" in data


# The port and the requests


def ask(stand_in: Factory, fault: dict[str, t.Any]) -> StandIn:
    server = start(stand_in, fault)
    server.wait_ready()
    return server


def test_answers(stand_in: Factory) -> None:
    server = start(
        stand_in,
        {"on": ["/health", "/ready"], "do": "answer", "status": 503, "for_s": 0.5},
        {"on": "/v1/models", "do": "answer", "merge": {"data": [{"id": "org/model-a"}]}},
        {"on": "/model_info", "do": "answer", "merge": {"model_path": None}},
        {"on": "/generate", "skip": 1, "do": "answer", "status": 500, "body": "no"},
        {"on": "/v1/loads", "do": "answer", "status": 307, "headers": {"location": "http://127.0.0.1:9/"}},
        {"on": "/metrics", "do": "answer", "body": "<html>", "content_type": "text/html", "times": 3},
    )
    server.wait_ready()
    assert server.ask("/ready").status == 503
    time.sleep(0.6)
    assert server.ask("/ready").status == 200
    assert server.ask("/v1/models").json() == {"object": "list", "data": [{"id": "org/model-a"}]}
    assert "model_path" not in server.ask("/model_info").json(), "the warm-up got the usual answer"
    assert [server.ask("/generate", GENERATE).status for _ in range(3)] == [200, 500, 500]
    assert server.ask("/v1/loads").status == 307
    assert server.ask("/metrics").body == b"<html>" * 3
    assert [entry["path"] for entry in server.truth("fault")] == [
        *("/ready", "/v1/models", "/model_info", "/generate", "/v1/loads", "/metrics")
    ]


def test_own_requests_can_be_hit_too(stand_in: Factory) -> None:
    server = start(stand_in, "warm-up-refused")
    assert server.exit() == -signal.SIGKILL
    assert "Initialization failed. warmup error: Traceback" in server.log()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param({"do": "delay"}, TimeoutError, id="never"),
        pytest.param({"do": "reset"}, ConnectionResetError, id="reset"),
        pytest.param({"do": "garbage"}, http.client.BadStatusLine, id="garbage"),
        pytest.param({"do": "cut"}, http.client.IncompleteRead, id="cut"),
        pytest.param({"do": "length", "by": 50, "open_s": 60}, TimeoutError, id="too-long"),
    ],
)
def test_answers_that_fail(stand_in: Factory, fault: dict[str, t.Any], error: type[Exception]) -> None:
    server = ask(stand_in, {"on": "/v1/models", **fault})
    with pytest.raises(error):
        server.ask("/v1/models", timeout=1.0)
    assert server.ask("/ready").status == 200


def test_answers_that_only_look_whole(stand_in: Factory) -> None:
    server = start(
        stand_in,
        {"on": "/v1/models", "do": "cut", "length": "part"},
        {"on": "/ready", "do": "length", "value": "many"},
        {"on": "/model_info", "do": "slow", "bytes_per_s": 50},
        {"on": "/v1/loads", "do": "endless", "gap_s": 0.01},
    )
    server.wait_ready()
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        server.ask("/v1/models").json()
    received = {}
    for path in ("/model_info", "/v1/loads", "/ready"):
        with socket.create_connection((server.host, server.port), timeout=LIMIT) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            end, data = time.monotonic() + 1.0, b""
            while time.monotonic() < end and (more := client.recv(65536)):
                data += more
            received[path] = data
    assert b"content-length: many" in received["/ready"]
    assert 5 < len(received["/model_info"].partition(b"\r\n\r\n")[2]) < 80
    assert b"transfer-encoding: chunked" in received["/v1/loads"]
    assert received["/v1/loads"].count(b"400\r\n") > 10


def test_another_listener(stand_in: Factory) -> None:
    server = start(stand_in, {"at": "bind", "do": "listen", "host": "127.0.0.2", "reuse_port": True})
    server.wait_ready()
    assert not server.port_open()
    server.host = "127.0.0.2"
    assert server.ask("/v1/models").status == 200
    with socket.socket() as neighbour:
        neighbour.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        neighbour.bind((server.host, server.port))


# Gated launch and several nodes


def test_gated_launch(stand_in: Factory) -> None:
    gate = stand_in.free_port()
    server = stand_in.start(*RANKS, "--gated-launch-port", str(gate), times={"gate_log": 30.0}, scale=0.01)
    wait_until("both wait", lambda: len(server.truth("gate_waiting")) == 2)
    server.wait_for_log("TP1 EP1] Gated launch still waiting for activation. rank=1 elapsed=")
    log = server.log()
    assert f"TP0 EP0] Gated launch control server started on 127.0.0.1:{gate}" in log
    assert "Init parallel ends." in log
    assert "Load weight begin" not in log
    connection = http.client.HTTPConnection("127.0.0.1", gate, timeout=LIMIT)
    for method, path in (("GET", "/health"), ("POST", "/gate/activate")):
        connection.request(method, path)
        assert connection.getresponse().read() == b"OK"
    connection.close()
    server.wait_ready()
    assert server.log().count("Gated launch activated. elapsed=") == 2


def two_nodes(stand_in: Factory) -> tuple[StandIn, StandIn]:
    words = ["--tp-size", "4", "--ep-size", "4", "--nnodes", "2", "--node-rank"]
    words[4:4] = ["--dist-init-addr", f"127.0.0.1:{stand_in.free_port()}"]
    follower = stand_in.start(*words, "1")
    follower.wait_for_log("TP2 EP2] Init parallel begin.")
    leader = stand_in.start(*words, "0")
    leader.wait_ready()
    follower.wait_for_event("following")
    return leader, follower


def test_a_follower_has_its_ranks_and_a_health_that_means_nothing(stand_in: Factory) -> None:
    leader, follower = two_nodes(stand_in)
    assert [title(pid) for pid in follower.schedulers()] == ["sglang::scheduler_TP2_EP2", "sglang::scheduler_TP3_EP3"]
    assert [title(pid) for pid in leader.schedulers()] == ["sglang::scheduler_TP0_EP0", "sglang::scheduler_TP1_EP1"]
    assert "sglang::detokenizer" not in [title(pid) for pid in children(follower.pid)]
    assert f"Dummy health check server started in background thread at 127.0.0.1:{follower.port}" in follower.log()
    assert (follower.ask("/health").status, follower.ask("/v1/models").status) == (200, 404)
    assert len(re.findall("Load weight end", follower.log())) == 2
    assert leader.ask("/generate", GENERATE).status == 200
    # Without the follower's ranks nothing is generated.
    os.kill(follower.schedulers()[0], signal.SIGSTOP)
    assert leader.ask("/health").status == 503
    os.kill(follower.schedulers()[0], signal.SIGCONT)
    follower.process.terminate()
    follower.wait_for_log("SIGTERM received on node_rank 1; waiting for the rank-0 ShutdownReq broadcast")
    leader.process.terminate()
    assert (leader.exit(), follower.exit()) == (0, 0)
    assert "terminated with 0" in follower.log()


@pytest.mark.parametrize("lost", ["leader", "follower"])
def test_a_lost_node_takes_the_other_along(stand_in: Factory, lost: str) -> None:
    leader, follower = two_nodes(stand_in)
    victim, other = (leader, follower) if lost == "leader" else (follower, leader)
    victim.process.kill()
    assert other.exit() == -signal.SIGKILL
    assert "Connection closed by peer" in other.log()


def test_rank_0_waits_for_its_follower(stand_in: Factory) -> None:
    leader = stand_in.start(*RANKS, "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{stand_in.free_port()}")
    leader.wait_for_log("TP0 EP0] Init parallel begin.")
    with pytest.raises(subprocess.TimeoutExpired):
        leader.process.wait(0.5)
    assert "Init parallel ends" not in leader.log()
