# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a value differs, told from texts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._credentials import credential_text
from ansible_collections.specdec.serving.plugins.module_utils._drift import (
    Asked,
    Deviation,
    Running,
    Seen,
    Server,
    compare,
    credential_path,
    environment_paths,
    started_otherwise,
)
from ansible_collections.specdec.serving.plugins.module_utils._drop_ins import DropIn
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import (
    CredentialFile,
    environment_file,
    exec_line,
)
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import Instance, UnitReport

INVOCATION = "1" * 32
CONFIG = "/etc/specdec/sglang"
KEY, OLD_KEY = "sk-planted-new-4d2", "sk-planted-old-4d2"
TOKEN, OLD_TOKEN = "hf_planted_new_4d2", "hf_planted_old_4d2"
PLANTED = (KEY, OLD_KEY, TOKEN, OLD_TOKEN)

Row = tuple[str, str, t.Any, t.Any, str]


def rows(found: list[Deviation]) -> list[Row]:
    return [(one.where, one.name, one.asked, one.found, one.needs) for one in found]


@dataclasses.dataclass
class Box:
    """An instance that is as asked, to be changed at one end."""

    arguments: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"model-path": "/models/t", "mem-fraction-static": "0.85", "page-size": "64"}
    )
    environment: dict[str, str] = dataclasses.field(default_factory=lambda: {"NCCL_DEBUG": "INFO", "ODD": 'a "b" $c'})
    engine: str = "0.5.23-aaaaaaaaaaaa"
    other: tuple[str, ...] = ("TasksMax=infinity", "TimeoutStopSec=300")
    key: str = ""
    token: str = ""

    def variables(self) -> dict[str, str]:
        cache = f"/var/cache/specdec/sglang/{self.engine}-cpu/home"
        return {**self.environment, "HOME": cache, "VIRTUAL_ENV": f"/opt/specdec/engines/{self.engine}"}

    def words(self) -> list[str | CredentialFile]:
        words: list[str | CredentialFile] = [
            f"/opt/specdec/engines/{self.engine}/bin/python",
            "-m",
            "sglang.launch_server",
        ]
        if self.key:
            words += ["--config", CredentialFile("a.yaml")]
        for name, value in self.arguments.items():
            words += [f"--{name}", *([value] if value else [])]
        return words

    def env_path(self) -> str:
        text = environment_file(self.variables(), origin="test")
        return f"{CONFIG}/a.{hashlib.sha256(text.encode()).hexdigest()[:12]}.env"

    def unit_text(self) -> str:
        lines = [
            "[Unit]",
            f"RequiresMountsFor=/models/t /opt/specdec/engines/{self.engine}",
            "[Service]",
            "ExecStart=" + exec_line(self.words(), origin="test"),
            f"EnvironmentFile={self.env_path()}",
            *([f"EnvironmentFile={CONFIG}/a.secret.env"] if self.token else []),
            *([f"LoadCredential=a.yaml:{CONFIG}/credentials/a.yaml"] if self.key else []),
            *self.other,
        ]
        return "\n".join(lines) + "\n"

    def secrets(self) -> dict[str, dict[str, str]]:
        return {
            "config": {"api_key": self.key} if self.key else {},
            "environment": {"HF_TOKEN": self.token} if self.token else {},
        }

    def asked(self, **changes: t.Any) -> Asked:
        instance = Instance(
            name="a",
            unit="sglang-a.service",
            content=self.unit_text(),
            environment_file=self.env_path(),
            environment_text=environment_file(self.variables(), origin="test"),
            engine=f"/opt/specdec/engines/{self.engine}",
            secret_environment_file=f"{CONFIG}/a.secret.env" if self.token else "",
            credential=f"{CONFIG}/credentials/a.yaml" if self.key else "",
        )
        return Asked(instance, CONFIG, self.secrets(), **changes)

    def running(self) -> Running:
        folder = "/run/credentials/sglang-a.service"
        words = [str(word).replace("${CREDENTIALS_DIRECTORY}", folder) for word in self.words()]
        given = {"CREDENTIALS_DIRECTORY": folder} if self.key else {}
        secret = {"HF_TOKEN": self.token} if self.token else {}
        of_systemd = {"INVOCATION_ID": INVOCATION, "LANG": "C", "USER": "sglang", "MANAGER_SAYS": "x", **given}
        return Running(
            tuple(words),
            {**of_systemd, **self.variables(), **secret},
            credential_text(self.secrets()["config"]) if self.key else None,
        )

    def seen(self, **changes: t.Any) -> Seen:
        files = {self.env_path(): environment_file(self.variables(), origin="test")}
        if self.token:
            files[f"{CONFIG}/a.secret.env"] = environment_file({"HF_TOKEN": self.token}, origin="test")
        values: dict[str, t.Any] = {
            "state": UnitState(
                load_state="loaded",
                active_state="active",
                invocation_id=INVOCATION,
                main_pid=5,
                unit_file_state="enabled",
            ),
            "unit_text": self.unit_text(),
            "report": UnitReport("a", "sglang-a.service", active_state="active"),
            "environment_files": files,
            "credential": credential_text(self.secrets()["config"]) if self.key else None,
            "running": self.running(),
            "manager_variables": frozenset({"MANAGER_SAYS"}),
        }
        return Seen(**{**values, **changes})


