# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a wait for readiness came to, and what to do about it. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """An end of the wait, or what holds it up."""

    state: str
    final: bool
    cause: str = ""
    summary: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, state: str, final: bool, cause: str, summary: str) -> Finding:
        """With the remedy that is known of its cause."""
        return cls(state, final, cause, summary, REMEDIES.get(cause, ""))


#: By cause.
REMEDIES = {
    "stopped": "Start it, by `systemctl start` or a deployment; `journalctl --unit` says who stopped it.",
    "port_conflict": "Stop the process that holds the port, or give this instance another port.",
    "port_owned_by_other": "Stop the process that holds the port, or give this instance another port.",
    "wrong_port": "Give the port that the server was started with, or restart it with the one that is wanted.",
    "wrong_model": "Correct served_model_name, or the id that is expected.",
    "wrong_model_path": "Correct model_path; a server of another model runs in this unit.",
    "settings_mismatch": "Restart the unit so that it runs what its file says, or correct the arguments.",
    "unauthorized": "Give the key that the server was started with as api_key.",
    "wrong_address": "Give the host that the server was started with, or restart it with the one that is wanted.",
    "port_not_permitted": "Give the instance a port above 1023, or its unit AmbientCapabilities=CAP_NET_BIND_SERVICE.",
    "address_not_available": "Give the instance an address that this host has (`ip address`).",
    "tls_certificate": "Give the authority that signed the certificate as ca_path, or a certificate for this host and time.",
    "tls_expected": "Set scheme to https.",
    "tls_missing": "Set scheme to http, or give the server --ssl-certfile and --ssl-keyfile.",
    "redirected": "See what the unit starts: its answers are not those of an SGLang server.",
    "not_http": "See what the unit starts: its answers are not those of an SGLang server.",
    "not_json": "See what the unit starts: its answers are not those of an SGLang server.",
    "huge_answer": "See what the unit starts: its answers are not those of an SGLang server.",
    "speculation_not_exercised": "Check the speculative arguments: the server answers without its draft model.",
    "argument_error": "Correct the argument (with the role, under args of the instance): the installed release does not know it, or "
    "refuses its value.",
    "exec_failed": "The program could not be started: see systemd.exec(5) for the status, and the unit's ExecStart, User and paths.",
    "not_found": "Deploy the instance first, or correct the unit's name.",
    "no_scheduler": "See what the unit starts: a server that answers for another one is not this model.",
    "unit_type": "Set Type=exec in the unit: SGLang tells systemd nothing, and stays where it was started.",
    "other_network": "Take PrivateNetwork, NetworkNamespacePath and the like out of the unit, or start the server without a container.",
    "kv_cache_too_small": (
        "Give the KV cache more room (mem_fraction_static, kv_cache_dtype, a smaller draft or shorter context), or ask for less of it:"
        " fewer requests in flight, or shorter ones."
    ),
    "leader_unreachable": (
        "Check leader, that rank 0 runs, and that it listens on an address that this host reaches, not on 127.0.0.1 only."
    ),
    "timeout": "Raise timeout if the server was still at work; log_tail has its last lines.",
}


__all__ = ("REMEDIES", "Finding")
