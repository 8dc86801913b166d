# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lease with real files and real locks; the clock is scripted."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _lease
from ansible_collections.specdec.serving.plugins.module_utils._lease import (
    Clock,
    Lease,
    LeaseError,
    LeaseFile,
    LeaseHeld,
    LeaseLost,
    Owner,
)

ALICE = Owner(
    id="a" * 16, host="one", user="alice", pid=11, start_ticks=5, boot="b1", pid_namespace="pid:[1]", play="Deploy"
)
BOB = Owner(id="b" * 16, host="two", user="bob", pid=22, start_ticks=6, boot="b2", pid_namespace="pid:[1]")
#: Another run on Alice's controller.
CAROL = dataclasses.replace(ALICE, id="c" * 16, pid=33, start_ticks=7)


class Times:
    """What the clocks show. Waiting for a lock moves the monotonic one alone."""

    def __init__(self) -> None:
        self.boottime, self.realtime, self.monotonic, self.boot = 1000.0, 1_800_000_000.0, 0.0, "boot-1"

    def clock(self) -> Clock:
        def sleep(seconds: float) -> None:
            self.monotonic += seconds

        return Clock(
            boottime=lambda: self.boottime,
            realtime=lambda: self.realtime,
            monotonic=lambda: self.monotonic,
            sleep=sleep,
            boot=lambda: self.boot,
        )

    def pass_(self, seconds: float) -> None:
        self.boottime += seconds
        self.realtime += seconds


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def file(tmp_path: Path, times: Times) -> LeaseFile:
    return LeaseFile(str(tmp_path / "run" / "specdec" / "lease.json"), times.clock())


def held(file: LeaseFile) -> Lease:
    lease = file.read()
    assert lease is not None
    assert lease.held
    return lease


def test_take_show_free(file: LeaseFile, times: Times) -> None:
    assert file.read() is None
    taken = file.take(ALICE, "deploy")
    assert (taken.new, taken.taken_from) == (True, None)
    assert taken.lease.token == f"{ALICE.id}.1"
    times.pass_(12)
    assert held(file).describe(file.clock) == (
        "alice@one (ansible-playbook with pid 11, play 'Deploy'), for deploy, since 2027-01-15 08:00:00 UTC (12 s ago),"
        " renewed 12 s ago; it expires in 888 s unless it is renewed"
    )
    assert os.stat(file.path).st_mode & 0o777 == 0o644
    assert file.free(taken.lease.token) is None
    left = file.read()
    assert left is not None
    assert not left.held
    # The next one is another lease, so that its token never fits an older one.
    assert file.take(ALICE, "deploy").lease.token == f"{ALICE.id}.2"


def test_the_second_is_told_who_holds_it(file: LeaseFile, times: Times) -> None:
    file.take(ALICE, "deploy")
    before = Path(file.path).read_text()
    times.pass_(60)
    with pytest.raises(LeaseHeld, match=r"alice@one .*pid 11.* for deploy, since .* \(60 s ago\)") as caught:
        file.take(BOB, "benchmark")
    assert (caught.value.lease, caught.value.busy) == (held(file), False)
    assert Path(file.path).read_text() == before


def test_the_same_run_takes_part_and_frees_as_often(file: LeaseFile) -> None:
    outer = file.take(ALICE, "sweep").lease
    for inner in (file.take(ALICE, "deploy"), file.take(ALICE, "deploy", token=outer.token)):
        assert not inner.new
        assert inner.lease.token == outer.token
    assert held(file).purposes == ("sweep", "deploy", "deploy")
    for purposes in (("sweep", "deploy"), ("sweep",)):
        left = file.free(outer.token)
        assert left is not None
        assert left.purposes == purposes
    assert file.free(outer.token) is None
    assert file.take(BOB, "deploy").new


def test_it_expires_only_when_nobody_renews_it(file: LeaseFile, times: Times) -> None:
    token = file.take(ALICE, "deploy", ttl=100).lease.token
    for _slice in range(20):
        times.pass_(60)
        file.renew(token)
        with pytest.raises(LeaseHeld):
            file.take(BOB, "deploy")
    times.pass_(99)
    with pytest.raises(LeaseHeld):
        file.take(BOB, "deploy")
    times.pass_(1)
    taken = file.take(BOB, "deploy")
    assert taken.new
    assert taken.taken_from is not None
    assert (taken.taken_from.owner, taken.why) == (ALICE, "it had expired")


