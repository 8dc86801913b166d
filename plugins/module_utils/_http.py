# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP request with a deadline for the whole of it and a limit on its size. PRIVATE to the collection.

Not ``ansible.module_utils.urls``: its timeout counts per read (a server that drips a byte a second never ends), it
honours proxy variables, and it follows redirects. A readiness probe must do none of that.
"""

from __future__ import annotations

import dataclasses
import http.client
import io
import json
import select
import socket
import ssl
import time
import typing as t

#: ``/server_info`` of a large deployment has about 40 KiB, ``/metrics`` 100 KiB.
MAX_BODY = 4 * 1024 * 1024
# How often an abort is looked for while nothing arrives.
_ABORT_POLL_S = 0.05


class HttpError(Exception):
    """No usable answer: refused, reset, deadline passed, too large, TLS failure, aborted."""


@dataclasses.dataclass(frozen=True)
class Response:
    """One answer: ``elapsed`` in seconds, ``body`` in bytes."""

    status: int
    body: bytes
    elapsed: float
    content_type: str = ""
    location: str = ""

    def json(self) -> t.Any:
        """The decoded body; raises HttpError with the first bytes of what came instead."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            head = self.body[:120].decode("utf-8", "replace")
            raise HttpError(f"the answer is not JSON ({error}); it begins with {head!r}") from error


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where a server listens. ``host`` is an address or name without brackets, ``address`` what to connect to ('' = host)."""

    host: str
    port: int
    scheme: str = "http"
    api_key: str | None = dataclasses.field(default=None, repr=False)
    validate_certs: bool = True
    ca_path: str | None = None
    address: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class _DeadlineReader(io.RawIOBase):
    """The receiving half of a socket that never blocks past ``deadline`` and ends early when ``abort`` says so."""

    def __init__(self, sock: socket.socket, deadline: float, abort: t.Callable[[], bool]) -> None:
        self._sock = sock
        self._deadline = deadline
        self._abort = abort

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        while True:
            # TLS may hold decrypted bytes that select() cannot see.
            pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise HttpError("no complete answer before the deadline")
            if not pending and not select.select([self._sock], [], [], min(left, _ABORT_POLL_S))[0]:
                if self._abort():
                    raise HttpError("given up, since the server's process ended")
                continue
            try:
                return self._sock.recv_into(buffer)
            except (ssl.SSLWantReadError, BlockingIOError):
                continue


class _Connection:
    """What http.client.HTTPResponse needs of a socket."""

    def __init__(self, reader: _DeadlineReader) -> None:
        self._reader = reader

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_path)
    except (OSError, ssl.SSLError) as error:
        raise HttpError(f"ca_path {endpoint.ca_path!r} cannot be used: {error}") from error
    if not endpoint.validate_certs:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _never() -> bool:
    return False


def request(
    endpoint: Endpoint,
    method: str,
    path: str,
    *,
    timeout: float,
    payload: t.Any = None,
    abort: t.Callable[[], bool] = _never,
    max_body: int = MAX_BODY,
) -> Response:
    """Send one request and give its answer, whatever its status. Redirects are not followed, proxies not used.

    ``timeout`` (s) bounds the whole of it, ``max_body`` (bytes) its size; ``abort`` is asked while waiting.
    Raises HttpError with the reason in words when there is no complete answer.
    """
    started = time.monotonic()
    deadline = started + timeout
    body = b"" if payload is None else json.dumps(payload).encode("utf-8")
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}:{endpoint.port}", "Connection: close", "Accept: */*"]
    if endpoint.api_key:
        head.append(f"Authorization: Bearer {endpoint.api_key}")
    if payload is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    data = "\r\n".join([*head, "", ""]).encode("utf-8") + body
    sock: socket.socket | None = None
    try:
        sock = socket.create_connection((endpoint.address or endpoint.host, endpoint.port), timeout=timeout)
        if endpoint.scheme == "https":
            sock = _tls(endpoint).wrap_socket(sock, server_hostname=endpoint.host)
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.sendall(data)
        reader = t.cast(socket.socket, _Connection(_DeadlineReader(sock, deadline, abort)))
        response = http.client.HTTPResponse(reader, method=method)
        response.begin()
        content = response.read(max_body + 1)
        if len(content) > max_body:
            raise HttpError(f"the answer has more than {max_body} bytes")
        if response.length:
            # read() with a limit does not raise IncompleteRead.
            raise HttpError(f"the answer ended {response.length} bytes too early")
        return Response(
            status=response.status,
            body=content,
            elapsed=time.monotonic() - started,
            content_type=response.getheader("Content-Type", "") or "",
            location=response.getheader("Location", "") or "",
        )
    except HttpError as error:
        raise HttpError(f"{method} {endpoint.url}{path}: {error}") from error
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise HttpError(
            f"{method} {endpoint.url}{path}: TLS failed: {reason}. Is the server's scheme right?"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        text = str(error) or type(error).__name__
        raise HttpError(f"{method} {endpoint.url}{path}: {text}") from error
    finally:
        if sock is not None:
            sock.close()


__all__ = ("MAX_BODY", "Endpoint", "HttpError", "Response", "request")
