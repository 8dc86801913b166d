# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A foreign server that takes, or shares, the port of a unit: comes and goes on command, and tells when.

``model`` answers every request as the expected server would; ``plain`` answers ``{}``; ``silent`` takes connections and
never answers. With ``share`` its socket has SO_REUSEPORT, so that it can listen beside a server that has it too.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import threading
import time
import typing as t

from ansible_collections.specdec.serving.tests.support.observer import waits

STYLES = ("model", "plain", "silent")


def answer(style: str, model: str, model_path: str) -> bytes:
    """The body of every answer."""
    if style != "model":
        return b"{}"
    meta = {"completion_tokens": 64, "spec_verify_ct": 16}
    found = {"data": [{"id": model}], "model_path": model_path, "text": "x", "meta_info": meta}
    return json.dumps(found).encode()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # Bound by us, before the class could without our options.
    allow_reuse_address = False

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """A client that went away is no event."""


def listen(port: int, *, share: bool) -> socket.socket:
    """A listening socket on loopback."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("127.0.0.1", port))
    found.listen(128)
    return found


def serve(listener: socket.socket, *, style: str, model: str, model_path: str) -> None:
    """Answer in the background."""
    body = answer(style, model, model_path)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if style == "silent":
                time.sleep(3600)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  http.server asks for it

        def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002  http.server's name
            pass

    server = _Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_address = listener.getsockname()

    def loop() -> None:
        with contextlib.suppress(OSError, ValueError):  # the end of the listener
            server.serve_forever(poll_interval=5.0)

    threading.Thread(target=loop, daemon=True).start()


class Neighbour:
    """A process that waits for ``up`` and ``down``. Whoever holds the object, or a fork of it, may command it."""

    def __init__(self, port: int, *, style: str, share: bool, model: str, model_path: str) -> None:
        self._command, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def body() -> None:
            self._command.close()
            while theirs.recv(1):
                listener = listen(port, share=share)
                theirs.send(repr(time.monotonic()).encode())
                serve(listener, style=style, model=model, model_path=model_path)
                if not theirs.recv(1):
                    return
                # Before the socket goes: from now on it may or may not take a connection.
                theirs.send(repr(time.monotonic()).encode())
                os._exit(0)

        self.pid, self._output = waits.fork(body)
        theirs.close()

    def _do(self) -> float:
        self._command.send(b"x")
        told = self._command.recv(64)
        if not told:
            raise RuntimeError("the neighbour could not listen on its port")
        return float(told)

    def up(self) -> float:
        """Listen; the instant from which it does."""
        return self._do()

    def down(self) -> float:
        """Go away; the last instant at which it listened for sure."""
        return self._do()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._command.close()
        os.close(self._output)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


__all__ = ("STYLES", "Neighbour", "answer", "listen", "serve")