def test_an_expired_lease_that_nobody_took_is_still_its_owners(file: LeaseFile, times: Times) -> None:
    token = file.take(ALICE, "deploy", ttl=100).lease.token
    times.pass_(5000)
    file.renew(token)
    with pytest.raises(LeaseHeld):
        file.take(BOB, "deploy")


@pytest.mark.parametrize("jump", [-86400.0 * 400, 86400.0 * 400], ids=["back", "forward"])
def test_the_time_of_day_does_not_matter(file: LeaseFile, times: Times, jump: float) -> None:
    file.take(ALICE, "deploy", ttl=100)
    times.realtime += jump
    times.boottime += 99
    with pytest.raises(LeaseHeld, match="99 s ago"):
        file.take(BOB, "deploy")
    times.boottime += 1
    assert file.take(BOB, "deploy").new


def test_a_run_of_the_same_controller_is_judged_by_its_process(file: LeaseFile, times: Times) -> None:
    token = file.take(ALICE, "deploy", ttl=100).lease.token
    times.pass_(5000)
    # It may wait for another host of its play.
    with pytest.raises(LeaseHeld, match="it expired 4900 s ago"):
        file.take(CAROL, "deploy")
    with pytest.raises(LeaseHeld):
        file.take(CAROL, "deploy", gone=f"{ALICE.id}.9")
    taken = file.take(CAROL, "deploy", gone=token)
    assert (taken.new, taken.why) == (True, "its ansible-playbook has ended")
    with pytest.raises(LeaseLost):
        file.renew(token)


def test_by_force_and_what_the_first_one_notices(file: LeaseFile, times: Times) -> None:
    token = file.take(ALICE, "deploy").lease.token
    taken = file.take(BOB, "rollback", force=True)
    assert (taken.new, taken.why) == (True, "it was taken by force")
    for lost in (
        lambda: file.renew(token),
        lambda: file.guard(token).__enter__(),
        lambda: file.take(ALICE, "deploy", token=token),
        lambda: file.take(ALICE, "deploy", token=token, force=True),
    ):
        with pytest.raises(LeaseLost, match=r"taken over.* still holds it: bob@two .*for rollback"):
            lost()
    # It does not free what is not its own.
    assert file.free(token) is None
    assert held(file).owner == BOB
    # Nor does it get it back by and by, when the other one has ended.
    file.free(taken.lease.token)
    with pytest.raises(LeaseLost, match="has freed it: bob@two"):
        file.renew(token)


def test_what_was_freed_is_lost(file: LeaseFile) -> None:
    token = file.take(ALICE, "deploy").lease.token
    file.free(token)
    with pytest.raises(LeaseLost, match="has freed the lease of the host already"):
        file.renew(token)


def test_a_change_keeps_everybody_out(file: LeaseFile) -> None:
    token = file.take(ALICE, "deploy").lease.token
    with file.guard(token):
        for force in (False, True):
            with pytest.raises(LeaseHeld, match=r"task of alice@one .*changing the host right now") as caught:
                file.take(BOB, "deploy", force=force, gone=token)
            assert caught.value.busy
        # Tasks of the run itself do not stand in each other's way.
        file.renew(token)
        with file.guard(token):
            pass
    assert file.take(BOB, "deploy", force=True).new


def test_a_change_renews_the_lease(file: LeaseFile, times: Times) -> None:
    token = file.take(ALICE, "deploy", ttl=100).lease.token
    times.pass_(90)
    with file.guard(token):
        times.pass_(500)
    times.pass_(90)
    with pytest.raises(LeaseHeld):
        file.take(BOB, "deploy")


def test_a_change_that_fails_ends_the_lock(file: LeaseFile) -> None:
    token = file.take(ALICE, "deploy").lease.token
    with pytest.raises(RuntimeError, match="no"), file.guard(token):
        raise RuntimeError("no")
    assert file.take(BOB, "deploy", force=True).new


