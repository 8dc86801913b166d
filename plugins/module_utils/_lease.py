# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lease of a host: one run at a time changes, measures or stops what it serves. PRIVATE to the collection.

A record in ``/run``: a full or read-only disk must not keep anybody from a rollback, and nothing is left on a host for good.
A reboot empties it, which frees no lease that is still wanted: the run that held it takes it up again, unless another one
was there first (what was freed leaves its record, so that this can be told).

Two locks of the kernel (flock(2), which ends with its process) make it sure: who takes or frees the lease holds one alone;
who changes the host shares it for as long as the change lasts. So nobody, not even by force, takes a lease over in the middle
of a change, and a run that lost it is told before its next one. Ages are of CLOCK_BOOTTIME, which nobody can set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import re
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._files import write_file
from ansible_collections.specdec.serving.plugins.module_utils._processes import boot_id

__all__ = (
    "DEFAULT_TTL_S",
    "LOST",
    "PATH",
    "Clock",
    "Lease",
    "LeaseError",
    "LeaseFile",
    "LeaseHeld",
    "LeaseLost",
    "Owner",
    "Taken",
    "guard",
    "renew",
)

PATH = "/run/specdec/sglang/lease.json"
#: Longer than any task that does not renew it, such as a blocking stop, and any wait for other hosts of the play.
DEFAULT_TTL_S = 900.0
#: How the message of a run that lost it begins.
LOST = "the lease of this host was taken over"
_FORMAT = 1
# Taking and freeing are over in milliseconds; who holds the lock for longer is changing the host.
_PATIENCE_S = 5.0
_POLL_S = 0.05
_TOKEN = re.compile(r"[0-9a-f]{8,64}\.[0-9]{1,9}")


class LeaseError(Exception):
    """The lease cannot be read or written, or what was asked makes no sense."""


class LeaseHeld(LeaseError):
    """Another run holds it: ``lease``, or None when its record cannot be read. ``busy``: it is changing the host right now."""

    def __init__(self, text: str, lease: Lease | None = None, *, busy: bool = False) -> None:
        super().__init__(text)
        self.lease = lease
        self.busy = busy


class LeaseLost(LeaseError):
    """The run held the lease and does so no more."""


@dataclasses.dataclass(frozen=True)
class Clock:
    """Seconds since boot that count on in a suspend, seconds since the epoch (for people only), and which boot this is."""

    boottime: t.Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    realtime: t.Callable[[], float] = time.time
    monotonic: t.Callable[[], float] = time.monotonic
    sleep: t.Callable[[float], None] = time.sleep
    boot: t.Callable[[], str] = boot_id


@dataclasses.dataclass(frozen=True)
class Owner:
    """One run of Ansible: its process on its controller. ``id`` names it; ``boot`` and ``pid_namespace`` say where ``pid`` is valid."""

    id: str
    host: str = ""
    user: str = ""
    pid: int = 0
    start_ticks: int = 0
    boot: str = ""
    pid_namespace: str = ""
    play: str = ""

    def describe(self) -> str:
        if not self.host:
            return "a run that began before this host was restarted"
        play = f", play {self.play!r}" if self.play else ""
        return f"{self.user}@{self.host} (ansible-playbook with pid {self.pid}{play})"

    def same_controller(self, other: Owner) -> bool:
        """Whether both are processes of one system, so that each can see whether the other lives."""
        return bool(self.boot) and (self.boot, self.pid_namespace) == (other.boot, other.pid_namespace)


@dataclasses.dataclass(frozen=True)
class Lease:
    """The record. ``taken`` and ``renewed`` are seconds since the boot ``boot``, ``taken_at`` and ``renewed_at`` since the epoch."""

    owner: Owner
    generation: int
    held: bool
    purposes: tuple[str, ...]
    ttl: float
    boot: str
    taken: float
    renewed: float
    taken_at: float
    renewed_at: float

    @property
    def token(self) -> str:
        return f"{self.owner.id}.{self.generation}"

    def idle_for(self, clock: Clock) -> float:
        """Seconds since it was renewed; of a record of an earlier boot at least the time since this one."""
        now = clock.boottime()
        return max(now - self.renewed, 0.0) if self.boot == clock.boot() else now

    def age(self, clock: Clock) -> float:
        """Seconds since it was taken, at least."""
        now = clock.boottime()
        return max(now - self.taken, 0.0) if self.boot == clock.boot() else now

    def expired(self, clock: Clock) -> bool:
        return self.idle_for(clock) >= self.ttl

    def who(self, clock: Clock) -> str:
        """Who, for what, and since when."""
        since = f"since {_utc(self.taken_at)} ({self.age(clock):.0f} s ago)"
        return f"{self.owner.describe()}, for {' > '.join(self.purposes) or 'nothing named'}, {since}"

    def describe(self, clock: Clock) -> str:
        """`who`, and until when."""
        idle = self.idle_for(clock)
        left = self.ttl - idle
        ends = f"it expires in {left:.0f} s unless it is renewed" if left > 0 else f"it expired {-left:.0f} s ago"
        return f"{self.who(clock)}, renewed {idle:.0f} s ago; {ends}"

    def report(self, clock: Clock) -> dict[str, t.Any]:
        """For a module's result."""
        return {
            "age_s": round(self.age(clock), 1),
            "expired": self.expired(clock),
            "expires_in_s": round(max(self.ttl - self.idle_for(clock), 0.0), 1),
            "owner": dataclasses.asdict(self.owner),
            "purposes": list(self.purposes),
            "since": _utc(self.taken_at),
            "token": self.token,
        }


