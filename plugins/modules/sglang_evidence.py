#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_evidence
short_description: Make one archive of the evidence of failed starts from several hosts
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Takes archives that M(specdec.serving.sglang_ready) kept on hosts, and that were fetched to the controller, and makes one archive of them that
    is fit for a bug report. Runs on the controller alone.
  - Each file is searched for the keys in O(secrets), in any spelling. When one is found, no archive is made and the task fails.
  - An archive that is damaged is left out with a warning.
  - Made for the playbook C(specdec.serving.collect).
extends_documentation_fragment:
  - specdec.serving._attributes
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
    details: Changes nothing on a host.
  idempotent:
    support: none
    details: Each run makes another archive.
options:
  source:
    description: Folder on the controller that holds C(HOST/UNIT/*.tar.gz).
    type: path
    required: true
  destination:
    description:
      - Folder for C(sglang-evidence-TIME.tar.gz), relative to where the playbook is run from, or a name that ends in C(.tar.gz).
    type: path
    default: .
  secrets:
    description:
      - Variables of any form, such as the instances of all hosts. Every text of 8 characters or more under a name that looks secret, such as
        C(api_key) or C(HF_TOKEN), is a key.
    type: raw
"""

EXAMPLES = r"""
---
- name: Make one archive
  specdec.serving.sglang_evidence:
    source: /tmp/fetched
    destination: /tmp/report.tar.gz
    secrets: "{{ sglang_instances }}"
"""

RETURN = r"""
path:
  description: The archive, on the controller.
  returned: success
  type: str
  sample: /home/me/sglang-evidence-20260701T101500Z.tar.gz
rows:
  description: What is in it, one entry a failed start.
  returned: success
  type: list
  elements: dict
  contains:
    host:
      description: Name of the host in the inventory.
      type: str
    unit:
      description: The unit.
      type: str
    state:
      description: The state in the verdict.
      type: str
    cause:
      description: The cause in the verdict.
      type: str
    time:
      description: When the verdict was made, in UTC.
      type: str
    archive:
      description: Name of the archive on the host.
      type: str
table:
  description: The same as text, one line a failed start.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "destination": {"type": "path", "default": "."},
            "secrets": {"type": "raw", "no_log": True},
        },
    )
    module.fail_json(msg="specdec.serving.sglang_evidence runs on the controller: its action plugin was not found")


if __name__ == "__main__":
    main()
