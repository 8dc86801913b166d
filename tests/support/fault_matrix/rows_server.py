# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of the fault matrix: who answers, how, where, to whom, and what the journal holds of it."""

from __future__ import annotations

import functools
import json

from ansible_collections.specdec.serving.tests.support.fault_matrix.model import TLS, Action, Fault
from ansible_collections.specdec.serving.tests.support.observer.units import SETTINGS, STAND_IN, server_command

_KEY = "sk-planted-key-1"
_ADMIN_KEY = "adm-planted-key-2"

_Other = functools.partial(Fault, group="identity", state="loading", own_time="truth:port_bound")
IDENTITY = (
    _Other(
        id="asked-other-model",
        what="another model is asked for (chat answers would echo its name)",
        cause="wrong_model",
        options={"model": "org/model-b"},
        words=("org/model-b", "kimi-k2.6"),
    ),
    _Other(
        id="asked-other-path",
        what="another path is asked for",
        cause="wrong_model_path",
        options={"model_path": "/models/other"},
        words=("/models/other", "/models/stand-in-target"),
    ),
    *(
        _Other(
            id=f"asked-{name.replace('_', '-')}",
            what=f"{name}: {value!r} is asked for",
            cause="settings_mismatch",
            options={"settings": {**SETTINGS, name: value}},
            words=(f"{name} asked {value!r}, running ",),
        )
        for name, value in (
            ("tp_size", 8),
            ("ep_size", 8),
            ("pp_size", 2),
            ("dp_size", 2),
            ("speculative_algorithm", "EAGLE3"),
            ("speculative_dflash_block_size", 16),
            ("speculative_draft_model_path", "/models/other-draft"),
            ("disable_cuda_graph", False),
            ("cuda_graph_backend_decode", "full"),
        )
    ),
    _Other(
        id="asked-several",
        what="several settings differ",
        cause="settings_mismatch",
        options={"settings": {**SETTINGS, "tp_size": 4, "speculative_dflash_block_size": 16}},
        words=("tp_size asked 4, running 2", "speculative_dflash_block_size asked 16, running 8"),
    ),
    Fault(
        id="asked-other-words",
        group="identity",
        what="the same settings in other words (2k, trailing slash, NEXTN is EAGLE)",
        state="ready",
        own_time="truth:ready",
        arguments=("--chunked-prefill-size", "2048"),
        options={
            "model_path": "/models/stand-in-target/",
            "settings": {**SETTINGS, "chunked_prefill_size": "2K", "speculative_algorithm": "dflash"},
        },
    ),
    Fault(
        id="asked-resolved-by-the-engine",
        group="identity",
        what="the engine chose another value for what may be chosen",
        state="ready",
        own_time="truth:ready",
        options={"settings": {**SETTINGS, "max_running_requests": 7}},
        words=("engine changed: max_running_requests asked 7",),
    ),
)

_Key = functools.partial(Fault, group="identity", arguments=("--api-key", _KEY))
KEYS = (
    _Key(id="key-right", what="the key is right", state="ready", own_time="truth:ready", options={"api_key": _KEY}),
    _Key(
        id="key-wrong",
        what="the key is wrong",
        state="loading",
        cause="unauthorized",
        own_time="truth:port_bound",
        options={"api_key": "sk-another-key-3"},
        words=("answered 401", "is not the server's"),
    ),
    _Key(
        id="key-missing",
        what="no key is given",
        state="loading",
        cause="unauthorized",
        own_time="truth:port_bound",
        words=("answered 401", "no api_key was given"),
    ),
    Fault(
        id="key-admin-only",
        group="identity",
        what="the server has an admin key only, and needs none for us",
        state="ready",
        own_time="truth:ready",
        arguments=("--admin-api-key", _ADMIN_KEY),
    ),
    Fault(
        id="key-not-needed",
        group="identity",
        what="a key is given to a server that has none",
        state="ready",
        own_time="truth:ready",
        options={"api_key": _KEY},
    ),
    _Key(
        id="key-of-the-admin",
        what="the admin's key is given in place of the users'",
        arguments=("--api-key", _KEY, "--admin-api-key", _ADMIN_KEY),
        state="loading",
        cause="unauthorized",
        own_time="truth:port_bound",
        options={"api_key": _ADMIN_KEY},
        words=("answered 401",),
    ),
)


def _tls(name: str) -> tuple[str, ...]:
    return ("--ssl-certfile", f"{TLS}/{name}.crt", "--ssl-keyfile", f"{TLS}/{name}.key")


