# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name, and tells meanwhile what takes so long of a new engine."""

from __future__ import annotations

from ansible_collections.specdec.serving.plugins.plugin_utils._heartbeat import TellingAction


class ActionModule(TellingAction):
    """See ``plugins/modules/sglang_preflight.py`` for the options."""

    what = "asking SGLang {version} which arguments it takes, and looking at the host"
