# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A known liar makes each baseline say what it is known to say; a silent port makes it say nothing."""

from __future__ import annotations

import itertools
import socket
import subprocess
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.observer import baselines, neighbour


@pytest.fixture
def liar(request: pytest.FixtureRequest) -> t.Iterator[baselines.Target]:
    listener = neighbour.listen(0, share=False)
    neighbour.serve(listener, style=request.param, model="kimi-k2.6", model_path="/models/x")
    yield baselines.Target("sglang-x.service", listener.getsockname()[1], timeout=0.05)
    listener.close()


class Systemd:
    """What systemctl and journalctl answer."""

    def __init__(self, *, failed: bool = False, log: bytes = b"") -> None:
        self.failed, self.log = failed, log

    def __call__(self, words: list[str], **_options: t.Any) -> subprocess.CompletedProcess[bytes]:
        if words[0] == "systemctl":
            assert words[1:3] == ["is-failed", "--quiet"]
            return subprocess.CompletedProcess(words, 0 if self.failed else 1)
        assert words[0] == "journalctl"
        assert "--unit=sglang-x.service" in words
        return subprocess.CompletedProcess(words, 0, self.log, b"")


@pytest.mark.parametrize(
    ("liar", "says"),
    [
        pytest.param("model", {"loop": "ready", "uri": "ready", "wait_for": "ready"}, id="answers as the right one"),
        pytest.param("plain", {"loop": "", "uri": "ready", "wait_for": "ready"}, id="answers anything with 200"),
        pytest.param("silent", {"loop": "", "uri": "", "wait_for": "ready"}, id="never answers"),
    ],
    indirect=["liar"],
)
def test_a_foreign_server(liar: baselines.Target, says: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Systemd())
    assert {name: baselines.LOOKS[name](liar) for name in says} == says


def test_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Systemd(log=b"Load weight begin\n"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take it
        target = baselines.Target("sglang-x.service", free.getsockname()[1])
        assert {look(target) for look in baselines.LOOKS.values()} == {""}


def test_a_failed_unit_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Systemd(failed=True))
    assert baselines.look_by_loop(baselines.Target("sglang-x.service", 1)) == "failed"


def test_a_marker_of_any_start_satisfies_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    log = b"The server is fired up and ready to roll!\nStopped sglang-x.service.\nStarting sglang-x.service...\n"
    monkeypatch.setattr(subprocess, "run", Systemd(log=log))
    assert baselines.look_by_journal(baselines.Target("sglang-x.service", 1)) == "ready"


def test_an_interval_is_the_sleep_between_two_looks() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def look() -> str:
        now[0] += 0.5
        return "ready" if now[0] > 102.0 else ""

    found = list(
        itertools.islice(baselines.looks(look, interval=1.0, phase=0.25, monotonic=lambda: now[0], sleep=sleep), 2)
    )
    assert slept == [0.25, 1.0]
    assert found == [baselines.Look("", 100.25, 100.75), baselines.Look("ready", 101.75, 102.25)]


def test_who_has_said_something_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(baselines.LOOKS, "uri", lambda _target: "ready")
    said: list[str] = []

    def say(name: str, look: baselines.Look) -> bool:
        said.append(f"{name} {look.says}")
        return len(said) < 2

    target = baselines.Target("sglang-x.service", 1)
    for thread in baselines.watch(target, intervals={"uri": 0.0}, phases={}, say=say):
        thread.join(10)
    assert said == ["uri ready"] * 2
