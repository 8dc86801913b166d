#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_unit_info
short_description: Tell which units of SGLang instances a host has
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Lists the units that P(specdec.serving.sglang#role) wrote on a host, whether the inventory knows them or not, and nothing else.
  - A unit counts when its file begins with the role's line for that very unit, or when only its record in O(state_dir) is left, as after
    a removal that was interrupted.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._units.folders
attributes:
  check_mode:
    support: full
    details: Changes nothing.
  diff_mode:
    support: none
    details: Changes nothing that could be shown.
  idempotent:
    support: full
options:
  without:
    description: Names of units to leave out, such as those that the inventory lists.
    type: list
    elements: str
    default: []
seealso:
  - module: specdec.serving.sglang_unit
"""

EXAMPLES = r"""
---
- name: Look for units that the inventory does not list
  specdec.serving.sglang_unit_info:
    without:
      - sglang-k26-dflash.service
  register: others

- name: Remove them
  specdec.serving.sglang_unit:
    state: absent
    units: "{{ dict(others.units | map(attribute='name') | zip(others.units | map(attribute='unit')))
      | dict2items(key_name='name', value_name='unit') }}"
"""

RETURN = r"""
units:
  description: The units, by name.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the instance.
      type: str
      returned: always
    unit:
      description: The unit.
      type: str
      returned: always
    active_state:
      description: Its ActiveState.
      type: str
      returned: always
    sub_state:
      description: Its SubState.
      type: str
      returned: always
    since:
      description: When it came into that state, in UTC. Empty when it has been in it since boot.
      type: str
      returned: always
      sample: 2026-11-29 22:40:11 UTC
    enabled:
      description: Whether it starts at boot.
      type: bool
      returned: always
    has_unit_file:
      description: Whether its unit file is there, or only other files of it.
      type: bool
      returned: always
    text:
      description: All of that in one line.
      type: str
      returned: always
      sample: "sglang-old.service: active (running) since 2026-11-29 22:40:11 UTC, starts at boot"
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._own_units import find_units
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError
from ansible_collections.specdec.serving.plugins.module_utils._unit_options import FOLDERS

ARGUMENT_SPEC: dict[str, t.Any] = {
    "without": {"type": "list", "elements": "str", "default": []},
    **FOLDERS,
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        units = find_units(command_runner(), **module.params)
    except SystemdError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, units=[unit.as_dict() for unit in units])


if __name__ == "__main__":
    main()
