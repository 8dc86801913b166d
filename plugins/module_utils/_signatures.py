# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of known failures of a start: what is logged, what it means, what to do. PRIVATE to specdec.serving.

Data, and the little that is needed to look a line up. Numbers F1 to F37, W1 and W2 are SGLang's own messages, read from
its source (paths of 0.5.23 below `srt/`) or public reports (`#N` is an issue of sgl-project/sglang); S are crashes told by
their traceback's frames, X what surrounds SGLang, E echoes of a failure elsewhere, SD what systemd says.
A row higher up is more specific: of the rows that fit one exception the first one names it.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

__all__ = [
    "CAUSE",
    "CERTAIN",
    "ECHO",
    "SIGNATURES",
    "SYMPTOM",
    "WARNING",
    "Signature",
    "look_up",
]

#: How much a row weighs. The heaviest kind wins, then what came first.
CERTAIN = 0  # ends the process by itself
CAUSE = 1
SYMPTOM = 2  # explains only when nothing else does
ECHO = 3  # another rank or process failed
WARNING = 9  # the start goes on

#: Requests and arguments are logged with their contents, which may hold any text.
_QUOTING = ("Receive: ", "Finish: ", "Decode batch", "Prefill batch", "server_args=", "Engine startup timings")


@dataclass(frozen=True)
class Signature:
    """One known failure.

    `pattern` is searched in a line after its prefix, or in the text of an exception; `frames` must then each fit one frame
    (`file:function`) of that exception's own traceback. `needles`: a line that fits holds one of them, which is what a line
    is tested for first. `where`: `log` anywhere in the output, `exception` in tracebacks only, `last` in the last line of a
    start that stands still, `manager` in what systemd logs, `exit` in `result NAME` or `exited|killed|dumped NUMBER`.
    `otherwise` is the remedy when the switches that `remedy` names are set already.
    `summary` may use the named groups of `pattern`, `remedy` also the names of `_releases.flags`.
    """

    id: str
    pattern: t.Pattern[str]
    cause: str
    summary: str
    remedy: str
    severity: str
    source: str
    level: int = CAUSE
    where: str = "log"
    frames: tuple[t.Pattern[str], ...] = ()
    needles: tuple[str, ...] = ()
    otherwise: str = ""


# --- the table --------------------------------------------------------------------------------------------------------------


def _row(
    id_: str,
    cause: str,
    needles: tuple[str, ...],
    summary: str,
    remedy: str,
    source: str,
    *,
    pattern: str = "",
    level: int = CAUSE,
    severity: str = "",
    where: str = "log",
    frames: tuple[str, ...] = (),
    otherwise: str = "",
) -> Signature:
    return Signature(
        id=id_,
        pattern=re.compile(pattern or "|".join(re.escape(needle) for needle in needles)),
        cause=cause,
        summary=summary,
        remedy=remedy,
        severity=severity or ("warning" if level == WARNING else "error"),
        source=source,
        level=level,
        where=where,
        frames=tuple(re.compile(frame, re.IGNORECASE) for frame in frames),
        needles=needles,
        otherwise=otherwise,
    )


_NONE_TYPE = r"^(?:TypeError|AttributeError): .*NoneType"
# A frame that captures or replays a graph: by the file's or the function's name (of SGLang, FlashInfer or torch).
_GRAPH_FRAME = r"cuda_?graph|graph_runner|graph_backend|/cuda/graphs\.py:|:_?(?:replay|capture)(?:_|$)"
_LESS_MEMORY = (
    "Lower --mem-fraction-static (above 0.85 is reported fatal for Kimi K2.6 on RTX PRO 6000), {graph_max_bs}, "
    "--max-running-requests or --chunked-prefill-size"
)
_OTHER_BACKEND = "Choose another --attention-backend (on RTX PRO 6000, SM120: triton or flashinfer)"

