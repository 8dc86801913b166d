# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the units of a host with all their files as one change, or put everything back. PRIVATE to the collection.

Order of a change: everything is checked; new content goes to temporary names; a record tells which start of the unit
knows only the old files; environment files appear under names that hold the hash of their content; one rename per unit
file switches unit and environment together; systemd reloads. Killed in between, the next run sees what is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import stat
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, SystemdError, UnitState, show
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import environment_file

__all__ = (
    "Instance",
    "Layout",
    "UnitError",
    "UnitReport",
    "apply_present",
    "credential_text",
    "remove",
    "stop",
)

_RECORD_FORMAT = 1
_MASKED = "(secret, not shown)"
_ENVIRONMENT_NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)\.[0-9a-f]{12}\.env")
#: systemd goes on without a setting it does not know (an older release); anything else it says about our file is fatal.
_HARMLESS = re.compile(r"Unknown (key|lvalue) .*, ignoring")
#: In check mode the engine may not be installed yet.
_NOT_INSTALLED = "is not executable: No such file or directory"
#: States in which a start limit or a failure may be counted against the next start.
_COUNTED_STATES = frozenset({"activating", "active", "deactivating", "failed", "reloading"})


class UnitError(Exception):
    """The change cannot be made, or was put back."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where things go. ``user_id`` and ``group_id`` own the cache folders; None: the user does not exist yet."""

    unit_dir: str
    config_dir: str
    state_dir: str
    cache_dirs: tuple[str, ...] = ()
    user_id: int | None = None
    group_id: int | None = None


@dataclasses.dataclass(frozen=True)
class Instance:
    """One unit with its files; texts are complete, paths absolute, '' = there is none."""

    name: str
    unit: str
    content: str
    environment_file: str
    environment_text: str
    engine: str = ""
    secret_environment_file: str = ""
    credential: str = ""
    credential_by_systemd: bool = True


