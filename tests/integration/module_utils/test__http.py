# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""_http.request against real sockets on loopback: every answer is bounded in time and size."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, HttpError, request

Serve = t.Callable[[socket.socket, bytes], None]


@contextlib.contextmanager
def server(serve: Serve, family: int = socket.AF_INET) -> t.Iterator[Endpoint]:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()

        def loop() -> None:
            connection, _address = listener.accept()
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                # The client may go away in the middle of an answer.
                with contextlib.suppress(OSError):
                    serve(connection, head)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        yield Endpoint(host=host, port=listener.getsockname()[1])
        thread.join(5)


def answer(status: str, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


def test_a_plain_answer_and_what_was_asked() -> None:
    seen: list[bytes] = []

    def serve(connection: socket.socket, head: bytes) -> None:
        seen.append(head)
        connection.sendall(answer("200 OK", b'{"a": 1}'))

    with server(serve) as endpoint:
        endpoint = Endpoint(endpoint.host, endpoint.port, api_key="sk-test-123")
        response = request(endpoint, "POST", "/generate", timeout=5, payload={"x": 1})
    assert (response.status, response.json()) == (200, {"a": 1})
    assert seen[0].startswith(b"POST /generate HTTP/1.1\r\n")
    assert b"Authorization: Bearer sk-test-123\r\n" in seen[0]


def test_ipv6() -> None:
    with server(lambda connection, _head: connection.sendall(answer("503 Busy", b"")), socket.AF_INET6) as endpoint:
        assert endpoint.url.startswith("http://[::1]:")
        assert request(endpoint, "GET", "/health", timeout=5).status == 503


def test_the_key_is_no_part_of_a_representation() -> None:
    assert "sk-test" not in repr(Endpoint("127.0.0.1", 1, api_key="sk-test-123"))


def test_redirects_are_not_followed() -> None:
    with server(lambda c, _h: c.sendall(answer("302 Found", b"", "Location: http://127.0.0.1:1/"))) as endpoint:
        response = request(endpoint, "GET", "/v1/models", timeout=5)
    assert (response.status, response.location) == (302, "http://127.0.0.1:1/")


def test_proxies_in_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with server(lambda connection, _head: connection.sendall(answer("200 OK", b"own"))) as endpoint:
        assert request(endpoint, "GET", "/", timeout=5).body == b"own"


def _drip(connection: socket.socket, _head: bytes) -> None:
    for sign in b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 1000:
        connection.sendall(bytes([sign]))
        time.sleep(0.05)


def _silent(connection: socket.socket, _head: bytes) -> None:
    connection.settimeout(5)
    connection.recv(1)


@pytest.mark.parametrize("serve", [_drip, _silent], ids=["a byte at a time", "accepts and says nothing"])
def test_the_deadline_counts_for_the_whole(serve: Serve) -> None:
    with server(serve) as endpoint:
        started = time.monotonic()
        with pytest.raises(HttpError, match="before the deadline"):
            request(endpoint, "GET", "/v1/models", timeout=0.4)
        assert 0.35 < time.monotonic() - started < 1.5


def test_an_endless_answer_is_cut() -> None:
    def serve(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with server(serve) as endpoint, pytest.raises(HttpError, match="more than 1000 bytes"):
        request(endpoint, "GET", "/v1/models", timeout=5, max_body=1000)


def test_an_abort_ends_the_wait() -> None:
    with server(_silent) as endpoint:
        started = time.monotonic()
        with pytest.raises(HttpError, match="process ended"):
            request(endpoint, "GET", "/", timeout=30, abort=lambda: time.monotonic() - started > 0.2)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "Remote end closed|BadStatusLine|RemoteDisconnected", id="closed at once"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "7 bytes too early", id="cut short"),
    ],
)
def test_broken_answers(data: bytes, reason: str) -> None:
    with server(lambda connection, _head: connection.sendall(data)) as endpoint, pytest.raises(HttpError, match=reason):
        request(endpoint, "GET", "/v1/models", timeout=5)


def test_what_is_not_json_is_quoted() -> None:
    with server(lambda connection, _head: connection.sendall(answer("200 OK", b"<html>"))) as endpoint:
        response = request(endpoint, "GET", "/v1/models", timeout=5)
    with pytest.raises(HttpError, match="<html>"):
        response.json()


def test_refused() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(HttpError, match="refused"):
        request(Endpoint("127.0.0.1", port), "GET", "/", timeout=5)


def test_plain_server_on_a_tls_port() -> None:
    with server(lambda _c, _h: None) as endpoint, pytest.raises(HttpError, match=r"TLS failed|reset|timed out"):
        request(Endpoint(endpoint.host, endpoint.port, scheme="https"), "GET", "/", timeout=0.5)
