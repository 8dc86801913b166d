# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Resolve ``sglang_instances`` to what a unit needs, and refuse what cannot work. PRIVATE to the collection.

Every fault of every instance is collected, so that one run tells them all. Nothing here touches a host: what is
known about it comes in as ``facts`` (the result of M(specdec.serving.sglang_preflight)), and may be empty.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._addresses import parse_server, parse_url
from ansible_collections.specdec.serving.plugins.module_utils._readiness import GATES, STATES
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import generation_fault, number_faults
from ansible_collections.specdec.serving.plugins.module_utils._releases import Release, release_features
from ansible_collections.specdec.serving.plugins.module_utils._server_args import (
    ServerArgs,
    ServerArgsError,
    build_server_args,
    canonical_dest,
    merge_server_args,
    parse_release,
)
from ansible_collections.specdec.serving.plugins.module_utils._sockets import url_host
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import PHASES
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import (
    CredentialFile,
    QuotingError,
    environment_file,
    exec_line,
    list_word,
    setting_value,
)

__all__ = [
    "GPU_PROFILES",
    "InstancesError",
    "instance_secrets",
    "preflight_options",
    "resolve_engine",
    "resolve_instances",
    "unit_options",
]

#: GPU profiles that ship. ``args`` and ``env`` are defaults below the instance's own; ``disable_prefill_graph`` is
#: spelled for the release; ``card`` is a part of the name that nvidia-smi gives.
GPU_PROFILES: t.Final[Mapping[str, Mapping[str, t.Any]]] = {
    # SM120, PCIe. Prefill graph: DFLASH crashes in its replay (sgl-project/sglang#35437). JIT DeepGEMM has no
    # SM120 kernels (environ.py, rtx6kpro recipes).
    "rtx_pro_6000": {
        "args": {},
        "card": "RTX PRO 6000",
        "disable_prefill_graph": True,
        "env": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"},
    },
    # SM103, NVLink: the release's own choices (trtllm_mla, flashinfer_trtllm) are right.
    "b300": {"args": {}, "card": "B300", "env": {}},
    # SM90, NVLink.
    "h200": {"args": {}, "card": "H200", "env": {}},
    # No GPU: SGLang asks for the variable before it imports its CPU engine. An idle scheduler spins unless told to sleep.
    "cpu": {"args": {"device": "cpu", "sleep_on_idle": True}, "card": "", "env": {"SGLANG_USE_CPU_ENGINE": "1"}},
}

_PROFILE_KEYS = frozenset({"args", "card", "disable_prefill_graph", "env"})

_INSTANCE_KEYS = frozenset(
    {
        "admin_api_key",
        "api_key",
        "args",
        "client_url",
        "description",
        "env",
        "gpus",
        "host",
        "leader",
        "model_path",
        "name",
        "one_per_gpu",
        "port",
        "served_model_name",
    }
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?\Z")
_GPU_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]+\Z")
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@=,-]*\Z")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}\Z")
_SECRET_NAME = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEYS?|ACCESS_?KEY)(?![A-Z])|(^|_)KEY(_|$)", re.IGNORECASE
)

#: What the results of our modules consist of (design: states, phases, gates, causes). Ansible masks a secret wherever
#: its text appears, so a key that equals one of them would make results unreadable and show what the key is.
#: Shorter words are refused by their length.
_RESULT_WORDS = frozenset(
    {
        # sglang_ready refuses these by itself, but only when the server was restarted already.
        *GATES,
        *PHASES,
        *STATES,
        "127.0.0.1",
        "activating",
        "changeme",
        "deactivating",
        "diagnosis",
        "follower",
        "generation",
        "inactive",
        "invocation_id",
        "localhost",
        "main_pid",
        "password",
        "port_conflict",
        "port_owned_by_other",
        "rank_straggler",
        "settings",
        "sglang.service",
        "speculation_inactive",
        "speculation_not_exercised",
        "timeline",
        "wrong_model",
    }
)

_MIN_KEY_LENGTH = 8

#: Set by systemd or by the role for the unit -> what to do instead.
_OWNED_VARIABLES: t.Final[Mapping[str, str]] = {
    "CREDENTIALS_DIRECTORY": "systemd sets it",
    "CUDA_VISIBLE_DEVICES": "set 'gpus' of the instance",
    "INVOCATION_ID": "systemd sets it",
    "JOURNAL_STREAM": "systemd sets it",
}


