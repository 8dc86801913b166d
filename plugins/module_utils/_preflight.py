# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at a host before a deployment: what is missing, and what the units need to know. PRIVATE to the collection.

Nothing is changed but what is kept beside the engine of its parser (:mod:`_engine_parser`). Every fault is collected, so that one run
tells them all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pwd
import re
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._argument_rules import Config, broken_rules
from ansible_collections.specdec.serving.plugins.module_utils._arguments import ArgumentsCheck, check_words
from ansible_collections.specdec.serving.plugins.module_utils._engine import LOCK_FILE, complete_engines, locked_version
from ansible_collections.specdec.serving.plugins.module_utils._engine_parser import (
    EngineParser,
    parser_of_engine,
    parser_of_wheel,
)
from ansible_collections.specdec.serving.plugins.module_utils._host_checks import (
    CONTAINERS,
    Findings,
    check_cache_folders,
    check_driver,
    check_fabric,
    check_limits,
    check_persistence,
    check_shared_memory,
    check_toolchain,
    foreign_processes,
    inaccessible,
    virtualization,
)
from ansible_collections.specdec.serving.plugins.module_utils._memory_estimate import (
    Estimate,
    ModelFolder,
    estimate,
    read_model,
)
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact_text, secret_words
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._server_args import canonical_dest
from ansible_collections.specdec.serving.plugins.module_utils._sockets import (
    Listener,
    covers,
    describe_owner,
    find_owners,
    listeners,
    owned_by_cgroup,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, SystemdError, show

__all__ = (
    "Gpu",
    "HostView",
    "InstanceCheck",
    "PathCheck",
    "PortCheck",
    "PreflightRequest",
    "PreflightResult",
    "parse_gpus",
    "preflight",
)

#: LoadCredential= and $CREDENTIALS_DIRECTORY (systemd 247, NEWS).
_CREDENTIALS_SINCE = 247
_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "pci.bus_id", "driver_version", "compute_cap")
_GPU_SERVICES = ("nvidia-fabricmanager.service", "nvidia-persistenced.service")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;#\\]+)")
_PYTHON_PROGRAM = "import ensurepip, venv, sys; print('.'.join(map(str, sys.version_info[:3])))"


@dataclasses.dataclass(frozen=True)
class PathCheck:
    """A path that must exist; ``what`` names it in the error."""

    path: str
    what: str


@dataclasses.dataclass(frozen=True)
class PortCheck:
    """A port that must be free, or held by ``unit`` itself."""

    host: str
    port: int
    unit: str


@dataclasses.dataclass(frozen=True)
class InstanceCheck:
    """One instance, as the filter sglang_instances resolved it.

    ``argv`` is the whole command line, ``origins`` say by dest where an argument comes from. ``gpus`` are numbers or UUIDs; () = all
    of the host. ``wanted_tokens`` must fit into the KV cache at once; 0 = one request of the context length.
    """

    name: str
    unit: str
    argv: tuple[str, ...]
    origins: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    model_path: str = ""
    draft_model_path: str = ""
    cache_dirs: tuple[str, ...] = ()
    has_key: bool = False
    wanted_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class PreflightRequest:
    """What the deployment is going to need."""

    version: str
    python: str
    wheelhouse: str = ""
    paths: tuple[PathCheck, ...] = ()
    ports: tuple[PortCheck, ...] = ()
    needs_gpu: bool = False
    user: str = "sglang"
    root: str = "/opt/specdec"
    engine: str = ""
    instances: tuple[InstanceCheck, ...] = ()
    keep: bool = True


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi; ``numa_node`` is -1 where the kernel does not know it."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int
    pci_bus_id: str
    driver_version: str
    compute_capability: str
    numa_node: int = -1


@dataclasses.dataclass
class PreflightResult:
    """``errors`` forbid the deployment. ``facts`` go to the filter sglang_instances, ``instances`` hold a verdict each."""

    errors: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    facts: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    instances: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class HostView:
    """How the host is looked at; tests give other roots and functions."""

    runner: Runner
    sys_root: str = "/sys"
    find_listeners: t.Callable[[int], tuple[list[Listener], str]] = listeners
    owned: t.Callable[..., bool | None] = owned_by_cgroup
    proc: str = "/proc"
    shared_memory: int | None = None
    make_runner: t.Callable[..., Runner] = command_runner
    which: t.Callable[..., str | None] | None = None


