# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Storages that cannot be used, each told without a password and with nothing lost. With a database: tests/integration/storage."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import typing as t
from pathlib import Path

import pytest
from optuna.study import StudyDirection

from ansible_collections.specdec.serving.plugins.plugin_utils._study_storage import StorageError, Store, _file_lock

PASSWORD = "planted/pw%1"
QUOTED = "planted%2Fpw%251"


def told(storage: str) -> str:
    with pytest.raises(StorageError) as caught, Store(storage).opened():
        pass
    text = str(caught.value)
    assert PASSWORD not in text
    assert QUOTED not in text
    return text


@pytest.mark.parametrize(
    ("storage", "wanted"),
    [
        pytest.param("sqlite:///x.db", "storage sqlite://... cannot be shared safely", id="sqlite"),
        pytest.param(f"mysql://u:{QUOTED}@h/db", "storage mysql://... cannot be shared safely", id="mysql"),
        pytest.param(f"postgresql://u:{QUOTED}@h:port/db", "no URL that can be read", id="port"),
        pytest.param(f"postgresql://u@h/db?password={QUOTED}", "its password as a parameter", id="parameter"),
    ],
)
def test_a_url_that_is_refused(storage: str, wanted: str) -> None:
    assert wanted in told(storage)


def test_a_database_that_nobody_serves() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        text = told(f"postgresql://ann:{QUOTED}@127.0.0.1:{port}/studies")
    assert f"postgresql://ann:***@127.0.0.1:{port}/studies cannot be used" in text
    assert "refused" in text


def test_a_server_that_is_no_database_and_answers_with_the_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = f"E{'x' * 8}".encode()

        def serve() -> None:
            connection, _peer = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 " + PASSWORD.encode() + answer)

        # Where nobody connects, it must not hold up the end of the run.
        process = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
        process.start()
        text = told(f"postgres://ann:{QUOTED}@127.0.0.1:{server.getsockname()[1]}/studies?sslmode=disable")
        process.join(10)
    assert "cannot be used" in text


def test_only_its_address_is_shown() -> None:
    assert Store(f"postgresql+psycopg://ann:{QUOTED}@db:5432/s").shown == "postgresql://ann:***@db:5432/s"
    assert Store("~/a.journal").shown == str(Path("~/a.journal").expanduser())


def _fill(path: Path, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        for number in range(1000):
            with Store(str(path)).opened() as storage:
                storage.create_new_study([StudyDirection.MAXIMIZE], f"study-{number}")
    except StorageError as error:
        os._exit(7 if "cannot be used" in str(error) and "too large" in str(error) else 2)
    os._exit(1)


def test_a_file_that_cannot_grow_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    # In the middle of a line, wherever that is.
    process = multiprocessing.get_context("fork").Process(target=_fill, args=(path, 1000))
    process.start()
    process.join(30)
    assert process.exitcode == 7
    with Store(str(path)).opened() as storage:
        known = len(storage.get_all_studies())
        storage.create_new_study([StudyDirection.MAXIMIZE], "after")
    assert known > 2
    with Store(str(path)).opened() as storage:
        assert len(storage.get_all_studies()) == known + 1


def test_what_fails_while_it_is_open_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be used: no room"), Store(str(tmp_path / "a")).opened():
        raise OSError("no room")


def test_a_lock_that_is_held_is_waited_for_and_then_told(tmp_path: Path) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def lock() -> t.ContextManager[None]:
        return _file_lock(tmp_path / "lock", monotonic=lambda: now[0], sleep=sleep)

    with lock(), pytest.raises(StorageError, match="was locked by another process for 60 s"), lock():
        pass
    assert now[0] >= 60
    with lock():
        pass


@pytest.mark.parametrize(
    "content", [b"precious: data", b"precious: data\nmore", b"\0" * 9], ids=["torn", "lines", "zeros"]
)
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="is no journal of a sweep"), Store(str(path)).opened():
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"\x00\xff garbage", b"[]", b'{"op_code": 4}'])
def test_a_journal_that_is_damaged_is_told(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "s.journal"
    with Store(str(path)).opened() as storage:
        storage.create_new_study([StudyDirection.MAXIMIZE], "s")
    content = path.read_bytes() + line + b"\n"
    path.write_bytes(content)
    with (
        pytest.raises(StorageError, match=f"{path} is no journal of a sweep, or is damaged"),
        Store(str(path)).opened(),
    ):
        pass
    assert path.read_bytes() == content
