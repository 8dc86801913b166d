#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that has a port and answers oddly: what stands in a unit need not be SGLang. Usage: odd_server.py PORT MODE [PATH]

With PATH only requests for it are answered oddly, all others as a ready SGLang does. Modes: see ``ODD``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
import typing as t

MODEL = "kimi-k2.6"
INFO = {
    "model_path": "/models/stand-in-target",
    "tp_size": 2,
    "ep_size": 2,
    "disable_cuda_graph": True,
    "speculative_algorithm": "DFLASH",
    "speculative_num_draft_tokens": 8,
}
META = {"completion_tokens": 17, "spec_verify_ct": 7}


def _answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


def _right(path: str, body: bytes) -> bytes:
    values: dict[str, t.Any] = {
        "/v1/models": {"data": [{"id": MODEL}]},
        "/model_info": INFO,
        "/server_info": INFO,
        "/ready": {},
        "/generate": {"text": "x", "meta_info": META},
        # The name that was asked for comes back, whatever is served.
        "/v1/chat/completions": {"model": json.loads(body or b"{}").get("model"), "choices": []},
    }
    if path not in values:
        return _answer(b"", "404 Not Found")
    return _answer(json.dumps(values[path]).encode())


def _drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.1)


def _endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def _huge(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def _headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")


def _mute(_connection: socket.socket) -> None:
    time.sleep(3600)


def _sends(data: bytes) -> t.Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


_OTHER = json.dumps({"data": [{"id": "org/model-b"}]}).encode()
ODD: dict[str, t.Callable[[socket.socket], None]] = {
    "right": _sends(b""),  # replaced below: nothing is odd
    "redirect": _sends(_answer(b"", "307 Temporary Redirect", "Location: http://127.0.0.1:1/elsewhere")),
    "drip": _drip,
    "endless": _endless,
    "huge": _huge,
    "headers": _headers,
    "mute": _mute,
    "close": lambda _connection: None,
    "html": _sends(_answer(b"<html><body>It works!</body></html>", "200 OK", "Content-Type: text/html")),
    "empty": _sends(_answer(b"")),
    "list": _sends(_answer(b"[1, 2, 3]")),
    "deep": _sends(_answer(b"[" * 100000)),
    "short": _sends(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"data": []}'),
    "banner": _sends(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"),
    "error": _sends(_answer(b"Internal Server Error", "500 Internal Server Error")),
    "missing": _sends(_answer(b'{"detail":"Not Found"}', "404 Not Found")),
    "other_model": _sends(_answer(_OTHER)),
    "no_model": _sends(_answer(b'{"data": []}')),
    "one_step": _sends(_answer(json.dumps({"meta_info": {**META, "spec_verify_ct": 1}}).encode())),
    "no_steps": _sends(_answer(json.dumps({"meta_info": {"completion_tokens": 17}}).encode())),
    "few_tokens": _sends(_answer(json.dumps({"meta_info": {**META, "completion_tokens": 3}}).encode())),
    "no_meta": _sends(_answer(b'{"text": "hello"}')),
}


def _serve(connection: socket.socket, mode: str, odd_path: str) -> None:
    # The client goes away when it has seen enough.
    with connection, contextlib.suppress(OSError, ValueError):
        head = b""
        while b"\r\n\r\n" not in head:
            data = connection.recv(65536)
            if not data:
                return
            head += data
        head, _, body = head.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += connection.recv(65536)
        path = head.split(b" ")[1].decode()
        if mode == "right" or (odd_path and path != odd_path):
            connection.sendall(_right(path, body))
        else:
            ODD[mode](connection)


def main(port: int, mode: str, odd_path: str = "") -> None:
    """Serve until killed."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        while True:
            connection, _address = listener.accept()
            threading.Thread(target=_serve, args=(connection, mode, odd_path), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
