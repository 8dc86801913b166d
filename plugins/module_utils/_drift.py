# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where what runs is not what the inventory says, value by value. PRIVATE to the collection.

A value comes down through layers: the inventory, the files on the host, the drop-ins beside them, the process that
systemd started from these, and what its server made of its arguments. Each layer is compared with the one above it, so
that a difference is told once, where it arises. Nothing here reads a file or asks systemd (``_drift_host.py`` does).
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._arguments import split_flags
from ansible_collections.specdec.serving.plugins.module_utils._credentials import UNCHOSEN, credential_text
from ansible_collections.specdec.serving.plugins.module_utils._drop_ins import TRIAL, DropIn
from ansible_collections.specdec.serving.plugins.module_utils._readiness import same_value
from ansible_collections.specdec.serving.plugins.module_utils._redact import Masker, is_secret_variable, secret_words
from ansible_collections.specdec.serving.plugins.module_utils._server_args import canonical_dest
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState
from ansible_collections.specdec.serving.plugins.module_utils._systemd_reading import (
    Settings,
    environment_values,
    exec_words,
    expanded,
    merged,
    parse_unit,
    split_words,
)
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import Instance, UnitReport

__all__ = (
    "DEPLOY",
    "NOTHING",
    "RESTART",
    "Asked",
    "Deviation",
    "Running",
    "Seen",
    "Server",
    "compare",
    "credential_path",
    "environment_paths",
    "started_otherwise",
)

#: What puts a difference right. Nothing: the engine decided so by itself, or a drop-in does, which is the user's own.
DEPLOY, RESTART, NOTHING = "deploy", "restart", "nothing"

_SECRET = "(secret)"
_ANOTHER_SECRET = "(another secret)"
#: A word whose specifiers have no value that is known here.
_UNTOLD = "\0"
_EXEC_START = ("Service", "ExecStart")
_ENVIRONMENT = ("Service", "Environment")
_ENVIRONMENT_FILE = ("Service", "EnvironmentFile")
_UNSET_ENVIRONMENT = ("Service", "UnsetEnvironment")
#: Compared value by value.
_TAKEN_APART = frozenset((_EXEC_START, _ENVIRONMENT, _ENVIRONMENT_FILE, _UNSET_ENVIRONMENT))
#: systemd.exec(5), "ENVIRONMENT VARIABLES IN SPAWNED PROCESSES": what a process has although no file gives it.
_OF_SYSTEMD = re.compile(
    r"PATH|LANG|LC_\w+|USER|LOGNAME|HOME|SHELL|TERM|INVOCATION_ID|XDG_RUNTIME_DIR|JOURNAL_STREAM|SYSTEMD_\w+|NOTIFY_SOCKET"
    r"|(?:RUNTIME|STATE|CACHE|LOGS|CONFIGURATION|CREDENTIALS)_DIRECTORY|MAINPID|MANAGERPID|LISTEN_\w+|WATCHDOG_\w+|PIDFILE"
    r"|MEMORY_PRESSURE_\w+|TRIGGER_\w+|MONITOR_\w+|LOG_NAMESPACE|FDSTORE|_"
)


@dataclasses.dataclass(frozen=True)
class Deviation:
    """One value that is not what the layer above says; ``asked`` or ``found`` None: it is not set there.

    ``where``: engine, unit, environment, credential, boot, folder (the files against the inventory), systemd (what it has
    read against its files), drop_in or trial (against the unit file), process (against its files), server (against the inventory).
    """

    where: str
    name: str
    asked: t.Any
    found: t.Any
    needs: str
    #: The file that ``found`` stands in, where it is one.
    path: str = ""


@dataclasses.dataclass(frozen=True)
class Server:
    """What was asked of the server, and what it says of itself (``server`` of sglang_ready's result)."""

    settings: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    model_path: str = ""
    served_model_name: str = ""
    server: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Asked:
    """One instance as the inventory has it. ``secrets``: ``config`` and ``environment``, each name to value."""

    instance: Instance
    config_dir: str
    secrets: t.Mapping[str, t.Mapping[str, str]] = dataclasses.field(default_factory=dict)
    enabled: bool = True
    server: Server = dataclasses.field(default_factory=Server)