_LOG_ROWS = (
    _row(
        "F10",
        "port_conflict",
        ("error while attempting to bind on address",),
        "the server could not bind its port",
        "Stop the process that holds the port, or give this instance another port.",
        "uvicorn; it shows only after everything is loaded",
        pattern=r"^\[Errno \d+\] error while attempting to bind on address",
        level=CERTAIN,
    ),
    _row(
        "F10-name",
        "address_not_available",
        ("[Errno -",),
        "the server could not bind its port: {problem}",
        "Correct --host: this host does not know the name.",
        "uvicorn: socket.gaierror",
        pattern=(
            r"^\[Errno -\d+\] (?P<problem>Name or service not known|Temporary failure in name resolution"
            r"|No address associated with hostname|Name does not resolve)"
        ),
        level=CERTAIN,
    ),
    _row(
        "F1",
        "argument_error",
        (": error: ",),
        "SGLang refused its arguments: {problem}",
        "Correct the argument (with the role, under args of the instance): the installed release does not know it, or "
        "refuses its value.",
        "argparse; exit status 2",
        pattern=(
            r"^[\w./ -]{1,60}: error: (?P<problem>(?:unrecognized arguments|ambiguous option|argument \S+:|the following"
            r" arguments|invalid choice|expected ).*)"
        ),
        level=CERTAIN,
    ),
    # -- crashes that only the frames tell apart
    _row(
        "F26",
        "nvfp4_kv_cache",
        ("NoneType",),
        "the nvfp4 KV cache has no prefix lengths to work with during DFLASH or NEXTN",
        "Set --kv-cache-dtype to fp8_e4m3 or auto.",
        "#36001",
        pattern=r"^TypeError: 'NoneType' object is not subscriptable",
        where="exception",
        frames=(r":_prepare_dequant_extend_workspace$",),
    ),
    _row(
        "S1",
        "dflash_graph_crash",
        ("NoneType",),
        "the DFlash worker met a missing value (NoneType) below the capture or replay of a CUDA graph",
        "Start with {decode_graph_off}, which costs speed, or use a newer SGLang release, where the DFlash worker was rewritten.",
        "DFLASH workers of 0.5.11 and later; no public report is known",
        pattern=_NONE_TYPE,
        where="exception",
        frames=("dflash", _GRAPH_FRAME),
        otherwise="CUDA graphs are off already by the arguments, and their code ran all the same: use a newer SGLang release, where the DFlash worker was "
        "rewritten, or start without speculation to see whether the rest of the configuration works.",
    ),
    _row(
        "S2",
        "graph_crash",
        ("NoneType",),
        "a missing value (NoneType) was met below the capture or replay of a CUDA graph",
        "Start with {decode_graph_off}, which costs speed; if it also happens then, graphs are not the cause.",
        "any graph runner",
        pattern=_NONE_TYPE,
        where="exception",
        frames=(_GRAPH_FRAME,),
        otherwise="CUDA graphs are off already by the arguments, and their code ran all the same: use a newer SGLang release, or another "
        "--attention-backend.",
    ),
    # -- graphs
    _row(
        "F25",
        "prefill_graph_crash",
        ("num_active_captures_ > 0 INTERNAL ASSERT FAILED",),
        "the prefill graph failed while it was captured (known for DFLASH with the breakable prefill graph on SM120)",
        "Set {prefill_graph_off}.",
        "#35437",
        otherwise="The prefill graph is off already by the arguments: use a newer SGLang release, or another --attention-backend.",
    ),
    _row(
        "F27",
        "draft_tokens",
        ("Capture cuda graph failed: ",),
        "graph capture failed in FP4 code",
        "If --speculative-num-draft-tokens is 2, use 4, 6 or 8 (reported: always failed at 2, never above); "
        "else set {decode_graph_off}.",
        "Blackwellboy/model-serving-minefield#105",
        pattern=r"(?i)Capture cuda graph failed: .*fp4",
        otherwise="If --speculative-num-draft-tokens is 2, use 4, 6 or 8 (reported: always failed at 2, never above). CUDA graphs for decoding are off "
        "already by the arguments.",
    ),
    _row(
        "F4-memory",
        "gpu_out_of_memory",
        ("Capture cuda graph failed: ",),
        "the GPU's memory ran out while CUDA graphs were captured",
        f"{_LESS_MEMORY}; or set {{decode_graph_off}}.",
        "runner/decode_cuda_graph_runner.py:603",
        pattern=r"Capture cuda graph failed: .*out of memory",
        otherwise=f"{_LESS_MEMORY}. CUDA graphs for decoding are off already by the arguments.",
    ),
    _row(
        "F23",
        "gemm_failed",
        ("Error occurred when running GEMM!",),
        "a GEMM kernel failed (known for FP4 models with EAGLE on B300 in 0.5.12)",
        "Use another SGLang release (0.5.11 worked), or {other_fp4_backend}.",
        "#25563",
    ),
    _row(
        "F21",
        "attention_backend",
        ("TllmGenFmhaRunner: Unsupported architecture",),
        "the attention kernel (trtllm-gen) does not support this GPU",
        f"{_OTHER_BACKEND}.",
        "#37105",
    ),
    _row(
        "F24",
        "illegal_memory_access",
        ("an illegal memory access was encountered", "cudaErrorIllegalAddress"),
        "a CUDA kernel accessed memory that is not its own",
        "Set {decode_graph_off} or {prefill_graph_off}, for the phase that fails, lower {graph_max_bs}, or choose another "
        "--attention-backend.",
        "#24361, z-lab/dflash#61, z-lab/dflash#146",
        otherwise="CUDA graphs are off already by the arguments: choose another --attention-backend, or another SGLang release.",
    ),
    _row(
        "F22",
        "kernels_missing",
        (
            "no kernel image is available for execution on the device",
            "is not compatible with the current PyTorch installation",
        ),
        "the installed wheels hold no kernels for this GPU",
        "Install builds for CUDA 12.8 or newer (cu130), which hold kernels for SM120 and SM103.",
        "torch; #38515, #12178",
    ),
    # -- memory
    _row(
        "F2",
        "kv_cache_memory",
        ("Not enough memory. Please try to increase --mem-fraction-static.",),
        "no memory is left for the KV cache (--mem-fraction-static {value})",
        "Raise --mem-fraction-static, or lower --context-length, --max-running-requests or {graph_max_bs}, or use a smaller draft.",
        "model_executor/pool_configurator.py:96",
        pattern=(
            r"Not enough memory\. Please try to increase --mem-fraction-static\."
            r"(?: Current value: mem_fraction_static=(?P<value>\d+(?:\.\d+)?))?"
        ),
    ),
    _row(
        "F3",
        "kv_cache_memory",
        ("Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=",),
        "the weights leave no GPU memory for the KV cache",
        "Raise --mem-fraction-static to the minimum that the message names, or use more GPUs or smaller weights.",
        "mem_cache/kv_cache_configurator.py:3051",
    ),
    _row(
        "F29",
        "nccl_memory",
        ("Failed to CUDA calloc",),
        "NCCL found no memory on a GPU that is nearly full",
        "Lower --mem-fraction-static, and look for other processes on the GPU.",
        "NCCL",
    ),
    _row(
        "F6",
        "gpu_occupied",
        ("The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",),
        "one GPU has less free memory than the others: another process occupies it",
        "End the process that is left on that GPU; if the imbalance is meant, SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0.",
        "distributed/bootstrap.py:445",
    ),
    _row(
        "F5",
        "gpu_out_of_memory",
        ("CUDA out of memory. Tried to allocate",),
        "the GPU's memory ran out",
        f"While weights load, look for another process on the GPU; later: {_LESS_MEMORY}.",
        "torch",
    ),
    _row(
        "F36",
        "scheduler_killed",
        ("scheduler died during initialization",),
        "a scheduler was killed (SIGKILL) while it started, and no OOM killer is seen in the kernel's log",
        "Find out who sends SIGKILL. If the host or a container around it is short of memory: give it more, or load with fewer "
        "threads{fewer_loader_threads}.",
        "entrypoints/engine.py:2003",
        pattern=r"scheduler died during initialization \(exit code: -9\)",
        level=SYMPTOM,
    ),
    _row(
        "F36-older",
        "scheduler_killed",
        ("Exit code: -9",),
        "a scheduler was killed (SIGKILL) while it started, and no OOM killer is seen in the kernel's log",
        "Find out who sends SIGKILL. If the host or a container around it is short of memory: give it more, or load with fewer "
        "threads{fewer_loader_threads}.",
        "entrypoints/engine.py:592 of 0.4.6, :900 of 0.5.9",
        pattern=r"^Exit code: -9$",
        level=SYMPTOM,
    ),
    # -- files, models, arguments
    _row(
        "F14",
        "draft_missing",
        ("DFLASH speculative decoding requires setting --speculative-draft-model-path.",),
        "DFLASH needs a draft model and none was given",
        "Set --speculative-draft-model-path.",
        "arg_groups/speculative_hook.py",
    ),
    _row(
        "F15",
        "speculation_unsupported",
        ("implements neither set_dspark_layers_to_capture nor set_dflash_layers_to_capture",),
        "this release cannot run DFLASH with this target model",
        "Use a release whose class of the target model has the DFLASH hooks, or another --speculative-algorithm.",
        "attention_backend_setup.py:69; #35784",
    ),
    _row(
        "X1",
        "speculation_unsupported",
        ("speculative decoding is not supported by",),
        "the speculative algorithm does not run on this device",
        "Use another --speculative-algorithm on this device, or none.",
        "arg_groups/speculative_hook.py:298",
        pattern=r"\w+ speculative decoding is not supported by",
    ),
    _row(
        "F16",
        "trust_remote_code",
        ("trust_remote_code=True", "contains custom code which must be executed"),
        "the model brings code of its own, which was not allowed to run",
        "Add --trust-remote-code if you trust that code (Kimi targets and drafts need it).",
        "utils/hf_transformers/tokenizer.py:205; transformers",
        pattern=r"consider setting `?trust_remote_code=True`?|contains custom code which must be executed",
    ),
    _row(
        "F13",
        "model_not_found",
        ("Repo id must ", "is not a local folder and is not a valid model identifier"),
        "there is no model at the path of the target or the draft",
        "Correct --model-path or --speculative-draft-model-path, or mount the file system that holds it.",
        "huggingface_hub, transformers",
        pattern=r"Repo id must (?:use alphanumeric chars|be in the form)|is not a local folder and is not a valid model identifier",
    ),
    _row(
        "F12",
        "weights_missing",
        ("Cannot find any model weights with",),
        "the model's folder holds no weights",
        "Complete the download of the model, or correct the path.",
        "model_loader/loader.py:581",
    ),
    _row(
        "X2",
        "weights_damaged",
        ("SafetensorError", "MetadataIncompleteBuffer", "InvalidHeaderDeserialization"),
        "a weight file is damaged or incomplete",
        "Compare the model's files with their published sizes and checksums, and download again what differs.",
        "safetensors",
        pattern=r"(?:^|\.)SafetensorError: |MetadataIncompleteBuffer|InvalidHeaderDeserialization",
        where="exception",
    ),
    _row(
        "F17",
        "quantization",
        ("Unknown quantization method:", "Quantization method specified in the model config"),
        "--quantization does not fit the model",
        "Leave --quantization out, or {draft_unquantized} if it is the draft that differs.",
        "configs/model_config.py:2144,2153",
        pattern=r"Unknown quantization method:|Quantization method specified in the model config \(.*does not match",
    ),
    _row(
        "F18",
        "quantization",
        ("is not supported for the current GPU. Minimum capability:",),
        "this GPU cannot run the model's quantization",
        "Use weights of another quantization, or a newer GPU.",
        "model_loader/loader.py:262",
    ),
    _row(
        "F19",
        "attention_backend",
        ("FlashAttention v3 Backend requires SM>=80 and SM<=90.",),
        "FlashAttention 3 does not run on this GPU",
        f"{_OTHER_BACKEND}.",
        "attention_registry.py:244",
    ),
    _row(
        "F20",
        "attention_backend",
        (
            "trtllm_mha backend can only be used with non-MLA models.",
            "TRTLLM MLA backend is only supported on Blackwell GPUs",
            "CuteDSL MLA backend is only supported on Blackwell GPUs",
        ),
        "the attention backend does not fit the model or the GPU",
        f"{_OTHER_BACKEND}.",
        "attention_registry.py:280, overrides.py:1210,1244",
    ),
    _row(
        "F34",
        "context_length",
        ("is greater than the derived context_length",),
        "--context-length is greater than what the model says it supports",
        "Lower --context-length, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 if you know that it works.",
        "configs/model_config.py:1299",
    ),
    _row(
        "F11",
        "internal_port_conflict",
        ("Port is already in use. dist_init_port=", "is already in use", "is not available in 30 seconds"),
        "a port that SGLang uses internally is taken, mostly by another instance",
        "Give each instance its own {internal_ports}; with {attention_dp} a block of ports after it is used.",
        "server_args.py:838, utils/network.py:103, entrypoints/engine.py:1196",
        pattern=(
            r"Port is already in use\. dist_init_port=|engine_info_bootstrap_port\b.{0,40} is already in use"
            r"|is not available in 30 seconds"
        ),
    ),
    # -- the installation
    _row(
        "F32",
        "engine_damaged",
        ("which is less than the minimum required version",),
        "packages of different releases are mixed in the engine's environment",
        "Install the engine again from its lock file; SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 only hides it.",
        "utils/common.py:2431",
        pattern=r"is installed with version .*which is less than the minimum required version",
    ),
    _row(
        "F33",
        "toolkit_missing",
        ("cuda_fp8.h: No such file", "nvcc", "ninja"),
        "kernels are compiled at start and a tool for it is missing",
        "Install the CUDA toolkit (nvcc, headers) and ninja on the target, and name it with CUDA_HOME.",
        "flashinfer; #5389, #23386",
        pattern=(
            r"cuda_fp8\.h: No such file|Could not find nvcc|\bnvcc: (?:command )?not found"
            r"|No such file or directory: '[^']*\b(?:nvcc|ninja)'|\bninja: (?:command )?not found|Ninja is required"
        ),
    ),
    _row(
        "X3",
        "engine_damaged",
        ("No module named ", "cannot import name", "Error while finding module specification"),
        "the engine's environment is incomplete or damaged",
        "Install the engine again: delete its engine.json and deploy; if a package is missing from the lock file, add it.",
        "Python",
        pattern=(
            r"^(?:ModuleNotFoundError|ImportError): (?:No module named|cannot import name)"
            r"|^\S*python\S*: (?:No module named|Error while finding module specification)"
        ),
    ),
    _row(
        "X4",
        "gpus_hidden",
        (
            "No CUDA GPUs are available",
            "Found no NVIDIA driver on your system",
            "no CUDA-capable device is detected",
            "CUDA unknown error - this may be due to",
        ),
        "the service sees no GPU",
        "If nvidia-smi shows them outside of the unit, its hardening hides them: PrivateDevices=no, DeviceAllow=/dev/nvidia*, "
        "RestrictAddressFamilies with AF_UNIX and AF_NETLINK. After a boot /dev/nvidia-uvm may be missing: `nvidia-modprobe -u -c=0` as root "
        "makes it, which NoNewPrivileges= forbids the server. Also check CUDA_VISIBLE_DEVICES.",
        "torch; systemd.exec(5)",
    ),
    _row(
        "X5",
        "disk_full",
        ("No space left on device",),
        "a file system (or /dev/shm) is full",
        "Free space where the message points to: the cache folder, the temporary folder or /dev/shm.",
        "errno 28",
        where="exception",
    ),
    _row(
        "X6",
        "permission_denied",
        ("PermissionError: ",),
        "the service's user may not read or write a file",
        "Give the unit's user access to the path that the message names; remote code and caches need a writable folder.",
        "errno 13",
        pattern=r"^PermissionError: ",
        where="exception",
    ),
    # -- between the ranks
    _row(
        "F28",
        "nccl_system_error",
        ("unhandled system error",),
        "NCCL could not set up what it needs from the system",
        "Give the unit LimitMEMLOCK=infinity and a larger /dev/shm; see NCCL_DEBUG=INFO for the call that failed.",
        "#3460, #4289",
        pattern=r"NCCL error(?: in)?: .*unhandled system error",
    ),
    _row(
        "F31",
        "nan_logits",
        ("probability tensor contains either",),
        "the model computed values that are not numbers (NaN)",
        "Choose another --attention-backend or quantization (NVFP4 on SM120 is reported to do this).",
        "torch; public reports",
        pattern=r"probability tensor contains either `?inf`?, `?nan`? or element < 0",
    ),
    _row(
        "F8",
        "watchdog_timeout",
        ("watchdog timeout (",),
        "one forward pass took longer than {seconds} s",
        "Look at the stacks before this line: raise --watchdog-timeout if kernels were compiled, warm the caches; else it hung.",
        "utils/watchdog.py:154",
        pattern=r"watchdog timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]+), self\.soft=False\)",
    ),
    _row(
        "X7",
        "proxy",
        ("model_info HTTP/1", "ProxyError"),
        "SGLang's request to itself went to a proxy",
        "Take http_proxy out of the unit's environment, or set no_proxy to 127.0.0.1,localhost,0.0.0.0 and the host.",
        "requests; #9155, #9814",
        pattern=r'"GET http://[^" ]+/(?:get_)?model_info HTTP/1\.\d" [345]\d\d|(?:^|\.)ProxyError: ',
    ),
    # -- symptoms
    _row(
        "F4",
        "graph_capture_failed",
        ("Capture cuda graph failed: ",),
        "CUDA graphs could not be captured",
        "See what follows the colon; lower --mem-fraction-static and {graph_max_bs}, or set {decode_graph_off}.",
        "runner/decode_cuda_graph_runner.py:603",
        otherwise="See what follows the colon; lower --mem-fraction-static. CUDA graphs for decoding are off already by the arguments.",
    ),
    _row(
        "X8",
        "cuda_error",
        ("CUDA error: ", "AcceleratorError: "),
        "CUDA reported an error: {problem}",
        "Later calls only repeat the first one: set CUDA_LAUNCH_BLOCKING=1 to see where it began, and look for GPU faults.",
        "torch",
        pattern=r"(?:CUDA error|AcceleratorError): (?P<problem>[^\n]{1,200})",
    ),
    _row(
        "F7",
        "rank_straggler",
        ("could finish the model loading, but there are other ranks that didn't finish loading",),
        "one rank did not finish loading: it failed, or its storage is slow",
        "Read that rank's lines; with slow storage, copy the model to a local disk.",
        "model_runner_components/load_model_utils.py:394",
        level=SYMPTOM,
    ),
    _row(
        "F9",
        "scheduler_stuck",
        ("Health check failed. Server couldn't get a response from detokenizer for last",),
        "the scheduler is stuck or overloaded",
        "See what the ranks do (py-spy dump, GPU utilisation and power); restart if it stays.",
        "entrypoints/http_server.py:793",
        level=SYMPTOM,
    ),
    _row(
        "F35",
        "warmup_failed",
        ("Initialization failed. warmup error",),
        "the first request, which SGLang sends to itself, failed or timed out",
        "If it names /model_info, another server has the port or a proxy is between; else read the scheduler's lines.",
        "entrypoints/http_server.py:2386,2535",
        level=SYMPTOM,
    ),
    _row(
        "X9",
        "child_died",
        (") crashed with exit code -",),
        "{name} died of signal {number} and left no Python traceback",
        "6: see NCCL's or CUDA's lines before it; 7: /dev/shm is full; 9: the kernel's OOM killer; 11: a native library; "
        "15: somebody ended it.",
        "utils/watchdog.py:215; #18421",
        pattern=r"Subprocess (?P<name>\S+) \(pid=\d+\) crashed with exit code -(?P<number>\d+)",
        level=SYMPTOM,
    ),
    _row(
        "X9-older",
        "child_died",
        ("Child process unexpectedly failed with an exit code ",),
        "a process of the server ended (wait status {number}), and this release goes on without it",
        "Restart the unit. Wait status 6: see NCCL's or CUDA's lines before it; 7: /dev/shm is full; 9: the kernel's OOM killer; "
        "11: a native library; 256 and above: see the traceback before.",
        "entrypoints/engine.py:460 of 0.4.6",
        pattern=r"^Child process unexpectedly failed with an exit code (?P<number>\d+)",
        level=SYMPTOM,
    ),
    # -- echoes
    _row(
        "E1",
        "child_failed",
        # The shorter form: some 0.4 releases lack the last letter (#3460).
        ("Received sigquit from a child proces", "SIGQUIT received. "),
        "a child process of the server failed and left no reason in the log",
        "See the kernel's log, and the lines before.",
        "entrypoints/engine.py:1978, managers/tokenizer_manager.py:4074",
        level=ECHO,
    ),
    _row(
        "E2",
        "child_failed",
        ("scheduler died during initialization", "scheduler is dead. Please check if there are relevant logs."),
        "a scheduler ended while it started{code}",
        "See the lines of that rank before.",
        "entrypoints/engine.py:2003; :589 of 0.4.6, :897 of 0.5.9",
        pattern=(
            r"scheduler died during initialization(?P<code> \(exit code: -?\w+\))"
            r"|^Rank \d+ scheduler is dead\. Please check if there are relevant logs\."
        ),
        level=ECHO,
    ),
    _row(
        "E3",
        "peer_lost",
        (
            "ncclRemoteError",
            "remote process exit",
            "Connection closed by peer",
            "caught collective operation timeout",
            "monitoredBarrier",
            "ConnectionResetError",
            "BrokenPipeError",
            "EOFError",
        ),
        "another rank went away or stood still",
        "Look for the rank whose lines end first.",
        "NCCL, gloo",
        pattern=(
            r"ncclRemoteError|remote process exit|Connection closed by peer|caught collective operation timeout"
            r"|monitoredBarrier|^(?:ConnectionResetError|BrokenPipeError|EOFError)\b"
        ),
        level=ECHO,
    ),
    _row(
        "F37",
        "gpu_memory_held",
        ("not reaped within", "Schedulers still alive 15s after ShutdownReq, killing them before they released:"),
        "processes of the server outlived its end, and may hold GPU memory for a while",
        "Wait until nvidia-smi shows no process on the GPUs before the next start.",
        "utils/common.py:2491, managers/tokenizer_manager.py:3556",
        pattern=r"kill_process_tree: \d+ process\(es\) not reaped within|Schedulers still alive \d+s after ShutdownReq",
        level=WARNING,
    ),
    _row(
        "W1",
        "custom_all_reduce_off",
        ("is disabled because it's not supported on more than two PCIe-only GPUs.",),
        "custom all-reduce is off, which is normal on more than two GPUs without NVLink",
        "--disable-custom-all-reduce says so by itself.",
        "custom_all_reduce_utils.py:492",
        level=WARNING,
        severity="info",
    ),
    _row(
        "W2",
        "draft_graph_off",
        ("Disable DFLASH draft cuda graph because",),
        "the DFlash draft runs without CUDA graphs, and slowly",
        "See the reason in the line: mostly the draft's attention backend ({draft_attention_backend}).",
        "speculative/dflash_worker_v2.py:721,731",
        level=WARNING,
    ),
    _row(
        "F30",
        "collective_hang",
        ("Init parallel begin.", "Init torch distributed begin."),
        "nothing was logged since the ranks began to connect: the first collective hangs",
        "Full GPU utilisation at idle power shows it. Check IOMMU and ACS settings, set NCCL_P2P_LEVEL=PHB or "
        "NCCL_P2P_DISABLE=1, and --disable-custom-all-reduce.",
        "public reports for RTX PRO 6000",
        pattern=r"^Init (?:parallel|torch distributed) begin\.",
        level=SYMPTOM,
        where="last",
    ),
)

