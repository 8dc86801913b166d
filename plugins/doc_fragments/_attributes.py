# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attributes that every module states. PRIVATE to the collection."""

from __future__ import annotations


class ModuleDocFragment:
    """A module extends this fragment and only adds C(support) and, where partial, C(details)."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description:
      - Can run in check mode and tell what it would do without changing the host.
  diff_mode:
    description:
      - Returns what changed, or would change, in diff mode. Secrets are masked.
  idempotent:
    description:
      - Run again under the same conditions, it changes nothing and says so.
  platform:
    description:
      - Systems on which it can run.
    platforms: posix
    support: full
"""
