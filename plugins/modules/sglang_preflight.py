#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_preflight
short_description: Check a host before SGLang is deployed on it
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Looks whether everything that a deployment needs is there, and fails with all faults in one message. Changes nothing.
  - Returns what the units need to know about the host.
notes:
  - Checking arguments against the installed SGLang, foreign processes on GPUs, and memory estimates are not part of this release.
extends_documentation_fragment:
  - specdec.serving._attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing.
  diff_mode:
    support: none
    details: Changes nothing.
  idempotent:
    support: full
options:
  version:
    description: SGLang's version. The wheelhouse's lock must list it.
    type: str
    required: true
  python:
    description: Python that makes the virtual environment.
    type: path
    default: /usr/bin/python3
  wheelhouse:
    description: Folder with wheels and C(requirements.lock), or empty.
    type: path
    default: ""
  paths:
    description: Paths that must exist.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The path.
        type: str
        required: true
      what:
        description: What it is, for the message.
        type: str
        required: true
  ports:
    description: Ports that must be free, or held by the unit itself.
    type: list
    elements: dict
    default: []
    suboptions:
      host:
        description: Address that the server is to listen on.
        type: str
        default: 127.0.0.1
      port:
        description: The port.
        type: int
        required: true
      unit:
        description: The unit that may hold it.
        type: str
        required: true
  needs_gpu:
    description: Whether there must be GPUs.
    type: bool
    default: false
  user:
    description: The service user.
    type: str
    default: sglang
  root:
    description: Folder that holds C(engines).
    type: path
    default: /opt/specdec
"""

EXAMPLES = r"""
---
- name: Check the host
  specdec.serving.sglang_preflight:
    version: 0.5.23
    wheelhouse: /srv/wheelhouse
    paths:
      - path: /models/Kimi-K2.6
        what: model
    ports:
      - port: 30001
        unit: sglang-k26-dflash.service
"""

RETURN = r"""
errors:
  description: What forbids the deployment; the message of the failed task holds them all.
  returned: always
  type: list
  elements: str
facts:
  description: What was found, for P(specdec.serving.sglang_instances#filter).
  returned: always
  type: dict
  contains:
    gpus:
      description: One entry per GPU as nvidia-smi shows it, with its NUMA node.
      type: list
      elements: dict
      returned: always
    driver_version:
      description: Version of the GPU driver, or empty.
      type: str
      returned: always
    numa_nodes:
      description: The host's NUMA nodes.
      type: list
      elements: int
      returned: always
    gpu_services:
      description: Which of nvidia-persistenced and nvidia-fabricmanager are installed.
      type: list
      elements: str
      returned: always
    systemd_version:
      description: Version of systemd.
      type: int
      returned: always
    credentials:
      description: Whether systemd can pass credentials to a unit.
      type: bool
      returned: always
    python_version:
      description: Version of O(python).
      type: str
      returned: always
    engines:
      description: Names of the engines that are completely installed.
      type: list
      elements: str
      returned: always
    user_exists:
      description: Whether O(user) exists.
      type: bool
      returned: always
    lock_sha256:
      description: SHA-256 of the wheelhouse's lock.
      type: str
      returned: with a wheelhouse
    lock_version:
      description: Version of SGLang in the lock.
      type: str
      returned: with a wheelhouse
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._preflight import (
    HostView,
    PathCheck,
    PortCheck,
    PreflightRequest,
    preflight,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner

ARGUMENT_SPEC: dict[str, t.Any] = {
    "version": {"type": "str", "required": True},
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "wheelhouse": {"type": "path", "default": ""},
    "paths": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"path": {"type": "str", "required": True}, "what": {"type": "str", "required": True}},
    },
    "ports": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "unit": {"type": "str", "required": True},
        },
    },
    "needs_gpu": {"type": "bool", "default": False},
    "user": {"type": "str", "default": "sglang"},
    "root": {"type": "path", "default": "/opt/specdec"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    request = PreflightRequest(
        version=params["version"],
        python=params["python"],
        wheelhouse=params["wheelhouse"],
        paths=tuple(PathCheck(**item) for item in params["paths"]),
        ports=tuple(PortCheck(**item) for item in params["ports"]),
        needs_gpu=params["needs_gpu"],
        user=params["user"],
        root=params["root"],
    )
    result = preflight(request, HostView(runner=command_runner(timeout=60)))
    for warning in result.warnings:
        module.warn(warning)
    if result.errors:
        lines = ["this host is not fit for the deployment; nothing was changed:", *(f"- {e}" for e in result.errors)]
        module.fail_json(msg="\n".join(lines), errors=result.errors, facts=result.facts)
    module.exit_json(changed=False, errors=[], facts=result.facts)


if __name__ == "__main__":
    main()