def with_arguments(**changes: str) -> Box:
    box = Box()
    box.arguments.update({name.replace("_", "-"): value for name, value in changes.items()})
    return box


@pytest.mark.parametrize("box", [Box(), Box(key=KEY, token=TOKEN)], ids=["plain", "with secrets"])
def test_as_asked(box: Box) -> None:
    assert compare(box.asked(), box.seen()) == []


def test_the_inventory_changed_and_was_not_deployed() -> None:
    asked = with_arguments(mem_fraction_static="0.8", disable_cuda_graph="")
    asked.environment = {"NCCL_DEBUG": "WARN", "ODD": 'a "b" $c', "NEW": "1"}
    settings = {"mem_fraction_static": 0.8, "page_size": 64, "disable_cuda_graph": True}
    said = {
        "mismatched": [{"name": "disable_cuda_graph", "asked": True, "running": False, "held": True}],
        "engine_changed": [{"name": "mem_fraction_static", "asked": 0.8, "running": 0.85, "held": False}],
    }
    server = Server(settings, "/models/t", "a", said)
    assert rows(compare(asked.asked(server=server), Box().seen())) == [
        # Told once, although the process and its server have the old values as well.
        ("unit", "disable_cuda_graph", True, None, "deploy"),
        ("unit", "mem_fraction_static", "0.8", "0.85", "deploy"),
        ("environment", "NCCL_DEBUG", "WARN", "INFO", "deploy"),
        ("environment", "NEW", "1", None, "deploy"),
    ]


def test_the_unit_was_edited_and_not_restarted() -> None:
    edited = with_arguments(mem_fraction_static="0.9")
    edited.other = ("TasksMax=10", "TimeoutStopSec=300", "Nice=5")
    seen = Box().seen(unit_text=edited.unit_text())
    stale = dataclasses.replace(seen, state=dataclasses.replace(seen.state, need_daemon_reload=True))
    expected = [
        ("unit", "mem_fraction_static", "0.85", "0.9", "deploy"),
        ("unit", "Nice", None, "5", "deploy"),
        ("unit", "TasksMax", "infinity", "10", "deploy"),
    ]
    process = [("process", "mem_fraction_static", "0.9", "0.85", "deploy")]
    assert rows(compare(Box().asked(), seen)) == expected + process
    reread = [("systemd", "NeedDaemonReload", "no", "yes", "deploy")]
    assert rows(compare(Box().asked(), stale)) == expected + reread + process


def test_the_unit_was_edited_and_restarted() -> None:
    edited = with_arguments(mem_fraction_static="0.9")
    said = {"engine_changed": [{"name": "mem_fraction_static", "asked": 0.85, "running": 0.9}]}
    server = Server({"mem_fraction_static": 0.85}, server=said)
    assert rows(compare(Box().asked(server=server), edited.seen())) == [
        ("unit", "mem_fraction_static", "0.85", "0.9", "deploy")
    ]


def test_another_way_to_write_the_same_value_is_no_other_value() -> None:
    text = Box().unit_text().replace("--page-size 64", "'--page-size'  \"64\"")
    report = UnitReport("a", "sglang-a.service", changed=True, reasons=["unit changed: /etc/systemd/system/x"])
    assert rows(compare(Box().asked(), Box().seen(unit_text=text, report=report))) == [
        ("unit", "text", "as deployed", "other text, mode or owner (unit changed: /etc/systemd/system/x)", "deploy")
    ]