def test_a_command_that_outlives_its_module_still_counts_as_a_change(file: LeaseFile) -> None:
    token = file.take(ALICE, "deploy").lease.token
    with file.guard(token):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    with pytest.raises(LeaseHeld) as caught:
        file.take(BOB, "deploy", force=True)
    assert caught.value.busy
    child.communicate(b"\n")
    assert file.take(BOB, "deploy", force=True).new


def test_a_restart_of_the_host_frees_nothing_that_is_still_wanted(file: LeaseFile, times: Times) -> None:
    token = file.take(ALICE, "deploy", ttl=100).lease.token
    os.unlink(file.path)
    times.boot, times.boottime = "boot-2", 20.0
    file.renew(token)
    with pytest.raises(LeaseHeld, match="a run that began before this host was restarted"):
        file.take(BOB, "deploy")
    assert file.take(ALICE, "deploy").lease.token == token


def test_after_a_restart_the_first_one_there_has_it(file: LeaseFile, times: Times) -> None:
    token = file.take(ALICE, "deploy").lease.token
    os.unlink(file.path)
    times.boot, times.boottime = "boot-2", 20.0
    other = file.take(BOB, "deploy").lease.token
    with pytest.raises(LeaseLost):
        file.renew(token)
    file.free(other)
    with pytest.raises(LeaseLost):
        file.renew(token)


def test_a_record_of_an_earlier_boot_is_as_old_as_this_one(file: LeaseFile, times: Times) -> None:
    # Where /run is not emptied, as in some containers.
    file.take(ALICE, "deploy", ttl=100)
    times.boot, times.boottime = "boot-2", 99.0
    with pytest.raises(LeaseHeld):
        file.take(BOB, "deploy")
    times.boottime = 100.0
    assert file.take(BOB, "deploy").new


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 2}', '{"format": 1}', '{"format": 1, "owner": 5}', "\0" * 50, "[" * 100_000],
    ids=["empty", "cut", "list", "null", "newer", "without", "owner", "zeros", "deep"],
)
def test_a_damaged_record_is_nobodys_leave_to_go_on(file: LeaseFile, text: str) -> None:
    token = file.take(ALICE, "deploy").lease.token
    Path(file.path).write_text(text)
    with pytest.raises(LeaseHeld, match=r"cannot be understood.*sglang_lease_force"):
        file.take(BOB, "deploy")
    with pytest.raises(LeaseError, match="cannot be understood"):
        file.renew(token)
    assert file.free(token) is None
    assert file.take(BOB, "deploy", force=True).new
    assert held(file).owner == BOB


ODD: list[t.Any] = ["x", None, {}, float("nan")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("ttl", "taken", "renewed", "generation") for value in ODD),
        ("taken_at", 1e300),
        ("held", "yes"),
        ("purposes", None),
        ("owner", {"id": "a", "pidd": 1}),
        ("colour", "red"),
    ],
)
def test_a_record_with_an_odd_value_is_damaged(file: LeaseFile, field: str, value: t.Any) -> None:
    file.take(ALICE, "deploy")
    record = json.loads(Path(file.path).read_text())
    Path(file.path).write_text(json.dumps({**record, field: value}))
    with pytest.raises(LeaseError, match="cannot be understood"):
        file.read()


@pytest.mark.parametrize("token", ["x", "../../etc.1", "", "aaaaaaaaaaaaaaaa", "AAAAAAAAAAAAAAAA.1"])
def test_what_is_no_token(file: LeaseFile, token: str) -> None:
    with pytest.raises(LeaseError, match="is no token"):
        file.renew(token)


def test_without_a_token_nothing_is_kept(tmp_path: Path) -> None:
    _lease.renew("", str(tmp_path / "none"))
    with _lease.guard("", str(tmp_path / "none")):
        assert not list(tmp_path.iterdir())


def test_with_a_token_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "lease.json")
    token = LeaseFile(path).take(ALICE, "deploy").lease.token
    _lease.renew(token, path)
    with _lease.guard(token, path), pytest.raises(LeaseHeld):
        LeaseFile(path, patience=0.1).take(BOB, "deploy", force=True)
    LeaseFile(path).take(BOB, "deploy", force=True)
    with pytest.raises(LeaseLost):
        _lease.renew(token, path)
    with pytest.raises(LeaseLost), _lease.guard(token, path):
        pytest.fail("the change was made")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeaseError, match=r"lock of the lease .* cannot be opened"):
        LeaseFile(str(tmp_path / "file" / "lease.json")).take(ALICE, "deploy")


