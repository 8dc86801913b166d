# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where studies are kept, and the one lock under which they change. PRIVATE to the collection.

A path is Optuna's JournalStorage on a file, with fcntl beside it; a ``postgresql://`` URL a database, with an advisory
lock in it. Optuna's own locks do not keep two processes from asking for the same trial. Both locks end with their process.
The password of a URL is masked in every error.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import typing as t
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._redact import redact_text, spellings

try:
    import optuna
    import sqlalchemy
    from optuna.storages import BaseStorage, JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
except ImportError as error:
    _MISSING: ImportError | None = error
else:
    _MISSING = None

__all__ = ["StorageError", "Store"]

#: How each line of a journal begins.
_JOURNAL_BEGINS = b'{"op_code":'
_LOCK_WAIT_S = 60.0
_LOCK_POLL_S = 0.05
#: Of all studies of a database: a transaction takes moments, and the first one also makes Optuna's tables.
_ADVISORY_KEY = int.from_bytes(b"specdec.", "big", signed=True)
_SCHEMES = ("postgres", "postgresql", "postgresql+psycopg")
#: A database that went silent must not hold up a sweep whose server waits.
_CONNECT: t.Final[Mapping[str, t.Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "specdec.serving",
}
_LOCK_NOT_AVAILABLE = "55P03"


class StorageError(Exception):
    """The storage cannot be used; the message holds no password."""


class Store:
    """A storage by its path or URL. ``shown`` is how people see it."""

    def __init__(self, storage: str) -> None:
        if _MISSING is not None:
            raise StorageError(
                f"the controller lacks Optuna, which keeps the trials of a sweep: {_MISSING}; pip install optuna"
            )
        self._url: sqlalchemy.URL | None = None
        self._engine: sqlalchemy.Engine | None = None
        self._tables: RDBStorage | None = None
        self._secrets: tuple[str, ...] = ()
        self._path = Path(storage).expanduser()
        self.shown = str(self._path)
        if "://" in storage:
            self._url = self._parsed(storage)
            self.shown = self._url.set(drivername="postgresql").render_as_string(hide_password=True)

    def _parsed(self, storage: str) -> sqlalchemy.URL:
        scheme = storage.partition(":")[0]
        if scheme not in _SCHEMES:
            raise StorageError(f"storage {scheme}://... cannot be shared safely; give a path, or a postgresql:// URL")
        try:
            url = sqlalchemy.make_url(storage)
        except (sqlalchemy.exc.ArgumentError, ValueError):
            # Its own message quotes the URL.
            raise StorageError(
                f"the storage {scheme}://... is no URL that can be read; it is postgresql://USER@HOST:PORT/DATABASE"
            ) from None
        query = {name: word for name, values in url.normalized_query.items() for word in values}
        secrets = [str(url.password or ""), query.pop("password", "")]
        if secrets[1]:
            raise StorageError(
                f"the storage {scheme}://... has its password as a parameter, where it cannot be masked; write"
                " postgresql://USER:PASSWORD@HOST/DATABASE or, better, leave it to PGPASSWORD or ~/.pgpass"
            )
        self._secrets = tuple(
            {spelling for one in secrets if one for spelling in (*spellings(one), urllib.parse.quote(one, safe=""))}
        )
        return url.set(drivername="postgresql+psycopg")

    @contextlib.contextmanager
    def opened(self) -> Iterator[BaseStorage]:
        """The storage, for as long as the lock is held.

        :raises StorageError: when it cannot be used, also while it is open.
        """
        with contextlib.ExitStack() as stack:
            try:
                yield self._file(stack) if self._url is None else self._database(stack, self._url)
            except OSError as exc:
                raise StorageError(f"the study's storage {self.shown} cannot be used: {exc}") from None
            except ImportError as exc:
                raise StorageError(
                    f"the controller lacks psycopg, which speaks to PostgreSQL: {exc}; pip install 'psycopg[binary]'"
                ) from None
            except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError) as exc:
                raise StorageError(f"the study's storage {self.shown} cannot be used: {self._reason(exc)}") from None

    # -- a file -------------------------------------------------------------------------------------------------

    def _file(self, stack: contextlib.ExitStack) -> BaseStorage:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_file_lock(self._path.with_name(f"{self._path.name}.lock")))
        _drop_torn_line(self._path)
        try:
            return JournalStorage(_journal(self._path))
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            # Whatever Optuna meets in lines that are none of its own.
            raise StorageError(
                f"the study's storage {self.shown} is no journal of a sweep, or is damaged{_first_bad_line(self._path)}: move it away and run"
                " the same command again, which begins anew, or bring it back from a backup; it was not changed"
            ) from exc

    # -- a database ---------------------------------------------------------------------------------------------

    def _database(self, stack: contextlib.ExitStack, url: sqlalchemy.URL) -> BaseStorage:
        if self._engine is None:
            # One connection for lock and storage: where it breaks, the next statement fails instead of going on without the lock.
            self._engine = sqlalchemy.create_engine(
                url, poolclass=sqlalchemy.pool.StaticPool, connect_args=dict(_CONNECT)
            )
        engine = self._engine
        try:
            _lock(engine)
        except sqlalchemy.exc.DBAPIError as exc:
            if not exc.connection_invalidated:
                raise
            # It broke between two transactions, where nothing is lost.
            _lock(engine)
        stack.callback(_unlock, engine)
        if self._tables is None:
            # Under the lock, since it makes its tables, and two at once fail. Once in a process: it takes longer than all the rest.
            self._tables = RDBStorage(url.render_as_string(hide_password=False), engine_kwargs={"pool": engine.pool})
        return self._tables

    def _reason(self, exc: BaseException) -> str:
        """What the database said, without our statement and its parameters, in one line."""
        cause: BaseException | None = exc
        while cause is not None and not isinstance(cause, sqlalchemy.exc.DBAPIError):
            cause = cause.__cause__
        said = getattr(cause, "orig", None) or exc
        if getattr(said, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            return f"another process has held its lock for {_LOCK_WAIT_S:.0f} s"
        lines = [line.strip() for line in str(said).splitlines() if line.strip()]
        text = next((line for line in lines if "FATAL" in line or "ERROR" in line), lines[0] if lines else repr(said))
        return redact_text(text, self._secrets)


def _lock(engine: sqlalchemy.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"SET lock_timeout = '{_LOCK_WAIT_S:.0f}s'"))
        # Of the session, so it outlives this transaction and ends with the connection.
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_KEY})