@dataclasses.dataclass(frozen=True)
class Taken:
    """What came of taking a lease: ``new`` unless the run held it already, ``taken_from`` whom it was taken from, ``why`` that was right."""

    lease: Lease
    new: bool
    taken_from: Lease | None = None
    why: str = ""


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _parse(text: str) -> Lease:
    """Raises ValueError for anything that we did not write."""
    record = json.loads(text)
    if not isinstance(record, dict) or record.pop("format", None) != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT}")
    try:
        record["owner"] = Owner(**record["owner"])
        record["purposes"] = tuple(map(str, record["purposes"]))
        lease = Lease(**record)
        numbers = (lease.generation, lease.ttl, lease.taken, lease.renewed, lease.taken_at, lease.renewed_at)
        if not isinstance(lease.held, bool):
            raise ValueError("held is neither true nor false")
        if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
            raise ValueError("a time or its generation is no number")
        _utc(lease.taken_at)
    except (KeyError, TypeError, AttributeError, OverflowError, OSError) as error:
        raise ValueError(str(error)) from error
    return lease


class LeaseFile:
    """The lease whose record is ``path``; its lock lies beside it."""

    def __init__(self, path: str = PATH, clock: Clock | None = None, patience: float = _PATIENCE_S) -> None:
        self.path = path
        self.clock = Clock() if clock is None else clock
        self._patience = patience

    # The record

    def read(self) -> Lease | None:
        """The record, of a lease that is held or was freed; None: there has been none since the host started. Raises LeaseError."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LeaseError(f"the lease {self.path!r} cannot be read: {error}") from error
        try:
            return _parse(text)
        except (ValueError, RecursionError) as error:
            raise LeaseError(
                f"the lease {self.path!r} cannot be understood ({error}): it is damaged, or of another release of the"
                " collection. Make sure that nobody works on this host, then take it by force (sglang_lease_force: true)"
            ) from error

    def _write(self, lease: Lease) -> None:
        record = {"format": _FORMAT, **dataclasses.asdict(lease)}
        try:
            write_file(self.path, json.dumps(record, indent=1, sort_keys=True), mode=0o644)
        except OSError as error:
            raise LeaseError(f"the lease {self.path!r} cannot be written: {error}") from error

    @contextlib.contextmanager
    def _locked(self, how: int, patience: float) -> t.Iterator[int]:
        """Give the lock's descriptor. Raises LeaseHeld when it is not to be had in time."""
        folder = os.path.dirname(self.path)
        umask = os.umask(0o022)
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            hint = ""
            if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
                hint = ". This task runs as an ordinary user: it needs root (become: true, ansible_become)"
            raise LeaseError(f"the lock of the lease {self.path!r} cannot be opened: {error}{hint}") from error
        finally:
            os.umask(umask)
        try:
            deadline = self.clock.monotonic() + patience
            while True:
                try:
                    fcntl.flock(descriptor, how | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                        raise LeaseError(f"the lock of the lease {self.path!r} does not work: {error}") from error
                if self.clock.monotonic() >= deadline:
                    lease = None
                    with contextlib.suppress(LeaseError):
                        lease = self.read()
                    who = f"a task of {lease.describe(self.clock)}" if lease is not None else "a task"
                    raise LeaseHeld(f"{who}: it is changing the host right now", lease, busy=True)
                self.clock.sleep(_POLL_S)
            yield descriptor
        finally:
            os.close(descriptor)

    # What a run does with it

    def take(
        self,
        owner: Owner,
        purpose: str,
        *,
        ttl: float = DEFAULT_TTL_S,
        token: str = "",
        force: bool = False,
        gone: str = "",
    ) -> Taken:
        """Take the lease, or take part in the one that this run holds: each ``take`` needs its ``free``.

        :param token: of the lease that the run believes to hold, '' = none.
        :param force: take it from whoever holds it, once no change is under way.
        :param gone: token of a lease whose run is known to have ended.
        :raises LeaseHeld: another run holds it.
        :raises LeaseLost: the run held it, and another one has taken it over.
        """
        with self._locked(fcntl.LOCK_EX, self._patience):
            try:
                old = self.read()
            except LeaseError as error:
                if not force:
                    raise LeaseHeld(str(error)) from error
                old = None
            if token:
                mine = self._mine(token)
                lease = self._renewed(dataclasses.replace(mine, purposes=(*mine.purposes, purpose), ttl=ttl))
                self._write(lease)
                return Taken(lease, new=False)
            taken_from, why = None, ""
            if old is not None and old.held:
                if old.owner.id == owner.id:
                    lease = self._renewed(dataclasses.replace(old, purposes=(*old.purposes, purpose), ttl=ttl))
                    self._write(lease)
                    return Taken(lease, new=False)
                why = self.may_take(old, owner, force=force, gone=gone)
                if not why:
                    raise LeaseHeld(old.describe(self.clock), old)
                taken_from = old
            now, real = self.clock.boottime(), self.clock.realtime()
            lease = Lease(
                owner=owner,
                generation=1 if old is None else old.generation + 1,
                held=True,
                purposes=(purpose,),
                ttl=ttl,
                boot=self.clock.boot(),
                taken=now,
                renewed=now,
                taken_at=real,
                renewed_at=real,
            )
            self._write(lease)
            return Taken(lease, new=True, taken_from=taken_from, why=why)

    def may_take(self, old: Lease, owner: Owner, *, force: bool, gone: str) -> str:
        """Why a lease may be taken from another run; '' = it may not."""
        if force:
            return "it was taken by force"
        if gone and gone == old.token:
            return "its ansible-playbook has ended"
        # Of a run on our own controller we can see whether it lives, so its silence proves nothing.
        if old.expired(self.clock) and not old.owner.same_controller(owner):
            return "it had expired"
        return ""

    def free(self, token: str) -> Lease | None:
        """Undo one ``take``. Gives the lease if the run holds it still, for what it was taken for before; else None.

        A lease that is another's by now is left alone.
        """
        with self._locked(fcntl.LOCK_EX, self._patience):
            try:
                old = self.read()
            except LeaseError:
                return None
            if old is None or not old.held or old.token != token:
                return None
            purposes = old.purposes[:-1]
            lease = self._renewed(dataclasses.replace(old, purposes=purposes or old.purposes, held=bool(purposes)))
            self._write(lease)
            return lease if lease.held else None

    def renew(self, token: str) -> Lease:
        """Raises LeaseLost unless ``token`` is that of the lease in force, and lets it begin its time to live anew."""
        with self._locked(fcntl.LOCK_SH, self._patience):
            lease = self._renewed(self._mine(token))
            self._write(lease)
            return lease

    @contextlib.contextmanager
    def guard(self, token: str) -> t.Iterator[None]:
        """Hold the lease for a change: nobody takes it over meanwhile. Raises LeaseLost before anything is done."""
        with self._locked(fcntl.LOCK_SH, self._patience) as descriptor:
            self._write(self._renewed(self._mine(token)))
            # Were we killed, the commands that we started would go on: they hold the lock as well.
            os.set_inheritable(descriptor, True)
            try:
                yield
            finally:
                with contextlib.suppress(LeaseError):
                    self._write(self._renewed(self._mine(token)))

    def _mine(self, token: str) -> Lease:
        if not _TOKEN.fullmatch(token):
            raise LeaseError(f"{token!r} is no token of a lease: give the one that sglang_lease returned")
        lease = self.read()
        if lease is None:
            # Another run would have left its record: nobody has been here since the host was restarted.
            return self._resumed(token)
        if lease.token == token and lease.held:
            return lease
        if lease.token == token:
            raise LeaseLost("this run has freed the lease of the host already; nothing was changed")
        what = "still holds" if lease.held else "has freed"
        raise LeaseLost(
            f"{LOST}, so this run changes nothing here any more. Who took it {what} it: {lease.who(self.clock)}"
        )

    def _resumed(self, token: str) -> Lease:
        identity, _dot, generation = token.partition(".")
        now, real = self.clock.boottime(), self.clock.realtime()
        return Lease(
            owner=Owner(id=identity),
            generation=int(generation),
            held=True,
            purposes=("what it had begun",),
            ttl=DEFAULT_TTL_S,
            boot=self.clock.boot(),
            taken=now,
            renewed=now,
            taken_at=real,
            renewed_at=real,
        )

    def _renewed(self, lease: Lease) -> Lease:
        now = self.clock.boottime()
        if lease.boot == self.clock.boot():
            return dataclasses.replace(lease, renewed=now, renewed_at=self.clock.realtime())
        return dataclasses.replace(
            lease, boot=self.clock.boot(), taken=now, renewed=now, renewed_at=self.clock.realtime()
        )


def renew(token: str, path: str = PATH) -> None:
    """Raises LeaseLost when the lease with that token is no more; '' = there is none to be kept."""
    if token:
        LeaseFile(path).renew(token)


@contextlib.contextmanager
def guard(token: str, path: str = PATH) -> t.Iterator[None]:
    """Hold the lease with that token for a change of the host; '' = there is none to be kept."""
    if not token:
        yield
        return
    with LeaseFile(path).guard(token):
        yield
