# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _study
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import resolve_engine
from ansible_collections.specdec.serving.plugins.plugin_utils._kept_claim import EVERY_S, claim_keeper
from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import owner_of
from ansible_collections.specdec.serving.plugins.plugin_utils._trials import Trials, options_from


def test_it_is_kept_now_and_then() -> None:
    now, renewed = [1000.0], []
    keep = claim_keeper(
        {"number": 3, "claimed_at": 900.0},
        host="a",
        parent=1,
        renew=lambda claim, host, parent: renewed.append((now[0], claim["number"], host, parent)),
        wall=lambda: now[0],
    )
    for second in range(0, 1000, 20):
        now[0] = 1000.0 + second
        keep()
    assert renewed == [(1200.0, 3, "a", 1), (1500.0, 3, "a", 1), (1800.0, 3, "a", 1)]
    assert EVERY_S <= _study.LEASE_S / 2
    renewed.clear()
    now[0] = 1000.0
    keep = claim_keeper(
        {"number": 3, "claimed_at": 1000.0, "hold": 60},
        host="a",
        parent=1,
        renew=lambda claim, host, parent: renewed.append((now[0], claim["number"], host, parent)),
        wall=lambda: now[0],
    )
    for now[0] in (1059.0, 1060.0, 1100.0, 1121.0):
        keep()
    assert [moment for moment, *_rest in renewed] == [1060.0, 1121.0]


def test_there_may_be_nothing_to_keep() -> None:
    nothing: list[dict[str, t.Any] | None] = [None, {}]
    for claim in nothing:
        claim_keeper(claim, host="a", parent=1, renew=lambda *_words: pytest.fail("there is no claim"))()


def test_a_claim_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "w.yml").write_text("name: w\ndescription: x\nkind: fixed\ninput_length: 8\noutput_length: 8\n")
    (tmp_path / "s.yml").write_text("instance: a\nspace: {tp_size: [1, 2]}\nworkloads: [./w.yml]\nlevels: [1]\n")
    entry = {"name": "a", "model_path": "/m", "port": 30001, "args": {}}
    options = {"sweep": str(tmp_path / "s.yml"), "storage": str(tmp_path / "s.journal"), "instances": [entry]}
    resolve = {"version": "0.5.23", "engine": resolve_engine("0.5.23", root="/opt/specdec")}
    owner = owner_of(os.getpid())
    now = 1_000_000.0

    def trials(**changes: t.Any) -> Trials:
        return Trials(
            options_from({**options, "resolve": resolve}, now=now),
            owner=dataclasses.replace(owner, **changes),
            host="h",
            wall=lambda: now,
        )

    trials().planned(check_mode=False)
    claimed = trials().claimed()["trial"]
    assert claimed["claimed_at"] == now
    claim = {**options, "number": claimed["number"], "claimed_at": claimed["claimed_at"]}
    before = (tmp_path / "s.journal").read_text()
    claim_keeper(claim, host="h", parent=os.getpid())()
    assert (tmp_path / "s.journal").read_text().count("lease:") > before.count("lease:")
    # Another controller has taken it over meanwhile.
    with pytest.raises(ValueError, match="belongs to"):
        claim_keeper(claim, host="h", parent=1)()


@pytest.mark.parametrize("claim", ["x", [1], {"claimed_at": "x"}, {"hold": [1]}])
def test_a_claim_that_is_none_is_told(claim: t.Any) -> None:
    with pytest.raises(ValueError, match=r"claim is .*; give the options of sglang_trial"):
        claim_keeper(claim, host="h", parent=1)
