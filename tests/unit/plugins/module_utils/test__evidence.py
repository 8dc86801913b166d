# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Evidence of a scripted machine: what is in an archive, which archives stay, and that nothing of it costs the verdict."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import shutil
import tarfile
import threading
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _evidence, _evidence_collector, _evidence_processes
from ansible_collections.specdec.serving.plugins.module_utils._evidence import keep
from ansible_collections.specdec.serving.plugins.module_utils._evidence_machine import Machine, Output
from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, UnitState

UNIT = "sglang-x.service"
INVOCATION = "0123456789abcdef0123456789abcdef"
PROPERTIES = (
    'Environment="HF_TOKEN=planted one" PLAIN=visible\n'
    "ExecStart={ path=/opt/engine/bin/python ; argv[]=/opt/engine/bin/python -m sglang.launch_server --api-key planted-two --port 1 ;"
    " ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }\n"
)


def entry(number: int, message: str) -> Entry:
    values = {
        "cursor": f"c{number}",
        "realtime_us": 1_790_000_000_000_000 + number,
        "monotonic_us": number,
        "pid": 7,
        "message": message,
    }
    rest = {
        "message_id": "",
        "exit_code": "",
        "exit_status": None,
        "unit_result": "",
        "n_dropped": 0,
        "line_break": "",
        "own": True,
    }
    return Entry(**values, **rest)  # type: ignore[arg-type]  # each has its own type


