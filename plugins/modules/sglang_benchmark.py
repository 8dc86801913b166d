#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_benchmark
short_description: Measure a running SGLang server with SGLang's own client
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Runs SGLang's own benchmark client (C(sglang.benchmark.serving), up to 0.5.14 C(sglang.bench_serving)) on the host of the server, in the
    server's own engine, and judges what it measured. Figures of different runs can be compared, since everything that decides them is pinned
    and recorded.
  - "A level is a number of requests in flight, C. Each level warms up at the same C with other prompts, which is thrown away, flushes the
    prefix cache before each repeat, and then sends at least max(8 x C, 64) requests and so many that 60 seconds are steady (the workload may
    ask for less; the result is labelled then). Steady is the time in which all C are in flight."
  - "Acceptance length is 1 + correct drafts / verify steps over all requests, as papers count it, from what the server tells of each
    request. RV(levels) also holds C(tokens_per_step), generated tokens by verify steps from the server's counters, which is another figure. The
    gauge of C(/server_info) is not used."
  - "A level is invalid, with its reasons, when not all requests completed (C(completed), C(aborted)), nothing moved (C(stalled)), it was
    ended (C(cut_short), C(not_measured)), other requests ran (C(foreign_requests)), the client's and the server's tokens differ by more than 0.5 %
    (C(token_counts)), they cannot be compared (C(unverified), C(token_counts_unreported)), the cache could not be flushed
    (C(cache_not_flushed)), the server was started again or died (C(invocation_changed), C(died)), or a GPU was throttled by heat or power supply
    (C(throttled)). It keeps its figures."
  - "Flags leave a level valid: C(speculation_inactive) (no draft was ever accepted), C(acceptance_unknown), C(acceptance_doubtful) (few
    requests told theirs, or the server's two ways of counting differ), C(above_max_running_requests) (requests queue), C(short_steady_state),
    C(jit_suspected) (the first repeat was slower), C(reduced)."
  - The task runs as an action plugin that calls the module again and again; the client itself runs in a transient unit
    (C(specdec-benchmark-UNIT)) and does not notice. Each call ends with a line that tells how far it is. A connection that is lost
    and found does it no harm. It ends by itself 30 seconds after the play was interrupted, when nobody has looked for three minutes, or
    after O(timeout).
notes:
  - "SGLang 0.5.23 is tested for real. 0.5.10's command line is tested against its parser."
  - Real prompts go to C(/v1/chat/completions) where the release tells of drafts there. In older ones the client applies the chat template of
    the model's tokenizer and sends tokens to C(/generate).
  - The server needs C(enable_metrics), as the role sets it, else no level is valid.
  - It sends load to the server and flushes its prefix cache. Hold M(specdec.serving.sglang_lease) meanwhile, see O(lease).
  - Needs root on the host, to start a unit and to read the environment of the server.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._server
attributes:
  check_mode:
    support: full
    details: Reads the workload and its prompts, and sends nothing.
  diff_mode:
    support: none
    details: Changes nothing.
  idempotent:
    support: N/A
    details: It measures, and changes nothing.
