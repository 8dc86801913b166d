# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verdicts about stand-in servers under a real systemd, with a real journal, real sockets and real control groups."""

from __future__ import annotations

import json
import signal
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.observer.units import STAND_IN

# Seconds within which the observer must speak after the fact, on two busy cores; `make bench` measures it properly.
LAG = 2.0


def gates(result: dict[str, t.Any]) -> dict[str, t.Any]:
    return {gate["name"]: gate["passed"] for gate in result["gates"]}


@pytest.mark.parametrize("switches", [(), ("--no-sock-diag",)], ids=["sock_diag", "proc"])
def test_ready_is_told_when_it_is_true_and_not_before(server: t.Any, switches: tuple[str, ...]) -> None:
    server.write()
    server.systemctl("start")
    result = server.observe(*switches)
    assert result["ready"], result
    assert set(gates(result).values()) == {True}
    assert [(model["type"], model["ranks"], model["role"]) for model in result["weights"]] == [
        ("KimiK25ForConditionalGeneration", 2, "target"),
        ("DFlashDraftModel", 2, "draft"),
    ]
    phases = [phase["phase"] for phase in result["timeline"]]
    assert phases == ["starting", "loading_weights", "loading_draft", "allocating_kv_cache", "binding", "warming_up"]
    truth = server.true_events(result["invocation_id"])
    lag = result["detected_at_monotonic"] - truth["ready"]
    assert 0 <= lag < LAG
    detail = next(gate["detail"] for gate in result["gates"] if gate["name"] == "port_owner")
    assert ("sock_diag" if not switches else "/proc/net") in detail
    assert server.unit in detail


def test_without_waiting_it_tells_the_phase(server: t.Any) -> None:
    server.write(environment={"STAND_IN_TIMES": json.dumps({"load_target": 15000})})
    server.systemctl("start")
    server.until(lambda: "Load weight begin" in server.host.journal(server.unit))
    result = server.observe(wait=False)
    assert (result["state"], result["phase"], result["finished"]) == ("loading", "loading_weights", True)
    assert result["markers"] == {"seen": 0, "expected": 4}


def test_the_timeout_names_the_phase(server: t.Any) -> None:
    server.write(environment={"STAND_IN_TIMES": json.dumps({"load_target": 15000})})
    server.systemctl("start")
    result = server.observe(timeout="2")
    assert (result["state"], result["ready"]) == ("loading", False)
    assert "Not ready within 2 s" in result["msg"]
    assert 2.0 <= result["elapsed"] < 3.0


@pytest.mark.parametrize(
    ("unit", "prepare", "state"),
    [
        pytest.param("sglang-nobody.service", (), "not_found", id="unknown unit"),
        pytest.param(None, (), "stopped", id="never started"),
    ],
)
def test_units_that_do_not_run(server: t.Any, unit: str | None, prepare: tuple[str, ...], state: str) -> None:
    server.write()
    result = server.observe(**({"unit": unit} if unit else {}))
    assert (result["state"], result["finished"]) == (state, True)


def test_a_stop_is_followed(server: t.Any) -> None:
    server.write(environment={"STAND_IN_DRAIN_S": "4"})
    server.systemctl("start")
    assert server.observe()["ready"]
    server.systemctl("stop", "--no-block")
    server.until(lambda: server.property("ActiveState") == "deactivating")
    result = server.observe(wait=False)
    assert result["state"] == "stopping"
    server.until(lambda: server.property("ActiveState") == "inactive")
    assert server.observe(wait=False)["state"] == "stopped"


@pytest.mark.parametrize(
    ("arguments", "cause", "words", "ended"),
    [
        pytest.param(
            ("--no-such-flag",), "argument_error", "--no-such-flag", "exited with status 2", id="unknown flag"
        ),
        pytest.param(
            ("--speculative-num-draft-tokens", "4"),
            "exception",
            "they differ",
            "exited with status 1",
            id="contradiction",
        ),
    ],
)
def test_a_refused_start_is_explained(
    server: t.Any, arguments: tuple[str, ...], cause: str, words: str, ended: str
) -> None:
    server.write(*arguments)
    server.systemctl("start")
    result = server.observe()
    assert result["state"] == "crashed"
    assert result["diagnosis"]["cause"] == cause
    assert words in result["msg"]
    assert result["diagnosis"]["exit"] == ended


