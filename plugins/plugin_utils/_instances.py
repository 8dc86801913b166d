# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Resolve ``sglang_instances`` to what a unit needs, and refuse what cannot work. PRIVATE to the collection.

Every fault of every instance is collected, so that one run tells them all. Nothing here touches a host: what is
known about it comes in as ``facts`` (the result of M(specdec.serving.sglang_preflight)), and may be empty.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.specdec.serving.plugins.module_utils._addresses import parse_server, parse_url
from ansible_collections.specdec.serving.plugins.module_utils._credentials import UNCHOSEN
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import generation_fault
from ansible_collections.specdec.serving.plugins.module_utils._releases import release_features
from ansible_collections.specdec.serving.plugins.module_utils._server_args import ServerArgsError
from ansible_collections.specdec.serving.plugins.module_utils._sockets import url_host
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import (
    CredentialFile,
    QuotingError,
    environment_file,
    exec_line,
    list_word,
    setting_value,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._hardening import hardening_settings
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_args import args_of, block_size_of
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_environment import check_key, merge_environment
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_gpus import (
    check_gpus,
    device_nodes,
    gpu_identity,
    gpu_list,
    numa_node_of,
    placement_of,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import (
    InstanceHost,
    cache_dirs_of,
    card_warnings,
    profile_environment,
    profile_of,
    role_environment,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_limits import (
    check_wait,
    start_limit_warnings,
    wait_variable,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_members import (
    DEFAULT_PORT,
    Member,
    check_one_gpu,
    members_of,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_ports import check_ports, ports_of
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import (
    PLAIN_PATH,
    InstancesError,
    address_of,
    integer,
    mapping_of,
    plain_text,
    text_of,
    type_words,
)

__all__ = [
    "instance_secrets",
    "preflight_options",
    "resolve_instances",
    "unit_options",
]

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?\Z")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}\Z")


def _check_host(host: str, *, origin: str, errors: list[str]) -> bool:
    """Return whether the host means all addresses."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        if not _HOST_NAME.match(host):
            errors.append(f"{origin}: {host!r} is no address or host name")
        return False


def _model(value: t.Any, *, origin: str, errors: list[str]) -> str:
    path = text_of(value, origin=origin, errors=errors)
    if path and not path.startswith("/") and not _MODEL_ID.match(path):
        errors.append(f"{origin}: {path!r} is neither an absolute path nor a model id such as 'org/name'")
    return path


def _port(raw: Mapping[str, t.Any], *, origin: str, errors: list[str]) -> int:
    value = raw.get("port", DEFAULT_PORT)
    port = integer(value)
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


def _resolve_one(member: Member, host: InstanceHost, *, errors: list[str]) -> dict[str, t.Any]:
    raw, name, origin = member.raw, member.name, member.origin
    model_path = _model(raw.get("model_path"), origin=f"{origin}: model_path", errors=errors)
    if raw.get("model_path") in (None, ""):
        errors.append(f"{origin}: model_path is missing")
    served = text_of(raw.get("served_model_name"), origin=f"{origin}: served_model_name", errors=errors) or name
    if ":" in served or served.startswith("-"):
        errors.append(
            f"{origin}: served_model_name {served!r} must not contain ':' nor start with '-'; SGLang refuses it"
        )
    listen = text_of(raw.get("host"), origin=f"{origin}: host", errors=errors) or "127.0.0.1"
    all_addresses = _check_host(listen, origin=f"{origin}: host", errors=errors)
    port = _port(raw, origin=origin, errors=errors)
    gpus = gpu_list(raw.get("gpus"), host=host, origin=f"{origin}: gpus", errors=errors)
    identities = [gpu_identity(gpu, host) for gpu in gpus]
    args, origins = args_of(raw, host, port=port, origin=origin, errors=errors)
    settings = dict(args.settings)
    if member.number is not None:
        check_one_gpu(settings, origins, origin=origin, errors=errors)
    draft = _model(
        settings.get("speculative_draft_model_path"),
        origin=f"{origin}: args: speculative_draft_model_path",
        errors=errors,
    )
    plain, secret = merge_environment(
        [
            ("the role's environment", role_environment(host)),
            ("sglang_default_env", host.default_env),
            (f"GPU profile {host.profile_name!r}: env", profile_environment(host)),
            (f"{origin}: env", raw.get("env")),
        ],
        errors=errors,
    )
    if gpus:
        plain["CUDA_VISIBLE_DEVICES"] = ",".join(identities)

    warnings: list[str] = []
    if all_addresses and raw.get("api_key") is None:
        warnings.append(
            f"{member.source}: host {listen!r} listens on all addresses and no api_key is set: anybody may use it"
        )

    has_key = raw.get("api_key") is not None or raw.get("admin_api_key") is not None
    if has_key and not host.release.config_file:
        errors.append(
            f"{origin}: SGLang {host.version} takes keys only on its command line, where every user of the host sees them:"
            " use 0.5.4 or newer, or leave api_key and admin_api_key out"
        )
    credential = f"{host.config_dir}/credentials/{name}.{UNCHOSEN}.yaml" if has_key else ""
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
        text_of(raw.get("description"), origin=f"{origin}: description", errors=errors) or f"SGLang {name}: {served}"
    )
    texts = _unit_texts(
        argv,
        description=description,
        paths=(model_path, draft, host.engine["path"], host.cache_dir),
        environment=plain,
        origin=origin,
        errors=errors,
    )
    scheme = "https" if settings.get("ssl_certfile") else "http"
    ports = ports_of(settings, port=port, listen=listen, unit=f"sglang-{name}.service")
    check_ports(settings, ports, origins, origin=origin, errors=errors)
    # Asked for by its own argument, it is SGLang's to do.
    node = None if settings.get("numa_node") else numa_node_of(gpus, host)
    digest = hashlib.sha256(texts["environment_text"].encode("utf-8")).hexdigest()[:12]
    return {
        **texts,
        "argv": [str(word) for word in argv],
        "base_url": f"{scheme}://{url_host(listen)}:{port}",
        "block_size": block_size_of(settings),
        "cache_dirs": cache_dirs_of(host),
        "client_url": address_of(raw, "client_url", parse_url, origin=origin, errors=errors),
        "credential": credential,
        "credential_by_systemd": has_key and host.credentials,
        "description": description,
        "draft_model_path": draft,
        "engine": dict(host.engine),
        "environment": plain,
        "exec_start_pre": device_nodes(host),
        "environment_file": f"{host.config_dir}/{name}.{digest}.env",
        "gpus": gpus,
        "hardening": list(host.hardening),
        "has_admin_api_key": raw.get("admin_api_key") is not None,
        "has_api_key": raw.get("api_key") is not None,
        "host": listen,
        "leader": address_of(raw, "leader", parse_server, origin=origin, errors=errors),
        "model_path": model_path,
        "name": name,
        "numa_node": node,
        "origins": {
            **{dest: f"{origin}: {dest}" for dest in ("host", "model_path", "port", "served_model_name")},
            **{dest: where for dest, where in origins.items() if dest in settings},
        },
        "paths": [
            {"path": path, "what": f"{member.source}: {what}"}
            for path, what in ((model_path, "model_path"), (draft, "speculative_draft_model_path"))
            if path.startswith("/")
        ]
        # systemd would fail to set the sandbox up (226/NAMESPACE).
        + [{"path": path, "what": "sglang_writable_paths:", "may_be_empty": True} for path in host.writable_paths],
        "placement": placement_of(node, host),
        "port": port,
        "ports": ports,
        "scheme": scheme,
        "secret_environment_file": f"{host.config_dir}/{name}.{UNCHOSEN}.secret.env" if secret else "",
        "served_model_name": served,
        "settings": settings,
        "source": member.source,
        "unit": f"sglang-{name}.service",
        "warnings": warnings,
        "working_directory": f"{host.cache_dir}/{host.cache_key}/home",
    }


def _shared_gpus(resolved: Sequence[Mapping[str, t.Any]], host: InstanceHost) -> list[str]:
    """Whether an instance may use the GPUs of another one. It is no error: two small models may share a card."""
    greedy = [item["name"] for item in resolved if not item["gpus"] and item["settings"].get("device") != "cpu"]
    if not host.gpus or len(resolved) < 2 or not greedy:
        return []
    text = (
        f"{', '.join(greedy)}: without 'gpus', so on the first GPUs of the host, which other instances may use as well; give each instance"
        " of this host its GPUs"
    )
    return [text]


def _check_shared(resolved: Sequence[Mapping[str, t.Any]], names: Sequence[str], *, errors: list[str]) -> None:
    """``names`` are those of the entries: two of one name, also where one has an instance per GPU, would share their keys."""
    errors.extend(
        f"sglang_instances: {names.count(name)} instances are named {name!r}"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    )
    ports: dict[int, list[str]] = {}
    for item in resolved:
        for bound in item["ports"]:
            what = "" if bound["what"] == "port" else f" ({bound['what']})"
            ports.setdefault(bound["port"], []).append(f"{item['name']}{what}")
    told: set[tuple[str, ...]] = set()
    for port, owners in ports.items():
        if len(owners) > 1 and tuple(owners) not in told:
            # Two blocks of ports overlap in several of them.
            told.add(tuple(owners))
            remedy = (
                "; set nccl_port or dist_init_addr in args, or choose ports further apart"
                if ")" in "".join(owners)
                else ""
            )
            errors.append(f"sglang_instances: port {port} is used by {' and '.join(owners)}{remedy}")


def _sandbox(
    cache_dir: str,
    writable_paths: Sequence[str],
    facts: Mapping[str, t.Any],
    *,
    omitted: Sequence[str],
    on: bool,
    errors: list[str],
) -> tuple[tuple[str, ...], list[str]]:
    """The unit's lines of the sandbox, none where it is off, and a warning for each that the host refuses."""
    if not on:
        return (), []
    return hardening_settings(
        cache_dir=cache_dir,
        writable_paths=writable_paths,
        omitted=omitted,
        refused=facts.get("hardening_refused") or {},
        system_user=bool(facts.get("user_is_system", True)),
        errors=errors,
    )


def resolve_instances(
    instances: t.Any,
    *,
    version: str,
    engine: Mapping[str, str],
    user: str = "sglang",
    config_dir: str = "/etc/specdec/sglang",
    cache_dir: str = "/var/cache/specdec/sglang",
    state_dir: str = "/var/lib/specdec/sglang",
    runtime: str = "venv",
    gpu_profile: str = "",
    gpu_profiles: t.Any = None,
    default_args: t.Any = None,
    default_env: t.Any = None,
    hardening: bool = True,
    hardening_omit: Sequence[str] = (),
    writable_paths: Sequence[str] = (),
    wait: t.Any = None,
    limits: t.Any = None,
    facts: Mapping[str, t.Any] | None = None,
) -> list[dict[str, t.Any]]:
    """Return one resolved mapping per instance; no secret is in it.

    An entry with ``one_per_gpu`` becomes one instance ``NAME@NUMBER`` per GPU, on its port + NUMBER: the GPU's number or, of a
    GPU that is given by its UUID, its place in the list. ``source`` is the name of the entry.
    Instance over GPU profile over defaults, for arguments (by meaning, not by spelling) and environment.

    :param instances: the value of ``sglang_instances``.
    :param version: SGLang's version, which decides how some flags are spelled.
    :param engine: result of :func:`resolve_engine`.
    :param hardening: whether the unit gets the sandbox, without ``hardening_omit``; ``writable_paths`` are then writable beside the caches.
    :param wait: numbers among the options of ``sglang_ready``, ``timeout`` among them; below 0 as in the role; empty is not checked.
    :param limits: ``start_limit_interval``, ``start_limit_burst``, ``restart_delay``, ``stop_timeout`` of the units, ``drain_timeout`` and
        ``timeout`` of the wait; empty is not checked.
    :param facts: ``gpus`` (index, uuid, name, compute_capability, numa_node, mig), ``driver_version``, ``numa_nodes``, ``numa``,
        ``credentials``, ``hardening_refused``, ``nvidia_modprobe``, ``user_is_system``; whatever is missing is not checked and not used.
    :raises InstancesError: with every fault of every instance.
    """
    errors: list[str] = []
    if runtime != "venv":
        errors.append(f"sglang_runtime: {runtime!r} is not available yet; only 'venv' is")
    numbers = check_wait(wait, errors=errors)
    if not isinstance(user, str) or not _USER.match(user):
        errors.append(f"sglang_user: {user!r} is no user name")
    folders = (("sglang_config_dir", config_dir), ("sglang_cache_dir", cache_dir), ("sglang_state_dir", state_dir))
    for label, path in folders:
        if not isinstance(path, str) or not PLAIN_PATH.match(path) or path.rstrip("/") == "":
            errors.append(f"{label}: {path!r} is no absolute folder of letters, digits and '_./+@=,-'")
    try:
        release = release_features(version)
    except ServerArgsError as exc:
        raise InstancesError([*errors, f"sglang_version: {exc}"]) from exc
    # A variable without anything behind its colon is null.
    writable_paths, hardening_omit = writable_paths or (), hardening_omit or ()
    settings, host_warnings = _sandbox(
        str(cache_dir).rstrip("/"), writable_paths, facts or {}, omitted=hardening_omit, on=hardening, errors=errors
    )
    profile_name = text_of(gpu_profile, origin="sglang_gpu_profile", errors=errors)
    host = InstanceHost(
        release=release,
        version=plain_text(version),
        engine=engine,
        user=str(user),
        config_dir=str(config_dir).rstrip("/"),
        cache_dir=str(cache_dir).rstrip("/"),
        hardening=settings,
        writable_paths=tuple(map(str, writable_paths)) if hardening else (),
        profile_name=profile_name,
        profile=profile_of(profile_name, gpu_profiles, errors=errors),
        default_args=mapping_of(default_args, origin="sglang_default_args", errors=errors),
        default_env=mapping_of(default_env, origin="sglang_default_env", errors=errors),
        facts=facts or {},
    )
    if isinstance(instances, (str, bytes, Mapping)) or not isinstance(instances, Sequence):
        raise InstancesError([*errors, f"sglang_instances: expected a list, not {type_words(instances)}"])
    resolved: list[dict[str, t.Any]] = []
    names: list[str] = []
    keys: list[tuple[str, t.Any]] = []
    for position, raw in enumerate(instances):
        if not isinstance(raw, Mapping):
            errors.append(f"sglang_instances[{position}]: expected a mapping, not {type_words(raw)}")
            continue
        members = members_of(raw, host, position=position, errors=errors)
        names.append(members[0].source)
        resolved.extend(_resolve_one(member, host, errors=errors) for member in members)
        keys.extend((f"{members[0].origin}: {key}", raw.get(key)) for key in ("api_key", "admin_api_key"))

    if numbers.get("generation_tokens") is not None:
        name, tokens = wait_variable("generation_tokens"), int(numbers["generation_tokens"])
        found = (generation_fault(tokens, item["settings"], name=name, default="leave it at -1") for item in resolved)
        errors.extend(fault for fault in found if fault)
    _check_shared(resolved, names, errors=errors)
    check_gpus(resolved, host, errors=errors)
    words = [host.user, host.version, host.engine["path"], host.config_dir, host.cache_dir]
    for item in resolved:
        words.extend(
            item[key] for key in ("name", "unit", "served_model_name", "model_path", "draft_model_path", "host")
        )
        words.append(str(item["port"]))
    for origin, key in keys:
        check_key(key, origin=origin, words=words, errors=errors)

    if resolved:
        resolved[0]["warnings"] += [
            *card_warnings(host),
            *_shared_gpus(resolved, host),
            *start_limit_warnings(limits, errors=errors),
            *host_warnings,
        ]
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
    profile_env = profile_of(plain_text(gpu_profile or ""), gpu_profiles, errors=errors).get("env")
    for position, raw in enumerate(instances):
        config = {key: plain_text(raw[key]) for key in ("admin_api_key", "api_key") if raw.get(key)}
        layers = [
            ("sglang_default_env", default_env),
            ("GPU profile", profile_env),
            (f"{raw['name']}: env", raw.get("env")),
        ]
        _plain, environment = merge_environment(layers, errors=errors)
        if config or environment:
            for member in members_of(raw, None, position=position, errors=errors):
                secrets[member.name] = {"config": config, "environment": environment}
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
            "content": plain_text((texts or {}).get(item["name"], "")),
            "credential_by_systemd": item["credential_by_systemd"],
            "engine": item["engine"]["path"],
        }
        for item in resolved
    ]
