# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes and control groups, from trees that look like /proc and /sys/fs/cgroup."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _processes
from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    ExitWatch,
    Process,
    Usage,
    all_pids,
    boot_id,
    cgroup_id,
    cgroup_ids,
    cgroup_pids,
    cgroup_v2_root,
    environ_of,
    is_frozen,
    process_alive,
    rank_of,
    read_process,
    read_usage,
    role_of,
    unit_of_cgroup,
    unit_of_pid,
    wait_channel,
)

# /proc/PID/stat of a real process, with the name, state, parent and start time to fill in.
_STAT = (
    "{pid} ({comm}) {state} {ppid} 20470 20470 0 -1 4194304 1712 0 0 0 12 3 0 0 20 0 1 0 {start} 26365952 4020 "
    "18446744073709551615 1 1 0 0 0 0 0 16781312 134234626 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


def add_process(
    proc: Path,
    pid: int,
    *,
    comm: str = "python",
    state: str = "S",
    ppid: int = 1,
    start: int = 78099,
    cmdline: bytes = b"",
    cgroup: str = "",
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(_STAT.format(pid=pid, comm=comm, state=state, ppid=ppid, start=start))
    (folder / "cmdline").write_bytes(cmdline)
    if cgroup:
        (folder / "cgroup").write_text(cgroup)


@pytest.mark.parametrize(
    "comm",
    ["python", "sglang::schedul", "a b", "(sd-pam)", "tricky) S 1 2", "x (y) z", ")", "(", "名前"],
)
def test_read_process_finds_the_end_of_the_name(tmp_path: Path, comm: str) -> None:
    add_process(tmp_path, 185, comm=comm, state="D", ppid=40, start=4711, cmdline=b"python\0-m\0x y\0")
    assert read_process(185, proc=str(tmp_path)) == Process(185, 40, "D", 4711, comm, ("python", "-m", "x y"))


@pytest.mark.parametrize(
    ("cmdline", "words"),
    [
        pytest.param(b"", (), id="kernel thread or zombie"),
        pytest.param(b"\0", (), id="emptied"),
        pytest.param(b"python\0", ("python",), id="one word"),
        pytest.param(b"a\0\0b\0", ("a", "", "b"), id="an empty argument"),
        pytest.param(b"sglang::scheduler_TP0" + b"\0" * 90, ("sglang::scheduler_TP0",), id="title padded with NUL"),
        pytest.param(b"a\xff\0", ("a\ufffd",), id="not UTF-8"),
    ],
)
def test_read_process_command_line(tmp_path: Path, cmdline: bytes, words: tuple[str, ...]) -> None:
    add_process(tmp_path, 7, cmdline=cmdline)
    process = read_process(7, proc=str(tmp_path))
    assert process is not None
    assert process.cmdline == words


@pytest.mark.parametrize("stat", ["", "7", "7 (x", "7 (x) S 1", "7 (x) S one 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5"])
def test_read_process_of_broken_text_is_none(tmp_path: Path, stat: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(stat)
    assert read_process(7, proc=str(tmp_path)) is None


def test_read_process_that_is_gone(tmp_path: Path) -> None:
    assert read_process(7, proc=str(tmp_path)) is None


@pytest.mark.parametrize(
    ("state", "start", "alive"),
    [
        pytest.param("S", 100, True, id="sleeping"),
        pytest.param("R", 100, True, id="running"),
        pytest.param("D", 100, True, id="waiting for a disk"),
        pytest.param("T", 100, True, id="stopped"),
        pytest.param("Z", 100, False, id="zombie"),
        pytest.param("X", 100, False, id="dead"),
        pytest.param("S", 101, False, id="the pid was reused"),
    ],
)
def test_process_alive(tmp_path: Path, state: str, start: int, alive: bool) -> None:
    add_process(tmp_path, 7, state=state, start=start)
    assert process_alive(7, 100, proc=str(tmp_path)) is alive
    assert process_alive(8, 100, proc=str(tmp_path)) is False


def test_all_pids_are_sorted_by_number(tmp_path: Path) -> None:
    for name in ("10", "9", "self", "100", "sys", "net"):
        (tmp_path / name).mkdir()
    assert all_pids(proc=str(tmp_path)) == [9, 10, 100]


def test_environ_of_gives_only_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(
        b"API_KEY=secret\0INVOCATION_ID=ab12\0JOURNAL_STREAM=8:1\0NONSENSE\0X=a=b\0"
    )
    assert environ_of(7, proc=str(tmp_path)) == {"INVOCATION_ID": "ab12", "JOURNAL_STREAM": "8:1"}
    assert environ_of(7, ["X"], proc=str(tmp_path)) == {"X": "a=b"}
    assert {"INVOCATION_ID", "JOURNAL_STREAM", "X"} < set(environ_of(7, None, proc=str(tmp_path)))
    with pytest.raises(FileNotFoundError):
        environ_of(8, proc=str(tmp_path))


def test_boot_id_has_the_journals_form(tmp_path: Path) -> None:
    folder = tmp_path / "sys" / "kernel" / "random"
    folder.mkdir(parents=True)
    (folder / "boot_id").write_text("d7e211da-6fd3-4ccb-9d23-231a6afee1a7\n")
    assert boot_id(proc=str(tmp_path)) == "d7e211da6fd34ccb9d23231a6afee1a7"


# --- control groups

_GROUP = "/system.slice/sglang-k26-dflash.service"


def add_group(root: Path, group: str, procs: str) -> Path:
    folder = root / group.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(procs)
    return folder


@pytest.mark.parametrize("layout", ["unified", "hybrid", "legacy"])
def test_cgroup_pids_recurse_in_every_layout(tmp_path: Path, layout: str) -> None:
    tree = {"unified": tmp_path, "hybrid": tmp_path / "unified", "legacy": tmp_path / "systemd"}[layout]
    tree.mkdir(exist_ok=True)
    if layout != "legacy":
        (tree / "cgroup.controllers").write_text("")
    add_group(tree, _GROUP, "40\n185\n")
    add_group(tree, _GROUP + "/workers/deep", "9\n185\n")
    add_group(tree, "/system.slice/other.service", "666\n")
    assert cgroup_pids(_GROUP, cgroup_root=str(tmp_path)) == [9, 40, 185]
    assert (cgroup_id(_GROUP, cgroup_root=str(tmp_path)) is None) is (layout == "legacy")


def test_hybrid_where_the_unit_is_only_in_systemds_own_hierarchy(tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("")
    add_group(tmp_path / "systemd", _GROUP, "40\n")
    assert cgroup_pids(_GROUP, cgroup_root=str(tmp_path)) == [40]
    assert cgroup_id(_GROUP, cgroup_root=str(tmp_path)) is None


@pytest.mark.parametrize("group", ["", "/", "//", "/../other.service", "/system.slice/gone.service"])
def test_no_group_is_no_process_and_no_id(tmp_path: Path, group: str) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    assert cgroup_pids(group, cgroup_root=str(tmp_path)) == []
    assert cgroup_id(group, cgroup_root=str(tmp_path)) is None
    assert cgroup_ids(group, cgroup_root=str(tmp_path)) == set()


def test_cgroup_ids_are_the_inodes_of_the_folder_and_all_below(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    top = add_group(tmp_path, _GROUP, "")
    below = add_group(tmp_path, _GROUP + "/a/b", "")
    add_group(tmp_path, "/system.slice/other.service", "")
    expected = {folder.stat().st_ino for folder in (top, below.parent, below)}
    assert cgroup_ids(_GROUP, cgroup_root=str(tmp_path)) == expected
    assert cgroup_id(_GROUP, cgroup_root=str(tmp_path)) == top.stat().st_ino


def test_processes_outside_our_pid_namespace_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    add_group(tmp_path, _GROUP, "0\n0\n12\n")
    assert cgroup_pids(_GROUP, cgroup_root=str(tmp_path)) == [12]


def test_a_group_that_vanishes_or_is_threaded_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    add_group(tmp_path, _GROUP, "12\n")
    for index, code in enumerate((errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)):
        add_group(tmp_path, f"{_GROUP}/{code}", f"{index + 90}\n")
    real = _processes._read_bytes

    def read(path: str) -> bytes:
        code = os.path.basename(os.path.dirname(path))
        if code.isdigit():
            raise OSError(int(code), "no")
        return real(path)

    monkeypatch.setattr(_processes, "_read_bytes", read)
    assert cgroup_pids(_GROUP, cgroup_root=str(tmp_path)) == [12]


def test_a_group_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    add_group(tmp_path, _GROUP, "12\n")

    def read(_path: str) -> bytes:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(_processes, "_read_bytes", read)
    with pytest.raises(PermissionError):
        cgroup_pids(_GROUP, cgroup_root=str(tmp_path))


def test_cgroup_v2_root(tmp_path: Path) -> None:
    assert cgroup_v2_root(cgroup_root=str(tmp_path)) is None
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("")
    assert cgroup_v2_root(cgroup_root=str(tmp_path)) == f"{tmp_path}/unified"
    (tmp_path / "cgroup.controllers").write_text("")
    assert cgroup_v2_root(cgroup_root=str(tmp_path)) == str(tmp_path)


# --- units

_PATHS = [
    pytest.param("/system.slice/sglang-k26-dflash.service", "sglang-k26-dflash.service", id="service"),
    pytest.param("/system.slice/system-sglang.slice/sglang@0.service", "sglang@0.service", id="instance in its slice"),
    pytest.param("/system.slice/a\\x2db.service", "a\\x2db.service", id="escaped unit name"),
    pytest.param("/system.slice/__x.service", "_x.service", id="escaped by systemd for the kernel"),
    pytest.param("/system.slice/_cgroup.service", "cgroup.service", id="name of a kernel file"),
    pytest.param("/system.slice/x.service/payload/y.service", "x.service", id="delegated below"),
    pytest.param("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", id="login session"),
    pytest.param(
        "/user.slice/user-0.slice/user@0.service/session-3.scope", "user@0.service/session-3.scope", id="user's scope"
    ),
    pytest.param(
        "/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service",
        "user@1000.service/sglang.service",
        id="user's service",
    ),
    pytest.param(
        "/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service/init.scope", id="user manager"
    ),
    pytest.param("/user.slice/user-1000.slice/user@1000.service", "user@1000.service", id="user manager itself"),
    pytest.param("/machine.slice/libpod-0a1b.scope/container", "libpod-0a1b.scope", id="podman's container"),
    pytest.param("/init.scope", "init.scope", id="PID 1"),
    pytest.param("/system.slice/old.service (deleted)", "old.service", id="deleted group"),
    pytest.param("/../../system.slice/x.service", "x.service", id="outside our namespace"),
    pytest.param("/docker/0a1b", None, id="no unit"),
    pytest.param("/system.slice", None, id="a slice only"),
    pytest.param("/", None, id="root"),
    pytest.param("", None, id="empty"),
]


@pytest.mark.parametrize(("path", "unit"), _PATHS)
def test_unit_of_cgroup(path: str, unit: str | None) -> None:
    assert unit_of_cgroup(path) == unit


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        pytest.param("0::/system.slice/x.service\n", "x.service", id="unified"),
        pytest.param(
            "9:name=systemd:/system.slice/x.service\n8:pids:/\n0::/system.slice/x.service\n", "x.service", id="hybrid"
        ),
        pytest.param(
            "4:memory:/m\n1:name=systemd:/user.slice/user-0.slice/session-3.scope\n", "session-3.scope", id="legacy"
        ),
        pytest.param("9:name=systemd:/\n4:memory:/process_api/d6f\n0::/\n", None, id="a container without systemd"),
        pytest.param("0::/system.slice/a:b.service\n", "a:b.service", id="a colon in the name"),
        pytest.param("garbage\n\n:::\n", None, id="nonsense"),
    ],
)
def test_unit_of_pid(tmp_path: Path, text: str, unit: str | None) -> None:
    add_process(tmp_path, 7, cgroup=text)
    assert unit_of_pid(7, proc=str(tmp_path)) == unit


def test_unit_of_a_process_that_is_gone(tmp_path: Path) -> None:
    assert unit_of_pid(7, proc=str(tmp_path)) is None


# --- roles


@pytest.mark.parametrize(
    ("comm", "cmdline", "role"),
    [
        pytest.param("sglang::schedul", ("sglang::scheduler_TP0_EP0",), "scheduler", id="scheduler"),
        pytest.param("sglang::schedul", (), "scheduler", id="scheduler, cut name only"),
        pytest.param("python", ("sglang::scheduler" + " " * 80,), "scheduler", id="scheduler by padded title"),
        pytest.param("sglang::detoken", ("sglang::detokenizer",), "detokenizer", id="detokenizer"),
        pytest.param("sglang::data_pa", ("sglang::data_parallel_controller",), "data_parallel_controller", id="DP"),
        pytest.param("sglang::tokeniz", ("sglang::tokenizer_worker:4242",), "tokenizer_worker", id="tokenizer worker"),
        pytest.param(
            "python",
            ("/e/bin/python", "-B", "-c", "from multiprocessing.resource_tracker import main;main(6)"),
            "resource_tracker",
            id="resource tracker",
        ),
        pytest.param(
            "python",
            ("/e/bin/python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6)"),
            "other",
            id="a child before it has its title",
        ),
        pytest.param("python", ("/e/bin/python", "-m", "sglang.launch_server", "--port", "1"), "main", id="main"),
        pytest.param("python", ("/e/bin/python", "-u", "-m", "sglang.launch_server"), "main", id="main with options"),
        pytest.param("sglang", ("/e/bin/python", "/e/bin/sglang", "serve", "--port", "1"), "main", id="sglang serve"),
        pytest.param("python", ("/e/bin/python", "-m", "sglang.bench_serving"), "other", id="benchmark client"),
        pytest.param("nvcc", ("nvcc", "--threads", "4"), "compiler", id="nvcc"),
        pytest.param("cicc", ("/usr/local/cuda/nvvm/bin/cicc",), "compiler", id="cicc"),
        pytest.param("ptxas", ("ptxas", "-v"), "compiler", id="ptxas"),
        pytest.param("ptxas-blackwell", ("/e/triton/ptxas-blackwell",), "compiler", id="triton's ptxas"),
        pytest.param("ninja", ("ninja", "-v"), "compiler", id="ninja"),
        pytest.param("python", ("/e/bin/python", "/e/bin/ninja", "-v"), "compiler", id="pip's ninja"),
        pytest.param("cc1plus", ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", "-quiet"), "compiler", id="cc1plus"),
        pytest.param("x86_64-linux-gn", ("x86_64-linux-gnu-g++-12", "-O3"), "compiler", id="gcc with a triple"),
        pytest.param("gcc", ("/usr/bin/gcc",), "compiler", id="gcc"),
        pytest.param(
            "python",
            (
                "/e/bin/python",
                "/e/lib/python3.11/site-packages/torch/_inductor/compile_worker/__main__.py",
                "--workers=8",
            ),
            "compiler",
            id="inductor",
        ),
        pytest.param("bash", ("bash",), "other", id="shell"),
        pytest.param("class", ("class",), "other", id="ends like a compiler"),
        pytest.param("kworker/0:1", (), "other", id="kernel thread"),
    ],
)
def test_role_of(comm: str, cmdline: tuple[str, ...], role: str) -> None:
    assert role_of(Process(7, 1, "S", 5, comm, cmdline)) == role


# --- the end of a process, without pidfd (the real one is tried in tests/integration)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL])
def test_exit_watch_falls_back_to_the_start_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    add_process(tmp_path, 7, start=100)
    with ExitWatch(7, 100, proc=str(tmp_path)) as watch:
        assert watch.fileno() is None
        assert not watch.exited()
        (tmp_path / "7" / "stat").write_text(_STAT.format(pid=7, comm="x", state="Z", ppid=1, start=100))
        assert watch.exited()
        (tmp_path / "7" / "stat").write_text(_STAT.format(pid=7, comm="x", state="S", ppid=1, start=100))
        assert watch.exited(), "an end is final"


def test_exit_watch_without_pidfd_in_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    add_process(tmp_path, 7, start=100)
    watch = ExitWatch(7, 100, proc=str(tmp_path))
    assert watch.fileno() is None
    assert not watch.exited()
    watch.close()
    watch.close()


def test_exit_watch_of_a_reused_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    add_process(tmp_path, 7, start=999)
    assert ExitWatch(7, 100, proc=str(tmp_path)).exited()


def test_exit_watch_passes_other_errors_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    add_process(tmp_path, 7, start=100)
    with pytest.raises(OSError, match="Too many open files"):
        ExitWatch(7, 100, proc=str(tmp_path))


# --- what a process uses ------------------------------------------------------------------------------------------------

IO = "rchar: 5000\nwchar: 70\nsyscr: 1\nsyscw: 1\nread_bytes: 300\nwrite_bytes: 20\ncancelled_write_bytes: 0\n"


def test_usage_is_read_from_stat_and_io(tmp_path: Path) -> None:
    add_process(tmp_path, 7, comm="sglang::schedul", state="R", start=99)
    (tmp_path / "7" / "io").write_text(IO)
    assert read_usage(7, proc=str(tmp_path)) == Usage(
        pid=7,
        start_ticks=99,
        comm="sglang::schedul",
        state="R",
        cpu_ticks=15,
        children_ticks=0,
        rss_pages=4020,
        io_bytes=5320,
    )


@pytest.mark.parametrize("io", [None, "", "Permission denied"])
def test_io_that_cannot_be_read_is_unknown_or_nothing(tmp_path: Path, io: str | None) -> None:
    add_process(tmp_path, 7)
    if io is not None:
        (tmp_path / "7" / "io").write_text(io)
    usage = read_usage(7, proc=str(tmp_path))
    assert usage is not None
    assert usage.io_bytes == (None if io is None else 0)


def test_usage_of_ourselves() -> None:
    usage = read_usage(os.getpid())
    assert usage is not None
    assert usage.rss_pages > 100
    assert usage.cpu_ticks >= 0
    assert usage.io_bytes is None or usage.io_bytes > 0


def test_usage_of_nobody(tmp_path: Path) -> None:
    assert read_usage(8, proc=str(tmp_path)) is None
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "stat").write_text("9 (x) S 1 2")
    assert read_usage(9, proc=str(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "channel"),
    [("futex_wait_queue", "futex_wait_queue"), ("0", ""), (None, "")],
    ids=["sleeps", "runs", "gone"],
)
def test_wait_channel(tmp_path: Path, text: str | None, channel: str) -> None:
    (tmp_path / "7").mkdir()
    if text is not None:
        (tmp_path / "7" / "wchan").write_text(text)
    assert wait_channel(7, proc=str(tmp_path)) == channel


@pytest.mark.parametrize(("events", "frozen"), [("populated 1\nfrozen 1\n", True), ("populated 1\nfrozen 0\n", False)])
def test_a_frozen_group(tmp_path: Path, events: str, frozen: bool) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu")
    group = tmp_path / "system.slice" / "x.service"
    group.mkdir(parents=True)
    (group / "cgroup.events").write_text(events)
    assert is_frozen("/system.slice/x.service", cgroup_root=str(tmp_path)) is frozen
    assert not is_frozen("/system.slice/y.service", cgroup_root=str(tmp_path))
    assert not is_frozen("", cgroup_root=str(tmp_path))
    assert not is_frozen("/system.slice/x.service", cgroup_root=str(tmp_path / "system.slice"))


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler_TP3_EP3", "TP3 EP3"),
        ("sglang::scheduler_DP1_TP0", "DP1 TP0"),
        ("sglang::scheduler", ""),
        ("sglang::detokenizer", ""),
        ("", ""),
    ],
)
def test_ranks_as_log_lines_have_them(title: str, rank: str) -> None:
    process = Process(pid=1, ppid=1, state="S", start_ticks=1, comm="x", cmdline=(title,) if title else ())
    assert rank_of(process) == rank
