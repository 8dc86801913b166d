# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A callback for tests: writes down when each task began, and kills ansible-playbook before the one with a number."""

from __future__ import annotations

import json
import os
import signal
import time
import typing as t

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: kill_at
type: aggregate
short_description: Kill ansible-playbook at a task boundary
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Adds a line of JSON (C(number), C(name), C(at)) to the file in E(SPECDEC_TASKS) for each task that begins.
  - Kills the process before the task with the number in E(SPECDEC_KILL_BEFORE), counted from 0.
"""


class CallbackModule(CallbackBase):
    """See DOCUMENTATION."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "kill_at"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._number = 0

    def v2_playbook_on_task_start(self, task: t.Any, is_conditional: bool) -> None:
        del is_conditional
        with open(os.environ["SPECDEC_TASKS"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"number": self._number, "name": task.get_name(), "at": time.monotonic()}) + "\n")
        if os.environ.get("SPECDEC_KILL_BEFORE") == str(self._number):
            os.kill(os.getpid(), signal.SIGKILL)
        self._number += 1
