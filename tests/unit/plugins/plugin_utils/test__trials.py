# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep file, a study and an instance together: what is planned, claimed and told."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._lease import Owner
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import resolve_engine
from ansible_collections.specdec.serving.plugins.plugin_utils._study import StudyError, StudyUnavailableError
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_entry import with_trial, without_keys
from ansible_collections.specdec.serving.plugins.plugin_utils._trials import Trials, options_from, patiently

OWNER = Owner(id="f" * 16, host="far", user="ann", pid=1, start_ticks=1, boot="b" * 36)
KEY = "sk-planted-0123"
ENTRY: dict[str, t.Any] = {
    "name": "k26",
    "model_path": "/models/k26",
    "port": 30001,
    "api_key": KEY,
    "args": {"tp-size": 2, "speculative_algorithm": "NGRAM"},
    "env": {"A": "1"},
}
FILE = """\
instance: k26
space:
  tp_size: [1, 2, 4, 8]
  {more_space}
workloads: [./w.yml]
levels: [1, 8]
"""


class Sweeping:
    """One playbook after the other on one sweep file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1_000_000.0
        self.options: dict[str, t.Any] = {}
        self.host = "ct200"
        (folder / "w.yml").write_text(
            "name: w\ndescription: For tests.\nkind: fixed\ninput_length: 8\noutput_length: 8\n"
        )
        self.write()

    def write(self, more: str = "", more_space: str = "") -> None:
        (self.folder / "nightly.yml").write_text(FILE.format(more_space=more_space) + more)

    def trials(self, **changes: t.Any) -> Trials:
        raw = {
            "sweep": str(self.folder / "nightly.yml"),
            "storage": str(self.folder / "nightly.journal"),
            "instances": [{"name": "other"}, ENTRY],
            "resolve": {"version": "0.5.23", "engine": resolve_engine("0.5.23", root="/opt/specdec")},
            "platform": {"host class": "cpu"},
            "began": 1_000_000.0,
            **self.options,
            **changes,
        }
        return Trials(options_from(raw, now=self.now), owner=OWNER, host=self.host, wall=lambda: self.now)

    def on(self, host: str, uuid: str) -> None:
        """From now on on another host, with this card."""
        self.host = host
        facts = {"gpus": [{"index": 0, "uuid": uuid, "name": "NVIDIA B300"}]}
        self.options = {
            "instances": [{**ENTRY, "gpus": [0]}],
            "resolve": {"version": "0.5.23", "engine": resolve_engine("0.5.23", root="/opt/specdec"), "facts": facts},
        }

    def plan(self, *, check_mode: bool = False, **changes: t.Any) -> dict[str, t.Any]:
        return self.trials(**changes).planned(check_mode=check_mode)

    def claim(self) -> dict[str, t.Any]:
        return self.trials().claimed()

    def finish(self, number: int, tok_s: float | None, **failure: str) -> dict[str, t.Any]:
        summary = {"output_tok_s": {"median": tok_s, "mad": 0.5}}
        levels = [{"concurrency": level, "valid": True, "summary": summary} for level in (1, 8)]
        return self.trials().finished(
            number,
            benchmarks={} if tok_s is None else {"./w.yml": {"levels": levels}},
            evaluation={},
            failure=failure,
            details={"times": {"start": 20.0, "benchmark": 40.0}},
        )

    def run(self, score: t.Callable[[dict[str, t.Any]], float | str]) -> list[dict[str, t.Any]]:
        """Until nothing is left; a text is the cause of a failure."""
        ran = []
        while trial := self.claim()["trial"]:
            ran.append(trial["point"])
            result = score(trial["point"])
            if isinstance(result, str):
                self.finish(trial["number"], None, cause=result, summary=f"it {result}")
            else:
                self.finish(trial["number"], result)
        return ran


@pytest.fixture
def sweeping(tmp_path: Path) -> Sweeping:
    return Sweeping(tmp_path)


def test_what_the_file_has_no_more_is_still_what_its_trial_says(sweeping: Sweeping) -> None:
    """Edited between two runs of one study: a trial under the name of one configuration must not run another."""
    sweeping.write(more_space="page_size: [16]")
    sweeping.plan()
    sweeping.finish(sweeping.claim()["trial"]["number"], 10.0)
    sweeping.write()
    sweeping.plan()
    while trial := sweeping.claim()["trial"]:
        assert trial["point"].get("page_size") == trial["entry"]["args"].get("page_size")
        sweeping.finish(trial["number"], 50.0 if "page_size" in trial["point"] else 20.0)
    winner = sweeping.trials().shown()["winner"]
    assert winner["point"]["page_size"] == winner["args"]["page_size"] == 16


def test_a_sampler_is_told_of_other_values_only_by_another_study(sweeping: Sweeping) -> None:
    sweeping.write("sampler: tpe\nbudget: {trials: 3}\n")
    sweeping.plan()
    sweeping.run(lambda _point: 10.0)
    sweeping.write("sampler: tpe\nbudget: {trials: 9}\n")
    text = (sweeping.folder / "nightly.yml").read_text()
    (sweeping.folder / "nightly.yml").write_text(text.replace("[1, 2, 4, 8]", "[1, 2]"))
    sweeping.plan()
    with pytest.raises(StudyError, match=r"other values of 'space' .* give this one another name"):
        sweeping.claim()


def test_a_study_that_was_removed_meanwhile_is_told(sweeping: Sweeping) -> None:
    sweeping.plan()
    number = sweeping.claim()["trial"]["number"]
    (sweeping.folder / "nightly.journal").unlink()
    with pytest.raises(StudyError, match=f"has no trial {number} any more"):
        sweeping.finish(number, 10.0)


@pytest.mark.parametrize("path", ["~nobody-of-that-name/x", "a\0b", "fifo"])
def test_a_sweep_file_that_is_none(sweeping: Sweeping, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweeping.folder)
    os.mkfifo("fifo")
    with pytest.raises(ValueError, match=r"the sweep file .* cannot be read"):
        sweeping.trials(sweep=path)


def test_a_storage_without_a_home(sweeping: Sweeping) -> None:
    with pytest.raises(ValueError, match="the storage '~nobody-of-that-name/x' cannot be used"):
        sweeping.trials(storage="~nobody-of-that-name/x")


def test_check_mode_lists_and_writes_nothing(sweeping: Sweeping) -> None:
    answer = sweeping.plan(check_mode=True)
    # tp_size 2 is what the instance has.
    assert [(trial["configuration"], trial["state"]) for trial in answer["trials"]] == [
        ("baseline", "waiting"),
        ("tp_size=2", "duplicate"),
        ("tp_size=1", "waiting"),
        ("tp_size=4", "waiting"),
        ("tp_size=8", "waiting"),
    ]
    assert answer["waiting"] == 4
    assert "sweep nightly of k26: 4 trials to run, check mode does not look" in answer["text"]
    assert not (sweeping.folder / "nightly.journal").exists()


def test_check_mode_lists_what_a_ladder_changes(sweeping: Sweeping) -> None:
    sweeping.write("sampler: ladder\nexclude: [{tp_size: 8}]\n")
    answer = sweeping.plan(check_mode=True)
    assert [(trial["configuration"], trial["state"]) for trial in answer["trials"]] == [
        ("baseline", "waiting"),
        ("tp_size=1", "waiting"),
        ("tp_size=2", "duplicate"),
        ("tp_size=4", "waiting"),
    ]
    assert answer["text"].endswith("then what ladder proposes")


def test_a_sweep_from_plan_to_winner(sweeping: Sweeping) -> None:
    sweeping.plan()
    ran = sweeping.run(lambda point: "hung" if point.get("tp_size") == 1 else 100.0 + 10 * (point.get("tp_size") == 4))
    assert [point.get("tp_size") for point in ran] == [None, 1, 4, None, 8, None]
    shown = sweeping.trials().shown()
    assert shown["winner"] == {
        "number": 3,
        "point": {"tp_size": 4},
        "certain": True,
        "args": {"tp_size": 4, "speculative_algorithm": "NGRAM"},
        "env": {},
    }
    assert (shown["waiting"], shown["drift"], shown["notices"]) == (0, 0.0, [])
    assert shown["times"]["start"] == 120.0
    assert "9.1 % less output_tok_s than trial 3" in shown["table"]
    assert "it hung" in shown["table"]
    assert KEY not in json.dumps(shown)


def test_a_claim_says_where_the_sweep_is(sweeping: Sweeping) -> None:
    sweeping.plan()
    first = sweeping.claim()
    assert first["text"].splitlines() == ["trial 0 (1 of 4): baseline"]
    sweeping.finish(0, 100.0)
    second = sweeping.claim()
    assert second["text"].splitlines() == [
        "trial 2 (2 of 4): tp_size=1",
        "best so far: trial 0, output_tok_s 100 at level 8",
        "about 3 min 0 s left",
    ]
    assert second["trial"]["entry"] == {"args": {"tp_size": 1, "speculative_algorithm": "NGRAM"}, "env": {}}
    assert second["trial"]["label"] == "trial 2 of nightly: tp_size=1"
    assert KEY not in json.dumps(second)


def test_a_finished_trial_is_told_in_a_line(sweeping: Sweeping) -> None:
    sweeping.plan()
    sweeping.claim()
    assert sweeping.finish(0, 100.0)["text"] == "trial 0: ranked; output_tok_s 100 at level 8; best so far"
    sweeping.claim()
    assert (
        sweeping.finish(2, None, cause="gpu_out_of_memory", summary="rank 1")["text"]
        == "trial 2: gpu_out_of_memory; rank 1"
    )


def test_what_cannot_be_deployed_is_claimed_with_its_faults(sweeping: Sweeping) -> None:
    sweeping.write(more_space="host: [a]\n".replace("host", "env.CUDA_VISIBLE_DEVICES"))
    sweeping.plan()
    sweeping.claim()
    sweeping.finish(0, 1.0)
    trial = sweeping.claim()["trial"]
    assert trial["faults"]
    assert "CUDA_VISIBLE_DEVICES" in trial["faults"][0]


def test_an_entry_as_a_trial_wants_it(sweeping: Sweeping) -> None:
    sweeping.write(more_space="env.A: ['7']")
    sweeping.plan()
    while (trial := sweeping.claim()["trial"])["point"].get("tp_size") != 1:
        sweeping.finish(trial["number"], 1.0)
    changed = trial["entry"]
    assert changed == {"args": {"tp_size": 1, "speculative_algorithm": "NGRAM"}, "env": {"A": "7"}}
    entry = {**ENTRY, "env": {"A": "1", "HF_TOKEN": "hf_planted"}}
    assert with_trial(entry, changed) == {**entry, **changed, "env": {"A": "7", "HF_TOKEN": "hf_planted"}}
    assert without_keys(entry).keys() == entry.keys() - {"api_key"}


def test_an_instance_that_cannot_be_deployed_itself_ends_it(sweeping: Sweeping) -> None:
    with pytest.raises(ValueError, match="the instance 'k26' itself cannot be deployed"):
        sweeping.plan(instances=[{**ENTRY, "port": 0}])


def test_rules_of_the_user_save_starts(sweeping: Sweeping) -> None:
    sweeping.write("monotone: [{cause: gpu_out_of_memory, parameter: tp_size, direction: falling}]\n")
    sweeping.write(
        "monotone: [{cause: gpu_out_of_memory, parameter: block, direction: rising}]\n",
        more_space="block: [8, 16, 32]",
    )
    sweeping.plan()
    ran = sweeping.run(lambda point: "gpu_out_of_memory" if point.get("block", 0) >= 16 else 1.0)
    assert [point["block"] for point in ran if point.get("block", 0) > 8] == [16] * 4
    causes = [row["cause"] for row in sweeping.trials().shown()["trials"]]
    assert causes.count("implied") == 4
    assert "block=16 failed for gpu_out_of_memory" in sweeping.trials().shown()["table"]


@pytest.mark.parametrize(
    ("more", "score", "ran", "over"),
    [
        pytest.param(
            "stop: {failures: 2}\n",
            lambda point: "hung" if point.get("tp_size") in (4, 8) else 1.0,
            5,
            "failed trials in a row: 2",
            id="baselines between",
        ),
        pytest.param("stop: {failures: 1}\n", lambda _point: "hung", 1, "failed trials in a row: 1", id="failures"),
        pytest.param(
            "stop: {patience: 2}\n",
            lambda _point: 1.0,
            3,
            "trials in a row that brought nothing better: 2",
            id="patience",
        ),
        pytest.param(
            "sampler: tpe\nseed: 1\nbudget: {trials: 2}\n",
            lambda _point: 1.0,
            2,
            "the budget of 2 trials is used up",
            id="trials",
        ),
    ],
)
def test_it_stops(sweeping: Sweeping, more: str, score: t.Any, ran: int, over: str) -> None:
    sweeping.write(more)
    sweeping.plan()
    assert len(sweeping.run(score)) == ran
    assert over in sweeping.claim()["over"]


def test_a_screening_measures_less_of_more(sweeping: Sweeping) -> None:
    """tp_size 2 is what the instance has; of the other four the best two are measured in full, and no level between."""
    (sweeping.folder / "nightly.yml").write_text(
        "instance: k26\nspace: {tp_size: [1, 2, 4, 8, 16]}\nworkloads: [./w.yml]\nlevels: [1, 4, 8]\nrepeats: 3\n"
        "screen: {share: 0.5}\ngates: {min_pass_at_1: 0.5}\n"
    )
    planned = sweeping.plan()
    assert "then the best of what was screened in full: 2 at most" in planned["text"]
    asked = []
    for _number in range(planned["most"]):
        trial = sweeping.claim()["trial"]
        if not trial:
            break
        asked.append((trial["point"].get("tp_size"), trial["levels"], trial["repeats"], trial["evaluated"]))
        summary = {"output_tok_s": {"median": 100.0 + trial["point"].get("tp_size", 0), "mad": 0.5}}
        levels = [{"concurrency": level, "valid": True, "summary": summary} for level in trial["levels"]]
        sweeping.trials().finished(
            trial["number"],
            benchmarks={"./w.yml": {"levels": levels}},
            evaluation={"coding": {"pass_at_1": 0.9}} if trial["evaluated"] else {},
            failure={},
            details={"times": {"start": 20.0, "benchmark": 10.0 if "#screen" in trial["point"] else 40.0}},
        )
    full, screened = ([1, 4, 8], 3, True), ([1, 8], 1, False)
    assert asked == [
        (None, *full),
        *((size, *screened) for size in (1, 4, 8, 16)),
        (None, *full),
        *((size, *full) for size in (8, 16)),
        (None, *full),
    ]
    assert sweeping.claim()["over"] == "all trials have ended"
    shown = sweeping.trials().shown()
    assert shown["winner"]["point"] == {"tp_size": 16}
    assert "3 of 4 in the screening, not measured in full" in shown["table"]
    assert "1 of 4 in the screening, measured in full as trial 7" in shown["table"]
    assert shown["savings"] == [
        {"rule": "the same configuration as another", "trials": 1, "seconds": 60.0},
        # Two trials of 60 s, less four of 30 s.
        {"rule": "screened, and not measured in full", "trials": 2, "seconds": 0.0},
    ]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        pytest.param("", 8 * 16, id="of the workload with exact lengths"),
        pytest.param("min_total_tokens: 5000\n", 5000, id="given"),
        pytest.param("min_total_tokens: 0\n", 0, id="switched off"),
        pytest.param("workloads: [./w.yml, natural-code]\n", 8 * 16, id="real prompts have no exact length"),
        pytest.param("workloads: [natural-code]\n", 0, id="real prompts alone"),
    ],
)
def test_the_kv_cache_must_hold_what_is_in_flight(sweeping: Sweeping, more: str, wanted: int) -> None:
    text = FILE.format(more_space="")
    if "workloads" in more:
        text = text.replace("workloads: [./w.yml]\n", "")
    (sweeping.folder / "nightly.yml").write_text(text + more)
    sweeping.plan()
    assert sweeping.claim()["trial"]["min_total_tokens"] == wanted


def test_the_first_start_with_certain_caches_is_cold(sweeping: Sweeping) -> None:
    sweeping.write(more_space="env.A: ['7', '8']", more="exclude: [{tp_size: 1}, {tp_size: 8}]\n")
    sweeping.plan()
    cold = []
    while trial := sweeping.claim()["trial"]:
        cold.append((trial["point"].get("tp_size"), trial["cold"]))
        sweeping.trials().finished(
            trial["number"],
            benchmarks={},
            evaluation={},
            failure={},
            details={"times": {"start": 90.0 if trial["cold"] else 20.0}, "cold": trial["cold"]},
        )
    # Those that share their caches with the baseline come first; it has tp_size 2.
    assert cold == [(None, True), (2, False), (2, False), (None, False), (4, True), (4, False), (None, False)]
    shown = sweeping.trials().shown()
    assert (shown["starts"]["warm"], shown["starts"]["median"]) == (5, 20.0)
    assert [one["seconds"] for one in shown["starts"]["cold"]] == [90.0, 90.0]


def test_what_rules_saved_is_told(sweeping: Sweeping) -> None:
    sweeping.write(
        "monotone: [{cause: gpu_out_of_memory, parameter: block}]\nexclude: [{tp_size: 1}, {tp_size: 4}, {tp_size: 8}]\n",
        more_space="block: [8, 16, 32]",
    )
    sweeping.plan()
    sweeping.run(lambda point: "gpu_out_of_memory" if point.get("block", 0) >= 16 else 1.0)
    (saved,) = sweeping.trials().shown()["savings"]
    assert saved == {"rule": "told by a rule under 'monotone'", "trials": 1, "seconds": 60.0}


def test_a_ladder_is_told_step_by_step(sweeping: Sweeping) -> None:
    sweeping.write("sampler: ladder\n")
    sweeping.plan()
    scores: dict[int, float | str] = {1: "hung", 4: 110.0}
    sweeping.run(lambda point: scores.get(point.get("tp_size", 0), 100.0))
    shown = sweeping.trials().shown()
    assert [(one["configuration"], one["verdict"], one["reason"]) for one in shown["steps"]] == [
        ("baseline", "start", "the instance as it is"),
        ("tp_size=1", "dropped", "hung"),
        ("tp_size=2", "dropped", "the same as trial 0"),
        ("tp_size=4", "kept", "10.0 % better than trial 0"),
        ("tp_size=8", "dropped", "no different from trial 0 beyond noise"),
    ]
    assert shown["drift"] == 0.0, "the baseline was measured once more"


def test_the_hours_are_used_up(sweeping: Sweeping) -> None:
    sweeping.write("budget: {hours: 1}\n")
    sweeping.plan()
    sweeping.now += 3599
    assert sweeping.claim()["trial"]
    sweeping.finish(0, 1.0)
    sweeping.now += 1
    over = sweeping.claim()
    assert (over["over"], over["final"]) == ("the budget of 1 h is used up", True)


def test_another_hosts_last_trial_is_not_waited_for(sweeping: Sweeping) -> None:
    sweeping.write("exclude: [{tp_size: 1}, {tp_size: 2}, {tp_size: 4}]\n")
    sweeping.plan()
    sweeping.claim()
    sweeping.claim()
    over = sweeping.claim()
    assert (over["over"], over["final"]) == ("the last trials run on other hosts", False)


def test_failed_trials_are_planned_again_by_cause(sweeping: Sweeping) -> None:
    sweeping.plan()
    sweeping.run(lambda point: "hung" if point.get("tp_size") else 1.0)
    assert sweeping.plan()["waiting"] == 0
    assert sweeping.plan(again=["gpu_out_of_memory"])["waiting"] == 0
    slip = sweeping.plan(again=["hnug"])
    assert slip["waiting"] == 0
    assert slip["warnings"] == ["sweep_again=hnug: no trial of nightly has this number or cause; its causes: hung"]
    again = sweeping.plan(again=["hung"])
    assert again["waiting"] == 3
    assert again["warnings"] == []


@pytest.mark.parametrize(("more", "told"), [("", True), ("repeats: 3\n", False)], ids=["once", "three times"])
def test_a_winner_that_was_measured_once_is_told(sweeping: Sweeping, more: str, told: bool) -> None:
    sweeping.write("exclude: [{tp_size: 1}, {tp_size: 8}]\n" + more)
    sweeping.plan()
    sweeping.run(lambda point: 120.0 if point.get("tp_size") == 4 else 100.0)
    shown = sweeping.trials().shown()
    assert shown["winner"]["point"] == {"tp_size": 4}
    assert any("were measured once" in notice for notice in shown["notices"]) is told


def test_a_host_that_drifts_is_told(sweeping: Sweeping) -> None:
    sweeping.plan()
    values = iter([100.0, 1.0, 1.0, 90.0, 1.0, 100.0])
    sweeping.run(lambda _point: next(values))
    assert "the baselines of ct200 lie 10.0 % apart" in sweeping.trials().shown()["notices"][0]


@pytest.mark.parametrize(
    ("best", "again", "certain"),
    [
        pytest.param(120.0, 110.0, True, id="better than every baseline"),
        pytest.param(105.0, 110.0, False, id="one baseline was as good"),
        pytest.param(105.0, 102.0, True, id="the host did not drift"),
    ],
)
def test_a_winner_that_may_be_none(sweeping: Sweeping, best: float, again: float, certain: bool) -> None:
    sweeping.plan()
    values = iter([100.0, 1.0, best, again, 1.0, 100.0])
    sweeping.run(lambda _point: next(values))
    shown = sweeping.trials().shown()
    assert shown["winner"]["point"] == {"tp_size": 4}
    assert shown["winner"]["certain"] is certain
    assert (
        any("not better than every measurement of the baseline" in notice for notice in shown["notices"]) is not certain
    )


def test_hosts_share_a_study_and_each_measures_the_baseline(sweeping: Sweeping) -> None:
    sweeping.write(more_space="block: [8, 16]")
    # Two cards of the same kind are not one.
    for host, uuid in (("ct200", "GPU-aa"), ("b300", "GPU-bb")):
        sweeping.on(host, uuid)
        sweeping.plan()
    ran: dict[str, list[str]] = {"ct200": [], "b300": []}
    speed = {"ct200": 100.0, "b300": 80.0}
    for turn in range(20):
        host = ("ct200", "b300")[turn % 2]
        sweeping.on(host, "GPU-aa" if host == "ct200" else "GPU-bb")
        trial = sweeping.claim()["trial"]
        if trial:
            point = trial["point"]
            ran[host].append(f"{point['tp_size']}/{point['block']}" if "block" in point else "baseline")
            faster = 1.1 if (point.get("tp_size"), point.get("block")) == (8, 16) else 1.0
            sweeping.finish(trial["number"], speed[host] * faster)
    assert ran == {
        "ct200": ["baseline", "2/8", "1/8", "4/8", "8/8", "baseline"],
        "b300": ["baseline", "2/16", "1/16", "4/16", "8/16", "baseline"],
    }
    shown = sweeping.trials().shown()
    assert shown["notices"] == [
        "the baselines of the hosts lie 25.0 % apart (more than 3 %): each trial is ranked by what it brought against that of its own host"
    ]
    assert (shown["drift"], shown["winner"]["point"]) == (0.0, {"tp_size": 8, "block": 16})
    best = next(line for line in shown["table"].splitlines() if line.startswith("★"))
    assert best.split()[1:4] == [str(shown["winner"]["number"]), "b300", "complete"], "88 of 80 is more than 100 of 100"


def test_a_host_that_runs_something_else_is_refused(sweeping: Sweeping) -> None:
    sweeping.plan()
    with pytest.raises(StudyError, match="arguments: 2 there, 4 asked"):
        sweeping.plan(instances=[{**ENTRY, "args": {**ENTRY["args"], "tp-size": 4}}])
    with pytest.raises(StudyError, match="environment: "):
        sweeping.plan(instances=[{**ENTRY, "env": {"A": "2"}}])
    assert sweeping.plan(instances=[{**ENTRY, "host": "10.1.2.3"}])["waiting"] == 4


def test_another_workload_or_host_is_another_study(sweeping: Sweeping) -> None:
    sweeping.plan()
    with pytest.raises(StudyError, match="host class: 'cpu' there, 'b300' asked"):
        sweeping.plan(platform={"host class": "b300"})
    (sweeping.folder / "nightly.yml").write_text(FILE.format(more_space="").replace("[1, 8]", "[1]"))
    with pytest.raises(StudyError, match=r"levels: \[1, 8\] there, \[1\] asked"):
        sweeping.plan()


def test_a_study_of_another_instance_or_of_a_workload_that_changed(sweeping: Sweeping) -> None:
    sweeping.plan()
    path, workload = sweeping.folder / "nightly.yml", sweeping.folder / "w.yml"
    own = path.read_text()
    path.write_text(own.replace("instance: k26", "instance: k25"))
    with pytest.raises(StudyError, match=r"instance: 'k26' there, 'k25' asked.*give this one another name"):
        sweeping.plan(instances=[{**ENTRY, "name": "k25"}])
    path.write_text(own)
    workload.write_text(workload.read_text().replace("output_length: 8", "output_length: 9"))
    with pytest.raises(StudyError, match=r"workloads: .* there, .* asked"):
        sweeping.plan()
    assert len(sweeping.trials(study="another").planned(check_mode=False)["trials"]) == 5


def test_another_engine_is_another_study(sweeping: Sweeping) -> None:
    sweeping.plan()
    assert sweeping.plan()["waiting"] == 4
    with pytest.raises(StudyError, match="packages: None there, 'aa' asked"):
        sweeping.plan(engine={"packages": "aa"})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        pytest.param({"sweep": ""}, "sweep is required", id="no file"),
        pytest.param({"sweep": "/nowhere.yml"}, "'/nowhere.yml' cannot be read", id="missing file"),
        pytest.param({"storage": ""}, "storage is required", id="no storage"),
        pytest.param(
            {"instances": [{"name": "b"}]},
            "there is no instance 'k26' on this host; its instances: b",
            id="another host",
        ),
    ],
)
def test_bad_options(sweeping: Sweeping, changes: dict[str, t.Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        sweeping.plan(**changes)


def test_an_unknown_workload_is_told(sweeping: Sweeping) -> None:
    path = sweeping.folder / "nightly.yml"
    path.write_text(path.read_text().replace("./w.yml", "fixed-1k"))
    with pytest.raises(ValueError, match="fixed-1k"):
        sweeping.plan()


class Patience:
    """A storage that is away for a while, on a clock that only sleeps move."""

    def __init__(self, away_s: float) -> None:
        self.away_s, self.now = away_s, 0.0
        self.said: list[str] = []

    def call(self) -> dict[str, t.Any]:
        if self.now < self.away_s:
            raise StudyUnavailableError("the study's storage cannot be used")
        return {"done": True}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> dict[str, t.Any]:
        return patiently(self.call, say=self.said.append, monotonic=lambda: self.now, sleep=self.sleep)


def test_a_storage_that_comes_back_costs_no_trial() -> None:
    patience = Patience(60)
    assert patience.run() == {"done": True}
    assert patience.said == ["the study's storage cannot be used; it is tried again for 180 s"]


def test_a_storage_that_stays_away_is_told() -> None:
    patience = Patience(1e9)
    with pytest.raises(StudyUnavailableError):
        patience.run()
    assert 180 <= patience.now < 200


def test_another_ones_trial_is_not_tried_again(sweeping: Sweeping) -> None:
    sweeping.plan()
    patience = Patience(0)
    with pytest.raises(StudyError, match="belongs to nobody"):
        patiently(
            lambda: sweeping.trials().renewed(0), say=patience.said.append, monotonic=lambda: 0.0, sleep=patience.sleep
        )
    assert not patience.said


def test_the_time_of_a_trial_counts_from_the_end_of_the_one_before(sweeping: Sweeping) -> None:
    sweeping.plan()
    first = sweeping.claim()["trial"]
    assert first["since"] == 1_000_000.0, "when the run began"
    sweeping.now += 70
    sweeping.finish(first["number"], 100.0)
    sweeping.now += 5
    assert sweeping.claim()["trial"]["since"] == 1_000_070.0
    assert sweeping.trials().shown()["run_s"] == 60.0
    # Another run, an hour later: what nobody did meanwhile is no trial's time.
    later = sweeping.trials(began=1_003_600.0)
    assert later.claimed()["trial"]["since"] == 1_003_600.0
    assert later.shown()["run_s"] == 0
