# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lab hosts: made, found again, healed and removed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.specdec.serving.tests.support.lab import inventory, tools
from ansible_collections.specdec.serving.tests.support.lab.engine import Engine, Holder
from ansible_collections.specdec.serving.tests.support.lab.image import INIT, ensure_image, image_tag
from ansible_collections.specdec.serving.tests.support.lab.machine import detect, make_plan
from ansible_collections.specdec.serving.tests.support.lab.processes import (
    CommandFailed,
    LabError,
    ProcessMark,
    mark_process,
    run,
)

__all__ = ["CHECKOUT", "Host", "Lab", "check_name", "parse_volume"]

CHECKOUT = Path(__file__).resolve().parents[3]
BOOT_TIMEOUT = 60.0  # s; 1 to 2 s is usual
SSH_PORT = 22
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
# What root may do on a real host and the tests rely on: sandboxed units (SYS_ADMIN), ssh -t (AUDIT_WRITE), looking into
# other users' processes (SYS_PTRACE), Nice= and the like (SYS_NICE), routes and firewalls (NET_ADMIN).
CAPABILITIES = "AUDIT_WRITE,NET_ADMIN,SYS_ADMIN,SYS_NICE,SYS_PTRACE"
SECURITY = ("seccomp=unconfined", "apparmor=unconfined", "label=disable")


def check_name(name: str) -> str:
    """*name* if it can be a host name; LabError otherwise."""
    if not NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for a lab host: lower-case letters, digits and '-', 32 at most")
    return name


def parse_volume(text: str) -> str:
    """``HOST:GUEST[:ro]`` with an absolute host path; LabError where it is wrong or the host path is missing."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not parts[1].startswith("/") or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise LabError(f"volume {text!r}: expected HOST:GUEST or HOST:GUEST:ro, GUEST absolute")
    source = Path(parts[0]).resolve()
    if not source.exists():
        raise LabError(f"volume {text!r}: {str(source)!r} does not exist")
    return ":".join([str(source), *parts[1:]])


def _identities(volumes: Iterable[str]) -> tuple[str, ...]:
    """``DEVICE:INODE`` of each source: a host keeps showing the old folder when a new one takes its name."""
    found = []
    for volume in volumes:
        try:
            status = os.stat(volume.split(":")[0])
        except FileNotFoundError:
            found.append("gone")
        else:
            found.append(f"{status.st_dev}:{status.st_ino}")
    return tuple(found)


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file that appears whole and with its mode from the start."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as out:
        os.fchmod(out.fileno(), mode)
        out.write(text)
    new.replace(path)


def _make_key(path: Path, comment: str) -> None:
    if not path.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def _free_port() -> int:
    """A TCP port on loopback that nothing holds and no left-over forwarding rule catches."""
    for _attempt in range(50):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        with socket.socket() as probe:
            probe.settimeout(1)
            try:
                probe.connect(("127.0.0.1", port))
            except ConnectionRefusedError:
                return port
            except OSError:
                continue  # "No route to host" or silence: a rule of a host that is gone sends it elsewhere
    raise LabError("found no free TCP port on 127.0.0.1")


def _speaks_ssh(port: int, timeout: float) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            return connection.recv(8).startswith(b"SSH-2.0-")
    except OSError:
        return False


@dataclass(frozen=True)
class Host:
    """One running lab host.

    ``port`` is sshd's on 127.0.0.1, ``address`` the IPv4 address in the lab's network, ``process`` the host's init.
    """

    lab: Lab
    name: str
    container: str
    container_id: str
    port: int
    address: str
    process: ProcessMark
    monitor: ProcessMark
    netns: str
    image: str
    volumes: tuple[str, ...]
    sources: tuple[str, ...]
    journal_size: str

    @property
    def folder(self) -> Path:
        return self.lab.folder / "hosts" / self.name

    @property
    def key_file(self) -> str:
        """Private key for both login users."""
        return str(self.lab.folder / "client_key")

    @property
    def known_hosts_file(self) -> str:
        return str(self.folder / "known_hosts")

    @property
    def password(self) -> str:
        """Password of the user deploy-pw, whose sudo asks for it."""
        return self.lab.password_file.read_text().strip()

    def alive(self) -> bool:
        return self.process.alive()

    def exec(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,  # noqa: A002  the name that subprocess.run has
        check: bool = True,
        timeout: float | None = None,
        user: str = "root",
    ) -> subprocess.CompletedProcess[str]:
        """Run *argv* inside, as root unless *user* says otherwise; CommandFailed on a non-zero status if *check*."""
        return self.lab.engine.call(
            *self._exec_words(argv, user=user, stdin=input is not None), input=input, check=check, timeout=timeout
        )

    def _exec_words(self, argv: Sequence[str], *, user: str, stdin: bool, tty: bool = False) -> list[str]:
        options = [*(["--interactive"] if stdin else []), *(["--tty"] if tty else [])]
        return ["exec", *options, "--user", user, "--workdir", "/", self.container, *argv]

    def exec_argv(self, argv: Sequence[str], *, user: str = "root", tty: bool = False) -> list[str]:
        """The command line on this machine that runs *argv* inside, for a caller that runs it itself."""
        return self.lab.engine.argv(*self._exec_words(argv, user=user, stdin=True, tty=tty))

    def ssh_argv(self, command: str = "", *, user: str = "deploy", options: Sequence[str] = ()) -> list[str]:
        """The ssh command line to this host; *command* is for the remote shell, as ssh has it."""
        base = [
            "ssh",
            "-F",
            "/dev/null",
            "-p",
            str(self.port),
            "-i",
            self.key_file,
            *inventory.ssh_options(self.known_hosts_file),
        ]
        return [*base, "-o", "LogLevel=ERROR", *options, f"{user}@127.0.0.1", *([command] if command else [])]

    def ssh(
        self,
        command: str,
        *,
        input: str | None = None,  # noqa: A002  the name that subprocess.run has
        check: bool = True,
        timeout: float | None = None,
        user: str = "deploy",
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command over SSH as *user*."""
        argv = self.ssh_argv(command, user=user, options=["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"])
        return run(argv, input=input, check=check, timeout=timeout)

    def write_file(self, path: str, text: str, *, mode: str = "0644", owner: str = "root") -> None:
        """Put a file inside, with its folders."""
        self.exec(["install", "-D", "-m", mode, "-o", owner, "/dev/stdin", path], input=text)

    def journal(self, unit: str, *options: str) -> str:
        """The journal of one unit, without the head line."""
        return self.exec(["journalctl", "--no-pager", "--quiet", "--unit", unit, *options]).stdout

    def to_json(self) -> dict[str, Any]:
        """The record, as it is kept and shown."""
        values = {key: value for key, value in vars(self).items() if key != "lab"}
        return {**values, "process": vars(self.process), "monitor": vars(self.monitor)}


