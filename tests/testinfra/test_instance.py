# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One deployed instance: the unit that systemd really uses, the process behind the port, the answers it gives."""

from __future__ import annotations

import json
import re
import typing as t

import pytest
from testinfra.host import Host

from ansible_collections.specdec.serving.tests.testinfra.conftest import Instance


def ask(host: Host, instance: Instance, path: str, body: dict[str, t.Any] | None = None) -> tuple[int, str]:
    """Ask the server on the host itself; returns HTTP status and text."""
    url = f"http://127.0.0.1:{instance.port}{path}"
    words = ["curl", "--noproxy", "*", "--silent", "--max-time", "30", "--write-out", "\\n%{http_code}", url]
    if instance.api_key:
        words += ["--oauth2-bearer", instance.api_key]
    if body is not None:
        words += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
    done = host.run(" ".join(["%s"] * len(words)), *words)
    assert done.rc == 0, f"curl {url} ended with {done.rc}: {done.stderr}"
    text, _newline, status = done.stdout.rpartition("\n")
    return int(status), text


def owners(host: Host, instance: Instance) -> set[str]:
    """Return the control groups of the processes that listen on the instance's port."""
    listening = host.check_output("ss -H --listening --numeric --tcp --processes 'sport = :%s'", str(instance.port))
    pids = set(re.findall(r"pid=(\d+)", listening))
    return {host.check_output("cat /proc/%s/cgroup", pid).rpartition("::")[2].strip() for pid in pids}


def test_the_unit_runs_and_starts_at_boot(host: Host, instance: Instance) -> None:
    service = host.service(instance.unit)
    assert service.is_running
    assert service.is_enabled


def test_systemd_uses_the_settings_that_a_server_needs(host: Host, instance: Instance) -> None:
    properties = host.service(instance.unit).systemd_properties
    wanted = {
        "KillMode": "mixed",
        "LimitMEMLOCK": "infinity",
        "LogRateLimitBurst": "4294967295",
        "NeedDaemonReload": "no",
        "NRestarts": "0",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2",
        "Result": "success",
        "TimeoutStartUSec": "infinity",
        "Type": "exec",
        "User": "sglang",
    }
    assert {name: properties.get(name) for name in wanted} == wanted


def test_only_the_unit_listens_on_the_port(host: Host, instance: Instance) -> None:
    group = host.service(instance.unit).systemd_properties["ControlGroup"]
    assert owners(host, instance) == {group}


def test_the_server_says_that_it_is_ready(host: Host, instance: Instance) -> None:
    assert ask(host, instance, "/ready")[0] == 200


def test_the_server_offers_the_model(host: Host, instance: Instance) -> None:
    status, text = ask(host, instance, "/v1/models")
    assert status == 200
    assert [row["id"] for row in json.loads(text)["data"]] == [instance.served_model_name]


def test_the_server_answers(host: Host, instance: Instance) -> None:
    body = {
        "model": instance.served_model_name,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
        "temperature": 0,
    }
    status, text = ask(host, instance, "/v1/chat/completions", body)
    assert status == 200, text
    answer = json.loads(text)
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["choices"][0]["message"]["content"]


def test_the_engine_is_complete_and_not_the_servers_to_change(host: Host, instance: Instance) -> None:
    command = host.service(instance.unit).systemd_properties["ExecStart"]
    python = re.search(r"path=(\S+)", command)
    assert python, command
    engine = host.file(python.group(1).removesuffix("/bin/python"))
    assert engine.is_directory
    assert engine.user == "root"
    record = json.loads(host.file(f"{engine.path}/engine.json").content_string)
    assert record["version"].partition("+")[0] in engine.path


def test_the_server_has_its_own_user(host: Host, instance: Instance) -> None:
    pid = host.service(instance.unit).systemd_properties["MainPID"]
    assert host.check_output("ps -o user= -p %s", pid).strip() == "sglang"


def test_the_key_stands_in_no_unit_and_no_command_line(host: Host, instance: Instance) -> None:
    seen = {
        "unit file": host.check_output("systemctl cat %s", instance.unit),
        "unit properties": host.check_output("systemctl show %s", instance.unit),
        "command lines": host.check_output("ps -e -o args="),
        "environments": host.run("cat /proc/[0-9]*/environ | tr '\\0' '\\n'").stdout,
    }
    assert instance.api_key, "the demo's instances have a key: without one this test shows nothing"
    assert [where for where, text in seen.items() if instance.api_key in text] == []


def test_the_sandbox_is_tight_and_holds_for_every_process(
    host: Host, instance: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    told = host.check_output("systemd-analyze security --no-pager %s", instance.unit)
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert score, told
    with capsys.disabled():
        print(f"\nsystemd-analyze security {instance.unit}: {score.group(1)}")
    assert float(score.group(1)) <= 3.0, told
    # What systemd says is one thing, what the server's processes run under another.
    group = host.service(instance.unit).systemd_properties["ControlGroup"]
    pids = host.check_output("cat /sys/fs/cgroup%s/cgroup.procs", group).split()
    assert len(pids) >= 3  # main, a scheduler, the detokenizer
    for pid in pids:
        status = dict(re.findall(r"^(\w+):\s+(.*)$", host.check_output("cat /proc/%s/status", pid), re.MULTILINE))
        assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapBnd"], 16)) == ("1", "2", 0), (pid, status)


def test_the_server_itself_prints_its_keys_as_documented(host: Host, instance: Instance) -> None:
    """What the role's README warns of: were it gone, the warning could go, too."""
    journal = host.check_output("journalctl --quiet --no-pager --output=cat --unit=%s", instance.unit)
    lines = [line for line in journal.splitlines() if instance.api_key in line]
    assert lines
    assert all("server_args=" in line for line in lines)
    status, text = ask(host, instance, "/server_info")
    assert status == 200
    assert json.loads(text)["api_key"] == instance.api_key
    assert instance.api_key in str(json.loads(text)["launch_command"])
