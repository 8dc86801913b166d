# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A scheduler rank: loads (that is, logs and waits), then generates. Also the detokenizer and the DP controller."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from sglang.stand_in import processes, text
from sglang.stand_in.channel import Channel
from sglang.stand_in.log import Log
from sglang.stand_in.resolve import Model, Settings
from sglang.stand_in.times import Steps

SPAWN_CODE = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=9, pipe_handle=11)"


@dataclass(frozen=True)
class Rank:
    """Place of one scheduler process."""

    index: int
    dp: int
    pp: int
    tp: int
    ep: int
    prefix: str  # as in the log: "" or " TP0 EP0"

    @property
    def title(self) -> str:
        return "sglang::scheduler" + self.prefix.replace(" ", "_")

    @property
    def leads(self) -> bool:
        """Whether this rank of its replica takes the requests and logs the batches."""
        return self.tp == 0 and self.pp == 0


def ranks_of(resolved: dict[str, Any]) -> list[Rank]:
    """All ranks of this node (managers/scheduler.py:6260-6290: only dimensions above 1 are shown)."""
    tp_size, pp_size, dp_size = resolved["tp_size"], resolved["pp_size"], resolved["dp_size"]
    ep_size, attn_dp = resolved["ep_size"], resolved["attn_dp_size"]
    ranks: list[Rank] = []
    for dp in range(dp_size):
        for pp in range(pp_size):
            for tp in range(tp_size):
                ep = tp // (tp_size // ep_size)
                prefix = ""
                if dp_size > 1:
                    prefix += f" DP{dp}"
                elif attn_dp > 1:
                    prefix += f" DP{tp // (tp_size // attn_dp)}"
                if pp_size > 1:
                    prefix += f" PP{pp}"
                if tp_size > 1:
                    prefix += f" TP{tp}"
                if ep_size > 1:
                    prefix += f" EP{ep}"
                ranks.append(Rank(index=len(ranks), dp=dp, pp=pp, tp=tp, ep=ep, prefix=prefix))
    return ranks