options:
  validate_certs:
    description: V(false) is refused with O(scheme=https), since the client always validates.
    type: bool
    default: true
  api_key:
    description: The server's C(--api-key). It reaches the client through a file that only its user can read.
    type: str
  admin_api_key:
    description: The server's C(--admin-api-key), where it has one. Needed to flush the cache then.
    type: str
  workload:
    description:
      - What to send. The name of a workload that comes with the collection, the path of a file on the controller, or a mapping with the same keys.
      - C(fixed) workloads have exact lengths of random tokens and measure throughput. C(natural) ones have real prompts and measure acceptance
        and what users see. Random tokens together with speculation give a warning.
      - C(roles/sglang/files/workloads) holds the named ones. Their keys are C(name), C(kind), C(description), C(input_length), C(output_length),
        C(dataset), C(format) (C(openai) or C(speed-bench)), C(category), C(thinking), C(thinking_argument), C(temperature), C(levels),
        C(requests) (C(per_user), C(minimum), C(steady_state_s)), C(warm_up) (C(per_user), C(dataset)), C(repeats) and C(seed). The README there
        tells of each.
      - More prompts than its file holds are an error.
    type: raw
    required: true
  levels:
    description: Numbers of requests in flight, instead of those of the workload.
    type: list
    elements: int
    default: []
  repeats:
    description: How often each level is measured, instead of what the workload says.
    type: int
  baseline:
    description: Record on the controller of a run of the same workload, usually without speculation. Levels get their C(speedup) over it.
    type: path
  readiness:
    description: What M(specdec.serving.sglang_ready) returned just before, to be kept in the record.
    type: dict
  claim:
    description:
      - Of a trial of a sweep, which the action plugin keeps claimed meanwhile, on the controller. The options of M(specdec.serving.sglang_trial) with
        C(number), and C(claimed_at) as seconds since 1970.
    type: dict
  results_dir:
    description: Folder on the controller for the record, which is made where it is missing. Without it none is written.
    type: path
  python:
    description: The engine's Python. By default the one beside the program of the unit's C(ExecStart).
    type: path
  stall_timeout:
    description: Seconds without a token or the end of a request after which the run is ended as stalled. A client that has not sent
      any is given ten minutes at least.
    type: float
    default: 300
  timeout:
    description: Seconds after which the client is ended, all levels together.
    type: float
    default: 14400
  state_dir:
    description: Folder on the host for what the client and the module share while it runs.
    type: path
    default: /run/specdec/benchmark
  lease:
    description: RV(specdec.serving.sglang_lease#module:token) of the lease of the host. When it is lost, the measurement ends. Every slice renews it.
    type: str
    default: ""
  plan:
    description: Internal. What the action plugin made of the workload.
    type: dict
  slice:
    description: Internal. Seconds after which to return and go on in the next call.
    type: float
  resume:
    description: Internal. What the last call returned to go on with.
    type: dict
seealso:
  - module: specdec.serving.sglang_ready
  - module: specdec.serving.sglang_lease
"""

EXAMPLES = r"""
---
- name: Measure what users see
  specdec.serving.sglang_benchmark:
    unit: sglang-k26-dflash.service
    port: 30001
    workload: natural-mixed
    levels: [1, 8, 32]
    results_dir: ./results
  register: measured

- name: Show it
  ansible.builtin.debug:
    msg: "{{ measured.table }}"
"""

RETURN = r"""
valid:
  description: Whether all levels are valid.
  returned: always
  type: bool
levels:
  description: One item for each number of requests in flight.
  returned: always
  type: list
  elements: dict
  contains:
    concurrency:
      description: Requests in flight that were asked for.
      type: int
    valid:
      description: Whether the level can be compared with others.
      type: bool
    reasons:
      description: Why not. Each has C(rule), C(detail) and, where it is one repeat's, C(repeat).
      type: list
      elements: dict
    flags:
      description: What is worth knowing of a level all the same. Each has C(flag) and C(detail).
      type: list
      elements: dict
    summary:
      description:
        - Median, MAD and coefficient of variation over the repeats (the valid ones where there are any) of C(output_tok_s), C(steady_output_tok_s),
          C(user_tok_s) (1 / median TPOT), C(concurrency) (achieved), C(steady_concurrency), C(ttft_p50_ms), C(ttft_p99_ms), C(tpot_p50_ms),
          C(tpot_p99_ms), C(e2e_p50_ms), C(e2e_p99_ms), C(chunk_gap_p99_ms), C(acceptance_length) and C(tokens_per_step).
      type: dict
    speedup:
      description: Ratios of C(output) and C(user) tokens a second to those of O(baseline).
      returned: with O(baseline), when both are valid
      type: dict
    repeats:
      description: All figures of each repeat.
      type: list
      elements: dict
table:
  description: The levels as text, with what the figures depend on.
  returned: always
  type: str
record:
  description: Path on the controller of the record, empty without O(results_dir).
  returned: always
  type: str
ended:
  description: Why it ended before all was measured, or empty.
  returned: always
  type: str
invocation_id:
  description: The start of the unit that was measured.
  returned: always
  type: str
speculative:
  description: Whether the server is told to speculate.
  returned: always
  type: bool
api:
  description: Where requests went, V(chat) or V(generate).
  returned: always
  type: str
client_command:
  description: The client's arguments in the first measured run.
  returned: always
  type: list
  elements: str
elapsed:
  description: Seconds that it took.
  returned: always
  type: float
finished:
  description: Whether it is over; V(false) only between slices.
  returned: always
  type: bool
resume:
  description: For the next slice.
  returned: when RV(finished=false)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._bench_job import JobError
from ansible_collections.specdec.serving.plugins.module_utils._benchmark import (
    ARGUMENT_SPEC,
    Benchmark,
    BenchmarkError,
    SystemMachine,
    options_from,
)
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError, renew
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        options = options_from(module.params)
        if module.check_mode:
            module.exit_json(
                changed=False, skipped=True, finished=True, skip_reason="a benchmark is not run in check mode"
            )
        renew(module.params["lease"])
        with SystemMachine(options) as machine:
            benchmark = Benchmark(options, machine)
            result = benchmark.run()
    except (BenchmarkError, HangUp, JobError, LeaseError, SystemdError) as error:
        module.fail_json(msg=str(error))
    for notice in benchmark.notices:
        module.warn(notice)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
