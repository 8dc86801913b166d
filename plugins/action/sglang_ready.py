# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name in slices: progress lines, and a wait that outlives dropped connections."""

from __future__ import annotations

import os
import time
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.specdec.serving.plugins.plugin_utils._slices import SliceLoop, plain, progress_line

display = Display()


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_ready.py`` for the options; ``async`` is refused by ActionBase."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        arguments = plain(self._task.args)
        host = str((task_vars or {}).get("inventory_hostname", ""))

        def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
            answer: dict[str, t.Any] = self._execute_module(
                module_name="specdec.serving.sglang_ready",
                module_args={**arguments, **extra},
                task_vars=task_vars,
            )
            return answer

        loop = SliceLoop(
            arguments=arguments,
            check_mode=bool(self._task.check_mode),
            execute=execute,
            lost=AnsibleConnectionFailure,
            report=lambda answer: display.display(progress_line(host, answer)),
            complain=lambda text: display.display(f"{host} | {text}", color="dark gray"),
            monotonic=time.monotonic,
            sleep=time.sleep,
            parent=os.getppid,
        )
        try:
            result.update(loop.run())
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        return result
