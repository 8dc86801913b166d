#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_lease
short_description: Let one run of Ansible at a time work on a host that serves models
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Takes, frees or shows the lease of a host. There is one for each host. Whoever changes, measures or stops what the host serves holds it, so that
    two playbooks never work against each other.
  - The owner is the run of Ansible. A run that holds the lease takes part in it when it asks again, under another purpose for example, and
    frees it as often as it took it.
  - It expires O(ttl) seconds after it was last taken, renewed by another module of this collection that was given its token (O(token)), or used for
    a change. Whether a run on this same controller lives is seen from its process instead, so one that was killed stands in nobody's way, and
    one that lives keeps its lease. By O(force) it can be taken at any time.
  - Nobody takes a lease over while a module that was given its token changes the host. A run that lost it fails before its next change.
  - The record lies in C(/run), so that neither a full disk nor a read-only one keeps anybody from putting things right. A run that held the
    lease before the host was restarted still holds it, unless another one took it since.
extends_documentation_fragment:
  - specdec.serving._attributes
attributes:
  check_mode:
    support: full
    details: Takes and frees nothing, and warns of a lease that another run holds.
  diff_mode:
    support: none
    details: Changes no configuration.
  idempotent:
    support: full
    details: A lease is no part of the configuration, and never reported as a change.
options:
  state:
    description: V(held) takes the lease, V(free) gives it back, V(shown) only looks.
    type: str
    choices: [free, held, shown]
    default: held
  purpose:
    description: What it is taken for, for those who find it taken, such as V(deploy) or V(benchmark).
    type: str
    default: change
  token:
    description:
      - RV(token) of an earlier task of this run, or empty. With O(state=held) the task fails if that lease was taken over since. With
        O(state=free) it is required; a lease that is another's by now is left alone.
    type: str
    default: ""
  wait:
    description: Seconds to wait for a lease that another run holds.
    type: float
    default: 0
  ttl:
    description: Seconds after which the lease may be taken from a run that does not renew it.
    type: float
    default: 900
  force:
    description: Take the lease from whoever holds it. That run then fails before its next change.
    type: bool
    default: false
  owner:
    description: The run that asks. Set by the action plugin.
    type: dict
    default: {}
  gone:
    description: Token of a lease whose run is known to have ended. Set by the action plugin.
    type: str
    default: ""
  path:
    description: Where the record lies.
    type: path
    default: /run/specdec/sglang/lease.json
seealso:
  - module: specdec.serving.sglang_unit
"""

EXAMPLES = r"""
---
- name: Measure, with nobody else at work on the host
  block:
    - name: Take the lease
      specdec.serving.sglang_lease:
        purpose: benchmark
        wait: 600
      register: lease

    - name: Measure
      ansible.builtin.command: /usr/local/bin/measure
      changed_when: false
  always:
    - name: Give it back
      specdec.serving.sglang_lease:
        state: free
        token: "{{ lease.token }}"
      when: lease.token | default('') | length > 0

- name: Who works on the host?
  specdec.serving.sglang_lease:
    state: shown
"""

RETURN = r"""
token:
  description: Names the lease that this run holds; empty when it holds none (any more).
  returned: success
  type: str
  sample: 4f1c2a9be07d5512.17
new:
  description: Whether this task took the lease, and the run did not hold it before.
  returned: O(state=held)
  type: bool
holder:
  description: Who holds the lease, for what, since when and until when, in words. Empty when nobody does.
  returned: always
  type: str
  sample: >-
    alice@control (ansible-playbook with pid 4242, play 'Deploy SGLang'), for deploy, since 2026-11-29 22:10:03 UTC (312 s ago),
    renewed 12 s ago; it expires in 888 s unless it is renewed
