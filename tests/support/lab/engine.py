# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman, called the way this machine needs it, and the process that holds our private view of the cgroups.

On a machine with hybrid cgroups every podman command must run in one mount namespace that has a plain cgroup v2 tree:
the network namespaces of the containers are mounted in it. A process of its own holds that namespace between commands.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible_collections.specdec.serving.tests.support.lab.machine import Plan
from ansible_collections.specdec.serving.tests.support.lab.processes import (
    CommandFailed,
    LabError,
    ProcessMark,
    mark_process,
    run,
)
from ansible_collections.specdec.serving.tests.support.lab.remains import delete_network_rules, delete_rules
from ansible_collections.specdec.serving.tests.support.lab.tools import SEARCH_PATH

__all__ = ["Engine", "Holder"]

_SET_UP = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && echo ready && exec sleep infinity"
_LOST = re.compile(r"container (?P<id>[0-9a-f]{64}): retrieving network namespace at (?P<netns>/\S+): ")
_TAKE_OVER = "echo ready && exec sleep infinity"


class Holder:
    """The process that keeps the private mount namespace; found again by its mark in *record*."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def mark(self) -> ProcessMark | None:
        """The living holder, or None."""
        try:
            mark = ProcessMark.from_json(json.loads(self._record.read_text()))
        except FileNotFoundError:
            return None
        return mark if mark.alive() else None

    def ensure(self, residents: Iterable[ProcessMark] = ()) -> ProcessMark:
        """The living holder, or a new one.

        Where the old holder died but a process of *residents* still lives in its namespace, the new one moves in there;
        so hosts that are still up stay reachable for podman.
        """
        with open(self._record.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self.mark() or self._make(residents)

    def _make(self, residents: Iterable[ProcessMark]) -> ProcessMark:
        resident = next((one for one in residents if one.alive()), None)
        if resident is None:
            argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SET_UP]
        else:
            argv = ["nsenter", "--mount", "--target", str(resident.pid), "sh", "-c", _TAKE_OVER]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            text=True,
        )
        # stdout and stderr go nowhere afterwards: sleep writes nothing.
        if process.stdout is None or process.stderr is None:
            raise LabError("no pipe to the new mount namespace's process")
        if process.stdout.readline().strip() != "ready":
            raise LabError(f"could not make a mount namespace with cgroup v2: {process.stderr.read().strip()}")
        mark = mark_process(process.pid)
        self._record.write_text(json.dumps(vars(mark)))
        process.stdout.close()
        process.stderr.close()
        process.returncode = 0  # it outlives us on purpose; do not let Popen warn about that
        return mark

    def end(self) -> None:
        """End the holder, and with it the namespace."""
        mark = self.mark()
        if mark is not None:
            os.kill(mark.pid, 9)
        self._record.unlink(missing_ok=True)


class Engine:
    """Podman commands on this machine."""

    def __init__(self, plan: Plan, holder: Holder) -> None:
        self._plan = plan
        self._holder = holder
        self.residents: list[ProcessMark] = []

    def end(self) -> None:
        """End the holder; only when no container is left."""
        self._holder.end()

    @property
    def run_options(self) -> tuple[str, ...]:
        """Options that ``podman run`` needs on this machine."""
        return self._plan.run_options

    def argv(self, *words: str) -> list[str]:
        """The command line for ``podman WORDS``; makes the holder first where one is needed."""
        prefix: list[str] = []
        if self._plan.own_namespace:
            prefix = ["nsenter", "--mount", "--target", str(self._holder.ensure(self.residents).pid)]
        runtime = ["--runtime", self._plan.runtime] if self._plan.runtime else []
        return [*prefix, "podman", *runtime, *words]

    def call(
        self,
        *words: str,
        input: str | None = None,  # noqa: A002  the name that subprocess.run has
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``podman WORDS`` and capture its output."""
        return run(self.argv(*words), input=input, check=check, timeout=timeout, env=dict(os.environ, PATH=SEARCH_PATH))

    def inspect(self, container: str) -> dict[str, Any] | None:
        """What podman knows of a container, or None when there is no such container."""
        if self.call("container", "exists", container, check=False).returncode != 0:
            return None
        found: list[dict[str, Any]] = json.loads(self.call("container", "inspect", container).stdout)
        return found[0]

    def containers(self, label: str) -> list[str]:
        """Names of all containers with this label (``KEY=VALUE``), running or not.

        podman cannot list a container that it believes to run while its network namespace is gone. Such a one is dead;
        where it carries the label it is removed on the way, and named all the same.
        """
        key, _equals, value = label.partition("=")
        removed: list[str] = []
        while True:
            done = self.call("ps", "--all", "--filter", f"label={label}", "--format", "{{.Names}}", check=False)
            if done.returncode == 0:
                return removed + done.stdout.split()
            lost = _LOST.search(done.stderr)
            known = self.inspect(lost["id"]) if lost else None
            if lost is None or known is None or known["Config"]["Labels"].get(key) != value or known["Name"] in removed:
                raise CommandFailed(done.args, done.returncode, done.stdout, done.stderr)
            self.remove(lost["id"])
            removed.append(known["Name"])

    def restart(self, container: str, *, network: str, address: str) -> None:
        """End all processes of a container with SIGKILL and start it again, with its files and its address in the network."""
        self.call("kill", "--signal", "KILL", container, check=False)  # one that has ended already is just started
        # Ended and cleaned up: its network is taken down by then, and another one can be given to it.
        self.call("wait", container, timeout=60)
        self.call("container", "cleanup", container)
        self.call("network", "disconnect", network, container)
        self.call("network", "connect", "--ip", address, network, container)
        self.call("start", container)

    def remove(self, container: str) -> None:
        """Remove one container and what it left on the machine.

        podman itself cannot take the port forwarding back when the container's processes were killed together with the
        mount namespace that its network namespace was mounted in.
        """
        if self.call("container", "exists", container, check=False).returncode != 0:
            return
        found = self.call("container", "inspect", "--format", "{{.Id}}", container)
        # The first try can lose against podman's own late discovery that the container has ended.
        for attempt in range(3):
            done = self.call("rm", "--force", "--time", "0", "--volumes", container, check=attempt == 2)
            if done.returncode == 0:
                break
            time.sleep(0.2)
        if self._plan.own_namespace:
            lost = _LOST.search(found.stderr)
            self._remove_remains(found.stdout.strip(), lost["netns"] if lost else "")

    def _remove_remains(self, container_id: str, netns: str) -> None:
        env = dict(os.environ, PATH=SEARCH_PATH)
        saved = run(["iptables-save", "-t", "nat"], env=env).stdout
        for words in delete_rules(saved, container_id=container_id):
            run(["iptables", "--wait", "-t", "nat", *words], env=env)
        # The file that a lost namespace was mounted on is left behind, empty.
        if netns.startswith("/run/netns/netns-"):
            Path(netns).unlink(missing_ok=True)

    def ensure_network(self, name: str, label: str) -> None:
        """Make the lab's own network if it is not there."""
        if self.call("network", "exists", name, check=False).returncode != 0:
            self.call("network", "create", "--disable-dns", "--label", label, name)

    def remove_network(self, name: str) -> None:
        """Remove the lab's own network if it is there, with what killed hosts left of it on the machine."""
        if self.call("network", "exists", name, check=False).returncode != 0:
            return
        known = json.loads(self.call("network", "inspect", name).stdout)[0]
        self.call("network", "rm", name)
        if not self._plan.own_namespace:
            return
        env = dict(os.environ, PATH=SEARCH_PATH)
        for subnet in known["subnets"]:
            for words in delete_network_rules(run(["iptables-save"], env=env).stdout, subnet=subnet["subnet"]):
                run(["iptables", "--wait", *words], env=env)
        if Path("/sys/class/net", known["network_interface"]).exists():
            run(["ip", "link", "delete", known["network_interface"]], env=env)
