# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts in bounded memory."""

from __future__ import annotations

from ansible_collections.specdec.serving.plugins.module_utils._evidence_text import Spool
from ansible_collections.specdec.serving.plugins.module_utils._redact import Masker


def test_a_spool_keeps_the_last_blocks_and_its_size() -> None:
    spool = Spool(Masker(["planted"]), limit=600_000)
    for number in range(20_000):
        spool.add(f"planted {number} " + "x" * 80)
    text = b"".join(spool.blocks()).decode()
    assert len(text) == spool.size <= 600_000 + 262_144
    assert spool.cut
    assert text.splitlines()[-1].startswith("******** 19999 ")
    assert "planted" not in text