def test_deployed_and_not_restarted() -> None:
    old = with_arguments(page_size="32")
    old.environment = {"NCCL_DEBUG": "TRACE", "ODD": 'a "b" $c', "GONE": "1"}
    said = {"engine_changed": [{"name": "page_size", "asked": 64, "running": 32}]}
    seen = Box().seen(running=old.running())
    assert rows(compare(Box().asked(server=Server({"page_size": 64}, server=said)), seen)) == [
        ("process", "page_size", "64", "32", "restart"),
        ("process", "GONE", None, "1", "restart"),
        ("process", "NCCL_DEBUG", "INFO", "TRACE", "restart"),
    ]


def test_what_a_deployment_restarts_for() -> None:
    old = with_arguments(page_size="32")
    old.environment = {"NCCL_DEBUG": "TRACE", "GONE": "1"}
    seen = Box().seen(running=old.running())
    # Not for a variable that the files do not know.
    assert started_otherwise(Box().asked(), seen) == ["page_size", "NCCL_DEBUG", "ODD"]
    assert started_otherwise(Box().asked(), Box().seen()) == []
    drop_in = DropIn(DROP_IN, "[Service]\nNice=1\n")
    assert started_otherwise(Box().asked(), dataclasses.replace(seen, drop_ins=(drop_in,))) == []
    assert started_otherwise(Box().asked(), Box().seen(running=None)) == []
    assert started_otherwise(Box().asked(), dataclasses.replace(seen, unit_text=None)) == []


def test_the_environment_file_was_edited() -> None:
    path = Box().env_path()
    text = environment_file({**Box().variables(), "NCCL_DEBUG": "WARN"}, origin="test")
    seen = Box().seen(environment_files={path: text})
    assert rows(compare(Box().asked(), seen)) == [
        ("environment", "NCCL_DEBUG", "INFO", "WARN", "deploy"),
        ("process", "NCCL_DEBUG", "WARN", "INFO", "deploy"),
    ]


def test_another_engine_is_told_once() -> None:
    old = Box(engine="0.5.22-bbbbbbbbbbbb")
    assert rows(compare(Box().asked(), old.seen(folders=("/var/cache/new",)))) == [
        ("engine", "engine", "0.5.23-aaaaaaaaaaaa", "0.5.22-bbbbbbbbbbbb", "deploy")
    ]
    seen = Box().seen(running=old.running())
    assert rows(compare(Box().asked(), seen)) == [
        ("process", "engine", "0.5.23-aaaaaaaaaaaa", "0.5.22-bbbbbbbbbbbb", "restart")
    ]


def test_another_program() -> None:
    text = Box().unit_text().replace("/opt/specdec/engines/0.5.23-aaaaaaaaaaaa/bin/python", "/usr/local/serve")
    found = rows(compare(Box().asked(), Box().seen(unit_text=text, running=None)))
    assert found == [
        ("unit", "program", "/opt/specdec/engines/0.5.23-aaaaaaaaaaaa/bin/python", "/usr/local/serve", "deploy")
    ]


def test_secrets_differ_and_are_not_shown() -> None:
    asked, old = Box(key=KEY, token=TOKEN), Box(key=OLD_KEY, token=OLD_TOKEN)
    found = compare(asked.asked(), old.seen())
    assert rows(found) == [
        ("environment", "HF_TOKEN", "(secret)", "(another secret)", "deploy"),
        ("credential", "api_key", "(secret)", "(another secret)", "deploy"),
    ]
    changed_since = compare(asked.asked(), asked.seen(running=old.running()))
    assert rows(changed_since) == [
        ("process", "HF_TOKEN", "(secret)", "(another secret)", "restart"),
        ("process", "api_key", "(secret)", "(another secret)", "restart"),
    ]
    new = compare(asked.asked(), Box().seen())
    assert ("environment", "HF_TOKEN", "(secret)", None, "deploy") in rows(new)
    assert ("credential", "api_key", "(secret)", None, "deploy") in rows(new)
    taken_away = rows(compare(Box().asked(), old.seen()))
    assert ("environment", "HF_TOKEN", None, "(secret)", "deploy") in taken_away
    for result in (found, changed_since, new, taken_away):
        assert not [secret for secret in PLANTED if secret in json.dumps(result, default=str)]


