# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Starts that fail in the real engine: right state, right cause, and a remedy that is true, since it is then applied.

The unit is changed by a drop-in under /run only; afterwards it runs again as it was deployed.
"""

from __future__ import annotations

import contextlib
import typing as t

import pytest
from testinfra.host import Host

from ansible_collections.specdec.serving.tests.testinfra.conftest import Instance, Run, ready_task, restart_task, until

pytestmark = pytest.mark.long("each a failed start of the real engine and a good one")

COPY = "/srv/copied-model"
FOREIGN = "foreign-server.service"
TIMEOUT_S = 300


def command_line(host: Host, instance: Instance) -> str:
    text: str = host.file(f"/etc/systemd/system/{instance.unit}").content_string.replace("\\\n", " ")
    return next(line for line in text.splitlines() if line.startswith("ExecStart=")).removeprefix("ExecStart=")


def model_path(host: Host, instance: Instance) -> str:
    words = command_line(host, instance).split()
    return words[words.index("--model-path") + 1].strip('"')


@contextlib.contextmanager
def changed(host: Host, instance: Instance, change: t.Callable[[str], str]) -> t.Iterator[None]:
    """The unit with another command line, and never restarted by systemd."""
    folder = f"/run/systemd/system/{instance.unit}.d"
    lines = ["[Service]", "Restart=no", "ExecStart=", f"ExecStart={change(command_line(host, instance))}"]
    host.check_output(f"mkdir -p {folder} && echo %s > {folder}/test.conf", "\n".join(lines))
    host.check_output("systemctl daemon-reload")
    try:
        yield
    finally:
        # A server that could not bind its port polls the other one for two minutes, whatever it is told.
        host.run("systemctl kill --signal=KILL %s", instance.unit)
        host.check_output(f"rm -r {folder}; systemctl daemon-reload; systemctl reset-failed %s", instance.unit)


@pytest.fixture(autouse=True)
def as_deployed(host: Host, instance: Instance, run: Run) -> t.Iterator[None]:
    """What every remedy here amounts to: without the fault, the same unit gets ready."""
    if "stand-in" in model_path(host, instance):
        pytest.skip("the stand-in reads no weights and has no CPU to refuse: these starts need the real engine")
    yield
    answer = run(restart_task(instance), ready_task(instance, timeout=TIMEOUT_S))
    assert answer["ready"], answer.get("msg")


def verdict(answer: dict[str, t.Any]) -> tuple[str, str]:
    return answer["state"], answer["diagnosis"]["cause"]


def test_a_scheduler_that_is_killed_while_it_loads(host: Host, instance: Instance, run: Run) -> None:
    # A model this small loads in a moment; the scheduler bears its name from the start of its imports on.
    script = (
        f"systemctl reset-failed {instance.unit}; systemctl restart --no-block {instance.unit};"
        f"until pid=$(pgrep --full --newest sglang::scheduler) && "
        f'grep -q {instance.unit} /proc/$pid/cgroup && [ $pid != "$old" ]; do sleep 0.05; done; kill -KILL $pid'
    )
    with changed(host, instance, str):
        kill = {
            "name": "Kill the scheduler",
            "ansible.builtin.shell": f"old=$(pgrep --full --newest sglang::scheduler);{script}",
        }
        answer = run(kill, ready_task(instance, timeout=TIMEOUT_S))
    assert verdict(answer) == ("crashed", "scheduler_killed"), answer["msg"]
    assert answer["diagnosis"]["exit"]


def test_a_damaged_weight_file(host: Host, instance: Instance, run: Run) -> None:
    original = model_path(host, instance)
    host.check_output(f"rm -rf {COPY} && cp -rL {original} {COPY} && chmod -R u+w,a+rX {COPY}")
    file = host.check_output(f"ls {COPY}/*.safetensors | head -1")
    host.check_output(f"truncate --size=-1000 {file}")
    with changed(host, instance, lambda line: line.replace(f"--model-path {original} ", f"--model-path {COPY} ")):
        answer = run(restart_task(instance), ready_task(instance, timeout=TIMEOUT_S))
    host.check_output(f"rm -r {COPY}")
    assert verdict(answer) == ("crashed", "weights_damaged"), answer["msg"]


def test_dflash_on_a_cpu(host: Host, instance: Instance, run: Run) -> None:
    extra = f" --speculative-algorithm DFLASH --speculative-draft-model-path {model_path(host, instance)}"
    with changed(host, instance, lambda line: line + extra):
        answer = run(restart_task(instance), ready_task(instance, timeout=TIMEOUT_S))
    assert answer["state"] == "crashed", answer["msg"]
    assert "DFLASH" in answer["msg"]
    assert answer["diagnosis"]["remedy"]


def test_a_port_that_a_foreign_server_holds(host: Host, instance: Instance, run: Run) -> None:
    with changed(host, instance, str):
        host.check_output("systemctl stop %s", instance.unit)
        serve = f"python3 -m http.server --bind 127.0.0.1 {instance.port}"
        host.check_output(f"systemd-run --quiet --unit={FOREIGN} {serve}")
        try:
            until(lambda: host.run("curl --silent http://127.0.0.1:%s/", str(instance.port)).rc == 0, "it answers")
            holder = host.service(FOREIGN).systemd_properties["MainPID"]
            answer = run(restart_task(instance), ready_task(instance, timeout=TIMEOUT_S))
        finally:
            host.check_output(f"systemctl stop {FOREIGN}")
    assert verdict(answer) == ("crashed", "port_conflict"), answer["msg"]
    assert f"pid {holder} " in answer["msg"]
    assert FOREIGN in answer["msg"]
