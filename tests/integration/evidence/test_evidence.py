# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a failed start leaves on a host with a real systemd: whole, without secrets, and never at the cost of the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.observer import units

#: One for each place where a key can stand. Each is odd in another way.
PLANTED = {
    "argv": "planted-argv,key)1",
    "drop-in": 'planted "drop-in" key',
    "environment": "planted environment key",
    "environment file": "planted$environment\\file'key",
    "credential": "planted-credential: key#",
    "option": "planted-option-key",
}


def quoted(text: str) -> str:
    """As a double-quoted word of a unit or environment file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def test_a_crash_leaves_what_explains_it(unit: t.Any) -> None:
    unit.start("--no-such-flag")
    result = unit.judge()
    assert result["state"] == "crashed"
    assert result["notices"] == []
    (name,) = unit.archives()
    assert result["evidence"] == f"{unit.folder}/{name}"
    assert name.endswith(f"-crashed-{result['invocation_id']}.tar.gz")
    assert result["evidence"] in result["msg"]
    assert "specdec.serving.collect" in result["msg"]
    assert unit.host.exec(["stat", "-c", "%a %U", unit.folder, result["evidence"]]).stdout.split("\n")[:2] == [
        "700 root",
        "600 root",
    ]
    files = unit.files(result["evidence"])
    assert "unrecognized arguments: --no-such-flag" in files["journal.txt"]
    assert "Main process exited, code=exited, status=2" in files["systemd.txt"]
    assert "EXIT_STATUS=2" in files["systemd.txt"]
    assert "ExecStart=" in files["unit.txt"]
    assert f"InvocationID={result['invocation_id']}" in files["properties.txt"]
    assert "--no-such-flag" in files["arguments.txt"]
    assert "STAND_IN_SCALE=0.002" in files["environment.txt"]
    assert json.loads(files["verdict.json"])["diagnosis"] == result["diagnosis"]
    assert "MemTotal" in files["memory.txt"]
    assert "Linux" in files["releases.txt"]
    assert "/dev/shm" in files["disks.txt"]
    for inner in files:
        assert inner == "index.txt" or inner in files["index.txt"]


def test_a_hung_server_is_seen_in_the_state_of_its_processes(unit: t.Any) -> None:
    unit.start(environment={"STAND_IN_TIMES": json.dumps({"load_target": 60000})})
    pid = unit.until("pgrep", "--full", "^sglang::scheduler_TP1").split()[0]
    unit.host.exec(["systemctl", "kill", "--signal=STOP", unit.unit])
    result = unit.judge(stall_timeout=3)
    assert result["state"] == "hung"
    assert f"-hung-{result['invocation_id']}" in result["evidence"]
    files = unit.files(result["evidence"])
    row = next(line for line in files["processes.txt"].splitlines() if line.startswith(f"{pid} "))
    assert " scheduler " in row
    assert " T " in row
    assert "do_signal_stop" in files[f"processes/{pid}-scheduler.txt"]  # its kernel stack or wait channel
    assert "VmRSS" in files[f"processes/{pid}-scheduler.txt"]
    roles = {name.partition("-")[2] for name in files if name.startswith("processes/")}
    assert {"main.txt", "scheduler.txt", "detokenizer.txt"} <= roles


def test_who_holds_the_port_is_named(unit: t.Any) -> None:
    neighbour = f"neighbour-{unit.name}"
    holder = f"import socket, time; s = socket.create_server(('127.0.0.1', {unit.port})); time.sleep(600)"
    unit.host.exec(["systemd-run", "--quiet", f"--unit={neighbour}", "--", "python3", "-c", holder])
    try:
        unit.until("sh", "-c", f"ss -Hltn sport = :{unit.port} | grep -q .")
        unit.start()
        result = unit.judge()
        assert result["diagnosis"]["cause"] == "port_conflict"
        files = unit.files(result["evidence"])
        assert f"{neighbour}.service" in files["sockets.txt"]
        assert "port holder" in files["processes.txt"]
    finally:
        unit.host.exec(["systemctl", "stop", neighbour], check=False)


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "crashed"])
def test_no_key_gets_into_an_archive(unit: t.Any, alive: bool) -> None:
    host, base = unit.host, f"/root/{unit.name}"
    # The crash prints what it can get hold of, as a traceback with locals would.
    leak = (
        "import os, sys; [print('leak', name, repr(value), value) for name, value in os.environ.items()];"
        "print(open(os.environ['CREDENTIALS_DIRECTORY'] + '/k.yaml').read()); print(sys.argv);"
        "print({'api_key': 'planted-by-name-only'}); print('--admin-api-key planted-by-flag-only'); sys.stdout.flush();"
    )
    host.write_file(f"{base}.env", f"MY_SECRET={quoted(PLANTED['environment file'])}\nPLAIN=visible\n")
    host.write_file(f"{base}.yaml", f"api-key: {json.dumps(PLANTED['credential'])}\n")
    host.write_file(f"{base}.py", leak + ("import time; time.sleep(600)" if alive else "sys.exit(3)"))
    host.exec(["mkdir", "-p", f"/etc/systemd/system/{unit.unit}.d"])
    host.write_file(
        f"/etc/systemd/system/{unit.unit}.d/key.conf",
        f"[Service]\nEnvironment={quoted('WANDB_API_KEY=' + PLANTED['drop-in'])}\n",
    )
    unit.start(
        environment={"HF_TOKEN": PLANTED["environment"]},
        service=[f"EnvironmentFile={base}.env", f"LoadCredential=k.yaml:{base}.yaml"],
        command=f"/usr/bin/python3 {base}.py --api-key {quoted(PLANTED['argv'])}",
    )
    unit.until("sh", "-c", f"journalctl -u {unit.unit} | grep -q planted-by-flag-only")
    printed = host.journal(unit.unit)
    assert all(key in printed for place, key in PLANTED.items() if place != "option")
    result = unit.judge(timeout="1", markers="ignore", api_key=PLANTED["option"])
    everything = "\n".join(text for item in unit.files(result["evidence"]).items() for text in item)
    assert "planted" not in everything
    assert "PLAIN=visible" in everything
    assert "HF_TOKEN=********" in everything
    assert ("EXIT_STATUS=3" in everything) is not alive


def test_the_keys_that_a_server_shows_are_masked(unit: t.Any) -> None:
    """SGLang prints its keys in its server_args line, and in the launch_command of /server_info."""
    unit.start("--api-key", "planted-argv-key", "--admin-api-key", "planted-admin-key")
    result = unit.judge(timeout="4", api_key="planted-argv-key", markers="require", expected_markers=99)
    assert (result["ready"], result["server"]["model"]) == (False, units.MODEL)  # it was asked, with its key
    files = unit.files(result["evidence"])
    assert "server_args=" in files["journal.txt"]
    assert "planted" not in json.dumps(files)


def test_one_start_judged_again_replaces_its_archive(unit: t.Any) -> None:
    unit.start("--no-such-flag")
    first = unit.judge()
    second = unit.judge()
    assert unit.archives() == [second["evidence"].rpartition("/")[2]]
    assert first["invocation_id"] == second["invocation_id"]


def test_the_last_ones_stay(unit: t.Any) -> None:
    kept = []
    for _number in range(3):
        unit.start("--no-such-flag")
        kept.append(unit.judge(keep_evidence=2)["evidence"].rpartition("/")[2])
    assert unit.archives() == sorted(kept[1:])
    unit.start("--no-such-flag")
    assert "evidence" not in unit.judge(keep_evidence=0)
    assert unit.archives() == sorted(kept[1:])


@pytest.mark.parametrize("options", [{"wait": False}, {"state_dir": ""}], ids=["no wait", "no folder"])
def test_nothing_is_kept(unit: t.Any, options: dict[str, t.Any]) -> None:
    unit.start("--no-such-flag")
    unit.state_dir = options.get("state_dir", unit.state_dir)
    result = unit.judge(**{name: value for name, value in options.items() if name != "state_dir"})
    assert "evidence" not in result
    assert unit.host.exec(["test", "-e", f"/var/lib/specdec/sglang/evidence/{unit.unit}"], check=False).returncode == 1


def test_a_full_disk_costs_the_archive_and_not_the_verdict(make_unit: t.Any) -> None:
    unit = make_unit(state_dir="/run/full")
    unit.host.exec(["sh", "-c", "mkdir -p /run/full && mount -t tmpfs -o size=16k tmpfs /run/full"])
    try:
        unit.start("--no-such-flag")
        result = unit.judge()
        assert (result["state"], "evidence" in result) == ("crashed", False)
        assert "No space left on device" in " ".join(result["notices"])
        assert unit.archives() == []
    finally:
        unit.host.exec(["umount", "/run/full"])


def test_a_read_only_folder_costs_the_archive_and_not_the_verdict(make_unit: t.Any) -> None:
    unit = make_unit(state_dir="/sys/specdec")
    unit.start("--no-such-flag")
    result = unit.judge()
    assert (result["state"], "evidence" in result) == ("crashed", False)
    assert "/sys/specdec" in " ".join(result["notices"])


def test_two_waits_at_once_leave_one_whole_archive(unit: t.Any) -> None:
    unit.start("--no-such-flag")
    asked = json.dumps(units.ready_options(unit=unit.unit, port=unit.port, state_dir=unit.state_dir))
    argv = f"sudo env PYTHONPATH={units.ROOT} python3 -B {units.OBSERVER} --keep-evidence"
    waits = [
        subprocess.Popen(unit.host.ssh_argv(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for wait in waits:
        assert wait.stdin is not None
        wait.stdin.write(asked)
        wait.stdin.close()
        wait.stdin = None
    results = [json.loads(wait.communicate(timeout=60)[0]) for wait in waits]
    assert [result["notices"] for result in results] == [[], []]
    (name,) = unit.archives()
    assert "journal.txt" in unit.files(f"{unit.folder}/{name}")


def test_what_a_killed_wait_left_behind_goes_with_the_next(unit: t.Any) -> None:
    unit.start("--no-such-flag")
    unit.judge()
    unit.host.write_file(f"{unit.folder}/.half.tar.gz.99999999.new", "half an archive")
    unit.restart()
    unit.judge()
    assert len(unit.archives()) == 2
    assert all(name.endswith(".tar.gz") for name in unit.archives())


_KILLED = """
import json, os, random, signal, sys, time
from ansible_collections.specdec.serving.plugins.module_utils import _evidence
asked = json.load(sys.stdin)
chance = random.Random(asked["seed"])
for _round in range(asked["rounds"]):
    pid = os.fork()
    if pid == 0:
        _evidence.keep(dict(asked["result"]), asked["params"], wait=True)
        os._exit(0)
    time.sleep(chance.uniform(0, asked["seconds"]))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def test_a_wait_that_is_killed_at_any_moment_leaves_no_half_archive(unit: t.Any) -> None:
    seed = int(os.environ.get("SPECDEC_SEED", "1"))
    unit.start("--no-such-flag")
    began = time.monotonic()
    result = unit.judge()
    asked = {
        "seed": seed,
        "rounds": 8,
        "seconds": 1.2 * (time.monotonic() - began),
        "result": {**result, "notices": []},
        "params": units.ready_options(unit=unit.unit, port=unit.port, state_dir=unit.state_dir, keep_evidence=5),
    }
    unit.host.exec(["env", f"PYTHONPATH={units.ROOT}", "python3", "-B", "-c", _KILLED], input=json.dumps(asked))
    whole = [name for name in unit.archives() if name.endswith(".tar.gz")]
    assert whole, f"seed {seed}"  # more than one where it was killed before the removal of the one before
    for name in whole:
        assert "verdict.json" in unit.files(f"{unit.folder}/{name}"), f"seed {seed}"
    last = unit.judge()
    assert unit.archives() == [last["evidence"].rpartition("/")[2]]


def test_a_program_that_hangs_does_not_hold_up_the_verdict(unit: t.Any) -> None:
    """nvidia-smi waits for ever on a GPU that has fallen off the bus."""
    unit.host.write_file("/usr/local/bin/nvidia-smi", "#!/bin/sh\necho begun\nexec sleep 600\n")
    unit.host.exec(["chmod", "755", "/usr/local/bin/nvidia-smi"])
    try:
        unit.start("--no-such-flag")
        began = time.monotonic()
        result = unit.judge()
        assert time.monotonic() - began < 30
        files = unit.files(result["evidence"])
        assert "begun" in files["nvidia-smi.txt"]
        assert "nvidia-smi: no end after" in files["index.txt"]
    finally:
        unit.host.exec(["rm", "-f", "/usr/local/bin/nvidia-smi"])