def test_secrets_that_others_wrote_are_not_shown_either() -> None:
    box = with_arguments(api_key=OLD_KEY, tokenizer_path="/t")
    box.other = (
        *box.other,
        f'Environment="MY_PASSWORD={OLD_TOKEN}" PLAIN=1',
        f"SetCredential=x:{OLD_KEY}",
        f"ExecStartPre=/bin/call --token {OLD_TOKEN}",
    )
    running = dataclasses.replace(
        box.running(), environment={**box.running().environment, "AWS_SECRET_ACCESS_KEY": OLD_KEY, "PLAIN": OLD_TOKEN}
    )
    found = compare(Box().asked(), box.seen(running=running))
    assert not [secret for secret in PLANTED if secret in json.dumps(rows(found))]
    told = {(one.where, one.name): (one.asked, one.found) for one in found}
    assert told["unit", "api_key"] == (None, "(secret)")
    assert told["unit", "tokenizer_path"] == (None, "/t")
    assert told["environment", "MY_PASSWORD"] == (None, "(secret)")
    assert told["environment", "PLAIN"] == (None, "1")
    assert told["process", "MY_PASSWORD"] == ("(secret)", None)
    assert told["process", "AWS_SECRET_ACCESS_KEY"] == (None, "(secret)")
    assert told["unit", "ExecStartPre"][1] == "/bin/call --token ********"


DROP_IN = "/etc/systemd/system/sglang-a.service.d/override.conf"


def test_a_drop_in_in_effect_is_named() -> None:
    text = "[Service]\nEnvironment=NCCL_P2P_DISABLE=1\nTasksMax=100\n"
    running = Box().running()
    running = dataclasses.replace(running, environment={**running.environment, "NCCL_P2P_DISABLE": "1"})
    found = compare(Box().asked(), Box().seen(drop_ins=(DropIn(DROP_IN, text),), running=running))
    assert rows(found) == [
        ("drop_in", "NCCL_P2P_DISABLE", None, "1", "nothing"),
        ("drop_in", "TasksMax", "infinity", "100", "nothing"),
    ]
    assert {one.path for one in found} == {DROP_IN}


def test_a_trial_is_told_as_such() -> None:
    drop_in = DropIn("/run/systemd/system/sglang-a.service.d/90-specdec-trial.conf", "[Service]\nRestart=no\n")
    assert rows(compare(Box().asked(), Box().seen(drop_ins=(drop_in,)))) == [
        ("trial", "Restart", None, "no", "nothing")
    ]
    assert "a trial goes on" in drop_in.warning("sglang-a.service")


def test_a_drop_in_without_a_restart() -> None:
    drop_in = DropIn(DROP_IN, "[Service]\nEnvironment=NCCL_P2P_DISABLE=1\n")
    assert rows(compare(Box().asked(), Box().seen(drop_ins=(drop_in,)))) == [
        ("drop_in", "NCCL_P2P_DISABLE", None, "1", "nothing"),
        ("process", "NCCL_P2P_DISABLE", "1", None, "restart"),
    ]


def test_a_drop_in_with_another_model() -> None:
    other = with_arguments(model_path="/models/other")
    text = "[Service]\nExecStart=\nExecStart=" + exec_line(other.words(), origin="test") + "\n"
    server = Server(
        model_path="/models/t", served_model_name="a", server={"arguments": {"model_path": "/models/other"}}
    )
    seen = Box().seen(drop_ins=(DropIn(DROP_IN, text),), running=other.running())
    assert rows(compare(Box().asked(server=server), seen)) == [
        ("drop_in", "model_path", "/models/t", "/models/other", "nothing")
    ]


@pytest.mark.parametrize(
    "drop_in",
    [
        DropIn(DROP_IN, "# nothing\n[Service]\n"),
        DropIn(DROP_IN, "[Service]\nTasksMax=infinity\n"),
        DropIn(
            "/usr/lib/systemd/system/service.d/10-timeout-abort.conf", "[Service]\nTimeoutStopFailureMode=abort\n", True
        ),
    ],
    ids=["empty", "the same value", "of the distribution"],
)
def test_drop_ins_that_change_nothing(drop_in: DropIn) -> None:
    assert compare(Box().asked(), Box().seen(drop_ins=(drop_in,))) == []


