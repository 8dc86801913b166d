# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Deploy, change, interrupt, crash, stop and remove, on one lab host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import remove_units
from ansible_collections.specdec.serving.tests.integration.role.conftest import Deployment
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

KEY = "sk-planted-91ab77"
ADMIN_KEY = "adm-planted-91ab77"
TOKEN = "hf_planted_91ab77"
SECRETS = (KEY, ADMIN_KEY, TOKEN)
#: What systemd, Jinja and shells would change.
ODD = 'it\'s "50%" of $HOME \\ ; {"a": 1}'


@pytest.fixture
def clean(deployment: Deployment) -> Deployment:
    """The host without units of ours, whatever an earlier test left; engines stay."""
    remove_units(deployment.host)
    return deployment


def changed_flags(output: str) -> list[str]:
    """The lines that a diff of the unit adds or takes away."""
    return [line.strip() for line in re.findall(r"^[+-](?![+-]{2} )(.*)$", output, re.MULTILINE) if line.strip()]


#: Properties of the unit as systemd itself shows them.
PROPERTIES = {
    "KillMode": "mixed",
    "LimitMEMLOCK": "infinity",
    "LogRateLimitBurst": "4294967295",
    "LogRateLimitIntervalUSec": "1s",
    "NoNewPrivileges": "yes",
    "PrivateDevices": "no",
    "ProtectSystem": "strict",
    "Restart": "on-failure",
    "RestartPreventExitStatus": "2",
    "StartLimitBurst": "3",
    "TimeoutStartUSec": "infinity",
    "TimeoutStopUSec": "5min",
    "Type": "exec",
    "UnitFileState": "enabled",
    "User": "sglang",
}


def test_from_check_mode_to_removal(clean: Deployment) -> None:
    before = clean.snapshot()
    play = clean.play("deploy.yml", "--check", "--diff")
    assert play.returncode == 0, play.output
    assert play.recap("role")["changed"] > 0
    assert "--speculative-dflash-block-size 8" in play.output
    assert clean.snapshot() == before

    play = clean.play()
    assert play.returncode == 0, play.output
    assert "sglang-a.service on role: READY" in play.output
    first = clean.invocation()
    text = clean.host.exec(["systemctl", "show", f"--property={','.join(PROPERTIES)}", "sglang-a.service"]).stdout
    assert dict(line.partition("=")[::2] for line in text.splitlines()) == PROPERTIES

    deployed = clean.snapshot()
    for switches, pipelining in (((), "1"), (("--check",), "0"), ((), "0")):
        play = clean.play("deploy.yml", *switches, environment={"ANSIBLE_PIPELINING": pipelining})
        assert play.returncode == 0, play.output
        assert play.recap("role")["changed"] == 0
    assert clean.invocation() == first
    assert clean.snapshot() == deployed

    assert re.search(r"role +a +ready +a +30100", clean.play("status.yml").output)
    play = clean.play("chat.yml")
    assert play.returncode == 0, play.output

    assert clean.play("stop.yml", "--check").recap("role")["changed"] == 1
    assert clean.state() == "active"
    assert clean.play("stop.yml").recap("role")["changed"] == 1
    assert clean.state() == "inactive"
    assert clean.play("stop.yml").recap("role")["changed"] == 0
    assert re.search(r"role +a +stopped", clean.play("status.yml").output)

    # What is stopped or was edited by hand is put right, and runs what is written.
    clean.host.exec(["sh", "-c", "echo '# edited by hand' >> /etc/systemd/system/sglang-a.service"])
    play = clean.play("deploy.yml", "--diff")
    assert play.returncode == 0, play.output
    assert "-# edited by hand" in play.output
    assert play.recap("role")["changed"] == 2
    assert clean.invocation() not in ("", first)

    # The playbook says which state it is for; an extra variable outranks it.
    # Stopped, and removed.
    assert clean.play("stop.yml", sglang_state="absent").recap("role")["changed"] == 2
    left = clean.host.exec(["find", "/etc/specdec", "/var/lib/specdec", "-type", "f"], check=False).stdout
    assert left == "/var/lib/specdec/sglang/starts.jsonl\n"  # the memory of starts belongs to the host
    assert "sglang-" not in clean.host.exec(["ls", "/etc/systemd/system"]).stdout
    assert clean.play("stop.yml", sglang_state="absent").recap("role")["changed"] == 0


def test_one_changed_flag_restarts_one_instance(clean: Deployment) -> None:
    clean.variables["sglang_instances"] = [instance("a"), instance("b", port=30101)]
    assert clean.play().returncode == 0
    before = (clean.invocation("sglang-a.service"), clean.invocation("sglang-b.service"))

    changed = instance("b", port=30101)
    changed["args"] = {**changed["args"], "page_size": 64}
    clean.variables["sglang_instances"] = [instance("a"), changed]
    play = clean.play("deploy.yml", "--check", "--diff")
    assert play.returncode == 0, play.output
    assert set(changed_flags(play.output)) == {
        "--speculative-dflash-block-size 8 \\",
        "--speculative-dflash-block-size 8",
        "--page-size 64",
    }
    assert (clean.invocation("sglang-a.service"), clean.invocation("sglang-b.service")) == before

    assert clean.play().returncode == 0
    assert clean.invocation("sglang-a.service") == before[0]
    assert clean.invocation("sglang-b.service") != before[1]


