# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the host reads journals that are long or never end, against a program that writes like journalctl."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _ready_host
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint
from ansible_collections.specdec.serving.plugins.module_utils._ready_host import SystemHost
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

INVOCATION = "aba3052d65e14c38bf15c6d11bf2cfe8"

# A journal of TOTAL lines, of which line UP says that the server is up. It notes what it is asked for.
_JOURNALCTL = f"""\
#!{sys.executable}
import os, sys, time
TOTAL, UP, HEAVY = (int(os.environ[name]) for name in ("TOTAL", "UP", "HEAVY"))
asked = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
with open(os.environ["ASKED"], "a") as file:
    file.write(" ".join(word for word in sys.argv[1:] if word.startswith(("--follow", "--lines", "--cursor", "--sync"))) + "\\n")
if "sync" in asked or asked["output"] == "json":
    sys.exit()
weight = bytearray(b"x" * HEAVY)
first = int(asked["cursor"].partition("i=")[2].partition(";")[0], 16) if "cursor" in asked else 1
if asked.get("lines", "all") != "all":
    first = max(first, TOTAL - int(asked["lines"]) + 1)
for number in range(first, TOTAL + 1):
    text = "The server is fired up and ready to roll!" if number == UP else f"line {{number}} " + "y" * 100
    sys.stdout.write(f"__CURSOR=s=a;i={{number:x}};m={{number:x}}\\n__MONOTONIC_TIMESTAMP={{number}}\\nMESSAGE={{text}}\\n_PID=7\\n"
                     "_SYSTEMD_INVOCATION_ID={INVOCATION}\\n\\n")
sys.stdout.flush()
if "follow" in asked:
    time.sleep(60)
"""


class Journal:
    """The stand-in for journalctl, and a host that reads by it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked = folder / "asked"
        self._set = monkeypatch.setenv
        program = folder / "journalctl"
        program.write_text(_JOURNALCTL, encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        monkeypatch.setenv("ASKED", str(self._asked))
        self.holds(0)
        self.host = SystemHost("sglang-x.service", Endpoint(host="127.0.0.1", port=30001))
        self.host.watch(UnitState(invocation_id=INVOCATION))

    def holds(self, total: int, *, up: int = 0, heavy: int = 0) -> None:
        for name, value in (("TOTAL", total), ("UP", up), ("HEAVY", heavy)):
            self._set(name, str(value))

    @property
    def asked(self) -> list[str]:
        return self._asked.read_text(encoding="utf-8").splitlines()

    def follow(self, wanted: int) -> list[int]:
        """The numbers of that many lines that come."""
        found: list[int] = []
        deadline = time.monotonic() + 30
        while len(found) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} lines came"
            found += [entry.monotonic_us for entry in self.host.follow()]
            select.select([], [], [], 0.01)
        return found


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    made = Journal(tmp_path, monkeypatch)
    with made.host:
        yield made


def test_what_a_server_logged_since_it_is_up_is_passed_over(journal: Journal) -> None:
    journal.holds(200_000, up=1000)
    history = [entry.monotonic_us for part in journal.host.history(None) for entry in part]
    assert history == list(range(1, len(history) + 1))
    assert 1000 <= len(history) < 20_000, "reading ends soon after the line that ends the start"
    followed = journal.follow(5000)
    assert followed == list(range(195_001, 200_001)), "the newest ones only"
    assert journal.asked[-1] == "--follow --lines=5000"


def test_nothing_comes_twice_when_little_was_logged_since(journal: Journal) -> None:
    journal.holds(6000, up=1000)
    history = [entry.monotonic_us for part in journal.host.history(None) for entry in part]
    followed = journal.follow(6000 - len(history))
    assert history + followed == list(range(1, 6001))


def test_a_follower_that_grows_is_replaced_and_nothing_is_lost(journal: Journal) -> None:
    journal.holds(20_000, heavy=_ready_host._FOLLOWER_BYTES)
    assert journal.follow(20_000) == list(range(1, 20_001))
    assert len(journal.asked) > 2, "it must have been replaced for the test to mean anything"
    assert all("--lines=all" in words for words in journal.asked)
    assert all("--cursor=" in words for words in journal.asked[1:])


def test_a_light_follower_stays(journal: Journal) -> None:
    journal.holds(20_000)
    assert journal.follow(20_000) == list(range(1, 20_001))
    assert journal.asked == ["--follow --lines=all"]


@pytest.mark.parametrize(
    ("total", "patience", "last"),
    [
        pytest.param(3000, 20.0, range(101, 3001), id="all of it"),
        pytest.param(3000, 0.0, range(101, 3001), id="its end, of which some is known"),
        pytest.param(300_000, 0.0, None, id="its end"),
    ],
)
def test_the_last_entries(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, total: int, patience: float, last: range | None
) -> None:
    monkeypatch.setattr(_ready_host, "_LAST_S", patience)
    journal.holds(100)
    assert [entry.monotonic_us for part in journal.host.history(None) for entry in part] == list(range(1, 101))
    journal.holds(total)
    found = [entry.monotonic_us for entry in journal.host.last_entries()]
    assert journal.asked[1] == "--sync"
    if last is not None:
        assert found == list(last)
    else:
        assert found[-5000:] == list(range(total - 4999, total + 1))
        assert len(found) == len(set(found)) < 20_000
