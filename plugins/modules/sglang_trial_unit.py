#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_trial_unit
short_description: Give a unit another configuration for a while, which ends by itself
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Writes a drop-in below C(/run) with another command line and environment for a unit that is deployed. The unit's own files are never
    touched, so a reboot ends the trial.
  - A transient timer on the host takes the drop-in away and restarts the unit when its controller vanishes, so that the unit has its own
    configuration again. The trial is held for as long as it, or the O(lease) that it was begun with, is renewed. Each slice of
    M(specdec.serving.sglang_ready), M(specdec.serving.sglang_benchmark) and M(specdec.serving.sglang_evaluate) renews the lease.
  - Nothing is started or stopped here but by O(restart). Made for the sweep and try playbooks.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._lease
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: partial
    details: A renewal is always a change.
options:
  unit:
    description: The unit, such as V(sglang-k26-dflash.service).
    type: str
    required: true
  state:
    description:
      - V(present) begins a trial, or takes the place of an earlier one. V(renewed) keeps it and fails when it is over. V(absent) ends it.
        V(observed) only tells.
    type: str
    choices: [absent, observed, present, renewed]
    default: present
  label:
    description: What the trial is, for people.
    type: str
    default: ""
  exec_start:
    description: The command line as a unit file has it (systemd.service(5)). Required with O(state=present).
    type: str
    default: ""
  environment_text:
    description:
      - Text of the environment file, without secrets. Those of the unit's own secret environment file and credential stay.
    type: str
    default: ""
  hold:
    description:
      - Seconds after which the unit gets its own configuration back unless the trial or its lease is renewed; at least 10. Slices of a wait or a
        measurement take up to 60 seconds.
    type: float
    default: 900.0
  restart:
    description:
      - With O(state=absent), whether the unit is restarted where a trial was under way. A timer then starts it once more after O(hold) seconds should
        it have failed; another O(state=absent), when it has proved to be ready, stops that timer.
    type: bool
    default: false
  stop_timeout:
    description: TimeoutStopSec of the trial's server, in seconds.
    type: int
    default: 60
"""

EXAMPLES = r"""
---
- name: Let the unit run with another block size
  specdec.serving.sglang_trial_unit:
    unit: sglang-k26-dflash.service
    label: trial 7 of nightly
    exec_start: "{{ resolved.exec_start }}"
    environment_text: "{{ resolved.environment_text }}"
    hold: 1800

- name: Go back
  specdec.serving.sglang_trial_unit:
    unit: sglang-k26-dflash.service
    state: absent
    restart: true
"""

RETURN = r"""
active:
  description: Whether a trial is under way now.
  returned: success
  type: bool
label:
  description: What it is.
  returned: success
  type: str
was_active:
  description: With O(state=absent), whether a trial was under way, so that the unit may run it still.
  returned: success
  type: bool
expired:
  description: Whether the last trial was ended by its timer, since nobody renewed it.
  returned: success
  type: bool
restore_at:
  description: When it ends by itself at the earliest, in seconds since 1970 of the host's clock; 0 = unknown.
  returned: success
  type: float
restore_in:
  description: Seconds until then by the host's clock; 0 = unknown, or it should have ended.
  returned: success
  type: float
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError, guard
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, check_unit_name
from ansible_collections.specdec.serving.plugins.module_utils._trial_unit import (
    Trial,
    TrialError,
    TrialReport,
    begin,
    end,
    observe,
    renew,
)

ARGUMENT_SPEC: dict[str, t.Any] = {
    "unit": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["absent", "observed", "present", "renewed"], "default": "present"},
    "label": {"type": "str", "default": ""},
    "exec_start": {"type": "str", "default": ""},
    "environment_text": {"type": "str", "default": ""},
    "hold": {"type": "float", "default": 900.0},
    "restart": {"type": "bool", "default": False},
    "stop_timeout": {"type": "int", "default": 60},
    "lease": {"type": "str", "default": ""},
}


def _apply(module: AnsibleModule) -> TrialReport:
    params, runner = module.params, command_runner()
    unit = check_unit_name(params["unit"])
    if params["state"] == "observed" or (params["state"] == "renewed" and module.check_mode):
        return observe(unit)
    if params["state"] == "renewed":
        return renew(unit, params["hold"], runner, lease=params["lease"])
    if params["state"] == "absent":
        hold = params["hold"] if params["restart"] else 0.0
        return end(unit, runner, restart_hold_s=hold, check_mode=module.check_mode)
    if not params["exec_start"]:
        raise TrialError("state=present needs 'exec_start'")
    trial = Trial(
        unit=unit,
        label=params["label"],
        exec_start=params["exec_start"],
        environment_text=params["environment_text"],
        hold_s=params["hold"],
        stop_timeout_s=params["stop_timeout"],
        lease=params["lease"],
    )
    return begin(trial, runner, check_mode=module.check_mode)


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        with guard("" if module.check_mode or module.params["state"] == "observed" else module.params["lease"]):
            report = _apply(module)
    except (LeaseError, OSError, SystemdError, TrialError) as error:
        module.fail_json(msg=str(error))
    result: dict[str, t.Any] = {
        "active": report.active,
        "changed": report.changed,
        "expired": report.expired,
        "label": report.label,
        "restore_at": report.restore_at,
        "restore_in": round(max(report.restore_at - time.time(), 0.0), 1),
        "was_active": report.was_active,
    }
    if module._diff:
        result["diff"] = list(report.diff)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
