# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of known failures, every row by lines as they are printed, and what wins when several fit."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._diagnosis import (
    Diagnosis,
    diagnose,
    log_warnings,
    segments,
)
from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry, clean
from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import KernelLine
from ansible_collections.specdec.serving.plugins.module_utils._signatures import SIGNATURES, WARNING, look_up
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import StartupLog
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "support" / "stand_in" / "src"))
from sglang.stand_in import faults

SGLANG = Path(__file__).parents[2] / "fixtures" / "sglang-0.5.23"
SITE = "/opt/specdec/engines/0.5.23-0123456789ab/lib/python3.11/site-packages"
STAMP = "[2026-11-29 14:24:24]"
S = 1_000_000
KILLED = UnitState(
    load_state="loaded",
    active_state="failed",
    result="signal",
    exec_main_code=2,
    exec_main_status=9,
    control_group="/system.slice/sglang-x.service",
)


def ended(code: int, status: int, result: str = "exit-code") -> UnitState:
    return UnitState(
        load_state="loaded", active_state="failed", result=result, exec_main_code=code, exec_main_status=status
    )


def log_of(*lines: Any, own: bool = True) -> StartupLog:
    """A log of (seconds, pid, text) or of texts a millisecond apart, written by pid 40."""
    log = StartupLog()
    for number, line in enumerate(lines):
        at, pid, text = (number / 1000, 40, line) if isinstance(line, str) else line
        log.feed(Entry("", 0, round(at * S), pid, clean(text), "", "", None, "", 0, "", own))
    return log


def crash(exception: str, *frames: tuple[str, str], rank: str = " TP0 EP0") -> list[str]:
    """What a scheduler prints when it gives up; a frame is (file below site-packages, function)."""
    head = f"{STAMP[:-1]}{rank}] Scheduler hit an exception: Traceback (most recent call last):"
    body = [f'  File "{SITE}/{file}", line 7, in {function}' for file, function in frames]
    return [head, *[line for frame in body for line in (frame, "    self.run()")], *exception.split("\n")]


LOADER = ("sglang/srt/model_loader/loader.py", "load_model")
WORKER = ("sglang/srt/speculative/dflash_worker.py", "forward_batch_generation")
REPLAY = ("sglang/srt/model_executor/cuda_graph_runner.py", "replay")
NONE = "TypeError: 'NoneType' object is not subscriptable"


def catalogue() -> dict[str, list[Any]]:
    """Row -> what the faults of the stand-in print: the same lines that its servers print under a real systemd."""
    found: dict[str, list[Any]] = {}
    for entry in faults.catalogue().values():
        lines = faults.printed(entry, stamp=f"{STAMP[:-1]} TP0 EP0]", pid=40)
        # Lines of the kernel are none of the server's.
        if lines and "id" in entry["expected"] and "needs" not in entry:
            found.setdefault(entry["expected"]["id"], []).append(lines)
    return found


