# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab itself: real containers, made by copies of the lab tool that stand for other checkouts.

A copy has its own identity, holder and network, so these tests may kill and remove without touching a running demo.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.support.lab.client import Lab, NotPossible
from ansible_collections.specdec.serving.tests.support.lab.machine import detect, make_plan
from ansible_collections.specdec.serving.tests.support.lab.processes import ProcessMark

pytestmark = pytest.mark.lab
CHECKOUT = Path(__file__).resolve().parents[3]


class Clone:
    """A copy of the lab tool in a folder of its own, used through its command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(
            CHECKOUT / "tests/support/lab", folder / "tests/support/lab", ignore=shutil.ignore_patterns("__pycache__")
        )
        link = folder / ".collections/ansible_collections/specdec/serving"
        link.parent.mkdir(parents=True)
        link.symlink_to("../../..")
        self.command = [sys.executable, str(folder / "tests/support/lab/lab.py")]

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.command, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
        )
        if check and done.returncode != 0:
            pytest.fail(f"lab.py {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def host(self, name: str) -> dict[str, t.Any]:
        found: list[dict[str, t.Any]] = json.loads(self("status", "--json").stdout)
        return next(host for host in found if host["name"] == name)

    def holder(self) -> int | None:
        record = self.folder / "build/lab/holder.json"
        return int(json.loads(record.read_text())["pid"]) if record.exists() else None


@pytest.fixture(scope="module")
def possible() -> None:
    try:
        Lab()
    except NotPossible as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def clone(possible: None, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Clone]:
    """A checkout with the hosts ``a`` and ``b``; its path has a space."""
    clone = Clone(tmp_path_factory.mktemp("one clone") / "checkout one")
    try:
        clone("up", "a", "b", "--inventory", str(clone.folder / "lab.yml"))
        yield clone
    finally:
        clone("down")


@pytest.fixture
def other(possible: None, tmp_path: Path) -> t.Iterator[Clone]:
    """Another checkout, without hosts."""
    clone = Clone(tmp_path / "other")
    try:
        yield clone
    finally:
        clone("down")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(*pids: int) -> None:
    """End processes as a machine restart or a CI runner does: at once, and without asking."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} do not end"
        time.sleep(0.01)


def firewall_rules() -> str:
    return subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout


def refused(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        try:
            probe.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            return True
        return False


def test_systemd_is_up_and_complete(clone: Clone) -> None:
    assert clone("exec", "a", "--", "systemctl", "is-system-running").stdout == "running\n"
    assert clone("exec", "a", "--", "readlink", "/proc/1/exe").stdout == "/usr/lib/systemd/systemd\n"
    assert clone("exec", "a", "--", "hostname").stdout == "a\n"


def test_login_is_an_ordinary_user_with_sudo(clone: Clone) -> None:
    assert clone("ssh", "a", "--", "id -un; sudo -n id -un").stdout == "deploy\nroot\n"
    assert clone("ssh", "a", "--", "cat /etc/shadow", check=False).returncode == 1
    assert clone("ssh", "a", "--", "exit 7", check=False).returncode == 7


def test_second_login_user_has_a_sudo_that_asks(clone: Clone) -> None:
    host = Lab(clone.folder).host("a")
    command = "sudo -S -p '' id -un"
    assert host.ssh(command, user="deploy-pw", input=host.password + "\n").stdout == "root\n"
    assert host.ssh(command, user="deploy-pw", input="wrong\n", check=False).returncode == 1
    assert host.ssh("sudo -n true", user="deploy-pw", check=False).returncode == 1


def test_login_with_a_terminal_works(clone: Clone) -> None:
    argv = Lab(clone.folder).host("a").ssh_argv("id -un", options=["-tt"])
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["deploy"])


def test_journal_is_readable(clone: Clone) -> None:
    assert "Server listening on 0.0.0.0 port 22." in clone("journal", "a", "ssh.service").stdout
    assert "Server listening" in clone("ssh", "a", "--", "sudo journalctl --no-pager --unit ssh.service").stdout


def test_second_up_changes_nothing(clone: Clone) -> None:
    before = (clone.host("a"), clone.host("b"), clone.holder())
    inventory = clone.folder / "lab.yml"
    written = inventory.stat().st_mtime_ns
    done = clone("up", "a", "b", "--inventory", str(inventory))
    assert done.stderr == ""
    assert (clone.host("a"), clone.host("b"), clone.holder()) == before
    assert inventory.stat().st_mtime_ns == written