class Lab:
    """The lab hosts of one checkout."""

    def __init__(self, checkout: Path = CHECKOUT) -> None:
        self.checkout = checkout
        self.build = checkout / "build"
        self.folder = self.build / "lab"
        self.identity = hashlib.sha256(str(checkout).encode()).hexdigest()[:8]
        self.label = f"specdec.lab={self.identity}"
        self.network = f"specdec-lab-{self.identity}"
        self.password_file = self.folder / "deploy-pw.password"
        self.plan = make_plan(detect())
        self.engine = Engine(self.plan, Holder(self.folder / "holder.json"))
        self.engine.residents = [host.monitor for host in self.records().values()]

    # -- records -------------------------------------------------------------------------------------------------

    def record(self, name: str) -> Host | None:
        """The record of a host, dead or alive."""
        try:
            values = json.loads((self.folder / "hosts" / check_name(name) / "host.json").read_text())
            values["process"] = ProcessMark.from_json(values["process"])
            values["monitor"] = ProcessMark.from_json(values["monitor"])
            values["volumes"] = tuple(values["volumes"])
            values["sources"] = tuple(values["sources"])
            return Host(lab=self, **values)
        except FileNotFoundError:
            return None
        except (KeyError, TypeError):
            return None  # another version of this tool wrote it: as if there were none, so `up` makes the host afresh

    def records(self) -> dict[str, Host]:
        """All records, by name."""
        names = sorted(path.parent.name for path in (self.folder / "hosts").glob("*/host.json"))
        return {name: host for name in names for host in [self.record(name)] if host is not None}

    def host(self, name: str) -> Host:
        """A running host; LabError when there is none of that name."""
        host = self.record(name)
        if host is None or not host.alive():
            raise LabError(f"there is no running lab host {name!r}; make it with: tests/support/lab/lab.py up {name}")
        return host

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time in this checkout."""
        (self.folder / "hosts").mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("lab: waiting for another lab command of this checkout", file=sys.stderr)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # -- up ------------------------------------------------------------------------------------------------------

    def up(
        self, names: Sequence[str], *, volumes: Sequence[str] | None = None, journal_size: str | None = None
    ) -> dict[str, Host]:
        """Make the hosts of *names* that are not there, and wait until all accept logins.

        A host that is there stays as it is, unless it is dead or asked for differently: then it is made afresh.
        None for an option means: as it is, or the default for a new host. Default volumes are the checkout's wheelhouse
        and models folders, read-only; *volumes* adds to them. *journal_size* is journald's SystemMaxUse= (``64M``).
        """
        for name in names:
            check_name(name)
        asked = None if volumes is None else tuple(parse_volume(volume) for volume in volumes)
        if journal_size is not None and not re.fullmatch(r"[0-9]+[KMG]?", journal_size):
            raise LabError(f"journal size {journal_size!r}: expected a number of bytes, or with K, M or G")
        for default in ("wheelhouse", "models"):
            (self.build / default).mkdir(parents=True, exist_ok=True)
        with self._locked():
            fresh = []
            for name in dict.fromkeys(names):
                host = self.record(name)
                if host is not None and self._is_as_asked(host, asked, journal_size):
                    continue
                keep_volumes = host.volumes if host is not None and asked is None else self._all_volumes(asked or ())
                keep_size = host.journal_size if host is not None and journal_size is None else journal_size or ""
                fresh.append((name, keep_volumes, keep_size))
            if fresh:
                tools.ensure(tools.needed(self.plan, image=False))
                image = ensure_image(self.engine)
                started = [self._start(name, image, its_volumes, its_size) for name, its_volumes, its_size in fresh]
                for host in started:
                    self._wait_until_running(host)
            return {name: self.host(name) for name in names}

    def _all_volumes(self, asked: Iterable[str]) -> tuple[str, ...]:
        defaults = {
            "/srv/wheelhouse": f"{self.build / 'wheelhouse'}:/srv/wheelhouse:ro",
            "/models": f"{self.build / 'models'}:/models:ro",
        }
        return tuple({**defaults, **{volume.split(":")[1]: volume for volume in asked}}.values())

    def _is_as_asked(self, host: Host, asked: tuple[str, ...] | None, journal_size: str | None) -> bool:
        why = ""
        if not host.alive():
            why = "its processes are gone"
        elif host.image != image_tag():
            why = "the image's recipe changed"
        elif host.sources != _identities(host.volumes):
            why = "a folder that it shows was replaced or is gone"
        elif asked is not None and host.volumes != self._all_volumes(asked):
            why = "other volumes are asked for"
        elif journal_size is not None and host.journal_size != journal_size:
            why = "another journal size is asked for"
        elif not _speaks_ssh(host.port, timeout=5):
            why = "its sshd does not answer"
        if why:
            print(f"lab: {host.name} is made afresh: {why}", file=sys.stderr)
        return not why

    def _prepare_folder(self, name: str, journal_size: str) -> Path:
        """Keys and settings that the host reads from ``/etc/lab``."""
        folder = self.folder / "hosts" / name
        inside = folder / "etc"
        inside.mkdir(parents=True, exist_ok=True)
        inside.chmod(0o755)  # the login users' shells may look; the secret files in it have modes of their own
        _make_key(self.folder / "client_key", "specdec lab client")
        _make_key(inside / "ssh_host_ed25519_key", f"specdec lab {name}")
        if not self.password_file.exists():
            _write(self.password_file, secrets.token_urlsafe(12) + "\n", 0o600)
        _write(inside / "deploy-pw.password", self.password_file.read_text(), 0o600)
        _write(inside / "authorized_keys", (self.folder / "client_key.pub").read_text(), 0o644)
        _write(inside / "journald.conf", f"[Journal]\nSystemMaxUse={journal_size}\n", 0o644)
        return folder

    def _start(self, name: str, image: str, volumes: tuple[str, ...], journal_size: str) -> Host:
        container = f"{self.network}-{name}"
        self.engine.remove(container)
        folder = self._prepare_folder(name, journal_size)
        (folder / "host.json").unlink(missing_ok=True)
        self.engine.ensure_network(self.network, self.label)
        for attempt in range(5):
            port = _free_port()
            try:
                self.engine.call(
                    "run", "--detach", "--name", container, "--label", self.label, "--label", f"specdec.lab.checkout={self.checkout}",
                    "--hostname", name, "--systemd", "always", "--network", self.network, "--publish", f"127.0.0.1:{port}:{SSH_PORT}",
                    "--log-driver", "k8s-file", "--shm-size", "4g", "--cap-add", CAPABILITIES,
                    *(word for option in SECURITY for word in ("--security-opt", option)),
                    *self.engine.run_options,
                    *(word for volume in (f"{folder / 'etc'}:/etc/lab:ro", *volumes) for word in ("--volume", volume)),
                    image, INIT,
                )  # fmt: skip
                break
            except CommandFailed as error:
                self.engine.remove(container)
                if attempt == 4 or "address already in use" not in str(error):
                    raise
        key = (folder / "etc" / "ssh_host_ed25519_key.pub").read_text().split()
        _write(folder / "known_hosts", f"[127.0.0.1]:{port} {key[0]} {key[1]}\n", 0o600)
        return self._note(
            name, container, port=port, image=image, volumes=volumes, journal_size=journal_size, folder=folder
        )

    def _note(
        self,
        name: str,
        container: str,
        *,
        port: int,
        image: str,
        volumes: tuple[str, ...],
        journal_size: str,
        folder: Path,
    ) -> Host:
        """Write the record of a container that was just started."""
        known = self.engine.inspect(container)
        if known is None or not known["State"]["Pid"]:
            raise LabError(
                f"the container of {name!r} ended at once:\n{self.engine.call('logs', container, check=False).stderr}"
            )
        host = Host(
            lab=self,
            name=name,
            container=container,
            container_id=known["Id"],
            port=port,
            address=known["NetworkSettings"]["Networks"][self.network]["IPAddress"],
            process=mark_process(known["State"]["Pid"]),
            monitor=mark_process(known["State"]["ConmonPid"]),
            netns=known["NetworkSettings"].get("SandboxKey") or "",
            image=image,
            volumes=volumes,
            sources=_identities(volumes),
            journal_size=journal_size,
        )
        _write(folder / "host.json", json.dumps(host.to_json(), indent=2) + "\n", 0o600)
        return host

    def reboot(self, name: str) -> Host:
        """Cut the power of a host and switch it on again; gives it when it accepts logins, with its new processes.

        All its processes end at once and unasked (SIGKILL), and no file system of its own is unmounted. What was written stays
        (but for the page cache's sake: nothing that a program wrote is lost, synced or not); ``/run``, ``/tmp`` and the
        journal, which lie in memory, begin empty. Port, host key, address and volumes stay. A host that is off
        (``systemctl poweroff``) is switched on.

        The kernel is the machine's and does not reboot: boot id, uptime and monotonic clock go on.
        """
        with self._locked():
            host = self.record(check_name(name))
            if host is None:
                raise LabError(f"there is no lab host {name!r}; make it with: tests/support/lab/lab.py up {name}")
            self.engine.restart(host.container, network=self.network, address=host.address)
            fresh = self._note(
                name,
                host.container,
                port=host.port,
                image=host.image,
                volumes=host.volumes,
                journal_size=host.journal_size,
                folder=host.folder,
            )
            self.engine.residents = [one.monitor for one in self.records().values()]
            self._wait_until_running(fresh)
            return fresh

    def _wait_until_running(self, host: Host) -> None:
        """Log in like everyone else and ask systemd; a host that comes up degraded is a fault, not a detail."""
        deadline = time.monotonic() + BOOT_TIMEOUT
        said = "sshd did not answer"
        while time.monotonic() < deadline:
            if not host.alive():
                said = "its init ended"
                break
            if _speaks_ssh(host.port, timeout=2):
                done = host.ssh(
                    "systemctl is-system-running --wait", check=False, timeout=max(1.0, deadline - time.monotonic())
                )
                said = (done.stdout + done.stderr).strip()
                if said == "running":
                    return
                if said in ("degraded", "maintenance", "stopping"):
                    break
            time.sleep(0.05)
        failed = host.exec(["systemctl", "--failed", "--no-legend", "--plain"], check=False) if host.alive() else None
        console = self.engine.call("logs", "--tail", "20", host.container, check=False)
        raise LabError(
            f"lab host {host.name!r} did not come up: {said}\n{failed.stdout if failed else ''}{console.stdout}{console.stderr}".rstrip()
        )

    # -- down ----------------------------------------------------------------------------------------------------

    def down(self, names: Sequence[str] | None = None) -> list[str]:
        """Remove these hosts, or all of this checkout; names of those that were there.

        With the last host go the network and the holder; keys and the image stay.
        """
        if not self.folder.exists() or tools.missing(["podman"]):
            return []
        with self._locked():
            prefix = f"{self.network}-"
            present = {
                container[len(prefix) :]
                for container in self.engine.containers(self.label)
                if container.startswith(prefix)
            }
            known = present | set(self.records())
            wanted = sorted(known) if names is None else [check_name(name) for name in names]
            gone = []
            for name in wanted:
                self.engine.remove(prefix + name)
                shutil.rmtree(self.folder / "hosts" / name, ignore_errors=True)
                if name in known:
                    gone.append(name)
            if not known - set(wanted):
                self.engine.remove_network(self.network)
                self.engine.end()
            return gone
