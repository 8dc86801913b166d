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
  - An environment file is named by the hash of its content, so that one rename of the unit file switches both.
  - Nothing is started. RV(units) tells which units must be restarted so that what runs is what is written. That is remembered on the
    host, so that a run that was interrupted between the change and the restart heals itself.
  - Made for P(specdec.serving.sglang#role), which renders the texts.
extends_documentation_fragment:
  - specdec.serving._attributes
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
      - V(present) writes the files. V(stopped) stops the units and leaves the files. V(absent) stops the units and removes their files;
        engines, caches and the service user stay.
    type: str
    choices: [absent, present, stopped]
    default: present
  units:
    description: The instances.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      unit:
        description: Name of the unit, such as V(sglang-k26-dflash.service).
        type: str
        required: true
      content:
        description: Text of the unit file. Required with O(state=present).
        type: str
        default: ""
      environment_file:
        description: Path of the environment file, named by the hash of its content. Required with O(state=present).
        type: path
        default: ""
      environment_text:
        description: Text of the environment file.
        type: str
        default: ""
      secret_environment_file:
        description: Path of a second environment file, for the variables in O(secrets).
        type: path
        default: ""
      credential:
        description: Path of the YAML file that holds the server's keys.
        type: path
        default: ""
      credential_by_systemd:
        description: Whether systemd passes the credential (LoadCredential=), or the service user reads the file itself.
        type: bool
        default: true
      engine:
        description: Path of the engine that the unit runs.
        type: path
        default: ""
  secrets:
    description:
      - Instance name to C(config) (key names to keys) and C(environment) (variables). Never logged and in no result.
    type: dict
    default: {}
  user:
    description: User that owns the cache folders.
    type: str
    default: sglang
  unit_dir:
    description: Folder of the unit files.
    type: path
    default: /etc/systemd/system
  config_dir:
    description: Folder of the environment files and credentials.
    type: path
    default: /etc/specdec/sglang
  state_dir:
    description: Folder of the records.
    type: path
    default: /var/lib/specdec/sglang
  cache_dirs:
    description: Folders that the server writes to, parents first.
    type: list
    elements: path
    default: []
  enabled:
    description: Whether the units start at boot.
    type: bool
    default: true
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
        credential: /etc/specdec/sglang/credentials/k26-dflash.yaml
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

import pwd
import shutil
import tempfile
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, check_unit_name
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import QuotingError
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import (
    Instance,
    Layout,
    UnitError,
    UnitReport,
    apply_present,
    remove,
    stop,
)

ARGUMENT_SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["absent", "present", "stopped"], "default": "present"},
    "units": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "unit": {"type": "str", "required": True},
            "content": {"type": "str", "default": ""},
            "environment_file": {"type": "path", "default": ""},
            "environment_text": {"type": "str", "default": ""},
            "secret_environment_file": {"type": "path", "default": ""},
            "credential": {"type": "path", "default": ""},
            "credential_by_systemd": {"type": "bool", "default": True},
            "engine": {"type": "path", "default": ""},
        },
    },
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "user": {"type": "str", "default": "sglang"},
    "unit_dir": {"type": "path", "default": "/etc/systemd/system"},
    "config_dir": {"type": "path", "default": "/etc/specdec/sglang"},
    "state_dir": {"type": "path", "default": "/var/lib/specdec/sglang"},
    "cache_dirs": {"type": "list", "elements": "path", "default": []},
    "enabled": {"type": "bool", "default": True},
}


def _ids(module: AnsibleModule, user: str) -> tuple[int | None, int | None]:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        if not module.check_mode:
            module.fail_json(msg=f"user {user!r} does not exist on this host")
        return None, None
    return entry.pw_uid, entry.pw_gid


def _present(module: AnsibleModule) -> tuple[list[UnitReport], list[str]]:
    params = module.params
    user_id, group_id = _ids(module, params["user"])
    layout = Layout(
        unit_dir=params["unit_dir"],
        config_dir=params["config_dir"],
        state_dir=params["state_dir"],
        cache_dirs=tuple(params["cache_dirs"]),
        user_id=user_id,
        group_id=group_id,
    )
    instances = [Instance(**unit) for unit in params["units"]]
    for instance in instances:
        if not instance.content or not instance.environment_file:
            module.fail_json(msg=f"{instance.name}: state=present needs 'content' and 'environment_file'")
    scratch = tempfile.mkdtemp(prefix="specdec-unit-")
    try:
        return apply_present(
            instances,
            layout,
            params["secrets"],
            command_runner(),
            enabled=params["enabled"],
            check_mode=module.check_mode,
            scratch=scratch,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
        if params["state"] == "present":
            reports, folders = _present(module)
        elif params["state"] == "stopped":
            reports = stop(pairs, command_runner(), check_mode=module.check_mode)
        else:
            layout = Layout(params["unit_dir"], params["config_dir"], params["state_dir"])
            reports = remove(pairs, layout, command_runner(), check_mode=module.check_mode)
    except (OSError, QuotingError, SystemdError, UnitError) as error:
        module.fail_json(msg=str(error))
    result: dict[str, t.Any] = {
        "changed": bool(folders) or any(report.changed for report in reports),
        "folders": folders,
        "restart_needed": [report.name for report in reports if report.restart_needed],
        "units": {
            report.name: {
                "active_state": report.active_state,
                "changed": report.changed,
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
