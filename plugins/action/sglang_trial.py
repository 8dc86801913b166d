# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans, claims and ends the trials of a sweep; all of it on the controller."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.specdec.serving.plugins.plugin_utils import _record
from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import owner_of
from ansible_collections.specdec.serving.plugins.plugin_utils._parent import ansible_pid, end_with_parent
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import plain
from ansible_collections.specdec.serving.plugins.plugin_utils._study import StudyError
from ansible_collections.specdec.serving.plugins.plugin_utils._trials import Trials, options_from, patiently

display = Display()

_STATES = ("claimed", "finished", "planned", "released", "renewed", "shown")
#: Of a trial that is under way or measured.
_PATIENT = ("finished", "released", "renewed")
_CHANGING = ("claimed", "finished", "released", "renewed")


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_trial.py`` for the options."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = task_vars or {}
        arguments = plain(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        state = str(arguments.get("state") or "shown")
        if state not in _STATES:
            raise AnsibleActionFail(f"state {state!r} is none of {', '.join(_STATES)}")
        if self._task.check_mode and state in _CHANGING:
            result.update(changed=False, skipped=True, msg="check mode runs no trials")
            return result
        if state == "claimed" and arguments.get("ended"):
            result.update(skipped=True, msg=arguments["ended"], trial={}, over=arguments["ended"], final=True)
            return result
        owner = owner_of(ansible_pid(), play=str(variables.get("ansible_play_name") or ""))
        try:
            if state == "planned" and arguments.get("results_dir") and not self._task.check_mode:
                _record.check_folder(str(arguments["results_dir"]))
            trials = Trials(options_from(arguments, now=time.time()), owner=owner, host=host, wall=time.time)
            if state in _PATIENT:
                end_with_parent()
                answer = patiently(
                    lambda: self._answer(trials, state, arguments),
                    say=lambda text: display.display(f"{host} | {text}", color="dark gray"),
                    monotonic=time.monotonic,
                    sleep=time.sleep,
                )
            else:
                answer = self._answer(trials, state, arguments)
            result.update(answer)
        except (StudyError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        for line in str(result.get("text") or "").splitlines():
            display.display(f"{host} | {line}")
        result["changed"] = state == "finished"
        return result

    def _answer(self, trials: Trials, state: str, arguments: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        if state == "planned":
            return trials.planned(check_mode=bool(self._task.check_mode))
        if state == "claimed":
            return trials.claimed()
        if state == "shown":
            return trials.shown()
        number = arguments.get("number")
        if number is None:
            raise ValueError(f"state={state} needs number, which state=claimed gave")
        if state == "renewed":
            return trials.renewed(int(number))
        if state == "released":
            return trials.released(int(number))
        return trials.finished(
            int(number),
            benchmarks=arguments.get("benchmarks") or {},
            evaluation=arguments.get("evaluation") or {},
            failure=arguments.get("failure") or {},
            details=arguments.get("details") or {},
        )
