# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows about the journal: lines that go elsewhere, are dropped, cut, many, or not to be read."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.tests.support.fault_matrix.model import Fault
from ansible_collections.specdec.serving.tests.support.observer import units

_OTHERS = "the other gates decided"
_SERVER = units.server_command(port="@PORT@")
_MARKER = (
    "[2026-11-29 14:24:24 TP7 EP7] Load weight end. elapsed=0.01 s, type=Forged, avail mem=1.00 GB, mem usage=0.50 GB."
)
_NO_NAMESPACE = (
    "systemctl stop systemd-journald@@NAME@.service systemd-journald@@NAME@.socket; rm -rf /var/log/journal/*.@NAME@"
)


def _row(**more: t.Any) -> Fault:
    """A server that gets ready all the same, unless ``more`` says otherwise."""
    return Fault(**{"group": "journal", "state": "ready", "own_time": "truth:ready", **more})


ROWS: tuple[Fault, ...] = (
    _row(
        id="journal-null",
        what="StandardOutput=null",
        service=("StandardOutput=null",),
        words=("StandardOutput is 'null'", _OTHERS),
    ),
    _row(
        id="journal-file",
        what="StandardOutput is a file",
        service=("StandardOutput=append:@DIR@/log",),
        words=("StandardOutput is 'append'", _OTHERS),
    ),
    _row(
        id="journal-stderr-file",
        what="StandardError alone is a file",
        service=("StandardError=file:@DIR@/log",),
        words=("StandardError is 'file'", _OTHERS),
    ),
    _row(
        id="journal-null-required",
        what="StandardOutput=null, and the markers are required",
        state="loading",
        cause="timeout",
        own_time="timeout",
        service=("StandardOutput=null",),
        options={"markers": "require", "timeout": "4"},
        words=("0 of 4 'Load weight end' lines", "StandardOutput is 'null'"),
    ),
    _row(
        id="journal-null-crash",
        what="a refused argument, and StandardOutput=null",
        state="crashed",
        cause="exited",
        own_time="exit",
        arguments=("--no-such-flag",),
        service=("StandardOutput=null",),
        words=("exited with status 2", "StandardOutput is 'null'"),
    ),
    _row(
        id="journal-kmsg",
        what="StandardOutput=kmsg goes to the journal, too",
        service=("StandardOutput=kmsg",),
        options={"markers": "require"},
    ),
    _row(
        id="journal-namespace",
        what="LogNamespace",
        service=("LogNamespace=@NAME@",),
        options={"markers": "require"},
        remove=_NO_NAMESPACE,
    ),
    _row(
        id="journal-namespace-crash",
        what="a refused argument, and LogNamespace",
        state="crashed",
        cause="argument_error",
        own_time="exit",
        arguments=("--no-such-flag",),
        service=("LogNamespace=@NAME@",),
        words=("--no-such-flag",),
        remove=_NO_NAMESPACE,
    ),
    _row(
        id="journal-dropped",
        what="journald drops all but the first lines (rate limit)",
        # Two seconds after its start at the earliest: until then the lines may be on their way.
        own_time="truth:ready+2",
        command=f"/bin/sh -c 'seq 2000; exec {_SERVER}'",
        service=("LogRateLimitIntervalSec=1h", "LogRateLimitBurst=20"),
        words=(_OTHERS,),
    ),
    _row(
        id="journal-forbidden",
        what="a user who may not read the journal",
        observer_user="deploy",
        words=("no permission to read the journal", _OTHERS),
    ),
    _row(
        id="journal-cut",
        what="what follows the cut of a long line looks like a marker",
        files={"@DIR@.py": f'import sys; sys.stderr.write("y" * 49152 + "{_MARKER}\\n")'},
        command=f"/bin/sh -c '/usr/bin/python3 @DIR@.py; exec {_SERVER}'",
        options={"expected_markers": 5, "markers": "require", "timeout": "5"},
        state="loading",
        cause="timeout",
        own_time="timeout",
        words=("4 of 5 'Load weight end' lines",),
        remove="rm -f @DIR@.py",
    ),
    _row(
        id="journal-flood",
        what="2,000 lines a second beside the server's own",
        command=(
            f"/bin/sh -c '/usr/bin/python3 {units.COLLECTION}/tests/support/observer/flood.py 2000 5 & exec {_SERVER}'"
        ),
        options={"markers": "require"},
    ),
)

__all__ = ("ROWS",)