def test_a_run_that_ended_before_the_restart_heals_itself(clean: Deployment) -> None:
    assert clean.play().returncode == 0
    first = clean.invocation()
    clean.variables["sglang_instances"] = [instance(env={"STAND_IN_SCALE": "0.003"})]
    # As if it was killed after the files were written.
    helper = clean.folder / "configure.yml"
    helper.write_text(
        json.dumps(
            [
                {
                    "hosts": "sglang",
                    "gather_facts": False,
                    "become": True,
                    "tasks": [
                        {"ansible.builtin.include_role": {"name": "specdec.serving.sglang", "tasks_from": tasks}}
                        for tasks in ("preflight", "configure")
                    ],
                }
            ]
        )
    )
    play = clean.play(str(helper))
    assert play.returncode == 0, play.output
    assert clean.invocation() == first

    play = clean.play()
    assert play.returncode == 0, play.output
    second = clean.invocation()
    assert second != first
    assert clean.play().recap("role")["changed"] == 0
    assert clean.invocation() == second


def test_a_configuration_that_crashes_is_stopped_and_explained(clean: Deployment) -> None:
    bad = instance()
    bad["env"] = {**bad["env"], "STAND_IN_FAULT": "oom-load-target"}
    clean.variables["sglang_instances"] = [bad]
    play = clean.play()
    assert play.returncode != 0
    assert "gpu_out_of_memory" in play.failure("role")
    assert "crashed" in play.failure("role")
    assert clean.state() in ("inactive", "failed")
    # systemd does not try it again.
    shown = clean.host.exec(["systemctl", "show", "--property=SubState", "--value", "sglang-a.service"]).stdout.strip()
    assert shown in ("dead", "failed")

    clean.variables["sglang_instances"] = [instance()]
    play = clean.play()
    assert play.returncode == 0, play.output
    assert clean.state() == "active"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make a certificate with")
def test_a_server_with_a_certificate_for_another_name(clean: Deployment) -> None:
    """It is proven ready, asked, and compared by TLS."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 3 -subj /CN=elsewhere.example -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=clean.folder, check=True, capture_output=True)
    for name in ("key.pem", "cert.pem"):
        clean.host.write_file(f"/srv/tls-{name}", (clean.folder / name).read_text())
    clean.host.exec(["chmod", "644", "/srv/tls-key.pem"])
    with_tls = instance(api_key=KEY)
    with_tls["args"] = {**with_tls["args"], "ssl_keyfile": "/srv/tls-key.pem", "ssl_certfile": "/srv/tls-cert.pem"}
    clean.variables["sglang_instances"] = [with_tls]
    play = clean.play("deploy.yml")
    assert "sglang-a.service on role: READY" in play.output, play.output[-4000:]
    assert clean.play("chat.yml").returncode == 0
    assert "as asked" in clean.play("status.yml").output


def test_secrets_reach_the_server_and_nothing_else(clean: Deployment) -> None:
    with_keys = instance(api_key=KEY, admin_api_key=ADMIN_KEY)
    with_keys["env"] = {**with_keys["env"], "HF_TOKEN": TOKEN, "ODD": ODD}
    with_keys["args"] = {**with_keys["args"], "chat_template": ODD}
    clean.variables["sglang_instances"] = [with_keys]
    outputs = [
        clean.play("deploy.yml", "-vvvvv", "--check", "--diff").output,
        clean.play("deploy.yml", "-vvvvv", "--diff").output,
        clean.play("chat.yml", "-vvvvv").output,
        clean.play("status.yml", "-vvvvv").output,
    ]
    assert "sglang-a.service on role: READY" in outputs[1]
    found = [(secret, number) for number, output in enumerate(outputs) for secret in SECRETS if secret in output]
    assert found == []

    pid = clean.host.exec(["systemctl", "show", "--property=MainPID", "--value", "sglang-a.service"]).stdout.strip()
    command_lines = clean.host.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert "/run/credentials/sglang-a.service/a.yaml" in command_lines
    # Secrets and odd words reach the server as they are.
    environment = clean.host.exec(["cat", f"/proc/{pid}/environ"]).stdout.split("\0")
    assert f"HF_TOKEN={TOKEN}" in environment
    assert f"ODD={ODD}" in environment
    words = clean.host.exec(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")
    assert words[words.index("--chat-template") + 1] == ODD

    pattern = "|".join(SECRETS)
    holders = clean.host.exec(
        [
            "sh",
            "-c",
            f"grep -rlE '{pattern}' /etc/systemd /etc/specdec /var/lib/specdec /var/cache/specdec /opt/specdec /tmp /home",
        ],
        check=False,
    ).stdout.splitlines()
    names = [re.sub(r"\.[0-9a-f]{16}\.", ".HEX.", holder) for holder in sorted(holders)]
    assert names == ["/etc/specdec/sglang/a.HEX.secret.env", "/etc/specdec/sglang/credentials/a.HEX.yaml"]
    modes = clean.host.exec(["stat", "-c", "%a %U", *sorted(holders)]).stdout.splitlines()
    assert modes == ["600 root", "600 root"]
    assert not [secret for secret in SECRETS if secret in command_lines]
    # What modules log to the journal; the server's own log is SGLang's.
    logged = clean.host.exec(
        ["journalctl", "--no-pager", "--quiet", "_COMM=python3", "+", "SYSLOG_IDENTIFIER=sudo"], check=False
    ).stdout
    assert not [secret for secret in SECRETS if secret in logged]