def fresh_child() -> None:
    """What a spawned interpreter would have: default signals."""
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Scheduler:
    """One rank. `run` loads, tells main, and serves until told to stop."""

    def __init__(self, rank: Rank, settings: Settings, channel: Channel, steps: Steps) -> None:
        self.rank = rank
        self.settings = settings
        self.channel = channel
        self.steps = steps
        self.log = Log(settings.resolved["log_level"], prefix=rank.prefix)
        self.message = settings.profile.message
        self.available = settings.free_memory_gb
        self.seconds: dict[str, float] = {"load_weight": 0.0, "kv_cache_allocation": 0.0}
        self.memory: dict[str, float] = {"weight": 0.0, "kvcache": 0.0}
        self.graph_seconds = dict.fromkeys(
            ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend"), 0.0
        )
        self.graph_memory = dict(self.graph_seconds)

    # Start-up

    def run(self) -> None:
        parent = os.getppid()
        processes.set_spawn_title(SPAWN_CODE)
        with self.steps.run("rank_imports"):
            pass
        processes.die_with_parent(parent)
        processes.set_title(self.rank.title)
        begin = time.monotonic()
        for stage in self.settings.profile.rank_stages:
            getattr(self, "_stage_" + stage)()
        self.channel.send(
            {
                "op": "ready",
                "startup_time": {
                    **self.seconds,
                    "scheduler_e2e": time.monotonic() - begin,
                    "cuda_graph": self.graph_seconds,
                },
                "memory": {**self.memory, "available": self.available, "graph": self.graph_memory},
            }
        )
        if self.rank.leads:
            Generator(self).loop()
        else:
            self._follow()

    def _barrier(self, name: str) -> None:
        """No rank goes on before all of its replica are here (load_model_utils.py:380-395)."""
        self.channel.send({"op": "at", "stage": name})
        self.channel.receive()

    def _stage_init_parallel(self) -> None:
        self.log.info(self.message("init_parallel_begin"))
        begin = time.monotonic()
        with self.steps.run("init_parallel"):
            pass
        self.log.info(self.message("init_parallel_end", elapsed=time.monotonic() - begin))
        self.log.info(self.message("memory_baseline", usage=0.0))

    def _stage_load_target(self) -> None:
        self._load("load_target", self.settings.target)

    def _stage_load_draft(self) -> None:
        if self.settings.draft is not None:
            self.log.info(self.message("memory_baseline", usage=0.0))
            self._load("load_draft", self.settings.draft)
            if self.settings.resolved["speculative_algorithm"] == "DFLASH" and self.rank.tp == 0:
                self._dflash_lines(self.settings.draft)

    def _load(self, step: str, model: Model) -> None:
        self.log.info(self.message("load_begin", avail=self.available))
        begin = time.monotonic()
        with self.steps.run(step, model=model.architecture) as seconds:
            if self.rank.tp == 0:
                self._progress(model.shards, seconds, begin)
        elapsed = time.monotonic() - begin
        usage = model.size_gb / (self.settings.resolved["tp_size"] * self.settings.resolved["pp_size"])
        self.available -= usage
        self.memory["weight"] += usage
        self.seconds["load_weight"] += elapsed
        self.log.info(
            self.message(
                "load_end",
                elapsed=elapsed,
                type=model.architecture,
                quant=f"quant={model.quantization}, " if model.quantization else "",
                avail=self.available,
                usage=usage,
            )
        )
        self._barrier(step)

    def _progress(self, shards: int, seconds: float, begin: float) -> None:
        """A tqdm bar as a pipe shows it: carriage returns, a line feed only at the end."""
        for done in range(shards + 1):
            if done:
                time.sleep(max(0.0, begin + seconds * 0.95 * done / shards - time.monotonic()))
            spent = time.monotonic() - begin
            left = spent / done * (shards - done) if done else 0.0
            self.log.raw(
                "\r"
                + self.message(
                    "load_progress",
                    percent=100 * done // shards,
                    done=done,
                    total=shards,
                    spent=_clock(spent),
                    left=_clock(left) if done else "?",
                    rate=f"{done / max(spent, 1e-6):5.2f}it/s" if done else "?it/s",
                )
            )
        self.log.raw("\n")

    def _dflash_lines(self, draft: Model) -> None:
        resolved = self.settings.resolved
        backend = resolved["speculative_draft_attention_backend"] or resolved["attention_backend"]
        self.log.info(
            f"Initialized DFLASH draft runner. attention_backend={backend}, model={draft.architecture},"
            f" block_size={self.settings.block_size}, draft_window_size={resolved['speculative_draft_window_size']},"
            " compact_cache=False"
        )
        self.log.info(
            "DFLASH draft runner ready. mask_token=<|MASK|>, mask_token_id=163838, mask_token_id_override=None,"
            " noise_embed_scale=1.0"
        )
        self.log.info("DFLASH fused KV materialization enabled. n_layers=5, num_kv_heads=8, head_dim=128")

    def _stage_kv_cache(self) -> None:
        begin = time.monotonic()
        models = [self.settings.target] + ([self.settings.draft] if self.settings.draft else [])
        with self.steps.run("kv_cache"):
            pass
        for model in models:
            share = 0.5 * self.available if self.settings.cuda else 0.002
            self.memory["kvcache"] += share
            self.available -= share
            key = "kv_cache_latent" if model.latent_attention else "kv_cache_pair"
            self.log.info(
                self.message(
                    key, dtype="torch.bfloat16", tokens=self.settings.max_total_tokens, size=share, half=share / 2
                )
            )
            self.log.info(self.message("memory_pool_end", avail=self.available))
        self.seconds["kv_cache_allocation"] = time.monotonic() - begin

    def _stage_capture(self) -> None:
        settings = self.settings
        speculative = settings.block_size > 0
        models = 1 if settings.draft is None else 2
        if self.rank.tp == 0 and not settings.graph_enabled("prefill"):
            for _ in range(models):
                self.log.info(self.message("prefill_graph_disabled"))
        config = settings.resolved["cuda_graph_config"]
        captures = []
        if settings.graph_enabled("prefill"):
            captures.append(("prefill", "target prefill", f"num_tokens={config['prefill']['bs']}", None))
        if settings.graph_enabled("decode"):
            name = "target verify" if speculative else "target decode"
            per_request = settings.block_size or 1
            size = f"num_tokens_per_req={per_request}"
            captures.append(("target_verify" if speculative else "decode", name, size, config["decode"]["bs"]))
            if settings.draft is not None:
                captures.append(("draft_decode", "draft verify", size, config["decode"]["bs"]))
        for phase, name, size, sizes in captures:
            self.log.info(
                self.message(
                    "capture_begin",
                    name=name,
                    label="CUDA graph",
                    backend=config["prefill" if phase == "prefill" else "decode"]["backend"],
                    size=size,
                    avail=self.available,
                )
            )
            begin = time.monotonic()
            with self.steps.run("capture", phase=phase):
                pass
            self.graph_seconds[phase] = time.monotonic() - begin
            self.graph_memory[phase] = 0.3
            self.available -= 0.3
            self.log.info(
                self.message(
                    "capture_end",
                    name=name,
                    label="CUDA graph",
                    sizes="" if sizes is None else f"bs={sizes}, ",
                    elapsed=self.graph_seconds[phase],
                    usage=0.3,
                    avail=self.available,
                )
            )

    def _stage_scheduler_ready(self) -> None:
        with self.steps.run("scheduler_ready"):
            pass
        if self.rank.tp == 0:
            resolved = self.settings.resolved
            self.log.info(
                self.message(
                    "max_total_num_tokens",
                    tokens=self.settings.max_total_tokens,
                    chunked=resolved["chunked_prefill_size"],
                    prefill=resolved["max_prefill_tokens"],
                    requests=self.settings.max_running_requests,
                    context=self.settings.context_length,
                    memory_name="available_gpu_mem" if self.settings.cuda else "available_cpu_mem",
                    avail=self.available,
                )
            )
        self.log.info(
            "Init Unified Radix Cache. Components: (<ComponentType.FULL: 0>,). Tree Core: RustUnifiedTreeCore"
        )
        self.log.info(
            "Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=False"
            " hicache_attached=False"
        )

    # Serving

    def _follow(self) -> None:
        """A rank that does not lead takes part in each forward pass: without its answer nothing is generated."""
        while True:
            message = self.channel.receive()
            if message is None or message["op"] == "shutdown":
                return
            self.channel.send({"op": "joined", "rid": message["rid"]})


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


