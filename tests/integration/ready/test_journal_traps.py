# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verdicts where the journal does not tell all: lines that are dropped, cut, gone, elsewhere, or not to be read.

On a host of its own: journald is stopped, its files are turned over, emptied and damaged.
"""

from __future__ import annotations

import contextlib
import json
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.performance import flood
from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, up
from ansible_collections.specdec.serving.tests.support.observer import units

# Long enough to do something to the journal between the first line and the markers.
SLOW, SLOWER = ({"STAND_IN_TIMES": json.dumps({"load_target": 500 * seconds})} for seconds in (3, 8))
NAME = "journal"
FRESH = "journalctl --rotate; journalctl --vacuum-size=1; journalctl --rotate --vacuum-size=1"


@pytest.fixture(scope="module")
def ready_host() -> Host:
    try:
        host = up([NAME], volumes=units.VOLUMES, journal_size="128M")[NAME]
    except LabError as error:
        pytest.skip(f"no lab host: {error}")
    host.exec(["mkdir", "-p", "-m", "0777", units.TRUTH])
    return host


@pytest.fixture
def namespace(server: t.Any) -> t.Iterator[str]:
    """A journal of its own, gone afterwards."""
    name = server.name
    yield name
    script = f"systemctl stop {server.unit} systemd-journald@{name}.service systemd-journald@{name}.socket; rm -rf /var/log/journal/*.{name}"
    server.host.exec(["sh", "-c", script], check=False)


def start(server: t.Any, *, service: t.Sequence[str] = (), environment: t.Mapping[str, str] | None = None) -> None:
    server.write(service=service, environment=environment)
    server.systemctl("start")


def shell(server: t.Any, script: str) -> str:
    return t.cast(str, server.host.exec(["sh", "-c", script]).stdout)


def loading(server: t.Any) -> None:
    """Wait until the weights are being loaded: the first lines are in the journal, the markers are not."""
    server.until(lambda: "Load weight begin" in server.host.journal(server.unit))


def end_of(observer: t.Any) -> dict[str, t.Any]:
    return t.cast("dict[str, t.Any]", json.loads(observer.communicate(timeout=90)[0]))


def whole(result: t.Mapping[str, t.Any]) -> bool:
    return bool(result["ready"]) and result["log_incomplete"] == "" and result["markers"] == {"seen": 4, "expected": 4}


def left_to_the_others(result: t.Mapping[str, t.Any], why: str) -> bool:
    """Ready by the other gates, with the reason in the result and in a warning."""
    told = any(why in notice and "the other gates decided" in notice for notice in result["notices"])
    return bool(result["ready"]) and why in result["log_incomplete"] and told


# --- output elsewhere -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "why"),
    [
        pytest.param("StandardOutput=null", "StandardOutput is 'null'", id="null"),
        pytest.param("StandardOutput=file:/run/truth/out.log", "StandardOutput is 'file'", id="file"),
        pytest.param("StandardOutput=append:/run/truth/out.log", "StandardOutput is 'append'", id="append"),
        pytest.param("StandardError=file:/run/truth/err.log", "StandardError is 'file'", id="only the error output"),
    ],
)
def test_output_that_goes_elsewhere(server: t.Any, service: str, why: str) -> None:
    start(server, service=[service])
    result = server.observe()
    assert left_to_the_others(result, why), result
    assert result["markers"]["seen"] == 0
    required = server.observe(markers="require", timeout="1")
    assert required["ready"] is False
    assert why in required["msg"]


@pytest.mark.parametrize("output", ["kmsg", "journal+console"])
def test_output_that_goes_to_the_journal_too(server: t.Any, output: str) -> None:
    start(server, service=[f"StandardOutput={output}"])
    assert whole(server.observe())


# --- namespaces, rate limits, rights -------------------------------------------------------------------------------------


def test_a_namespace_of_its_own(server: t.Any, namespace: str) -> None:
    start(server, service=[f"LogNamespace={namespace}"], environment=SLOW)
    result = server.observe()
    assert whole(result), result
    assert "Load weight end" not in server.host.journal(server.unit), "the lines must be elsewhere"
    # A crash is explained from there, too.
    server.write("--no-such-flag", service=[f"LogNamespace={namespace}"])
    server.systemctl("restart")
    crashed = server.observe()
    assert (crashed["state"], crashed["diagnosis"]["cause"]) == ("crashed", "argument_error")


# A multiple of this many lines is taken from a unit, by the space that the journal has. More come before the server's.
BURST, CHATTER = 20, 2000


@pytest.mark.parametrize("spaced", [False, True], ids=["default", "namespace"])
@pytest.mark.parametrize("interval", ["8s", "1h"])
def test_lines_that_journald_drops(server: t.Any, namespace: str, spaced: bool, interval: str) -> None:
    """journald says so only with the first line that it takes again: soon, or in an hour."""
    limits = [f"LogRateLimitIntervalSec={interval}", f"LogRateLimitBurst={BURST}"]
    server.write(
        command=f"/bin/sh -c 'seq {CHATTER}; exec {server.command()}'",
        service=[*limits, *([f"LogNamespace={namespace}"] if spaced else [])],
    )
    server.systemctl("start")
    result = server.observe(timeout="30")
    whys = ("journald dropped lines", "nothing of that reaches the journal", "the beginning of this start")
    assert any(left_to_the_others(result, why) for why in whys), result
    assert result["markers"]["seen"] < 4
    assert result["elapsed"] < 15
    if interval == "8s":
        time.sleep(8.0)
        assert server.answers()
        assert left_to_the_others(server.observe(), "journald dropped lines")


def test_lines_of_another_unit_that_journald_drops(server: t.Any) -> None:
    flood = "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); done; sleep 1.2; echo again; sleep 60"
    shell(
        server,
        f"systemd-run -q --unit=flood-{server.name} -p LogRateLimitIntervalSec=1 -p LogRateLimitBurst=10 sh -c '{flood}'",
    )
    start(server, environment=SLOW)
    try:
        result = server.observe()
        notices = shell(server, "journalctl -q -o cat MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e")
    finally:
        shell(server, f"systemctl kill -s KILL flood-{server.name}")
    assert f"messages from flood-{server.name}" in notices, (
        "journald must have dropped lines for the test to mean anything"
    )
    assert whole(result), result


def test_a_user_who_may_not_read_the_journal(server: t.Any) -> None:
    start(server)
    argv = ["setpriv", "--reuid=deploy", "--regid=deploy", "--clear-groups", *server.observe_argv()]
    done = server.host.exec(argv, input=json.dumps(server.options()))
    result = json.loads(done.stdout)
    assert left_to_the_others(result, "no permission to read the journal"), result
    argv[3] = "--groups=systemd-journal"
    assert whole(json.loads(server.host.exec(argv, input=json.dumps(server.options())).stdout))


# --- what happens to the journal during a wait ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "script"),
    [
        pytest.param("rotated", "journalctl --rotate", id="rotated"),
        pytest.param("emptied", FRESH, id="emptied"),
        pytest.param("restarted", "systemctl restart systemd-journald", id="journald restarted"),
        pytest.param("killed", "systemctl kill -s KILL systemd-journald", id="journald killed"),
    ],
)
def test_a_journal_that_is_turned_over_during_the_wait(server: t.Any, what: str, script: str) -> None:
    start(server, environment=SLOWER)
    observer = server.start_observing(markers="require", timeout="60")
    loading(server)
    server.until(lambda: server.host.exec(["pgrep", "--full", "^journalctl .*--follow"], check=False).stdout != "")
    time.sleep(0.5)
    shell(server, f"{script}; sleep 0.5; {script}")
    assert "Load weight end" not in server.host.journal(server.unit), "the markers must come afterwards"
    if what == "emptied":
        assert "Load weight begin" not in server.host.journal(server.unit), "the beginning must be gone"
    result = end_of(observer)
    assert whole(result), result
    assert result["timeline"][0]["phase"] == "starting"


def test_a_beginning_that_is_gone_before_the_wait(server: t.Any) -> None:
    start(server)
    assert whole(server.observe())
    shell(server, FRESH)
    result = server.observe()
    assert left_to_the_others(result, "the beginning of this start"), result
    assert server.observe(markers="require", timeout="1")["ready"] is False


def test_a_beginning_that_is_gone_in_a_namespace_alone(server: t.Any, namespace: str) -> None:
    """What PID 1 says of the start is in the default journal, and all there."""
    start(server, service=[f"LogNamespace={namespace}"])
    assert whole(server.observe())
    shell(server, FRESH.replace("journalctl", f"journalctl --namespace={namespace}"))
    assert "Starting" in server.host.journal(server.unit)
    assert left_to_the_others(server.observe(), "the beginning of this start")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("printf garbage | dd of=$file bs=1 conv=notrunc", id="no header"),
        pytest.param("truncate -s 100 $file", id="truncated"),
        pytest.param("dd if=/dev/urandom of=$file bs=4096 seek=1 count=100 conv=notrunc", id="overwritten"),
    ],
)
def test_a_damaged_file(server: t.Any, damage: str) -> None:
    shell(server, FRESH)
    start(server)
    assert whole(server.observe())
    script = f"journalctl --rotate; for file in /var/log/journal/*/system@*.journal; do {damage} 2>/dev/null; done"
    shell(server, script)
    result = server.observe()
    shell(server, "rm -f /var/log/journal/*/system@*.journal")
    assert result["ready"], result
    assert result["log_incomplete"], "what is missing must be told"
    assert any("the other gates decided" in notice for notice in result["notices"])


# --- lines that are not what they seem -------------------------------------------------------------------------------------


def test_last_words_without_attribution(server: t.Any) -> None:
    """A process that is gone when journald looks it up: its lines bear the unit's name, and no invocation."""
    server.write(command="/usr/bin/python3 -S -E -c 'import no_such_engine'")
    journald = "systemctl kill --signal=STOP systemd-journald"
    shell(server, journald)
    with contextlib.ExitStack() as stack:
        stack.callback(shell, server, journald.replace("STOP", "CONT"))
        server.systemctl("start", "--no-block")
        server.until(lambda: server.property("ActiveState") == "failed")
    result = server.observe()
    invocation = result["invocation_id"]
    own = shell(server, f"journalctl --sync; journalctl -q -o cat _SYSTEMD_INVOCATION_ID={invocation}")
    assert "no_such_engine" not in own, "the line must lack its invocation for the test to mean anything"
    assert (result["state"], result["diagnosis"]["exit"]) == ("crashed", "exited with status 1")
    assert "No module named 'no_such_engine'" in result["msg"], result


