# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A worker that outlives its ansible-playbook. The pipes tell of every end, so nothing sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _parent
from ansible_collections.specdec.serving.plugins.plugin_utils._parent import end_with_parent

WORKER = """
import os, subprocess, sys
from {module} import end_with_parent
os.setsid()
child = subprocess.Popen(["sleep", "1000"])
end_with_parent()
print(os.getpid(), child.pid, flush=True)
child.wait()
"""


def test_a_worker_ends_with_what_it_started() -> None:
    worker = WORKER.format(module=_parent.__name__)
    # A parent that starts the worker and is then killed, as ansible-playbook may be.
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {worker!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert len(process.stdout.readline().split()) == 2
    process.kill()
    # Worker and child hold the pipe: its end is theirs.
    rest, _none = process.communicate(timeout=30)
    assert rest == ""


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "without pidfd"])
def test_a_parent_that_is_gone_already(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    ended: list[t.Any] = []
    # Of another process than the real parent, which lives.
    end_with_parent(os.getpid(), end=lambda: ended.append(True)).join(timeout=30)
    assert ended == [True]


ORPHAN = """
import multiprocessing, os
from {module} import end_with_parent, is_abandoned

read, write = os.pipe()

def work():
    os.setsid()
    os.close(write)
    os.read(read, 1)
    print(is_abandoned(), flush=True)
    end_with_parent().join()

multiprocessing.get_context("fork").Process(target=work).start()
os._exit(0)
"""


def test_a_parent_that_was_killed_while_it_made_the_worker() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN.format(module=_parent.__name__)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    # The worker holds the pipe: its end is the worker's.
    assert done.stdout == "True\n"
