# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine on which servers are drained: systemctl, /proc, sockets, HTTP. PRIVATE to the collection."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._drain import DrainError, Machine, Server
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp, hung_up
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, Response, request
from ansible_collections.specdec.serving.plugins.module_utils._lease import guard
from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    in_other_network,
    process_alive,
    read_process,
)
from ansible_collections.specdec.serving.plugins.module_utils._ready_host import arguments_of, resolve
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._sockets import (
    connections,
    covers,
    describe_owner,
    find_owners,
    listeners,
    owned_by_cgroup,
    probe_host,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, UnitState, show
from ansible_collections.specdec.serving.plugins.module_utils._traffic import Load, Traffic, keys_of

__all__ = ("SystemMachine", "SystemServer")

# s; a server that works answers in milliseconds, also under load.
_ANSWER_S = 3.0
_RUN = command_runner(timeout=30.0)


class SystemServer(Server):
    """The main process of a unit: where it listens and what it wants to be sent are read from it."""

    def __init__(self, state: UnitState) -> None:
        self._pid = state.main_pid
        process = read_process(state.main_pid)
        self._start_ticks = process.start_ticks if process is not None else -1
        arguments = arguments_of(process.cmdline) if process is not None else {}
        host = str(arguments.get("host") or "127.0.0.1")
        port = str(arguments.get("port") or "30000")
        self.port = int(port) if port.isdigit() else 0
        self._endpoint = Endpoint(
            host=probe_host(host),
            port=self.port,
            scheme="https" if "ssl_certfile" in arguments else "http",
            # Whose socket it is was found out below; a certificate would not tell more.
            validate_certs=False,
        )
        keys = keys_of(arguments, self._text_of(arguments.get("config")))
        self._traffic = Traffic(self._request, keys)
        self.reason, self.idle = self._why_not(state, arguments)

    def _text_of(self, path: t.Any) -> str:
        """A file as the process sees it: systemd shows it its credentials, which may be older than what is on the disk."""
        if not isinstance(path, str) or not path.startswith("/"):
            return ""
        try:
            with open(f"/proc/{self._pid}/root{path}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            # Then the server refuses to be asked, and that is told.
            return ""

    def _why_not(self, state: UnitState, arguments: t.Mapping[str, t.Any]) -> tuple[str, bool]:
        """Why it cannot be asked, '' = it can; and whether it has no requests for that reason."""
        if self._start_ticks < 0:
            return "its process has just ended", True
        if str(arguments.get("node_rank") or "0") != "0":
            return "node 0 has its requests", True
        if in_other_network(self._pid):
            return "it lives in another network namespace", False
        try:
            found, _fallback = listeners(self.port)
            address = resolve(self._endpoint.host, self.port)
            relevant = [listener for listener in found if covers(listener, address)]
            owned = owned_by_cgroup(relevant, state.control_group) if relevant else None
        except (OSError, SystemdError) as error:
            return f"who listens on port {self.port} cannot be seen: {error}", False
        if not relevant:
            return f"nothing listens on port {self.port} yet", True
        if owned is None:
            return f"who listens on port {self.port} cannot be seen", False
        if not owned:
            return "; ".join(map(describe_owner, find_owners(relevant))), False
        return "", False

    def _request(self, method: str, path: str, key: str, payload: t.Any) -> Response:
        endpoint = Endpoint(**{**vars(self._endpoint), "api_key": key or None})
        return request(endpoint, method, path, timeout=_ANSWER_S, payload=payload)

    def alive(self) -> bool:
        return process_alive(self._pid, self._start_ticks)

    def load(self) -> Load:
        return self._traffic.load()

    def abort_all(self) -> None:
        self._traffic.abort_all()

    def connections(self) -> int | None:
        try:
            return len(connections(self.port))
        except OSError:
            return None


class SystemMachine(Machine):
    """The real one. ``lease`` is the token of the host's lease, '' = none is to be kept."""

    def __init__(self, lease: str = "") -> None:
        self._lease = lease

    def monotonic(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        if hung_up(within=seconds):
            raise HangUp

    def show(self, unit: str) -> UnitState:
        return show(_RUN, unit)

    def server(self, state: UnitState) -> Server:
        return SystemServer(state)

    def job(self, verb: str, unit: str) -> None:
        code, stdout, stderr = _RUN(["systemctl", verb, "--no-block", "--", unit])
        if code != 0:
            raise DrainError(
                f"systemctl {verb} {unit} failed with {code}: {stderr.strip() or stdout.strip() or 'no output'}"
            )

    def keep_lease(self, work: t.Callable[[], None]) -> None:
        with guard(self._lease):
            work()