# Exit statuses of systemd itself, "PROCESS EXIT CODES" in systemd.exec(5): the program never ran.
_EXEC = {
    200: (
        "CHDIR",
        "its WorkingDirectory cannot be entered",
        "Create WorkingDirectory, or give the unit's user access.",
    ),
    202: ("FDS", "its file descriptors could not be set up", "Look at systemd's line before."),
    203: (
        "EXEC",
        "its program could not be executed",
        "Check that ExecStart's program exists, may be executed, and fits the CPU.",
    ),
    205: (
        "LIMITS",
        "a resource limit could not be set",
        "Check the Limit settings (LimitMEMLOCK, LimitNOFILE) of the unit.",
    ),
    208: ("STDIN", "its standard input could not be opened", "Check StandardInput."),
    209: ("STDOUT", "its standard output could not be opened", "Check StandardOutput: the file's folder must exist."),
    214: ("SETSCHEDULER", "its scheduling could not be set", "Check CPUSchedulingPolicy and the like."),
    215: ("CPUAFFINITY", "its CPU affinity could not be set", "Check CPUAffinity against the CPUs of the host."),
    216: (
        "GROUP",
        "its group does not exist",
        "Create the group of the unit, or correct Group and SupplementaryGroups.",
    ),
    217: ("USER", "its user does not exist", "Create the user of the unit, or correct User."),
    218: ("CAPABILITIES", "its capabilities could not be set", "Check CapabilityBoundingSet and AmbientCapabilities."),
    219: ("CGROUP", "its control group could not be set up", "Check Slice and the cgroup controllers of the host."),
    222: ("STDERR", "its standard error could not be opened", "Check StandardError: the file's folder must exist."),
    226: (
        "NAMESPACE",
        "its mount namespace could not be set up",
        "Create the folders in ReadWritePaths, BindPaths and the like.",
    ),
    228: ("SECCOMP", "its system call filter could not be set", "Check SystemCallFilter."),
    232: ("ADDRESS_FAMILIES", "its address families could not be restricted", "Check RestrictAddressFamilies."),
    233: ("RUNTIME_DIRECTORY", "its RuntimeDirectory could not be made", "Check RuntimeDirectory and /run."),
    235: ("CHOWN", "an owner could not be set", "Look at systemd's line before."),
    238: ("STATE_DIRECTORY", "its StateDirectory could not be made", "Check StateDirectory and /var/lib."),
    239: ("CACHE_DIRECTORY", "its CacheDirectory could not be made", "Check CacheDirectory and /var/cache."),
    242: (
        "NUMA_POLICY",
        "its NUMA policy could not be set",
        "Check NUMAPolicy and NUMAMask against the nodes of the host.",
    ),
    243: (
        "CREDENTIALS",
        "its credentials could not be set up",
        "Check that LoadCredential's files exist and root can read them.",
    ),
}