#: Row -> starts that it has to name: lines of SGLang, or an end of the unit.
SAMPLES: dict[str, list[Any]] = {
    **catalogue(),
    "F1": [
        ["sglang serve: error: unrecognized arguments: --no-such-flag"],
        [
            "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --x",
        ],
        ["sglang serve: error: argument --attention-backend: invalid choice: 'fa9' (choose from 'triton')"],
    ],
    "F9": [
        [
            f"{STAMP} Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 1"
        ]
    ],
    "F10": [
        [
            f"{STAMP} ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30001): address already in use",
            f"{STAMP} The server is fired up and ready to roll!",
        ]
    ],
    "F10-name": [[f"{STAMP} ERROR:    [Errno -2] Name or service not known"]],
    "F35": [
        [
            f"{STAMP} Initialization failed. warmup error: Traceback (most recent call last):",
            "AssertionError: res=<Response [500]>",
        ]
    ],
    "F36": [
        [
            "Traceback (most recent call last):",
            "RuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common",
        ]
    ],
    "F36-older": [[f"{STAMP} Exit code: -9"]],
    "X1": [
        [
            "Traceback (most recent call last):",
            "ValueError: DFLASH speculative decoding is not supported by P on device 'cpu'.",
        ]
    ],
    "X9": [[f"{STAMP} Subprocess scheduler_3 (pid=91) crashed with exit code -6. Triggering SIGQUIT for cleanup..."]],
    "X9-older": [[f"{STAMP} Child process unexpectedly failed with an exit code 9. pid=91"]],
    "E1": [
        [f"{STAMP} Received sigquit from a child proces. It usually means the child failed."],
        [f"{STAMP} Received sigquit from a child process. It usually means the child failed."],
        [f"{STAMP} SIGQUIT received. signum=3, frame=None. It usually means one child failed."],
    ],
    "E2": [
        [
            "Traceback (most recent call last):",
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1).",
        ],
        [f"{STAMP} Rank 0 scheduler is dead. Please check if there are relevant logs."],
    ],
    **{row.id: [ended(1, int(row.id[2:]))] for row in SIGNATURES if row.cause == "exec_failed"},
    "SD-oom-kill": [ended(2, 9, "oom-kill")],
    "SD-start-limit": [ended(0, 0, "start-limit-hit")],
    "SD-exec-condition": [ended(0, 0, "exec-condition")],
    "SD-timeout": [ended(2, 15, "timeout")],
    "SD-watchdog": [ended(2, 6, "watchdog")],
    "SD-protocol": [ended(0, 0, "protocol")],
    "SD-resources": [ended(0, 0, "resources")],
    **{
        f"SIG{name}": [ended(2, number, "signal"), ended(3, number, "core-dump")]
        for name, number in (
            ("QUIT", 3),
            ("ILL", 4),
            ("ABRT", 6),
            ("BUS", 7),
            ("FPE", 8),
            ("KILL", 9),
            ("SEGV", 11),
            ("TERM", 15),
        )
    },
}
#: Warnings and states that have tests of their own below.
ELSEWHERE = {"F30", "F37", "W1", "W2", "SD-condition", "SD-dependency", "SD-environment", "SD-start-limit-hit"}
_NAMED = [(id_, sample, f"{id_}-{n}") for id_, samples in SAMPLES.items() for n, sample in enumerate(samples)]
_LOGGED = [item for item in _NAMED if isinstance(item[1], list)]
CASES = [pytest.param(id_, sample, id=name) for id_, sample, name in _NAMED]
LOGGED = [pytest.param(id_, sample, id=name) for id_, sample, name in _LOGGED]
#: Those that one rank prints, and that explain more than that another rank failed: the parent's own tracebacks come when
#: there are no ranks yet, or no more.
FIRST = [
    pytest.param(id_, sample, id=name)
    for id_, sample, name in _LOGGED
    if id_ not in ("E1", "E2", "E3", "X9", "X9-older", "F36", "F36-older", "F7", "F9", "F35")
    and ("hit an exception" in sample[0] or "Traceback" not in sample[0])
]
# What the other ranks print when one has failed.
ECHOES = (
    "torch.distributed.DistBackendError: NCCL error in: x.hpp:94, remote process exited or there was a network error",
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:53124",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "KeyError: 'hidden_states'",
)


def test_every_row_has_a_test() -> None:
    ids = [row.id for row in SIGNATURES]
    assert len(ids) == len(set(ids))
    assert set(SAMPLES) | ELSEWHERE == set(ids)
    assert {f"F{number}" for number in range(1, 38)} | {"W1", "W2"} <= set(ids)


@pytest.mark.parametrize(("id_", "sample"), CASES)
def test_each_row_is_found(id_: str, sample: Any) -> None:
    found = (
        diagnose(log=log_of(*sample), unit=KILLED) if isinstance(sample, list) else diagnose(log=log_of(), unit=sample)
    )
    row = next(row for row in SIGNATURES if row.id == id_)
    assert (found.id, found.cause, found.source) == (id_, row.cause, row.source)
    assert found.remedy
    assert "{" not in found.remedy + row.summary.format_map(
        dict.fromkeys(("problem", "value", "seconds", "name", "number", "code"), "")
    )