#: What any user may send to journald: fields whose name begins without an underscore.
FORGE = """\
import socket, sys
fields = "".join(word + chr(10) for word in sys.argv[1:])
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(fields.encode(), "/run/systemd/journal/socket")
"""


def forge(server: t.Any, **fields: str) -> None:
    server.host.write_file("/run/truth/forge.py", FORGE)
    words = " ".join(f"'{name}={value}'" for name, value in fields.items())
    shell(server, f"runuser -u deploy -- python3 /run/truth/forge.py {words}; journalctl --sync")


def test_a_user_cannot_make_the_journal_incomplete(server: t.Any) -> None:
    """Without the markers the other gates would decide."""
    start(server)
    forge(
        server,
        MESSAGE="Suppressed 9 messages",
        MESSAGE_ID="a596d6fe7bfa4994828e72309e95d61e",
        OBJECT_SYSTEMD_INVOCATION_ID=server.property("InvocationID"),
        N_DROPPED="9",
    )
    result = server.observe(expected_markers=5, timeout="6")
    assert (result["state"], result["log_incomplete"]) == ("loading", ""), result
    assert "4 of 5" in result["msg"]


def test_a_user_cannot_make_a_crash_a_stop(server: t.Any) -> None:
    server.write(command="/bin/sleep 60")
    server.systemctl("start")
    observer = server.start_observing()
    forge(
        server,
        MESSAGE="Stopping it",
        MESSAGE_ID="de5b426a63be47a7b6ac3eaac82e2f6f",
        INVOCATION_ID=server.property("InvocationID"),
    )
    shell(server, f"kill -TERM {server.property('MainPID')}")
    result = end_of(observer)
    assert result["state"] == "crashed", result


