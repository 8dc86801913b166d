#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_engine
short_description: Install SGLang as an immutable engine
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Makes a virtual environment and installs SGLang into it, from a wheelhouse on the host or from an index. An engine is never edited; another
    lock is another engine.
  - An engine is complete once it holds C(engine.json), which is written last. What an interrupted installation left is removed and made
    anew. A failed installation leaves nothing behind. Two installations of one engine wait for each other.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._lease
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: An engine is there or it is not; RV(reason) says which.
  idempotent:
    support: full
options:
  path:
    description: Folder of the engine, as P(specdec.serving.sglang_engine#filter) names it.
    type: path
    required: true
  version:
    description: SGLang's version. A local part of the installed one (C(+cpu)) does not count.
    type: str
    required: true
  python:
    description: Python that makes the virtual environment.
    type: path
    default: /usr/bin/python3
  wheelhouse:
    description:
      - Folder on the host with wheels and C(requirements.lock), the complete list of packages. Nothing is fetched then.
      - Without it O(requirements) are installed from an index.
    type: path
    default: ""
  requirements:
    description: What is installed where there is no wheelhouse.
    type: list
    elements: str
    default: []
  index_url:
    description: The index to install from; pip's own default when empty.
    type: str
    default: ""
  keep:
    description: How many complete engines stay, this one included. One that a unit, a process or a known-good record names always stays.
    type: int
    default: 3
  state_dir:
    description: Folder of the records of M(specdec.serving.sglang_known_good).
    type: path
    default: /var/lib/specdec/sglang
"""

EXAMPLES = r"""
---
- name: Install SGLang without a network
  specdec.serving.sglang_engine:
    path: /opt/specdec/engines/0.5.23-0123456789ab
    version: 0.5.23
    wheelhouse: /srv/wheelhouse
"""

RETURN = r"""
path:
  description: Folder of the engine.
  returned: always
  type: str
version:
  description: The version that is installed, or would be.
  returned: always
  type: str
reason:
  description: Why it was, or was not, installed.
  returned: always
  type: str
seconds:
  description: How long the installation took.
  returned: always
  type: float
removed:
  description: Older engines that were, or would be, removed.
  returned: always
  type: list
  elements: str
"""

import dataclasses
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._engine import (
    EngineError,
    EngineRequest,
    ensure_engine,
    pip_environment,
)
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError, guard
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner

ARGUMENT_SPEC: dict[str, t.Any] = {
    "path": {"type": "path", "required": True},
    "version": {"type": "str", "required": True},
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "wheelhouse": {"type": "path", "default": ""},
    "requirements": {"type": "list", "elements": "str", "default": []},
    "index_url": {"type": "str", "default": ""},
    "keep": {"type": "int", "default": 3},
    "state_dir": {"type": "path", "default": "/var/lib/specdec/sglang"},
    "lease": {"type": "str", "default": ""},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    if not params["wheelhouse"] and not params["requirements"]:
        module.fail_json(msg="give 'wheelhouse', or 'requirements' to install from an index")
    lease = params.pop("lease")
    request = EngineRequest(**{**params, "requirements": tuple(params["requirements"])})
    runner = command_runner(timeout=None, **pip_environment(request))
    try:
        with guard("" if module.check_mode else lease):
            result = ensure_engine(request, runner, check_mode=module.check_mode)
    except LeaseError as error:
        module.fail_json(msg=str(error))
    except (EngineError, OSError) as error:
        module.fail_json(msg=f"engine {request.path}: {error}")
    module.exit_json(**dataclasses.asdict(result))


if __name__ == "__main__":
    main()
