# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""_http.request against real sockets on loopback: every answer is bounded in time and size."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, HttpError, check_ca_path, request
from ansible_collections.specdec.serving.tests.support.fault_matrix.certificates import make_certificates

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
                    data = connection.recv(65536)
                    if not data:
                        return
                    head += data
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
        with pytest.raises(HttpError, match="before the deadline") as caught:
            request(endpoint, "GET", "/v1/models", timeout=0.4)
        assert caught.value.cause == ("slow_answer" if serve is _drip else "no_answer")
        assert 0.35 < time.monotonic() - started < 1.5


def test_an_endless_answer_is_cut() -> None:
    def serve(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with server(serve) as endpoint, pytest.raises(HttpError, match="more than 1000 bytes") as caught:
        request(endpoint, "GET", "/v1/models", timeout=5, max_body=1000)
    assert (caught.value.cause, caught.value.tries) == ("huge_answer", 1)


def test_an_abort_ends_the_wait() -> None:
    with server(_silent) as endpoint:
        started = time.monotonic()
        with pytest.raises(HttpError, match="no longer matters"):
            request(endpoint, "GET", "/", timeout=30, abort=lambda: time.monotonic() - started > 0.2)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("data", "reason", "cause"),
    [
        pytest.param(b"", "closed without an answer", "reset", id="closed at once"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0", "not_http", id="another protocol"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "7 bytes too early", "cut_answer", id="cut short"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
            "incomplete",
            "cut_answer",
            id="a cut chunk",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
            "Content-Length is 'x'",
            "not_http",
            id="a length of no number",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200, "no HTTP", "not_http", id="endless headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70000, "no HTTP", "not_http", id="an endless header"),
    ],
)
def test_broken_answers(data: bytes, reason: str, cause: str) -> None:
    with (
        server(lambda connection, _head: connection.sendall(data)) as endpoint,
        pytest.raises(HttpError, match=reason) as caught,
    ):
        request(endpoint, "GET", "/v1/models", timeout=5)
    assert caught.value.cause == cause


def test_what_is_not_json_is_quoted() -> None:
    with server(lambda connection, _head: connection.sendall(answer("200 OK", b"<html>"))) as endpoint:
        response = request(endpoint, "GET", "/v1/models", timeout=5)
    with pytest.raises(HttpError, match="<html>") as caught:
        response.json()
    assert caught.value.cause == "not_json"


def test_refused() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(HttpError, match="refused") as caught:
        request(Endpoint("127.0.0.1", port), "GET", "/", timeout=5)
    # It may listen in a moment.
    assert (caught.value.cause, caught.value.tries) == ("refused", 0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_connection_that_nobody_takes_up_is_bounded_and_can_be_given_up(scheme: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # The queue of one that never accepts is full: the next connection hangs in SYN.
        listener.listen(0)
        port = listener.getsockname()[1]
        with contextlib.ExitStack() as held:
            for _number in range(4):
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.1", port))
            endpoint = Endpoint("127.0.0.1", port, scheme=scheme)
            started = time.monotonic()
            with pytest.raises(HttpError, match="no answer before the deadline"):
                request(endpoint, "GET", "/", timeout=0.3)
            with pytest.raises(HttpError, match="no longer matters"):
                request(endpoint, "GET", "/", timeout=30, abort=lambda: True)
            assert time.monotonic() - started < 3


class TlsServer:
    """Answers every request of every connection, with TLS or without, until it is closed."""

    def __init__(self, certificate: Path | None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(f"{certificate}.crt", f"{certificate}.key")
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self) -> None:
        # Ends with an OSError when the listener is closed.
        with contextlib.suppress(OSError):
            while True:
                connection, _address = self._listener.accept()
                with contextlib.suppress(OSError, ValueError):
                    self._serve(connection)
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        head = connection.recv(65536)
        # What uvicorn says to a TLS handshake.
        status = "200 OK" if b" HTTP/1." in head else "400 Bad Request"
        connection.sendall(answer(status, b'{"a": 1}'))
        connection.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.mark.parametrize(
    ("certificate", "options", "cause", "reason"),
    [
        pytest.param("good", {"ca": True}, "", "", id="own CA"),
        pytest.param("good", {"ca": True, "host": "localhost"}, "", "", id="own CA, a name"),
        pytest.param("good", {}, "tls_certificate", "unable to get local issuer", id="own CA that is not given"),
        pytest.param("expired", {"ca": True}, "tls_certificate", "expired", id="expired"),
        pytest.param("other", {"ca": True}, "tls_certificate", "not valid for '127.0.0.1'", id="for another host"),
        pytest.param(
            "selfsigned", {"ca": True}, "tls_certificate", "self.signed|unable to get local issuer", id="self-signed"
        ),
        pytest.param("selfsigned", {"validate_certs": False}, "", "", id="self-signed, not verified"),
        pytest.param("good", {"scheme": "http"}, "tls_expected", "speaks TLS", id="plain HTTP to a TLS port"),
        pytest.param(None, {"ca": True}, "tls_missing", "speaks plain HTTP", id="TLS to a plain port"),
        pytest.param(None, {"scheme": "http"}, "", "", id="plain HTTP"),
    ],
)
def test_tls(certificates: Path, certificate: str | None, options: dict[str, t.Any], cause: str, reason: str) -> None:
    server = TlsServer(None if certificate is None else certificates / certificate)
    endpoint = Endpoint(
        options.get("host", "127.0.0.1"),
        server.port,
        scheme=options.get("scheme", "https"),
        validate_certs=options.get("validate_certs", True),
        ca_path=str(certificates / "ca.crt") if options.get("ca") else None,
        address="127.0.0.1",
    )
    try:
        if not cause:
            assert request(endpoint, "GET", "/v1/models", timeout=5).json() == {"a": 1}
            return
        with pytest.raises(HttpError, match=reason) as caught:
            request(endpoint, "GET", "/v1/models", timeout=5)
        assert (caught.value.cause, caught.value.tries) == (cause, 1)
    finally:
        server.close()


@pytest.mark.parametrize("text", [None, "no certificate"], ids=["missing", "garbage"])
def test_certificate_authorities_that_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(HttpError, match=re.escape(str(path))):
        check_ca_path(str(path))


def test_a_handshake_that_is_not_answered_is_bounded() -> None:
    with server(_silent) as endpoint, pytest.raises(HttpError) as caught:
        request(Endpoint(endpoint.host, endpoint.port, scheme="https"), "GET", "/", timeout=0.4)
    assert caught.value.cause == "no_answer"
