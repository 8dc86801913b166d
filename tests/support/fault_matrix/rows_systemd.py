# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of the fault matrix: what systemd does or refuses, and units that are none."""

from __future__ import annotations

import functools
import json

from ansible_collections.specdec.serving.tests.support.fault_matrix.model import Action, Fault
from ansible_collections.specdec.serving.tests.support.observer.units import (
    server_command,
    server_environment,
    unit_file,
)

_Row = functools.partial(Fault, group="systemd", state="crashed")
# A start that systemd itself refuses takes a millisecond: it must not be over before anybody looks.
_Refused = functools.partial(_Row, cause="exec_failed", held=True)
_SLOW = {"STAND_IN_TIMES": json.dumps({"load_target": 15000})}
_SLEEP = "/bin/sleep 1000"
#: Nothing but a process: no port, no log.
_Sleeper = functools.partial(_Row, command=_SLEEP)

EXEC = (
    _Refused(id="203-missing", what="the program does not exist", command="/usr/bin/no-such-python", words=("203",)),
    _Refused(id="203-no-program", what="the program may not be executed", command="/etc/hostname", words=("203",)),
    _Refused(
        id="203-interpreter",
        what="the interpreter of the program is missing",
        command="@DIR@/program",
        prepare="printf '#!/no/such/python\\n' >@DIR@/program; chmod 0755 @DIR@/program",
        words=("203",),
    ),
    _Refused(
        id="200-chdir",
        what="WorkingDirectory is missing",
        service=("WorkingDirectory=/no/such/folder",),
        words=("200/CHDIR",),
    ),
    _Refused(id="217-user", what="User is unknown", service=("User=no-such-user",), words=("217/USER",)),
    _Refused(id="216-group", what="Group is unknown", service=("Group=no-such-group",), words=("216/GROUP",)),
    _Refused(
        id="226-namespace",
        what="a folder of ReadWritePaths is missing",
        service=("ReadWritePaths=/no/such/folder",),
        words=("226/NAMESPACE",),
    ),
    _Refused(
        id="243-credentials",
        what="a file of LoadCredential is missing",
        service=("LoadCredential=key.yaml:/no/such/file",),
        words=("243/CREDENTIALS",),
    ),
    _Refused(
        id="209-stdout",
        what="the folder of StandardOutput is missing",
        service=("StandardOutput=file:/no/such/folder/log",),
        words=("209/STDOUT",),
    ),
    _Refused(
        id="222-stderr",
        what="the folder of StandardError is missing",
        service=("StandardError=file:/no/such/folder/log",),
        words=("222/STDERR",),
    ),
    _Refused(
        id="208-stdin",
        what="the file of StandardInput is missing",
        service=("StandardInput=file:/no/such/file",),
        words=("208/STDIN",),
    ),
    _Refused(
        id="238-state-directory",
        what="a file stands where StateDirectory should be",
        service=("StateDirectory=@NAME@",),
        before="touch /var/lib/@NAME@",
        after="rm -f /var/lib/@NAME@",
        words=("238/STATE_DIRECTORY",),
    ),
    _Refused(
        id="239-cache-directory",
        what="a file stands where CacheDirectory should be",
        service=("CacheDirectory=@NAME@",),
        before="touch /var/cache/@NAME@",
        after="rm -f /var/cache/@NAME@",
        words=("239/CACHE_DIRECTORY",),
    ),
    _Refused(
        id="233-runtime-directory",
        what="a file stands where RuntimeDirectory should be",
        service=("RuntimeDirectory=@NAME@",),
        before="touch /run/@NAME@",
        after="rm -f /run/@NAME@",
        words=("233/RUNTIME_DIRECTORY",),
    ),
    _Row(
        id="environment-file",
        what="EnvironmentFile is missing",
        cause="resources",
        held=True,
        own_time="state",
        service=("EnvironmentFile=/no/such/file",),
    ),
)

