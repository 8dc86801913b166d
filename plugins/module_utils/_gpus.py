# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi says of the GPUs, asked without ever waiting for it. PRIVATE to specdec.serving.

With a stuck driver nvidia-smi sleeps in the kernel and cannot even be killed. So it runs beside us, its answer is taken
when it is there, and that none comes is itself worth telling. Fields: `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "APPS_FIELDS",
    "GPU_FIELDS",
    "GpuState",
    "GpuView",
    "GpuWatch",
    "Query",
    "find_nvidia_smi",
    "parse_apps",
    "parse_gpus",
]

GPU_FIELDS = ("index", "uuid", "name", "utilization.gpu", "power.draw", "power.limit", "memory.used")
APPS_FIELDS = ("pid", "gpu_uuid", "used_gpu_memory")
#: Without an answer for this long the driver is stuck. Without the persistence daemon a query of eight GPUs takes some seconds.
SILENT_S = 15.0
# Full use of the GPU's time with little of its power: threads that wait in a loop on the GPU.
_FULL_PERCENT = 90.0
_IDLE_SHARE = 0.35
# `sudo` may give a short PATH.
_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/run/current-system/sw/bin", "/opt/bin")


@dataclass(frozen=True)
class GpuState:
    """One GPU; None = the driver does not tell."""

    index: int
    uuid: str
    name: str
    utilization_percent: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_used_mib: float | None

    @property
    def spins(self) -> bool:
        """Full utilisation at idle power: its kernels wait for something, as in a collective that hangs."""
        if self.utilization_percent is None or self.power_w is None or not self.power_limit_w:
            return False
        return self.utilization_percent >= _FULL_PERCENT and self.power_w <= _IDLE_SHARE * self.power_limit_w


@dataclass(frozen=True)
class GpuView:
    """The latest answers. `apps` is GPU memory in MiB by pid, `silent_for` seconds without an answer to the open question."""

    gpus: tuple[GpuState, ...] = ()
    apps: Mapping[int, float] = field(default_factory=dict)
    uuids: frozenset[str] = frozenset()
    silent_for: float = 0.0
    error: str = ""


def _number(text: str) -> float | None:
    # [N/A], [Not Supported], [Unknown Error], ERR!
    try:
        return float(text)
    except ValueError:
        return None


def _rows(text: str, count: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == count]


def parse_gpus(text: str) -> tuple[GpuState, ...]:
    """The answer to `--query-gpu` with `GPU_FIELDS`, `--format=csv,noheader,nounits`. Other lines are left out."""
    found = []
    for row in _rows(text, len(GPU_FIELDS)):
        if row[0].isdigit():
            numbers = [_number(cell) for cell in row[3:]]
            found.append(GpuState(int(row[0]), row[1], row[2], numbers[0], numbers[1], numbers[2], numbers[3]))
    return tuple(found)


def parse_apps(text: str) -> tuple[dict[int, float], dict[int, set[str]]]:
    """The answer to `--query-compute-apps` with `APPS_FIELDS`: MiB by pid over all GPUs, and the GPUs by pid."""
    memory: dict[int, float] = {}
    uuids: dict[int, set[str]] = {}
    for pid_text, uuid, mib_text in _rows(text, len(APPS_FIELDS)):
        if pid_text.isdigit():
            pid, mib = int(pid_text), _number(mib_text)
            uuids.setdefault(pid, set()).add(uuid)
            if mib is not None:
                memory[pid] = memory.get(pid, 0.0) + mib
    return memory, uuids


def find_nvidia_smi() -> str | None:
    """The program's path, or None."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(_PLACES))


class Query:
    """One run of nvidia-smi in the background. Its answer goes to a file: a pipe that nobody reads could fill up."""

    def __init__(self, argv: Sequence[str], now: float) -> None:
        self.began = now
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the answer
        try:
            self._process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # never waited for
                list(argv), stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, close_fds=True
            )
        except OSError:
            self._output.close()
            raise

    def answer(self) -> tuple[int, str] | None:
        """(exit code, text) once it has ended."""
        code = self._process.poll()
        if code is None:
            return None
        self._output.seek(0)
        text = self._output.read().decode("utf-8", "replace")
        self._output.close()
        return code, text

    def give_up(self) -> None:
        """Ask the kernel to end it, and do not wait: in an uninterruptible sleep it would not end."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.poll()
        # Popen warns of a child that still runs when it is collected; ours may, for good reason.
        self._process.returncode = self._process.returncode if self._process.returncode is not None else 0
        self._output.close()


class GpuWatch:
    """Asks nvidia-smi in rounds. Without the program nothing is ever asked and the view stays empty."""

    def __init__(
        self,
        *,
        clock: t.Callable[[], float],
        program: str | None,
        start: t.Callable[[Sequence[str], float], t.Any] = Query,
    ) -> None:
        self._clock = clock
        self._program = program
        self._start = start
        self._open: dict[str, t.Any] = {}
        self._gpus: tuple[GpuState, ...] = ()
        self._memory: dict[int, float] = {}
        self._uuids: dict[int, set[str]] = {}
        self._error = ""

    def ask(self) -> None:
        """Begin a round, unless the last one is still open."""
        if self._program is None or self._open:
            return
        now = self._clock()
        for kind, names in (("gpu", GPU_FIELDS), ("compute-apps", APPS_FIELDS)):
            argv = [self._program, f"--query-{kind}={','.join(names)}", "--format=csv,noheader,nounits"]
            try:
                self._open[kind] = self._start(argv, now)
            except OSError as error:
                self._error = f"nvidia-smi cannot be started: {error}"
                self._program = None
                return

    def view(self, pids: t.Collection[int] = ()) -> GpuView:
        """What is known now; the GPUs of the processes `pids` where they are known, else all."""
        self._collect()
        now = self._clock()
        silent = max((now - query.began for query in self._open.values()), default=0.0)
        uuids = frozenset(uuid for pid in pids for uuid in self._uuids.get(pid, ()))
        gpus = tuple(gpu for gpu in self._gpus if not uuids or gpu.uuid in uuids)
        return GpuView(
            gpus=gpus,
            apps=dict(self._memory),
            uuids=uuids,
            silent_for=silent if silent >= SILENT_S else 0.0,
            error=self._error,
        )

    def _collect(self) -> None:
        for kind, query in list(self._open.items()):
            answer = query.answer()
            if answer is None:
                continue
            del self._open[kind]
            code, text = answer
            if code:
                self._error = f"nvidia-smi failed ({code}): {' '.join(text.split())[:200]}"
            elif kind == "gpu":
                self._gpus, self._error = parse_gpus(text), ""
            else:
                self._memory, self._uuids = parse_apps(text)

    def close(self) -> None:
        """Leave nothing behind that can be ended."""
        for query in self._open.values():
            query.give_up()
        self._open = {}
