# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hung against loading: real processes that are stopped, frozen, that spin, or that are merely slow."""

from __future__ import annotations

import json
import typing as t

import pytest

# Long enough for a start of the stand-in on a loaded machine, in which every second brings progress.
STALL = 4.0
SPIN = 8.0
HANG: t.Mapping[str, t.Any] = {"stall_timeout": STALL, "spin_timeout": SPIN, "timeout": "60"}
# Nothing that happens in the start itself lasts this long; then the test has its way.
LONG = json.dumps({"load_target": 20000})
NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
--query-gpu=*) echo "0, GPU-0001, NVIDIA RTX PRO 6000 Blackwell Server Edition, 100, 91.24, 600.00, 81234" ;;
--query-compute-apps=*) ;;
esac
"""


def fault(**what: t.Any) -> dict[str, str]:
    return {"STAND_IN_FAULT": json.dumps(what)}


def processes(result: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    return {item["rank"] or item["role"]: item for item in result["diagnosis"]["processes"]}


def start(server: t.Any, **environment: str) -> None:
    server.write(environment={"STAND_IN_TIMES": LONG, **environment})
    server.systemctl("start")
    server.until(lambda: "Load weight begin" in server.host.journal(server.unit))


def pids(server: t.Any, title: str = "") -> list[str]:
    group = f"/sys/fs/cgroup/system.slice/{server.unit}/cgroup.procs"
    script = f'for pid in $(cat {group}); do grep -q "{title}" /proc/$pid/cmdline && echo $pid; done; true'
    found: list[str] = server.host.exec(["sh", "-c", script]).stdout.split()
    return found


def test_all_processes_stopped(server: t.Any) -> None:
    start(server)
    server.host.exec(["kill", "-STOP", *pids(server)])
    result = server.observe(**HANG)
    assert (result["state"], result["diagnosis"]["cause"]) == ("hung", "stalled"), result["msg"]
    assert STALL <= result["elapsed"] < SPIN
    assert "processes are stopped by a signal" in result["msg"]
    found = processes(result)
    assert found["TP1 EP1"]["state"] == "T (stopped by a signal)"
    assert found["TP1 EP1"]["wchan"] in ("do_signal_stop", "")
    assert found["TP1 EP1"]["last_line"].startswith("Load weight begin")
    assert found["TP1 EP1"]["rss_bytes"] > 2**20
    assert {item["signal"] for item in result["diagnosis"]["stalled"]} >= {"log", "cpu", "io", "memory"}


def test_one_rank_of_several_stopped(server: t.Any) -> None:
    start(server)
    (pid,) = pids(server, "sglang::scheduler_TP1")
    server.host.exec(["kill", "-STOP", pid])
    result = server.observe(**HANG)
    assert result["state"] == "hung"
    assert f"TP1 EP1 (pid {pid}) is stopped by a signal" in result["msg"]
    assert f"kill -CONT {pid}" in result["diagnosis"]["remedy"]


def test_a_frozen_unit(server: t.Any) -> None:
    start(server)
    server.systemctl("freeze")
    result = server.observe(**HANG)
    server.systemctl("thaw")
    assert result["state"] == "hung"
    assert f"systemctl thaw {server.unit}" in result["msg"]


def test_ranks_that_only_burn_cpu(server: t.Any) -> None:
    server.write(environment=fault(at="load_target", who="TP1", do="spin"))
    server.systemctl("start")
    result = server.observe(**HANG)
    assert (result["state"], result["diagnosis"]["cause"]) == ("hung", "spinning"), result["msg"]
    assert result["elapsed"] >= SPIN
    found = processes(result)
    assert found["TP1 EP1"]["cpu_percent"] > 5 * max(found["TP0 EP0"]["cpu_percent"], 1.0)


def test_a_collective_that_hangs(server: t.Any) -> None:
    path = "/usr/local/bin/nvidia-smi"
    server.write(environment=fault(at="load_target", who="ranks", do="spin"))
    server.host.write_file(path, NVIDIA_SMI)
    server.host.exec(["chmod", "0755", path])
    server.systemctl("start")
    try:
        result = server.observe(**HANG)
    finally:
        server.host.exec(["rm", path])
    assert (result["state"], result["diagnosis"]["cause"]) == ("hung", "collective_hang"), result["msg"]
    assert "GPU 0 at 100 % with 91 of 600 W" in result["msg"]
    assert result["diagnosis"]["gpus"][0]["power_w"] == 91.24


def test_an_nvidia_smi_that_hangs_holds_nothing_up(server: t.Any) -> None:
    path = "/usr/local/bin/nvidia-smi"
    start(server)
    server.host.write_file(path, "#!/bin/sh\nexec sleep 4711\n")
    server.host.exec(["chmod", "0755", path])
    server.host.exec(["kill", "-STOP", *pids(server)])
    try:
        result = server.observe(**{**HANG, "stall_timeout": 25.0, "spin_timeout": 0})
    finally:
        server.host.exec(["rm", path])
    assert 25.0 <= result["elapsed"] < 30.0
    assert "nvidia-smi has not answered" in result["msg"]
    assert server.host.exec(["pgrep", "-f", "sleep 4711"], check=False).stdout == "", "it must not be left behind"


@pytest.mark.parametrize("what", ["rss", "io"])
def test_a_slow_loader_is_loading(server: t.Any, what: str) -> None:
    """Silent for three times the stall timeout."""
    server.write(environment=fault(at="load_target", who="TP1", do="grow", what=what, for_s=3 * STALL))
    server.systemctl("start")
    result = server.observe(**{**HANG, "spin_timeout": STALL})
    assert (result["ready"], result["elapsed"] >= 2 * STALL) == (True, True), result


def test_a_compiler_at_work_is_no_hang(server: t.Any) -> None:
    server.write(environment=fault(at="kv_cache", who="TP1", do="compile", program="nvcc", for_s=2 * SPIN))
    server.systemctl("start")
    result = server.observe(**HANG)
    assert (result["ready"], result["elapsed"] >= SPIN) == (True, True), result


def test_a_server_that_accepts_and_never_answers(server: t.Any) -> None:
    server.write(environment=fault(on=["/generate"], do="delay"))
    server.systemctl("start")
    result = server.observe(**HANG)
    assert (result["state"], result["diagnosis"]["cause"]) == ("hung", "deaf"), result["msg"]
    assert "has not answered POST /generate" in result["msg"]
    assert result["elapsed"] < 120, "not the deadline of the request decides"


def test_a_stopped_detokenizer_while_it_is_polled(server: t.Any) -> None:
    """Everything is up, a router polls, and nothing is generated."""
    server.write()
    server.systemctl("start")
    assert server.observe()["ready"]
    (pid,) = pids(server, "sglang::detokenizer")
    server.host.exec(["kill", "-STOP", pid])
    url = f"http://127.0.0.1:{server.port}/v1/models"
    poll = f"while :; do curl -s -o /dev/null {url}; sleep 0.2; done"
    with server.neighbour("sh", "-c", poll):
        result = server.observe(**HANG)
    assert result["state"] == "hung"
    assert f"detokenizer (pid {pid}) is stopped by a signal" in result["msg"]


def test_the_clocks_survive_slices(server: t.Any) -> None:
    start(server)
    server.host.exec(["kill", "-STOP", *pids(server)])
    result = server.observe(**HANG, slice=1.5)
    slices = 1
    while not result["finished"]:
        result = server.observe(**HANG, slice=1.5, resume=result["resume"])
        slices += 1
    assert (result["state"], slices >= 2) == ("hung", True)
    assert STALL <= result["elapsed"] < SPIN + 4


def test_an_idle_ready_server_never_hangs(server: t.Any) -> None:
    server.write()
    server.systemctl("start")
    result = server.observe(stall_timeout=2.0, spin_timeout=2.0, timeout="60", stable_for=8.0)
    assert (result["ready"], result["elapsed"] >= 8.0) == (True, True)