START = (
    _Row(
        id="start-pre",
        what="ExecStartPre fails",
        cause="start_pre_failed",
        own_time="inactive",
        held=True,
        service=("ExecStartPre=/bin/sh -c 'echo cannot mount the models >&2; exit 7'",),
        words=("cannot mount the models",),
    ),
    _Row(
        id="start-post",
        what="ExecStartPost fails while the server loads",
        cause="start_post_failed",
        own_time="inactive",
        environment=_SLOW,
        service=("ExecStartPost=/bin/sh -c 'sleep 0.5; exit 7'",),
    ),
    _Row(
        id="exec-condition",
        what="ExecCondition says no",
        state="stopped",
        cause="condition",
        own_time="inactive",
        held=True,
        service=("ExecCondition=/bin/false",),
    ),
    _Row(
        id="condition",
        what="a Condition of the unit is not met",
        state="stopped",
        cause="condition",
        own_time="wait+0.7",
        held=True,
        unit=("ConditionPathExists=/no/such/file",),
        words=("ConditionPathExists=/no/such/file",),
    ),
    _Row(
        id="assertion",
        what="an Assert of the unit is not met",
        state="stopped",
        cause="condition",
        own_time="wait+0.7",
        held=True,
        unit=("AssertPathExists=/no/such/file",),
    ),
    _Row(
        id="dependency",
        what="a unit that it requires fails",
        state="stopped",
        cause="dependency_failed",
        own_time="wait+0.5",
        unit=("Requires=@NAME@-needed.service", "After=@NAME@-needed.service"),
        files={
            "/etc/systemd/system/@NAME@-needed.service": "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'sleep 0.5; exit 1'\n"
        },
        after="systemctl reset-failed @NAME@-needed.service",
        words=("@NAME@-needed.service",),
    ),
    _Row(
        id="dependency-missing",
        what="a unit that it requires does not exist",
        state="stopped",
        cause="dependency_failed",
        own_time="wait",
        unit=("Requires=@NAME@-nowhere.service", "After=@NAME@-nowhere.service"),
    ),
    _Row(
        id="start-limit",
        what="started too often",
        cause="start_limit",
        own_time="state",
        held=True,
        command="/bin/false",
        unit=("StartLimitIntervalSec=1h", "StartLimitBurst=1"),
        before="systemctl start @UNIT@; sleep 0.2",
    ),
    _Sleeper(
        id="timeout-start",
        what="TimeoutStartSec passes (Type=notify, which SGLang does not speak)",
        cause="timeout",
        own_time="inactive",
        service=("Type=notify", "TimeoutStartSec=1"),
    ),
    _Row(
        id="timeout-runtime",
        what="RuntimeMaxSec passes while it loads",
        cause="timeout",
        environment=_SLOW,
        service=("RuntimeMaxSec=1",),
        words=("RuntimeMaxSec",),
    ),
    _Sleeper(
        id="systemd-watchdog",
        what="WatchdogSec passes (SGLang does not report to it)",
        cause="systemd_watchdog",
        service=("WatchdogSec=1",),
    ),
    _Row(
        id="protocol",
        what="Type=notify, and the program ends without a word",
        cause="protocol",
        held=True,
        command="/bin/true",
        service=("Type=notify",),
    ),
    _Row(
        id="exit-0",
        what="ends with status 0 by itself",
        cause="exited",
        command="/bin/sh -c 'sleep 0.6'",
        words=("by itself",),
    ),
    _Row(
        id="exit-0-remains",
        what="ends with status 0 by itself, and RemainAfterExit keeps the unit active",
        cause="exited",
        command="/bin/sh -c 'sleep 0.6'",
        service=("RemainAfterExit=yes",),
    ),
    _Row(
        id="exit-0-forgotten",
        what="ends with status 0 by itself, and is not enabled: systemd forgets how",
        cause="exited",
        own_time="action:0",
        enabled=False,
        command="/bin/sh -c 'until test -e @DIR@/end; do sleep 0.05; done'",
        actions=(Action("after:0.6", "touch @DIR@/end"),),
        words=("by itself",),
    ),
    _Row(
        id="stopped-forgotten",
        what="somebody stops it, and it is not enabled",
        state="stopped",
        cause="stopped",
        own_time="action:0",
        enabled=False,
        environment=_SLOW,
        actions=(Action("after:0.6", "systemctl stop --no-block @UNIT@"),),
    ),
    _Row(id="exit-41", what="ends with a status of its own", cause="exited", command="/bin/sh -c 'sleep 0.6; exit 41'"),
    _Row(
        id="crash-loop",
        what="crashes again and again",
        state="crash_loop",
        cause="argument_error",
        arguments=("--no-such-flag",),
        service=("Restart=on-failure", "RestartSec=300ms"),
        own_time="exit",
        start="systemctl start @UNIT@; until test $(systemctl show --value --property=NRestarts @UNIT@) -ge 2; do sleep 0.05; done",
    ),
    _Row(
        id="crash-before-restart",
        what="crashes, and systemd is going to restart it",
        cause="argument_error",
        arguments=("--no-such-flag",),
        service=("Restart=on-failure", "RestartSec=30s"),
    ),
    _Row(
        id="restarts-used-up",
        what="crashes once more than max_restarts",
        state="crash_loop",
        cause="crash_loop",
        command="/bin/sh -c 'sleep 0.3; exit 1'",
        service=("Restart=on-failure", "RestartSec=5s"),
        own_time="exit",
        options={"max_restarts": 1},
    ),
    _Row(
        id="stopped-meanwhile",
        what="somebody stops it while it loads",
        state="stopped",
        cause="stopped",
        environment=_SLOW,
        own_time="inactive",
        actions=(Action("after:0.8", "systemctl stop @UNIT@"),),
    ),
    _Row(
        id="never-started",
        what="nobody started it",
        state="stopped",
        cause="stopped",
        own_time="wait",
        start="",
    ),
    _Row(
        id="out-of-memory",
        what="MemoryMax is reached",
        cause="host_out_of_memory",
        service=("MemoryMax=8M",),
        skip="the lab host has no memory controller; see the rows with the kernel's log",
    ),
)