_SIGNALS = {
    3: ("QUIT", "SGLang's own way to end when a child fails", "See the lines of the children before."),
    4: ("ILL", "an instruction that this CPU does not have", "Use a build for this CPU."),
    6: ("ABRT", "an abort in native code (NCCL, CUDA)", "See the lines before; NCCL_DEBUG=INFO tells more."),
    7: ("BUS", "mostly a full /dev/shm", "Enlarge /dev/shm, or free it."),
    8: ("FPE", "a division by zero in native code", "Report it with the core dump."),
    9: (
        "KILL",
        "SGLang ends itself so when a child failed; else an OOM killer or a person",
        "See the lines before, and the kernel's log.",
    ),
    11: ("SEGV", "a fault in native code", "See the core dump (coredumpctl) for the library."),
    15: ("TERM", "somebody ended it while it loaded", "Find out who sent it; start again."),
}


def _exit_row(id_: str, cause: str, text: str, summary: str, remedy: str, level: int) -> Signature:
    return _row(
        id_,
        cause,
        (text,),
        summary,
        remedy,
        "systemd.exec(5), systemd.service(5)",
        pattern=rf"^{text}$",
        level=level,
        where="exit",
    )


_SYSTEMD_ROWS = (
    *(
        _exit_row(f"SD{number}", "exec_failed", f"exited {number}", f"{number}/{name}: {meaning}", action, CERTAIN)
        for number, (name, meaning, action) in _EXEC.items()
    ),
    _exit_row(
        "SD-oom-kill",
        "host_out_of_memory",
        "result oom-kill",
        "the kernel's OOM killer ended a process of the unit",
        "Give the host or the unit (MemoryMax) more memory, or load with fewer threads.",
        CERTAIN,
    ),
    _exit_row(
        "SD-start-limit",
        "start_limit",
        "result start-limit-hit",
        "systemd gave up: too many starts in a short time",
        "Read why the earlier starts failed, then `systemctl reset-failed` and start again.",
        SYMPTOM,
    ),
    _exit_row(
        "SD-exec-condition",
        "condition",
        "result exec-condition",
        "an ExecCondition of the unit said no",
        "Meet the condition, or correct it.",
        CERTAIN,
    ),
    _exit_row(
        "SD-timeout",
        "timeout",
        "result timeout",
        "systemd's own timeout passed",
        "Raise TimeoutStartSec (or TimeoutStopSec), or RuntimeMaxSec if that is set.",
        SYMPTOM,
    ),
    _exit_row(
        "SD-watchdog",
        "systemd_watchdog",
        "result watchdog",
        "the unit has a WatchdogSec and SGLang did not report to it",
        "Take WatchdogSec out of the unit: SGLang does not speak systemd's watchdog protocol.",
        SYMPTOM,
    ),
    _exit_row(
        "SD-protocol",
        "protocol",
        "result protocol",
        "the unit's Type does not fit the program",
        "Use Type=exec: SGLang does not tell systemd when it is ready.",
        SYMPTOM,
    ),
    _exit_row(
        "SD-resources",
        "resources",
        "result resources",
        "systemd lacked something to start it: an environment file, a folder, memory",
        "See systemd's line before for what is missing.",
        CERTAIN,
    ),
    *(
        _row(
            f"SIG{name}",
            "signal",
            (f"killed {number}", f"dumped {number}"),
            f"the main process died of SIG{name}: {meaning}",
            action,
            "signal(7)",
            pattern=rf"^(?:killed|dumped) {number}$",
            level=ECHO if number in (3, 9) else SYMPTOM,
            where="exit",
        )
        for number, (name, meaning, action) in _SIGNALS.items()
    ),
    _row(
        "SD-condition",
        "condition",
        ("condition check", "Condition check", "Assertion failed"),
        "systemd did not start it: a Condition or Assert of the unit is not met",
        "Meet the condition that the line names, or take it out of the unit.",
        "systemd.unit(5)",
        pattern=r"was skipped because .*condition check|Condition check resulted in .* being skipped|^Assertion failed for ",
        where="manager",
    ),
    _row(
        "SD-dependency",
        "dependency_failed",
        ("Dependency failed for ",),
        "systemd did not start it: a unit that it requires failed",
        "Read why that unit failed, mend it, and start again; or take it out of Requires= and the like.",
        "systemd.unit(5)",
        pattern=r"^Dependency failed for ",
        where="manager",
    ),
    _row(
        "SD-environment",
        "resources",
        ("Failed to load environment files: ",),
        "an EnvironmentFile of the unit cannot be read",
        "Provide the file, or correct EnvironmentFile.",
        "systemd.exec(5)",
        pattern=r"Failed to load environment files: ",
        level=CERTAIN,
        where="manager",
    ),
    _row(
        "SD-start-limit-hit",
        "start_limit",
        ("Start request repeated too quickly",),
        "systemd gave up: too many starts in a short time",
        "Read why the earlier starts failed, then `systemctl reset-failed` and start again.",
        "systemd.unit(5); the result stays that of the last start",
        pattern=r"Start request repeated too quickly",
        level=SYMPTOM,
        where="manager",
    ),
)

