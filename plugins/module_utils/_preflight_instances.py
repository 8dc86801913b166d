# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the instances of a host before their deployment: arguments, memory, GPUs, folders. PRIVATE to the collection."""

from __future__ import annotations

import os
import pwd
import re
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._argument_config import Config
from ansible_collections.specdec.serving.plugins.module_utils._argument_rules import broken_rules
from ansible_collections.specdec.serving.plugins.module_utils._arguments import ArgumentsCheck, check_words
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
)
from ansible_collections.specdec.serving.plugins.module_utils._memory_estimate import (
    Estimate,
    ModelFolder,
    estimate,
    read_model,
)
from ansible_collections.specdec.serving.plugins.module_utils._own_units import OwnUnit
from ansible_collections.specdec.serving.plugins.module_utils._preflight_request import (
    HostView,
    InstanceCheck,
    PreflightRequest,
    PreflightResult,
)
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact_text, secret_words
from ansible_collections.specdec.serving.plugins.module_utils._server_args import canonical_dest
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, show

__all__ = (
    "look_at_instances",
    "prune_hint",
)


def prune_hint(leftovers: t.Sequence[OwnUnit], units: t.Iterable[str | None]) -> str:
    """Which of the units would go by themselves, as the end of a message."""
    left = sorted({unit.unit for unit in leftovers} & {unit for unit in units if unit})
    return f" ({', '.join(left)} left sglang_instances: sglang_prune: true removes it)" if left else ""


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


def _look_at_foreign(
    view: HostView, request: PreflightRequest, result: PreflightResult, leftovers: t.Sequence[OwnUnit]
) -> None:
    """Processes of others on the GPUs of the instances. Those of a unit that runs already are its own."""
    units = {instance.unit for instance in request.instances}
    if request.prune:
        units |= {unit.unit for unit in leftovers}
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
            hint = prune_hint(leftovers, [process.unit])
            result.errors.append(f"{text}; stop it (it is never stopped for you), or choose other 'gpus'{hint}")


def look_at_instances(
    view: HostView, request: PreflightRequest, result: PreflightResult, leftovers: t.Sequence[OwnUnit]
) -> None:
    """Add the verdicts, faults and facts of all instances to ``result``."""
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
        _look_at_foreign(view, request, result, leftovers)
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
        remedy = "let that user read it, and enter the folders above it"
        if mode == "w":
            # Another service user wrote there, or one of this name that was removed and made again: what is in it is theirs as well.
            remedy = f"it belongs to user id {os.stat(path).st_uid}: chown -R {request.user}: {path}"
        findings.errors.append(f"the service user {request.user!r} cannot {word} {path!r}; {remedy}")
