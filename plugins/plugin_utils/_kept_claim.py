# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The claim of a trial, kept through tasks that may take longer than it lasts. PRIVATE to the collection.

Another controller that shares the study cannot see whether we live, so it may take a trial over whose claim is old.
"""

from __future__ import annotations

import time
import typing as t
from collections.abc import Callable, Mapping

from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import owner_of

__all__ = ["EVERY_S", "NOT_KEPT", "claim_keeper"]

#: At most; a claim lasts a little longer than the host keeps its trial (``hold``).
EVERY_S: t.Final = 300.0
#: How the message of a task begins that could not keep it.
NOT_KEPT: t.Final = "the claim of the trial cannot be kept: "


def _renew(claim: Mapping[str, t.Any], host: str, parent: int) -> None:
    # Here, since Optuna takes a second, which most tasks need not wait for.
    from ansible_collections.specdec.serving.plugins.plugin_utils._study import StudyError
    from ansible_collections.specdec.serving.plugins.plugin_utils._trials import Trials, options_from

    try:
        trials = Trials(options_from(claim, now=time.time()), owner=owner_of(parent), host=host, wall=time.time)
        trials.renewed(int(claim["number"]))
    except StudyError as error:
        raise ValueError(f"{NOT_KEPT}{error}") from error


def claim_keeper(
    claim: Mapping[str, t.Any] | None,
    *,
    host: str,
    parent: int,
    renew: Callable[[Mapping[str, t.Any], str, int], None] = _renew,
    wall: Callable[[], float] = time.time,
) -> Callable[[], None]:
    """What to call now and then. It raises ValueError when another controller has the trial.

    :param claim: the options of sglang_trial with ``number`` and ``claimed_at``; empty = there is nothing to keep.
    :param parent: pid of ansible-playbook, which claimed it.
    """
    try:
        kept_at = float((claim or {}).get("claimed_at") or 0.0)
        every = min(EVERY_S, float((claim or {}).get("hold") or EVERY_S))
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"claim is {claim!r:.200}; give the options of sglang_trial with number, and claimed_at and hold in seconds"
        ) from None

    def keep() -> None:
        nonlocal kept_at
        if claim and abs(wall() - kept_at) >= every:
            renew(claim, host, parent)
            kept_at = wall()

    return keep