def test_what_the_server_made_of_it() -> None:
    said = {
        "model": "other",
        "arguments": {"model_path": "/models/other"},
        "mismatched": [{"name": "disable_cuda_graph", "asked": True, "running": False}],
        "engine_changed": [
            {"name": "max_running_requests", "asked": 64, "running": 48},
            {"name": "api_key", "asked": OLD_KEY, "running": KEY},
        ],
    }
    server = Server({"max_running_requests": 64}, "/models/t/", "a", said)
    assert rows(compare(Box().asked(server=server), Box().seen())) == [
        ("server", "served_model_name", "a", "other", "nothing"),
        ("server", "model_path", "/models/t/", "/models/other", "nothing"),
        ("server", "disable_cuda_graph", True, False, "nothing"),
        ("server", "max_running_requests", 64, 48, "nothing"),
        ("server", "api_key", "(secret)", "(another secret)", "nothing"),
    ]
    # Of a server that does not run, nothing is known.
    assert compare(Box().asked(server=server), Box().seen(running=None)) == []


def test_start_at_boot() -> None:
    seen = Box().seen()
    disabled = dataclasses.replace(seen, state=dataclasses.replace(seen.state, unit_file_state="disabled"))
    assert rows(compare(Box().asked(), disabled)) == [("boot", "UnitFileState", "enabled", "disabled", "deploy")]
    assert rows(compare(Box().asked(enabled=False), seen)) == [
        ("boot", "UnitFileState", "disabled", "enabled", "deploy")
    ]
    assert compare(Box().asked(enabled=False), disabled) == []


def test_folders_of_the_cache() -> None:
    assert rows(compare(Box().asked(), Box().seen(folders=("/var/cache/x",)))) == [
        ("folder", "/var/cache/x", "there, and the service user's", None, "deploy")
    ]


def test_not_deployed_or_masked() -> None:
    report = UnitReport("a", "sglang-a.service", reasons=["environment is new: /e", "unit is new: /etc/x.service"])
    nothing = Box().seen(unit_text=None, report=report, running=None)
    assert rows(compare(Box().asked(), nothing)) == [("unit", "file", "/etc/x.service", None, "deploy")]
    masked = dataclasses.replace(nothing, state=UnitState(load_state="masked"))
    ((where, name, asked, found, needs),) = rows(compare(Box().asked(), masked))
    assert (where, name, asked, needs) == ("systemd", "LoadState", "loaded", "nothing")
    assert "systemctl unmask sglang-a.service" in found


def test_a_record_of_a_missed_restart() -> None:
    report = UnitReport(
        "a", "sglang-a.service", restart_needed=True, reasons=["it was changed earlier and not restarted since"]
    )
    assert rows(compare(Box().asked(), Box().seen(report=report))) == [
        ("process", "start", "a start with these files", "it was changed earlier and not restarted since", "restart")
    ]
    # What does not run needs no restart, but a start.
    assert compare(Box().asked(), Box().seen(report=report, running=None)) == []


def test_words_that_cannot_be_told_are_not_compared() -> None:
    text = Box().unit_text().replace("--page-size 64", "--page-size 64 --log-file %m")
    asked = Box().asked()
    asked = dataclasses.replace(asked, instance=dataclasses.replace(asked.instance, content=text))
    running = Box().running()
    running = dataclasses.replace(running, words=(*running.words, "--log-file", "0123"))
    assert compare(asked, Box().seen(unit_text=text, running=running)) == []


def test_files_of_secrets_are_compared_by_what_they_hold() -> None:
    """Their names are random."""
    box = Box(key=KEY, token=TOKEN)
    asked = box.asked()
    names = (("credentials/a.yaml", "credentials/a.{}.yaml"), ("a.secret.env", "a.{}.secret.env"))
    content = asked.instance.content
    there = content
    for plain, pattern in names:
        content = content.replace(plain, pattern.format("@SECRET@"))
        there = there.replace(plain, pattern.format("0123456789abcdef"))
    asked = dataclasses.replace(asked, instance=dataclasses.replace(asked.instance, content=content))
    seen = box.seen(unit_text=there)
    files = {
        path.replace("a.secret", "a.0123456789abcdef.secret"): text for path, text in seen.environment_files.items()
    }
    assert compare(asked, dataclasses.replace(seen, environment_files=files)) == []
    assert credential_path(there, CONFIG) == f"{CONFIG}/credentials/a.0123456789abcdef.yaml"
    assert credential_path(Box().unit_text(), CONFIG) == ""


def test_environment_paths() -> None:
    text = "[Service]\nEnvironmentFile=/a.env\nEnvironmentFile=-/b.env\nEnvironmentFile=\n"
    assert environment_paths(text) == ["/a.env", "/b.env"]