@pytest.mark.parametrize(("id_", "sample"), FIRST)
def test_the_first_cause_wins_over_its_echoes_on_seven_other_ranks(id_: str, sample: list[str], seed: str) -> None:
    choose = random.Random(seed)
    lines: list[Any] = [(1 + number / 1000, 103, text) for number, text in enumerate(sample)]
    for rank in (0, 1, 2, 4, 5, 6, 7):
        echo = crash(
            choose.choice(ECHOES), ("sglang/srt/managers/scheduler.py", "run_batch"), rank=f" TP{rank} EP{rank}"
        )
        lines += [(1.5 + rank / 100 + number / 1000, 100 + rank, text) for number, text in enumerate(echo)]
    lines += [
        (2.0, 40, f"{STAMP} Received sigquit from a child process. It usually means the child failed."),
        (2.1, 40, f"{STAMP} kill_process_tree called: parent_pid=40, include_parent=True, pid=40"),
    ]
    # The journal keeps the order of each process; between processes the lines mix.
    lines.sort(key=lambda line: line[0])
    found = diagnose(log=log_of(*lines), unit=KILLED)
    assert found.id == id_
    assert found.evidence


@pytest.mark.parametrize(("id_", "sample"), LOGGED)
def test_colours_and_slices_change_nothing(id_: str, sample: list[str]) -> None:
    log = StartupLog.load(json.loads(json.dumps(log_of(*[f"\x1b[1m\x1b[31m{line}\x1b[0m" for line in sample]).dump())))
    assert diagnose(log=log, unit=KILLED).id == id_


def test_mixed_lines_of_two_tracebacks_keep_their_ranks() -> None:
    first = [(1 + n / 100, 103, line) for n, line in enumerate(crash(NONE, WORKER, REPLAY, rank=" TP3 EP3"))]
    second = [(1.005 + n / 100, 105, line) for n, line in enumerate(crash("KeyError: 'x'", LOADER, rank=" TP5 EP5"))]
    found = diagnose(log=log_of(*sorted(first + second)), unit=KILLED)
    assert (found.id, found.rank) == ("S1", "TP3 EP3")
    assert "on TP3 EP3" in found.summary


# --- the story's crash: the frames tell


@pytest.mark.parametrize(
    ("frames", "exception"),
    [
        pytest.param((WORKER, LOADER), NONE, id="no graph frame"),
        pytest.param((WORKER, REPLAY), "KeyError: 'NoneType'", id="another exception"),
        pytest.param((LOADER,), NONE, id="neither"),
    ],
)
def test_a_nonetype_elsewhere_is_not_the_graphs(frames: tuple[tuple[str, str], ...], exception: str) -> None:
    found = diagnose(log=log_of(*crash(exception, *frames)), unit=KILLED)
    assert (found.id, found.cause) == ("", "exception")


def test_frames_of_another_exception_of_the_chain_do_not_count() -> None:
    lines = crash(
        "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f'Traceback (most recent call last):\n  File "{SITE}/sglang/srt/managers/scheduler.py", line 1, in stop\n    x\n{NONE}',
        WORKER,
        REPLAY,
    )
    assert diagnose(log=log_of(*lines), unit=KILLED).id == ""


@pytest.mark.parametrize(
    ("release", "flag"),
    [
        ("0.5.11", "--disable-cuda-graph"),
        ("0.5.15", "--disable-cuda-graph"),
        ("0.5.23", "--cuda-graph-backend-decode disabled"),
    ],
)
def test_the_remedy_speaks_the_installed_release(release: str, flag: str) -> None:
    found = diagnose(log=log_of(*crash(NONE, WORKER, REPLAY)), unit=KILLED, release=release)
    assert flag in found.remedy


