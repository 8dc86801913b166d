# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units as one change, on a real file system below tmp_path and with a systemctl that remembers."""

from __future__ import annotations

import dataclasses
import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _unit_files
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import (
    Instance,
    Layout,
    UnitError,
    UnitReport,
    apply_present,
    credential_text,
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
            "content": f"[Service]\nExecStart=/bin/{name}\nEnvironmentFile={config}/{name}.{'0' * 12}.env\n",
            "environment_file": f"{config}/{name}.{'0' * 12}.env",
            "environment_text": 'A="1"\n',
            "engine": "/opt/engine-1",
        }
        return Instance(**{**values, **changes})

    def changed(self, name: str = "a", digest: str = "1" * 12, **changes: t.Any) -> Instance:
        """The instance with another environment, as the filter would name it."""
        path = f"{self.layout.config_dir}/{name}.{digest}.env"
        content = f"[Service]\nExecStart=/bin/{name}\nEnvironmentFile={path}\n"
        return self.instance(
            name, content=content, environment_file=path, environment_text=f'A="{digest}"\n', **changes
        )

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
    config = box.layout.config_dir
    base = box.instance(credential=f"{config}/credentials/a.yaml", secret_environment_file=f"{config}/a.secret.env")
    secrets = {"a": {"config": {"api_key": KEY}, "environment": {"HF_TOKEN": TOKEN}}}
    box.deploy(base, secrets=secrets)
    assert box.apply(base, secrets=secrets)[0].restart_needed is False
    if change == "engine":
        base = dataclasses.replace(base, engine="/opt/engine-2")
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


@pytest.mark.parametrize("damage", ["absent", "damaged", "other format"])
def test_without_a_record_the_server_is_restarted(box: Box, damage: str) -> None:
    box.deploy(box.instance())
    record = box.root / "state" / "a.json"
    if damage == "absent":
        record.unlink()
    else:
        record.write_text("{" if damage == "damaged" else '{"format": 99}')
    (report,) = box.apply(box.instance())
    assert report.restart_needed
    assert "there is no record" in report.reasons[0]
    box.systemd.start(report.unit)
    assert box.apply(box.instance())[0].restart_needed is False


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


class TestSecrets:
    def instance(self, box: Box, **changes: t.Any) -> Instance:
        config = box.layout.config_dir
        return box.instance(
            credential=f"{config}/credentials/a.yaml", secret_environment_file=f"{config}/a.secret.env", **changes
        )

    secrets: t.ClassVar = {"a": {"config": {"api_key": KEY}, "environment": {"HF_TOKEN": TOKEN}}}

    def test_only_root_reads_them(self, box: Box) -> None:
        box.apply(self.instance(box), secrets=self.secrets)
        config = Path(box.layout.config_dir)
        assert (config / "credentials" / "a.yaml").read_text() == f'api-key: "{KEY}"\n'
        assert (config / "a.secret.env").read_text() == f'HF_TOKEN="{TOKEN}"\n'
        assert mode(config / "credentials" / "a.yaml") == 0o600
        assert mode(config / "a.secret.env") == 0o600

    def test_without_systemd_credentials_the_service_group_reads_the_key(self, box: Box) -> None:
        box.apply(self.instance(box, credential_by_systemd=False), secrets=self.secrets)
        path = Path(box.layout.config_dir) / "credentials" / "a.yaml"
        assert mode(path) == 0o640
        assert path.stat().st_gid == box.layout.group_id

    def test_never_shown(self, box: Box) -> None:
        first = box.apply(self.instance(box), secrets=self.secrets)
        other = {"a": {"config": {"api_key": KEY + "x"}, "environment": {"HF_TOKEN": TOKEN + "x"}}}
        second = box.apply(self.instance(box), secrets=other)
        for reports in (first, second):
            shown = json.dumps([dataclasses.asdict(report) for report in reports])
            assert KEY not in shown
            assert TOKEN not in shown
        assert [entry["after"] for entry in second[0].diff] == ["(another secret, not shown)\n"] * 2
        assert KEY not in (box.root / "state" / "a.json").read_text()

    def test_missing(self, box: Box) -> None:
        with pytest.raises(UnitError, match="no secret was given"):
            box.apply(self.instance(box))
        with pytest.raises(UnitError, match="no key was given"):
            box.apply(self.instance(box), secrets={"a": {"config": {}, "environment": {"HF_TOKEN": TOKEN}}})

    def test_credential_text(self) -> None:
        keys = {"api_key": "a: b #\"'\\x", "admin_api_key": "é"}
        assert credential_text(keys) == 'admin-api-key: "\\u00e9"\napi-key: "a: b #\\"\'\\\\x"\n'


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
    def test_the_disk_is_full_at_any_step(self, box: Box, monkeypatch: pytest.MonkeyPatch, position: int) -> None:
        box.deploy(box.instance("a"), box.instance("b"))
        before = box.files()
        real = _unit_files._write_temporary
        writes = []

        def write(file: t.Any) -> str:
            writes.append(file.path)
            if len(writes) == position:
                raise OSError(28, "No space left on device", file.path)
            return real(file)

        monkeypatch.setattr(_unit_files, "_write_temporary", write)
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
        real = _unit_files._write_temporary
        writes: list[str] = []

        def write(file: t.Any) -> str:
            writes.append(file.path)
            if len(writes) >= 3:
                raise OSError(28, "No space left on device", file.path)
            return real(file)

        monkeypatch.setattr(_unit_files, "_write_temporary", write)
        with pytest.raises(UnitError, match=r"could not put back: .*a\.json"):
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
        config = box.layout.config_dir
        first = box.instance("a", credential=f"{config}/credentials/a.yaml")
        box.deploy(first, box.instance("b"), secrets={"a": {"config": {"api_key": KEY}}})
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