def test_a_program_that_cannot_be_started(server: t.Any) -> None:
    server.write(command="/usr/bin/no-such-python")
    server.systemctl("start", check=False)
    result = server.observe()
    assert (result["state"], result["diagnosis"]["cause"]) == ("crashed", "exec_failed")
    assert "203" in result["msg"]


@pytest.mark.parametrize("moment", ["loading", "up"])
def test_a_killed_scheduler_is_a_crash(server: t.Any, moment: str) -> None:
    server.write(environment={"STAND_IN_TIMES": json.dumps({"load_target": 1500} if moment == "loading" else {})})
    server.systemctl("start")
    if moment == "up":
        assert server.observe()["ready"]
    schedulers = ["pgrep", "--full", "^sglang::scheduler_TP1"]
    server.until(lambda: server.host.exec(schedulers, check=False).stdout.strip() != "")
    observer = server.start_observing(markers="require", expected_markers=99)
    time.sleep(0.7)
    pid = server.host.exec(schedulers).stdout.split()[0]
    server.host.exec(["kill", "-KILL", pid])
    result = json.loads(observer.communicate(timeout=30)[0])
    assert result["state"] == "crashed"
    truth = server.host.exec(
        ["systemctl", "show", "--value", "-p", "ExecMainExitTimestampMonotonic", server.unit]
    ).stdout
    assert 0 <= result["detected_at_monotonic"] - int(truth) / 1e6 < LAG


def test_a_crash_loop_is_not_loading(server: t.Any) -> None:
    server.write("--no-such-flag", service=["Restart=on-failure", "RestartSec=300ms"])
    server.systemctl("start")
    server.until(lambda: int(server.property("NRestarts")) >= 2)
    assert server.observe()["state"] == "crash_loop"


FOREIGN = """\
import http.server, socketserver
class Foreign(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *args): pass
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", @PORT@), Foreign).serve_forever()
"""


def by_hand(server: t.Any, kind: str) -> t.ContextManager[str]:
    """A server that somebody started by hand on the port of the unit."""
    if kind == "foreign":
        return t.cast(
            t.ContextManager[str], server.neighbour("python3", "-c", FOREIGN.replace("@PORT@", str(server.port)))
        )
    environment = {"PYTHONPATH": STAND_IN, "STAND_IN_SCALE": "0.002"}
    return t.cast(t.ContextManager[str], server.neighbour(*server.command().split(), environment=environment))


@pytest.mark.parametrize("kind", ["sglang", "foreign"])
def test_a_port_that_another_process_holds(server: t.Any, kind: str) -> None:
    server.write()
    with by_hand(server, kind) as holder:
        server.until(server.answers, 30)
        server.systemctl("start")
        result = server.observe()
        pid = server.host.exec(["systemctl", "show", "--value", "-p", "MainPID", holder]).stdout.strip()
    assert (result["state"], result["diagnosis"]["cause"]) == ("crashed", "port_conflict")
    assert f"pid {pid} " in result["msg"]
    assert holder in result["msg"]


def test_the_new_process_claims_readiness_when_a_sglang_holds_its_port(server: t.Any) -> None:
    """The trap itself (recorded: fail-port-held-by-other-sglang.log): the marker is there, and the verdict is still no."""
    server.write()
    with by_hand(server, "sglang"):
        server.until(server.answers, 30)
        server.systemctl("start")
        server.until(lambda: server.property("ActiveState") == "failed", 30)
    assert "fired up and ready to roll" in server.host.journal(server.unit)
    assert server.property("ExecMainStatus") == "3"
    assert server.observe()["diagnosis"]["cause"] == "port_conflict"