@dataclass
class _Request:
    rid: str
    prompt_tokens: int
    cached_tokens: int
    limit: int
    ignore_eos: bool
    log_metrics: bool
    stream: text.Stream
    arrived: float
    done: int = 0
    verify: int = 0
    correct: int = 0
    histogram: list[int] = field(default_factory=list)


class Generator:
    """Continuous batching: admit, prefill, then one decode (or draft and verify) step after the other."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._settings = scheduler.settings
        self._times = scheduler.steps.times
        self._log = scheduler.log
        self._channel = scheduler.channel
        self._label = "cuda graph" if self._settings.cuda else "cpu graph"
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._cached: set[str] = set()
        self._warm = False
        self._decode_steps = 0
        self._interval_tokens = 0
        self._interval_begin = time.monotonic()
        self._last_prefill = time.monotonic()
        self._interval_verify = 0
        self._interval_correct = 0
        self._total_tokens = 0
        self._total_verify = 0
        self._stats: dict[str, Any] = {"gen_throughput": 0.0, "accept_length": None, "accept_rate": None}

    def loop(self) -> None:
        while True:
            message = self._channel.receive(0.0 if self._running or self._waiting else None)
            if message is not None:
                if message["op"] == "shutdown":
                    return
                self._take(message)
                continue
            self._prefill()
            if self._running:
                self._decode()

    def _take(self, message: dict[str, Any]) -> None:
        if message["op"] == "generate":
            prompt = message["prompt"]
            tokens = message["prompt_tokens"]
            cached = tokens - 1 if prompt in self._cached else 0
            self._waiting.append(
                _Request(
                    rid=message["rid"],
                    prompt_tokens=tokens,
                    cached_tokens=cached,
                    limit=message["max_new_tokens"],
                    ignore_eos=message["ignore_eos"],
                    log_metrics=message["log_metrics"],
                    stream=text.Stream(prompt),
                    arrived=time.monotonic(),
                )
            )
            if message["log_metrics"]:
                self._cached.add(prompt)
        elif message["op"] == "abort":
            for queue in (self._waiting, self._running):
                for request in list(queue):
                    if request.rid == message["rid"]:
                        queue.remove(request)
                        self._send(request, [], {"type": "abort", "message": "Abort before prefill"})
        elif message["op"] == "flush":
            idle = not self._waiting and not self._running
            if idle:
                self._cached.clear()
                self._log.info("Cache flushed successfully!")
            elif message["final"]:
                self._log.warning(
                    f"Cache not flushed because there are pending requests. #queue-req: {len(self._waiting)},"
                    f" #running-req: {len(self._running)}"
                )
            self._channel.send({"op": "flush", "rid": message["rid"], "idle": idle})

    def _prefill(self) -> None:
        room = self._settings.max_running_requests - len(self._running)
        batch = self._waiting[: max(0, room)]
        if not batch:
            return
        del self._waiting[: len(batch)]
        if not self._warm:
            self._warm = True
            with self._scheduler.steps.run("warm_up"):
                pass
        time.sleep(self._times.seconds("prefill"))
        now = time.monotonic()
        new = sum(request.prompt_tokens - request.cached_tokens for request in batch)
        self._log.info(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {new},"
            f" #cached-token: {sum(request.cached_tokens for request in batch)}, token usage: {self._usage():.2f},"
            f" #running-req: {len(self._running)}, #queue-req: {len(self._waiting)}, #pending-token: 0,"
            f" {self._label}: {self._settings.graph_enabled('prefill')},"
            f" input throughput (token/s): {new / max(now - self._last_prefill, 1e-6):.2f}"
        )
        self._last_prefill = now
        self._interval_begin = now
        self._interval_tokens = 0
        for request in batch:
            self._running.append(request)
            self._advance(request, 1)

    def _decode(self) -> None:
        time.sleep(self._times.seconds("decode_step"))
        block = self._settings.block_size
        for request in list(self._running):
            count = 1
            if block:
                correct = request.stream.correct_drafts(block - 1)
                correct = min(correct, self._left(request) - 1)
                count += correct
                request.verify += 1
                request.correct += correct
                request.histogram += [0] * (correct + 1 - len(request.histogram))
                request.histogram[correct] += 1
                self._interval_verify += 1
                self._interval_correct += correct
            self._advance(request, count)
        self._decode_steps += 1
        if self._decode_steps % self._settings.resolved["decode_log_interval"] == 0:
            self._log_decode(block)

    def _log_decode(self, block: int) -> None:
        now = time.monotonic()
        throughput = self._interval_tokens / max(now - self._interval_begin, 1e-6)
        self._stats["gen_throughput"] = throughput
        accepted = ""
        if block:
            verify = max(1, self._interval_verify)
            length = 1 + self._interval_correct / verify
            rate = self._interval_correct / (verify * max(1, block - 1))
            accepted = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
            self._total_verify += self._interval_verify
            self._total_tokens += self._interval_verify + self._interval_correct
            self._stats.update(
                accept_length=length,
                accept_rate=rate,
                avg_accept_length=self._total_tokens / max(1, self._total_verify),
            )
        tokens = sum(request.prompt_tokens + request.done for request in self._running)
        self._log.info(
            f"Decode batch, #running-req: {len(self._running)}, #token: {tokens}, token usage: {self._usage():.2f},"
            f" {accepted}{self._label}: {self._settings.graph_enabled('decode')},"
            f" gen throughput (token/s): {throughput:.2f}, #queue-req: {len(self._waiting)}"
        )
        self._interval_begin = now
        self._interval_tokens = self._interval_verify = self._interval_correct = 0

    def _usage(self) -> float:
        used = sum(request.prompt_tokens + request.done for request in self._running)
        return used / self._settings.max_total_tokens

    @staticmethod
    def _left(request: _Request) -> int:
        limit = request.limit if request.ignore_eos else min(request.limit, request.stream.natural_length)
        return limit - request.done

    def _advance(self, request: _Request, count: int) -> None:
        count = min(count, self._left(request))
        ids = request.stream.take(count)
        request.done += count
        self._interval_tokens += count
        reason: dict[str, Any] | None = None
        if self._left(request) <= 0:
            self._running.remove(request)
            if request.done >= request.limit:
                reason = {"type": "length", "length": request.limit}
            else:
                reason = {"type": "stop", "matched": text.END_OF_TEXT}
        self._send(request, ids, reason)

    def _send(self, request: _Request, ids: list[int], reason: dict[str, Any] | None) -> None:
        self._channel.send(
            {
                "op": "output",
                "rid": request.rid,
                "ids": ids,
                "finish_reason": reason,
                "prompt_tokens": request.prompt_tokens,
                "cached_tokens": request.cached_tokens,
                "completion_tokens": request.done,
                "verify": request.verify,
                "correct": request.correct,
                "histogram": request.histogram,
                "stats": {
                    **self._stats,
                    "running": len(self._running),
                    "waiting": len(self._waiting),
                    "token_usage": self._usage(),
                },
            }
        )


def run_detokenizer(channel: Channel, steps: Steps) -> None:
    """Ids in, text out; nothing reaches a client without it."""
    parent = os.getppid()
    processes.set_spawn_title(SPAWN_CODE)
    with steps.run("rank_imports"):
        pass
    processes.die_with_parent(parent)
    processes.set_title("sglang::detokenizer")
    while True:
        message = channel.receive()
        if message is None or message["op"] == "shutdown":
            return
        channel.send({**message, "text": text.decode(message["ids"])})


def run_resource_tracker(pipe: int) -> None:
    """multiprocessing's helper: ignores SIGINT and SIGTERM, ends when main does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    processes.set_spawn_title("from multiprocessing.resource_tracker import main;main(6)")
    while os.read(pipe, 4096):
        pass


def exit_quietly(status: int) -> None:
    """End a forked child: no clean-up of what it shares with main."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