#: What a server with a GPU survives (systemd.exec(5)). Not among them, with the reason:
#: PrivateDevices= and DeviceAllow= hide /dev/nvidia*; ProtectClock= does too, since it implies DeviceAllow=char-rtc;
#: MemoryDenyWriteExecute= forbids compiled kernels; AF_NETLINK is needed by NCCL and CUDA.
_HARDENING: t.Final[Sequence[str]] = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "PrivateTmp=yes",
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
)


class InstancesError(ValueError):
    """Instances that cannot be deployed; ``errors`` holds every reason."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


#: With one of these set, the prefill graph is off already or the instance decides for itself.
_PREFILL_GRAPH_DESTS = frozenset(
    {
        "cuda_graph_backend_prefill",
        "cuda_graph_config",
        "disable_cuda_graph",
        "disable_piecewise_cuda_graph",
        "disable_prefill_cuda_graph",
        "enforce_piecewise_cuda_graph",
    }
)


def _text(value: t.Any) -> str:
    """A plain str of a value that may be one of Ansible's tagged subclasses."""
    return "".join(value)


def resolve_engine(
    version: str, *, root: str, lock_sha256: str = "", requirements: Sequence[str] = (), index_url: str = ""
) -> dict[str, str]:
    """Return ``name``, ``path`` and ``python`` of the immutable engine of a version.

    The name ends in the first 12 hex digits of the SHA-256 of the lock text of the wheelhouse or, without a
    wheelhouse, of the requirements and the index.

    :raises InstancesError: for a version or folder that cannot be used.
    """
    errors: list[str] = []
    try:
        parse_release(version)
    except ServerArgsError as exc:
        errors.append(f"sglang_version: {exc}")
    if not _PLAIN_PATH.match(root) or root == "/":
        errors.append(f"sglang_root: {root!r} is no absolute folder of letters, digits and '_./+@=,-'")
    if lock_sha256 and not re.fullmatch(r"[0-9a-f]{64}", lock_sha256):
        errors.append(f"lock_sha256: {lock_sha256!r} is no SHA-256")
    if errors:
        raise InstancesError(errors)
    if not lock_sha256:
        lock = "".join(f"{line}\n" for line in (*requirements, f"--index-url {index_url}" if index_url else ""))
        lock_sha256 = hashlib.sha256(lock.encode("utf-8")).hexdigest()
    name = f"{_text(version)}-{lock_sha256[:12]}"
    path = f"{_text(root).rstrip('/')}/engines/{name}"
    return {"name": name, "path": path, "python": f"{path}/bin/python"}


@dataclass(frozen=True)
class _Host:
    """What all instances of a host share."""

    release: Release
    version: str
    engine: Mapping[str, str]
    user: str
    config_dir: str
    cache_dir: str
    hardening: Sequence[str]
    profile_name: str
    profile: Mapping[str, t.Any]
    default_args: Mapping[str, t.Any]
    default_env: Mapping[str, t.Any]
    facts: Mapping[str, t.Any]

    @property
    def gpus(self) -> Sequence[Mapping[str, t.Any]]:
        return self.facts.get("gpus") or ()

    @property
    def credentials(self) -> bool:
        """LoadCredential= works there (systemd 247); assumed where the host was not asked yet."""
        return bool(self.facts.get("credentials", True))

    @property
    def cache_key(self) -> str:
        """Compiled kernels fit one engine, driver and GPU architecture."""
        if self.profile_name == "cpu":
            return f"{self.engine['name']}-cpu"
        driver = str(self.facts.get("driver_version") or "unknown")
        archs = sorted({str(gpu.get("compute_capability") or "").replace(".", "") for gpu in self.gpus} - {""})
        key = f"{self.engine['name']}-driver{driver}-sm{'_'.join(archs) or 'unknown'}"
        return re.sub(r"[^A-Za-z0-9_.-]", "_", key)


def _type_words(value: t.Any) -> str:
    """The type of a value in words, without Ansible's tagged subclasses and without the value."""
    if value is None:
        return "null"
    for known, word in (
        (str, "text"),
        (bool, "a boolean"),
        ((int, float), "a number"),
        (Mapping, "a mapping"),
        (Sequence, "a list"),
    ):
        if isinstance(value, known):
            return word
    return type(value).__name__


