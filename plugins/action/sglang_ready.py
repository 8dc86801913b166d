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

from ansible_collections.specdec.serving.plugins.plugin_utils import _client
from ansible_collections.specdec.serving.plugins.plugin_utils._kept_claim import claim_keeper
from ansible_collections.specdec.serving.plugins.plugin_utils._parent import ansible_pid, end_with_parent, is_abandoned
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import (
    SliceLoop,
    forks_warning,
    keep_alive,
    plain,
    progress_line,
    remaining,
    truth,
)

display = Display()


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_ready.py`` for the options; ``async`` is refused by ActionBase."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = task_vars or {}
        arguments = plain(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        batch = [str(name) for name in variables.get("ansible_play_batch") or [host]]
        width = max(map(len, batch), default=0)
        watches = not self._task.check_mode and truth(arguments.get("wait", True))

        given = {name: value for name, value in arguments.items() if name != "claim"}

        def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
            answer: dict[str, t.Any] = self._execute_module(
                module_name="specdec.serving.sglang_ready",
                module_args={**given, **extra},
                task_vars=task_vars,
            )
            return answer

        def complain(text: str) -> None:
            display.display(f"{host:<{width}} | {text}", color="dark gray")

        try:
            keep = claim_keeper(arguments.get("claim"), host=host, parent=ansible_pid())
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        loop = SliceLoop(
            arguments=arguments,
            check_mode=bool(self._task.check_mode),
            execute=execute,
            lost=AnsibleConnectionFailure,
            report=lambda answer: display.display(progress_line(host, answer, width)),
            complain=complain,
            monotonic=time.monotonic,
            sleep=time.sleep,
            abandoned=is_abandoned,
            keep=keep,
        )
        try:
            if arguments.get("client_url"):
                _client.require()
            if watches:
                end_with_parent()
                keep_alive(self._connection)
                warning = forks_warning(len(batch), int(variables.get("ansible_forks") or len(batch)))
                if warning:
                    # The same words for every host, so that Ansible shows them once.
                    display.warning(warning)
            answer = loop.run()
            if arguments.get("client_url") and answer.get("ready"):
                answer = self._check_client(arguments, answer, watches, complain)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        result.update(answer)
        return result

    def _check_client(
        self,
        arguments: t.Mapping[str, t.Any],
        answer: dict[str, t.Any],
        watches: bool,
        complain: t.Callable[[str], None],
    ) -> dict[str, t.Any]:
        key = str(arguments.get("api_key") or "")
        finding = _client.check(
            str(arguments["client_url"]),
            str(arguments.get("model") or (answer.get("server") or {}).get("model") or ""),
            _client.fetcher(api_key=key, verify=_client.verification(arguments, os.environ)),
            within=remaining(answer) if watches else 0.0,
            monotonic=time.monotonic,
            sleep=time.sleep,
            complain=complain,
        )
        return _client.merged(answer, finding, api_key=key, fail=watches)
