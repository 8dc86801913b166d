# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP request with a deadline for the whole of it and a limit on its size. PRIVATE to the collection.

Not ``ansible.module_utils.urls``: its timeout counts per read (a server that drips a byte a second never ends), it
honours proxy variables, and it follows redirects. A readiness probe must do none of that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import http.client
import io
import json
import os
import select
import socket
import ssl
import time
import typing as t

#: ``/server_info`` of a large deployment has about 40 KiB, ``/metrics`` 100 KiB.
MAX_BODY = 4 * 1024 * 1024
# ``/server_info`` has five levels.
_MAX_DEPTH = 64
# How often an abort is looked for while nothing arrives.
_ABORT_POLL_S = 0.05
# How long it may take to find out whether a server speaks TLS after all.
_PROBE_S = 1.0


class HttpError(Exception):
    """No usable answer.

    ``cause`` says why in one word: ``refused``, ``reset``, ``no_answer`` (nothing came before the deadline), ``slow_answer``
    (not all of it), ``cut_answer``, ``huge_answer``, ``not_http``, ``not_json``, ``http_status``, ``redirected``,
    ``tls_certificate``, ``tls_expected`` (plain HTTP was asked, TLS is spoken), ``tls_missing`` (the reverse), ``ca_path``,
    ``aborted``; '' = none of these. ``tries``: after how many of them in a row nothing else is to be expected of this
    server, 0 = never.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause

    @property
    def tries(self) -> int:
        return _TRIES.get(self.cause, 0)


# A certificate, or the lack of TLS, does not change while a server runs. Nor does what else it is instead of an SGLang,
# but a single odd answer may come of a moment.
_TRIES = {
    "tls_certificate": 1,
    "tls_expected": 1,
    "tls_missing": 1,
    "ca_path": 1,
    "redirected": 1,
    "huge_answer": 1,
    "not_http": 3,
    "not_json": 3,
}


def _integer(text: str) -> int:
    # Python up to 3.10 takes minutes for millions of digits, and none of more than 308 fits a float.
    if len(text) > 100:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _check_depth(value: t.Any) -> None:
    """Raises ValueError for what is nested so deep that those who walk it by recursion could fail."""
    level = [value]
    for _depth in range(_MAX_DEPTH):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"nested more than {_MAX_DEPTH} deep")


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
            value = json.loads(self.body, parse_int=_integer)
            _check_depth(value)
            return value
        except (ValueError, RecursionError) as error:
            head = self.body[:120].decode("utf-8", "replace")
            raise HttpError(f"the answer is not JSON ({error}); it begins with {head!r}", "not_json") from error


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


class _Patience:
    """Until when, and unless, a socket is waited for."""

    def __init__(self, deadline: float, abort: t.Callable[[], bool]) -> None:
        self._deadline = deadline
        self._abort = abort
        #: Bytes of the answer so far.
        self.received = 0

    def wait(self, sock: socket.socket, *, write: bool = False) -> None:
        """Until the socket can be read or written; raises HttpError."""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                if self.received:
                    raise HttpError(f"only {self.received} bytes of an answer before the deadline", "slow_answer")
                raise HttpError("no answer before the deadline", "no_answer")
            wanted = ([], [sock]) if write else ([sock], [])
            if any(select.select(*wanted, [], min(left, _ABORT_POLL_S))):
                return
            if self._abort():
                raise HttpError("given up, since the answer no longer matters", "aborted")


class _DeadlineReader(io.RawIOBase):
    """The receiving half of a non-blocking socket that is read with patience."""

    def __init__(self, sock: socket.socket, patience: _Patience) -> None:
        self._sock = sock
        self._patience = patience

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        while True:
            # TLS may hold decrypted bytes that select() cannot see.
            if not (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0):
                self._patience.wait(self._sock)
            try:
                count = self._sock.recv_into(buffer)
            except (ssl.SSLWantReadError, BlockingIOError):
                continue
            self._patience.received += count
            return count


class _Connection:
    """What http.client.HTTPResponse needs of a socket."""

    def __init__(self, reader: _DeadlineReader) -> None:
        self._reader = reader

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


@functools.lru_cache(maxsize=8)
def _tls(ca_path: str | None, validate_certs: bool) -> ssl.SSLContext:
    """Made once: reading the system's authorities takes longer than a request."""
    if not validate_certs:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=ca_path)
    except (OSError, ssl.SSLError) as error:
        raise HttpError(f"ca_path {ca_path!r} cannot be used: {error}", "ca_path") from error


def check_ca_path(ca_path: str) -> None:
    """Raises HttpError when a file of certificate authorities cannot be used."""
    _tls(ca_path, True)


def _connect(endpoint: Endpoint, patience: _Patience) -> socket.socket:
    """A connected, non-blocking socket."""
    error: OSError = OSError(errno.EADDRNOTAVAIL, f"{endpoint.host!r} has no address")
    host = endpoint.address or endpoint.host
    for family, kind, protocol, _name, address in socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            code = sock.connect_ex(address)
            if code == errno.EINPROGRESS:
                patience.wait(sock, write=True)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                return sock
            error = OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise error


