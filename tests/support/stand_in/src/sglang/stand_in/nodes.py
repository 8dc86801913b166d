# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Several nodes: main of each node speaks with main of node 0 over `--dist-init-addr`.

The real ranks meet there by themselves (torch.distributed); here the mains pass on what the ranks wait for: the
barriers of the load, each forward pass, the end, and that a node was lost.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from sglang.stand_in.channel import Channel

_PEER_LOST = (
    "Traceback (most recent call last):\n"
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [{address}]"
)


class Nodes:
    """The other nodes of this server: on node 0 one channel each, elsewhere the one to node 0.

    Raises ValueError for an address that is none, OSError when node 0 cannot listen there.
    """

    def __init__(self, resolved: dict[str, Any]) -> None:
        self.rank: int = resolved["node_rank"]
        self.channels: list[Channel] = []
        self._unsaid: list[dict[str, Any]] = []
        self._wanted = resolved["nnodes"] - 1 if self.rank == 0 else 1
        self._listener: socket.socket | None = None
        if self.single:
            return
        host, colon, port = (resolved["dist_init_addr"] or "").rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"several nodes need --dist-init-addr HOST:PORT, not {resolved['dist_init_addr']!r}")
        self._address = host.strip("[]"), int(port)
        if self.rank == 0:
            self._listener = socket.create_server(self._address, backlog=self._wanted)
            self._listener.setblocking(False)

    @property
    def single(self) -> bool:
        return self._wanted == 0

    @property
    def complete(self) -> bool:
        return len(self.channels) == self._wanted

    def meet(self) -> list[Channel]:
        """Nodes that have come since the last call; does not block for long."""
        found: list[Channel] = []
        with contextlib.suppress(OSError):
            if self._listener is None:
                found.append(Channel(socket.create_connection(self._address, timeout=1.0)))
            else:
                found.append(Channel(self._listener.accept()[0]))
        self.channels += found
        for channel in found:
            channel.socket.settimeout(None)
            for message in self._unsaid:
                channel.send(message)
        return found

    def tell(self, message: dict[str, Any]) -> None:
        """Send to all that are still there; kept for those that are still to come."""
        if not self.complete:
            self._unsaid.append(message)
        for channel in self.channels:
            with contextlib.suppress(OSError):
                channel.send(message)

    def lost(self) -> dict[str, Any]:
        """The message that makes a rank fail as the real ones do when a node goes away."""
        host, port = self._address
        return {"op": "peer_lost", "text": _PEER_LOST.format(address=f"{host}:{port}")}
