#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_unit
short_description: Write the systemd units of SGLang instances with all their files as one change
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Brings the unit files, environment files and credentials of all instances of a host to what is asked, as one change. Everything is
    checked first, by systemd as well; on any failure everything is put back.
  - A unit file names all that belongs to it by its content, the environment file by a hash, files of secrets by random names of which each
    content has its own. So one rename of the unit file switches everything, and no process ever starts with half of a change. A file that
    neither a unit nor a record of M(specdec.serving.sglang_known_good) names any more is removed.
  - A drop-in beside a unit file, which changes what is written here, is left where it is, and named in a warning.
  - A running process that has other arguments or variables than its files say is to be restarted as well.
  - Nothing is started. RV(units) tells which units must be restarted so that what runs is what is written. That is remembered on the
    host, so that a run that was interrupted between the change and the restart heals itself.
  - Made for P(specdec.serving.sglang#role), which renders the texts.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._lease
  - specdec.serving._units.folders
  - specdec.serving._units.config
  - specdec.serving._units.instances
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Secrets are never shown, only that they changed.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) writes the files. V(stopped) stops the units and leaves the files. V(absent) stops the units and removes their files
        and their known-good records; engines, caches and the service user stay.
    type: str
    choices: [absent, present, stopped]
    default: present
"""

EXAMPLES = r"""
---
- name: Write the unit of an instance
  specdec.serving.sglang_unit:
    units:
      - name: k26-dflash
        unit: sglang-k26-dflash.service
        content: "{{ lookup('ansible.builtin.template', 'sglang.service.j2') }}"
        environment_file: /etc/specdec/sglang/k26-dflash.5123732a8681.env
        environment_text: |
          HOME="/var/cache/specdec/sglang"
        credential: /etc/specdec/sglang/credentials/k26-dflash.@SECRET@.yaml
    secrets:
      k26-dflash:
        config:
          api_key: "{{ vault_api_key }}"

- name: Stop it
  specdec.serving.sglang_unit:
    state: stopped
    units:
      - name: k26-dflash
        unit: sglang-k26-dflash.service
"""

RETURN = r"""
units:
  description: One entry per instance, by name.
  returned: always
  type: dict
  contains:
    unit:
      description: The unit.
      type: str
      returned: always
    changed:
      description: Whether its files or its start at boot were changed.
      type: bool
      returned: always
    restart_needed:
      description: Whether it must be (re)started so that what runs is what is written.
      type: bool
      returned: O(state=present)
    invocation_id:
      description: Its InvocationID before a restart, empty when it does not run.
      type: str
      returned: always
    active_state:
      description: Its ActiveState.
      type: str
      returned: always
    generation:
      description:
        - Hash of the unit file, which names everything else by content, 12 hexadecimal digits.
        - Empty in check mode, when a file of secrets has no name yet.
      type: str
      returned: O(state=present)
    known_good:
      description: Whether this generation is the one that was proven ready last, see M(specdec.serving.sglang_known_good).
      type: bool
      returned: O(state=present)
    reasons:
      description: Why it was changed or must be restarted.
      type: list
      elements: str
      returned: always
restart_needed:
  description: Names of the instances that must be restarted, in the order of O(units).
  returned: always
  type: list
  elements: str
folders:
  description: Folders that were made or corrected.
  returned: O(state=present)
  type: list
  elements: str
"""

import shutil
import tempfile
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._drift import Asked
from ansible_collections.specdec.serving.plugins.module_utils._drift_host import look_for_restart
from ansible_collections.specdec.serving.plugins.module_utils._drop_ins import drop_ins_of, show_with_drop_ins
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError, guard
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, check_unit_name
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import QuotingError
from ansible_collections.specdec.serving.plugins.module_utils._trial_unit import end
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import (
    UnitError,
    UnitReport,
    apply_present,
    remove,
    stop,
)
from ansible_collections.specdec.serving.plugins.module_utils._unit_options import (
    CONFIG,
    FOLDERS,
    INSTANCES,
    instances_from,
    layout_from,
)

ARGUMENT_SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["absent", "present", "stopped"], "default": "present"},
    **INSTANCES,
    **FOLDERS,
    **CONFIG,
    "lease": {"type": "str", "default": ""},
}


def _present(module: AnsibleModule) -> tuple[list[UnitReport], list[str]]:
    params = module.params
    layout = layout_from(params)
    if layout.user_id is None and not module.check_mode:
        module.fail_json(
            msg=f"user {params['user']!r} does not exist on this host; the role makes it when it installs (tag sglang_install)"
        )
    instances = instances_from(params)
    scratch = tempfile.mkdtemp(prefix="specdec-unit-")
    runner = command_runner()
    try:
        reports, folders = apply_present(
            instances,
            layout,
            params["secrets"],
            runner,
            enabled=params["enabled"],
            check_mode=module.check_mode,
            scratch=scratch,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for instance, report in zip(instances, reports):
        # Who holds the lease knows that nobody is at work on a trial any more: its run was interrupted.
        if params["lease"] and end(instance.unit, runner, check_mode=module.check_mode).was_active:
            report.changed = report.restart_needed = True
            report.reasons.append("a sweep or a try that was interrupted had left its trial in it")
        state = show_with_drop_ins(runner, instance.unit, layout.unit_dir)
        for warning in (found.warning(instance.unit) for found in drop_ins_of(state, instance.unit, layout.unit_dir)):
            if warning:
                module.warn(warning)
        # A restart that is due already, or files that are not there yet, say nothing of the process.
        asked = Asked(instance, layout.config_dir, params["secrets"].get(instance.name) or {})
        names = [] if report.restart_needed else look_for_restart(asked, state, layout)
        if names:
            report.restart_needed = True
            report.reasons.append(f"it runs with another {', '.join(names)} than its files say")
    return reports, folders


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    for secret in params["secrets"].values():
        # Nested values of a no_log dictionary are masked by Ansible as well; that rests on their being strings.
        if not isinstance(secret, dict):
            module.fail_json(msg="'secrets' must hold one mapping per instance")
    folders: list[str] = []
    try:
        pairs = [(unit["name"], check_unit_name(unit["unit"])) for unit in params["units"]]
        with guard("" if module.check_mode else params["lease"]):
            if params["state"] == "present":
                reports, folders = _present(module)
            elif params["state"] == "stopped":
                reports = stop(pairs, command_runner(), check_mode=module.check_mode)
            else:
                reports = remove(pairs, layout_from(params), command_runner(), check_mode=module.check_mode)
    except (LeaseError, OSError, QuotingError, SystemdError, UnitError) as error:
        module.fail_json(msg=str(error))
    result: dict[str, t.Any] = {
        "changed": bool(folders) or any(report.changed for report in reports),
        "folders": folders,
        "restart_needed": [report.name for report in reports if report.restart_needed],
        "units": {
            report.name: {
                "active_state": report.active_state,
                "changed": report.changed,
                "generation": report.generation,
                "known_good": report.known_good,
                "invocation_id": report.invocation_id,
                "reasons": report.reasons,
                "restart_needed": report.restart_needed,
                "unit": report.unit,
            }
            for report in reports
        },
    }
    if module._diff:
        result["diff"] = [entry for report in reports for entry in report.diff]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