def _secured(sock: socket.socket, context: ssl.SSLContext, name: str, patience: _Patience) -> ssl.SSLSocket:
    """The socket with TLS upon it; it takes the plain one over."""
    secured = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                patience.wait(secured)
            except ssl.SSLWantWriteError:
                patience.wait(secured, write=True)
            else:
                return secured
    except BaseException:
        secured.close()
        raise


def _send(sock: socket.socket, data: bytes, patience: _Patience) -> None:
    view = memoryview(data)
    while view:
        patience.wait(sock, write=True)
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
            view = view[sock.send(view) :]


def _speaks_tls(endpoint: Endpoint, patience: _Patience) -> bool:
    """Whether a TLS handshake succeeds, whatever the certificate."""
    try:
        _secured(_connect(endpoint, patience), _tls(None, False), endpoint.host, patience).close()
    except (OSError, HttpError):
        return False
    return True


def _speaks_plainly(endpoint: Endpoint, patience: _Patience) -> bool:
    """Whether plain HTTP is answered by something that begins like HTTP."""
    try:
        with _connect(endpoint, patience) as sock:
            _send(sock, b"GET / HTTP/1.0\r\n\r\n", patience)
            patience.wait(sock)
            return sock.recv(5) == b"HTTP/"
    except (OSError, HttpError):
        return False


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
    patience = _Patience(started + timeout, abort)
    try:
        return _exchange(endpoint, method, path, payload=payload, patience=patience, max_body=max_body)
    except HttpError as error:
        found = error
    except ssl.SSLCertVerificationError as error:
        found = HttpError(f"the certificate is not trusted: {error.verify_message or error}", "tls_certificate")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if _speaks_plainly(endpoint, _Patience(time.monotonic() + _PROBE_S, abort)):
            found = HttpError(f"the server speaks plain HTTP, and https was asked for (TLS: {reason})", "tls_missing")
        else:
            found = HttpError(f"TLS failed: {reason}", "not_http")
    except http.client.HTTPException as error:
        if patience.received:
            incomplete = isinstance(error, http.client.IncompleteRead)
            cause = "cut_answer" if incomplete else "not_http"
            found = HttpError(f"the answer is {'incomplete' if incomplete else 'no HTTP'}: {_text(error)}", cause)
        else:
            found = _unanswered(endpoint, error, abort)
    except ConnectionRefusedError as error:
        found = HttpError(_text(error), "refused")
    except (ConnectionResetError, BrokenPipeError) as error:
        found = _unanswered(endpoint, error, abort) if not patience.received else HttpError(_text(error), "reset")
    except (OSError, ValueError) as error:
        found = HttpError(_text(error))
    raise HttpError(f"{method} {endpoint.url}{path}: {found}", found.cause) from found


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _unanswered(endpoint: Endpoint, error: Exception, abort: t.Callable[[], bool]) -> HttpError:
    """The connection was closed without a byte: so does a server that waits for TLS."""
    if endpoint.scheme == "http" and _speaks_tls(endpoint, _Patience(time.monotonic() + _PROBE_S, abort)):
        return HttpError("the server speaks TLS, and plain http was asked for", "tls_expected")
    return HttpError(f"the connection was closed without an answer ({_text(error)})", "reset")


def _exchange(
    endpoint: Endpoint, method: str, path: str, *, payload: t.Any, patience: _Patience, max_body: int
) -> Response:
    """One request and its answer; raises what went wrong as it is."""
    started = time.monotonic()
    body = b"" if payload is None else json.dumps(payload).encode("utf-8")
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}:{endpoint.port}", "Connection: close", "Accept: */*"]
    if endpoint.api_key:
        head.append(f"Authorization: Bearer {endpoint.api_key}")
    if payload is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    context = _tls(endpoint.ca_path, endpoint.validate_certs) if endpoint.scheme == "https" else None
    sock = _connect(endpoint, patience)
    try:
        if context is not None:
            sock = _secured(sock, context, endpoint.host, patience)
        _send(sock, "\r\n".join([*head, "", ""]).encode("utf-8") + body, patience)
        reader = t.cast(socket.socket, _Connection(_DeadlineReader(sock, patience)))
        response = http.client.HTTPResponse(reader, method=method)
        with contextlib.closing(response):
            response.begin()
            length = response.getheader("Content-Length")
            if length is not None and not length.strip().isdigit():
                raise HttpError(f"the answer's Content-Length is {length[:80]!r}", "not_http")
            content = response.read(max_body + 1)
    finally:
        sock.close()
    if len(content) > max_body:
        raise HttpError(f"the answer has more than {max_body} bytes", "huge_answer")
    if response.length:
        # read() with a limit does not raise IncompleteRead.
        raise HttpError(f"the answer ended {response.length} bytes too early", "cut_answer")
    return Response(
        status=response.status,
        body=content,
        elapsed=time.monotonic() - started,
        content_type=response.getheader("Content-Type", "") or "",
        location=response.getheader("Location", "") or "",
    )


__all__ = ("MAX_BODY", "Endpoint", "HttpError", "Response", "check_ca_path", "request")
