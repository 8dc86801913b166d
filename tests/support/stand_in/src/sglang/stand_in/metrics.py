# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`/metrics`: the recorded shape with the figures that the stand-in knows; all others are 0."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.stand_in.api import Api
    from sglang.stand_in.server import Server


def render(server: Server, api: Api) -> str:
    """Prometheus text."""
    settings, totals, stats = server.settings, server.engine.totals, server.engine.stats
    values = {
        "prompt_tokens_total": totals["prompt"],
        "generation_tokens_total": totals["generation"],
        "num_requests_total": totals["requests"],
        "cached_tokens_total": totals["cached"],
        "spec_verify_calls_total": totals["verify"],
        "max_total_num_tokens": settings.max_total_tokens,
        "context_len": settings.context_length,
        "page_size": settings.resolved["page_size"],
        "weight_memory_usage_gb": server.memory["weight"],
        "kv_cache_memory_usage_gb": server.memory["kvcache"],
        "startup_available_gpu_memory_gb": server.memory["available"],
        "num_running_reqs": stats.get("running", 0),
        "num_queue_reqs": stats.get("waiting", 0),
        "gen_throughput": stats["gen_throughput"],
        "token_usage": stats["token_usage"],
        "spec_accept_length": stats["accept_length"] or 0,
        "spec_accept_rate": stats.get("accept_rate") or 0,
        "spec_num_steps": settings.resolved["speculative_num_steps"] or 0,
        "spec_num_draft_tokens": settings.block_size,
    }
    phases = {
        "startup_time_seconds": {k: v for k, v in server.startup_time.items() if k != "cuda_graph"},
        "startup_cuda_graph_time_seconds": server.startup_time["cuda_graph"],
    }
    name_label = str(settings.resolved["served_model_name"]).replace("\\", r"\\").replace('"', r"\"")
    lines = []
    for line in settings.profile.text("metrics.txt").splitlines():
        match = re.match(r"sglang:(\w+)(\{.*\})? ", line)
        if match:
            if not settings.block_size and match[1].startswith("spec_"):
                continue
            value = float(values.get(match[1], 0))
            phase = re.search(r'phase="(\w+)"', line)
            if match[1] in phases and phase:
                value = float(phases[match[1]][phase[1]])
            if 'is_streaming="true"' in line:
                value = 0.0
            line = f"{line.rpartition(' ')[0]} {value}"
        lines.append(line.replace("@MODEL@", name_label))
    lines += _http_counters(api)
    return "\n".join(lines) + "\n"


def _http_counters(api: Api) -> list[str]:
    lines = ["# HELP sglang:http_requests_total Total number of HTTP requests by endpoint and method"]
    lines.append("# TYPE sglang:http_requests_total counter")
    for (path, method), count in sorted(api.counts.items()):
        lines.append(f'sglang:http_requests_total{{endpoint="{path}",method="{method}"}} {float(count)}')
    lines.append("# HELP sglang:http_responses_total Total number of HTTP responses by endpoint and status code")
    lines.append("# TYPE sglang:http_responses_total counter")
    for (path, method, status), count in sorted(api.status_counts.items()):
        lines.append(
            f'sglang:http_responses_total{{endpoint="{path}",method="{method}",status_code="{status}"}} {float(count)}'
        )
    return lines
