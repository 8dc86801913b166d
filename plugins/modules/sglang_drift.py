#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_drift
short_description: Tell where SGLang instances differ from what was asked
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Compares each instance, value by value and layer by layer, with the inventory. First the files on the host (unit, environment, keys, engine,
    start at boot), then drop-ins beside the unit file, then the running process (command line and environment of its invocation), then what
    its server made of its arguments.
  - A difference is told once, where it arises. Nothing on the host is changed.
  - Made for P(specdec.serving.sglang#role), whose C(status) tasks use it.
notes:
  - No value of a secret is in the result. A key or variable that differs is V((another secret\)).
  - Without root the environment of another user's process cannot be read. The process is not compared then.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._units.folders
  - specdec.serving._units.config
  - specdec.serving._units.instances
attributes:
  check_mode:
    support: full
    details: Changes nothing.
  diff_mode:
    support: none
    details: Changes nothing that could be shown.
  idempotent:
    support: full
seealso:
  - module: specdec.serving.sglang_unit
options:
  servers:
    description: What was asked of the servers, and what they say of themselves. Without it they are not compared.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      settings:
        description: SGLang's arguments, as O(specdec.serving.sglang_ready#module:settings).
        type: dict
        default: {}
      model_path:
        description: Path of the model.
        type: str
        default: ""
      served_model_name:
        description: Id under which the model is served.
        type: str
        default: ""
      server:
        description: RV(specdec.serving.sglang_ready#module:server) of that module's result. Empty where the server did not answer.
        type: dict
        default: {}
"""

EXAMPLES = r"""
---
- name: Compare an instance with the inventory
  specdec.serving.sglang_drift:
    units:
      - name: k26-dflash
        unit: sglang-k26-dflash.service
        content: "{{ lookup('ansible.builtin.template', 'sglang.service.j2') }}"
        environment_file: /etc/specdec/sglang/k26-dflash.5123732a8681.env
        environment_text: |
          HOME="/var/cache/specdec/sglang"
  register: drift

- name: Fail unless it is as asked
  ansible.builtin.assert:
    that: drift.instances[0].drift == []
"""

RETURN = r"""
instances:
  description: One entry per instance, in the order of O(units).
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the instance.
      type: str
      returned: always
    drift:
      description: What differs. Empty when the instance is as asked.
      type: list
      elements: dict
      returned: always
      contains:
        where:
          description:
            - Where the difference arises. V(engine), V(unit), V(environment), V(credential), V(boot) and V(folder) are files on the host
              against the inventory. V(systemd) is what systemd has read against its files.
            - V(drop_in) is a drop-in of the user's own against the unit file, V(trial) that of M(specdec.serving.sglang_trial_unit).
            - V(process) is the running process against its files. V(server) is the running server against the inventory.
          type: str
          returned: always
        name:
          description: SGLang's name of an argument, name of a variable, systemd's name of a setting, or a path.
          type: str
          returned: always
        asked:
          description: The value of the layer above. Null where it has none; V(true) for an argument without a value.
          type: raw
          returned: always
        found:
          description: The value that was found, in the same way.
          type: raw
          returned: always
        needs:
          description:
            - What puts it right. V(nothing) where neither does, since the engine decided so by itself, or a drop-in does.
          type: str
          returned: always
          choices: [deploy, restart, nothing]
        path:
          description: The drop-in, or empty.
          type: str
          returned: always
  sample:
    - name: k26-dflash
      drift:
        - where: unit
          name: mem_fraction_static
          asked: "0.85"
          found: "0.9"
          needs: deploy
          path: ""
"""

import dataclasses
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._drift import Asked, Server, compare
from ansible_collections.specdec.serving.plugins.module_utils._drift_host import look
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import QuotingError
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import UnitError
from ansible_collections.specdec.serving.plugins.module_utils._unit_options import (
    CONFIG,
    FOLDERS,
    INSTANCES,
    instances_from,
    layout_from,
)

ARGUMENT_SPEC: dict[str, t.Any] = {
    "servers": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "settings": {"type": "dict", "default": {}},
            "model_path": {"type": "str", "default": ""},
            "served_model_name": {"type": "str", "default": ""},
            "server": {"type": "dict", "default": {}},
        },
    },
    **INSTANCES,
    **FOLDERS,
    **CONFIG,
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    servers = {
        entry["name"]: Server(**{name: value for name, value in entry.items() if name != "name"})
        for entry in params["servers"]
    }
    layout, runner = layout_from(params), command_runner()
    found = []
    try:
        for instance in instances_from(params):
            asked = Asked(
                instance=instance,
                config_dir=params["config_dir"],
                secrets=params["secrets"].get(instance.name) or {},
                enabled=params["enabled"],
                server=servers.get(instance.name, Server()),
            )
            drift = compare(asked, look(asked, layout, runner))
            found.append({"name": instance.name, "drift": [dataclasses.asdict(deviation) for deviation in drift]})
    except (OSError, QuotingError, SystemdError, UnitError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, instances=found)


if __name__ == "__main__":
    main()