def test_hosts_reach_each_other_and_nothing_else(clone: Clone) -> None:
    address = clone("address", "b").stdout.strip()
    greet = f"import socket; print(socket.create_connection(('{address}', 22), 5).recv(8).decode())"
    assert clone("exec", "a", "--", "python3", "-c", greet).stdout == "SSH-2.0-\n"
    routes = clone("exec", "a", "--", "ip", "route").stdout.splitlines()
    assert [route for route in routes if "scope link" not in route] == []


def test_host_sees_the_wheelhouse_and_the_models(clone: Clone) -> None:
    # Made after `up`, as the real ones are.
    (clone.folder / "build/models/tiny").mkdir(parents=True)
    (clone.folder / "build/wheelhouse/x.whl").write_text("x")
    seen = clone("exec", "a", "--", "ls", "/models", "/srv/wheelhouse").stdout.split()
    assert {"tiny", "x.whl"} <= set(seen)
    assert clone("exec", "a", "--", "touch", "/models/x", check=False).returncode == 1


def test_a_unit_gets_its_credential(clone: Clone) -> None:
    host = Lab(clone.folder).host("a")
    host.write_file("/etc/specdec/key.yaml", "api-key: not-a-secret\n", mode="0600")
    unit = (
        "[Service]\nType=oneshot\nUser=deploy\nLoadCredential=key.yaml:/etc/specdec/key.yaml\n"
        "ExecStart=/usr/bin/cat ${CREDENTIALS_DIRECTORY}/key.yaml\n"
    )
    host.write_file("/etc/systemd/system/credential.service", unit)
    host.exec(["systemctl", "start", "credential.service"], check=False)
    assert "api-key: not-a-secret\n" in host.journal("credential.service", "--output=cat")
    host.exec(["rm", "/etc/systemd/system/credential.service"])
    host.exec(["systemctl", "daemon-reload"])


@pytest.mark.parametrize(
    "sandbox",
    [
        ["DynamicUser=yes", "PrivateNetwork=yes", "ProtectSystem=strict", "RuntimeMaxSec=5"],
        ["User=deploy", "PrivateTmp=yes", "PrivateDevices=yes", "ProtectHome=yes", "NoNewPrivileges=yes"],
        ["User=deploy", "ProtectProc=invisible", "ProtectKernelTunables=yes", "RestrictNamespaces=yes"],
        ["LimitMEMLOCK=infinity", "Nice=-5", "OOMScoreAdjust=-500"],
    ],
    ids=lambda words: words[-2].partition("=")[0],
)
def test_units_can_be_sandboxed(clone: Clone, sandbox: list[str]) -> None:
    options = [word for setting in sandbox for word in ("--property", setting)]
    assert (
        clone("exec", "a", "--", "systemd-run", "--quiet", "--wait", "--pipe", *options, "echo", "ran").stdout
        == "ran\n"
    )


