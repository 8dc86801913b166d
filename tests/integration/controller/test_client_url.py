# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""client_url: with a real server through the task, and with servers that misbehave through requests alone."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
import typing as t
import warnings
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._client import Unreachable, check, fetcher
from ansible_collections.specdec.serving.tests.support.observer import units

A = "controller-a"
KEY = "sk-planted-key-9"
PACKED = gzip.compress(b" " * 50_000_000, 1)
MODELS = json.dumps({"object": "list", "data": [{"id": "k26"}]}).encode()


# ---- the task


def test_the_way_of_clients_is_checked(controller: t.Any) -> None:
    server, address = controller.server, controller.hosts[A].address
    server.start(A, "--api-key", KEY)
    url = f"http://{address}:31100"
    play, results = controller.run(A, api_key=KEY, client_url=f"{url}/v1", switches=("-vvv",))
    client = results[A]["client"]
    assert (results[A]["ready"], client["ok"], client["url"]) == (True, True, f"{url}/v1/models"), play.output
    assert repr(units.MODEL) in client["detail"]
    assert KEY not in play.output


def test_a_server_out_of_reach_is_not_ready_for_clients(controller: t.Any) -> None:
    controller.server.start(A)
    # As if a firewall closed the port to all but the host itself.
    host = controller.hosts[A]
    url = f"http://{host.address}:31999"
    play, results = controller.run(A, client_url=url, timeout="12")
    answer = results[A]
    assert (answer["ready"], answer["state"], answer["failed"]) == (False, "loading", True), play.output
    assert answer["diagnosis"]["cause"] == "client_unreachable"
    assert "Connection refused" in answer["msg"]
    assert "127.0.0.1" in answer["diagnosis"]["remedy"]
    assert answer["client"]["seconds"] < 12
    assert all(gate["passed"] for gate in answer["gates"])
    assert f"{A} | {url}/v1/models cannot be reached" in play.output


def test_a_router_to_another_model_is_told(controller: t.Any) -> None:
    controller.server.start(A)
    with serving(lambda request: answer(request, 200, MODELS)) as url:
        play, results = controller.run(A, client_url=url)
    assert results[A]["diagnosis"]["cause"] == "client_wrong_model", play.output
    assert f"lists ['k26'], not {units.MODEL!r}" in results[A]["msg"]


def test_who_only_looks_is_told_and_does_not_fail(controller: t.Any) -> None:
    controller.server.start(A)
    controller.run(A)
    play, results = controller.run(A, client_url=f"http://{controller.hosts[A].address}:31999", wait=False)
    assert (results[A]["failed"], results[A]["ready"]) == (False, False), play.output
    assert results[A]["client"]["ok"] is False


@pytest.mark.parametrize("url", ["serve.example", "ftp://serve.example", "http://user:planted-word@serve.example"])
def test_a_url_that_is_none(controller: t.Any, url: str) -> None:
    play, results = controller.run(A, client_url=url)
    assert results[A]["failed"]
    assert "client_url" in results[A]["msg"], play.output


# ---- requests alone, against servers on loopback


def answer(request: http.server.BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    with contextlib.suppress(OSError):
        request.wfile.write(body)


@contextlib.contextmanager
def serving(
    handle: t.Callable[[http.server.BaseHTTPRequestHandler], None], *, tls: ssl.SSLContext | None = None
) -> t.Iterator[str]:
    """A server that does ``handle`` for each GET; gives its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            handle(self)

        def log_message(self, *_unused: t.Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def ask(url: str, *, key: str = "", verify: bool | str = True, seconds: float = 5.0) -> t.Any:
    return fetcher(api_key=key, verify=verify)(f"{url}/v1/models", seconds)


def test_the_key_is_a_bearer_and_nothing_else_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[t.Any] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.append((request.path, dict(request.headers)))
        answer(request, 200, MODELS)

    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other-secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with serving(handle) as url:
        assert ask(url, key=KEY).body == MODELS
        ask(url)
    assert seen[0][0] == "/v1/models"
    assert seen[0][1]["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in seen[1][1]


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_proxy_variables_are_not_followed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(lambda request: answer(request, 200, MODELS)) as url:
        assert ask(url).status == 200


def test_redirects_are_not_followed() -> None:
    with serving(lambda request: answer(request, 302, b"", Location="http://127.0.0.1:9/")) as url:
        got = ask(url, key=KEY)
    assert (got.status, got.location) == (302, "http://127.0.0.1:9/")


def _drip(request: http.server.BaseHTTPRequestHandler, *, headers: bool) -> None:
    with contextlib.suppress(OSError):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"" if headers else b"Content-Length: 1000\r\n\r\n"))
        for _number in range(100):
            request.wfile.write(b"X" if headers else b" ")
            request.wfile.flush()
            time.sleep(0.2)


def _huge(request: http.server.BaseHTTPRequestHandler) -> None:
    with contextlib.suppress(OSError):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            request.wfile.write(b" " * 65536)


def _bomb(request: http.server.BaseHTTPRequestHandler) -> None:
    answer(request, 200, PACKED, **{"Content-Encoding": "gzip"})


def _silent(_request: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(3)


@pytest.mark.parametrize(
    ("handle", "part"),
    [
        (lambda request: _drip(request, headers=True), "no complete answer within 1 s"),
        (lambda request: _drip(request, headers=False), "no complete answer within 1 s"),
        (_silent, "no complete answer within 1 s"),
        (_huge, "more than 1048576 bytes"),
        (_bomb, "more than 1048576 bytes"),
        (lambda request: request.connection.close(), ""),
        (lambda request: request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nhalf"), ""),
        (lambda request: request.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n"), ""),
    ],
    ids=["drips headers", "drips body", "silent", "endless", "packed", "hangs up", "half", "no HTTP"],
)
def test_answers_are_bounded_in_time_and_size(
    handle: t.Callable[[http.server.BaseHTTPRequestHandler], None], part: str
) -> None:
    with serving(handle) as url:
        started = time.monotonic()
        with pytest.raises(Unreachable) as refused:
            # What must be cut by its size has the time for it, also on a busy machine.
            ask(url, seconds=8.0 if "bytes" in part else 1.0)
        assert time.monotonic() - started < 10
    assert part in str(refused.value)
    assert str(refused.value)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match="Connection refused"):
        ask(f"http://127.0.0.1:{port}")


def test_an_unknown_name() -> None:
    with pytest.raises(Unreachable, match=r"Name or service not known|No address|name resolution|Temporary failure"):
        ask("http://no-such-host.invalid")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed one for 127.0.0.1, with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *words.split(), "-keyout", path.with_suffix(".key"), "-out", path], check=True, capture_output=True
    )
    path.write_bytes(path.read_bytes() + path.with_suffix(".key").read_bytes())
    return path


def test_certificates(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(lambda request: answer(request, 200, MODELS), tls=context) as url:
        with pytest.raises(Unreachable, match=r"(?i)certificate verify failed"):
            ask(url)
        assert ask(url, verify=str(certificate)).status == 200
        with warnings.catch_warnings(record=True) as said:
            assert ask(url, verify=False).status == 200
        assert not said
        with pytest.raises(Unreachable):
            ask(url.replace("https", "http"))


def test_a_router_that_learns_late_is_waited_for() -> None:
    states = iter([503, 503, 200])
    with serving(lambda request: answer(request, next(states), MODELS)) as url:
        found = check(
            url,
            "k26",
            fetcher(api_key="", verify=True),
            within=30,
            monotonic=time.monotonic,
            sleep=lambda _seconds: None,
        )
    assert found.cause == ""
