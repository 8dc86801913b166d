#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_drain
short_description: Stop or restart SGLang servers without cutting off their requests
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Waits until the servers have no requests left, then stops or restarts their units. Requests that are still there after O(timeout) are aborted
    (C(/abort_request) for all), and so is what comes in until the server has ended, which SGLang would wait for without a limit.
  - Requests are counted by C(/v1/loads), by C(/get_load) or C(/metrics) in releases without it. Port, key and release are those of the process that
    runs, read from it, whatever the inventory says by now. Health checks are no requests.
  - A server that cannot be asked (hung, or its key is not known) is not asked for ever - it is stopped by systemd alone, and the result says so. SGLang
    itself lets requests end at SIGTERM, for as long as the unit's stop timeout.
  - A server that is loading, or follows another node, has no requests. A foreign server on the same port is never asked to abort anything.
  - The controller waits in slices and prints a line for each server every 15 s.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._lease
attributes:
  check_mode:
    support: full
    details: Tells how many requests each server has now.
  diff_mode:
    support: full
  idempotent:
    support: partial
    details: O(state=restarted) restarts each time.
options:
  state:
    description:
      - V(stopped) stops what runs. V(restarted) restarts, and starts what does not run. V(checked) changes nothing, and fails where these would refuse.
    type: str
    choices: [checked, restarted, stopped]
    default: stopped
  units:
    description: Names of the servers' units, such as V(sglang-k26-dflash.service).
    type: list
    elements: str
    required: true
  replaces:
    description:
      - InvocationID of the start that shall end, by unit. When the answer to an earlier try was lost on its way, a unit that was restarted since
        then is left alone.
    type: dict
    default: {}
  timeout:
    description:
      - Seconds that requests may take to end. With V(0) a server with requests is neither stopped nor restarted, and the task fails before
        it does anything, unless O(force=true).
    type: float
    default: 60
  force:
    description: Abort requests at once.
    type: bool
    default: false
  again:
    description: Whether the answer to an earlier try was lost. Set by the action plugin.
    type: bool
    default: false
  slice:
    description: Seconds after which to answer though there is more to wait for. Set by the action plugin.
    type: float
  resume:
    description: RV(resume) of the slice before. Set by the action plugin.
    type: dict
seealso:
  - module: specdec.serving.sglang_lease
  - module: specdec.serving.sglang_unit
  - name: SGLang's native endpoints
    description: What C(/abort_request) does.
    link: https://docs.sglang.io/basic_usage/native_api.html
"""

EXAMPLES = r"""
---
- name: Stop a server once its requests have ended, after five minutes at the latest
  specdec.serving.sglang_drain:
    units: [sglang-k26-dflash.service]
    timeout: 300
"""

RETURN = r"""
units:
  description: What became of each unit, by its name.
  returned: success
  type: dict
  contains:
    outcome:
      description:
        - V(idle), it had no requests; V(drained), they ended in time; V(aborted); V(not_aborted), they could not be aborted; V(not_asked), it could not be
          asked; V(not_running); V(ended), it ended by itself; V(restarted), it had been restarted already. In check mode also V(waiting), it would
          be waited for.
      type: str
    msg:
      description: The same in a sentence, with numbers.
      type: str
      sample: its 3 requests ended within 12.3 s
    requests:
      description: How many it had at first; V(null) when it could not be asked.
      type: int
    requests_left:
      description: How many it had last.
      type: int
    aborted:
      description: How many were aborted.
      type: int
    connections:
      description: Open connections of a server that could not be asked; V(null) when they were not looked at.
      type: int
    drained_s:
      description: Seconds that were waited for its requests.
      type: float
    reason:
      description: Why it could not be asked, or its requests not be aborted.
      type: str
    phase:
      description: V(waiting), V(stopping) or V(ended).
      type: str
    changed:
      description: Whether it was, or would be, stopped or restarted.
      type: bool
    active_state:
      description: Its ActiveState.
      type: str
    invocation_id:
      description: Its InvocationID before.
      type: str
elapsed:
  description: Seconds so far.
  returned: success
  type: float
timeout:
  description: Seconds that requests may take.
  returned: success
  type: float
finished:
  description: Whether all is done; V(false) only between slices.
  returned: success
  type: bool
resume:
  description: For the next slice.
  returned: when RV(finished=false)
  type: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._drain import Course, Drain, DrainError, Target
from ansible_collections.specdec.serving.plugins.module_utils._drain_host import SystemMachine
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError, renew
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, check_unit_name

ARGUMENT_SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["checked", "restarted", "stopped"], "default": "stopped"},
    "units": {"type": "list", "elements": "str", "required": True},
    "replaces": {"type": "dict", "default": {}},
    "timeout": {"type": "float", "default": 60},
    "force": {"type": "bool", "default": False},
    "lease": {"type": "str", "default": ""},
    "again": {"type": "bool", "default": False},
    "slice": {"type": "float"},
    "resume": {"type": "dict"},
}

#: s; a line about each server comes at least this often.
_LONGEST_SLICE_S = 15.0


def _diff(course: Course) -> dict[str, str]:
    before = f"{course.unit}: {course.was}, requests: {'?' if course.found is None else course.found}\n"
    return {
        "before": before,
        "after": f"{course.unit}: inactive\n",
        "before_header": course.unit,
        "after_header": course.unit,
    }


def _prospect(params: t.Mapping[str, t.Any]) -> str:
    """What a real run would do about requests."""
    if params["force"]:
        return "A real run would abort them at once"
    if not params["timeout"]:
        return "A real run would fail, since no time is given for them to end"
    return f"A real run would wait up to {params['timeout']:g} s for them, then abort what is left"


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    if not 0 <= params["timeout"] < float("inf"):
        module.fail_json(msg=f"timeout {params['timeout']:g} must be a number of seconds, 0 or more")
    slice_s = None if params["slice"] is None else min(params["slice"], _LONGEST_SLICE_S)
    try:
        replaces = params["replaces"] if params["again"] else {}
        targets = [Target(check_unit_name(unit), str(replaces.get(unit) or "")) for unit in params["units"]]
        drain = Drain(
            targets,
            SystemMachine(params["lease"]),
            verb="restart" if params["state"] == "restarted" else "stop",
            timeout=params["timeout"],
            force=params["force"],
        )
        if params["state"] == "checked":
            courses, finished = drain.check(), True
        elif module.check_mode:
            courses, finished = drain.look(), True
        else:
            renew(params["lease"])
            courses, finished = drain.run(slice_s=slice_s, resume=params["resume"])
    except (DrainError, HangUp, LeaseError, SystemdError) as error:
        module.fail_json(msg=str(error))
    result: dict[str, t.Any] = {
        "changed": any(course.changed for course in courses),
        "elapsed": round(drain.elapsed, 1),
        "finished": finished,
        "timeout": params["timeout"],
        "units": {course.unit: course.report() for course in courses},
    }
    if not finished:
        result["resume"] = drain.resume(courses)
    for course in courses:
        if module.check_mode and course.left:
            module.warn(f"{course.unit} has requests running: {course.left}. {_prospect(params)}")
        elif finished and course.outcome in ("not_asked", "not_aborted", "aborted"):
            module.warn(f"{course.unit}: {course.describe()}")
    if module._diff and params["state"] == "stopped":
        # A restart changes nothing that can be shown.
        result["diff"] = [_diff(course) for course in courses if course.changed]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
