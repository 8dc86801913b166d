# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several controllers on one study, some of them killed: on a journal file, and on a real PostgreSQL server."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import random
import signal
import time
import typing as t
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _study_storage
from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import owner_of
from ansible_collections.specdec.serving.plugins.plugin_utils._study import (
    COMPLETE,
    Outcome,
    Row,
    StudyError,
    TrialStudy,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import load_sweep
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import grid_points, point_key
from ansible_collections.specdec.serving.tests.support.postgresql import cluster as postgresql
from ansible_collections.specdec.serving.tests.support.toolchain.packages import MissingPackageError

#: `make test` starts no server of a database.
_postgresql = pytest.mark.long("a PostgreSQL server, which may have to be installed")
CONFIGURATIONS = 16
SWEEP = load_sweep(
    f"instance: a\nspace: {{block: {list(range(CONFIGURATIONS))}}}\nworkloads: [w]\nlevels: [1]\n", path="s.yml"
)
KILLS = 8
LEASE_S = 2.0
#: With what has to be quoted in a URL.
PASSWORD, QUOTED = "planted/p%w 1", "planted%2Fp%25w%201"
USER, DATABASE = "sweeper", "studies"

_PROCESSES = multiprocessing.get_context("fork")


@pytest.fixture(scope="session")
def database() -> Iterator[postgresql.Cluster]:
    try:
        with postgresql.running() as cluster:
            cluster.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
            yield cluster
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.fixture
def emptied(database: postgresql.Cluster) -> postgresql.Cluster:
    database.sql(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)", f"CREATE DATABASE {DATABASE} OWNER {USER}")
    return database


@pytest.fixture(params=["journal", pytest.param("postgresql", marks=_postgresql)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "journal":
        return str(tmp_path / "trials.journal")
    cluster: postgresql.Cluster = request.getfixturevalue("emptied")
    return cluster.url(USER, QUOTED, DATABASE)


def study(storage: str, **changes: t.Any) -> TrialStudy:
    options: dict[str, t.Any] = {"fingerprint": {"instance": "a"}, "identify": point_key, "lease_s": LEASE_S, **changes}
    return TrialStudy(storage, "nightly", SWEEP, **options)


def controller(storage: str, folder: Path, number: int, seed: str) -> None:
    """Plans and runs trials until none is left for it, and notes each in a file of the trial's."""
    random.seed(seed)
    # As on a machine of its own, so that nothing but the time tells the others that it is gone.
    me = dataclasses.replace(owner_of(os.getpid()), boot=f"machine-{os.getpid()}")
    one = study(storage)
    one.plan(grid_points(SWEEP))
    while (claim := one.claim(me, host=f"h{number}")) is not None:
        with (folder / f"trial-{claim.number}").open("a") as notes:
            notes.write(f"{json.dumps({'pid': os.getpid(), 'attempt': claim.attempt})}\n")
        time.sleep(random.uniform(0.0, 0.1))
        one.renew(claim.number, me)
        one.finish(claim.number, me, Outcome(COMPLETE, (float(number),), details={"pid": os.getpid()}))


def begin(storage: str, folder: Path, number: int, seed: str) -> BaseProcess:
    process = _PROCESSES.Process(target=controller, args=(storage, folder, number, seed))
    process.start()
    return process


def check(rows: list[Row], folder: Path, killed: set[int]) -> None:
    """Each trial ended once, and was begun again only after a kill."""
    configurations = [row.point["block"] for row in rows if "block" in row.point]
    assert sorted(configurations) == list(range(CONFIGURATIONS))
    for row in rows:
        assert row.state == COMPLETE, row
        assert row.outcome is not None
        notes = [json.loads(line) for line in (folder / f"trial-{row.number}").read_text().splitlines()]
        assert {note["pid"] for note in notes[:-1]} <= killed, "it was taken from a controller that lived"
        # Who is killed between the claim and its note leaves none; who is killed between result and note of Optuna left the result.
        assert notes[-1]["attempt"] == row.attempt
        assert notes[-1]["pid"] == row.outcome.details["pid"]


def test_two_controllers_at_once(storage: str, tmp_path: Path, seed: str) -> None:
    began = time.monotonic()
    pair = [begin(storage, tmp_path, number, f"{seed}{number}") for number in range(2)]
    for process in pair:
        process.join(120)
        assert process.exitcode == 0
    rows = study(storage).rows()
    check(rows, tmp_path, set())
    assert {row.host for row in rows} == {"h0", "h1"}
    print(f"{len(rows)} trials by two controllers in {time.monotonic() - began:.1f} s")


def begun(folder: Path) -> int:
    """How often a trial was begun."""
    return sum(len(notes.read_text().splitlines()) for notes in folder.glob("trial-*"))


def newest(folder: Path) -> int:
    """The process that began a trial last."""
    written = [path for path in folder.glob("trial-*") if path.stat().st_size]
    notes = max(written, key=lambda path: path.stat().st_mtime_ns)
    return int(json.loads(notes.read_text().splitlines()[-1])["pid"])


def test_controllers_that_are_killed_lose_nothing(storage: str, tmp_path: Path, seed: str) -> None:
    random.seed(seed)
    study(storage).plan(grid_points(SWEEP))
    killed: set[int] = set()
    running: dict[int, BaseProcess] = {}
    turn, deadline = 0, time.monotonic() + 300
    while any(row.outcome is None for row in study(storage).rows()):
        for number in range(2):
            if number not in running or not running[number].is_alive():
                turn += 1
                running[number] = begin(storage, tmp_path, number, f"{seed}{turn}")
        # In the middle of a trial and, in turn, anywhere shortly after.
        enough = begun(tmp_path) + random.randrange(1, 3)
        while begun(tmp_path) < enough and any(process.is_alive() for process in running.values()):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        victim = random.choice(list(running.values()))
        if len(killed) % 2:
            time.sleep(random.uniform(0.0, 0.3))
        else:
            latest = newest(tmp_path)
            victim = next((process for process in running.values() if process.pid == latest), victim)
        if len(killed) < KILLS:
            # Unless it has ended by itself meanwhile.
            victim.kill()
            victim.join()
            if victim.exitcode == -signal.SIGKILL and victim.pid is not None:
                killed.add(victim.pid)
        assert all(process.exitcode in (None, 0, -signal.SIGKILL) for process in running.values())
    for process in running.values():
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
    rows = study(storage).rows()
    check(rows, tmp_path, killed)
    recovered = sum(row.attempt > 1 for row in rows)
    print(f"{len(rows)} trials, {len(killed)} controllers killed, {recovered} trials begun more than once")
    assert recovered


def told(storage: str) -> str:
    with pytest.raises(StudyError) as caught:
        study(storage).plan(grid_points(SWEEP))
    text = str(caught.value)
    for word in (PASSWORD, QUOTED, "wrong-planted"):
        assert word not in text
    assert "\n" not in text
    return text


@_postgresql
def test_a_wrong_password_a_missing_database_and_one_without_rights(emptied: postgresql.Cluster) -> None:
    assert 'password authentication failed for user "sweeper"' in told(emptied.url(USER, "wrong-planted", DATABASE))
    assert 'database "nowhere" does not exist' in told(emptied.url(USER, QUOTED, "nowhere"))
    # Since PostgreSQL 15 not everybody may make tables; before, it is taken away here.
    emptied.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database="template1")
    emptied.sql("DROP DATABASE IF EXISTS foreign_one", "CREATE DATABASE foreign_one")
    assert "permission denied for schema public" in told(emptied.url(USER, QUOTED, "foreign_one"))


@_postgresql
def test_a_password_from_the_environment(emptied: postgresql.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert study(f"postgresql://{USER}@127.0.0.1:{emptied.port}/{DATABASE}").plan([{}])


@_postgresql
def test_a_server_that_goes_away_and_comes_back(emptied: postgresql.Cluster) -> None:
    storage = emptied.url(USER, QUOTED, DATABASE)
    me = owner_of(os.getpid())
    one = study(storage)
    one.plan(grid_points(SWEEP))
    claim = one.claim(me, host="h")
    assert claim is not None
    emptied.stop()
    try:
        with pytest.raises(StudyError, match=r"cannot be used: .*[Rr]efused"):
            one.finish(claim.number, me, Outcome(COMPLETE, (1.0,)))
    finally:
        emptied.start()
    row = one.finish(claim.number, me, Outcome(COMPLETE, (1.0,)))
    assert (row.number, row.state, row.attempt) == (claim.number, COMPLETE, 1)


@_postgresql
def test_a_connection_that_ends_within_a_transaction(emptied: postgresql.Cluster) -> None:
    one = study(emptied.url(USER, QUOTED, DATABASE))
    one.plan([{}])
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"

    def transaction() -> None:
        with one._opened() as raw:
            emptied.sql(end)
            raw.set_user_attr("x", 1)

    with pytest.raises(StudyError, match="cannot be used"):
        transaction()
    assert one.rows()[0].state == "waiting"
    # Between two transactions nothing is lost.
    emptied.sql(end)
    assert one.rows()[0].state == "waiting"


@_postgresql
def test_a_lock_that_another_one_holds(emptied: postgresql.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = emptied.url(USER, QUOTED, DATABASE)
    monkeypatch.setattr(_study_storage, "_LOCK_WAIT_S", 1.0)
    with study(storage)._opened():
        assert "another process has held its lock for 1 s" in told(storage)
