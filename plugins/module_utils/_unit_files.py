# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the units of a host with all their files as one change, or put everything back. PRIVATE to the collection.

A unit file names all that belongs to it by its content: the environment file by a hash, files of secrets by a random name that
each content has for itself, the engine by its lock. So one rename of the unit file switches everything, and what a process
was started with is of one generation (see ``_known_good.py``), whenever somebody pulls the plug.

Order of a change: everything is checked; everything is written under temporary names, so that a full disk is told before anything
changed; files of environment and secrets appear under names that nothing uses yet; a record tells which start of the unit
knows only the old files; one rename for each unit file; systemd reloads; what nothing names any more is removed. Killed in between, the
next run sees what is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _known_good
from ansible_collections.specdec.serving.plugins.module_utils._credentials import UNCHOSEN, credential_text, is_chosen
from ansible_collections.specdec.serving.plugins.module_utils._drop_ins import show_with_drop_ins
from ansible_collections.specdec.serving.plugins.module_utils._files import (
    commit,
    discard,
    remove_left_behind,
    stage,
    write_file,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, SystemdError, UnitState, show
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import environment_file

__all__ = (
    "Instance",
    "Layout",
    "UnitError",
    "UnitReport",
    "apply_present",
    "installed",
    "missing_for",
    "prune",
    "put_back",
    "read_state",
    "remove",
    "stop",
)

_RECORD_FORMAT = 2
_RECORD_TEXTS = (
    "asked",
    "changed_while",
    "credential",
    "engine",
    "environment_file",
    "generation",
    "secret_environment_file",
    "unit",
)
_MASKED = "(secret, not shown)"
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
    #: Where drop-ins that last until the next boot lie (systemd.unit(5)).
    runtime_unit_dir: str = "/run/systemd/system"


@dataclasses.dataclass(frozen=True)
class Instance:
    """One unit with its files; texts are complete, paths absolute, '' = there is none.

    The paths of secret files hold ``@SECRET@``, in ``content`` as well; the host puts what is right in its place.
    """

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
    #: What is installed now, or would be; '' when it is not known before it is written.
    generation: str = ""
    #: This generation is the one that was proven ready last.
    known_good: bool = False
    reasons: list[str] = dataclasses.field(default_factory=list)
    diff: list[dict[str, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _File:
    path: str
    text: str
    mode: int
    secret: bool = False
    group_id: int | None = None
    #: The file of secrets that the installed unit has in this one's place.
    instead_of: str = ""


@dataclasses.dataclass(frozen=True)
class _Target:
    """A unit as it shall be: nothing is left to choose."""

    name: str
    unit: str
    content: str
    engine: str
    environment_file: str
    secret_environment_file: str = ""
    credential: str = ""
    #: All files but the unit file that may have to be written.
    files: tuple[_File, ...] = ()
    #: '' in check mode, when a file of secrets has no name yet.
    generation: str = ""


@dataclasses.dataclass(frozen=True)
class _Current:
    """A file as it is; ``text`` is None when there is none."""

    text: str | None = None
    mode: int = 0
    user_id: int = 0
    group_id: int = 0


def _read(path: str) -> _Current:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            status = os.fstat(file.fileno())
            return _Current(file.read(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    except FileNotFoundError:
        return _Current()
    except IsADirectoryError as exc:
        raise UnitError(f"{path!r} is a folder; remove it or choose another name") from exc


def _among(folder: str, before: str, after: str) -> list[str]:
    """The files of secrets called like this one that are there."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    first, last = os.path.basename(before), len(after)
    return [
        f"{folder}/{name}"
        for name in names
        if name.startswith(first) and name.endswith(after) and is_chosen(name[len(first) : len(name) - last])
    ]


def _choose(template: str, text: str, current: str, *, check_mode: bool) -> tuple[str, str]:
    """The name of the file of secrets with this content, and of the one that the unit file ``current`` has in its place."""
    before, mark, after = template.partition(UNCHOSEN)
    if not mark or UNCHOSEN in after or "/" in after:
        raise UnitError(
            f"{template!r}: the name of a file of secrets must hold {UNCHOSEN} once, which the host replaces"
        )
    there = _among(os.path.dirname(template), before, after)
    installed = next((path for path in there if path in current), "")
    for path in sorted(there, key=lambda path: path != installed):
        if _read(path).text == text:
            return path, installed
    return f"{before}{'new' if check_mode else os.urandom(8).hex()}{after}", installed


def _target(instance: Instance, secrets: t.Mapping[str, t.Any], layout: Layout, *, check_mode: bool) -> _Target:
    """What is to be installed. The same content keeps its file, so that nothing changes when nothing was changed."""
    own = secrets.get(instance.name) or {}
    current = _read(f"{layout.unit_dir}/{instance.unit}").text or ""
    content = instance.content
    files = [_File(instance.environment_file, instance.environment_text, 0o644)]
    chosen = {"secret_environment_file": "", "credential": ""}
    for option, key, what, missing in (
        ("secret_environment_file", "environment", "a secret environment file", "secret"),
        ("credential", "config", "a credential file", "key"),
    ):
        template = getattr(instance, option)
        if not template:
            continue
        values = own.get(key) or {}
        if not values:
            raise UnitError(f"{instance.name}: {what} is named, but no {missing} was given")
        if option == "credential":
            text = credential_text(values)
        else:
            text = environment_file(values, origin=f"{instance.name}: secret environment")
        path, instead_of = _choose(template, text, current, check_mode=check_mode)
        # Without LoadCredential= the service user reads the file itself.
        open_to_group = option == "credential" and not instance.credential_by_systemd
        mode, group_id = (0o640, layout.group_id) if open_to_group else (0o600, None)
        files.append(_File(path, text, mode, secret=True, group_id=group_id, instead_of=instead_of))
        chosen[option] = path
        content = content.replace(template, path)
    unnamed = check_mode and any(file.secret and not os.path.lexists(file.path) for file in files)
    return _Target(
        name=instance.name,
        unit=instance.unit,
        content=content,
        engine=instance.engine,
        environment_file=instance.environment_file,
        files=tuple(files),
        generation="" if unnamed else _known_good.generation_of(content),
        **chosen,
    )


def read_state(state_dir: str, name: str) -> dict[str, t.Any]:
    """What the host noted of an instance when its unit was written; {} when there is nothing, or it cannot be used.

    ``generation`` was written, ``asked`` is what a deployment asked for last, ``rolled_back_at`` (seconds since the epoch) is above 0
    while something else was put back in its place; ``changed_while``: the invocation that knows only what was before.
    """
    text = _read(f"{state_dir}/{name}.json").text
    with contextlib.suppress(RecursionError, TypeError, ValueError):
        record = json.loads(text or "{}")
        if isinstance(record, dict) and record.get("format") == _RECORD_FORMAT:
            float(record.get("rolled_back_at") or 0)
            if all(isinstance(record.get(key, ""), str) for key in _RECORD_TEXTS):
                return record
    # A record of another format or a damaged one says nothing.
    return {}


def installed(layout: Layout, unit: str) -> str:
    """The generation of the unit file that is there, '' without one."""
    text = _read(f"{layout.unit_dir}/{unit}").text
    return "" if text is None else _known_good.generation_of(text)


class _Transaction:
    """Replaces files in the order in which they were staged, and can put all of them back."""

    def __init__(self) -> None:
        self._staged: list[tuple[_File, str]] = []
        self._undo: list[tuple[_File, _Current]] = []

    def stage(self, file: _File) -> None:
        self._staged.append((file, stage(file.path, file.text, mode=file.mode, group_id=file.group_id)))

    def commit(self) -> None:
        while self._staged:
            file, temporary = self._staged[0]
            # Before it is done: it may fail after the rename.
            self._undo.append((file, _read(file.path)))
            commit(temporary, file.path)
            self._staged.pop(0)

    def put_back(self) -> list[str]:
        """Return what could not be put back."""
        for _file, temporary in self._staged:
            discard(temporary)
        self._staged.clear()
        failures = []
        for file, before in reversed(self._undo):
            try:
                if before.text is None:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(file.path)
                elif _read(file.path) != before:
                    write_file(file.path, before.text, mode=before.mode, group_id=before.group_id)
            except OSError as exc:
                failures.append(f"{file.path}: {exc.strerror or exc}")
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


def _verify(targets: t.Sequence[_Target], runner: Runner, scratch: str, *, check_mode: bool) -> None:
    """Let systemd read the new unit files before anything is replaced.

    :param scratch: an empty folder, removed by the caller.
    :raises UnitError: with systemd's own words.
    """
    paths = []
    for target in targets:
        path = f"{scratch}/{target.unit}"
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
            out.write(target.content)
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

    if file.instead_of:
        return {
            "before": f"{_MASKED}\n",
            "after": "(another secret, not shown)\n",
            "before_header": file.instead_of,
            "after_header": file.path,
        }
    return {
        "before": shown(before.text),
        "after": shown(file.text),
        "before_header": file.path if before.text is not None else "(new)",
        "after_header": file.path,
    }


def _differs(file: _File, before: _Current) -> bool:
    wrong_group = file.group_id is not None and before.group_id != file.group_id
    wrong = before.text != file.text or before.mode != file.mode or before.user_id != os.geteuid() or wrong_group
    # A link leads to a file of somebody else, and systemd takes a unit behind one for an alias, which it never calls enabled.
    return wrong or os.path.islink(file.path)


def _is_enabled(runner: Runner, unit: str) -> bool:
    code, stdout, _stderr = runner(["systemctl", "is-enabled", "--", unit])
    return code == 0 and stdout.strip() == "enabled"


def _must(runner: Runner, argv: t.Sequence[str]) -> None:
    code, stdout, stderr = runner(argv)
    if code != 0:
        raise UnitError(f"{' '.join(argv)} failed with {code}: {stderr.strip() or stdout.strip() or 'no output'}")


@dataclasses.dataclass
class _Plan:
    target: _Target
    report: UnitReport
    state: UnitState
    unit_file: _File
    #: Files that differ, the unit file last.
    changes: list[_File]
    record: _File
    record_differs: bool
    enable: bool
    reload: bool


def _reason(file: _File, before: _Current, unit_file: _File) -> str:
    what = "unit" if file is unit_file else "secret" if file.secret else "environment"
    how = "changed" if before.text is not None or file.instead_of else "is new"
    return f"{what} {how}: {file.path}"


def _plan(
    target: _Target, layout: Layout, runner: Runner, *, enabled: bool | None, rolled_back_at: float | None = None
) -> _Plan:
    """``rolled_back_at`` is given when it is not what a deployment asks for that is written."""
    state = show_with_drop_ins(runner, target.unit, layout.unit_dir)
    report = UnitReport(
        name=target.name,
        unit=target.unit,
        invocation_id=state.invocation_id,
        active_state=state.active_state,
        generation=target.generation,
    )
    if state.load_state == "masked":
        raise UnitError(f"{target.unit} is masked; unmask it first: systemctl unmask {target.unit}")
    unit_file = _File(f"{layout.unit_dir}/{target.unit}", target.content, 0o644)
    changes = []
    for file in (*target.files, unit_file):
        before = _read(file.path)
        if not _differs(file, before):
            continue
        changes.append(file)
        report.diff.append(_diff(file, before))
        report.reasons.append(_reason(file, before, unit_file))
    proven = _known_good.load(layout.state_dir, target.name)
    report.known_good = bool(proven) and proven[0].generation == target.generation

    old = read_state(layout.state_dir, target.name)
    changed_while = str(old.get("changed_while") or "")
    known = bool(target.generation) and old.get("generation") == target.generation
    if changes or not known or state.need_daemon_reload:
        # This start of the unit, if there is one, knows only what was before. So may one that systemd made before it read
        # the file, whoever asked for it.
        changed_while = state.invocation_id
        if not changes and not known:
            report.reasons.append("there is no record that the running server started with these files")
    asked = target.generation if rolled_back_at is None else str(old.get("asked") or "")
    if known and rolled_back_at and old.get("rolled_back_at"):
        rolled_back_at = old["rolled_back_at"]
    record = {
        "asked": asked,
        "changed_while": changed_while,
        "credential": target.credential,
        "engine": target.engine,
        "environment_file": target.environment_file,
        "format": _RECORD_FORMAT,
        "generation": target.generation,
        "rolled_back_at": 0 if asked == target.generation else rolled_back_at or 0,
        "secret_environment_file": target.secret_environment_file,
        "unit": target.unit,
    }
    record_file = _File(
        f"{layout.state_dir}/{target.name}.json", json.dumps(record, indent=1, sort_keys=True) + "\n", 0o600
    )

    running = state.active_state in ("active", "reloading")
    report.restart_needed = not running or (bool(changed_while) and changed_while == state.invocation_id)
    if not running:
        report.reasons.append(f"the unit is {state.active_state}")
    elif report.restart_needed and not changes:
        report.reasons.append("it was changed earlier and not restarted since")

    enable = enabled is not None and _is_enabled(runner, target.unit) is not enabled
    if enable:
        report.reasons.append("the unit is to be " + ("enabled" if enabled else "disabled") + " at boot")
    report.changed = bool(changes) or enable or state.need_daemon_reload
    if state.need_daemon_reload and not changes:
        report.reasons.append("systemd has not read the unit file again")
    return _Plan(
        target=target,
        report=report,
        state=state,
        unit_file=unit_file,
        changes=changes,
        record=record_file,
        record_differs=_differs(record_file, _read(record_file.path)),
        enable=enable,
        reload=bool(changes) or state.need_daemon_reload,
    )


def _switch(plans: t.Sequence[_Plan], transaction: _Transaction, runner: Runner, *, enabled: bool | None) -> None:
    changes = [(file, file is plan.unit_file) for plan in plans for file in plan.changes]
    for file, is_unit in changes:
        if not is_unit:
            transaction.stage(file)
    for plan in plans:
        if plan.record_differs:
            # Before the unit, so that a run that is killed later still knows which start is too old.
            transaction.stage(plan.record)
    for file, is_unit in changes:
        if is_unit:
            transaction.stage(file)
    transaction.commit()
    if any(plan.reload for plan in plans):
        _must(runner, ["systemctl", "daemon-reload"])
    for plan in plans:
        state = show(runner, plan.target.unit)
        if state.load_state != "loaded":
            raise UnitError(f"systemd does not load {plan.target.unit}: {state.load_state} {state.load_error}".rstrip())
    for plan in plans:
        if plan.enable:
            _must(runner, ["systemctl", "enable" if enabled else "disable", "--quiet", "--", plan.target.unit])


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
    """The text of all unit files and drop-ins that may name our files."""
    texts: list[str] = []
    for top in (layout.unit_dir, layout.runtime_unit_dir):
        for folder, _folders, names in os.walk(top):
            texts.extend(_read(f"{folder}/{name}").text or "" for name in names if name.endswith((".service", ".conf")))
    return "\n".join(texts)


def _files_of(layout: Layout, name: str) -> list[str]:
    """The files of environment and secrets of an instance that are there, of whatever generation."""
    # A name may hold dots, so that only what is between it and the end tells whose a file is.
    kinds = (
        (layout.config_dir, re.compile(re.escape(name) + r"\.[0-9a-f]{12}\.env")),
        (layout.config_dir, re.compile(re.escape(name) + r"(\.[0-9a-f]{16})?\.secret\.env")),
        (f"{layout.config_dir}/credentials", re.compile(re.escape(name) + r"(\.[0-9a-f]{16})?\.yaml")),
    )
    found = []
    for folder, pattern in kinds:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found += [f"{folder}/{entry}" for entry in sorted(os.listdir(folder)) if pattern.fullmatch(entry)]
    return found


def prune(layout: Layout, names: t.Iterable[str]) -> list[str]:
    """Remove files of environment and secrets that no unit and no known-good record names any more; return them.

    What killed writers left beside them goes, too: it may be half a file of keys, whose name comes never again.
    """
    for folder in (layout.config_dir, f"{layout.config_dir}/credentials"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            remove_left_behind(folder)
    names = list(names)
    there = [path for name in names for path in _files_of(layout, name)]
    if not there:
        return []
    kept, text = _known_good.named_by_records(layout.state_dir), _referenced(layout)
    for state in (read_state(layout.state_dir, name) for name in names):
        kept.update(str(state.get(key)) for key in ("environment_file", "secret_environment_file", "credential"))
    gone = [path for path in there if path not in kept and path not in text]
    for path in gone:
        os.unlink(path)
    return gone


def _carry_out(
    plans: t.Sequence[_Plan], layout: Layout, runner: Runner, *, enabled: bool | None, check_mode: bool
) -> list[str]:
    """Make the change; return the folders that were, or would be, made."""
    with_credentials = any(plan.target.credential for plan in plans)
    folders = _ensure_folders(layout, with_credentials=with_credentials, check_mode=check_mode)
    if check_mode:
        return folders
    if any(plan.changes or plan.record_differs or plan.enable or plan.reload for plan in plans):
        _make(plans, runner, enabled=enabled)
    # A run that was killed may have left the removal to this one.
    if any(plan.changes or plan.report.restart_needed for plan in plans):
        prune(layout, [plan.target.name for plan in plans])
    counted = [p.target.unit for p in plans if p.report.restart_needed and _is_counted(p.state)]
    if counted:
        # A restart that was asked for must not count against the start limit, which is meant for crashes.
        runner(["systemctl", "reset-failed", "--", *counted])
    return folders


def _is_counted(state: UnitState) -> bool:
    """Whether something of earlier starts would be taken for the next one's.

    A unit that is stopped between two automatic restarts keeps their number, even when it is started anew (seen on systemd 252).
    """
    return state.active_state in _COUNTED_STATES or state.n_restarts > 0


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
    targets = [_target(instance, secrets, layout, check_mode=check_mode) for instance in instances]
    plans = [_plan(target, layout, runner, enabled=enabled) for target in targets]
    new_units = [plan.target for plan in plans if plan.unit_file in plan.changes]
    if new_units and scratch:
        _verify(new_units, runner, scratch, check_mode=check_mode)
    folders = _carry_out(plans, layout, runner, enabled=enabled, check_mode=check_mode)
    return [plan.report for plan in plans], folders


def missing_for(record: _known_good.Record) -> str:
    """Why a known-good configuration cannot be put back, '' when it can."""
    gone = [path for path in record.named_files if path != record.environment_file and not os.path.isfile(path)]
    if record.engine and not os.access(f"{record.engine}/bin/python", os.X_OK):
        gone.append(record.engine)
    return f"{' and '.join(map(repr, gone))} {'are' if len(gone) > 1 else 'is'} gone" if gone else ""


def put_back(
    records: t.Sequence[_known_good.Record],
    layout: Layout,
    runner: Runner,
    *,
    now: float,
    check_mode: bool = False,
) -> list[UnitReport]:
    """Install known-good configurations, all of them or none; nothing is started.

    :param now: seconds since the epoch, noted as the time since which another generation than the asked one is installed.
    :raises UnitError: when one of them cannot be installed any more, or the change failed and was put back.
    :raises SystemdError: when systemd cannot be asked.
    """
    for record in records:
        problem = missing_for(record)
        if problem:
            raise UnitError(f"{record.name}: generation {record.generation} cannot be put back: {problem}")
    targets = [
        _Target(
            name=record.name,
            unit=record.unit,
            content=record.content,
            engine=record.engine,
            environment_file=record.environment_file,
            secret_environment_file=record.secret_environment_file,
            credential=record.credential,
            files=(_File(record.environment_file, record.environment_text, 0o644),),
            generation=record.generation,
        )
        for record in records
    ]
    plans = [_plan(target, layout, runner, enabled=None, rolled_back_at=now) for target in targets]
    _carry_out(plans, layout, runner, enabled=None, check_mode=check_mode)
    return [plan.report for plan in plans]


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
            # First: nothing may name a file that is gone.
            unit_path,
            _known_good.folder_of(layout.state_dir, report.name),
            *_files_of(layout, report.name),
            # Last: by it a removal that was interrupted is found again.
            f"{layout.state_dir}/{report.name}.json",
        ]
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
            if os.path.isdir(path) and not os.path.islink(path):
                _known_good.drop(layout.state_dir, report.name)
            else:
                os.unlink(path)
    if changed and not check_mode:
        _must(runner, ["systemctl", "daemon-reload"])
        # Not an error for a unit that is gone by now.
        runner(["systemctl", "reset-failed", "--", *(report.unit for report in reports)])
    return reports
