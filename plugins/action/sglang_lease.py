# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells the module of the same name which run asks, waits for a lease, and sees whether a run of this controller still lives."""

from __future__ import annotations

import dataclasses
import time
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import LeaseLoop, has_ended, owner_of
from ansible_collections.specdec.serving.plugins.plugin_utils._parent import (
    ansible_pid,
    end_with_parent,
    is_abandoned,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import plain

display = Display()


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_lease.py`` for the options."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = task_vars or {}
        arguments = plain(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        owner = owner_of(ansible_pid(), play=str(variables.get("ansible_play_name") or ""))
        # Asked for by nobody, a lease would stay.
        end_with_parent()
        try:
            wait = float(arguments.get("wait") or 0)
        except ValueError:
            raise AnsibleActionFail(f"wait {arguments['wait']!r} is no number of seconds") from None

        def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
            answer: dict[str, t.Any] = self._execute_module(
                module_name="specdec.serving.sglang_lease",
                module_args={**arguments, "owner": dataclasses.asdict(owner), **extra},
                task_vars=task_vars,
            )
            return answer

        loop = LeaseLoop(
            wait=wait,
            check_mode=bool(self._task.check_mode),
            execute=execute,
            ended=has_ended,
            report=lambda text: display.display(f"{host} | {text}", color="dark gray"),
            monotonic=time.monotonic,
            sleep=time.sleep,
            abandoned=is_abandoned,
        )
        try:
            result.update(loop.run())
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        if arguments.get("state") == "shown" and "lease" in result:
            result["ended"] = bool(result["lease"]) and has_ended(result["lease"]["owner"])
        return result
