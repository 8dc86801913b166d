# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name in slices: progress lines, and a run that outlives dropped connections."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.specdec.serving.plugins.module_utils._evaluation import new_run
from ansible_collections.specdec.serving.plugins.plugin_utils import _evaluations, _record
from ansible_collections.specdec.serving.plugins.plugin_utils._kept_claim import claim_keeper
from ansible_collections.specdec.serving.plugins.plugin_utils._parent import ansible_pid, end_with_parent, is_abandoned
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import SliceLoop, keep_alive, plain

display = Display()


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_evaluate.py`` for the options; ``async`` is refused by ActionBase."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = task_vars or {}
        arguments = plain(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        batch = [str(name) for name in variables.get("ansible_play_batch") or [host]]
        width = max(map(len, batch), default=0)
        run = new_run(time.time())
        sent = {name: value for name, value in arguments.items() if name not in _evaluations.OWN_OPTIONS}
        try:
            content = _evaluations.content_of(arguments)
            _record.check_options(arguments, check_mode=bool(self._task.check_mode))
            keep = claim_keeper(arguments.get("claim"), host=host, parent=ansible_pid())
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error

        def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
            # The problems travel once; then they lie in the folder of the run.
            given = {} if "resume" in extra else {"content": content}
            answer: dict[str, t.Any] = self._execute_module(
                module_name="specdec.serving.sglang_evaluate",
                module_args={**sent, **extra, **given, "run": run},
                task_vars=task_vars,
            )
            return answer

        loop = SliceLoop(
            arguments={"timeout": arguments.get("timeout") or _evaluations.DEFAULT_TIMEOUT},
            check_mode=bool(self._task.check_mode),
            execute=execute,
            lost=AnsibleConnectionFailure,
            report=lambda answer: display.display(_evaluations.progress_line(host, arguments, answer, width)),
            complain=lambda text: display.display(f"{host:<{width}} | {text}", color="dark gray"),
            monotonic=time.monotonic,
            sleep=time.sleep,
            abandoned=is_abandoned,
            keep=keep,
        )
        try:
            end_with_parent()
            keep_alive(self._connection)
            answer = loop.run()
            if answer.get("parts"):
                answer = _evaluations.completed(answer, arguments, host=host, now=time.time())
            if answer.get("failed"):
                # Ansible prints what failed, and these are hundreds of lines.
                answer.pop("parts", None)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        result.update(answer)
        return result
