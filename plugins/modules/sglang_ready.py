#!/usr/bin/python

# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_ready
short_description: Prove that this very start of an SGLang server is ready
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
description:
  - Waits until the SGLang server of one systemd unit is ready, and proves that it is this start of the unit that answers.
    An old process, a foreign server or a neighbour on the same port never passes for it.
  - "B(Ready) needs six gates, all of one and the same invocation of the unit.
    (1) C(unit): the unit is active, its InvocationID is not O(replaces), its main process lives.
    (2) C(port_owner): every socket that could answer on O(port) belongs to the unit's control group.
    (3) C(markers): the journal of this invocation holds the expected number of C(Load weight end) lines. Where it does not, and V(auto)
    excuses that, a scheduler process of the unit must run.
    (4) C(identity): C(/v1/models) lists O(model), C(/model_info) has O(model_path), C(/server_info) agrees with O(settings).
    (5) C(serving): C(/ready) (SGLang 0.5.20 and newer) or C(/health_generate) is 200, and O(generation_tokens) tokens are generated; with
    speculation at least two verify steps ran.
    (6) C(stability): after the HTTP checks, invocation, main process, socket owner and engine processes are what they were before,
    and all of it holds for O(stable_for)."
  - A log line may explain a verdict or bring it forward. Alone it never makes a server ready.
  - The task runs as an action plugin that calls the module on the target again and again. Such a call is a slice; the wait goes on
    where the last one ended, also after a dropped connection. A slice ends after 15 seconds, later ones after 60 (30 while something
    stands still), and when a phase begins that lasts. Each ends with a progress line.
  - In check mode it observes once and generates nothing.
notes:
  - "SGLang 0.5.23 is tested for real; log texts, endpoints and ways to end of 0.4.6, 0.5.9 and 0.5.12 are read from their source and tested
    with stand-ins. 0.4.6 does not tell how many verify steps a request took: there the gate C(serving) asks for the tokens alone."
  - Needs root, or the group C(systemd-journal) for the journal. Who owns the port is found without root on cgroup v2.
  - "The journal (that of the unit's C(LogNamespace), too) gives the markers, RV(timeline), RV(weights) and most diagnoses. It cannot when
    the unit's C(StandardOutput) or C(StandardError) is a file, a terminal or nothing, when journald drops lines (rate limit), when its
    files were removed or are damaged, or when this user may not read it. RV(log_incomplete) says so; with O(markers=auto) the other gates
    decide, and a crash is told by its exit alone. Give such a unit C(StandardOutput=journal) and a high C(LogRateLimitBurst), as the role
    C(sglang) does. That the clock is set plays no part."
  - "A server that is not ready yet counts as progressing when one of these moves: its log, the CPU, I/O and memory of its processes, GPU
    memory (where C(nvidia-smi) exists), compilers at work, engine processes that come or go, and answers that pass the checks. Own
    probes, access lines, health checks, a line that comes again word for word, a heartbeat's few percent of CPU and polls by a router or
    Prometheus are no progress."
  - A server that waits at its gate (C(--gated-launch-port)) is in the phase V(waiting_at_gate) and never hung, and neither is a follower,
    since whom they wait for is not on this host. O(wait=false) looks once and cannot tell.
  - On a follower (O(settings) or the command line has a node rank above 0) HTTP proves nothing. Its unit, its markers and its processes
    are judged; the rest is asked of O(leader).
  - On a connection by SSH whose arguments set no C(ServerAliveInterval), the task uses a connection of its own that notices within 20
    seconds when the host no longer answers.
  - C(async) is refused; the wait itself keeps no connection busy for longer than a minute.
extends_documentation_fragment:
  - specdec.serving._attributes
  - specdec.serving._server
attributes:
  check_mode:
    support: full
    details: Observes once, without generating tokens, and never fails on a state.
  diff_mode:
    support: none
    details: Changes nothing.
  idempotent:
    support: full