@dataclasses.dataclass
class UnitReport:
    """What was, or would be, done to one unit."""

    name: str
    unit: str
    changed: bool = False
    restart_needed: bool = False
    invocation_id: str = ""
    active_state: str = "inactive"
    reasons: list[str] = dataclasses.field(default_factory=list)
    diff: list[dict[str, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _File:
    path: str
    text: str
    mode: int
    secret: bool = False
    group_id: int | None = None


@dataclasses.dataclass(frozen=True)
class _Current:
    """A file as it is; ``text`` is None when there is none."""

    text: str | None = None
    mode: int = 0
    user_id: int = 0
    group_id: int = 0


def credential_text(keys: t.Mapping[str, str]) -> str:
    """The YAML that SGLang merges by ``--config`` (srt/utils/server_args_config_parser.py): one JSON string per key."""
    return "".join(f"{name.replace('_', '-')}: {json.dumps(keys[name])}\n" for name in sorted(keys))


def _read(path: str) -> _Current:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            status = os.fstat(file.fileno())
            return _Current(file.read(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    except FileNotFoundError:
        return _Current()
    except IsADirectoryError as exc:
        raise UnitError(f"{path!r} is a folder; remove it or choose another name") from exc


def _files_of(instance: Instance, secrets: t.Mapping[str, t.Any], layout: Layout) -> list[_File]:
    """All files but the unit file, in the order in which they are to appear."""
    own = secrets.get(instance.name) or {}
    files = [_File(instance.environment_file, instance.environment_text, 0o644)]
    if instance.secret_environment_file:
        variables = own.get("environment") or {}
        if not variables:
            raise UnitError(f"{instance.name}: a secret environment file is named, but no secret was given")
        text = environment_file(variables, origin=f"{instance.name}: secret environment")
        files.append(_File(instance.secret_environment_file, text, 0o600, secret=True))
    if instance.credential:
        keys = own.get("config") or {}
        if not keys:
            raise UnitError(f"{instance.name}: a credential file is named, but no key was given")
        if instance.credential_by_systemd:
            files.append(_File(instance.credential, credential_text(keys), 0o600, secret=True))
        else:
            # Without LoadCredential= the service user reads the file itself.
            files.append(
                _File(instance.credential, credential_text(keys), 0o640, secret=True, group_id=layout.group_id)
            )
    return files


def _digest(instance: Instance, files: t.Sequence[_File]) -> str:
    """What a running server depends on: unit, environment, credential, engine."""
    parts = [instance.content, instance.engine, *(f"{file.path}\0{file.text}" for file in files)]
    return hashlib.sha256("\0\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _read_record(path: str) -> dict[str, t.Any]:
    text = _read(path).text
    with contextlib.suppress(ValueError):
        record = json.loads(text or "{}")
        if isinstance(record, dict) and record.get("format") == _RECORD_FORMAT:
            return record
    # A record of another format or a damaged one says nothing.
    return {}


def _write_temporary(file: _File) -> str:
    temporary = f"{os.path.dirname(file.path)}/.{os.path.basename(file.path)}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    # Never readable by others, not even for a moment.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
            out.write(file.text)
            out.flush()
            os.fchown(out.fileno(), os.geteuid(), os.getegid() if file.group_id is None else file.group_id)
            os.fchmod(out.fileno(), file.mode)
            os.fsync(out.fileno())
    except BaseException as exc:
        os.unlink(temporary)
        if isinstance(exc, OSError):
            # A full disk does not say which.
            raise OSError(exc.errno, exc.strerror, file.path) from exc
        raise
    return temporary


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Transaction:
    """Replaces files one by one and can put all of them back."""

    def __init__(self) -> None:
        self._undo: list[tuple[_File, _Current]] = []

    def replace(self, file: _File) -> None:
        before = _read(file.path)
        os.rename(_write_temporary(file), file.path)
        self._undo.append((file, before))
        _sync_folder(os.path.dirname(file.path))

    def put_back(self) -> list[str]:
        """Return what could not be put back."""
        failures = []
        for file, before in reversed(self._undo):
            try:
                if before.text is None:
                    os.unlink(file.path)
                else:
                    old = dataclasses.replace(file, text=before.text, mode=before.mode, group_id=before.group_id)
                    os.rename(_write_temporary(old), file.path)
            except OSError as exc:
                failures.append(f"{file.path}: {exc}")
        self._undo.clear()
        return failures


def _ensure_folder(path: str, mode: int, user_id: int | None, group_id: int | None, *, check_mode: bool) -> bool:
    """Return whether the folder is, or would be, made or changed."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if not check_mode:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
            if user_id is not None:
                os.chown(path, user_id, -1 if group_id is None else group_id)
        return True
    if not stat.S_ISDIR(status.st_mode):
        raise UnitError(f"{path!r} exists and is no folder")
    wrong_owner = user_id is not None and status.st_uid != user_id
    if stat.S_IMODE(status.st_mode) == mode and not wrong_owner:
        return False
    if not check_mode:
        os.chmod(path, mode)
        if user_id is not None:
            os.chown(path, user_id, -1 if group_id is None else group_id)
    return True


def _ensure_folders(layout: Layout, *, with_credentials: bool, check_mode: bool) -> list[str]:
    folders: list[tuple[str, int, int | None, int | None]] = [
        (layout.config_dir, 0o755, None, None),
        (layout.state_dir, 0o755, None, None),
        *((path, 0o750, layout.user_id, layout.group_id) for path in layout.cache_dirs),
    ]
    if with_credentials:
        # 0751: the service user may open a file whose name it knows, where systemd does not pass credentials.
        folders.append((f"{layout.config_dir}/credentials", 0o751, None, None))
    return [
        path for path, mode, user, group in folders if _ensure_folder(path, mode, user, group, check_mode=check_mode)
    ]


def _verify(instances: t.Sequence[Instance], runner: Runner, scratch: str, *, check_mode: bool) -> None:
    """Let systemd read the new unit files before anything is replaced.

    :param scratch: an empty folder, removed by the caller.
    :raises UnitError: with systemd's own words.
    """
    paths = []
    for instance in instances:
        path = f"{scratch}/{instance.unit}"
        with open(path, "w", encoding="utf-8", newline="") as out:
            out.write(instance.content)
        paths.append(path)
    code, stdout, stderr = runner(["systemd-analyze", "verify", "--man=no", *paths])
    if code == 127:
        # Not part of every systemd package; the reload and the start tell then.
        return
    complaints = [
        line.replace(scratch + "/", "")
        for line in (stdout + stderr).splitlines()
        if any(os.path.basename(path) in line for path in paths)
        and not _HARMLESS.search(line)
        and not (check_mode and _NOT_INSTALLED in line)
    ]
    if complaints:
        raise UnitError("systemd refuses the unit: " + "; ".join(complaints))


def _diff(file: _File, before: _Current) -> dict[str, str]:
    def shown(text: str | None) -> str:
        if text is None:
            return ""
        return f"{_MASKED}\n" if file.secret else text

    after = shown(file.text)
    if file.secret and before.text not in (None, file.text):
        after = "(another secret, not shown)\n"
    return {
        "before": shown(before.text),
        "after": after,
        "before_header": file.path if before.text is not None else "(new)",
        "after_header": file.path,
    }


def _differs(file: _File, before: _Current) -> bool:
    wrong_group = file.group_id is not None and before.group_id != file.group_id
    return before.text != file.text or before.mode != file.mode or before.user_id != os.geteuid() or wrong_group


def _is_enabled(runner: Runner, unit: str) -> bool:
    code, stdout, _stderr = runner(["systemctl", "is-enabled", "--", unit])
    return code == 0 and stdout.strip() == "enabled"


def _must(runner: Runner, argv: t.Sequence[str]) -> None:
    code, stdout, stderr = runner(argv)
    if code != 0:
        raise UnitError(f"{' '.join(argv)} failed with {code}: {stderr.strip() or stdout.strip() or 'no output'}")


@dataclasses.dataclass
class _Plan:
    instance: Instance
    report: UnitReport
    state: UnitState
    unit_file: _File
    #: Files that differ, the unit file last.
    changes: list[_File]
    record: _File
    record_differs: bool
    enable: bool
    reload: bool


def _plan(
    instance: Instance, secrets: t.Mapping[str, t.Any], layout: Layout, runner: Runner, *, enabled: bool | None
) -> _Plan:
    state = show(runner, instance.unit)
    report = UnitReport(
        name=instance.name, unit=instance.unit, invocation_id=state.invocation_id, active_state=state.active_state
    )
    if state.load_state == "masked":
        raise UnitError(f"{instance.unit} is masked; unmask it first: systemctl unmask {instance.unit}")
    files = _files_of(instance, secrets, layout)
    unit_file = _File(f"{layout.unit_dir}/{instance.unit}", instance.content, 0o644)
    changes = []
    for file in (*files, unit_file):
        before = _read(file.path)
        if not _differs(file, before):
            continue
        changes.append(file)
        report.diff.append(_diff(file, before))
        what = "unit" if file is unit_file else "secret" if file.secret else "environment"
        report.reasons.append(f"{what} {'changed' if before.text is not None else 'is new'}: {file.path}")

    record_path = f"{layout.state_dir}/{instance.name}.json"
    digest = _digest(instance, files)
    old = _read_record(record_path)
    changed_while = str(old.get("changed_while") or "")
    known = old.get("digest") == digest
    if changes or not known or state.need_daemon_reload:
        # This start of the unit, if there is one, knows only what was before. So may one that systemd made before it read
        # the file, whoever asked for it.
        changed_while = state.invocation_id
        if not changes and not known:
            report.reasons.append("there is no record that the running server started with these files")
    record = {
        "changed_while": changed_while,
        "digest": digest,
        "engine": instance.engine,
        "environment_file": instance.environment_file,
        "format": _RECORD_FORMAT,
        "unit": instance.unit,
    }
    record_file = _File(record_path, json.dumps(record, indent=1, sort_keys=True) + "\n", 0o600)

    running = state.active_state in ("active", "reloading")
    report.restart_needed = not running or (bool(changed_while) and changed_while == state.invocation_id)
    if not running:
        report.reasons.append(f"the unit is {state.active_state}")
    elif report.restart_needed and not changes:
        report.reasons.append("it was changed earlier and not restarted since")

    enable = enabled is not None and _is_enabled(runner, instance.unit) is not enabled
    if enable:
        report.reasons.append("the unit is to be " + ("enabled" if enabled else "disabled") + " at boot")
    report.changed = bool(changes) or enable or state.need_daemon_reload
    if state.need_daemon_reload and not changes:
        report.reasons.append("systemd has not read the unit file again")
    return _Plan(
        instance=instance,
        report=report,
        state=state,
        unit_file=unit_file,
        changes=changes,
        record=record_file,
        record_differs=_differs(record_file, _read(record_path)),
        enable=enable,
        reload=bool(changes) or state.need_daemon_reload,
    )


def _switch(plans: t.Sequence[_Plan], transaction: _Transaction, runner: Runner, *, enabled: bool | None) -> None:
    for plan in plans:
        if plan.record_differs:
            # First, so that a run that is killed later still knows which start is too old.
            transaction.replace(plan.record)
    changes = [(file, file is plan.unit_file) for plan in plans for file in plan.changes]
    for file, _is_unit in sorted(changes, key=lambda change: change[1]):
        transaction.replace(file)
    if any(plan.reload for plan in plans):
        _must(runner, ["systemctl", "daemon-reload"])
    for plan in plans:
        state = show(runner, plan.instance.unit)
        if state.load_state != "loaded":
            raise UnitError(
                f"systemd does not load {plan.instance.unit}: {state.load_state} {state.load_error}".rstrip()
            )
    for plan in plans:
        if plan.enable:
            _must(runner, ["systemctl", "enable" if enabled else "disable", "--quiet", "--", plan.instance.unit])


def _make(plans: t.Sequence[_Plan], runner: Runner, *, enabled: bool | None) -> None:
    """Carry out the plans: all of them, or none."""
    transaction = _Transaction()
    try:
        _switch(plans, transaction, runner, enabled=enabled)
    except BaseException as exc:
        failures = transaction.put_back()
        code, _stdout, stderr = runner(["systemctl", "daemon-reload"])
        if code != 0:
            failures.append(f"systemctl daemon-reload: {stderr.strip()}")
        left = f"; could not put back: {', '.join(failures)}" if failures else "; everything was put back"
        if isinstance(exc, (OSError, SystemdError, UnitError)):
            raise UnitError(f"{exc}{left}") from exc
        raise


def _referenced(layout: Layout) -> str:
    """The text of all unit files and drop-ins that may name our environment files."""
    texts: list[str] = []
    for folder, _folders, names in os.walk(layout.unit_dir):
        texts.extend(_read(f"{folder}/{name}").text or "" for name in names if name.endswith((".service", ".conf")))
    return "\n".join(texts)


def _prune(layout: Layout, instances: t.Sequence[Instance]) -> None:
    """Remove environment files of older content that no unit names any more."""
    names = {instance.name for instance in instances}
    references = _referenced(layout) + "\n".join(instance.environment_file for instance in instances)
    for file_name in sorted(os.listdir(layout.config_dir)):
        found = _ENVIRONMENT_NAME.fullmatch(file_name)
        path = f"{layout.config_dir}/{file_name}"
        if found and found.group("name") in names and path not in references:
            os.unlink(path)


def apply_present(
    instances: t.Sequence[Instance],
    layout: Layout,
    secrets: t.Mapping[str, t.Any],
    runner: Runner,
    *,
    enabled: bool | None = True,
    check_mode: bool = False,
    scratch: str = "",
) -> tuple[list[UnitReport], list[str]]:
    """Bring all units of ``instances`` to what is asked; return a report per unit and the folders that were made.

    :param secrets: instance name -> ``{"config": {...}, "environment": {...}}``.
    :param enabled: whether the units start at boot; None leaves that as it is.
    :param scratch: an empty folder in which systemd may read the new unit files; '' = do not ask it.
    :raises UnitError: when the change is impossible, or failed and was put back.
    :raises SystemdError: when systemd cannot be asked.
    """
    plans = [_plan(instance, secrets, layout, runner, enabled=enabled) for instance in instances]
    new_units = [plan.instance for plan in plans if plan.unit_file in plan.changes]
    if new_units and scratch:
        _verify(new_units, runner, scratch, check_mode=check_mode)
    with_credentials = any(plan.instance.credential for plan in plans)
    folders = _ensure_folders(layout, with_credentials=with_credentials, check_mode=check_mode)
    if not check_mode:
        if any(plan.changes or plan.record_differs or plan.enable or plan.reload for plan in plans):
            _make(plans, runner, enabled=enabled)
        if any(plan.changes for plan in plans):
            _prune(layout, instances)
        counted = [
            p.instance.unit for p in plans if p.report.restart_needed and p.state.active_state in _COUNTED_STATES
        ]
        if counted:
            # A restart that was asked for must not count against the start limit, which is meant for crashes.
            runner(["systemctl", "reset-failed", "--", *counted])
    return [plan.report for plan in plans], folders


def stop(units: t.Sequence[tuple[str, str]], runner: Runner, *, check_mode: bool = False) -> list[UnitReport]:
    """Stop units (name, unit), all at once, and wait until each has ended; unknown ones are stopped already."""
    reports = []
    running = []
    for name, unit in units:
        state = show(runner, unit)
        report = UnitReport(name=name, unit=unit, invocation_id=state.invocation_id, active_state=state.active_state)
        reports.append(report)
        if state.active_state not in ("inactive", "failed"):
            running.append(unit)
            report.changed = True
            report.reasons.append(f"the unit is {state.active_state}")
            report.diff.append(
                {
                    "before": f"{unit}: {state.active_state}\n",
                    "after": f"{unit}: inactive\n",
                    "before_header": unit,
                    "after_header": unit,
                }
            )
    if running and not check_mode:
        _must(runner, ["systemctl", "stop", "--", *running])
        for report in reports:
            report.active_state = show(runner, report.unit).active_state
    return reports


def remove(
    units: t.Sequence[tuple[str, str]], layout: Layout, runner: Runner, *, check_mode: bool = False
) -> list[UnitReport]:
    """Stop and disable units (name, unit) and remove their files. Engines, caches and the user stay."""
    reports = stop(units, runner, check_mode=check_mode)
    changed = False
    for report in reports:
        unit_path = f"{layout.unit_dir}/{report.unit}"
        paths = [
            unit_path,
            f"{layout.config_dir}/{report.name}.secret.env",
            f"{layout.config_dir}/credentials/{report.name}.yaml",
            f"{layout.state_dir}/{report.name}.json",
        ]
        with contextlib.suppress(FileNotFoundError):
            for file_name in sorted(os.listdir(layout.config_dir)):
                found = _ENVIRONMENT_NAME.fullmatch(file_name)
                if found and found.group("name") == report.name:
                    paths.append(f"{layout.config_dir}/{file_name}")
        there = [path for path in paths if os.path.lexists(path)]
        if not there:
            continue
        changed = report.changed = True
        report.reasons.extend(f"removed: {path}" for path in there)
        report.diff.extend(
            {"before": f"{path}\n", "after": "", "before_header": path, "after_header": "(removed)"} for path in there
        )
        if check_mode:
            continue
        if unit_path in there:
            _must(runner, ["systemctl", "disable", "--quiet", "--", report.unit])
        for path in there:
            os.unlink(path)
    if changed and not check_mode:
        _must(runner, ["systemctl", "daemon-reload"])
        # Not an error for a unit that is gone by now.
        runner(["systemctl", "reset-failed", "--", *(report.unit for report in reports)])
    return reports
