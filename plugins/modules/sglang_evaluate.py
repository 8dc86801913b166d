#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_evaluate
short_description: See whether a running SGLang server still answers right, and as it does without speculation
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Asks a running server for the functions of coding problems, greedily, runs each answer with its tests in a sandbox on the target, and counts
    what passes (pass@1).
  - "The 36 problems that ship with the collection B(detect breakage, not quality): with so few of them the 95 % interval beside pass@1 (Wilson's
    score interval) is 20 to 30 points wide. A kernel that computes nonsense, a broken chat template, a wrong quantization or a speculation that
    corrupts tokens shows. A better model does not. Bring a larger file by O(problems) for that."
  - B(Greedy parity) compares the tokens of the server with those that the same server gave without speculation. Greedy output is not exact, so
    that the baseline is recorded twice and its own differences are the noise floor. At the first difference the two likeliest tokens
    of the baseline tell a tie (less than 0.1 nat apart, and the other token is one of the two) from a mismatch. Parity holds when there are no
    more mismatches than the floor has.
  - Each program runs in a transient systemd unit of its own, on the target, as a user that exists for as long as it runs. It sees an empty root with
    C(/usr) and the interpreter in it, has no network and no sockets, writes to 16 MB that are gone afterwards, and has bounds on time, memory, processes
    and output. Before the first foreign program another one looks for ways out of that sandbox; when it finds one, nothing is run and the task fails.
  - Code is taken from the answer's content alone, never from the thinking.
  - The task runs as an action plugin that calls the module on the target in slices, each with a progress line. A run goes on where it was after a dropped
    connection. It ends when the controller is gone.
notes:
  - Needs root on the target, and systemd 252 or newer.
  - Where the host has no memory or pids controller (some containers), C(MemoryMax) and C(TasksMax) have no effect, and a warning says so. The limits of
    address space and of processes per user hold there all the same.
  - A program can lie about its own verdict, as the process that runs it reports it. It can do no more than that.
  - "A thinking model needs a server with C(reasoning_parser). Without one its thinking is part of the content; what ends with C(</think>) is cut off."
  - For parity nobody else may use the server. What others were seen to ask is told in RV(ignore:warnings).
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._server
attributes:
  check_mode:
    support: full
    details: Checks the options, the file of problems and the server, and generates nothing.
  diff_mode:
    support: none
    details: Changes no configuration.
  idempotent:
    support: none
    details: Each run evaluates again. It never reports a change.