_Signal = functools.partial(_Row, group="signals", environment=_SLOW)
SIGNALS = (
    *(
        _Signal(
            id=f"main-sig{name}",
            what=f"the main process dies of SIG{name.upper()} while it loads",
            cause="signal",
            words=(f"SIG{name.upper()}",),
            actions=(
                Action(
                    "truth:step_begin", f"sleep 0.4; systemctl kill --kill-whom=main --signal={name.upper()} @UNIT@"
                ),
            ),
        )
        for name in ("kill", "segv", "abrt", "bus", "ill", "fpe")
    ),
    _Signal(
        id="main-sigterm",
        what="somebody sends SIGTERM to the main process while it loads",
        cause="signal",
        words=("SIGTERM", "somebody ended it"),
        actions=(Action("truth:step_begin", "sleep 0.4; systemctl kill --kill-whom=main --signal=TERM @UNIT@"),),
    ),
    _Signal(
        id="all-sigkill",
        what="all its processes are killed at once",
        cause="signal",
        words=("SIGKILL",),
        actions=(Action("truth:step_begin", "sleep 0.4; systemctl kill --signal=KILL @UNIT@"),),
    ),
    *(
        _Signal(
            id=f"{name}-{moment}",
            what=f"{process} is killed while {'it loads' if moment == 'loading' else 'the wait goes on'}",
            environment=_SLOW if moment == "loading" else {},
            cause="scheduler_killed" if (name, moment) == ("scheduler", "loading") else "child_died",
            actions=(
                Action(
                    "truth:step_begin" if moment == "loading" else "truth:ready",
                    "until pgrep -f --cgroup /system.slice/@UNIT@ '" + pattern + "' >@DIR@/pid; do sleep 0.05; done;"
                    " sleep 0.3; kill -KILL $(head -1 @DIR@/pid)",
                ),
            ),
            options={} if moment == "loading" else {"markers": "require", "expected_markers": 99},
        )
        for name, process, pattern in (
            ("scheduler", "a scheduler", "^sglang::scheduler"),
            ("detokenizer", "the detokenizer", "^sglang::detokenizer"),
        )
        for moment in ("loading", "up")
    ),
)

_TEMPLATE = unit_file(server_command(port="@PORT@"), environment=server_environment("@DIR@/truth"))
_Bad = functools.partial(Fault, group="bad input", own_time="wait", start="")
BAD_UNITS = (
    _Bad(id="unknown-unit", what="no such unit", state="not_found", cause="not_found", text=""),
    _Bad(
        id="masked",
        what="the unit is masked",
        state="not_found",
        cause="masked",
        text="",
        prepare="ln -s /dev/null /etc/systemd/system/@UNIT@",
        remove="rm -f /etc/systemd/system/@UNIT@",
        words=("systemctl unmask",),
    ),
    _Bad(
        id="masked-runtime",
        what="the unit is masked until the next boot",
        state="not_found",
        cause="masked",
        text="",
        prepare="mkdir -p /run/systemd/system; ln -s /dev/null /run/systemd/system/@UNIT@",
        remove="rm -f /run/systemd/system/@UNIT@",
        words=("systemctl unmask --runtime",),
    ),
    _Bad(
        id="unit-without-command",
        what="the unit file has no ExecStart",
        state="not_found",
        cause="bad_unit_file",
        text="[Service]\nType=exec\n",
        words=("ExecStart",),
    ),
    _Bad(
        id="unit-bad-quoting",
        what="the ExecStart of the unit file has an open quote",
        state="not_found",
        cause="bad_unit_file",
        text="[Service]\nType=exec\nExecStart=/bin/sh -c 'sleep 1000\n",
        words=("/etc/systemd/system/@UNIT@:3",),
    ),
    _Bad(
        id="unit-relative-program",
        what="the ExecStart of the unit file names its program by a relative path",
        state="not_found",
        cause="bad_unit_file",
        text="[Service]\nType=exec\nExecStart=./bin/python -m sglang.launch_server\n",
        words=("/etc/systemd/system/@UNIT@:3",),
    ),
    _Bad(
        id="unit-garbage",
        what="the unit file is no unit file",
        state="not_found",
        cause="bad_unit_file",
        text="#!/bin/sh\nexec python3 -m sglang.launch_server\n",
    ),
    _Bad(
        id="unit-dangling-link",
        what="the unit file is a link to nothing",
        state="not_found",
        cause="not_found",
        text="",
        prepare="ln -s /no/such/@UNIT@ /etc/systemd/system/@UNIT@",
        remove="rm -f /etc/systemd/system/@UNIT@",
    ),
    _Bad(
        id="alias",
        what="the name is an alias of the unit",
        state="ready",
        own_time="truth:ready",
        start="systemctl start --no-block @UNIT@",
        prepare="ln -s @UNIT@ /etc/systemd/system/alias-@UNIT@",
        remove="rm -f /etc/systemd/system/alias-@UNIT@",
        options={"unit": "alias-@UNIT@"},
        words=("alias of @UNIT@",),
    ),
    _Bad(
        id="alias-crash",
        what="the name is an alias of a unit that crashes",
        state="crashed",
        cause="argument_error",
        own_time="exit",
        arguments=("--no-such-flag",),
        start="systemctl start --no-block @UNIT@",
        prepare="ln -s @UNIT@ /etc/systemd/system/alias-@UNIT@",
        remove="rm -f /etc/systemd/system/alias-@UNIT@",
        options={"unit": "alias-@UNIT@"},
        words=("alias of @UNIT@", "--no-such-flag"),
    ),
    _Bad(
        id="instance",
        what="an instance of a template",
        state="ready",
        own_time="truth:ready",
        text="",
        files={"/etc/systemd/system/@NAME@@.service": _TEMPLATE},
        start="systemctl start --no-block @NAME@@0.service",
        after="systemctl kill --signal=KILL @NAME@@0.service; systemctl stop @NAME@@0.service",
        options={"unit": "@NAME@@0.service"},
    ),
    _Bad(
        id="needs-reload",
        what="the unit file changed and systemd has not read it",
        state="ready",
        own_time="truth:ready",
        start="systemctl start @UNIT@; touch -d '+1 hour' /etc/systemd/system/@UNIT@",
        words=("daemon-reload",),
    ),
)