SHARER = """\
import socket, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last test may linger
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("127.0.0.1", @PORT@)); s.listen(); time.sleep(60)
"""


def test_a_neighbour_that_shares_the_port_is_noticed(server: t.Any) -> None:
    """SO_REUSEPORT: half of the connections would reach the neighbour."""
    code = SHARER.replace("@PORT@", str(server.port))
    with server.neighbour("python3", "-c", code) as one, server.neighbour("python3", "-c", code) as other:
        listening = ["ss", "-Hltn", f"sport = :{server.port}"]
        server.until(lambda: len(server.host.exec(listening).stdout.splitlines()) == 2)
        result = server.observe(unit=one, timeout="1")
    assert result["ready"] is False
    assert gates(result)["port_owner"] is False
    assert other in result["msg"]


def test_a_process_that_an_earlier_start_left_behind_is_not_this_start(server: t.Any) -> None:
    """In the unit's own control group, with the right model: only its age tells."""
    child = f"/usr/bin/env STAND_IN_TRUTH= {server.command()}"
    server.write(command=f"/bin/sh -c '{child} & exec sleep 1000'", service=["KillMode=process"])
    server.systemctl("start")
    server.until(server.answers, 30)
    old = server.property("InvocationID")
    server.systemctl("restart")
    assert server.answers(), "the old process must still answer for the test to mean anything"
    results = [
        server.observe(replaces=old, timeout="3", markers="ignore"),
        server.observe(timeout="1", markers="ignore"),
    ]
    assert [result["ready"] for result in results] == [False, False]
    assert [gates(result)["port_owner"] for result in results] == [False, False]


# A server that answers as it should; when a file appears, its listener goes on in a child, and it ends.
HANDING_OVER = """\
import http.server, json, os, socketserver, sys, threading, time
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        meta = {"completion_tokens": 17, "spec_verify_ct": 7}
        body = {"data": [{"id": "kimi-k2.6"}], "model_path": "/models/stand-in-target", "tp_size": 2, "meta_info": meta}
        data = json.dumps(body).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
    do_POST = do_GET
    def log_message(self, *args): pass
socketserver.TCPServer.allow_reuse_address = True
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
while not os.path.exists(sys.argv[2]): time.sleep(0.05)
server.shutdown()
if os.fork() == 0: server.serve_forever()
os._exit(0)
"""


@pytest.mark.parametrize("trick", ["forked since", "moved away"])
def test_a_socket_of_an_earlier_start_is_never_this_start(server: t.Any, trick: str) -> None:
    """Made in the unit's control group, and its holder is no older than the main process, or has left the group."""
    program, flag, away = (f"{server.truth}.{end}" for end in ("py", "flag", "away"))
    server.host.write_file(program, HANDING_OVER)
    serve = f"/usr/bin/python3 {program} {server.port} {flag}"
    options = {"markers": "ignore", "settings": {"tp_size": 2}}
    server.write(command=f"/bin/sh -c '{serve} & sleep 1000 & exec sleep 1000'", service=["KillMode=process"])
    server.systemctl("start")
    server.until(server.answers, 30)
    assert server.observe(**options)["ready"], "the server must pass as long as it is the right one"
    old = server.property("InvocationID")
    server.write(command="/bin/sleep 1000", service=["KillMode=process"])
    server.systemctl("restart")
    if trick == "forked since":
        server.host.exec(["touch", flag])
        server.until(lambda: server.host.exec(["pgrep", "-fc", serve], check=False).stdout.strip() == "1")
    else:
        script = f"mkdir -p $1; for pid in $(pgrep -f '{serve}'); do echo $pid >$1/cgroup.procs; done"
        server.host.exec(["sh", "-c", script, "sh", f"/sys/fs/cgroup/system.slice/{away.rpartition('/')[2]}"])
    server.until(server.answers, 10)
    result = server.observe(**options, replaces=old, timeout="2")
    server.host.exec(["pkill", "-KILL", "-f", serve])
    assert (result["ready"], gates(result)["port_owner"]) == (False, False), result