options:
  admin_api_key:
    description: The server's administrative key, with which the prefix cache is flushed before each parity pass. By default O(api_key).
    type: str
  model:
    description: Id in C(/v1/models) to ask for. By default the first that the server lists.
    type: str
    default: ""
  problems:
    description:
      - File on the controller with problems in HumanEval's format, one JSON object a line with C(task_id), C(prompt), C(entry_point), C(test) and, as you
        like, C(canonical_solution) and C(difficulty). It may be packed by gzip. Faults name line and field.
      - By default the problems of this collection.
    type: path
  limit:
    description: How many of the problems are asked, spread evenly over the file. V(0) is all of them.
    type: int
    default: 0
  coding:
    description: Whether the problems are asked. V(false) with O(parity) leaves parity alone.
    type: bool
    default: true
  mode:
    description:
      - V(chat) asks C(/v1/chat/completions) for the whole function in a code block. V(completion) asks C(/v1/completions) to go on after the prompt,
        for models without a chat template.
    type: str
    choices: [chat, completion]
    default: chat
  thinking:
    description:
      - Whether the model thinks first, by C(thinking) and C(enable_thinking) of its chat template. V(auto) leaves it to the template.
    type: str
    choices: [auto, "on", "off"]
    default: auto
  chat_template_kwargs:
    description: Further arguments of the chat template.
    type: dict
    default: {}
  max_tokens:
    description:
      - Tokens that an answer may have, thinking included. V(0) is 1024 for completions, 2048 without thinking, 16384 with it or where the template
        decides, and less where the server's context is shorter. A number that does not fit into it is refused.
    type: int
    default: 0
  concurrency:
    description: Problems asked side by side. Parity is always asked one by one.
    type: int
    default: 8
  request_timeout:
    description: Seconds for one answer.
    type: float
    default: 900
  minimum:
    description: The task fails when pass@1 is below this share, from 0 to 1.
    type: float
    default: 0
  python:
    description: Python on the target that runs the programs.
    type: path
    default: /usr/bin/python3
  programs:
    description: Programs run side by side.
    type: int
    default: 4
  program_timeout:
    description: Seconds that one program may run.
    type: float
    default: 10
  program_memory:
    description: MiB of memory, and of address space, that one program may have.
    type: int
    default: 1024
  parity:
    description:
      - V(record) writes O(parity_baseline), for a server that does not speculate. V(compare) compares with it. V(auto) records on a server without
        speculation and compares on one with it. V(off) does neither.
      - Model, engine, backends, numbers of ranks and types must be the same on both sides, else nothing is comparable and the task fails.
    type: str
    choices: ["off", auto, record, compare]
    default: "off"
  parity_baseline:
    description: File on the target that holds the baseline.
    type: path
  parity_prompts:
    description: How many prompts, from the beginning of the problems that are asked.
    type: int
    default: 24
  parity_tokens:
    description: Tokens generated after each, end-of-text disregarded.
    type: int
    default: 128
  timeout:
    description: Seconds for all of it.
    type: str
    default: "3600"
  state_dir:
    description:
      - Folder on the target in which C(evaluations/UNIT/RUN/answers.jsonl) keeps every answer, the code found in it and its verdict. Only root reads it.
    type: path
    default: /var/lib/specdec/sglang
  keep:
    description: How many runs of the unit stay there.
    type: int
    default: 5
  lease:
    description: RV(specdec.serving.sglang_lease#module:token) of the host's lease, which is renewed. When it is lost, the task fails.
    type: str
    default: ""
  results_dir:
    description: Folder on the controller in which the record of the run is written, as one JSON document. No record when left out.
    type: path
  readiness:
    description: What M(specdec.serving.sglang_ready) returned just before, for the record.
    type: dict
  claim:
    description:
      - Of a trial of a sweep, which the action plugin keeps claimed meanwhile, on the controller. The options of M(specdec.serving.sglang_trial) with
        C(number), and C(claimed_at) as seconds since 1970.
    type: dict
  slice:
    description: Seconds after which one call of the module begins nothing new and reports back. Set by the action plugin.
    type: float
  run:
    description: Name of the run. Set by the action plugin.
    type: str
    default: ""
  content:
    description: The problems. Set by the action plugin.
    type: str
    default: ""
  resume:
    description: What an earlier slice of the same run said. Set by the action plugin.
    type: dict
seealso:
  - module: specdec.serving.sglang_ready
  - module: specdec.serving.sglang_lease
"""

EXAMPLES = r"""
---
- name: Ask the problems of this collection
  specdec.serving.sglang_evaluate:
    unit: sglang-k26-dflash.service
    port: 30001
    model: kimi-k2.6
    thinking: "off"

- name: Ask problems of your own, with thinking, and write a record
  specdec.serving.sglang_evaluate:
    unit: sglang-k26-dflash.service
    port: 30001
    problems: /home/me/HumanEval.jsonl.gz
    thinking: "on"
    max_tokens: 16384
    results_dir: results

- name: Record the baseline while the server runs without speculation, and compare with it while it speculates
  specdec.serving.sglang_evaluate:
    unit: sglang-k26-dflash.service
    port: 30001
    coding: false
    parity: auto
    parity_baseline: /var/lib/specdec/sglang/parity/k26.json
"""

RETURN = r"""
coding:
  description: What the answers sum up to.
  returned: when O(coding=true)
  type: dict
  contains:
    passed:
      description: Problems whose tests passed.
      type: int
    problems:
      description: Problems that were asked.
      type: int
    pass_at_1:
      description: The share of them.
      type: float
    low:
      description: Lower end of its 95 % interval.
      type: float
    high:
      description: Upper end of its 95 % interval.
      type: float
    by_difficulty:
      description: The same figures by difficulty.
      type: dict
    verdicts:
      description: >-
        How many of each. V(passed), V(wrong_answer), V(syntax_error), V(timeout), V(memory), V(forbidden) (something that the sandbox refuses),
        V(truncated) (ended by the limit of tokens, and what there was of it does not pass), V(no_code).
      type: dict
    loops:
      description: Answers that end in a repetition, in their thinking or after it.
      type: int
    completion_tokens:
      description: Tokens of all answers.
      type: int
    generation_s:
      description: Seconds of all answers, added up.
      type: float
    programs:
      description: Programs that ran.
      type: int
    program_s:
      description: Mean seconds of one, with the making of its unit.
      type: float
outcomes:
  description: One entry a problem.
  returned: when O(coding=true)
  type: list
  elements: dict
  sample: [{"task_id": "specdec/0", "verdict": "passed", "detail": "", "difficulty": "easy", "source": "fence", "finish_reason": "stop", "loop": false}]
workload:
  description: What was asked, and how.
  returned: when O(coding=true)
  type: dict
  sample: {"problems": 36, "digest": "0f0e2a6c5e1e2b3d", "mode": "chat", "thinking": "off", "max_tokens": 2048, "temperature": 0, "concurrency": 8}
parity:
  description: What the comparison, or the recording, found.
  returned: when O(parity) is not V(off)
  type: dict
  contains:
    mode:
      description: V(record) or V(compare).
      type: str
    passed:
      description: Whether like was compared with like, and there were no more mismatches than the floor has.
      type: bool
    text:
      description: All of it in a line.
      type: str
    equal:
      description: Prompts without a difference. Of a comparison, as the following.
      type: int
    ties:
      description: Prompts whose first difference is between two tokens that were as likely.
      type: int
    mismatches:
      description: Other prompts with a difference.
      type: int
    differences:
      description: The first difference of each such prompt, with the gap in nats.
      type: list
      elements: dict
    floor:
      description: The same figures of two runs of the baseline.
      type: dict
    incomparable:
      description: What must be the same on both sides and is not.
      type: list
      elements: str
    differing:
      description: What else differs.
      type: list
      elements: str
    baseline:
      description: The baseline's file on the target.
      type: str
server:
  description: What the server says of itself.
  returned: always
  type: dict
invocation_id:
  description: The start of the unit that was evaluated.
  returned: always
  type: str
folder:
  description: Folder on the target with every answer and its code.
  returned: always
  type: str
elapsed:
  description: Seconds that it took.
  returned: always
  type: float
record:
  description: Path of the record on the controller.
  returned: when O(results_dir) was given
  type: str
table:
  description: The result for people, several lines of text.
  returned: success
  type: str
finished:
  description: Whether the run came to its end; V(false) only between slices.
  returned: always
  type: bool
parts:
  description: The target's parts of the record.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._evaluation import EvaluationError, failure
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_client import AskError
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_host import evaluate
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_options import ARGUMENT_SPEC, plan_from
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError
from ansible_collections.specdec.serving.plugins.module_utils._problems import ProblemsError
from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import SandboxError
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        result = evaluate(module.params, check_mode=module.check_mode)
    except (AskError, EvaluationError, HangUp, LeaseError, ProblemsError, SandboxError, SystemdError) as error:
        module.fail_json(msg=str(error))
    for warning in result.pop("notices"):
        module.warn(warning)
    reason = failure(plan_from(module.params), result) if result["finished"] else ""
    if reason:
        module.fail_json(msg=reason, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
