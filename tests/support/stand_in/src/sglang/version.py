# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The release that this engine stands in for; build.py writes the one it was asked for."""

from __future__ import annotations

__version__ = "0.5.23"