@dataclasses.dataclass(frozen=True)
class Running:
    """The main process of the unit's invocation; ``credential``: the keys that it was given, None where it has none."""

    words: tuple[str, ...]
    environment: t.Mapping[str, str]
    credential: str | None = None


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a host has of one unit; a file that is not there is None, or not in the mapping."""

    state: UnitState
    unit_text: str | None
    #: What a deployment would do.
    report: UnitReport
    #: Path as the unit files name it -> text.
    environment_files: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    drop_ins: tuple[DropIn, ...] = ()
    credential: str | None = None
    running: Running | None = None
    #: Names of variables that systemd's manager gives to every service.
    manager_variables: frozenset[str] = frozenset()
    #: Cache folders that a deployment would make or correct.
    folders: tuple[str, ...] = ()


# --- what a unit comes to ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Configuration:
    """``arguments``: name to True, a word or a list of words; ``settings``: all others of the unit file."""

    program: str
    arguments: t.Mapping[str, t.Any]
    environment: t.Mapping[str, str]
    settings: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def engine(self) -> str:
        """Name of the engine's folder; '' where the program lies in none."""
        folder, _slash, place = os.path.dirname(self.program).rpartition("/")
        return os.path.basename(folder) if place == "bin" else ""


def _arguments(words: t.Sequence[str | None]) -> dict[str, t.Any]:
    flags, stray = split_flags([_UNTOLD if word is None else word for word in words])
    found: dict[str, t.Any] = {}
    for flag in flags:
        name = canonical_dest(flag.flag.lstrip("-"))
        # argparse: the last one counts.
        found[name] = True if not flag.words else flag.words[0] if len(flag.words) == 1 else list(flag.words)
    if stray:
        found["(words before the first argument)"] = stray
    return found


def credential_path(text: str, config_dir: str) -> str:
    """The file of keys that a unit file names; '' without one."""
    found = re.search(rf"{re.escape(config_dir)}/credentials/[^\s\"':]+\.yaml", text)
    return found.group() if found else ""


def _file_names(value: str) -> list[str]:
    # A '-' before it: the file may be missing (systemd.exec(5)).
    return [value.removeprefix("-")] if value else []


def environment_paths(text: str) -> list[str]:
    """Environment files that a unit file or drop-in names, as they stand there."""
    return [path for value in parse_unit(text).get(_ENVIRONMENT_FILE, []) for path in _file_names(value)]