def _nearest(name: str, known: t.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _integer(value: t.Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    return None


def _mapping(value: t.Any, *, origin: str, errors: list[str]) -> dict[t.Any, t.Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {_text(key) if isinstance(key, str) else key: item for key, item in value.items()}
    # The value is not quoted: whole instances with their keys end up here.
    errors.append(f"{origin}: expected a mapping, not {_type_words(value)}")
    return {}


def _string(value: t.Any, *, origin: str, errors: list[str]) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is not None:
        errors.append(f"{origin}: {value!r} is no text; quote it if it is meant as text")
    return ""


def _address(
    raw: Mapping[str, t.Any], key: str, parse: t.Callable[..., t.Any], *, origin: str, errors: list[str]
) -> str:
    """The address of another server, told when it is none before anything is restarted; '' = not given."""
    text = _string(raw.get(key), origin=f"{origin}: {key}", errors=errors)
    try:
        if text:
            parse(text, name=f"{origin}: {key}")
    except ValueError as exc:
        errors.append(str(exc))
    return text


def _environment(layers: Sequence[tuple[str, t.Any]], *, errors: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Merge layers (origin, mapping), later over earlier; return (plain, secret-looking) variables."""
    merged: dict[str, tuple[str, str]] = {}
    for origin, layer in layers:
        for name, value in _mapping(layer, origin=origin, errors=errors).items():
            if not isinstance(name, str):
                errors.append(f"{origin}: {name!r} is no variable name (not a string)")
            elif name in _OWNED_VARIABLES:
                errors.append(f"{origin}: {name!r} cannot be set here: {_OWNED_VARIABLES[name]}")
            elif value is None:
                merged.pop(name, None)
            elif isinstance(value, bool):
                errors.append(
                    f"{origin}: {name!r} is the boolean {value!r}; write the text that the program expects, quoted"
                )
            elif isinstance(value, (str, int, float)):
                merged[name] = (origin, _text(value) if isinstance(value, str) else repr(value))
            else:
                errors.append(f"{origin}: {name!r} holds {value!r}, which is no text or number")
    plain: dict[str, str] = {}
    secret: dict[str, str] = {}
    for name, (origin, value) in merged.items():
        if not _SECRET_NAME.search(name) or not value:
            plain[name] = value
        elif len(value) < _MIN_KEY_LENGTH:
            errors.append(
                f"{origin}: {name!r} is treated as a secret because of its name, and is shorter than"
                f" {_MIN_KEY_LENGTH} characters, so that it cannot be masked in results"
            )
        else:
            secret[name] = value
    for values, masked in ((plain, False), (secret, True)):
        for name in values:
            try:
                environment_file({name: values[name]}, origin=merged[name][0])
            except QuotingError as exc:
                errors.append(
                    f"{merged[name][0]}: {name!r} holds a secret that an environment file cannot hold"
                    if masked
                    else str(exc)
                )
    return plain, secret


def _check_key(key: t.Any, *, origin: str, words: t.Iterable[str], errors: list[str]) -> None:
    """Check one key; no message quotes it."""
    if key is None:
        return
    if not isinstance(key, str):
        errors.append(f"{origin} is no text (a number such as 12345678 must be quoted)")
        return
    key = _text(key)
    if len(key) < _MIN_KEY_LENGTH:
        errors.append(f"{origin} is shorter than {_MIN_KEY_LENGTH} characters; leave it out to have no key")
    elif not re.fullmatch(r"[\x21-\x7e]+", key):
        errors.append(
            f"{origin} holds a character that an HTTP header cannot carry: printable ASCII without spaces only"
        )
    elif key.startswith("-"):
        errors.append(f"{origin} starts with '-', so SGLang would take it for an option")
    elif key in _RESULT_WORDS or any(key in word for word in words):
        errors.append(
            f"{origin} equals a word of our results (a state, port, id, path or unit name), which Ansible would mask"
            " everywhere; choose a random key"
        )


def _check_host(host: str, *, origin: str, errors: list[str]) -> bool:
    """Return whether the host means all addresses."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        if not _HOST_NAME.match(host):
            errors.append(f"{origin}: {host!r} is no address or host name")
        return False


def _model(value: t.Any, *, origin: str, errors: list[str]) -> str:
    path = _string(value, origin=origin, errors=errors)
    if path and not path.startswith("/") and not _MODEL_ID.match(path):
        errors.append(f"{origin}: {path!r} is neither an absolute path nor a model id such as 'org/name'")
    return path


def _gpu_list(value: t.Any, *, host: _Host, origin: str, errors: list[str]) -> list[int | str]:
    if value is None:
        return []
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        errors.append(f"{origin}: {value!r} is no list of GPU numbers or UUIDs")
        return []
    gpus: list[int | str] = []
    for item in value:
        number = _integer(item)
        if number is not None and number >= 0:
            gpus.append(number)
        elif isinstance(item, str) and _GPU_UUID.match(item):
            gpus.append(_text(item))
        else:
            errors.append(f"{origin}: {item!r} is neither a GPU number nor a UUID such as 'GPU-5f8c...'")
    if gpus and host.profile_name == "cpu":
        errors.append(f"{origin}: {gpus!r} asked for, but the GPU profile is 'cpu'; leave 'gpus' out")
    return gpus


def _gpu_identity(gpu: int | str, host: _Host) -> str:
    """One text per GPU whichever way it was named: the UUID where the host's GPUs are known."""
    for known in host.gpus:
        if gpu in (known.get("index"), known.get("uuid")):
            return str(known["uuid"])
    return str(gpu)


def _numa_node(gpus: Sequence[int | str], host: _Host) -> int | None:
    """The one NUMA node all GPUs of an instance sit on, or None when unknown, several, or the host has only one."""
    identities = {_gpu_identity(gpu, host) for gpu in gpus}
    nodes = {gpu.get("numa_node") for gpu in host.gpus if str(gpu.get("uuid")) in identities}
    if len(nodes) != 1 or len(host.facts.get("numa_nodes") or ()) < 2:
        return None
    node = nodes.pop()
    return int(node) if isinstance(node, int) and node >= 0 else None


def _origins(layers: Sequence[tuple[str, Mapping[str, t.Any]]]) -> dict[str, str]:
    """Where each argument comes from, by dest: a later layer over an earlier one, as they are merged."""
    return {canonical_dest(str(name)): origin for origin, layer in layers for name in layer}


def _args(
    raw: Mapping[str, t.Any], host: _Host, *, origin: str, errors: list[str]
) -> tuple[ServerArgs, dict[str, str]]:
    own = _mapping(raw.get("args"), origin=f"{origin}: args", errors=errors)
    try:
        # The instance alone first, so that an error names it and not the merged result.
        build_server_args(own, origin=f"{origin}: args")
        profile_args = dict(host.profile.get("args") or {})
        layers: list[tuple[str, Mapping[str, t.Any]]] = [
            ("the role's defaults", host.release.access_log_exclude),
            ("sglang_default_args", host.default_args),
            (f"GPU profile {host.profile_name!r}", profile_args),
            (f"{origin}: args", own),
        ]
        merged = merge_server_args(*(layer for _origin, layer in layers))
        dests = {
            canonical_dest(str(name)) for name, value in merged.items() if value is not None and value is not False
        }
        if host.profile.get("disable_prefill_graph") and not dests & _PREFILL_GRAPH_DESTS:
            merged = merge_server_args(host.release.prefill_graph_off, merged)
            layers.insert(0, (f"GPU profile {host.profile_name!r}", host.release.prefill_graph_off))
        built = build_server_args(
            merged, origin=f"{origin}: args with the defaults of sglang_default_args and the GPU profile"
        )
        return built, _origins(layers)
    except ServerArgsError as exc:
        errors.extend(exc.errors)
        return ServerArgs(words=(), settings={}), {}


def _block_size(settings: Mapping[str, t.Any]) -> int:
    if not settings.get("speculative_algorithm"):
        return 0
    for dest in ("speculative_dflash_block_size", "speculative_num_draft_tokens"):
        number = _integer(settings.get(dest))
        if number:
            return number
    return 0


def _name(raw: Mapping[str, t.Any], *, position: int, errors: list[str]) -> tuple[str, str]:
    """Return the name and how to call the instance in errors; look for unknown keys on the way."""
    name = raw.get("name")
    label = f"sglang_instances[{position}]"
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > 200:
        errors.append(
            f"{label}: name {name!r} cannot name a unit:"
            " letters, digits, '_', '.' and '-' only, the first a letter or digit, 200 at most"
        )
        name = f"instance{position}"
    origin = f"{label} ({name})"
    for key in raw:
        if key not in _INSTANCE_KEYS:
            hint = _nearest(str(key), _INSTANCE_KEYS) or "; SGLang's own arguments belong under 'args'"
            errors.append(f"{origin}: unknown key {key!r}{hint}")
    if raw.get("one_per_gpu") not in (None, False):
        errors.append(
            f"{origin}: one_per_gpu: {raw['one_per_gpu']!r} is not available yet;"
            " write one instance per GPU, each with its own name, port and gpus"
        )
    return _text(name), origin


def _port(raw: Mapping[str, t.Any], *, origin: str, errors: list[str]) -> int:
    value = raw.get("port", 30000)
    port = _integer(value)
    if port is None or not 1 <= port <= 65535:
        errors.append(f"{origin}: port {value!r} is no port from 1 to 65535")
        return 0
    return port


def _unit_texts(
    argv: Sequence[str | CredentialFile],
    *,
    description: str,
    paths: t.Iterable[str],
    environment: Mapping[str, str],
    origin: str,
    errors: list[str],
) -> dict[str, t.Any]:
    """What the unit's template and the environment file hold, quoted for systemd."""
    try:
        return {
            "description_text": setting_value(description, origin=f"{origin}: description"),
            "environment_text": environment_file(environment, origin=f"{origin}: env"),
            "exec_start": exec_line(argv, origin=f"{origin}: args"),
            "mounts": [
                list_word(path, origin=f"{origin}: model path") for path in dict.fromkeys(paths) if path.startswith("/")
            ],
        }
    except QuotingError as exc:
        if str(exc) not in errors:
            errors.append(str(exc))
        return {"description_text": "", "environment_text": "", "exec_start": "", "mounts": []}


def _resolve_one(raw: Mapping[str, t.Any], host: _Host, *, position: int, errors: list[str]) -> dict[str, t.Any]:
    name, origin = _name(raw, position=position, errors=errors)
    model_path = _model(raw.get("model_path"), origin=f"{origin}: model_path", errors=errors)
    if raw.get("model_path") in (None, ""):
        errors.append(f"{origin}: model_path is missing")
    served = _string(raw.get("served_model_name"), origin=f"{origin}: served_model_name", errors=errors) or name
    if ":" in served or served.startswith("-"):
        errors.append(
            f"{origin}: served_model_name {served!r} must not contain ':' nor start with '-'; SGLang refuses it"
        )
    listen = _string(raw.get("host"), origin=f"{origin}: host", errors=errors) or "127.0.0.1"
    all_addresses = _check_host(listen, origin=f"{origin}: host", errors=errors)
    port = _port(raw, origin=origin, errors=errors)
    gpus = _gpu_list(raw.get("gpus"), host=host, origin=f"{origin}: gpus", errors=errors)
    identities = [_gpu_identity(gpu, host) for gpu in gpus]
    args, origins = _args(raw, host, origin=origin, errors=errors)
    settings = dict(args.settings)
    draft = _model(
        settings.get("speculative_draft_model_path"),
        origin=f"{origin}: args: speculative_draft_model_path",
        errors=errors,
    )
    plain, secret = _environment(
        [
            ("the role's environment", _role_environment(host)),
            ("sglang_default_env", host.default_env),
            (f"GPU profile {host.profile_name!r}: env", _profile_env(host)),
            (f"{origin}: env", raw.get("env")),
        ],
        errors=errors,
    )
    if gpus:
        plain["CUDA_VISIBLE_DEVICES"] = ",".join(identities)

    warnings: list[str] = []
    if all_addresses and raw.get("api_key") is None:
        warnings.append(f"{name}: host {listen!r} listens on all addresses and no api_key is set: anybody may use it")

    has_key = raw.get("api_key") is not None or raw.get("admin_api_key") is not None
    if has_key and not host.release.config_file:
        errors.append(
            f"{origin}: SGLang {host.version} takes keys only on its command line, where every user of the host sees them:"
            " use 0.5.4 or newer, or leave api_key and admin_api_key out"
        )
    credential = f"{host.config_dir}/credentials/{name}.yaml" if has_key else ""
    config_word: str | CredentialFile = CredentialFile(f"{name}.yaml") if host.credentials else credential
    argv: list[str | CredentialFile] = [
        host.engine["python"],
        "-m",
        "sglang.launch_server",
        *("--model-path", model_path, "--served-model-name", served, "--host", listen, "--port", str(port)),
        *(("--config", config_word) if has_key else ()),
        *args.words,
    ]
    description = (
        _string(raw.get("description"), origin=f"{origin}: description", errors=errors) or f"SGLang {name}: {served}"
    )
    texts = _unit_texts(
        argv,
        description=description,
        paths=(model_path, draft, host.engine["path"], host.cache_dir),
        environment=plain,
        origin=origin,
        errors=errors,
    )
    digest = hashlib.sha256(texts["environment_text"].encode("utf-8")).hexdigest()[:12]
    return {
        **texts,
        "argv": [str(word) for word in argv],
        "base_url": f"http://{url_host(listen)}:{port}",
        "block_size": _block_size(settings),
        "cache_dirs": _cache_dirs(host),
        "client_url": _address(raw, "client_url", parse_url, origin=origin, errors=errors),
        "credential": credential,
        "credential_by_systemd": has_key and host.credentials,
        "description": description,
        "draft_model_path": draft,
        "engine": dict(host.engine),
        "environment": plain,
        "environment_file": f"{host.config_dir}/{name}.{digest}.env",
        "gpus": gpus,
        "hardening": list(host.hardening),
        "has_admin_api_key": raw.get("admin_api_key") is not None,
        "has_api_key": raw.get("api_key") is not None,
        "host": listen,
        "leader": _address(raw, "leader", parse_server, origin=origin, errors=errors),
        "listen": {"host": listen, "port": port, "unit": f"sglang-{name}.service"},
        "model_path": model_path,
        "name": name,
        "numa_node": _numa_node(gpus, host),
        "origins": {
            **{dest: f"{origin}: {dest}" for dest in ("host", "model_path", "port", "served_model_name")},
            **{dest: where for dest, where in origins.items() if dest in settings},
        },
        "paths": [
            {"path": path, "what": f"{name}: {what}"}
            for path, what in ((model_path, "model_path"), (draft, "speculative_draft_model_path"))
            if path.startswith("/")
        ],
        "port": port,
        "secret_environment_file": f"{host.config_dir}/{name}.secret.env" if secret else "",
        "served_model_name": served,
        "settings": settings,
        "unit": f"sglang-{name}.service",
        "warnings": warnings,
        "working_directory": f"{host.cache_dir}/{host.cache_key}/home",
    }


def _check_gpus(resolved: Sequence[Mapping[str, t.Any]], host: _Host, *, errors: list[str]) -> None:
    present = {str(known["uuid"]): str(known["index"]) for known in host.gpus}
    owners: dict[str, list[str]] = {}
    for item in resolved:
        for gpu in item["gpus"]:
            identity = _gpu_identity(gpu, host)
            owners.setdefault(identity, []).append(item["name"])
            if present and identity not in present:
                errors.append(
                    f"{item['name']}: GPU {gpu!r} does not exist on this host (nvidia-smi shows {', '.join(present.values())})"
                )
    for gpu, names in owners.items():
        if len(names) > len(set(names)):
            errors.append(f"{names[0]}: GPU {gpu} is listed twice")
        elif len(names) > 1:
            errors.append(f"sglang_instances: GPU {gpu} is used by {' and '.join(names)}")


def _check_shared(resolved: Sequence[Mapping[str, t.Any]], *, errors: list[str]) -> None:
    names = [item["name"] for item in resolved]
    errors.extend(
        f"sglang_instances: {names.count(name)} instances are named {name!r}"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    )
    ports: dict[int, list[str]] = {}
    for item in resolved:
        ports.setdefault(item["port"], []).append(item["name"])
    errors.extend(
        f"sglang_instances: port {port} is used by {' and '.join(owners)}"
        for port, owners in ports.items()
        if port and len(owners) > 1
    )


def _hardening(cache_dir: str, writable_paths: Sequence[str], *, errors: list[str]) -> tuple[str, ...]:
    words = [cache_dir]
    for path in writable_paths:
        try:
            words.append(list_word(path, origin="sglang_writable_paths"))
        except QuotingError as exc:
            errors.append(str(exc))
        if not isinstance(path, str) or not path.startswith("/"):
            errors.append(f"sglang_writable_paths: {path!r} is no absolute path")
    return (*_HARDENING, f"ReadWritePaths={' '.join(words)}")


def _role_environment(host: _Host) -> dict[str, str]:
    """Folders that the server writes to, all below the cache folder, and what makes its log readable."""
    compiled = f"{host.cache_dir}/{host.cache_key}"
    engine = host.engine["path"]
    return {
        "HF_HOME": f"{host.cache_dir}/huggingface",
        "HF_MODULES_CACHE": f"{compiled}/hf_modules",
        "HOME": f"{compiled}/home",
        "LANG": "C.UTF-8",
        "PATH": f"{engine}/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONUNBUFFERED": "1",
        # A crashing server would wait 60 s for core dumps that CUDA was not told to write (environ.py, since 0.5.13).
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "SGLANG_CACHE_DIR": f"{compiled}/sglang",
        "VIRTUAL_ENV": engine,
        "XDG_CACHE_HOME": f"{compiled}/xdg",
    }


def _cache_dirs(host: _Host) -> list[str]:
    """The folders of :func:`_role_environment`, parents first."""
    compiled = f"{host.cache_dir}/{host.cache_key}"
    return [
        host.cache_dir,
        f"{host.cache_dir}/huggingface",
        compiled,
        *(f"{compiled}/{part}" for part in ("hf_modules", "home", "sglang", "xdg")),
    ]


def _profile_env(host: _Host) -> dict[str, t.Any]:
    env = dict(host.profile.get("env") or {})
    if "SGLANG_ENABLE_JIT_DEEPGEMM" in env:
        env[host.release.jit_deepgemm_variable] = env.pop("SGLANG_ENABLE_JIT_DEEPGEMM")
    return env


def _profile(name: str, own: t.Any, *, errors: list[str]) -> Mapping[str, t.Any]:
    profiles: dict[str, t.Any] = {**GPU_PROFILES, **_mapping(own, origin="sglang_gpu_profiles", errors=errors)}
    for profile_name, profile in profiles.items():
        origin = f"sglang_gpu_profiles[{profile_name!r}]"
        errors.extend(
            f"{origin}: unknown key {key!r}{_nearest(str(key), _PROFILE_KEYS)}"
            for key in _mapping(profile, origin=origin, errors=errors)
            if key not in _PROFILE_KEYS
        )
    if not name:
        return {}
    if name not in profiles:
        errors.append(
            f"sglang_gpu_profile: {name!r} is no GPU profile{_nearest(name, profiles)};"
            f" known: {', '.join(sorted(profiles))}"
        )
        return {}
    profile = profiles[name]
    return profile if isinstance(profile, Mapping) else {}


def _wait_variable(option: str) -> str:
    """The role's variable for an option of the wait."""
    return "sglang_evidence_keep" if option == "keep_evidence" else f"sglang_ready_{option}"


def _check_wait(wait: t.Any, *, errors: list[str]) -> Mapping[str, t.Any]:
    """Options of the wait as the role's variables have them, told before anything is restarted when they cannot be used.

    Returns the numbers, without those that are left to the module.
    """
    numbers: dict[str, t.Any] = {}
    for option, value in _mapping(wait, origin="sglang_ready_*", errors=errors).items():
        if option == "timeout":
            numbers[option] = value
            continue
        try:
            # From the command line (-e) numbers come as text.
            number = float(value)
        except (TypeError, ValueError):
            errors.append(f"{_wait_variable(option)} {value!r} is no number")
            continue
        # Below 0 these are left to the module.
        left = number < 0 and option in ("generation_tokens", "stall_timeout", "spin_timeout")
        numbers[option] = None if left else number
    if "timeout" in numbers:
        errors.extend(number_faults(numbers, spelt=_wait_variable))
    return numbers


def resolve_instances(
    instances: t.Any,
    *,
    version: str,
    engine: Mapping[str, str],
    user: str = "sglang",
    config_dir: str = "/etc/specdec/sglang",
    cache_dir: str = "/var/cache/specdec/sglang",
    runtime: str = "venv",
    gpu_profile: str = "",
    gpu_profiles: t.Any = None,
    default_args: t.Any = None,
    default_env: t.Any = None,
    hardening: bool = True,
    writable_paths: Sequence[str] = (),
    rollback: bool = False,
    wait: t.Any = None,
    facts: Mapping[str, t.Any] | None = None,
) -> list[dict[str, t.Any]]:
    """Return one resolved mapping per instance; no secret is in it.

    Instance over GPU profile over defaults, for arguments (by meaning, not by spelling) and environment.

    :param instances: the value of ``sglang_instances``.
    :param version: SGLang's version, which decides how some flags are spelled.
    :param engine: result of :func:`resolve_engine`.
    :param hardening: whether the unit gets the sandbox; ``writable_paths`` are then writable beside the caches.
    :param wait: numbers among the options of ``sglang_ready``, ``timeout`` among them; below 0 as in the role; empty is not checked.
    :param facts: ``gpus`` (index, uuid, name, compute_capability, numa_node), ``driver_version``, ``numa_nodes``,
        ``credentials``; whatever is missing is not checked and not used.
    :raises InstancesError: with every fault of every instance.
    """
    errors: list[str] = []
    if runtime != "venv":
        errors.append(f"sglang_runtime: {runtime!r} is not available yet; only 'venv' is")
    if rollback:
        errors.append("sglang_rollback: is not available yet; leave it at false")
    numbers = _check_wait(wait, errors=errors)
    if not isinstance(user, str) or not _USER.match(user):
        errors.append(f"sglang_user: {user!r} is no user name")
    for label, path in (("sglang_config_dir", config_dir), ("sglang_cache_dir", cache_dir)):
        if not isinstance(path, str) or not _PLAIN_PATH.match(path) or path.rstrip("/") == "":
            errors.append(f"{label}: {path!r} is no absolute folder of letters, digits and '_./+@=,-'")
    try:
        release = release_features(version)
    except ServerArgsError as exc:
        raise InstancesError([*errors, f"sglang_version: {exc}"]) from exc
    host = _Host(
        release=release,
        version=_text(version),
        engine=engine,
        user=str(user),
        config_dir=str(config_dir).rstrip("/"),
        cache_dir=str(cache_dir).rstrip("/"),
        hardening=_hardening(str(cache_dir).rstrip("/"), writable_paths, errors=errors) if hardening else (),
        profile_name=_text(gpu_profile or ""),
        profile=_profile(_text(gpu_profile or ""), gpu_profiles, errors=errors),
        default_args=_mapping(default_args, origin="sglang_default_args", errors=errors),
        default_env=_mapping(default_env, origin="sglang_default_env", errors=errors),
        facts=facts or {},
    )
    if isinstance(instances, (str, bytes, Mapping)) or not isinstance(instances, Sequence):
        raise InstancesError([*errors, f"sglang_instances: expected a list, not {_type_words(instances)}"])
    resolved: list[dict[str, t.Any]] = []
    keys: list[tuple[str, t.Any]] = []
    for position, raw in enumerate(instances):
        if not isinstance(raw, Mapping):
            errors.append(f"sglang_instances[{position}]: expected a mapping, not {_type_words(raw)}")
            continue
        resolved.append(_resolve_one(raw, host, position=position, errors=errors))
        label = f"sglang_instances[{position}] ({resolved[-1]['name']})"
        keys.extend((f"{label}: {key}", raw.get(key)) for key in ("api_key", "admin_api_key"))

    if numbers.get("generation_tokens") is not None:
        name, tokens = _wait_variable("generation_tokens"), int(numbers["generation_tokens"])
        found = (generation_fault(tokens, item["settings"], name=name, default="leave it at -1") for item in resolved)
        errors.extend(fault for fault in found if fault)
    _check_shared(resolved, errors=errors)
    _check_gpus(resolved, host, errors=errors)
    words = [host.user, host.version, host.engine["path"], host.config_dir, host.cache_dir]
    for item in resolved:
        words.extend(
            item[key] for key in ("name", "unit", "served_model_name", "model_path", "draft_model_path", "host")
        )
        words.append(str(item["port"]))
    for origin, key in keys:
        _check_key(key, origin=origin, words=words, errors=errors)

    card = str(host.profile.get("card") or "")
    others = sorted({str(gpu.get("name")) for gpu in host.gpus if card and card not in str(gpu.get("name"))})
    if others and resolved:
        resolved[0]["warnings"].append(
            f"the GPU profile {host.profile_name!r} is meant for {card!r}, but the host has {', '.join(others)}"
        )
    if errors:
        raise InstancesError(list(dict.fromkeys(errors)))
    return resolved


def instance_secrets(
    instances: t.Any, *, gpu_profile: str = "", gpu_profiles: t.Any = None, default_env: t.Any = None
) -> dict[str, dict[str, t.Any]]:
    """Return ``{name: {"config": {...}, "environment": {...}}}`` with the secrets of instances that have any.

    Meant for a ``no_log`` module option only. The instances must have passed :func:`resolve_instances` with the same
    profile and defaults.

    :raises InstancesError: when they would not pass it.
    """
    errors: list[str] = []
    secrets: dict[str, dict[str, t.Any]] = {}
    profile_env = _profile(_text(gpu_profile or ""), gpu_profiles, errors=errors).get("env")
    for raw in instances:
        config = {key: _text(raw[key]) for key in ("admin_api_key", "api_key") if raw.get(key)}
        layers = [
            ("sglang_default_env", default_env),
            ("GPU profile", profile_env),
            (f"{raw['name']}: env", raw.get("env")),
        ]
        _plain, environment = _environment(layers, errors=errors)
        if config or environment:
            secrets[_text(raw["name"])] = {"config": config, "environment": environment}
    if errors:
        raise InstancesError(errors)
    return secrets


def preflight_options(resolved: Sequence[Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Return the ``instances`` option of M(specdec.serving.sglang_preflight) for resolved instances."""
    taken = ("name", "unit", "argv", "origins", "environment", "model_path", "draft_model_path", "cache_dirs")
    return [
        {
            **{key: item[key] for key in taken},
            "gpus": [str(gpu) for gpu in item["gpus"]],
            "has_key": bool(item["has_api_key"] or item["has_admin_api_key"]),
        }
        for item in resolved
    ]


def unit_options(
    resolved: Sequence[Mapping[str, t.Any]], texts: Mapping[str, str] | None = None
) -> list[dict[str, t.Any]]:
    """Return the ``units`` option of M(specdec.serving.sglang_unit) for resolved instances.

    :param texts: instance name -> text of the unit file; not needed to stop or remove units.
    """
    taken = ("name", "unit", "environment_file", "environment_text", "secret_environment_file", "credential")
    return [
        {
            **{key: item[key] for key in taken},
            "content": _text((texts or {}).get(item["name"], "")),
            "credential_by_systemd": item["credential_by_systemd"],
            "engine": item["engine"]["path"],
        }
        for item in resolved
    ]
