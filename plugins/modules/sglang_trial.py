#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_trial
short_description: Plan, claim and end the trials of a configuration sweep
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Brings a sweep file, an instance of the inventory and an Optuna study together. It runs on the controller only and touches no host; what a
    trial does to a host is the work of P(specdec.serving.sglang#role).
  - Several hosts and several controllers may share a study. A trial is claimed by one run of Ansible and ended once. What a killed run
    left is claimed by the next one, at once on the same controller, else a minute after the host has given it up (O(hold)).
  - Each host measures the baseline, the instance as it is, itself. A host of another kind, or with another instance, is refused.
  - Trials that would run the same configuration run once. Finished ones are not redone; failed ones only on request (O(again)).
requirements:
  - optuna (on the controller)
  - psycopg (on the controller, where O(storage) is a database)
  - jsonschema (on the controller)
extends_documentation_fragment:
  - specdec.serving._attributes
attributes:
  check_mode:
    support: partial
    details: Shows what the sweep file asks for. The study is not opened, so what it has already is not known; nothing is claimed or ended.
  diff_mode:
    support: none
    details: Changes no configuration.
  idempotent:
    support: partial
    details: Claims another trial each time.
options:
  state:
    description:
      - V(planned) puts the trials of the sweep file into the study. V(claimed) takes the next one. V(renewed) keeps it, V(released) gives it
        back unmeasured, V(finished) ends it. V(shown) tells everything that is known, with the winner.
    type: str
    choices: [claimed, finished, planned, released, renewed, shown]
    default: shown
  sweep:
    description: Path of the sweep file on the controller, or a mapping of what would stand in one.
    type: raw
    required: true
  storage:
    description:
      - Where the study is kept, a path on the controller (Optuna's JournalStorage) or a C(postgresql://) URL for several controllers.
      - SQLite is refused, since two processes can claim the same trial there.
      - The password of a URL is masked in whatever is told. It need not stand there, since C(PGPASSWORD) and C(~/.pgpass) are heeded.
    type: str
    required: true
  study:
    description: Name of the study. By default that of the sweep file.
    type: str
  instances:
    description: The entries of C(sglang_instances), without their keys. The sweep file names one of them.
    type: list
    elements: dict
    required: true
  resolve:
    description: The other options of the filter P(specdec.serving.sglang_instances#filter), by which it is known what a trial would run.
    type: dict
    default: {}
  platform:
    description: What all trials of the study must share, such as the kind of the host. A study with other values is refused.
    type: dict
    default: {}
  engine:
    description: What else a trial's identity depends on, such as hashes of engine and models. All hosts of a study share it.
    type: dict
    default: {}
  hold:
    description: Seconds after which a host gives up a trial that nobody renewed; longer than any step of one. A claim lasts a minute longer.
    type: float
    default: 1800
  began:
    description:
      - When this sweep began, seconds since 1970. The budget's hours count from then, and so does the time of its first trial.
    type: float
  ended:
    description:
      - Why the sweep is over, as RV(over) of an earlier claim said for good. With O(state=claimed) nothing is claimed then.
    type: str
  again:
    description: Which failed trials are planned once more, by number or cause, or V(failed) for all.
    type: list
    elements: str
    default: []
  results_dir:
    description: Folder of the records on the controller. Nothing is planned where it takes none. Used with O(state=planned).
    type: path
  number:
    description: The trial. Required with V(renewed), V(released) and V(finished) of O(state).
    type: int
  benchmarks:
    description: Workload to the result of M(specdec.serving.sglang_benchmark). Used with O(state=finished).
    type: dict
    default: {}
  evaluation:
    description: Result of M(specdec.serving.sglang_evaluate). Used with O(state=finished).
    type: dict
    default: {}
  failure:
    description: C(cause), C(summary), C(remedy) and C(evidence) of a trial that failed. Used with O(state=finished).
    type: dict
    default: {}
  details:
    description: What else is kept of a trial, such as C(times) (phase to seconds) and C(records) (paths). Used with O(state=finished).
    type: dict
    default: {}
"""

EXAMPLES = r"""
---
- name: Plan the sweep
  specdec.serving.sglang_trial:
    state: planned
    sweep: sweeps/block-size.yml
    storage: results/block-size.journal
    instances: "{{ sglang_instances | map('specdec.serving.without_keys') }}"

- name: Show who won
  specdec.serving.sglang_trial:
    sweep: sweeps/block-size.yml
    storage: results/block-size.journal
    instances: "{{ sglang_instances | map('specdec.serving.without_keys') }}"
  register: sweep

- name: Print the table
  ansible.builtin.debug:
    msg: "{{ sweep.table }}"
"""

RETURN = r"""
trials:
  description: The trials, by number.
  returned: O(state=planned) or O(state=shown)
  type: list
  elements: dict
most:
  description: How many trials there can be in this run.
  returned: O(state=planned)
  type: int
instance:
  description: Name of the instance that is swept.
  returned: O(state=planned)
  type: str
study:
  description: Name of the study.
  returned: O(state=planned)
  type: str
workloads:
  description: C(name) of each workload in the sweep file, and C(workload) as M(specdec.serving.sglang_benchmark) takes it.
  returned: O(state=planned)
  type: list
  elements: dict
gates:
  description: What a trial must pass to be ranked.
  returned: O(state=planned)
  type: dict
trial:
  description:
    - The claimed one, with C(number), C(attempt), C(since) (when the one before it ended, from which its time counts), C(point), C(label),
      C(entry) (arguments and environment) and C(faults); empty when there is none.
    - What it wants to be measured is in C(levels), C(repeats), C(evaluated) and C(min_total_tokens) (room that its KV cache must have, for
      O(specdec.serving.sglang_ready#module:min_total_tokens)). C(cold) is true when no earlier trial of the host had its weights and kernels in the caches.
  returned: O(state=claimed)
  type: dict
over:
  description: Why no trial was claimed.
  returned: O(state=claimed)
  type: str
final:
  description: Whether RV(over) stays so. It does not while other hosts have trials that they could give up.
  returned: O(state=claimed)
  type: bool
waiting:
  description: How many trials have not ended.
  returned: V(planned), V(claimed) or V(shown) of O(state)
  type: int
row:
  description: The trial that ended.
  returned: O(state=finished)
  type: dict
text:
  description: What was displayed.
  returned: V(planned), V(claimed) or V(finished) of O(state)
  type: str
table:
  description: All trials as text, the best first, with the reason why each other one did not win.
  returned: O(state=shown)
  type: str
winner:
  description:
    - The best trial with its C(number), C(point), C(args) and C(env); empty when none ranks.
    - C(certain) is false when the baselines of its host drifted, and one of them was as good.
  returned: O(state=shown)
  type: dict
drift:
  description: How far apart the baselines of one host lie, of the host where they do most, as a share; null where no host has two.
  returned: O(state=shown)
  type: float
times:
  description: Seconds by phase, over all trials.
  returned: O(state=shown)
  type: dict
starts:
  description:
    - C(warm), how many starts found their weights and kernels in the caches of the host, and C(median), their seconds.
    - C(cold), C(number) and C(seconds) of the others, which are no measure of them.
  returned: O(state=shown)
  type: dict
savings:
  description: What was not done, by C(rule), with how many C(trials) and about how many C(seconds) that saved.
  returned: O(state=shown)
  type: list
  elements: dict
steps:
  description: Of a ladder each change with its C(number), C(configuration), C(values), C(verdict) (V(start), V(kept) or V(dropped)) and C(reason).
  returned: O(state=shown)
  type: list
  elements: dict
notices:
  description: What is to be known of the whole sweep.
  returned: O(state=shown)
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC = {
    "state": {
        "type": "str",
        "choices": ["claimed", "finished", "planned", "released", "renewed", "shown"],
        "default": "shown",
    },
    "sweep": {"type": "raw", "required": True},
    "storage": {"type": "str", "required": True},
    "study": {"type": "str"},
    "instances": {"type": "list", "elements": "dict", "required": True},
    "resolve": {"type": "dict", "default": {}},
    "platform": {"type": "dict", "default": {}},
    "engine": {"type": "dict", "default": {}},
    "began": {"type": "float"},
    "hold": {"type": "float", "default": 1800.0},
    "ended": {"type": "str"},
    "again": {"type": "list", "elements": "str", "default": []},
    "results_dir": {"type": "path"},
    "number": {"type": "int"},
    "benchmarks": {"type": "dict", "default": {}},
    "evaluation": {"type": "dict", "default": {}},
    "failure": {"type": "dict", "default": {}},
    "details": {"type": "dict", "default": {}},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    module.fail_json(msg="sglang_trial runs on the controller only, as an action plugin; it was called as a module")


if __name__ == "__main__":
    main()
