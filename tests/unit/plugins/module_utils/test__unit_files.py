# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units as one change, on a real file system below tmp_path and with a systemctl that remembers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _files, _known_good, _unit_files
from ansible_collections.specdec.serving.plugins.module_utils._credentials import UNCHOSEN
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import (
    Instance,
    Layout,
    UnitError,
    UnitReport,
    apply_present,
    prune,
    put_back,
    remove,
    stop,
)

KEY = "sk-planted-77aa01"
TOKEN = "hf_planted_token"


@dataclasses.dataclass
class Box:
    root: Path
    systemd: t.Any
    layout: Layout

    def instance(self, name: str = "a", **changes: t.Any) -> Instance:
        config = self.layout.config_dir
        values: dict[str, t.Any] = {
            "name": name,
            "unit": f"sglang-{name}.service",
            "environment_file": f"{config}/{name}.{'0' * 12}.env",
            "environment_text": 'A="1"\n',
            "engine": "/opt/engine-1",
            **changes,
        }
        # As the template does it: all that belongs to the unit is named in it.
        content = f"[Service]\nExecStart={values['engine']}/bin/{name}\nEnvironmentFile={values['environment_file']}\n"
        if values.get("secret_environment_file"):
            content += f"EnvironmentFile={values['secret_environment_file']}\n"
        if values.get("credential"):
            content += f"LoadCredential={name}.yaml:{values['credential']}\n"
        return Instance(**{"content": content, **values})

    def with_secrets(self, name: str = "a", **changes: t.Any) -> Instance:
        config = self.layout.config_dir
        values: dict[str, t.Any] = {
            "credential": f"{config}/credentials/{name}.{UNCHOSEN}.yaml",
            "secret_environment_file": f"{config}/{name}.{UNCHOSEN}.secret.env",
        }
        return self.instance(name, **{**values, **changes})

    def unit(self, name: str = "a") -> str:
        return (self.root / "units" / f"sglang-{name}.service").read_text()

    def secret_files(self) -> list[Path]:
        """The credential and the secret environment that the installed unit names."""
        found = [line.rpartition("=")[2].rpartition(":")[2] for line in self.unit().splitlines()]
        return sorted(Path(path) for path in found if path.endswith((".yaml", ".secret.env")))

    def keep(self, name: str = "a", *, most: int = 3) -> _known_good.Record:
        """Keep what is installed, as after a verified start."""
        state = _unit_files.read_state(self.layout.state_dir, name)
        environment = Path(state["environment_file"])
        record = _known_good.Record(
            name=name,
            unit=state["unit"],
            generation=state["generation"],
            content=self.unit(name),
            environment_file=str(environment),
            environment_text=environment.read_text(),
            secret_environment_file=state["secret_environment_file"],
            credential=state["credential"],
        )
        _known_good.keep(self.layout.state_dir, record, most=most)
        return record

    def changed(self, name: str = "a", digest: str = "1" * 12, **changes: t.Any) -> Instance:
        """The instance with another environment, as the filter would name it."""
        path = f"{self.layout.config_dir}/{name}.{digest}.env"
        return self.instance(name, environment_file=path, environment_text=f'A="{digest}"\n', **changes)

    def apply(self, *instances: Instance, **options: t.Any) -> list[UnitReport]:
        secrets = options.pop("secrets", {})
        return apply_present(instances, self.layout, secrets, self.systemd, **options)[0]

    def deploy(self, *instances: Instance, **options: t.Any) -> list[UnitReport]:
        """Apply, then restart what needs it, as the role does."""
        reports = self.apply(*instances, **options)
        for report in reports:
            if report.restart_needed:
                self.systemd.start(report.unit)
        return reports

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def box(tmp_path: Path, fake_systemd: t.Any) -> Box:
    layout = Layout(
        unit_dir=str(tmp_path / "units"),
        config_dir=str(tmp_path / "etc" / "sglang"),
        state_dir=str(tmp_path / "state"),
        cache_dirs=(str(tmp_path / "cache"), str(tmp_path / "cache" / "home")),
        user_id=os.geteuid(),
        group_id=os.getegid(),
        runtime_unit_dir=str(tmp_path / "run"),
    )
    return Box(tmp_path, fake_systemd, layout)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def mode(path: str | Path) -> int:
    return os.stat(path).st_mode & 0o777