def _environment(settings: Settings, files: t.Mapping[str, str], unit: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in settings.get(_ENVIRONMENT, []):
        for word in expanded(split_words(value), unit=unit):
            name, equals, content = (word or "").partition("=")
            if equals:
                found[name] = content
    for value in settings.get(_ENVIRONMENT_FILE, []):
        for path in _file_names(value):
            found.update(environment_values(files.get(path, "")))
    for value in settings.get(_UNSET_ENVIRONMENT, []):
        for word in split_words(value):
            name, equals, content = word.partition("=")
            if not equals or found.get(name) == content:
                found.pop(name, None)
    return found


def _plain(text: str, config_dir: str) -> str:
    """A text without what is random in the names of files of secrets: their contents are compared."""
    return re.sub(rf"({re.escape(config_dir)}/[^\s:]*?)\.(?:[0-9a-f]{{16}}|{re.escape(UNCHOSEN)})(?=\.)", r"\1", text)


def _other_settings(settings: Settings, config_dir: str) -> dict[str, str]:
    others = {key: values for key, values in settings.items() if key not in _TAKEN_APART}
    # Ours are named by their content, which is compared itself.
    foreign = [
        value for value in settings.get(_ENVIRONMENT_FILE, []) if not value.lstrip("-").startswith(config_dir + "/")
    ]
    if foreign:
        others[_ENVIRONMENT_FILE] = foreign
    return {key[1]: _plain(" ".join(" ".join(values).split()), config_dir) for key, values in others.items()}


def _configuration(settings: Settings, environment: t.Mapping[str, str], config_dir: str) -> _Configuration:
    words = [_plain(word, config_dir) for word in exec_words((settings.get(_EXEC_START) or [""])[-1])]
    return _Configuration(
        program=words[0] if words else "",
        arguments=_arguments(words[1:]),
        environment=environment,
        settings=_other_settings(settings, config_dir),
    )


# --- comparing --------------------------------------------------------------------------------------------------------

_Found = tuple[str, str, t.Any, t.Any]


def _differences(asked: _Configuration, found: _Configuration) -> list[_Found]:
    """Kind (program, argument, environment, setting), name, and both values of what differs."""
    differences: list[_Found] = []
    if asked.program != found.program:
        engines = asked.engine and found.engine and asked.engine != found.engine
        differences.append(
            ("engine", "engine", asked.engine, found.engine)
            if engines
            else ("program", "program", asked.program, found.program)
        )
    kinds: tuple[tuple[str, t.Mapping[str, t.Any], t.Mapping[str, t.Any]], ...] = (
        ("argument", asked.arguments, found.arguments),
        ("environment", asked.environment, found.environment),
        ("setting", asked.settings, found.settings),
    )
    for kind, above, below in kinds:
        for name in sorted({*above, *below}):
            left, right = above.get(name), below.get(name)
            if left == right or _UNTOLD in _flat(left) or _UNTOLD in _flat(right):
                continue
            if isinstance(left, str) and asked.engine and found.engine:
                # Folders are named by the engine: told once.
                left = left.replace(asked.engine, found.engine)
            if left != right:
                differences.append((kind, name, above.get(name), right))
    return differences


def _flat(value: t.Any) -> list[t.Any]:
    return value if isinstance(value, list) else [value]


class _Showing:
    """Makes values fit for people: no secret leaves this module."""

    def __init__(self, asked: Asked, seen: Seen) -> None:
        environment = asked.secrets.get("environment") or {}
        self._names = set(environment)
        known = {*environment.values(), *(asked.secrets.get("config") or {}).values()}
        for path, text in seen.environment_files.items():
            if path == asked.instance.secret_environment_file or path.endswith(".secret.env"):
                on_host = environment_values(text)
                self._names.update(on_host)
                known.update(on_host.values())
        commands: list[t.Sequence[str]] = []
        environments: list[t.Mapping[str, str]] = []
        for text in (seen.unit_text or "", *(drop_in.text for drop_in in seen.drop_ins)):
            settings = merged(parse_unit(text))
            environments.append(_environment(settings, seen.environment_files, asked.instance.unit))
            commands += [exec_words(value) for value in settings.get(_EXEC_START, [])]
        if seen.running:
            environments.append(seen.running.environment)
            commands.append(seen.running.words)
        for variables in environments:
            known.update(value for name, value in variables.items() if self.is_secret("environment", name, value))
        for words in commands:
            known.update(secret_words(words))
        for keys in (seen.credential, seen.running.credential if seen.running else None):
            known.update(_keys(keys or "").values())
        self._masker = Masker(value for value in known if len(value) >= 6)

    def is_secret(self, kind: str, name: str, value: t.Any) -> bool:
        if kind == "environment":
            return name in self._names or is_secret_variable(name)
        if kind == "argument":
            # Whatever its value: the name decides.
            return bool(secret_words([f"--{name.replace('_', '-')}", "x" if value is True else str(value)]))
        return False

    def pair(self, kind: str, name: str, asked: t.Any, found: t.Any) -> tuple[t.Any, t.Any]:
        """Both values as they may be shown."""
        if any(value not in (None, "") and self.is_secret(kind, name, value) for value in (asked, found)):
            there = [value not in (None, "") for value in (asked, found)]
            return (_SECRET if there[0] else None), ((_ANOTHER_SECRET if there[0] else _SECRET) if there[1] else None)
        return self._shown(kind, name, asked), self._shown(kind, name, found)

    def _shown(self, kind: str, name: str, value: t.Any) -> t.Any:
        if kind == "setting" and isinstance(value, str):
            return self._masker.text(f"{name}={value}").partition("=")[2]
        return self._masker.value(value)


def _keys(text: str) -> dict[str, str]:
    """Names and values of a credential file as :func:`_credentials.credential_text` writes it, quotes left on."""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name.strip().replace("-", "_"): value.strip().strip("\"'") for name, colon, value in pairs if colon}