_CA = {"scheme": "https", "ca_path": f"{TLS}/ca.crt"}
_Tls = functools.partial(Fault, group="TLS", state="loading", own_time="truth:port_bound")
_Fine = functools.partial(Fault, state="ready", own_time="truth:ready")
ENCRYPTION = (
    _Fine(id="tls-own-ca", group="TLS", what="a certificate of an own CA", arguments=_tls("good"), options=_CA),
    _Fine(
        id="tls-not-verified",
        group="TLS",
        what="a self-signed certificate that is not verified",
        arguments=_tls("selfsigned"),
        options={"scheme": "https", "validate_certs": False},
    ),
    _Fine(
        id="tls-ipv6",
        group="TLS",
        what="TLS on the IPv6 loopback",
        arguments=("--host", "::1", *_tls("good")),
        options={**_CA, "host": "::1"},
    ),
    _Fine(
        id="tls-key",
        group="TLS",
        what="TLS and a key",
        arguments=("--api-key", _KEY, *_tls("good")),
        options={**_CA, "api_key": _KEY},
    ),
    _Tls(
        id="tls-unknown-ca",
        what="a certificate of a CA that nobody knows",
        cause="tls_certificate",
        arguments=_tls("good"),
        options={"scheme": "https"},
        words=("unable to get local issuer",),
    ),
    _Tls(
        id="tls-self-signed",
        what="a self-signed certificate",
        cause="tls_certificate",
        arguments=_tls("selfsigned"),
        options={"scheme": "https"},
        words=("self-signed",),
    ),
    _Tls(
        id="tls-expired",
        what="an expired certificate",
        cause="tls_certificate",
        arguments=_tls("expired"),
        options=_CA,
        words=("expired",),
    ),
    _Tls(
        id="tls-other-host",
        what="a certificate for another host",
        cause="tls_certificate",
        arguments=_tls("other"),
        options=_CA,
        words=("127.0.0.1",),
    ),
    _Tls(
        id="http-to-a-tls-port",
        what="plain HTTP to a TLS port",
        cause="tls_expected",
        arguments=_tls("good"),
        words=("scheme to https",),
    ),
    _Tls(
        id="tls-to-a-plain-port",
        what="TLS to a plain port",
        cause="tls_missing",
        options=_CA,
        words=("scheme to http",),
    ),
)

HOSTS = (
    *(
        _Fine(
            id=f"host-{name}",
            group="addresses",
            what=f"the server listens on {host!r}",
            arguments=("--host", host),
            options={"host": host},
        )
        for name, host in (
            ("all-ipv4", "0.0.0.0"),
            ("all-ipv6", "::"),
            ("loopback-ipv6", "::1"),
            ("localhost", "localhost"),
            ("own-address", "@ADDRESS@"),
        )
    ),
    _Fine(
        id="host-empty",
        group="addresses",
        what="the server listens on '' (all addresses)",
        arguments=("--host", '""'),
        options={"host": ""},
    ),
    _Fine(
        id="host-subset",
        group="addresses",
        what="the server listens on all addresses, one is asked for",
        arguments=("--host", "0.0.0.0"),
        options={"host": "@ADDRESS@"},
    ),
    Fault(
        id="host-other-family",
        group="addresses",
        what="the server listens on ::1, 127.0.0.1 is asked for",
        state="loading",
        cause="wrong_address",
        own_time="truth:port_bound",
        arguments=("--host", "::1"),
        words=("the server listens on ::1",),
    ),
    Fault(
        id="host-narrower",
        group="addresses",
        what="the server listens on 127.0.0.1, the host's own address is asked for",
        state="loading",
        cause="wrong_address",
        own_time="truth:port_bound",
        options={"host": "@ADDRESS@"},
        words=("the server listens on 127.0.0.1",),
    ),
    Fault(
        id="host-not-here",
        group="addresses",
        what="the server is told to listen on an address that the host does not have",
        state="crashed",
        cause="address_not_available",
        own_time="truth:bind_failed",
        arguments=("--host", "192.0.2.1"),
        options={"host": "192.0.2.1"},
    ),
    Fault(
        id="host-unknown-name",
        group="addresses",
        what="the server is told to listen on a name that nobody knows",
        state="crashed",
        cause="address_not_available",
        arguments=("--host", "no-such-host.invalid"),
        words=("does not know the name",),
    ),
    Fault(
        id="port-privileged",
        group="addresses",
        what="the server's user may not bind a port below 1024",
        state="crashed",
        cause="port_not_permitted",
        own_time="truth:bind_failed",
        arguments=("--port", "81"),
        service=("User=nobody", "CapabilityBoundingSet="),
        options={"port": 81},
    ),
    Fault(
        id="port-other",
        group="addresses",
        what="another port is asked for",
        state="loading",
        cause="wrong_port",
        own_time="truth:ready",
        options={"port": 31999},
    ),
    _Fine(
        id="proxy-in-our-environment",
        group="addresses",
        what="proxy variables in the environment of the wait",
        observer_environment=dict.fromkeys(
            ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:9"
        ),
    ),
    Fault(
        id="proxy-in-the-units-environment",
        group="addresses",
        what="a proxy in the unit's environment refuses SGLang's request to itself",
        state="crashed",
        cause="warmup_failed",
        environment={"http_proxy": "http://127.0.0.1:9", "no_proxy": ""},
    ),
)

