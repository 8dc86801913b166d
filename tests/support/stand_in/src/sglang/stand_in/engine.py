# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Main's side of generation: requests to the ranks, their output through the detokenizer, back to who waits."""

from __future__ import annotations

import contextlib
import queue
import selectors
import threading
import time
import uuid
from typing import Any, Callable

from sglang.stand_in.channel import Channel
from sglang.stand_in.rank import Rank

HEALTH_CHECK = "HEALTH_CHECK"


class Pending:
    """One request in flight; `outputs` receives the messages of the detokenizer."""

    def __init__(self, rid: str, dp: int, log_metrics: bool) -> None:
        self.rid = rid
        self.dp = dp
        self.log_metrics = log_metrics
        self.begin = time.time()
        self.outputs: queue.Queue[dict[str, Any]] = queue.Queue()


class Engine:
    """Speaks with all children. `requests` is SGLang's rid_to_state."""

    def __init__(
        self,
        *,
        schedulers: list[tuple[Rank, Channel]],
        detokenizer: Channel,
        nodes: list[Channel],
        node_lost: Callable[[], None],
    ) -> None:
        self._schedulers = schedulers
        self._detokenizer = detokenizer
        self._nodes = nodes
        self._node_lost = node_lost
        self.replicas = 1 + max(rank.dp for rank, _ in schedulers)
        self._lock = threading.Lock()
        self._next = 0
        self._joining: dict[str, tuple[int, dict[str, Any]]] = {}
        self.requests: dict[str, Pending] = {}
        self.last_receive = 0.0
        self.first_request = threading.Event()
        self.stats: dict[str, Any] = {"gen_throughput": 0.0, "accept_length": None, "token_usage": 0.0}
        self.totals = {"prompt": 0, "generation": 0, "verify": 0, "requests": 0, "cached": 0}
        self._to_detokenizer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._pass_on, daemon=True).start()
        threading.Thread(target=self._read, daemon=True).start()

    def _lead(self, dp: int) -> Channel:
        return next(channel for rank, channel in self._schedulers if rank.dp == dp and rank.leads)

    def _peers(self, dp: int) -> list[Channel]:
        return [channel for rank, channel in self._schedulers if rank.dp == dp and not rank.leads] + self._nodes

    def submit(
        self,
        *,
        prompt: str,
        prompt_tokens: int,
        max_new_tokens: int,
        ignore_eos: bool = False,
        log_metrics: bool = True,
        rid: str | None = None,
    ) -> Pending:
        """Queue a request. The leading rank gets it when every other rank of the replica has answered."""
        self.first_request.set()
        rid = rid or uuid.uuid4().hex
        with self._lock:
            dp = self._next % self.replicas
            self._next += 1
            pending = Pending(rid, dp, log_metrics)
            self.requests[rid] = pending
            message = {
                "op": "generate",
                "rid": rid,
                "prompt": prompt,
                "prompt_tokens": prompt_tokens,
                "max_new_tokens": max_new_tokens,
                "ignore_eos": ignore_eos,
                "log_metrics": log_metrics,
            }
            peers = self._peers(dp)
            if peers:
                self._joining[rid] = (len(peers), message)
        if peers:
            for channel in peers:
                self._send(channel, {"op": "forward", "rid": rid})
        else:
            self._send(self._lead(dp), message)
        return pending

    @staticmethod
    def _send(channel: Channel, message: dict[str, Any]) -> None:
        # To a dead child: the request waits, and the watchdog ends the server, as in the real one.
        with contextlib.suppress(OSError):
            channel.send(message)

    def forget(self, pending: Pending) -> None:
        self.requests.pop(pending.rid, None)

    def abort(self, rid: str) -> None:
        pending = self.requests.get(rid)
        if pending is not None:
            self._send(self._lead(pending.dp), {"op": "abort", "rid": rid})

    def flush(self, timeout: float) -> bool:
        """Empty the prefix cache of all replicas; False when a request ran until `timeout` seconds passed."""
        self.first_request.set()
        deadline = time.monotonic() + timeout
        while True:
            idle = True
            # With a time-out the real one waits quietly.
            final = timeout == 0
            for dp in range(self.replicas):
                pending = Pending(uuid.uuid4().hex, dp, False)
                self.requests[pending.rid] = pending
                self._send(self._lead(dp), {"op": "flush", "rid": pending.rid, "final": final})
                idle = pending.outputs.get()["idle"] and idle
                self.forget(pending)
            if idle or time.monotonic() >= deadline:
                return idle
            time.sleep(0.05)

    def shutdown(self) -> None:
        for channel in [*(channel for _, channel in self._schedulers), *self._nodes]:
            self._send(channel, {"op": "shutdown"})

    def _read(self) -> None:
        selector = selectors.DefaultSelector()
        for end in [*(channel for _, channel in self._schedulers), self._detokenizer, *self._nodes]:
            selector.register(end, selectors.EVENT_READ, end)
        while selector.get_map():
            for key, _ in selector.select():
                channel: Channel = key.data
                try:
                    while True:
                        message = channel.receive(0.0)
                        if message is None:
                            break
                        self._take(message)
                except EOFError:
                    selector.unregister(channel)
                    if channel in self._nodes:
                        self._node_lost()

    def _pass_on(self) -> None:
        # Not by the thread that reads: both would wait for each other when many short steps fill the pipes.
        while True:
            self._send(self._detokenizer, self._to_detokenizer.get())

    def _take(self, message: dict[str, Any]) -> None:
        rid = message["rid"]
        if message["op"] == "joined":
            with self._lock:
                missing, forward = self._joining.pop(rid)
                if missing > 1:
                    self._joining[rid] = (missing - 1, forward)
                    return
                pending = self.requests.get(rid)
            if pending is not None:
                self._send(self._lead(pending.dp), forward)
        elif message["op"] == "output" and "text" not in message:
            self._to_detokenizer.put(message)
        else:
            if message["op"] == "output":
                self.last_receive = time.time()
                self.stats.update(message["stats"])
            pending = self.requests.get(rid)
            if pending is None:
                return
            if message.get("finish_reason") is not None:
                self.forget(pending)
                if pending.log_metrics:
                    self.totals["prompt"] += message["prompt_tokens"]
                    self.totals["cached"] += message["cached_tokens"]
                    self.totals["generation"] += message["completion_tokens"]
                    self.totals["verify"] += message["verify"]
                    self.totals["requests"] += 1
            pending.outputs.put(message)
