# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A small HTTP/1.1 server that answers like uvicorn: keep-alive, access lines, and a port that opens and closes when told.

A thread per connection. Nothing here knows SGLang; the handler it is given does.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable
from urllib.parse import parse_qs, unquote

REASONS = {
    200: "OK",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_HEAD_LIMIT = 65536


@dataclass
class Request:
    """One request. `connection` lets a long wait notice that the client has left."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        return {key: values[-1] for key, values in parse_qs(self.target.partition("?")[2]).items()}

    def json(self) -> Any:
        """Raises ValueError when the body is no JSON."""
        return json.loads(self.body)

    def client_left(self) -> bool:
        try:
            if not select.select([self.connection], [], [], 0)[0]:
                return False
            # The plain socket's method: TLS has no peek, and its end of stream is the plain one's as well.
            return socket.socket.recv(self.connection, 1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True


@dataclass
class Response:
    """Status and body; `chunks` instead of a body is sent as a stream.

    `deliver(connection, head, body)` sends all of it by itself, and the connection is closed after it.
    """

    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    chunks: Iterator[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    deliver: Callable[[socket.socket, bytes, bytes], None] | None = None


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), "application/json")


class HttpServer:
    """handler(request) gives the response; access(client, request, status) is called when it starts to go out."""

    def __init__(
        self,
        *,
        handler: Callable[[Request], Response],
        access: Callable[[str, Request, int], None],
        tls: ssl.SSLContext | None,
        keep_alive: float,
    ) -> None:
        self._handler = handler
        self._access = access
        self._tls = tls
        self._keep_alive = keep_alive
        self._listeners: list[socket.socket] = []
        self._idle: set[socket.socket] = set()
        self._busy = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def bind(self, host: str, port: int, *, reuse_port: bool = False) -> None:
        """Listen on every address of `host`. Raises OSError as asyncio's create_server would."""
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(infos):
                listener = socket.socket(family, kind, protocol)
                self._listeners.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
        except OSError:
            self.close_listeners()
            raise
        for listener in self._listeners:
            listener.listen(2048)
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close_listeners(self) -> None:
        self._closing.set()
        for listener in self._listeners:
            # Wakes the thread in accept; close alone would leave the port open until it returns.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def close(self) -> None:
        """Close the port and the idle connections, as uvicorn does first when it shuts down."""
        self.close_listeners()
        with self._lock:
            for connection in self._idle:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def busy(self) -> int:
        """Requests being answered."""
        with self._lock:
            return self._busy

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                connection, address = listener.accept()
            except OSError:
                if self._closing.is_set():
                    return
                time.sleep(0.01)
                continue
            threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, address: Any) -> None:
        client = f"{address[0]}:{address[1]}"
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection.settimeout(30)
                connection = self._tls.wrap_socket(connection, server_side=True)
                connection.settimeout(None)
            buffer = b""
            while True:
                with self._lock:
                    if self._closing.is_set():
                        break
                    self._idle.add(connection)
                request, buffer = self._read(connection, buffer)
                with self._lock:
                    self._idle.discard(connection)
                    if request is not None:
                        self._busy += 1
                if request is None:
                    break
                try:
                    if not self._answer(connection, client, request):
                        break
                finally:
                    with self._lock:
                        self._busy -= 1
        except (OSError, ValueError):
            # The client broke the connection or the protocol: nothing is left to tell it.
            pass
        finally:
            with self._lock:
                self._idle.discard(connection)
            connection.close()

    def _read(self, connection: socket.socket, buffer: bytes) -> tuple[Request | None, bytes]:
        connection.settimeout(self._keep_alive)
        try:
            while b"\r\n\r\n" not in buffer:
                data = connection.recv(65536)
                if not data:
                    return None, b""
                buffer += data
                if not buffer[:1].isalpha():
                    # A TLS handshake, say: uvicorn's parser does not wait for the end of the line.
                    _send_plain(connection, 400, b"Invalid HTTP request received.")
                    return None, b""
                if len(buffer) > _HEAD_LIMIT:
                    raise ValueError("head too long")
        except socket.timeout:
            return None, b""
        connection.settimeout(None)
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            _send_plain(connection, 400, b"Invalid HTTP request received.")
            return None, b""
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body, buffer = _read_chunks(connection, buffer)
        else:
            length = int(headers.get("content-length", "0"))
            while len(buffer) < length:
                data = connection.recv(65536)
                if not data:
                    return None, b""
                buffer += data
            body, buffer = buffer[:length], buffer[length:]
        headers[":version"] = words[2]
        return Request(words[0], words[1], headers, body, connection), buffer

    def _answer(self, connection: socket.socket, client: str, request: Request) -> bool:
        """Send the response; whether the connection may be used again."""
        response = self._handler(request)
        keep = request.headers.get("connection", "").lower() != "close" and request.headers[":version"] != "HTTP/1.0"
        keep = keep and not self._closing.is_set() and response.deliver is None
        self._access(client, request, response.status)
        head = [f"HTTP/1.1 {response.status} {REASONS[response.status]}"]
        head.append(time.strftime("date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()))
        head.append("server: uvicorn")
        if response.chunks is None:
            head.append(f"content-length: {len(response.body)}")
        else:
            head.append("transfer-encoding: chunked")
        if response.content_type:
            head.append(f"content-type: {response.content_type}")
        head += [f"{name}: {value}" for name, value in response.headers.items()]
        if not keep:
            head.append("connection: close")
        start = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")
        if response.deliver is not None:
            response.deliver(connection, start, response.body)
            return False
        if response.chunks is None:
            connection.sendall(start + (b"" if request.method == "HEAD" else response.body))
            return keep
        connection.sendall(start)
        for chunk in response.chunks:
            connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        return keep


def _send_plain(connection: socket.socket, status: int, body: bytes) -> None:
    connection.sendall(
        f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        + body
    )


def _read_chunks(connection: socket.socket, buffer: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        while b"\r\n" not in buffer:
            buffer += _more(connection)
        line, _, buffer = buffer.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        while len(buffer) < size + 2:
            buffer += _more(connection)
        body += buffer[:size]
        buffer = buffer[size + 2 :]
        if size == 0:
            return body, buffer


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ValueError("the request ended in the middle of a chunk")
    return data