# The holder answers like SGLang when the new process warms up against it.
_SGLANG = ("env", f"PYTHONPATH={STAND_IN}", "STAND_IN_SCALE=0.002", *server_command(port="@PORT@").split())
_HOLDER = """\
import socket, sys, time
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if len(sys.argv) > 3: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); time.sleep(1000)
"""


def _holds(address: str, *more: str) -> tuple[str, ...]:
    return ("python3", "-c", _HOLDER, address, "@PORT@", *more)


PORTS = (
    Fault(
        id="port-held-by-sglang",
        group="ports",
        what="another SGLang holds the port: the new process says that it is ready, and ends",
        state="crashed",
        cause="port_conflict",
        own_time="truth:bind_failed",
        neighbours=(_SGLANG,),
        words=("python3 -m sglang.launch_server",),
    ),
    Fault(
        id="port-held-by-other",
        group="ports",
        what="a server of another kind holds the port",
        state="crashed",
        cause="port_conflict",
        own_time="truth:bind_failed",
        neighbours=(_holds("127.0.0.1"),),
    ),
    Fault(
        id="port-held-on-one-address",
        group="ports",
        what="one address of the port is held, all are asked for",
        state="crashed",
        cause="port_conflict",
        own_time="truth:bind_failed",
        arguments=("--host", "0.0.0.0"),
        options={"host": "0.0.0.0"},
        neighbours=(_holds("@ADDRESS@"),),
    ),
    _Fine(
        id="port-held-elsewhere",
        group="ports",
        what="the port is held on an address that does not matter",
        neighbours=(_holds("@ADDRESS@"),),
    ),
    Fault(
        id="port-shared",
        group="ports",
        what="a neighbour shares the port with SO_REUSEPORT: half of the clients would reach it",
        state="loading",
        cause="port_owned_by_other",
        own_time="timeout",
        environment={
            "STAND_IN_FAULT": json.dumps({"at": "bind", "do": "listen", "reuse_port": True}),
        },
        neighbours=(_holds("127.0.0.1", "shared"),),
        options={"timeout": "4"},
    ),
    Fault(
        id="unit-is-no-server",
        group="ports",
        what="the unit runs something else, and a server started by hand answers on the port",
        state="loading",
        cause="port_owned_by_other",
        own_time="timeout",
        command="/bin/sleep 1000",
        neighbours=(_SGLANG,),
        options={"timeout": "4"},
    ),
)

JOURNAL = (
    _Fine(
        id="log-level",
        group="journal",
        what="the log level hides the markers",
        arguments=("--log-level", "warning"),
        words=("log_level",),
    ),
)

WAITS = (
    Fault(
        id="wait-no-sock-diag",
        group="waits",
        what="the kernel has no socket diagnosis: /proc decides",
        state="ready",
        own_time="truth:ready",
        switches=("--no-sock-diag",),
        words=("/proc/net",),
    ),
    Fault(
        id="wait-not-restarted",
        group="waits",
        what="the restart never came: still the start that was to be replaced",
        state="loading",
        cause="not_restarted",
        own_time="timeout",
        start="systemctl start @UNIT@",
        options={"timeout": "2", "replaces": "@INVOCATION@"},
    ),
    Fault(
        id="wait-restarted-meanwhile",
        group="waits",
        what="somebody restarts it while it loads: the wait goes on with the new start",
        state="ready",
        own_time="truth:ready",
        actions=(Action("after:0.3", "systemctl restart --no-block @UNIT@"),),
        environment={"STAND_IN_TIMES": json.dumps({"load_target": 500})},
    ),
    Fault(
        id="wait-stopped-when-up",
        group="waits",
        what="somebody stops it while it should stay stable",
        state="stopped",
        cause="stopped",
        own_time="inactive",
        environment={"STAND_IN_DRAIN_S": "0.5"},
        actions=(Action("truth:ready", "sleep 0.5; systemctl stop @UNIT@"),),
        options={"stable_for": 30},
    ),
    Fault(
        id="wait-drains",
        group="waits",
        what="the old start drains for longer than the wait",
        state="stopping",
        cause="stopping",
        own_time="timeout",
        environment={"STAND_IN_DRAIN_S": "20"},
        actions=(Action("truth:ready", "sleep 0.3; systemctl stop --no-block @UNIT@"),),
        options={"stable_for": 3, "timeout": "4"},
    ),
    Fault(
        id="wait-gated",
        group="waits",
        what="it waits at its gate (--gated-launch-port) for an operator",
        state="loading",
        cause="timeout",
        own_time="timeout",
        arguments=("--gated-launch-port", "33999"),
        options={"timeout": "6", "stall_timeout": 3, "spin_timeout": 3},
        words=("waiting_at_gate",),
    ),
)

ROWS = (*IDENTITY, *KEYS, *ENCRYPTION, *HOSTS, *PORTS, *JOURNAL, *WAITS)

__all__ = ("ROWS",)
