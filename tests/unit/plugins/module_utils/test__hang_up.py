# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Noticing that nobody reads our answer any more."""

from __future__ import annotations

import os

from ansible_collections.specdec.serving.plugins.module_utils._hang_up import hung_up


def test_a_pipe_without_a_reader() -> None:
    read, write = os.pipe()
    assert not hung_up(write)
    os.close(read)
    assert hung_up(write, within=60)
    os.close(write)
