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
  - Looks whether everything that a deployment needs is there, and fails with all faults in one message. Nothing on the host is changed.
  - With O(instances), holds every argument against the command line that the installed SGLang really takes, knows which arguments do not go
    together, and estimates the memory of each GPU, so that what SGLang would refuse after minutes is told in a second.
  - Returns what the units need to know about the host.
notes:
  - Asking an engine for its parser takes seconds, because that imports SGLang. The answer is kept beside the engine's folder
    (C(engines/.NAME.parser.json)), which is all that is ever written, and not in check mode.
  - An engine that is not installed yet cannot be asked. Then names are read from the wheel in O(wheelhouse), and RV(facts.parser)
    says C(wheel); without a wheelhouse nothing is known but which arguments do not go together.
  - Processes on GPUs are named, and never ended.
  - Memory is an estimate. What it takes for granted is listed in it.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._units.folders
attributes:
  check_mode:
    support: full
    details: Changes nothing, and does not keep what an engine told.
  diff_mode:
    support: none
    details: Changes nothing that could be shown.
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
      may_be_empty:
        description: Whether it may be an empty folder.
        type: bool
        default: false
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
      what:
        description: The argument that it comes from, for the message.
        type: str
        default: port
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
  hardening:
    description:
      - Settings of the units' sandbox, as C(NAME=VALUE) of C(systemd.exec(5)). They are tried by a transient unit that shows its own
        state and ends. RV(facts.hardening_refused) tells which of them do not work here.
      - Nothing is tried without root.
    type: list
    elements: str
    default: []
  engine:
    description: Folder of the engine that O(instances) run in. With O(wheelhouse), its lock names the engine instead.
    type: path
    default: ""
  prune:
    description:
      - Whether units of P(specdec.serving.sglang#role) that are none of O(instances) will be removed before anything is started. The ports
        and GPUs that they hold count as free then.
    type: bool
    default: false
  instances:
    description:
      - The instances, as P(specdec.serving.sglang_instances#filter) resolves them.
      - No secret belongs here. Keys reach a server by its credential file, of which O(instances[].has_key) tells.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      unit:
        description: Its unit.
        type: str
        required: true
      argv:
        description: The whole command line.
        type: list
        elements: str
        required: true
      origins:
        description: Where each argument comes from, by SGLang's name of it, for messages.
        type: dict
        default: {}
      environment:
        description: Environment of the unit, without secrets.
        type: dict
        default: {}
      gpus:
        description: GPUs by number or UUID. Empty means all of the host.
        type: list
        elements: str
        default: []
      model_path:
        description: Folder of the model.
        type: str
        default: ""
      draft_model_path:
        description: Folder of the draft.
        type: str
        default: ""
      cache_dirs:
        description: Folders that the server writes to.
        type: list
        elements: path
        default: []
      has_key:
        description: Whether the instance has an API key or an admin key.
        type: bool
        default: false
      wanted_tokens:
        description:
          - Tokens that the KV cache must hold at once, as concurrency x (input + output) of the largest level to be measured.
          - V(0) is one request of the whole context length.
        type: int
        default: 0
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

- name: Ask whether a configuration would start, without deploying it
  specdec.serving.sglang_preflight:
    version: 0.5.23
    engine: /opt/specdec/engines/0.5.23-0123456789ab
    instances:
      - name: k26-dflash
        unit: sglang-k26-dflash.service
        model_path: /models/Kimi-K2.6
        draft_model_path: /models/Kimi-K2.6-DFlash
        wanted_tokens: 160000
        argv:
          - --model-path
          - /models/Kimi-K2.6
          - --tp-size
          - "8"
          - --speculative-algorithm
          - DFLASH
          - --speculative-draft-model-path
          - /models/Kimi-K2.6-DFlash
  check_mode: true
"""

RETURN = r"""
errors:
  description:
    - What forbids the deployment; the message of the failed task holds them all.
    - Each names the value, where it comes from, and what to do. A word in brackets at its end is the rule that was broken.
  returned: always
  type: list
  elements: str
instances:
  description: The verdict on each of O(instances).
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the instance.
      type: str
      returned: always
    unit:
      description: Its unit.
      type: str
      returned: always
    argv:
      description: The command line that runs, defaults of the role included, secrets masked.
      type: list
      elements: str
      returned: always
    errors:
      description: What is wrong with its arguments and models.
      type: list
      elements: str
      returned: always
    warnings:
      description: What does not forbid the deployment. They are among the warnings of the task, too.
      type: list
      elements: str
      returned: always
    estimate:
      description:
        - GiB per GPU for C(weights_gib), C(draft_gib), what is left as C(kv_cache_gib), and how many tokens fit (C(kv_tokens) of
          C(wanted_tokens)), with C(assumptions). Empty where the weights are not known, without C(card_gib) where the GPU is not.
      type: dict
      returned: always
    checked_in_s:
      description: How long that took, in seconds.
      type: float
      returned: always
facts:
  description: What was found, for P(specdec.serving.sglang_instances#filter).
  returned: always
  type: dict
  contains:
    gpus:
      description: One entry per GPU as nvidia-smi shows it, with its NUMA node and, where an instance wants one, the UUIDs of its MIG devices.
      type: list
      elements: dict
      returned: always
    driver_version:
      description: Version of the GPU driver, or empty.
      type: str
      returned: always
    numa:
      description: The host's NUMA nodes with C(node), C(cpus) (the kernel's list, empty where there are none) and C(memory).
      type: list
      elements: dict
      returned: always
    numa_nodes:
      description: Numbers of those that have processors.
      type: list
      elements: int
      returned: always
    gpu_services:
      description: Which of nvidia-persistenced and nvidia-fabricmanager are installed.
      type: list
      elements: str
      returned: always
    hardening_refused:
      description:
        - Names of settings among O(hardening) that do not work on this host, each with the reason. What surrounds a container decides, and systemd
          passes over some of them without a word.
      type: dict
      returned: always
      sample: {"ProtectProc": "it has no effect here: this kernel, or the container, does not let /proc be mounted anew"}
    nvidia_modprobe:
      description: Path of C(nvidia-modprobe), or empty.
      type: str
      returned: always
    systemd_version:
      description: Version of systemd.
      type: int
      returned: always
    credentials:
      description: Whether systemd can pass credentials to a unit. That is tried with a transient unit.
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
    virtualization:
      description: What systemd-detect-virt says, such as V(none), V(kvm) or V(podman).
      type: str
      returned: always
    leftovers:
      description:
        - Units of the role that are none of O(instances), as M(specdec.serving.sglang_unit_info) tells them in
          RV(specdec.serving.sglang_unit_info#module:units).
      type: list
      elements: dict
      returned: with instances
    parser:
      description:
        - Where the arguments are known from (C(source) is V(engine), V(cache), V(wheel), V(sources) or empty), in C(seconds), how many
          C(arguments) there are, and which C(cuda) the engine is built for.
      type: dict
      returned: with instances
    user_exists:
      description: Whether O(user) exists.
      type: bool
      returned: always
    user_is_system:
      description: Whether O(user) is a system user (an id below 1000), or is not there yet.
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

from ansible_collections.specdec.serving.plugins.module_utils._preflight import preflight
from ansible_collections.specdec.serving.plugins.module_utils._preflight_request import (
    HostView,
    InstanceCheck,
    PathCheck,
    PortCheck,
    PreflightRequest,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._unit_options import FOLDERS

ARGUMENT_SPEC: dict[str, t.Any] = {
    "version": {"type": "str", "required": True},
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "wheelhouse": {"type": "path", "default": ""},
    "paths": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "what": {"type": "str", "required": True},
            "may_be_empty": {"type": "bool", "default": False},
        },
    },
    "ports": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "unit": {"type": "str", "required": True},
            "what": {"type": "str", "default": "port"},
        },
    },
    "needs_gpu": {"type": "bool", "default": False},
    "user": {"type": "str", "default": "sglang"},
    "root": {"type": "path", "default": "/opt/specdec"},
    "hardening": {"type": "list", "elements": "str", "default": []},
    "engine": {"type": "path", "default": ""},
    "prune": {"type": "bool", "default": False},
    **FOLDERS,
    "instances": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "unit": {"type": "str", "required": True},
            "argv": {"type": "list", "elements": "str", "required": True},
            "origins": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "gpus": {"type": "list", "elements": "str", "default": []},
            "model_path": {"type": "str", "default": ""},
            "draft_model_path": {"type": "str", "default": ""},
            "cache_dirs": {"type": "list", "elements": "path", "default": []},
            # Not a key: whether there is one.
            "has_key": {"type": "bool", "default": False, "no_log": False},
            "wanted_tokens": {"type": "int", "default": 0, "no_log": False},
        },
    },
}

_TUPLES = ("argv", "cache_dirs", "gpus")


def _instance(values: dict[str, t.Any]) -> InstanceCheck:
    options: dict[str, t.Any] = {key: tuple(value) if key in _TUPLES else value for key, value in values.items()}
    return InstanceCheck(**options)


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
        engine=params["engine"],
        instances=tuple(_instance(item) for item in params["instances"]),
        hardening=tuple(params["hardening"]),
        keep=not module.check_mode,
        prune=params["prune"],
        unit_dir=params["unit_dir"],
        state_dir=params["state_dir"],
    )
    result = preflight(request, HostView(runner=command_runner(timeout=60)))
    for warning in result.warnings:
        module.warn(warning)
    told: dict[str, t.Any] = {
        "errors": result.errors,
        "facts": result.facts,
        "instances": result.instances,
    }
    if result.errors:
        lines = ["this host is not fit for the deployment; nothing was changed:", *(f"- {e}" for e in result.errors)]
        module.fail_json(msg="\n".join(lines), **told)
    module.exit_json(changed=False, **told)


if __name__ == "__main__":
    main()
