# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A PostgreSQL server of the distribution's, with a cluster of its own in a folder, on loopback. PRIVATE to the tests.

It runs as an ordinary user, since PostgreSQL refuses to be root, and ends with the test that started it. The cluster that
the distribution's package may make for the whole system is left alone.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import typing as t
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.toolchain import packages

#: Where Debian keeps the programs of a server, by version; they are not on PATH.
_LIBRARIES = Path("/usr/lib/postgresql")
_SUPERUSER = "postgres"
_SUPERUSER_PASSWORD = "planted-superuser-7f3a"


@dataclass(frozen=True)
class Cluster:
    """A running server. Users authenticate by SCRAM passwords."""

    port: int
    folder: Path
    programs: Path
    user: str

    def url(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def sql(self, *statements: str, database: str = "postgres") -> str:
        """Run statements as the superuser and give what the last one printed."""
        words = [str(self.programs / "psql"), "--no-psqlrc", "--tuples-only", "--no-align", "--quiet"]
        words += ["--set=ON_ERROR_STOP=1", "--host=127.0.0.1", f"--port={self.port}", f"--username={_SUPERUSER}"]
        for statement in statements:
            words += ["--command", statement]
        environment = {**os.environ, "PGPASSWORD": _SUPERUSER_PASSWORD, "PGDATABASE": database}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def stop(self) -> None:
        """At once, without the word of its clients."""
        self._control("stop", "--mode=immediate")

    def start(self) -> None:
        self._control("start", f"--log={self.folder / 'log'}")

    def _control(self, *words: str) -> None:
        _run([self.programs / "pg_ctl", f"--pgdata={self.folder / 'data'}", "--wait", *words], self.user, self.folder)


def _run(words: list[t.Any], user: str, folder: Path) -> None:
    switched: dict[str, t.Any] = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
    # The server that pg_ctl leaves behind holds what it was given: no pipes, which somebody would wait for.
    with (folder / "programs.log").open("ab") as log:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=120,
            check=False,
            **switched,
        )
    assert done.returncode == 0, (folder / "programs.log").read_text(errors="replace")[-3000:]


def _found() -> Path | None:
    on_path = shutil.which("initdb")
    found = [path.parent for path in _LIBRARIES.glob("*/bin/initdb")]
    found += [Path(on_path).resolve().parent] if on_path else []
    return max(found, key=lambda path: [int(digits) for digits in re.findall(r"\d+", path.parent.name)], default=None)


def _programs() -> Path:
    """The folder with the programs of the newest server; installed where that is allowed."""
    found = _found()
    if found is None:
        try:
            packages.ensure({"initdb": "postgresql"})
        except packages.MissingPackageError:
            # The package does not put it on PATH.
            if _found() is None:
                raise
        found = _found()
    assert found is not None
    return found


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A new cluster in a temporary folder, which is removed with it.

    :raises packages.MissingPackageError: where the server is missing and may not be installed.
    """
    programs = _programs()
    user = "nobody" if os.geteuid() == 0 else ""
    folder = Path(tempfile.mkdtemp(prefix="specdec-postgresql-"))
    password = folder / "password"
    password.write_text(_SUPERUSER_PASSWORD)
    if user:
        for path in (folder, password):
            shutil.chown(path, user)
    cluster = Cluster(_free_port(), folder, programs, user)
    try:
        words = [programs / "initdb", f"--pgdata={folder / 'data'}", f"--username={_SUPERUSER}", f"--pwfile={password}"]
        _run([*words, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"], user, folder)
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "port": str(cluster.port),
            "unix_socket_directories": "''",
            "fsync": "off",
            "max_connections": "50",
            # So that a password in a statement would be seen.
            "log_statement": "all",
        }
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        cluster.start()
        yield cluster
    finally:
        with contextlib.suppress(AssertionError):
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