def test_new_unit(box: Box) -> None:
    (report,) = box.apply(box.instance())
    assert report.changed
    assert report.restart_needed
    assert report.active_state == "inactive"
    assert box.systemd.verbs() == ["daemon-reload", "enable"]
    assert report.generation == _known_good.generation_of(box.instance().content)
    assert not report.known_good
    assert (box.root / "units" / "sglang-a.service").read_text() == box.instance().content
    assert Path(box.instance().environment_file).read_text() == 'A="1"\n'
    assert mode(box.root / "units" / "sglang-a.service") == 0o644
    assert mode(box.root / "cache" / "home") == 0o750


def test_nothing_to_do(box: Box) -> None:
    box.deploy(box.instance())
    before = box.files()
    box.systemd.calls.clear()
    reports, folders = apply_present([box.instance()], box.layout, {}, box.systemd)
    assert not reports[0].changed
    assert not reports[0].restart_needed
    assert reports[0].reasons == []
    assert folders == []
    assert box.systemd.verbs() == []
    assert box.files() == before


def test_a_change_restarts_only_its_own_unit(box: Box) -> None:
    box.deploy(box.instance("a"), box.instance("b"))
    first, second = box.apply(box.changed("a"), box.instance("b"))
    assert (first.changed, first.restart_needed) == (True, True)
    assert (second.changed, second.restart_needed) == (False, False)
    assert [reason.split(":")[0] for reason in first.reasons] == ["environment is new", "unit changed"]


@pytest.mark.parametrize("change", ["engine", "credential", "secret environment"])
def test_what_a_running_server_depends_on(box: Box, change: str) -> None:
    base = box.with_secrets()
    secrets = {"a": {"config": {"api_key": KEY}, "environment": {"HF_TOKEN": TOKEN}}}
    box.deploy(base, secrets=secrets)
    assert box.apply(base, secrets=secrets)[0].restart_needed is False
    if change == "engine":
        base = box.with_secrets(engine="/opt/engine-2")
    elif change == "credential":
        secrets["a"]["config"]["api_key"] = KEY + "2"
    else:
        secrets["a"]["environment"]["HF_TOKEN"] = TOKEN + "2"
    assert box.apply(base, secrets=secrets)[0].restart_needed is True


def test_a_run_that_was_killed_before_the_restart_heals_itself(box: Box) -> None:
    box.deploy(box.instance())
    box.apply(box.changed())  # killed here
    (report,) = box.apply(box.changed())
    assert not report.changed
    assert report.restart_needed
    assert report.reasons == ["it was changed earlier and not restarted since"]
    box.systemd.start(report.unit)
    assert box.apply(box.changed())[0].restart_needed is False


def test_a_restart_by_somebody_else_counts(box: Box) -> None:
    box.deploy(box.instance())
    box.apply(box.changed())
    box.systemd.start("sglang-a.service")
    assert box.apply(box.changed())[0].restart_needed is False


def test_killed_between_the_rename_and_the_reload(box: Box) -> None:
    box.deploy(box.instance())
    original = box.systemd.loaded
    box.apply(box.changed())
    box.systemd.loaded = original  # as if systemd had not read it
    box.systemd.calls.clear()
    (report,) = box.apply(box.changed())
    assert report.changed
    assert report.restart_needed
    assert "systemd has not read the unit file again" in report.reasons
    assert box.systemd.verbs()[0] == "daemon-reload"


def test_started_again_between_the_rename_and_the_reload(box: Box) -> None:
    """The run was killed there, and the server crashed: systemd started it again by the file that it knew."""
    box.deploy(box.instance())
    original = box.systemd.loaded
    box.apply(box.changed())
    box.systemd.loaded = original
    box.systemd.start("sglang-a.service")
    (report,) = box.apply(box.changed())
    assert report.restart_needed
    assert "systemd has not read the unit file again" in report.reasons
    # Read now, and still not restarted.
    assert box.apply(box.changed())[0].restart_needed
    box.systemd.start(report.unit)
    assert box.apply(box.changed())[0].restart_needed is False


