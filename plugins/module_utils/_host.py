# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the wait for readiness needs of a machine. PRIVATE to the collection.

The real one is ``_ready_host.SystemHost``; tests script one.
"""

from __future__ import annotations

import abc
import dataclasses
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._http import Response
from ansible_collections.specdec.serving.plugins.module_utils._hung import Machine
from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry
from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import KernelLine
from ansible_collections.specdec.serving.plugins.module_utils._not_started import Reason
from ansible_collections.specdec.serving.plugins.module_utils._readiness import EngineProcess
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState


@dataclasses.dataclass(frozen=True)
class PortView:
    """Who listens on the port: ``owned`` True / False / None as in gate 2, ``owners`` for people."""

    listening: bool = False
    owned: bool | None = None
    owners: tuple[str, ...] = ()
    #: The .socket units that systemd itself holds it for.
    socket_units: tuple[str, ...] = ()
    source: str = ""
    #: Where the unit listens on that port, when that is not where it should.
    elsewhere: tuple[str, ...] = ()
    #: Nothing listens, and the main process lives in another network than we do.
    other_network: bool = False


class Host(Machine):
    """What the wait needs of a machine; the real one is ``_ready_host.SystemHost``."""

    @abc.abstractmethod
    def monotonic(self) -> float:
        """CLOCK_MONOTONIC in seconds, the clock of the journal's and systemd's monotonic stamps."""

    @abc.abstractmethod
    def realtime(self) -> float:
        """Seconds since the epoch."""

    @abc.abstractmethod
    def boot_id(self) -> str:
        """Identity of this boot: monotonic times of another boot mean nothing."""

    @abc.abstractmethod
    def show(self) -> UnitState:
        """The unit's state now."""

    @abc.abstractmethod
    def watch(self, unit: UnitState) -> None:
        """From now on attend to this invocation: its journal and its main process."""

    @abc.abstractmethod
    def main_alive(self) -> bool | None:
        """Whether the watched main process lives; None when there is none."""

    @abc.abstractmethod
    def main_arguments(self) -> t.Mapping[str, t.Any]:
        """Arguments on the main process's command line, dest to text or True."""

    @abc.abstractmethod
    def engine(self, unit: UnitState) -> frozenset[EngineProcess]:
        """Living processes of the unit that must not die."""

    @abc.abstractmethod
    def port(self, unit: UnitState) -> PortView:
        """Who listens on the server's port now."""

    def clients(self) -> frozenset[bytes] | None:
        """Identities of the open connections to the server's port; None: they cannot be seen."""
        return None

    @abc.abstractmethod
    def history(self, cursor: str | None) -> t.Iterable[list[Entry]]:
        """The watched invocation's journal so far, after ``cursor``, in parts of bounded size."""

    @abc.abstractmethod
    def journal_error(self) -> str:
        """Why ``history`` could not read all of it; '' = it could."""

    def journal_damage(self) -> str:
        """Which part of the journal is damaged while the rest can be read; '' = none."""
        return ""

    @abc.abstractmethod
    def cursor(self) -> str | None:
        """Where the journal was read up to."""

    @abc.abstractmethod
    def follow(self) -> list[Entry]:
        """Entries that came since the last call."""

    @abc.abstractmethod
    def last_entries(self) -> t.Iterable[Entry]:
        """After the end of the invocation: the rest of its journal, synchronised."""

    @abc.abstractmethod
    def orphans(self) -> list[Entry]:
        """Lines of the unit since this start that bear no invocation: last words that journald could not attribute."""

    @abc.abstractmethod
    def kernel_lines(self, unit: UnitState) -> tuple[tuple[KernelLine, ...], str]:
        """The kernel's log since the unit's main process started, and why it could not be read ('' = it could)."""

    @abc.abstractmethod
    def gpus(self) -> t.Mapping[str, str]:
        """Names of the GPUs by PCI address (`0000:41:00`)."""

    @abc.abstractmethod
    def reason(self, unit: UnitState) -> Reason | None:
        """What systemd knows of a start that failed, or never was, before the server could say anything."""

    @abc.abstractmethod
    def release(self) -> str:
        """The SGLang release that the unit would start, '' = unknown."""

    @abc.abstractmethod
    def request(
        self, method: str, path: str, *, timeout: float, payload: t.Any = None, abort: t.Callable[[], bool]
    ) -> Response:
        """One HTTP request to the server; raises HttpError. ``abort`` is asked many times a second while it waits."""

    @abc.abstractmethod
    def request_leader(
        self, method: str, path: str, *, timeout: float, payload: t.Any = None, abort: t.Callable[[], bool]
    ) -> Response:
        """The same to the server of rank 0; raises HttpError also when none was given."""

    @abc.abstractmethod
    def driver(self) -> str:
        """The version of the GPU driver, '' = none or unknown."""

    @abc.abstractmethod
    def pause(self, seconds: float) -> None:
        """Wait for an event or ``seconds``; raises HangUp when nobody listens to us any more."""


__all__ = ("Host", "PortView")
