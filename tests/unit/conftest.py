# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every unit test needs: Ansible's own way to find collections, where the controller can run."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    # Before anything imports the collection by Python's own means: Ansible finds no plugins in it then.
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader([str(Path(__file__).resolve().parents[2] / ".collections")])