def test_changed_twice_without_a_restart(box: Box) -> None:
    box.deploy(box.instance())
    box.apply(box.changed(digest="1" * 12))
    # Back to what runs: the running server knows these files, but nothing on the host proves it.
    assert box.apply(box.instance())[0].restart_needed is True


@pytest.mark.parametrize(
    "damage", ["absent", "{", "", "[" * 100_000, '{"format": 99}', '{"generation": 5}', '{"rolled_back_at": "noon"}']
)
def test_without_a_record_the_server_is_restarted(box: Box, damage: str) -> None:
    box.deploy(box.instance())
    record = box.root / "state" / "a.json"
    if damage == "absent":
        record.unlink()
    else:
        kept = json.loads(record.read_text())
        record.write_text(json.dumps({**kept, **json.loads(damage)}) if damage.endswith("}") else damage)
    (report,) = box.apply(box.instance())
    assert report.restart_needed
    assert "there is no record" in report.reasons[0]
    box.systemd.start(report.unit)
    assert box.apply(box.instance())[0].restart_needed is False


def test_a_link_in_the_place_of_a_unit_file_is_replaced(box: Box) -> None:
    box.deploy(box.instance())
    path = box.root / "units" / "sglang-a.service"
    theirs = box.root / "theirs"
    path.rename(theirs)
    path.symlink_to(theirs)
    (report,) = box.apply(box.instance())
    assert report.reasons[0] == f"unit changed: {path}"
    assert not path.is_symlink()
    assert theirs.read_text() == path.read_text()


@pytest.mark.parametrize("state", ["inactive", "failed", "activating", "deactivating"])
def test_a_unit_that_does_not_run_is_started(box: Box, state: str) -> None:
    box.deploy(box.instance())
    box.systemd.states["sglang-a.service"] = state
    (report,) = box.apply(box.instance())
    assert report.restart_needed
    assert not report.changed
    assert f"the unit is {state}" in report.reasons


def test_an_asked_restart_does_not_count_against_the_start_limit(box: Box) -> None:
    box.deploy(box.instance())
    box.systemd.states["sglang-a.service"] = "failed"
    box.systemd.calls.clear()
    box.apply(box.instance())
    assert box.systemd.calls[-1] == ["systemctl", "reset-failed", "--", "sglang-a.service"]


def test_restarts_before_a_stop_are_not_those_of_the_next_start(box: Box) -> None:
    """Stopped between two automatic restarts, systemd goes on counting: the wait would take that for a crash loop."""
    box.deploy(box.instance())
    box.systemd.states["sglang-a.service"] = "inactive"
    box.apply(box.instance())
    assert box.systemd.calls[-1][:2] != ["systemctl", "reset-failed"]
    box.systemd.restarts["sglang-a.service"] = 2
    box.apply(box.instance())
    assert box.systemd.calls[-1] == ["systemctl", "reset-failed", "--", "sglang-a.service"]