def _unlock(engine: sqlalchemy.Engine) -> None:
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_KEY})
    except sqlalchemy.exc.SQLAlchemyError:
        # Without its connection there is no lock.
        engine.dispose()


def _journal(path: Path) -> JournalFileBackend:
    """A journal without Optuna's own lock, which a kill leaves behind and which then stops everybody for 30 s; we hold one."""

    class NoLock(JournalFileOpenLock):
        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            pass

    return JournalFileBackend(str(path), lock_obj=NoLock(str(path)))


def _first_bad_line(path: Path) -> str:
    """The place of the first line that is no JSON object, in words; '' where all are."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            usable = isinstance(json.loads(line), dict)
        except (RecursionError, ValueError):
            usable = False
        if not usable:
            return f" in line {number} ({line[:40]!r})"
    return ""


def _drop_torn_line(path: Path) -> None:
    """A writer that was killed in mid-line, or found the disk full: Optuna appends to that line, and can then read neither.

    :raises StorageError: where the file is somebody else's, of which nothing may be dropped.
    """
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        content = file.read()
        # Of a first line that was torn at once there may be a part.
        if not content.startswith(_JOURNAL_BEGINS[: len(content)]):
            raise StorageError(
                f"the study's storage {path} is no journal of a sweep: it begins with {content[:40]!r}; give another path"
            )
        end = content.rfind(b"\n") + 1
        if end < len(content):
            file.truncate(end)
            os.fsync(file.fileno())


@contextlib.contextmanager
def _file_lock(
    path: Path, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Exclusive among all processes that use it; the kernel lets go of it when its holder ends in whatever way."""
    with path.open("a", encoding="ascii") as file:
        deadline = monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() >= deadline:
                    raise StorageError(f"{path} was locked by another process for {_LOCK_WAIT_S:.0f} s") from None
                sleep(_LOCK_POLL_S)
        yield