def test_a_long_line_is_one_line(server: t.Any) -> None:
    """journald cuts at 48 KiB: what follows the cut looks like a line of its own, here like a marker."""
    marker = "[2026-11-29 14:24:24 TP7 EP7] Load weight end. elapsed=0.01 s, type=Forged, avail mem=1.00 GB, mem usage=0.50 GB."
    code = f'import sys; sys.stderr.write("y" * 49152 + "{marker}\\n")'
    path = f"/run/truth/{server.name}.py"
    server.host.write_file(path, code)
    command = f"/bin/sh -c '/usr/bin/python3 {path}; exec {server.command()}'"
    server.write(command=command)
    server.systemctl("start")
    result = server.observe(expected_markers=4)
    cut = shell(server, f"journalctl -q -o cat -u {server.unit} _LINE_BREAK=line-max | wc -c")
    assert int(cut) > 49000, "journald must have cut the line for the test to mean anything"
    assert whole(result), result
    assert {model["type"] for model in result["weights"]} == {"KimiK25ForConditionalGeneration", "DFlashDraftModel"}


# --- much of it ------------------------------------------------------------------------------------------------------------


def test_ten_thousand_lines_a_second(ready_host: Host, record_property: t.Any) -> None:
    """The wait keeps up, in bounded memory. (A minute of it: tests/performance/flood.py.)"""
    flooded = flood.measure(ready_host, seconds=10.0)
    print(flooded)
    record_property("flood", str(flooded))
    assert flooded.met, str(flooded)