class TestSecrets:
    secrets: t.ClassVar = {"a": {"config": {"api_key": KEY}, "environment": {"HF_TOKEN": TOKEN}}}
    others: t.ClassVar = {"a": {"config": {"api_key": KEY + "x"}, "environment": {"HF_TOKEN": TOKEN + "x"}}}

    def test_only_root_reads_them(self, box: Box) -> None:
        box.apply(box.with_secrets(), secrets=self.secrets)
        environment, credential = box.secret_files()
        assert credential.read_text() == f'api-key: "{KEY}"\n'
        assert environment.read_text() == f'HF_TOKEN="{TOKEN}"\n'
        assert mode(credential) == 0o600
        assert mode(environment) == 0o600

    def test_without_systemd_credentials_the_service_group_reads_the_key(self, box: Box) -> None:
        box.apply(box.with_secrets(credential_by_systemd=False), secrets=self.secrets)
        path = box.secret_files()[1]
        assert mode(path) == 0o640
        assert path.stat().st_gid == box.layout.group_id

    def test_the_same_content_keeps_its_file_and_another_one_gets_its_own(self, box: Box) -> None:
        box.deploy(box.with_secrets(), secrets=self.secrets)
        first, unit = box.secret_files(), box.unit()
        assert UNCHOSEN not in unit
        assert not box.deploy(box.with_secrets(), secrets=self.secrets)[0].changed
        assert (box.secret_files(), box.unit()) == (first, unit)
        (report,) = box.deploy(box.with_secrets(), secrets=self.others)
        assert report.restart_needed
        assert not set(box.secret_files()) & set(first)
        assert not any(path.exists() for path in first)
        # The name says nothing: the same secret again has another one.
        box.deploy(box.with_secrets(), secrets=self.secrets)
        assert not set(box.secret_files()) & set(first)

    def test_until_the_unit_is_renamed_its_secrets_are_what_they_were(
        self, box: Box, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed at any rename: what the unit file names is there, and of one generation."""
        box.deploy(box.with_secrets(), secrets=self.secrets)
        before = {path: path.read_text() for path in box.secret_files()}
        unit = box.unit()
        real, seen = _files.commit, []

        def commit(temporary: str, path: str) -> None:
            assert {name: name.read_text() for name in before} == before
            assert box.unit() == unit
            seen.append(path)
            real(temporary, path)

        monkeypatch.setattr(_unit_files, "commit", commit)
        box.apply(box.with_secrets(), secrets=self.others)
        assert [Path(path).name.partition(".")[0] for path in seen] == ["a", "a", "a", "sglang-a"]

    @pytest.mark.parametrize("name", ["a.yaml", "a.@SECRET@.@SECRET@.yaml", "@SECRET@/a.yaml"])
    def test_a_name_without_a_place_for_the_hosts_choice(self, box: Box, name: str) -> None:
        with pytest.raises(UnitError, match="must hold @SECRET@ once"):
            box.apply(box.with_secrets(credential=f"{box.layout.config_dir}/{name}"), secrets=self.secrets)

    def test_never_shown(self, box: Box) -> None:
        first = box.apply(box.with_secrets(), secrets=self.secrets)
        second = box.apply(box.with_secrets(), secrets=self.others)
        for reports in (first, second):
            shown = json.dumps([dataclasses.asdict(report) for report in reports])
            assert KEY not in shown
            assert TOKEN not in shown
        assert [entry["after"] for entry in second[0].diff[:2]] == ["(another secret, not shown)\n"] * 2
        assert [reason.split(":")[0] for reason in second[0].reasons[:2]] == ["secret changed"] * 2
        assert KEY not in (box.root / "state" / "a.json").read_text()

    def test_in_check_mode_no_name_is_chosen(self, box: Box) -> None:
        (report,) = box.apply(box.with_secrets(), secrets=self.secrets, check_mode=True)
        assert report.generation == ""
        assert "/a.new.secret.env" in report.diff[-1]["after"]
        box.deploy(box.with_secrets(), secrets=self.secrets)
        assert box.apply(box.with_secrets(), secrets=self.secrets, check_mode=True)[0].generation != ""

    def test_missing(self, box: Box) -> None:
        with pytest.raises(UnitError, match="no secret was given"):
            box.apply(box.with_secrets())
        with pytest.raises(UnitError, match="no key was given"):
            box.apply(box.with_secrets(), secrets={"a": {"config": {}, "environment": {"HF_TOKEN": TOKEN}}})


class TestCheckMode:
    def test_changes_nothing_and_tells_all(self, box: Box) -> None:
        box.deploy(box.instance())
        before = box.files()
        box.systemd.calls.clear()
        (report,) = box.apply(box.changed(), check_mode=True)
        assert report.changed
        assert report.restart_needed
        assert len(report.diff) == 2
        assert box.files() == before
        assert box.systemd.verbs() == []

    def test_on_a_new_host(self, box: Box) -> None:
        layout = dataclasses.replace(box.layout, user_id=None, group_id=None)
        reports, folders = apply_present([box.instance()], layout, {}, box.systemd, check_mode=True)
        assert reports[0].changed
        assert box.layout.config_dir in folders
        assert not Path(box.layout.config_dir).exists()


class TestPutBack:
    @pytest.mark.parametrize("verb", ["systemctl daemon-reload", "systemctl enable"])
    def test_systemd_refuses(self, box: Box, verb: str) -> None:
        box.deploy(box.instance())
        box.systemd.enabled.clear()
        before = box.files()
        box.systemd.fail[verb] = (1, "", "no bus today")
        with pytest.raises(UnitError) as caught:
            box.apply(box.changed())
        assert "no bus today" in str(caught.value)
        assert box.files() == before

    @pytest.mark.parametrize("position", range(1, 8))
    @pytest.mark.parametrize("step", ["stage", "commit"])
    def test_the_disk_is_full_at_any_step(
        self, box: Box, monkeypatch: pytest.MonkeyPatch, step: str, position: int
    ) -> None:
        box.deploy(box.instance("a"), box.instance("b"))
        before = box.files()
        real = getattr(_unit_files, step)
        calls = []

        def full(first: str, *arguments: t.Any, **options: t.Any) -> t.Any:
            calls.append(first)
            if len(calls) == position:
                raise OSError(28, "No space left on device", first)
            return real(first, *arguments, **options)

        monkeypatch.setattr(_unit_files, step, full)
        if position > 6:
            # Two records, two environment files, two units: the seventh write does not happen.
            box.apply(box.changed("a"), box.changed("b"))
            return
        with pytest.raises(UnitError, match=r"No space left on device.*everything was put back"):
            box.apply(box.changed("a"), box.changed("b"))
        assert box.files() == before

    def test_a_full_disk_is_named(self, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_descriptor: int) -> None:
            raise OSError(28, "No space left on device")  # as the kernel says it: without a path

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UnitError, match=r"No space left on device: '/"):
            box.apply(box.instance())

    def test_what_cannot_be_put_back_is_named(self, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
        box.deploy(box.instance())
        box.systemd.fail["systemctl daemon-reload"] = (1, "", "no bus today")

        def full(path: str, *_arguments: t.Any, **_options: t.Any) -> None:
            raise OSError(28, "No space left on device", path)

        monkeypatch.setattr(_unit_files, "write_file", full)
        with pytest.raises(UnitError, match=r"could not put back: .*a\.json: No space"):
            box.apply(box.changed())


class TestVerify:
    def verify(self, box: Box, tmp_path: Path, output: str, **options: t.Any) -> list[UnitReport]:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        box.systemd.fail["systemd-analyze verify"] = (1, "", output.format(scratch=scratch))
        return box.apply(box.instance(), scratch=str(scratch), **options)

    @pytest.mark.parametrize(
        "output",
        [
            "{scratch}/sglang-a.service:5: Failed to parse resource value, ignoring: unlimited",
            "sglang-a.service: Command /opt/engine-1/bin/python is not executable: No such file or directory",
            "sglang-a.service: Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing.",
        ],
    )
    def test_refused_before_anything_changed(self, box: Box, tmp_path: Path, output: str) -> None:
        with pytest.raises(UnitError, match=r"systemd refuses the unit: sglang-a\.service") as caught:
            self.verify(box, tmp_path, output)
        assert str(tmp_path) not in str(caught.value)
        assert not Path(box.layout.config_dir).exists()

    @pytest.mark.parametrize(
        "output",
        [
            "{scratch}/sglang-a.service:4: Unknown key 'ProtectClock' in section [Service], ignoring.",
            "{scratch}/sglang-a.service:4: Unknown key name 'ProtectProc' in section 'Service', ignoring.",
            "foreign.service: Command /usr/bin/gone is not executable: No such file or directory",
            "",
        ],
    )
    def test_not_our_fault(self, box: Box, tmp_path: Path, output: str) -> None:
        assert self.verify(box, tmp_path, output)[0].changed

    def test_in_check_mode_the_engine_may_be_missing(self, box: Box, tmp_path: Path) -> None:
        output = "sglang-a.service: Command /opt/engine-1/bin/python is not executable: No such file or directory"
        assert self.verify(box, tmp_path, output, check_mode=True)[0].changed


def test_old_environment_files_are_pruned_unless_a_unit_names_them(box: Box) -> None:
    box.deploy(box.instance())
    config = Path(box.layout.config_dir)
    (config / ("a." + "e" * 12 + ".env")).write_text("kept, a drop-in names it")
    (config / ("other." + "e" * 12 + ".env")).write_text("kept, not ours")
    (config / "a.notes.env").write_text("kept, no hash")
    drop_in = box.root / "units" / "sglang-a.service.d"
    drop_in.mkdir()
    (drop_in / "trial.conf").write_text(f"[Service]\nEnvironmentFile={config}/a.{'e' * 12}.env\n")
    box.apply(box.changed())
    assert sorted(path.name for path in config.iterdir()) == [
        "a." + "1" * 12 + ".env",
        "a." + "e" * 12 + ".env",
        "a.notes.env",
        "other." + "e" * 12 + ".env",
    ]


def test_a_folder_in_the_way(box: Box) -> None:
    Path(box.instance().environment_file).mkdir(parents=True)
    with pytest.raises(UnitError, match="is a folder"):
        box.apply(box.instance())


def test_a_masked_unit(box: Box) -> None:
    box.systemd.fail["systemctl show"] = (0, "Id=sglang-a.service\nLoadState=masked\n", "")
    with pytest.raises(UnitError, match=r"sglang-a\.service is masked; unmask it first"):
        box.apply(box.instance())


def test_disabled(box: Box) -> None:
    box.apply(box.instance())
    (report,) = box.apply(box.instance(), enabled=False)
    assert report.changed
    assert box.systemd.enabled == set()
    assert box.apply(box.instance(), enabled=None)[0].changed is False


def test_wrong_mode_is_corrected(box: Box) -> None:
    box.deploy(box.instance())
    os.chmod(box.instance().environment_file, 0o666)
    assert box.apply(box.instance())[0].changed
    assert mode(box.instance().environment_file) == 0o644


class TestStopAndRemove:
    def test_stop(self, box: Box) -> None:
        box.deploy(box.instance("a"), box.instance("b"))
        box.systemd.states["sglang-b.service"] = "inactive"
        units = [("a", "sglang-a.service"), ("b", "sglang-b.service"), ("c", "sglang-c.service")]
        assert [report.changed for report in stop(units, box.systemd, check_mode=True)] == [True, False, False]
        assert [report.changed for report in stop(units, box.systemd)] == [True, False, False]
        assert ["systemctl", "stop", "--", "sglang-a.service"] in box.systemd.calls
        assert [report.changed for report in stop(units, box.systemd)] == [False, False, False]

    def test_remove(self, box: Box) -> None:
        first = box.with_secrets(secret_environment_file="")
        box.deploy(first, box.instance("b"), secrets={"a": {"config": {"api_key": KEY}}})
        box.keep("a")
        units = [("a", "sglang-a.service")]
        before = box.files()
        assert remove(units, box.layout, box.systemd, check_mode=True)[0].changed
        assert box.files() == before
        (report,) = remove(units, box.layout, box.systemd)
        assert report.changed
        assert sorted(box.files()) == [
            "etc/sglang/b." + "0" * 12 + ".env",
            "state/b.json",
            "units/sglang-b.service",
        ]
        assert box.systemd.enabled == {"sglang-b.service"}
        assert remove(units, box.layout, box.systemd)[0].changed is False

    def test_one_of_several_per_gpu(self, box: Box) -> None:
        box.deploy(box.instance("a"), box.instance("a@0"), box.instance("a@1"))
        box.deploy(box.instance("a"), box.changed("a@0"), box.instance("a@1"))
        environments = [name for name in box.files() if name.endswith(".env")]
        assert environments == [
            f"etc/sglang/{name}.env" for name in ("a." + "0" * 12, "a@0." + "1" * 12, "a@1." + "0" * 12)
        ]
        remove([("a@0", "sglang-a@0.service")], box.layout, box.systemd)
        assert [name for name in box.files() if "a@0" in name] == []
        assert len([name for name in box.files() if "a@1" in name]) == 3
        assert len([name for name in box.files() if "a." in name]) == 3

    def test_the_record_goes_last(self, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
        """By it what an interrupted removal left is found: a file with a key may be among that."""
        box.deploy(box.instance())
        gone: list[str] = []
        unlink = os.unlink

        def note(path: str) -> None:
            gone.append(path)
            unlink(path)

        monkeypatch.setattr(os, "unlink", note)
        remove([("a", "sglang-a.service")], box.layout, box.systemd)
        assert gone[0].endswith("/sglang-a.service")
        assert gone[-1].endswith("/a.json")
        assert len(gone) == 3


class TestKnownGood:
    secrets: t.ClassVar = {"a": {"config": {"api_key": KEY}, "environment": {"HF_TOKEN": TOKEN}}}
    others: t.ClassVar = {"a": {"config": {"api_key": KEY + "x"}, "environment": {"HF_TOKEN": TOKEN + "x"}}}

    def test_what_a_record_names_stays_until_the_record_goes(self, box: Box) -> None:
        box.deploy(box.with_secrets(), secrets=self.secrets)
        first, environment = box.secret_files(), Path(box.instance().environment_file)
        box.keep(most=1)
        assert box.apply(box.with_secrets(), secrets=self.secrets)[0].known_good
        changed = box.changed(
            credential=box.with_secrets().credential,
            secret_environment_file=box.with_secrets().secret_environment_file,
        )
        (report,) = box.deploy(changed, secrets=self.others)
        assert not report.known_good
        assert all(path.exists() for path in (*first, environment))
        box.keep(most=1)
        assert sorted(map(str, prune(box.layout, ["a"]))) == sorted(map(str, (*first, environment)))
        assert all(path.exists() for path in box.secret_files())

    def test_put_back(self, box: Box) -> None:
        box.deploy(box.with_secrets(), secrets=self.secrets)
        kept, good, secrets = box.keep(), box.unit(), box.secret_files()
        record = dataclasses.replace(kept, engine="")
        bad = box.changed(credential=box.with_secrets().credential)
        box.deploy(bad, secrets=self.others)
        asked = _unit_files.read_state(box.layout.state_dir, "a")["generation"]
        bad_files = [path for path in Path(box.layout.config_dir).rglob("*") if path.is_file()]

        (report,) = put_back([record], box.layout, box.systemd, now=1000.5, check_mode=True)
        assert (report.changed, report.restart_needed) == (True, True)
        assert box.unit() != good
        (report,) = put_back([record], box.layout, box.systemd, now=1000.5)
        assert (report.changed, report.restart_needed, report.known_good) == (True, True, True)
        assert box.unit() == good
        assert box.secret_files() == secrets
        assert box.systemd.verbs()[-2:] == ["daemon-reload", "reset-failed"]
        state = _unit_files.read_state(box.layout.state_dir, "a")
        assert (state["asked"], state["rolled_back_at"]) == (asked, 1000.5)
        assert state["generation"] == kept.generation == _unit_files.installed(box.layout, "sglang-a.service")
        # What the bad one alone had is gone.
        assert len([path for path in bad_files if path.exists()]) == 3
        # Once more changes nothing, and the time stays.
        box.systemd.start("sglang-a.service")
        assert not put_back([record], box.layout, box.systemd, now=2000)[0].restart_needed
        assert _unit_files.read_state(box.layout.state_dir, "a")["rolled_back_at"] == 1000.5
        # A deployment of the same configuration finds its files, and asks for it again.
        (report,) = box.apply(box.with_secrets(), secrets=self.secrets)
        assert (report.changed, report.restart_needed) == (False, False)
        assert _unit_files.read_state(box.layout.state_dir, "a")["rolled_back_at"] == 0

    def test_what_is_gone_cannot_be_put_back_and_nothing_changes(self, box: Box) -> None:
        box.deploy(box.with_secrets(), secrets=self.secrets)
        record = dataclasses.replace(box.keep(), engine="/opt/gone")
        box.secret_files()[1].unlink()
        with pytest.raises(UnitError, match=r"a\.[0-9a-f]{16}\.yaml' and '/opt/gone' are gone"):
            put_back([record], box.layout, box.systemd, now=1)

    def test_a_drop_in_until_the_next_boot_keeps_its_files(self, box: Box) -> None:
        box.deploy(box.instance())
        folder = box.root / "run" / "sglang-a.service.d"
        folder.mkdir(parents=True)
        (folder / "trial.conf").write_text(f"[Service]\nEnvironmentFile={box.instance().environment_file}\n")
        box.deploy(box.changed())
        assert Path(box.instance().environment_file).exists()

    def test_names_with_dots_and_at_signs_are_not_mixed_up(self, box: Box) -> None:
        for name in ("a@0", "a", "a.b"):
            box.deploy(box.instance(name))
        remove([("a", "sglang-a.service")], box.layout, box.systemd)
        left = sorted(path.name for path in Path(box.layout.config_dir).iterdir())
        assert left == ["a.b." + "0" * 12 + ".env", "a@0." + "0" * 12 + ".env"]
        assert prune(box.layout, ["a@0", "a.b"]) == []


class TestKilled:
    """SIGKILL at any step that others can see: the host is on the old or on the new configuration, and the next run heals it."""

    secrets: t.ClassVar = {"a": {"config": {"api_key": "sk-gen-1"}, "environment": {"HF_TOKEN": "hf-gen-1"}}}
    others: t.ClassVar = {"a": {"config": {"api_key": "sk-gen-2"}, "environment": {"HF_TOKEN": "hf-gen-2"}}}

    def killed(self, position: int, work: t.Callable[[], object]) -> bool:
        """Whether it was killed: before its rename, unlink or systemctl with this number."""
        pid = os.fork()
        if pid == 0:
            left = position

            def counted(real: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
                def call(*arguments: t.Any, **options: t.Any) -> t.Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        os._exit(9)
                    return real(*arguments, **options)

                return call

            try:
                os.rename, os.unlink = counted(os.rename), counted(os.unlink)
                work()
                os._exit(0)
            finally:
                os._exit(3)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 9)
        return code == 9

    def generations(self, box: Box) -> set[str]:
        """Of which configurations the parts of the installed unit are."""
        environment = next(line for line in box.unit().splitlines() if line.endswith(".env") and "secret" not in line)
        texts = [Path(environment.partition("=")[2]).read_text(), *(path.read_text() for path in box.secret_files())]
        assert len(texts) == 3
        return {"old" if "gen-1" in text or text == 'A="1"\n' else "new" for text in texts}

    def test_a_change(self, box: Box) -> None:
        names = {key: getattr(box.with_secrets(), key) for key in ("credential", "secret_environment_file")}
        seen, position, going = set(), 0, True
        while going:
            box.deploy(box.with_secrets(), secrets=self.secrets)
            box.keep(most=1)
            prune(box.layout, ["a"])
            going = self.killed(position, lambda: box.apply(box.changed(**names), secrets=self.others))
            found = self.generations(box)
            seen |= found
            assert len(found) == 1, position
            (record,) = _known_good.load(box.layout.state_dir, "a")
            assert all(Path(path).exists() for path in record.named_files)
            # The next run.
            (report,) = box.apply(box.changed(**names), secrets=self.others)
            assert report.restart_needed, position
            box.systemd.start(report.unit)
            assert self.generations(box) == {"new"}
            assert not box.apply(box.changed(**names), secrets=self.others)[0].restart_needed
            box.keep(most=1)
            prune(box.layout, ["a"])
            files = [name for name in box.files() if name.startswith(("etc/", "units/"))]
            assert len(files) == 4, files  # nothing half written, and no key that nobody needs
            position += 1
        assert seen == {"old", "new"}
        assert position > 5

    def test_a_rollback(self, box: Box) -> None:
        names = {key: getattr(box.with_secrets(), key) for key in ("credential", "secret_environment_file")}
        position, going = 0, True
        while going:
            box.deploy(box.with_secrets(), secrets=self.secrets)
            record = dataclasses.replace(box.keep(most=1), engine="")
            box.deploy(box.changed(**names), secrets=self.others)
            going = self.killed(position, functools.partial(put_back, [record], box.layout, box.systemd, now=1))
            assert len(self.generations(box)) == 1, position
            (report,) = put_back([record], box.layout, box.systemd, now=1)
            assert report.restart_needed
            assert self.generations(box) == {"old"}
            position += 1
        assert position > 2