def compare(asked: Asked, seen: Seen) -> list[Deviation]:
    """All that differs of one instance, from the inventory down. Empty: it is as asked."""
    unit = asked.instance.unit
    if seen.state.load_state == "masked":
        why = f"masked; unmask it first: systemctl unmask {unit}"
        return [Deviation("systemd", "LoadState", "loaded", why, NOTHING)]
    if seen.unit_text is None:
        path = next((reason.partition(": ")[2] for reason in seen.report.reasons if reason.startswith("unit ")), unit)
        return [Deviation("unit", "file", path, None, DEPLOY)]
    showing = _Showing(asked, seen)
    found = _of_files(asked, seen, showing)
    found += _of_systemd(seen)
    effective = merged(parse_unit(seen.unit_text), *(parse_unit(drop_in.text) for drop_in in seen.drop_ins))
    found += _of_drop_ins(asked, seen, showing, effective)
    if seen.running is not None:
        found += _of_process(asked, seen, showing, effective, found)
        found += _of_server(asked.server, showing, found)
    if not [deviation for deviation in found if deviation.needs != NOTHING]:
        found += _otherwise(seen)
    return found


def _of_files(asked: Asked, seen: Seen, showing: _Showing) -> list[Deviation]:
    """The files on the host against the inventory."""
    instance, unit = asked.instance, asked.instance.unit
    wanted = _configuration(
        merged(parse_unit(instance.content)),
        {**environment_values(instance.environment_text), **(asked.secrets.get("environment") or {})},
        asked.config_dir,
    )
    settings = merged(parse_unit(seen.unit_text or ""))
    there = _configuration(settings, _environment(settings, seen.environment_files, unit), asked.config_dir)
    found = []
    differences = _differences(wanted, there)
    for kind, name, left, right in differences:
        where = kind if kind in ("engine", "environment") else "unit"
        found.append(Deviation(where, name, *showing.pair(kind, name, left, right), DEPLOY))
    found += _of_credential(asked, seen.credential, "credential", DEPLOY)
    if (seen.state.unit_file_state == "enabled") is not asked.enabled:
        words = {True: "enabled", False: "disabled"}
        found.append(
            Deviation("boot", "UnitFileState", words[asked.enabled], seen.state.unit_file_state or "disabled", DEPLOY)
        )
    if not any(kind == "engine" for kind, *_rest in differences):
        # Those of another engine are made when that one is deployed.
        found += [Deviation("folder", path, "there, and the service user's", None, DEPLOY) for path in seen.folders]
    return found


def _of_credential(
    asked: Asked, text: str | None, where: str, needs: str, above: t.Mapping[str, str] | None = None
) -> list[Deviation]:
    """Keys against those of the inventory, or of the layer ``above``."""
    if not asked.instance.credential:
        return []
    wanted = _keys(credential_text(asked.secrets.get("config") or {})) if above is None else above
    there = _keys(text or "")
    return [
        Deviation(
            where,
            name,
            _SECRET if name in wanted else None,
            None if name not in there else _ANOTHER_SECRET if name in wanted else _SECRET,
            needs,
        )
        for name in sorted({*wanted, *there})
        if wanted.get(name) != there.get(name)
    ]


def _of_systemd(seen: Seen) -> list[Deviation]:
    if not seen.state.need_daemon_reload:
        return []
    return [Deviation("systemd", "NeedDaemonReload", "no", "yes", DEPLOY)]


def _of_drop_ins(asked: Asked, seen: Seen, showing: _Showing, effective: Settings) -> list[Deviation]:
    """What drop-ins of the user's own make of the unit file."""
    unit = asked.instance.unit
    own = [drop_in for drop_in in seen.drop_ins if not drop_in.vendor]
    if not own:
        return []
    base = merged(parse_unit(seen.unit_text or ""), *(parse_unit(item.text) for item in seen.drop_ins if item.vendor))
    configurations = [
        _configuration(settings, _environment(settings, seen.environment_files, unit), asked.config_dir)
        for settings in (base, effective)
    ]
    found = []
    for kind, name, left, right in _differences(*configurations):
        keys = {
            "argument": ("ExecStart",),
            "engine": ("ExecStart",),
            "program": ("ExecStart",),
            "environment": ("Environment", "EnvironmentFile", "UnsetEnvironment"),
        }.get(kind, (name,))
        paths = [item.path for item in own if any(key in keys for _section, key in parse_unit(item.text))]
        path = paths[-1] if paths else own[-1].path
        where = "trial" if os.path.basename(path) == TRIAL else "drop_in"
        found.append(Deviation(where, name, *showing.pair(kind, name, left, right), NOTHING, path))
    return found


