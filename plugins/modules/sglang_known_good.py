#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_known_good
short_description: Keep configurations of SGLang instances that were proven ready, and put them back
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - A I(generation) is the hash of a unit file, which names everything else by its content (see M(specdec.serving.sglang_unit)). A record of one
    holds the texts of unit and environment, the names of its files of secrets (not what is in them), the engine, what the model folders
    held, the verdict, and the options of M(specdec.serving.sglang_ready) that prove it again.
  - What a record names stays on the host, so that a configuration that was ready once can be put back as it was, with its keys and its engine.
  - Nothing is started or restarted here. Made for P(specdec.serving.sglang#role).
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._lease
  - specdec.serving._units.folders
  - specdec.serving._units.config
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: For O(state=put_back). Secrets are never shown.
  idempotent:
    support: partial
    details: "O(state=kept) notes each proof; the role asks for it only when something else was proven last."
options:
  state:
    description:
      - V(kept) keeps what is installed as proven ready. V(listed) tells what is kept. V(put_back) installs a kept generation, all instances as
        one change.
    type: str
    choices: [kept, listed, put_back]
    default: listed
  instances:
    description: What was proven. Used with O(state=kept).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      generation:
        description: The generation, from M(specdec.serving.sglang_unit). Nothing is kept when another one is installed by now.
        type: str
        required: true
      invocation_id:
        description: InvocationID of the verdict. Nothing is kept when the unit was started anew since.
        type: str
        required: true
      at:
        description: When the verdict was made, seconds since the epoch on the host's clock.
        type: float
        required: true
      elapsed:
        description: Seconds that the start took.
        type: float
        default: 0
      models:
        description: Model folders whose files (names, sizes, hash of the index) are noted.
        type: list
        elements: str
        default: []
      check:
        description:
          - Options of M(specdec.serving.sglang_ready) that prove it again. No secret belongs here; the key is read from its file.
        type: dict
        default: {}
  names:
    description:
      - Names of the instances to list or to put back; all that have records when empty.
      - Of V(NAME@0) and its like, V(NAME) means all that have records.
    type: list
    elements: str
    default: []
  generation:
    description: Which generation to put back. By default the last one proven that is not installed.
    type: str
    default: ""
  only_unproven:
    description: Leave instances alone whose installed generation is the one that was proven last, since another one would not cure them.
    type: bool
    default: false
  kill:
    description:
      - Names of instances whose processes are killed (SIGKILL) once the kept files are in place. A server that hangs does not answer SIGTERM, and
        would be waited for until its stop timeout.
    type: list
    elements: str
    default: []
  keep:
    description: How many generations are kept for each instance; the installed one counts. V(0) keeps none.
    type: int
    default: 3
  state_dir:
    description: Folder of the records; they lie in C(known-good/NAME/GENERATION.json) below it, and only root reads them.
    type: path
    default: /var/lib/specdec/sglang
"""

EXAMPLES = r"""
---
- name: See what is kept
  specdec.serving.sglang_known_good:
    state: listed
  register: kept

- name: Put the one before back
  specdec.serving.sglang_known_good:
    state: put_back
    names: [k26-dflash]
  register: back

- name: Restart it
  ansible.builtin.systemd_service:
    name: sglang-k26-dflash.service
    state: restarted
    no_block: true
  when: "'k26-dflash' in back.restart_needed"
"""

RETURN = r"""
instances:
  description: One entry per instance, by name.
  returned: always
  type: dict
  contains:
    unit:
      description: The unit.
      type: str
      returned: always
    installed:
      description: Generation of the unit file that is installed; empty without one.
      type: str
      returned: always
    asked:
      description: Generation that a deployment asked for last; empty when that is not known.
      type: str
      returned: always
    rolled_back_at:
      description: Since when something else than RV(instances.asked) is installed because it was put back, seconds since the epoch; 0 when it was not.
      type: float
      returned: always
    generations:
      description: What is kept, the last one proven first.
      type: list
      elements: dict
      returned: always
      contains:
        generation:
          description: The generation.
          type: str
        at:
          description: When it was proven last, seconds since the epoch.
          type: float
        elapsed:
          description: Seconds that its start took.
          type: float
        engine:
          description: Path of its engine.
          type: str
        models:
          description: Paths of its models.
          type: list
          elements: str
        port:
          description: Port that it listens on.
          type: int
        settings:
          description: The server's arguments, as M(specdec.serving.sglang_ready) compares them.
          type: dict
        installed:
          description: Whether it is installed now.
          type: bool
        problem:
          description: Why it cannot be put back; empty when it can.
          type: str
    kept:
      description: Whether the generation was, or would be, kept.
      type: bool
      returned: O(state=kept)
    reason:
      description: Why it was not kept, or not put back; empty when it was.
      type: str
      returned: O(state=kept) or O(state=put_back)
    put_back:
      description: Generation that was, or would be, put back; empty when there is none to be put back.
      type: str
      returned: O(state=put_back)
    proven_at:
      description: When that one was proven, seconds since the epoch.
      type: float
      returned: O(state=put_back)
    check:
      description: Options of M(specdec.serving.sglang_ready) that prove it again, C(replaces) and C(api_key_file) among them.
      type: dict
      returned: O(state=put_back)
    model_changes:
      description: How its model folders differ from what they held when it was proven.
      type: list
      elements: str
      returned: O(state=put_back)
put_back:
  description: Names of the instances of which something was put back.
  returned: O(state=put_back)
  type: list
  elements: str
restart_needed:
  description: Names of those that must be restarted.
  returned: O(state=put_back)
  type: list
  elements: str
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._known_good import unusable_records
from ansible_collections.specdec.serving.plugins.module_utils._known_good_changes import (
    KnownGoodError,
    Proven,
    keep_proven,
    listed,
    put_back_kept,
)
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError, guard
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import UnitError
from ansible_collections.specdec.serving.plugins.module_utils._unit_options import CONFIG, FOLDERS, layout_from

ARGUMENT_SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["kept", "listed", "put_back"], "default": "listed"},
    "instances": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "generation": {"type": "str", "required": True},
            "invocation_id": {"type": "str", "required": True},
            "at": {"type": "float", "required": True},
            "elapsed": {"type": "float", "default": 0},
            "models": {"type": "list", "elements": "str", "default": []},
            "check": {"type": "dict", "default": {}},
        },
    },
    "names": {"type": "list", "elements": "str", "default": []},
    "generation": {"type": "str", "default": ""},
    "only_unproven": {"type": "bool", "default": False},
    "kill": {"type": "list", "elements": "str", "default": []},
    "keep": {"type": "int", "default": 3},
    "lease": {"type": "str", "default": ""},
    **FOLDERS,
    **CONFIG,
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    layout = layout_from(params)
    runner = command_runner()
    result: dict[str, t.Any]
    try:
        with guard("" if module.check_mode or params["state"] == "listed" else params["lease"]):
            if params["state"] == "kept":
                proven = [Proven(**{**item, "models": tuple(item["models"])}) for item in params["instances"]]
                result = keep_proven(proven, layout, runner, most=params["keep"], check_mode=module.check_mode)
            elif params["state"] == "listed":
                result = {"changed": False, "instances": listed(layout, params["names"])}
            else:
                result = put_back_kept(
                    params["names"],
                    layout,
                    runner,
                    generation=params["generation"],
                    only_unproven=params["only_unproven"],
                    kill=params["kill"],
                    now=time.time(),
                    check_mode=module.check_mode,
                )
    except (KnownGoodError, LeaseError, OSError, SystemdError, UnitError) as error:
        module.fail_json(msg=str(error))
    for text in unusable_records(params["state_dir"], result["instances"]):
        module.warn(text)
    diff = result.pop("diff", [])
    if module._diff and diff:
        result["diff"] = diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