@pytest.mark.parametrize(
    ("arguments", "set_already"),
    [
        ({}, False),
        ({"disable_cuda_graph": False, "cuda_graph_backend_prefill": "disabled"}, False),
        ({"disable_cuda_graph": True}, True),  # as a playbook has it
        ({"disable_cuda_graph": "true"}, True),
        ({"cuda_graph_backend_decode": "disabled"}, True),
    ],
)
def test_no_remedy_advises_what_is_set_already(arguments: dict[str, Any], set_already: bool) -> None:
    found = diagnose(log=log_of(*crash(NONE, WORKER, REPLAY)), unit=KILLED, arguments=arguments)
    assert ("--cuda-graph-backend-decode disabled" in found.remedy) is not set_already
    assert ("off already by the arguments" in found.remedy) is set_already


@pytest.mark.parametrize("row", [row for row in SIGNATURES if "graph_off}" in row.remedy], ids=lambda row: row.id)
def test_every_remedy_that_turns_graphs_off_has_another_one(row: Any) -> None:
    assert row.otherwise
    assert "graph_off}" not in row.otherwise


# --- what outranks what


def kernel(*lines: tuple[float, str]) -> list[KernelLine]:
    return [KernelLine(round(at * S), text) for at, text in lines]


def test_a_gpu_that_fell_off_the_bus_outranks_the_python_that_met_it() -> None:
    lines = [
        (5.0 + n / 1000, 103, line) for n, line in enumerate(crash("torch.AcceleratorError: CUDA error: unknown error"))
    ]
    found = diagnose(
        log=log_of(*lines),
        unit=KILLED,
        kernel=kernel(
            (4.0, "NVRM: Xid (PCI:0000:41:00): 45, pid=103, name=sglang::schedul, Ch 00000008"),
            (4.8, "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
            (
                4.9,
                "NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            ),
        ),
        gpus={"0000:41:00": "/dev/nvidia3"},
    )
    assert (found.id, found.cause, found.severity) == ("XID79", "gpu_fault", "critical")
    assert "GPU 0000:41:00 /dev/nvidia3" in found.summary
    assert "CUDA error" in " ".join(found.evidence)
    assert any("Xid 154" in warning for warning in found.warnings)


def test_a_fault_that_came_after_the_crash_is_not_its_cause() -> None:
    lines = [(5.0, 103, line) for line in crash(NONE, WORKER, REPLAY)]
    late = kernel((60.0, "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."))
    assert diagnose(log=log_of(*lines), unit=KILLED, kernel=late).id == "S1"


def test_a_kernel_fault_without_any_python_is_the_cause() -> None:
    oom = kernel((9.0, "Out of memory: Killed process 103 (sglang::schedul) total-vm:1kB, anon-rss:1kB"))
    log = log_of(
        (1.0, 103, f"{STAMP} Load weight begin. avail mem=21.60 GB"), *[(9.1, 40, line) for line in SAMPLES["E1"][0]]
    )
    found = diagnose(log=log, unit=KILLED, kernel=oom)
    assert (found.id, found.cause) == ("OOM", "host_out_of_memory")


def test_neither_a_notice_nor_another_programs_fault_outranks_python() -> None:
    log = log_of(*crash(NONE, WORKER, REPLAY))
    lines = kernel(
        (0.0, "NVRM: Xid (PCI:0000:41:00): 63, pid=0, Row Remapper: New row marked for remapping"),
        (0.0, "NVRM: Xid (PCI:0000:41:00): 31, pid=77, name=other, MMU Fault"),
        (0.0, "Out of memory: Killed process 5 (chrome) total-vm:9kB"),
    )
    found = diagnose(log=log, unit=KILLED, kernel=lines)
    assert found.id == "S1"
    assert len(found.warnings) == 3


def test_refused_arguments_are_not_blamed_on_a_gpu() -> None:
    log = log_of(*SAMPLES["F1"][0])
    fault = kernel((0.0, "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."))
    found = diagnose(log=log, unit=ended(1, 2), kernel=fault)
    assert (found.id, found.cause) == ("F1", "argument_error")
    assert found.summary.count("--no-such-flag") == 1


def test_the_oom_killer_is_told_in_detail_where_the_kernel_says_more() -> None:
    oom = kernel((1.0, "Memory cgroup out of memory: Killed process 103 (python) total-vm:1kB"))
    log = log_of((0.5, 103, f"{STAMP} x"))
    assert "pid 103" in diagnose(log=log, unit=ended(2, 9, "oom-kill"), kernel=oom).summary


def test_an_unknown_failure_gives_its_exception_and_the_frame_that_matters() -> None:
    lines = crash(
        "KeyError: 'a'",
        ("sglang/srt/managers/scheduler.py", "run_batch"),
        ("sglang/srt/layers/moe.py", "forward"),
        ("torch/nn/modules/module.py", "_call_impl"),
        rank=" TP2",
    )
    found = diagnose(log=log_of(*lines), unit=KILLED)
    assert (found.id, found.cause, found.rank) == ("", "exception", "TP2")
    assert "KeyError: 'a'" in found.summary
    assert f"at {SITE}/sglang/srt/layers/moe.py:7 in forward" in found.summary
    assert any("moe.py" in line for line in found.evidence)


def test_a_traceback_that_was_survived_gives_way_to_the_schedulers() -> None:
    survived = ["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'torchaudio'"]
    log = log_of(*survived, f"{STAMP} Load weight begin. avail mem=21.60 GB", *crash(NONE, WORKER, REPLAY))
    assert diagnose(log=log, unit=KILLED).id == "S1"


def test_nothing_but_an_end() -> None:
    found = diagnose(log=log_of(f"{STAMP} Load weight begin. avail mem=21.60 GB"), unit=ended(1, 1))
    assert found == Diagnosis("", "", "", "", "error", "", "", (), ())


@pytest.mark.parametrize(
    "line",
    [
        f"{STAMP} Receive: obj=GenerateReqInfo(text='CUDA out of memory. Tried to allocate')",
        f"{STAMP} server_args=ServerArgs(model_path='CUDA error: an illegal memory access was encountered')",
        f"{STAMP} Ignore import error when loading sglang.srt.models.x: No module named 'torchaudio'",
        f"{STAMP} Multi-thread loading with ninja",
        "clang: error: unsupported option",
    ],
)
def test_what_only_quotes_a_failure_is_none(line: str) -> None:
    assert diagnose(log=log_of(line), unit=ended(1, 1)).id == ""


# --- warnings, stand still, systemd's lines


def test_warnings_are_listed_apart_and_explain_no_failure() -> None:
    w1 = f"{STAMP} CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs."
    w2 = f"{STAMP[:-1]} TP0] Disable DFLASH draft cuda graph because the draft attention backend does not support it"
    f37 = f"{STAMP} kill_process_tree: 2 process(es) not reaped within 30 s"
    log = log_of(w1, w2, w2.replace("TP0", "TP1"), f37)
    found = diagnose(log=log, unit=ended(1, 1))
    assert (found.id, found.cause, len(found.warnings)) == ("", "", 3)
    assert [text[:20] for text in log_warnings(log, severities=("warning",))] == [
        "the DFlash draft run",
        "processes of the ser",
    ]
    assert {row.id for row in SIGNATURES if row.level == WARNING} == {"F37", "W1", "W2"}


def test_a_start_that_stands_still_where_the_ranks_connect() -> None:
    lines = [f"{STAMP} a", f"{STAMP[:-1]} TP1] Init parallel begin."]
    assert diagnose(log=log_of(*lines), unit=UnitState(), ended=False).id == "F30"
    assert diagnose(log=log_of(*lines, f"{STAMP} Load weight begin."), unit=UnitState(), ended=False).id == ""
    log = StartupLog.load(json.loads(json.dumps(log_of(*lines).dump())))
    assert diagnose(log=log, unit=UnitState(), ended=False).id == "F30"


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        (
            "sglang-x.service - SGLang x was skipped because of an unmet condition check (ConditionPathExists=/x).",
            "SD-condition",
        ),
        ("Condition check resulted in SGLang x being skipped.", "SD-condition"),
        ("Assertion failed for SGLang x.", "SD-condition"),
        ("Dependency failed for SGLang x.", "SD-dependency"),
        ("sglang-x.service: Failed to load environment files: No such file or directory", "SD-environment"),
        ("sglang-x.service: Start request repeated too quickly.", "SD-start-limit-hit"),
    ],
)
def test_what_systemd_says_of_a_start_that_it_refused(line: str, id_: str) -> None:
    assert diagnose(log=log_of(line, own=False), unit=UnitState()).id == id_
    # The same words in the server's own log are no word of systemd.
    assert diagnose(log=log_of(f"{STAMP} {line}"), unit=UnitState()).id == ""