def test_without_root_it_says_what_is_needed(file: LeaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, *_arguments: t.Any) -> int:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(LeaseError, match=r"it needs root \(become: true, ansible_become\)"):
            file.take(ALICE, "deploy")


def test_a_record_that_cannot_be_written_leaves_the_old_one(file: LeaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
    token = file.take(ALICE, "deploy").lease.token
    before = Path(file.path).read_text()

    def full(*_arguments: t.Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(LeaseError, match=r"cannot be written: .*No space left"):
        file.renew(token)
    assert Path(file.path).read_text() == before
    assert sorted(os.listdir(os.path.dirname(file.path))) == ["lease.json", "lease.json.lock"]


def _contend(path: str, number: int, barrier: t.Any, results: t.Any) -> None:
    owner = Owner(id=f"{number:016x}", host=f"c{number}", user="u", pid=number, boot=f"boot-{number}")
    file = LeaseFile(path, patience=30.0)
    barrier.wait()
    try:
        file.take(owner, "deploy")
        results.put((number, ""))
    except LeaseHeld as error:
        results.put((number, str(error)))


@pytest.mark.parametrize("before", ["nothing", "freed", "expired"])
def test_of_many_at_once_exactly_one_wins(tmp_path: Path, before: str) -> None:
    context = multiprocessing.get_context("fork")
    for round_ in range(10):
        path = str(tmp_path / f"{round_}" / "lease.json")
        if before != "nothing":
            token = LeaseFile(path).take(ALICE, "deploy", ttl=1e-9).lease.token
            if before == "freed":
                LeaseFile(path).free(token)
        barrier, results = context.Barrier(8), context.Queue()
        runs = [context.Process(target=_contend, args=(path, number, barrier, results)) for number in range(8)]
        for run in runs:
            run.start()
        said = dict(results.get(timeout=60) for _ in runs)
        for run in runs:
            run.join(60)
        (winner,) = [number for number, complaint in said.items() if not complaint]
        assert held(LeaseFile(path)).owner.host == f"c{winner}"
        assert all(f"u@c{winner} " in complaint for number, complaint in said.items() if number != winner)


def _change(path: str, token: str, log: str, stop: t.Any) -> None:
    """Changes again and again; each change must be whole before another run begins one of its own."""
    file = LeaseFile(path, patience=30.0)
    try:
        while not stop.is_set():
            with file.guard(token), open(log, "a", encoding="ascii") as out:
                out.write(f"{token} begin\n")
                out.flush()
                out.write(f"{token} end\n")
            # Back to back they would leave no gap in which a lock can be had.
            stop.wait(0.005)
    except LeaseLost:
        pass


def test_a_take_over_never_falls_into_a_change(tmp_path: Path) -> None:
    path, log = str(tmp_path / "lease.json"), str(tmp_path / "log")
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    runs = []
    for number in range(12):
        owner = Owner(id=f"{number:016x}", host="c", user="u", pid=number, boot=f"boot-{number}")
        token = LeaseFile(path, patience=30.0).take(owner, "deploy", force=True).lease.token
        runs.append(context.Process(target=_change, args=(path, token, log, stop)))
        runs[-1].start()
        wanted = f"{token} begin"
        for _poll in range(3000):
            if os.path.exists(log) and wanted in Path(log).read_text():
                break
            stop.wait(0.01)
        else:
            pytest.fail(f"{token} changed nothing")
    stop.set()
    for run in runs:
        run.join(60)
    lines = Path(log).read_text().split("\n")[:-1]
    assert len(lines) >= 24
    order: list[str] = []
    for begin, end in zip(lines[::2], lines[1::2]):
        token = begin.removesuffix(" begin")
        assert end == f"{token} end"
        if order[-1:] != [token]:
            order.append(token)
    # Who lost it never changed anything again.
    assert len(order) == len(set(order)) == 12
