# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The option by which a module works under the lease of the host. PRIVATE to the collection."""

from __future__ import annotations


class ModuleDocFragment:
    """For modules that change a host."""

    DOCUMENTATION = r"""
options:
  lease:
    description: RV(specdec.serving.sglang_lease#module:token) of the lease of the host. When it is lost, the task fails before its next change.
    type: str
    default: ""
"""