# --- recorded


@pytest.mark.parametrize(
    ("name", "unit", "id_", "part"),
    [
        ("fail-dflash-on-cpu-rc1.log", ended(1, 1), "X1", "CpuSRTPlatform"),
        ("fail-model-path-missing-rc1.log", ended(1, 1), "F13", "/models/nope"),
        ("fail-port-held-by-foreign-server-hangs.log", KILLED, "F10", "30001"),
        ("fail-port-held-by-other-sglang.log", ended(1, 3), "F10", "30001"),
        ("fail-unknown-flag-rc2.log", ended(1, 2), "F1", "--no-such-flag"),
    ],
)
def test_recorded_failures(name: str, unit: UnitState, id_: str, part: str) -> None:
    found = diagnose(log=log_of(*(SGLANG / name).read_text(encoding="utf-8").split("\n")), unit=unit)
    assert found.id == id_
    assert part in found.summary


@pytest.mark.parametrize("path", sorted(SGLANG.glob("startup-*.log")), ids=lambda path: path.name)
def test_recorded_starts_that_went_well_show_nothing(path: Path) -> None:
    log = log_of(*path.read_text(encoding="utf-8").split("\n"))
    assert [clue.id for clue in log.clues] == []
    assert diagnose(log=log, unit=UnitState(), ended=False).id == ""


