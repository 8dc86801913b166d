# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name in slices: progress lines, and a drain that outlives dropped connections."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.specdec.serving.plugins.plugin_utils._drain_progress import LIMIT_S, progress_lines
from ansible_collections.specdec.serving.plugins.plugin_utils._parent import end_with_parent, is_abandoned
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import SliceLoop, keep_alive, plain

display = Display()


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_drain.py`` for the options; ``async`` is refused by ActionBase."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = task_vars or {}
        arguments = plain(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        width = max((len(str(name)) for name in variables.get("ansible_play_batch") or [host]), default=0)

        lost: list[AnsibleConnectionFailure] = []

        def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
            try:
                answer: dict[str, t.Any] = self._execute_module(
                    module_name="specdec.serving.sglang_drain",
                    # What an answer that was lost told of is not done again.
                    module_args={**arguments, **extra, "again": bool(lost)},
                    task_vars=task_vars,
                )
            except AnsibleConnectionFailure as error:
                lost.append(error)
                raise
            return answer

        def tell(text: str) -> None:
            display.display(f"{host:<{width}} | {text}", color="dark gray")

        def report(answer: t.Mapping[str, t.Any]) -> None:
            for line in progress_lines(answer):
                tell(line)

        loop = SliceLoop(
            # How long a host may stay away; the module itself ends the drain.
            arguments={"timeout": LIMIT_S},
            check_mode=bool(self._task.check_mode),
            execute=execute,
            lost=AnsibleConnectionFailure,
            report=report,
            complain=tell,
            monotonic=time.monotonic,
            sleep=time.sleep,
            abandoned=is_abandoned,
        )
        if not self._task.check_mode:
            end_with_parent()
            keep_alive(self._connection)
        try:
            result.update(loop.run())
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        return result