#: Every row, the more specific ones first.
SIGNATURES: t.Final[tuple[Signature, ...]] = _LOG_ROWS + _SYSTEMD_ROWS

_BY_PLACE: dict[str, tuple[Signature, ...]] = {
    place: tuple(row for row in SIGNATURES if row.where == place) for place in ("log", "manager", "last", "exit")
}
_BY_PLACE["exception"] = tuple(row for row in SIGNATURES if row.where in ("log", "exception"))
_NEEDLES = {place: tuple({needle for row in rows for needle in row.needles}) for place, rows in _BY_PLACE.items()}


def look_up(text: str, place: str, frames: t.Sequence[str] = ()) -> tuple[Signature, t.Match[str]] | None:
    """The first row that fits `text`, and how; None for most lines. `place` as in `Signature.where`.

    `frames` (`file:function`) belong to the exception whose text this is. A row that only echoes another failure, or warns,
    gives way to one that explains.
    """
    # Plain comparisons first: there may be thousands of lines a second.
    if place == "log" and text.startswith(_QUOTING):
        return None
    for needle in _NEEDLES[place]:
        if needle in text:
            break
    else:
        return None
    best: tuple[Signature, t.Match[str]] | None = None
    for row in _BY_PLACE[place]:
        if best is not None and best[0].level <= row.level:
            continue
        match = row.pattern.search(text)
        if match and all(any(frame.search(name) for name in frames) for frame in row.frames):
            best = (row, match)
    return best