options:
  unit:
    description: Full name of the unit, such as V(sglang-k26-dflash.service). An alias is resolved, which the C(unit) gate and the message say.
    type: str
    required: true
  ca_path:
    description:
      - File on the target with the certificate authorities to trust instead of the system's.
      - One that cannot be used is refused where the server or O(leader) is asked by V(https); plain V(http) does not need it.
    type: path
  api_key_file:
    description:
      - Path on the target of the file with the server's keys, such as P(specdec.serving.sglang#role) writes it (C(api-key) and a JSON string on one
        line). The key in it is used like O(api_key), and does not go through the controller. Without a key in it none is used.
      - O(client_url) is asked without a key then.
    type: path
  model:
    description: The id that C(/v1/models) must list. Not checked when empty.
    type: str
    default: ""
  model_path:
    description: The path that C(/model_info) must report. Not checked when empty.
    type: str
    default: ""
  settings:
    description:
      - What was asked of the server, SGLang's destination names to values. Values are compared as SGLang parses them (V(2k) is 2000).
      - Model, draft model, algorithm, block size, tp, ep, pp, dp and the CUDA graph backends must agree; another difference is
        reported as changed by the engine.
      - A name that the server does not report is a warning, since it may be misspelt.
    type: dict
    default: {}
  replaces:
    description:
      - InvocationID of the start that was to be replaced. A server of that invocation is never ready.
      - Anything but 32 hexadecimal digits, or nothing, is refused.
    type: str
    default: ""
  markers:
    description:
      - V(auto) lets the other gates decide when the journal is known to be incomplete or unused, with a warning.
      - V(require) never does. V(ignore) does not look.
    type: str
    choices: [auto, require, ignore]
    default: auto
  expected_markers:
    description:
      - Number of C(Load weight end) lines that this host's ranks must log. By default ranks on this host times models with their
        own weights, worked out from O(settings), or from the running server.
    type: int
  generation_tokens:
    description:
      - Tokens to generate as proof. By default twice the block size plus one, at least 4. V(0) generates none.
      - With speculation fewer than the block size plus two are refused, since one verify step may give them all, and two are the proof.
        Where O(settings) has no block size, the running server's counts, and RV(diagnosis.cause) is V(generation_too_short).
    type: int
  stable_for:
    description: Seconds for which everything must hold before the server counts as ready. Must be below O(timeout).
    type: float
    default: 0
  timeout:
    description:
      - Seconds to wait for readiness.
      - V(auto) is the larger of 1350 and three times the slowest verified start that O(state_dir) knows of this model, host class
        (names of the GPUs) and cache state.
    type: str
    default: "1350"
  min_total_tokens:
    description:
      - Tokens that the KV cache must have room for. The wait ends, and the task fails with the cause C(kv_cache_too_small), as soon as the
        journal shows less (C(max_total_num_tokens=)), which it does before the port opens. The server is left as it is.
      - With replicas (C(dp_size), C(attn_dp_size)) their caches count together. Without a journal nothing is known, and nothing ends the wait.
      - V(0) is content with any cache.
    type: int
    default: 0
  stall_timeout:
    description:
      - Seconds without any progress after which a server counts as hung, 300 by default; V(0) switches it off.
      - Once the server has said that it is up, its CPU is no progress, since an idle scheduler spins.
      - A value above O(timeout) is refused.
    type: float
  spin_timeout:
    description:
      - Seconds with progress of the CPU alone, and no compiler at work, after which a server counts as hung, 600 by default;
        V(0) switches it off.
      - A value above O(timeout) is refused.
    type: float
  max_restarts:
    description: Automatic restarts that are tolerated while waiting.
    type: int
    default: 0
  wait:
    description: V(false) observes once, reports the state, and never fails on it.
    type: bool
    default: true
  client_url:
    description:
      - Base URL at which clients reach the server, such as that of a router; with or without C(/v1) at its end.
      - Once the server is ready, C(/v1/models) there must list O(model) (else what the server itself lists), asked from the controller
        with the Python library C(requests), with O(api_key) as bearer. Proxies and redirects are not followed. It is tried again for up to 60
        seconds, as a router needs a moment to notice its server.
      - O(validate_certs) holds for it as well, O(ca_path) where the controller has that file. C(REQUESTS_CA_BUNDLE) of the controller's
        environment is honoured.
    type: str
  leader:
    description:
      - C(host:port) or URL of rank 0's server, as this host reaches it. Not used on rank 0 itself.
      - With it a follower is ready when its own unit, markers and processes are, and the leader passes the gates C(identity) and
        C(serving), with as many nodes. Without it the state of a running follower is V(follower), which is neither ready nor a failure.
    type: str
  state_dir:
    description:
      - Folder on the target in which C(starts.jsonl) remembers the last 200 verified starts, for O(timeout=auto) and RV(estimate),
        and C(evidence/UNIT) holds what explains failed ones, see O(keep_evidence).
      - Empty keeps nothing. Nothing is kept in check mode or when O(wait=false), nor of a start whose beginning the journal does not hold.
    type: path
    default: /var/lib/specdec/sglang
  lease:
    description: RV(specdec.serving.sglang_lease#module:token) of the lease of the host. When it is lost, the wait ends. Every slice renews it.
    type: str
    default: ""
  claim:
    description:
      - Of a trial of a sweep, which the action plugin keeps claimed meanwhile, on the controller. The options of M(specdec.serving.sglang_trial) with
        C(number), and C(claimed_at) as seconds since 1970.
    type: dict
  keep_evidence:
    description:
      - How many archives of failed starts stay on the host for each unit; V(0) makes none. One start judged again replaces its archive.
      - An archive holds the journal of the start, the unit, its environment and arguments, the kernel's log, processes with what they wait
        for (and their Python stacks where C(py-spy) is installed), sockets, GPUs, memory, disks, releases, and the verdict (this
        module's result, with its warnings as C(notices)). Only root can read it. Values that look secret are masked, and so is every key
        that the unit is known to have.
      - It is made after the verdict, in 15 seconds at most. What goes wrong is a warning and changes no verdict.
      - P(specdec.serving.sglang#role) has the playbook C(specdec.serving.collect), which fetches them.
    type: int
    default: 5
  slice:
    description: Seconds after which one call of the module reports back although nothing is decided. Set by the action plugin.
    type: float
  log_lines:
    description: Lines of the invocation's journal in RV(log_tail).
    type: int
    default: 20
  resume:
    description: What an earlier slice of the same wait knew. Set by the action plugin.
    type: dict
"""

EXAMPLES = r"""
---
- name: Restart the server
  ansible.builtin.systemd_service:
    name: sglang-k26-dflash.service
    state: restarted
    no_block: true

- name: Wait until this very start is ready
  specdec.serving.sglang_ready:
    unit: sglang-k26-dflash.service
    port: 30001
    model: kimi-k2.6
    replaces: "{{ invocation_before_the_restart }}"
    settings:
      tp_size: 8
      speculative_algorithm: DFLASH
      speculative_dflash_block_size: 8

- name: See what the server is doing, without failing
  specdec.serving.sglang_ready:
    unit: sglang-k26-dflash.service
    port: 30001
    wait: false
    generation_tokens: 0
"""

RETURN = r"""
state:
  description: One of V(ready), V(loading), V(hung), V(crashed), V(crash_loop), V(stopping), V(stopped), V(not_found), V(follower).
  returned: always
  type: str
  sample: ready
ready:
  description: Whether all six gates passed.
  returned: always
  type: bool
elapsed:
  description: Seconds waited so far, on the target's clock.
  returned: always
  type: float
phase:
  description:
    - Where the start is, one of V(starting), V(waiting_at_gate), V(loading_weights), V(loading_draft), V(allocating_kv_cache), V(capturing_graphs),
      V(binding), V(warming_up), then V(serving); empty when the unit does not run.
  returned: always
  type: str
  sample: loading_weights
gates:
  description: The six gates in order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: C(unit), C(port_owner), C(markers), C(identity), C(serving) or C(stability).
      type: str
    passed:
      description: V(true), V(false), or V(null) when not known yet.
      type: bool
    detail:
      description: What was seen.
      type: str
phase_for:
  description: Seconds since the phase was first seen by this task.
  returned: always
  type: float
unit:
  description: The unit.
  returned: always
  type: str
port:
  description: The port.
  returned: always
  type: int
invocation_id:
  description: The unit's InvocationID that the verdict is about.
  returned: always
  type: str
main_pid:
  description: Its main process, 0 when there is none.
  returned: always
  type: int
uptime:
  description: Seconds since the main process started, 0 when it does not run.
  returned: always
  type: float
timeline:
  description: The phases of the start, in order; a phase may recur (draft models load after graph capture up to SGLang 0.5.13).
  returned: always
  type: list
  elements: dict
  contains:
    phase:
      description: Name of the phase.
      type: str
    start:
      description: Seconds since the main process started.
      type: float
    duration:
      description: Seconds it took, or has taken so far.
      type: float
    model:
      description: >-
        V(target) or V(draft) for C(allocating_kv_cache) and C(capturing_graphs) where the release goes through them once per
        model (SGLang up to 0.5.13, which loads the draft after the target's graphs); else absent.
      type: str
weights:
  description: One entry per model in order of loading.
  returned: always
  type: list
  elements: dict
  contains:
    type:
      description: Model class, such as V(KimiK25ForConditionalGeneration).
      type: str
    role:
      description: V(target) for what a rank loads first, else V(draft).
      type: str
    ranks:
      description: Ranks that logged C(Load weight end).
      type: int
    elapsed_s:
      description: Seconds of the slowest rank.
      type: float
    elapsed_min_s:
      description: Seconds of the fastest rank.
      type: float
    quant:
      description: Quantization, as logged.
      type: str
    mem_usage_gb:
      description: GPU memory that the weights take on the fullest rank.
      type: float
    avail_mem_gb:
      description: GPU memory left on the fullest rank.
      type: float
markers:
  description: How many C(Load weight end) lines were seen, and how many were expected.
  returned: always
  type: dict
server:
  description:
    - What the server says of itself, when it answered.
    - C(engine_changed) and C(mismatched) list the O(settings) that run with another value (C(name), C(asked), C(running)), in the second those
      that may not.
  returned: always
  type: dict
  sample: {"version": "0.5.23", "model": "kimi-k2.6", "max_total_num_tokens": 428672}
node_rank:
  description: The node's rank, on a follower.
  returned: when above 0
  type: int
timeout:
  description: Seconds that the wait may take, also when O(timeout=auto).
  returned: always
  type: float
estimate:
  description: What earlier verified starts of this model, host class and cache state tell of this one.
  returned: when RV(state=loading) and there were such starts
  type: dict
  contains:
    total_s:
      description: Seconds of the whole start.
      type: float
    left_s:
      description: Seconds left.
      type: float
    slowest_s:
      description: Seconds of the slowest earlier one.
      type: float
    from:
      description: Number of earlier starts.
      type: int
    longer:
      description: Whether this start has taken longer than every earlier one.
      type: bool
client:
  description: What the check of O(client_url) from the controller gave.
  returned: when O(client_url) was given and the server itself is ready
  type: dict
  contains:
    url:
      description: The URL that was asked.
      type: str
    ok:
      description: Whether it lists the expected model.
      type: bool
    detail:
      description: What was seen.
      type: str
    seconds:
      description: Seconds until it did, or until it was given up.
      type: float
detected_at:
  description: When the verdict was made, seconds since the epoch on the target's clock.
  returned: always
  type: float
detected_at_monotonic:
  description: The same on the target's monotonic clock.
  returned: always
  type: float
diagnosis:
  description: Why the server is not ready; empty when it is.
  returned: always
  type: dict
  contains:
    id:
      description:
        - Row of the table of known failures, such as V(F5) or V(XID79). Empty when no row fits.
        - After a timeout, the row that fits what the log says, while RV(diagnosis.cause) stays V(timeout).
      type: str
    cause:
      description:
        - The cause in one word, such as V(port_conflict). V(exception) when no row fits an exception.
        - Some end the wait although the process lives, since waiting cannot change them. V(unauthorized), V(wrong_model),
          V(wrong_model_path), V(settings_mismatch), V(wrong_address), V(wrong_port), V(speculation_not_exercised),
          V(generation_too_short), V(generation_failed),
          V(tls_certificate), V(tls_expected), V(tls_missing), V(redirected), V(not_http), V(not_json), V(huge_answer).
        - V(leader_unreachable) on a follower whose O(leader) did not answer within O(timeout).
        - Of a hung server it is V(stalled) (nothing moved), V(spinning) (only the CPU moved), V(collective_hang) (GPUs at full utilisation
          and idle power), V(deaf) (it accepts connections and never answers), or a GPU fault of the kernel's log.
      type: str
    summary:
      description: The cause in a sentence. For an unknown exception its last line and the frame of SGLang that raised it.
      type: str
    remedy:
      description: What to do, with flags as the installed SGLang release spells them.
      type: str
    severity:
      description: V(critical) when the machine failed (a GPU, PCIe, memory), else V(error).
      type: str
    rank:
      description: The rank that failed first, such as V(TP3 EP3); empty when none or unknown.
      type: str
    evidence:
      description: Log lines that show it, also those of the kernel.
      type: list
      elements: str
    warnings:
      description: What the log and the kernel also said without it being the cause.
      type: list
      elements: str
    stalled:
      description: Each signal of progress, the one that stood still longest first. For a server that hung or took too long.
      type: list
      elements: dict
      contains:
        signal:
          description: V(log), V(cpu), V(io), V(memory), V(gpu_memory), V(compilers), V(processes) or V(answers).
          type: str
        since_s:
          description: Seconds since it moved last.
          type: float
        last:
          description: What was seen last, such as the last line of the log.
          type: str
    processes:
      description: What each process of the server did. For a server that hung or took too long.
      type: list
      elements: dict
      contains:
        role:
          description: V(main), V(scheduler), V(detokenizer), V(data_parallel_controller), V(tokenizer_worker), V(compiler) or V(other).
          type: str
        rank:
          description: The rank as its log lines have it, such as V(TP3 EP3).
          type: str
        pid:
          description: Process id.
          type: int
        state:
          description: State letter of proc(5) and its meaning, such as C(T) with "stopped by a signal".
          type: str
        wchan:
          description: The kernel function that its main thread sleeps in; empty when it runs.
          type: str
        cpu_percent:
          description: Percent of one core over the last seconds; V(null) when not known.
          type: float
        rss_bytes:
          description: Resident memory.
          type: int
        last_line:
          description: The last line that it logged.
          type: str
    gpus:
      description: The server's GPUs, where C(nvidia-smi) exists. For a server that hung or took too long.
      type: list
      elements: dict
      contains:
        index:
          description: Number of the GPU.
          type: int
        name:
          description: Name of the card.
          type: str
        utilization_percent:
          description: Share of the time in which a kernel ran. Near 100 at idle power, it is a collective that hangs.
          type: float
        power_w:
          description: Power drawn.
          type: float
        power_limit_w:
          description: Power limit.
          type: float
        memory_used_mib:
          description: Memory in use.
          type: float
    exit:
      description: How the main process ended.
      type: str
log_tail:
  description: Last lines of this invocation's journal, without secrets.
  returned: always
  type: list
  elements: str
evidence:
  description: Archive on the target with what explains the failed start, see O(keep_evidence). RV(ignore:msg) ends with it.
  returned: when a start failed and its evidence could be kept
  type: str
  sample: /var/lib/specdec/sglang/evidence/sglang-k26-dflash.service/20260701T101500Z-hung-272f739531054238bddee199427e4ea6.tar.gz
log_incomplete:
  description: Why the journal cannot tell all of this start (output elsewhere, lines dropped, removed or damaged, no permission), or empty.
  returned: always
  type: str
draining:
  description: Requests that the old process still has, while RV(state=stopping).
  returned: when known
  type: int
finished:
  description: Whether a verdict was reached; V(false) only between slices.
  returned: always
  type: bool
resume:
  description: For the next slice.
  returned: when RV(finished=false)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import _evidence, _starts
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseError, renew
from ansible_collections.specdec.serving.plugins.module_utils._readiness import FOLLOWER
from ansible_collections.specdec.serving.plugins.module_utils._ready_host import SystemHost
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import (
    ARGUMENT_SPEC,
    OptionError,
    key_from_file,
    options_from,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError
from ansible_collections.specdec.serving.plugins.module_utils._waiter import Waiter


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC, mutually_exclusive=[("api_key", "api_key_file")], supports_check_mode=True
    )
    try:
        if module.params["api_key_file"]:
            module.params["api_key"] = key_from_file(module.params["api_key_file"]) or None
            module.no_log_values.update(filter(None, [module.params["api_key"]]))
        options = options_from(module.params, check_mode=module.check_mode)
        if options.wait:
            renew(module.params["lease"])
        with SystemHost(options.unit, options.endpoint, options.listen_host, options.leader) as host:
            waiter = Waiter(options, host, _starts.load(options.state_dir))
            result = waiter.run()
            if options.wait:
                # What is seen after another run has taken over is not what this one started.
                renew(module.params["lease"])
            if options.wait and result["ready"]:
                result["notices"] += filter(None, [_starts.note(options.state_dir, result, waiter.subject())])
    except (HangUp, LeaseError, OptionError, SystemdError) as error:
        module.fail_json(msg=str(error))
    _evidence.keep(result, module.params, wait=options.wait)
    for warning in result.pop("notices"):
        module.warn(warning)
    if result["finished"] and options.wait and not result["ready"] and result["state"] != FOLLOWER:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