def _integer(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def parse_gpus(text: str) -> list[Gpu]:
    """Parse ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits`` for the fields that we ask."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_GPU_FIELDS):
            index, uuid, name, memory, pci, driver, capability = cells
            gpus.append(
                Gpu(
                    index=_integer(index),
                    uuid=uuid,
                    name=name,
                    memory_total_mib=_integer(memory),
                    pci_bus_id=pci,
                    driver_version=driver,
                    compute_capability=capability,
                )
            )
    return gpus


def _sysfs_number(path: str, default: int) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read().strip())
    except (OSError, ValueError):
        return default


def _numa_node(pci_bus_id: str, sys_root: str) -> int:
    # nvidia-smi writes the domain with eight digits, the kernel with four, in lower case.
    domain, _colon, rest = pci_bus_id.lower().partition(":")
    return _sysfs_number(f"{sys_root}/bus/pci/devices/{domain[-4:]}:{rest}/numa_node", -1)


def _numa_nodes(sys_root: str) -> list[int]:
    """The nodes that have processors, by number."""
    nodes = []
    try:
        names = os.listdir(f"{sys_root}/devices/system/node")
    except OSError:
        return []
    for name in names:
        found = re.fullmatch(r"node(\d+)", name)
        if found:
            nodes.append(int(found.group(1)))
    return sorted(nodes)


def _look_at_gpus(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    query = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    code, stdout, stderr = view.runner(query)
    gpus: list[Gpu] = []
    if code == 0:
        gpus = [
            dataclasses.replace(gpu, numa_node=_numa_node(gpu.pci_bus_id, view.sys_root)) for gpu in parse_gpus(stdout)
        ]
    elif code != 127:
        result.errors.append(f"nvidia-smi failed with {code}: {(stderr or stdout).strip() or 'no output'}")
    elif request.needs_gpu:
        result.errors.append(
            "nvidia-smi is not there, but GPUs are asked for: install the driver, or use sglang_gpu_profile: cpu"
        )
    if code == 0 and request.needs_gpu and not gpus:
        result.errors.append("nvidia-smi shows no GPU, but GPUs are asked for")
    result.facts["gpus"] = [dataclasses.asdict(gpu) for gpu in gpus]
    result.facts["driver_version"] = gpus[0].driver_version if gpus else ""
    result.facts["numa_nodes"] = _numa_nodes(view.sys_root)
    services: list[str] = []
    if gpus:
        code, stdout, _stderr = view.runner(
            ["systemctl", "list-unit-files", "--no-legend", "--no-pager", *_GPU_SERVICES]
        )
        services = sorted(line.split()[0] for line in stdout.splitlines() if line.split())
    result.facts["gpu_services"] = services


def _look_at_systemd(view: HostView, result: PreflightResult) -> None:
    code, stdout, stderr = view.runner(["systemctl", "--version"])
    found = re.match(r"systemd (\d+)", stdout)
    version = int(found.group(1)) if code == 0 and found else 0
    if not version:
        result.errors.append(f"this host has no systemd: systemctl --version says {(stderr or stdout).strip()!r}")
    result.facts["systemd_version"] = version
    result.facts["credentials"] = version >= _CREDENTIALS_SINCE


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _look_at_wheelhouse(request: PreflightRequest, result: PreflightResult) -> None:
    if not request.wheelhouse:
        return
    origin = f"sglang_wheelhouse {request.wheelhouse!r}"
    if not os.path.isdir(request.wheelhouse):
        result.errors.append(f"{origin} is no folder on this host")
        return
    lock = f"{request.wheelhouse}/{LOCK_FILE}"
    try:
        with open(lock, "rb") as file:
            content = file.read()
    except OSError as exc:
        result.errors.append(
            f"{origin} has no readable {LOCK_FILE} ({exc.strerror}): it must list every package as name==version"
        )
        return
    result.facts["lock_sha256"] = hashlib.sha256(content).hexdigest()
    text = content.decode("utf-8", "replace")
    locked = locked_version(text)
    result.facts["lock_version"] = locked
    if not locked:
        result.errors.append(f"{lock} does not list sglang==VERSION")
    elif locked.partition("+")[0] != request.version.partition("+")[0]:
        result.errors.append(f"{lock} lists sglang=={locked}, but sglang_version is {request.version!r}")
    wheels = {
        (_normalized(parts[0]), parts[1])
        for parts in (name.split("-") for name in os.listdir(request.wheelhouse))
        if len(parts) > 2
    }
    missing = [
        found.group(0)
        for found in (_REQUIREMENT.match(line) for line in text.splitlines())
        if found and (_normalized(found.group("name")), found.group("version")) not in wheels
    ]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        result.errors.append(f"{origin} has no wheel for {', '.join(missing[:5])}{more}")


def _look_at_python(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    code, stdout, stderr = view.runner([request.python, "-c", _PYTHON_PROGRAM])
    result.facts["python_version"] = stdout.strip() if code == 0 else ""
    if code == 127:
        result.errors.append(f"sglang_python {request.python!r} cannot be executed on this host: {stderr.strip()}")
    elif code != 0:
        last = (stderr.strip().splitlines() or ["no output"])[-1]
        result.errors.append(
            f"sglang_python {request.python!r} cannot make virtual environments ({last}); install its venv package"
        )


def _look_at_paths(request: PreflightRequest, result: PreflightResult) -> None:
    for check in request.paths:
        try:
            empty = os.path.isdir(check.path) and not os.listdir(check.path)
            exists = os.path.exists(check.path)
        except OSError as exc:
            result.errors.append(f"{check.what} {check.path!r} cannot be read: {exc.strerror}")
            continue
        if not exists:
            result.errors.append(f"{check.what} {check.path!r} does not exist on this host")
        elif empty:
            result.errors.append(f"{check.what} {check.path!r} is an empty folder")


def _reaches(listener: Listener, host: str) -> bool:
    try:
        return covers(listener, host)
    except ValueError:
        # A name: which address it means is for the server to find out; any listener on the port is suspicious.
        return True


def _look_at_ports(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    for check in request.ports:
        try:
            found, _reason = view.find_listeners(check.port)
            control_group = show(view.runner, check.unit).control_group
        except (OSError, SystemdError) as exc:
            result.errors.append(f"{check.unit}: who holds port {check.port} cannot be found out: {exc}")
            continue
        foreign = [
            listener
            for listener in found
            if _reaches(listener, check.host) and view.owned([listener], control_group) is not True
        ]
        if foreign:
            owners = "; ".join(describe_owner(owner) for owner in find_owners(foreign))
            result.errors.append(f"{check.unit}: {owners}; stop it or choose another port")


# --- instances ----------------------------------------------------------------------------------------------------------------


def _engine_path(request: PreflightRequest, result: PreflightResult) -> str:
    """The engine that the instances run in. With a wheelhouse its lock names it, which the controller has not seen."""
    digest = str(result.facts.get("lock_sha256") or "")
    if digest:
        return f"{request.root.rstrip('/')}/engines/{request.version}-{digest[:12]}"
    return request.engine


def _parser(view: HostView, request: PreflightRequest, result: PreflightResult) -> EngineParser:
    engine = _engine_path(request, result)
    if os.path.basename(engine) in result.facts["engines"]:
        return parser_of_engine(
            engine,
            make_runner=view.make_runner,
            environment=request.instances[0].environment,
            keep=request.keep,
        )
    return parser_of_wheel(request.wheelhouse, str(result.facts.get("lock_version") or request.version))


def _words(argv: t.Sequence[str]) -> tuple[str, ...]:
    """The words after ``-m sglang.launch_server``."""
    for position, word in enumerate(argv):
        if word == "sglang.launch_server":
            return tuple(argv[position + 1 :])
    return tuple(argv)


def _guess(text: str) -> t.Any:
    """The value of a word whose type is not known: a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _known_values(check: ArgumentsCheck, parser: EngineParser) -> dict[str, t.Any]:
    """Values by the names that 0.5.23 uses, as the rules do; guessed where the parser knows names only."""
    typed = {action.dest for action in parser.actions if action.known}
    found: dict[str, t.Any] = {}
    for dest, value in check.values.items():
        if dest not in typed:
            value = (
                _guess(value)
                if isinstance(value, str)
                else [_guess(item) for item in value]
                if isinstance(value, list)
                else value
            )
        if value is not None or canonical_dest(dest) not in found:
            found[canonical_dest(dest)] = value
    return found


def _cards(instance: InstanceCheck, gpus: t.Sequence[t.Mapping[str, t.Any]]) -> list[t.Mapping[str, t.Any]]:
    """The GPUs that an instance may use."""
    if not instance.gpus:
        return list(gpus)
    return [gpu for gpu in gpus if {str(gpu["index"]), str(gpu["uuid"])} & set(instance.gpus)]


def _capability(cards: t.Sequence[t.Mapping[str, t.Any]]) -> int:
    """Compute capability times ten of the least of them; 0 = unknown."""
    found = [
        int(str(card["compute_capability"]).replace(".", ""))
        for card in cards
        if re.fullmatch(r"\d+\.\d", str(card["compute_capability"]))
    ]
    return min(found, default=0)


def _model_findings(instance: InstanceCheck, what: str, model: ModelFolder, findings: Findings) -> None:
    where = f"{instance.name}: {what} {model.path!r}"
    if model.problem and model.config:
        findings.errors.append(f"{where} {model.problem}")
    elif model.problem:
        findings.warnings.append(f"{where} {model.problem}")
    if model.missing:
        more = f" and {len(model.missing) - 3} more" if len(model.missing) > 3 else ""
        findings.errors.append(
            f"{where} is not complete: its index names {', '.join(model.missing[:3])}{more}, which is not there or empty; fetch it again"
        )


def _memory_findings(instance: InstanceCheck, found: Estimate, findings: Findings) -> None:
    if not found.card_gib:
        return
    numbers = (
        f"weights {found.weights_gib:.1f} GiB, draft {found.draft_gib:.1f} GiB, {found.static_gib:.1f} GiB for both and the KV cache"
        f" (mem_fraction_static {found.mem_fraction_static:.2f} of {found.card_gib:.1f} GiB)"
    )
    if found.fits is False:
        findings.errors.append(
            f"{instance.name}: the weights do not fit: {numbers} per GPU; raise tp_size or mem_fraction_static, or choose a smaller model or draft"
        )
    elif found.fits is None:
        findings.warnings.append(f"{instance.name}: it is not certain that the weights fit: {numbers} per GPU")
    elif 0 < found.kv_tokens < found.wanted_tokens:
        findings.warnings.append(
            f"{instance.name}: the KV cache has room for about {found.kv_tokens} tokens, but {found.wanted_tokens} are wanted at once: {numbers};"
            " lower context_length or the concurrency, or raise mem_fraction_static"
        )


def _check_instance(
    instance: InstanceCheck, request: PreflightRequest, parser: EngineParser, gpus: t.Sequence[t.Mapping[str, t.Any]]
) -> dict[str, t.Any]:
    """The verdict on one instance: its errors, warnings, estimate and the command line that would run."""
    began = time.monotonic()
    words = _words(instance.argv)
    findings = Findings()

    def origin(dest: str) -> str:
        return instance.origins.get(canonical_dest(dest)) or f"{instance.name}: its command line"

    if parser.actions:
        check = check_words(words, parser, version=request.version, origin=origin)
        findings.errors += check.errors
        findings.warnings += check.warnings
    else:
        check = check_words(words, EngineParser(), version=request.version, origin=origin)
        check = ArgumentsCheck(values=check.unknown, asked=dict.fromkeys(check.unknown, ""))
    if instance.has_key and parser.actions:
        known = {action.dest for action in parser.actions}
        for dest in {"config", "api_key"} - known:
            findings.errors.append(
                f"{instance.name}: SGLang {request.version} has no {dest!r}, so keys cannot be given to it; use a newer release"
            )
    target, draft = (
        read_model(instance.model_path),
        read_model(instance.draft_model_path) if instance.draft_model_path else None,
    )
    _model_findings(instance, "model_path", target, findings)
    if draft is not None:
        _model_findings(instance, "speculative_draft_model_path", draft, findings)
    values = _known_values(check, parser)
    cards = _cards(instance, gpus)
    asked_device = values.get("device")
    config = Config(
        values=values,
        asked={canonical_dest(dest) for dest in check.asked},
        version=request.version,
        device=str(asked_device or "cuda"),
        compute_capability=_capability(cards),
        target=target.config,
        draft=draft.config if draft else {},
        environment=instance.environment,
        gpu_count=len(cards) if cards else None,
        algorithms=parser.algorithms,
        has_key=instance.has_key,
    )
    for broken in broken_rules(config):
        (findings.errors if broken.is_error else findings.warnings).append(f"{origin(broken.dest)}: {broken.text}")
    on_gpu = config.device.startswith("cuda")
    found = estimate(
        config,
        target,
        draft,
        card_mib=min((float(card["memory_total_mib"]) for card in cards), default=0.0) if on_gpu else 0.0,
        wanted_tokens=instance.wanted_tokens,
    )
    if found is not None and not findings.errors:
        _memory_findings(instance, found, findings)
    secrets = secret_words(words)
    return {
        "name": instance.name,
        "unit": instance.unit,
        "argv": [redact_text(word, secrets) for word in instance.argv],
        "errors": findings.errors,
        "warnings": findings.warnings,
        "estimate": found.as_dict() if found is not None else {},
        "checked_in_s": round(time.monotonic() - began, 3),
        "gpus": [str(card["uuid"]) for card in cards] if on_gpu else [],
        "gpus_needed": config.gpus_needed if on_gpu else 0,
        "algorithm": config.algorithm,
        "device": config.device,
    }


def _is_active(view: HostView, unit: str) -> bool:
    try:
        return show(view.runner, unit).active_state in ("active", "activating", "reloading")
    except SystemdError:
        return False


def _look_at_foreign(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    """Processes of others on the GPUs of the instances. Those of a unit that runs already are its own."""
    units = {instance.unit for instance in request.instances}
    foreign = foreign_processes(view.runner, units, proc=view.proc)
    names = {str(gpu["uuid"]): f"GPU {gpu['index']} ({gpu['name']})" for gpu in result.facts["gpus"]}
    for process in foreign:
        cards = [names.get(uuid, uuid) for uuid in process.uuids]
        hit = [item for item in result.instances if set(item["gpus"]) & set(process.uuids)]
        if not hit:
            continue
        text = f"{', '.join(cards)}: {process.text}, which {' and '.join(item['name'] for item in hit)} would have to do without"
        if not process.large or all(_is_active(view, item["unit"]) for item in hit):
            result.warnings.append(text)
        else:
            result.errors.append(f"{text}; stop it (it is never stopped for you), or choose other 'gpus'")


def _look_at_instances(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    began = time.monotonic()
    parser = _parser(view, request, result)
    result.facts["parser"] = {
        "source": parser.source,
        "seconds": round(time.monotonic() - began, 3),
        "arguments": len(parser.actions),
        "cuda": parser.torch_cuda,
    }
    if parser.problem:
        result.warnings.append(f"{parser.problem}; names of arguments were checked, their values were not")
    gpus = result.facts["gpus"]
    for instance in request.instances:
        verdict = _check_instance(instance, request, parser, gpus)
        result.instances.append(verdict)
        result.errors += verdict["errors"]
        result.warnings += verdict["warnings"]
    findings = Findings()
    needs_gpu = request.needs_gpu or any(item["gpus"] for item in result.instances)
    most = max((item["gpus_needed"] for item in result.instances), default=0)
    if needs_gpu:
        check_shared_memory(findings, size=view.shared_memory)
        check_limits(findings, proc=view.proc)
        if result.facts["virtualization"] in CONTAINERS:
            findings.warnings.append(
                f"this host is a container ({result.facts['virtualization']}): GPUs, /dev/shm and limits come from what runs it"
            )
    if gpus:
        _look_at_foreign(view, request, result)
        check_driver(findings, driver=result.facts["driver_version"], torch_cuda=parser.torch_cuda)
        check_persistence(findings, view.runner)
        check_fabric(findings, view.runner, names={str(gpu["name"]) for gpu in gpus}, gpus_needed=most)
    for instance, verdict in zip(request.instances, result.instances):
        compiles = verdict["algorithm"] == "NGRAM"
        compiles = compiles or (
            verdict["device"] == "cpu"
            and verdict["algorithm"] not in ("", "NGRAM")
            and instance.environment.get("TORCHDYNAMO_DISABLE") != "1"
        )
        options = {} if view.which is None else {"which": view.which}
        own = Findings()
        check_toolchain(
            own,
            path=instance.environment.get("PATH", os.defpath),
            include=parser.include,
            needs_gpu=needs_gpu,
            needs_compiler=f"{instance.name}: {verdict['algorithm']}" if compiles else "",
            **options,
        )
        findings.errors += own.errors
        findings.warnings += [warning for warning in own.warnings if warning not in findings.warnings]
    folders = tuple(dict.fromkeys(path for instance in request.instances for path in instance.cache_dirs))
    check_cache_folders(findings, folders)
    _look_at_access(view, request, folders, findings)
    result.errors += findings.errors
    result.warnings += findings.warnings


def _look_at_access(view: HostView, request: PreflightRequest, folders: t.Sequence[str], findings: Findings) -> None:
    """What the service user must be able to read and write. A user that is not there yet is made by the role."""
    try:
        entry = pwd.getpwnam(request.user)
    except KeyError:
        return
    items = [("w", path) for path in folders if os.path.isdir(path)]
    models = [path for item in request.instances for path in (item.model_path, item.draft_model_path)]
    for path in dict.fromkeys(path for path in models if path.startswith("/") and os.path.exists(path)):
        items.append(("r", path))
        items += [("r", f"{path}/config.json")] if os.path.exists(f"{path}/config.json") else []
    if os.geteuid() != 0:
        return
    failed = inaccessible(view.runner, (entry.pw_uid, entry.pw_gid), items)
    if failed is None:
        findings.warnings.append(f"what {request.user!r} may read and write could not be tried (setpriv)")
        return
    for mode, path in failed:
        word = "write to" if mode == "w" else "read"
        remedy = "give it to that user" if mode == "w" else "let that user read it, and enter the folders above it"
        findings.errors.append(f"the service user {request.user!r} cannot {word} {path!r}; {remedy}")


def preflight(request: PreflightRequest, view: HostView) -> PreflightResult:
    """Look at everything that ``request`` names.

    Facts: ``gpus``, ``driver_version``, ``numa_nodes``, ``gpu_services``, ``systemd_version``, ``credentials``,
    ``python_version``, ``user_exists``, ``engines``, ``virtualization``, with a wheelhouse ``lock_sha256`` and ``lock_version``,
    and with instances ``parser``.
    """
    result = PreflightResult()
    _look_at_systemd(view, result)
    _look_at_gpus(view, request, result)
    _look_at_wheelhouse(request, result)
    _look_at_python(view, request, result)
    _look_at_paths(request, result)
    _look_at_ports(view, request, result)
    result.facts["engines"] = complete_engines(f"{request.root.rstrip('/')}/engines")
    result.facts["virtualization"] = virtualization(view.runner)
    try:
        pwd.getpwnam(request.user)
        result.facts["user_exists"] = True
    except KeyError:
        result.facts["user_exists"] = False
    if request.instances:
        _look_at_instances(view, request, result)
    result.errors = list(dict.fromkeys(result.errors))
    result.warnings = list(dict.fromkeys(result.warnings))
    return result
