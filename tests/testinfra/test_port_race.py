# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The story's race: a server that was started by hand holds the port and answers, while the unit is restarted.

The new process then really logs "The server is fired up and ready to roll!", since its warm-up asks the other one
(recorded: fail-port-held-by-other-sglang.log). It must never count as ready, and the message must name the other.
"""

from __future__ import annotations

import typing as t

import pytest
from testinfra.host import Host

from ansible_collections.specdec.serving.tests.testinfra.conftest import Instance, Run, ready_task, restart_task, until
from ansible_collections.specdec.serving.tests.testinfra.test_instance import ask

BY_HAND = "started-by-hand.service"


def answers(host: Host, instance: Instance) -> bool:
    command = "curl --noproxy '*' --silent --output /dev/null --max-time 5 http://127.0.0.1:%s/v1/models"
    return host.run(command, str(instance.port)).rc == 0 and ask(host, instance, "/v1/models")[0] == 200


@pytest.fixture
def by_hand(host: Host, instance: Instance) -> t.Iterator[str]:
    """A server with the unit's own command line, settings and key, in a control group of its own; the unit is stopped.

    Where its ranks meet is drawn by SGLang: on the unit's nccl_port the new process would fail before it comes to the port.
    """
    path = f"/run/systemd/system/{BY_HAND}"
    host.check_output("systemctl stop %s", instance.unit)
    host.check_output(
        f"sed -e '/^Restart/d' -e 's/ --nccl-port [0-9]*//' /etc/systemd/system/{instance.unit} > {path} && systemctl daemon-reload"
    )
    try:
        host.check_output("systemctl start %s", BY_HAND)
        until(lambda: answers(host, instance), "the server started by hand answers")
        yield BY_HAND
    finally:
        host.check_output(f"systemctl stop {BY_HAND}; rm {path}; systemctl daemon-reload")
        host.check_output("systemctl reset-failed %s; systemctl start %s", instance.unit, instance.unit)


def test_a_server_started_by_hand_never_passes_for_the_unit(
    host: Host, instance: Instance, by_hand: str, run: Run
) -> None:
    holder = host.service(by_hand).systemd_properties["MainPID"]
    answer = run(restart_task(instance), ready_task(instance, timeout=300))
    assert ask(host, instance, "/v1/models")[0] == 200, "the server started by hand must have answered all the time"
    assert answer["ready"] is False
    assert answer["state"] == "crashed"
    assert answer["diagnosis"]["cause"] == "port_conflict"
    assert f"pid {holder} " in answer["msg"]
    assert by_hand in answer["msg"]
    # The trap was there: the unit's own process says that it is ready, and ends.
    until(lambda: not host.service(instance.unit).is_running, "the unit ends")
    log = host.check_output("journalctl --output=cat _SYSTEMD_INVOCATION_ID=%s", answer["invocation_id"])
    assert "[Errno 98]" in log
    assert "The server is fired up and ready to roll!" in log


def test_afterwards_the_unit_gets_ready_again(instance: Instance, run: Run) -> None:
    answer = run(ready_task(instance, timeout=300))
    assert answer["ready"], answer.get("msg")