lease:
  description: The lease that is held now, empty when there is none.
  returned: always
  type: dict
  contains:
    owner:
      description: The run, C(host), C(user), C(pid), C(play) and what else identifies it.
      type: dict
    purposes:
      description: What it was taken for, the outermost first.
      type: list
      elements: str
    since:
      description: When it was taken.
      type: str
    age_s:
      description: Seconds since then.
      type: float
    expires_in_s:
      description: Seconds until it expires if it is not renewed.
      type: float
    expired:
      description: Whether it has.
      type: bool
    token:
      description: Its token.
      type: str
ended:
  description: Whether the run that holds it is known to have ended, since it was of this controller. The next run takes the lease then.
  returned: O(state=shown)
  type: bool
held_by_other:
  description: Whether another run holds it.
  returned: O(state=held)
  type: bool
busy:
  description: Whether a task of that run is changing the host at this moment.
  returned: O(state=held)
  type: bool
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._lease import (
    DEFAULT_TTL_S,
    PATH,
    Lease,
    LeaseError,
    LeaseFile,
    LeaseHeld,
    Owner,
)

ARGUMENT_SPEC: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["free", "held", "shown"], "default": "held"},
    "purpose": {"type": "str", "default": "change"},
    # Not a secret: it keeps nobody out who can change the host.
    "token": {"type": "str", "default": "", "no_log": False},
    "wait": {"type": "float", "default": 0},
    "ttl": {"type": "float", "default": DEFAULT_TTL_S},
    "force": {"type": "bool", "default": False},
    "owner": {"type": "dict", "default": {}},
    "gone": {"type": "str", "default": ""},
    "path": {"type": "path", "default": PATH},
}

_REFUSED = (
    "another run holds the lease of this host: {holder}. Nothing was changed. Wait for it (sglang_lease_wait: SECONDS), or take it over"
    " (sglang_lease_force: true): that run then fails before its next change"
)


def _shown(file: LeaseFile, lease: Lease | None) -> dict[str, t.Any]:
    if lease is None or not lease.held:
        return {"holder": "", "lease": {}}
    return {"holder": lease.describe(file.clock), "lease": lease.report(file.clock)}


def _hold(module: AnsibleModule, file: LeaseFile) -> dict[str, t.Any]:
    params = module.params
    owner = Owner(**params["owner"])
    try:
        if module.check_mode:
            lease = file.read()
            other = lease is not None and lease.held and lease.owner.id != owner.id
            result = {"token": "", "new": False, "held_by_other": other, "busy": False, **_shown(file, lease)}
            if (
                lease is not None
                and other
                and not file.may_take(lease, owner, force=params["force"], gone=params["gone"])
            ):
                module.warn(
                    _REFUSED.format(holder=result["holder"]).replace("Nothing was changed", "A real run would fail")
                )
            return result
        taken = file.take(
            owner,
            params["purpose"],
            ttl=params["ttl"],
            token=params["token"],
            force=params["force"],
            gone=params["gone"],
        )
    except LeaseHeld as error:
        result = _shown(file, error.lease)
        module.fail_json(
            msg=_REFUSED.format(holder=error),
            held_by_other=True,
            busy=error.busy,
            holder=str(error),
            lease=result["lease"],
        )
    if taken.taken_from is not None:
        module.warn(f"took the lease of {taken.taken_from.who(file.clock)}, since {taken.why}")
    return {
        "token": taken.lease.token,
        "new": taken.new,
        "held_by_other": False,
        "busy": False,
        **_shown(file, taken.lease),
    }


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    file = LeaseFile(params["path"])
    if params["ttl"] <= 0:
        module.fail_json(msg=f"ttl {params['ttl']:g} must be above 0 seconds")
    if params["state"] == "held" and not params["owner"].get("id"):
        module.fail_json(msg="owner is missing: specdec.serving.sglang_lease runs through its action plugin")
    try:
        if params["state"] == "held":
            result = _hold(module, file)
        elif params["state"] == "free":
            if not params["token"]:
                module.fail_json(msg="state=free needs the token that state=held returned")
            left = None if module.check_mode else file.free(params["token"])
            result = {"token": "" if left is None else left.token, **_shown(file, left)}
        else:
            result = {"token": "", **_shown(file, file.read())}
    except LeaseError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