def test_a_server_on_one_address_when_all_are_asked_for(server: t.Any) -> None:
    """The server would log "fired up", or share the port: clients that use that address reach the other one."""
    code = SHARER.replace("@PORT@", str(server.port)).replace("127.0.0.1", server.host.address)
    server.write("--host", "0.0.0.0")
    with server.neighbour("python3", "-c", code) as other:
        server.until(lambda: server.host.exec(["ss", "-Hltn", f"sport = :{server.port}"]).stdout != "")
        server.systemctl("start")
        result = server.observe(host="0.0.0.0")
    assert result["diagnosis"]["cause"] == "port_conflict"
    assert other in result["msg"]


def test_a_restart_after_automatic_restarts_is_no_crash_loop(server: t.Any) -> None:
    server.write(environment={"STAND_IN_DRAIN_S": "2"}, service=["Restart=always", "RestartSec=100ms"])
    server.systemctl("start")
    assert server.observe()["ready"]
    server.systemctl("kill", "--kill-whom=main", "--signal=KILL")
    server.until(lambda: server.property("NRestarts") == "1" and server.property("ActiveState") == "active")
    assert server.observe()["ready"]
    old = server.property("InvocationID")
    server.systemctl("restart", "--no-block")
    assert server.property("NRestarts") == "1", (
        "the counter must be that of the old start for the test to mean anything"
    )
    assert server.observe(replaces=old)["ready"]


def test_a_journalctl_that_is_killed_is_replaced(server: t.Any) -> None:
    server.write(environment={"STAND_IN_TIMES": json.dumps({"load_target": 1500})})
    server.systemctl("start")
    observer = server.start_observing(markers="require", timeout="30")
    follower = ["pgrep", "--full", "^journalctl .*--follow"]
    server.until(lambda: server.host.exec(follower, check=False).stdout.strip() != "")
    server.host.exec(["pkill", "-KILL", *follower[1:]])
    assert json.loads(observer.communicate(timeout=60)[0])["ready"]


@pytest.mark.parametrize(
    ("options", "cause", "words"),
    [
        pytest.param({"model": "org/model-b"}, "wrong_model", "org/model-b", id="model"),
        pytest.param({"model_path": "/models/other"}, "wrong_model_path", "/models/other", id="path"),
        pytest.param({"settings": {"tp_size": 8}}, "settings_mismatch", "tp_size asked 8, running 2", id="settings"),
    ],
)
def test_another_server_than_asked(server: t.Any, options: dict[str, t.Any], cause: str, words: str) -> None:
    server.write()
    server.systemctl("start")
    result = server.observe(**options, expected_markers=4)
    assert (result["ready"], result["diagnosis"]["cause"]) == (False, cause)
    assert words in result["msg"]


def test_keys(server: t.Any) -> None:
    key = "sk-planted-key-1"
    server.write(f"--api-key {key}")
    server.systemctl("start")
    right = server.observe(api_key=key)
    missing = server.observe()
    wrong = server.observe(api_key="sk-another-key-2")
    assert right["ready"]
    assert [result["diagnosis"]["cause"] for result in (missing, wrong)] == ["unauthorized"] * 2
    assert "401" in missing["msg"]
    assert key not in json.dumps([right, missing, wrong])


def test_a_wait_ends_when_nobody_reads_it(server: t.Any) -> None:
    server.write(environment={"STAND_IN_TIMES": json.dumps({"load_target": 15000})})
    server.systemctl("start")
    observer = server.start_observing()
    mark = ["pgrep", "--full", "observer/observe.py"]
    server.until(lambda: server.host.exec(mark, check=False).stdout.strip() != "")
    time.sleep(0.5)
    assert observer.stdout is not None
    observer.stdout.close()
    observer.send_signal(signal.SIGKILL)
    observer.wait()
    server.until(lambda: server.host.exec(mark, check=False).stdout.strip() == "", 10)
    followers = server.host.exec(["pgrep", "--exact", "journalctl"], check=False).stdout
    assert followers.strip() == ""
