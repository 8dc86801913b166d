# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and volumes of lab hosts, checked before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.lab.hosts import check_name, parse_volume
from ansible_collections.specdec.serving.tests.support.lab.processes import LabError


@pytest.mark.parametrize("name", ["ct200", "b300", "a", "h-1", "a" * 32])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "../x", "a b", "a" * 33, "a\n"])
def test_bad_names_are_quoted(name: str) -> None:
    with pytest.raises(LabError) as failure:
        check_name(name)
    assert repr(name) in str(failure.value)


@pytest.mark.parametrize("mode", ["", ":ro", ":rw"])
def test_volume_keeps_its_mode_and_gets_an_absolute_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_volume(f"models:/models{mode}") == f"{tmp_path.resolve()}/models:/models{mode}"


@pytest.mark.parametrize("text", ["models", "models:models", "models:/m:z", "a:b:/c:ro", "/not/there:/models"])
def test_bad_volumes_are_refused(text: str) -> None:
    with pytest.raises(LabError) as failure:
        parse_volume(text)
    assert repr(text) in str(failure.value)