@pytest.mark.parametrize("pipelining", ["True", "False"])
def test_ansible_connects_through_the_inventory(clone: Clone, tmp_path: Path, pipelining: str) -> None:
    inventory = clone.folder / "lab.yml"
    assert set(yaml.safe_load(inventory.read_text())["all"]["hosts"]) == {"a", "b"}
    (tmp_path / "ansible.cfg").touch()  # nothing of this checkout's own settings
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        "ANSIBLE_PIPELINING": pipelining,
        "ANSIBLE_HOME": str(tmp_path),
    }
    ansible = Path(sys.executable).with_name("ansible")
    argv = [str(ansible), "all", "-i", str(inventory), "--become", "-m", "ansible.builtin.command", "-a", "id -un"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("root") == 2


@pytest.mark.parametrize("holder_too", [False, True], ids=["host-only", "host-and-holder"])
def test_a_host_that_was_killed_from_outside_is_made_afresh(clone: Clone, holder_too: bool) -> None:
    dead, living, holder = clone.host("a"), clone.host("b"), clone.holder()
    if holder_too and holder is None:
        pytest.skip("this machine needs no holder: its cgroups are v2")
    kill(dead["monitor"]["pid"], dead["process"]["pid"], *([holder] if holder_too and holder is not None else []))
    assert not clone.host("a")["running"]

    assert "its processes are gone" in clone("up", "a").stderr

    fresh = clone.host("a")
    assert fresh["running"]
    assert fresh["container_id"] != dead["container_id"]
    assert clone("ssh", "a", "--", "systemctl is-system-running").stdout == "running\n"
    assert dead["container_id"] not in firewall_rules()
    assert not Path(dead["netns"]).exists()
    # The other host never noticed, and is still in reach.
    assert clone.host("b") == living
    assert clone("exec", "b", "--", "systemctl", "is-system-running").stdout == "running\n"


def test_all_killed_from_outside_and_the_records_lost(other: Clone) -> None:
    other("up", "a", "b")
    dead = [other.host(name) for name in ("a", "b")]
    holder = other.holder()
    pids = [mark["pid"] for host in dead for mark in (host["monitor"], host["process"])]
    kill(*pids, *([holder] if holder is not None else []))
    shutil.rmtree(other.folder / "build")

    other("up", "a")

    assert other("ssh", "a", "--", "systemctl is-system-running").stdout == "running\n"
    assert dead[0]["container_id"] not in firewall_rules()
    assert sorted(other("down").stdout.split()) == ["a", "b", "removed", "removed"]
    assert dead[1]["container_id"] not in firewall_rules()
    assert not any(Path(host["netns"]).exists() for host in dead)


def test_down_after_all_was_killed_leaves_nothing(other: Clone) -> None:
    other("up", "a")
    lab, dead, holder = Lab(other.folder), other.host("a"), other.holder()
    network = json.loads(lab.engine.call("network", "inspect", lab.network).stdout)[0]
    kill(dead["monitor"]["pid"], dead["process"]["pid"], *([holder] if holder is not None else []))

    assert other("down").stdout == "removed a\n"

    assert refused(dead["port"])
    assert dead["container_id"] not in firewall_rules()
    assert network["subnets"][0]["subnet"] not in firewall_rules()
    assert not Path("/sys/class/net", network["network_interface"]).exists()
    assert not Path(dead["netns"]).exists()
    holder = other.holder()
    assert holder is None or not running(holder)


def test_down_removes_only_its_own_and_gives_the_port_back(clone: Clone, other: Clone) -> None:
    before = clone.host("a"), clone.host("b")
    other("up", "a", "c")
    gone = other.host("c")
    holder = other.holder()
    assert other("down", "c").stdout == "removed c\n"
    assert refused(gone["port"])
    assert [host["name"] for host in json.loads(other("status", "--json").stdout)] == ["a"]
    last = other.host("a")["port"]
    assert other("down").stdout == "removed a\n"
    assert refused(last)
    assert holder is None or not running(holder)
    assert Lab(other.folder).network not in firewall_rules()
    assert other("down").stdout == ""

    assert (clone.host("a"), clone.host("b")) == before
    assert clone("ssh", "a", "--", "true").returncode == 0


def test_two_ups_at_once_make_each_host_once(other: Clone) -> None:
    started = [
        subprocess.Popen(
            [*other.command, "up", *names], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for names in (("a", "b"), ("b", "a"))
    ]
    said = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert said[0][0].split()[2] == said[1][0].split()[6]  # the port of "a"
    assert len(Lab(other.folder).engine.containers(Lab(other.folder).label)) == 2


def test_another_wish_makes_the_host_afresh_and_no_wish_keeps_it(other: Clone, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    other("up", "a", "--journal-size", "16M", "--volume", f"{tmp_path / 'shown'}:/shown")
    first = other.host("a")
    other("exec", "a", "--", "touch", "/shown/from-inside")
    assert (tmp_path / "shown/from-inside").exists()
    assert "max 16.0M" in other("journal", "a", "systemd-journald.service").stdout
    other("up", "a")
    assert other.host("a") == first
    assert "another journal size" in other("up", "a", "--journal-size", "32M").stderr
    second = other.host("a")
    assert second["volumes"] == first["volumes"]
    (tmp_path / "shown").rename(tmp_path / "was shown")
    (tmp_path / "shown").mkdir()
    assert "was replaced" in other("up", "a").stderr
    other("exec", "a", "--", "touch", "/shown/again")
    assert (tmp_path / "shown/again").exists()
    assert "max 32.0M" in other("journal", "a", "systemd-journald.service").stdout


def test_a_reboot_ends_everything_and_keeps_the_files(clone: Clone) -> None:
    before, neighbour = clone.host("a"), clone.host("b")
    host = Lab(clone.folder).host("a")
    unit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    for name in ("boots", "stays-off"):
        host.write_file(f"/etc/systemd/system/{name}.service", unit)
    # A survivor would notice its end: it writes when asked to end, and stands in a session of its own.
    host.exec(
        ["sh", "-c", "setsid sh -c 'trap \"touch /root/was-asked\" TERM HUP; sleep 1000 & wait' >/dev/null 2>&1 &"]
    )
    host.exec(["systemctl", "--quiet", "enable", "--now", "boots.service"])
    host.exec(["systemctl", "start", "stays-off.service"])
    host.exec(["sh", "-c", "echo kept >/var/lib/kept; touch /run/in-memory"])
    machine_id = host.exec(["cat", "/etc/machine-id"]).stdout

    shown = clone("reboot", "a").stdout

    after = clone.host("a")
    assert shown.split() == ["a", "running", f"127.0.0.1:{before['port']}", before["address"]]
    same = ("name", "container", "container_id", "port", "address", "image", "volumes", "sources", "journal_size")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    for key in ("process", "monitor"):
        assert not ProcessMark.from_json(before[key]).alive()
        assert ProcessMark.from_json(after[key]).alive()
    host = Lab(clone.folder).host("a")
    assert host.ssh("systemctl is-system-running").stdout == "running\n"
    assert host.exec(["cat", "/var/lib/kept", "/etc/machine-id"]).stdout == f"kept\n{machine_id}"
    gone = host.exec(["sh", "-c", "ls /run/in-memory /root/was-asked"], check=False)
    assert (gone.returncode, gone.stdout) == (2, "")
    states = host.exec(["systemctl", "is-active", "boots.service", "stays-off.service"], check=False).stdout.split()
    assert states == ["active", "inactive"]
    assert host.exec(["systemctl", "show", "-P", "NRestarts", "boots.service"]).stdout == "0\n"
    # In reach from outside and from its neighbour, where it was; the neighbour never noticed.
    greet = f"import socket; print(socket.create_connection(('{before['address']}', 22), 5).recv(8).decode())"
    assert clone("exec", "b", "--", "python3", "-c", greet).stdout == "SSH-2.0-\n"
    assert clone.host("b") == neighbour
    assert clone("up", "a", "b").stderr == ""
    host.exec(["systemctl", "--quiet", "disable", "--now", "boots.service"])
    host.exec(
        [
            "sh",
            "-c",
            "rm /etc/systemd/system/boots.service /etc/systemd/system/stays-off.service; systemctl daemon-reload",
        ]
    )


def test_a_host_that_was_switched_off_is_switched_on(clone: Clone) -> None:
    host = Lab(clone.folder).host("a")
    host.exec(["touch", "/var/lib/before-the-shutdown"])
    host.exec(["systemctl", "poweroff"], check=False)
    deadline = time.monotonic() + 30
    while host.alive():
        assert time.monotonic() < deadline, "the host does not power off"
        time.sleep(0.1)
    assert clone("ssh", "a", "--", "true", check=False).returncode == 1
    clone("reboot", "a")
    assert clone("ssh", "a", "--", "ls /var/lib/before-the-shutdown").stdout == "/var/lib/before-the-shutdown\n"


def test_hosts_can_be_rebooted_again_and_removed_without_a_trace(other: Clone) -> None:
    other("up", "a")
    first = other.host("a")
    for _time in range(2):
        other("reboot", "a")
    last = other.host("a")
    assert last["address"] == first["address"]
    assert other("down").stdout == "removed a\n"
    assert refused(first["port"])
    assert first["container_id"] not in firewall_rules()
    assert not any(Path(host["netns"]).exists() for host in (first, last))


def test_reboot_of_no_host_says_so(clone: Clone) -> None:
    done = clone("reboot", "nobody", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no lab host 'nobody'" in done.stderr


def test_wrong_wishes_change_nothing(clone: Clone) -> None:
    before = clone.host("a")
    for words in (["A"], ["a", "--volume", "/not/there:/x"], ["a", "--journal-size", "big"]):
        done = clone("up", *words, check=False)
        assert done.returncode == 1
        assert repr(words[-1]) in done.stderr
    assert clone("exec", "nobody", "--", "true", check=False).stderr.startswith(
        "lab: there is no running lab host 'nobody'"
    )
    assert clone.host("a") == before


def test_a_machine_with_cgroup_v2_needs_no_holder(other: Clone) -> None:
    """Where this machine is hybrid, a mount namespace plays the v2 machine, for all commands of the lab."""
    script = 'set -e; "$@" up a >&2; "$@" ssh a -- systemctl is-system-running; "$@" down a >&2'
    argv = ["sh", "-c", script, "sh", *other.command]
    if make_plan(detect()).own_namespace:
        v2 = 'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", v2, "sh", *argv]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "running\n"), done.stderr
    assert other.holder() is None