def _process_differences(asked: Asked, seen: Seen, running: Running, effective: Settings) -> list[_Found]:
    files = _environment(effective, seen.environment_files, asked.instance.unit)
    of_systemd = {
        name: value
        for name, value in running.environment.items()
        if name not in files and (_OF_SYSTEMD.fullmatch(name) or name in seen.manager_variables)
    }
    words = exec_words((effective.get(_EXEC_START) or [""])[-1])
    expected = expanded(words, unit=asked.instance.unit, environment={**files, **of_systemd})
    program = expected[0] if expected else None
    return _differences(
        _Configuration(program or "", _arguments(expected[1:]), files),
        _Configuration(
            running.words[0] if running.words and program else "",
            _arguments(running.words[1:]),
            {name: value for name, value in running.environment.items() if name not in of_systemd},
        ),
    )


def _of_process(
    asked: Asked, seen: Seen, showing: _Showing, effective: Settings, above: t.Sequence[Deviation]
) -> list[Deviation]:
    """The process against the files that it would be started from now."""
    running = seen.running
    if running is None:
        return []
    rewritten = {deviation.name for deviation in above if deviation.needs == DEPLOY}
    found = []
    for kind, name, left, right in _process_differences(asked, seen, running, effective):
        # A restart alone would bring in what the inventory does not want.
        needs = DEPLOY if name in rewritten else RESTART
        found.append(Deviation("process", name, *showing.pair(kind, name, left, right), needs))
    if running.credential is not None:
        found += _of_credential(asked, running.credential, "process", RESTART, above=_keys(seen.credential or ""))
    return found


def started_otherwise(asked: Asked, seen: Seen) -> list[str]:
    """Names of what the process has otherwise than the files say that it would be started from now, so that a restart helps.

    Only what is certain, since a restart costs minutes: nothing where a drop-in of the user's own takes part, and no variable
    that the files do not know, which may come from elsewhere.
    """
    if seen.unit_text is None or seen.running is None or any(not drop_in.vendor for drop_in in seen.drop_ins):
        return []
    effective = merged(parse_unit(seen.unit_text), *(parse_unit(drop_in.text) for drop_in in seen.drop_ins))
    differences = _process_differences(asked, seen, seen.running, effective)
    return [name for kind, name, left, _right in differences if kind != "environment" or left is not None]


def _of_server(server: Server, showing: _Showing, above: t.Sequence[Deviation]) -> list[Deviation]:
    """What the server made of its arguments. What it was given differently is told already."""
    said = server.server
    arguments = said.get("arguments") or {}
    pairs: list[tuple[str, t.Any, t.Any]] = []
    if said.get("model") and server.served_model_name and said["model"] != server.served_model_name:
        pairs.append(("served_model_name", server.served_model_name, said["model"]))
    running_path = arguments.get("model_path")
    if running_path and server.model_path and not same_value(server.model_path, running_path):
        pairs.append(("model_path", server.model_path, running_path))
    changes = (*(said.get("mismatched") or ()), *(said.get("engine_changed") or ()))
    pairs += [(str(change.get("name")), change.get("asked"), change.get("running")) for change in changes]
    told = {deviation.name for deviation in above}
    return [
        Deviation("server", name, *showing.pair("argument", name, left, right), NOTHING)
        for name, left, right in pairs
        if name not in told
    ]


def _otherwise(seen: Seen) -> list[Deviation]:
    """What a deployment would put right although no value differs."""
    report = seen.report
    if report.changed:
        return [
            Deviation("unit", "text", "as deployed", f"other text, mode or owner ({reason})", DEPLOY)
            for reason in report.reasons
        ] or [Deviation("unit", "text", "as deployed", "other text, mode or owner", DEPLOY)]
    if report.restart_needed and seen.running is not None:
        why = "; ".join(report.reasons) or "it was changed earlier and not restarted since"
        return [Deviation("process", "start", "a start with these files", why, RESTART)]
    return []