# --- any text, bounded


def test_memory_is_bounded_and_rare_rows_find_room() -> None:
    noisy = f"{STAMP} Received sigquit from a child process. It usually means the child failed."
    log = log_of(*[noisy + "x" * 5000] * 500, *SAMPLES["F10"][0])
    assert len(log.clues) <= 64
    assert max(len(clue.text) for clue in log.clues) <= 600
    assert diagnose(log=log, unit=KILLED).id == "F10"


TEXTS = [line for samples in SAMPLES.values() for sample in samples if isinstance(sample, list) for line in sample]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.text(max_size=40) | st.sampled_from(TEXTS) | st.sampled_from(TEXTS).map(lambda text: text[::2]),
        ),
        max_size=20,
    ),
    st.integers(-1, 4),
    st.integers(0, 300),
    st.text(max_size=12),
    st.booleans(),
)
def test_nothing_raises(lines: list[tuple[int, str]], code: int, status: int, word: str, over: bool) -> None:
    log = log_of(*[(n / 10, pid, text) for n, (pid, text) in enumerate(lines)])
    found = diagnose(
        log=log,
        unit=ended(code, status, word),
        kernel=[KernelLine(0, text) for _pid, text in lines],
        release=word,
        ended=over,
    )
    assert isinstance(found, Diagnosis)
    segments(text for _pid, text in lines)


@given(st.text(), st.sampled_from(["log", "exception", "manager", "last", "exit"]))
def test_a_row_fits_no_line_without_its_needle(text: str, place: str) -> None:
    look_up(text, place)
    for row in SIGNATURES:
        if row.pattern.search(text):
            assert any(needle in text for needle in row.needles)


def test_needles_do_not_hide_what_a_pattern_takes() -> None:
    for line in TEXTS:
        for row in SIGNATURES:
            if row.pattern.search(line):
                assert any(needle in line for needle in row.needles), (row.id, line)