_Refuse = functools.partial(_Bad, state="refused", text="")
OPTIONS = (
    _Refuse(
        id="template", what="a template without an instance", options={"unit": "sglang@.service"}, words=("template",)
    ),
    _Refuse(id="timer", what="a unit that is no service", options={"unit": "sglang-x.timer"}, words=("no service",)),
    _Refuse(id="bare-name", what="a unit's name without its end", options={"unit": "sglang-x"}, words=("no service",)),
    _Refuse(id="unit-path", what="a path in place of a unit", options={"unit": "/etc/x.service"}, words=("no valid",)),
    _Refuse(id="timeout-0", what="timeout 0", options={"timeout": "0"}, words=("timeout '0'", "above 0")),
    _Refuse(id="timeout-negative", what="timeout -5", options={"timeout": "-5"}, words=("timeout '-5'",)),
    _Refuse(id="timeout-word", what="timeout 'soon'", options={"timeout": "soon"}, words=("timeout 'soon'",)),
    _Refuse(id="timeout-infinite", what="timeout 'inf'", options={"timeout": "inf"}, words=("timeout 'inf'",)),
    _Refuse(id="port-0", what="port 0", options={"port": 0}, words=("1 to 65535",)),
    _Refuse(id="port-70000", what="port 70000", options={"port": 70000}, words=("1 to 65535",)),
    _Refuse(
        id="stall-above-timeout",
        what="stall_timeout above timeout",
        options={"stall_timeout": 90, "timeout": "60"},
        words=("stall_timeout 90", "timeout 60"),
    ),
    _Refuse(
        id="spin-above-timeout",
        what="spin_timeout above timeout",
        options={"spin_timeout": 90, "timeout": "60"},
        words=("spin_timeout 90", "timeout 60"),
    ),
    _Refuse(
        id="replaces-garbled",
        what="replaces is no InvocationID",
        options={"replaces": "yesterday"},
        words=("InvocationID",),
    ),
    _Refuse(
        id="unknown-host",
        what="the host is a name that nobody knows",
        options={"host": "no-such-host.invalid"},
        words=("no-such-host.invalid",),
    ),
    _Refuse(id="short-key", what="a key of three letters", options={"api_key": "abc"}, words=("at least 8",)),
    _Refuse(
        id="ca-missing",
        what="ca_path names no file",
        options={"scheme": "https", "ca_path": "/no/such/ca.pem"},
        words=("/no/such/ca.pem",),
    ),
    _Refuse(
        id="ca-garbage",
        what="ca_path names a file without certificates",
        options={"scheme": "https", "ca_path": "/etc/hostname"},
        words=("/etc/hostname",),
    ),
)

ROWS = (*EXEC, *START, *SIGNALS, *BAD_UNITS, *OPTIONS)

__all__ = ("ROWS",)
