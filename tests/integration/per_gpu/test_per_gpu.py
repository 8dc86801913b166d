# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One instance per GPU, several entries on a host, and what left the list."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.per_gpu.conftest import UUIDS, entry
from ansible_collections.specdec.serving.tests.integration.role.conftest import Deployment, Play
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

KEY = "sk-planted-per-gpu-91"
NAMES = ("a@0", "a@1", "a@2")


def unit(name: str) -> str:
    return f"sglang-{name}.service"


def show(deployment: Deployment, name: str, *properties: str) -> dict[str, str]:
    words = ["systemctl", "show", f"--property={','.join(properties)}", unit(name)]
    text = deployment.host.exec(words).stdout
    return dict(line.partition("=")[::2] for line in text.splitlines())


def invocations(deployment: Deployment, *names: str) -> dict[str, str]:
    return {name: deployment.invocation(unit(name)) for name in names}


def changed_lines(play: Play) -> set[str]:
    """What the diff adds or takes away."""
    found = re.findall(r"^[+-](?![+-]{2} )(.*)$", play.output, re.MULTILINE)
    return {line.strip().removesuffix(" \\") for line in found if line.strip()}


def works(play: Play) -> Play:
    assert play.returncode == 0, play.output[-6000:]
    return play


def test_three_gpus_three_instances(deployment: Deployment) -> None:
    """And a neighbour of the ordinary kind, with GPUs of two nodes."""
    neighbour = instance("b", 30500, args={"tp_size": 1})
    deployment.variables["sglang_instances"] = [entry(api_key=KEY), neighbour]
    before = deployment.snapshot()
    checked = works(deployment.play("deploy.yml", "--check", "--diff"))
    assert deployment.snapshot() == before
    deployed = works(deployment.play())
    for name in (*NAMES, "b"):
        assert f"{unit(name)} on gpus: READY" in deployed.output

    for number, name in enumerate(NAMES):
        shown = show(
            deployment,
            name,
            "UnitFileState",
            "Slice",
            "MainPID",
            "CPUAffinity",
            "NUMAPolicy",
            "NUMAMask",
            "FragmentPath",
        )
        pid = shown.pop("MainPID")
        # On node 1, which has no memory, a memory policy would have ended the start.
        policy, mask = ("preferred", "0") if number == 0 else ("n/a", "")
        assert shown == {
            "UnitFileState": "enabled",
            "Slice": "system-sglang\\x2da.slice",
            "CPUAffinity": {0: "0", 1: "1", 2: ""}[number],
            "NUMAPolicy": policy,
            "NUMAMask": mask,
            "FragmentPath": f"/etc/systemd/system/{unit(name)}",
        }
        environment = deployment.host.exec(["cat", f"/proc/{pid}/environ"]).stdout.split("\0")
        assert f"CUDA_VISIBLE_DEVICES={UUIDS[number]}" in environment
        command = deployment.host.exec(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")
        assert command[command.index("--port") + 1] == str(30400 + number)
        assert command[command.index("--nccl-port") + 1] == str(31100 + number)
        if number < 2:
            allowed = deployment.host.exec(["grep", "Cpus_allowed_list", f"/proc/{pid}/status"]).stdout
            assert allowed.split()[1] == str(number)
        assert "fired up and ready to roll" in deployment.host.journal(unit(name), "--output=cat")
    started = invocations(deployment, *NAMES, "b")

    again = works(deployment.play())
    assert again.recap("gpus")["changed"] == 0
    assert invocations(deployment, *NAMES, "b") == started

    status = works(deployment.play("status.yml"))
    for number, name in enumerate(NAMES):
        assert re.search(rf"gpus +{name} +ready +\S+ +{30400 + number}", status.output)
    chat = works(deployment.play("chat.yml"))
    assert len(re.findall(r"\(item=(a@[012]|b)\) =>", chat.output)) == 4

    # As of any instances of a template.
    deployment.host.exec(["systemctl", "restart", "sglang-a@*"])
    restarted = invocations(deployment, *NAMES, "b")
    assert [restarted[name] != started[name] for name in (*NAMES, "b")] == [True, True, True, False]
    assert works(deployment.play()).recap("gpus")["changed"] == 0
    assert invocations(deployment, *NAMES, "b") == restarted
    outputs = "".join(play.output for play in (checked, deployed, again, status, chat))
    assert KEY not in outputs

    # One of them, all of an entry, and one that is not there.
    assert "names a@7, and gpus has a@0, a@1, a@2, b" in deployment.play("stop.yml", stop_instances="a@7").output
    for meant, stopped in (("a@1", ["a@1"]), ("a", NAMES)):
        works(deployment.play("stop.yml", stop_instances=meant))
        runs = {name: show(deployment, name, "ActiveState")["ActiveState"] == "active" for name in (*NAMES, "b")}
        assert runs == {name: name not in stopped for name in (*NAMES, "b")}

    works(deployment.play("stop.yml"))
    assert {deployment.state(unit(name)) for name in (*NAMES, "b")} == {"inactive"}
    works(deployment.play("stop.yml", sglang_state="absent"))
    left = deployment.host.exec(
        ["sh", "-c", "find /etc/specdec /etc/systemd/system /var/lib/specdec | grep a@"], check=False
    )
    assert left.stdout == ""


def test_one_flag(deployment: Deployment) -> None:
    """Of the entry: its three instances restart. Of another instance: that one does."""
    other = instance("b", 30500, args={"tp_size": 1})
    deployment.variables["sglang_instances"] = [entry(), other]
    works(deployment.play())
    before = invocations(deployment, *NAMES, "b")

    flagged = {**other, "args": {**other["args"], "page_size": 64}}
    deployment.variables["sglang_instances"] = [entry(), flagged]
    checked = works(deployment.play("deploy.yml", "--check", "--diff"))
    assert changed_lines(checked) == {"--tp-size 1", "--page-size 64"}
    assert invocations(deployment, *NAMES, "b") == before
    works(deployment.play())
    after = invocations(deployment, *NAMES, "b")
    assert [name for name in after if after[name] != before[name]] == ["b"]

    changed = entry()
    changed["args"]["max_running_requests"] = 16
    deployment.variables["sglang_instances"] = [changed, flagged]
    checked = works(deployment.play("deploy.yml", "--check", "--diff"))
    assert changed_lines(checked) == {"--max-running-requests 8", "--max-running-requests 16"}
    assert checked.output.count("+  --max-running-requests 16") == 3
    works(deployment.play())
    last = invocations(deployment, *NAMES, "b")
    assert [name for name in last if last[name] != after[name]] == list(NAMES)


def test_a_port_for_the_ranks_that_is_taken(deployment: Deployment) -> None:
    deployment.variables["sglang_instances"] = [entry()]
    program = "import socket, time; s = socket.create_server(('127.0.0.1', 31101)); time.sleep(600)"
    deployment.host.exec(["systemd-run", "--unit=taken", "--collect", "/usr/bin/python3", "-c", program])
    try:
        refused = deployment.play("deploy.yml", "--check")
    finally:
        deployment.host.exec(["systemctl", "stop", "taken.service"])
    assert refused.returncode != 0
    (line,) = [line for line in refused.failure("gpus").splitlines() if "31101" in line]
    assert line.startswith("- sglang-a@1.service: nccl_port: port 31101 is held by pid")
    assert "of taken.service" in line
    assert line.endswith("stop it or choose another nccl_port")


def test_what_left_the_list(deployment: Deployment) -> None:
    deployment.variables["sglang_instances"] = [entry(), instance("old", 30600, args={"tp_size": 1})]
    works(deployment.play())
    # Not ours: somebody's own unit, made from one of ours.
    theirs = "sed 's/30402/30777/' sglang-a@2.service > sglang-theirs.service; systemctl daemon-reload"
    deployment.host.exec(["sh", "-c", f"cd /etc/systemd/system; {theirs}"])
    before = invocations(deployment, *NAMES, "old")

    deployment.variables["sglang_instances"] = [entry(gpus=[0, 1])]
    kept = works(deployment.play())
    status = works(deployment.play("status.yml"))
    for play in (kept, status):
        for name in ("a@2", "old"):
            found = rf"{re.escape(unit(name))}: active \(running\) since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, starts at boot"
            assert re.search(found, play.output), play.output[-3000:]
        assert "theirs" not in play.output
    assert kept.recap("gpus")["changed"] == 0
    assert invocations(deployment, *NAMES, "old") == before

    # A new instance wants what they hold: told with what to do.
    new = instance("new", 30402, gpus=[2], args={"tp_size": 1})
    deployment.variables["sglang_instances"] = [entry(gpus=[0, 1]), new]
    snapshot = deployment.snapshot()
    refused = deployment.play()
    assert refused.returncode != 0
    assert "(sglang-a@2.service left sglang_instances: sglang_prune: true removes it)" in refused.failure("gpus")
    checked = works(deployment.play("deploy.yml", "--check", "--diff", sglang_prune=True))
    for path in (
        "/etc/systemd/system/sglang-a@2.service",
        "/etc/systemd/system/sglang-old.service",
        "/var/lib/specdec/sglang/a@2.json",
    ):
        assert f"-{path}" in checked.output
    assert "-sglang-a@2.service: active\n+sglang-a@2.service: inactive" in checked.output
    assert "-/etc/systemd/system/sglang-theirs.service" not in checked.output
    assert deployment.snapshot() == snapshot

    pruned = works(deployment.play("deploy.yml", "-e", "sglang_prune=true"))
    assert "sglang-new.service on gpus: READY" in pruned.output
    assert [deployment.state(unit(name)) for name in ("a@2", "old")] == ["inactive", "inactive"]
    left = deployment.host.exec(
        ["sh", "-c", "find /etc/specdec /etc/systemd/system /var/lib/specdec -name '*a@2*' -o -name '*old*'"]
    )
    assert [line for line in left.stdout.splitlines() if "/evidence" not in line] == []
    assert deployment.host.exec(["ls", "/etc/systemd/system/sglang-theirs.service"]).returncode == 0
    assert invocations(deployment, "a@0", "a@1") == {name: before[name] for name in ("a@0", "a@1")}
    again = works(deployment.play(sglang_prune=True))
    assert again.recap("gpus")["changed"] == 0
    assert "left sglang_instances" not in works(deployment.play("status.yml")).output.replace(
        "TASK [Show units that left sglang_instances]", ""
    ).replace("TASK [specdec.serving.sglang : Look for units that left sglang_instances]", "")

    # A removal that was interrupted after the unit file: its record is found, and the rest goes.
    deployment.variables["sglang_instances"] = [entry(gpus=[0])]
    deployment.host.exec(["systemctl", "stop", unit("a@1"), unit("new")])
    deployment.host.exec(["rm", f"/etc/systemd/system/{unit('a@1')}"])
    deployment.host.exec(["systemctl", "daemon-reload"])
    assert "sglang-a@1.service: inactive (dead)" in works(deployment.play("status.yml")).output
    works(deployment.play("stop.yml", sglang_state="absent", sglang_prune=True))
    files = "find /etc/specdec /var/lib/specdec -name '*a@*' -o -name 'new*'; ls /etc/systemd/system | grep sglang-"
    assert deployment.host.exec(["sh", "-c", files], check=False).stdout == "sglang-theirs.service\n"


@pytest.mark.long("a way back more")
def test_all_gpus_of_an_entry_go_back(deployment: Deployment) -> None:
    deployment.variables["sglang_instances"] = [entry(gpus=[0, 1], api_key=KEY)]
    works(deployment.play())
    before = invocations(deployment, *NAMES[:2])

    faulty = entry(gpus=[0, 1], api_key=KEY, env={"STAND_IN_SCALE": "0.002", "STAND_IN_FAULT": "kernels-missing"})
    deployment.variables["sglang_instances"] = [faulty]
    play = deployment.play()
    assert play.returncode != 0
    assert "kernels_missing" in play.failure("gpus")
    assert {deployment.state(unit(name)) for name in NAMES[:2]} == {"active"}
    after = invocations(deployment, *NAMES[:2])
    assert not set(after.values()) & set(before.values())
    for name in NAMES[:2]:
        pid = show(deployment, name, "MainPID")["MainPID"]
        assert "STAND_IN_FAULT" not in deployment.host.exec(["cat", f"/proc/{pid}/environ"]).stdout
    listing = works(deployment.play("rollback.yml", rollback_list=True, rollback_instances="a")).output
    assert all(name in listing for name in NAMES[:2])
    assert KEY not in play.output + listing

    deployment.variables["sglang_instances"] = [entry(gpus=[0, 1], api_key=KEY)]
    assert works(deployment.play()).recap("gpus")["changed"] == 0
    assert invocations(deployment, *NAMES[:2]) == after


def test_evidence_of_all_gpus_by_the_name_of_the_entry(deployment: Deployment, tmp_path: Path) -> None:
    broken = entry(gpus=[0, 1], env={"STAND_IN_SCALE": "0.002", "STAND_IN_FAULT": "kernels-missing"})
    deployment.variables["sglang_instances"] = [broken]
    assert deployment.play().returncode != 0
    assert {deployment.state(unit(name)) for name in NAMES[:2]} <= {"failed", "inactive"}
    for chosen, expected in (("a", {"sglang-a@0.service", "sglang-a@1.service"}), ("a@1", {"sglang-a@1.service"})):
        target = tmp_path / f"{chosen}.tar.gz"
        works(deployment.play("collect.yml", collect_instances=chosen, collect_destination=str(target)))
        with tarfile.open(target) as archive:
            verdicts = [name for name in archive.getnames() if name.endswith("/verdict.json")]
            assert {name.split("/")[2] for name in verdicts} == expected
            found = [json.load(archive.extractfile(name) or None) for name in verdicts]  # type: ignore[arg-type]  # a file
        assert {verdict["diagnosis"]["cause"] for verdict in found} == {"kernels_missing"}