class Script:
    """A machine without processes. Its clock moves by what was asked to sleep, and by `costs` for a look at the journal."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1000.0
        self.wall_now = 1_790_000_000.0
        self.state = UnitState(id=UNIT, load_state="loaded", invocation_id=INVOCATION)
        self.outputs: dict[str, Output] = {}
        self.entries = [entry(1, "Load weight begin"), entry(2, "planted one and planted-two")]
        self.commands: dict[str, t.Sequence[str]] = {}
        self.timeout = 0.0
        self.journal_error: Exception | None = None

    def run_all(self, commands: t.Mapping[str, t.Sequence[str]], *, timeout: float) -> dict[str, Output]:
        self.commands, self.timeout = dict(commands), timeout
        texts = {"properties": Output(PROPERTIES), "nvidia-smi": Output("", "not found")}
        return {name: self.outputs.get(name) or texts.get(name) or Output("") for name in commands}

    def journal(self, invocation: str, _namespace: str, lines: int | None, until: float) -> t.Iterator[list[Entry]]:
        assert invocation == INVOCATION
        if self.journal_error is not None:
            raise self.journal_error
        chosen = self.entries if lines is None else self.entries[-lines:]
        for begin in range(0, len(chosen), 1000):
            if self.now >= until:
                raise TimeoutError("the journal takes too long to read")
            self.now += 0.01
            yield chosen[begin : begin + 1000]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def show(self, _unit: str) -> UnitState:
        return self.state

    def machine(self) -> Machine:
        (self.root / "proc").mkdir(exist_ok=True)
        return Machine(
            run_all=self.run_all,
            show=self.show,
            journal=self.journal,
            monotonic=lambda: self.now,
            wall=lambda: self.wall_now,
            sleep=self.sleep,
            proc=str(self.root / "proc"),
            cgroup_root=str(self.root / "cgroup"),
        )


def verdict(**changes: t.Any) -> dict[str, t.Any]:
    return {
        "state": "crashed",
        "ready": False,
        "finished": True,
        "unit": UNIT,
        "invocation_id": INVOCATION,
        "detected_at": 1_790_000_000.0,
        "diagnosis": {"cause": "exception", "summary": "it broke"},
        "log_tail": ["said planted one"],
        "notices": [],
        "msg": "sglang-x.service is not ready.",
        "resume": {"secret": "planted"},
        **changes,
    }


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setattr(_evidence_processes, "listeners", lambda _port, **_roots: ([], ""))
    return Script(tmp_path)


def params(script: Script, **changes: t.Any) -> dict[str, t.Any]:
    return {
        "state_dir": str(script.root / "state"),
        "keep_evidence": 5,
        "port": 30001,
        "api_key": "planted-three",
        **changes,
    }


def folder(script: Script) -> Path:
    return script.root / "state" / "evidence" / UNIT


def archives(script: Script) -> list[str]:
    return sorted(path.name for path in folder(script).iterdir() if path.name != ".lock")


def judged(script: Script, **changes: t.Any) -> dict[str, t.Any]:
    result = verdict(**changes)
    keep(result, params(script), wait=True, machine=script.machine())
    return result


def files(result: t.Mapping[str, t.Any]) -> dict[str, str]:
    found = {}
    with tarfile.open(result["evidence"]) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
    return found


def test_an_archive_tells_what_happened_and_no_secret(script: Script) -> None:
    result = judged(script)
    assert result["notices"] == []
    name = f"20260921T141320Z-crashed-{INVOCATION}.tar.gz"
    assert archives(script) == [name]
    assert result["evidence"] == str(folder(script) / name)
    assert result["msg"].startswith("sglang-x.service is not ready. Evidence is on the host: /")
    found = files(result)
    assert found["journal.txt"] == (
        "2026-09-21T14:13:20.000001Z 0.000001 [7] Load weight begin\n"
        "2026-09-21T14:13:20.000002Z 0.000002 [7] ******** and ********\n"
    )
    assert "PLAIN=visible" in found["environment.txt"]
    assert "HF_TOKEN=********" in found["environment.txt"]
    assert json.loads(found["verdict.json"])["log_tail"] == ["said ********"]
    assert "planted" not in json.dumps(found)
    assert "no NVIDIA driver" in found["index.txt"]
    assert "it broke" in found["index.txt"]


def test_permissions(script: Script) -> None:
    folder(script).mkdir(parents=True, mode=0o755)
    result = judged(script)
    modes = [path.stat().st_mode & 0o777 for path in (folder(script).parent, folder(script), Path(result["evidence"]))]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        pytest.param({"state": "hung"}, "hung", id="hung"),
        pytest.param({"state": "crash_loop"}, "crash_loop", id="crash loop"),
        pytest.param({"state": "loading", "diagnosis": {"cause": "timeout"}}, "timeout", id="timeout"),
        pytest.param({"state": "loading", "diagnosis": {"cause": "wrong_model"}}, "wrong_model", id="wrong server"),
        pytest.param({"diagnosis": {"cause": "port_conflict"}}, "crashed", id="port conflict"),
        pytest.param({"state": "stopping", "diagnosis": {}}, "stopping", id="still draining"),
    ],
)
def test_failed_starts(script: Script, changes: dict[str, t.Any], label: str) -> None:
    assert f"-{label}-{INVOCATION}" in judged(script, **changes)["evidence"]


@pytest.mark.parametrize(
    ("changes", "options", "wait"),
    [
        pytest.param({"state": "ready", "ready": True}, {}, True, id="ready"),
        pytest.param({"state": "follower"}, {}, True, id="follower"),
        pytest.param({"state": "not_found"}, {}, True, id="not found"),
        pytest.param({"state": "stopped"}, {}, True, id="stopped"),
        pytest.param({"finished": False}, {}, True, id="between slices"),
        pytest.param({}, {}, False, id="no wait or check mode"),
        pytest.param({}, {"keep_evidence": 0}, True, id="none to keep"),
        pytest.param({}, {"state_dir": ""}, True, id="no folder"),
    ],
)
def test_nothing_is_done(script: Script, changes: dict[str, t.Any], options: dict[str, t.Any], wait: bool) -> None:
    result = verdict(**changes)
    keep(result, params(script, **options), wait=wait, machine=script.machine())
    assert result == verdict(**changes)
    assert script.commands == {}
    assert not (script.root / "state").exists()


def later(script: Script, seconds: float = 60.0) -> None:
    script.wall_now += seconds


def test_the_last_ones_stay(script: Script) -> None:
    made = []
    for number in range(7):
        made.append(judged(script, invocation_id="") if number == 3 else _judged_as(script, number))
        later(script)
    assert archives(script) == [Path(result["evidence"]).name for result in made[2:]]


def _judged_as(script: Script, number: int) -> dict[str, t.Any]:
    script.journal = lambda *_arguments: iter([[entry(1, "x")]])  # type: ignore[method-assign]  # of any invocation
    return judged(script, invocation_id=f"{number:032x}")


def test_the_same_start_judged_again_replaces_its_archive(script: Script) -> None:
    judged(script)
    later(script)
    second = judged(script)
    assert archives(script) == [Path(second["evidence"]).name]


def test_a_dead_start_does_not_replace_what_was_seen_of_its_processes(script: Script) -> None:
    first = judged(script, state="hung")
    later(script)
    second = judged(script)
    later(script)
    third = judged(script)
    assert archives(script) == [Path(first["evidence"]).name, Path(third["evidence"]).name]
    assert second["evidence"] != third["evidence"]


def test_leftovers_of_a_killed_wait_go(script: Script) -> None:
    judged(script)
    (folder(script) / ".half.tar.gz.99999999.new").write_text("half")
    (folder(script) / "mine.txt").write_text("stays")
    later(script)
    judged(script)
    assert [name for name in archives(script) if not name.endswith(".tar.gz")] == ["mine.txt"]


def test_another_wait_that_does_not_end_is_told(script: Script) -> None:
    judged(script)
    before = archives(script)
    later(script)
    with open(folder(script) / ".lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = judged(script)
    assert "another wait is keeping evidence" in result["notices"][0]
    assert archives(script) == before
    assert script.now <= 1000.0 + 2 * _evidence.BUDGET_S + 1


class FullDisk:
    """Fails as the given call of `os` is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        def fail(*_arguments: t.Any, **_named: t.Any) -> t.Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_no_half_archive(script: Script, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    first = judged(script)
    later(script)
    with monkeypatch.context() as patch:
        FullDisk(patch, call)
        result = judged(script)
    assert archives(script) == [Path(first["evidence"]).name]
    assert "evidence" not in result
    assert result["msg"] == verdict()["msg"]
    assert "was not kept" in result["notices"][0]
    assert "No space left on device" in result["notices"][0]


def test_a_folder_of_somebody_else_is_not_used(script: Script) -> None:
    (script.root / "state" / "evidence").mkdir(parents=True)
    (script.root / "elsewhere").mkdir()
    folder(script).symlink_to(script.root / "elsewhere")
    result = judged(script)
    assert "is no folder of user id" in result["notices"][0]
    assert list((script.root / "elsewhere").iterdir()) == []


def test_a_bug_costs_no_verdict(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: t.Any, **_named: t.Any) -> t.Any:
        raise KeyError("some bug")

    monkeypatch.setattr(script, "run_all", broken)
    result = judged(script)
    assert (result["state"], "evidence" in result) == ("crashed", False)
    assert "KeyError: 'some bug'" in result["notices"][0]


def test_a_file_that_does_not_answer_holds_nobody_up(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a mount whose server is gone; what is there already is not waited for either."""
    answer = threading.Event()
    monkeypatch.setattr(_evidence, "BUDGET_S", 0.1)
    monkeypatch.setattr(_evidence, "WRITING_S", 0.1)
    monkeypatch.setattr(glob, "glob", lambda _pattern: answer.wait(20) and [])
    result = judged(script)
    answer.set()
    assert "evidence" not in result
    assert "something that is read does not answer" in result["notices"][0]
    assert result["state"] == "crashed"


def test_a_pipe_is_neither_waited_for_nor_emptied(script: Script) -> None:
    pipe = script.root / "keys.yaml"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(held, b"api-key: for the server")
        script.outputs["properties"] = Output(PROPERTIES.replace("--port 1", f"--config {pipe}"))
        result = judged(script)
        assert f"{pipe}: no plain file" in files(result)["index.txt"]
        assert os.read(held, 100) == b"api-key: for the server"
    finally:
        os.close(held)


def test_systemd_and_the_journal_may_fail(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_unit: str) -> UnitState:
        raise SystemdError("no bus")

    monkeypatch.setattr(script, "show", broken)
    script.journal_error = OSError("no permission to read the journal")
    found = files(judged(script))
    assert "no bus" in found["index.txt"]
    assert "no permission to read the journal" in found["index.txt"]
    assert found["journal.txt"] == ""


LONG = 40_000


def test_of_a_long_journal_head_and_tail_stay(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_evidence_collector, "_HEAD_BYTES", 400_000)
    monkeypatch.setattr(_evidence_collector, "_TAIL_BYTES", 800_000)
    script.entries = [entry(number, f"line {number} of a server that talks without end") for number in range(LONG)]
    lines = files(judged(script))["journal.txt"].splitlines()
    assert lines[0].endswith("line 0 of a server that talks without end")
    assert lines[-1].endswith(f"line {LONG - 1} of a server that talks without end")
    gap = lines.index("[... lines are left out here ...]")
    numbers = [int(line.split("line ")[1].split()[0]) for line in lines[:gap]]
    assert numbers == list(range(len(numbers)))
    numbers = [int(line.split("line ")[1].split()[0]) for line in lines[gap + 1 :]]
    assert numbers == list(range(LONG - len(numbers), LONG))
    assert 1_000_000 < sum(map(len, lines)) < 2_000_000


def test_of_a_journal_a_little_too_long_nothing_is_lost_and_nothing_twice(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_evidence_collector, "_HEAD_BYTES", 400_000)
    script.entries = [entry(number, f"line {number} of a server that talks a lot") for number in range(8000)]
    lines = files(judged(script))["journal.txt"].splitlines()
    assert [int(line.split("line ")[1].split()[0]) for line in lines] == list(range(8000))


def test_a_slow_journal_is_cut_in_time(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.entries = [entry(number, f"line {number}") for number in range(LONG)]
    real = script.journal

    def slow(*arguments: t.Any) -> t.Iterator[list[Entry]]:
        for part in real(*arguments):
            script.now += 1.0
            yield part

    monkeypatch.setattr(script, "journal", slow)
    lines = files(judged(script))["journal.txt"].splitlines()
    assert script.now - 1000.0 < _evidence.BUDGET_S
    assert lines[0].endswith("line 0")
    assert lines[-1].endswith(f"line {LONG - 1}")


def test_commands_get_no_more_time_than_there_is(script: Script) -> None:
    judged(script)
    assert script.timeout == 6.0
    assert script.commands["unit"] == ["systemctl", "cat", "--no-pager", "--", UNIT]


# --- processes ----------------------------------------------------------------------------------------------------------------


def process(root: Path, pid: int, *, cmdline: str, state: str = "S", wchan: str = "futex_wait", cpu: int = 100) -> None:
    base = root / "proc" / str(pid)
    task = base / "task" / str(pid)
    task.mkdir(parents=True)
    stat = f"{pid} (python3) {state} 1 " + " ".join(["0"] * 9) + f" {cpu} 50 0 0 20 0 3 0 4242 " + " ".join(["0"] * 30)
    for path in (base, task):
        (path / "stat").write_text(stat)
        (path / "wchan").write_text(wchan)
        (path / "stack").write_text(f"[<0>] {wchan}+0x1/0x2\n")
    (base / "cmdline").write_bytes(cmdline.replace(" ", "\0").encode())
    (base / "status").write_text("Name:\tpython3\nVmRSS:\t  2048 kB\nThreads:\t3\n")
    (base / "environ").write_bytes(b"PATH=/usr/bin\0MY_TOKEN=planted in a process\0")
    (base / "cgroup").write_text(f"0::/system.slice/{UNIT}\n")


@pytest.fixture
def running(script: Script) -> Script:
    group = script.root / "cgroup" / "system.slice" / UNIT
    group.mkdir(parents=True)
    (script.root / "cgroup" / "cgroup.controllers").write_text("")
    (group / "cgroup.procs").write_text("41\n42\n")
    process(script.root, 41, cmdline="python -m sglang.launch_server --api-key planted-in-argv")
    process(script.root, 42, cmdline="sglang::scheduler_TP0", state="D", wchan="nv_wait")
    script.state = UnitState(
        id=UNIT, load_state="loaded", invocation_id=INVOCATION, main_pid=41, control_group=f"/system.slice/{UNIT}"
    )
    return script


def test_processes_are_described(running: Script) -> None:
    running.entries.append(entry(3, "a traceback with 'planted in a process' and planted-in-argv"))
    found = files(judged(running, state="hung"))
    rows = [line.split() for line in found["processes.txt"].splitlines() if line[:1].isdigit()]
    assert [(row[0], row[2], row[3], row[4], row[5]) for row in rows] == [
        ("41", "main", "S", "futex_wait", "1.50"),
        ("42", "scheduler", "D", "nv_wait", "1.50"),
    ]
    assert "[<0>] nv_wait+0x1/0x2" in found["processes/42-scheduler.txt"]
    assert "MY_TOKEN=********" in found["environment.txt"]
    assert found["arguments.txt"].splitlines()[-2:] == ["--api-key", "********"]
    assert "planted" not in json.dumps(found)


def test_python_stacks_of_the_engine_where_py_spy_is(running: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name, **_path: "/opt/py-spy")
    running.outputs["py-spy 42"] = Output("Thread 42: MainThread\n    event_loop (scheduler.py:1)\n")
    found = files(judged(running, state="hung"))
    assert running.commands["py-spy 42"] == ["/opt/py-spy", "dump", "--nonblocking", "--pid", "42"]
    assert "event_loop (scheduler.py:1)" in found["processes/42-scheduler.txt"]


def test_a_process_that_cannot_be_read_holds_nobody_up(running: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: t.Any, **_named: t.Any) -> t.Any:
        raise RuntimeError("torn")

    monkeypatch.setattr(_evidence_processes, "read_process", broken)
    assert "RuntimeError: torn" in files(judged(running, state="hung"))["processes.txt"]


def test_what_is_reached_twice_is_listed_once(script: Script) -> None:
    """In a virtual environment lib64 is a link to lib, and several folders lie on one file system."""
    packages = script.root / "engine" / "lib" / "python3.11" / "site-packages"
    (packages / "sglang-0.5.23.dist-info").mkdir(parents=True)
    (script.root / "engine" / "lib64").symlink_to("lib")
    program = script.root / "engine" / "bin" / "python"
    script.outputs["properties"] = Output(
        f"ExecStart={{ path={program} ; argv[]={program} -m sglang ; ignore_errors=no ;"
    )
    head, root = "Filesystem Type Size Used Avail Use% Mounted on", "/dev/vda1 ext4 50G 20G 30G 40% /"
    script.outputs["disks"] = Output(f"{head}\n{root}\n{root}\ntmpfs tmpfs 1G 0 1G 0% /dev/shm\n{root}\n")
    found = files(judged(script))
    assert found["releases.txt"].count("sglang-0.5.23") == 1
    assert found["disks.txt"].splitlines()[:4] == [head, root, "tmpfs tmpfs 1G 0 1G 0% /dev/shm", ""]


# --- secrets in files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        pytest.param("HF_TOKEN=planted bare", "planted bare", id="bare"),
        pytest.param('HF_TOKEN="planted \\"double\\" $x"', 'planted "double" $x', id="double quotes"),
        pytest.param("HF_TOKEN='planted single'", "planted single", id="single quotes"),
        pytest.param('HF_TOKEN="planted\ntwo lines"', "planted\ntwo lines", id="two lines"),
        pytest.param("HF_TOKEN=planted\\ escaped", "planted escaped", id="escaped"),
    ],
)
def test_environment_files_are_known(script: Script, text: str, secret: str) -> None:
    path = script.root / "x.env"
    path.write_text(f"# comment\nTOKENIZERS_PARALLELISM=false\n{text}\nPLAIN=visible\n")
    script.outputs["properties"] = Output(f"EnvironmentFiles={path} (ignore_errors=no)\n")
    script.entries = [entry(1, f"got {secret} here")]
    found = files(judged(script, log_tail=[f"got {secret}"]))
    assert "planted" not in json.dumps(found)
    assert "TOKENIZERS_PARALLELISM=false" in found["environment.txt"]
    assert "PLAIN=visible" in found["environment.txt"]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        pytest.param('api-key: "planted: \\"key\\""\n', 'planted: "key"', id="json"),
        pytest.param("api-key: 'planted: ''key'''\n", "planted: 'key'", id="yaml"),
        pytest.param("admin-api-key: planted#key\n", "planted#key", id="bare"),
        pytest.param("planted key as it is\n", "planted key as it is", id="no yaml"),
    ],
)
def test_credentials_are_known(script: Script, text: str, secret: str) -> None:
    path = script.root / "k.yaml"
    path.write_text(text)
    script.outputs["unit"] = Output(f"[Service]\nLoadCredential=k.yaml:{path}\n")
    script.entries = [entry(1, text.strip()), entry(2, f"got {secret} here")]
    found = files(judged(script))
    assert "got ******** here" in found["journal.txt"]
    assert "planted" not in found["journal.txt"]
