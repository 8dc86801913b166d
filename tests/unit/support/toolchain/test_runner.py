# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.toolchain import runner
from ansible_collections.specdec.serving.tests.support.toolchain.runner import Count, Step

JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="good"/>
<testcase classname="a" name="bad"><failure message="x"/></testcase>
<testcase classname="a" name="broken"><error message="x"/></testcase>
<testcase classname="a" name="left"><skipped message="no such kernel"/></testcase>
</testsuite></testsuites>"""
WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({text!r}); sys.exit({status})"


def step(name: str, code: str = "", **more: t.Any) -> Step:
    return Step(name=name, argv=(sys.executable, "-c", code), **more)


def junit_step(name: str, text: str, status: int, **more: t.Any) -> Step:
    return Step(name=name, argv=(sys.executable, "-c", WRITES.format(text=text, status=status), "{junit}"), **more)


@dataclasses.dataclass
class Ran:
    results: list[runner.Result]
    lines: list[str]

    def count(self, name: str) -> Count:
        return next(result.count for result in self.results if result.step.name == name)

    def why(self, name: str) -> str:
        return next(result.why for result in self.results if result.step.name == name)


@pytest.fixture
def run(tmp_path: Path) -> t.Callable[..., Ran]:
    def _run(*steps: Step, slots: int = 2, **more: t.Any) -> Ran:
        lines: list[str] = []
        work = runner.Runner(root=tmp_path, logs=tmp_path / "logs", slots=slots, environ={}, say=lines.append, **more)
        return Ran(work.run(steps), lines)

    return _run


def test_count_junit_counts_each_kind() -> None:
    count = runner.count_junit(JUNIT)
    assert count == Count(
        passed=1,
        failed=2,
        skipped=1,
        reasons={"no such kernel": 1},
        failures=("a::bad", "a::broken"),
        said={"a::bad": "x", "a::broken": "x"},
    )
    assert count.summary() == "1 passed, 2 failed, 1 skipped"


def test_count_junit_takes_the_last_attempt() -> None:
    text = """<t><testcase name="late"/><testcase name="late"/><testcase name="bad"/><testcase name="bad"><failure message="x"/></testcase></t>"""
    assert runner.count_junit(text) == Count(passed=1, failed=1, failures=("bad",), said={"bad": "x"}, again=("late",))


def test_counts_add_up() -> None:
    left = Count(passed=1, skipped=2, reasons={"a": 1, "b": 1})
    right = Count(failed=1, skipped=1, reasons={"b": 1}, failures=("x",))
    assert left + right == Count(passed=1, failed=1, skipped=3, reasons={"a": 1, "b": 2}, failures=("x",))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        pytest.param([step("a"), step("a")], "two steps are called 'a'", id="name twice"),
        pytest.param([step("a", needs=("b",)), step("b")], "needs \\['b'\\]", id="need comes later"),
        pytest.param([step("a", needs=("a",))], "needs \\['a'\\]", id="needs itself"),
        pytest.param([step("a", slots=3)], "takes 3 slots of 2", id="never fits"),
        pytest.param([step("a", slots=0)], "takes 0 slots of 2", id="no slot"),
    ],
)
def test_steps_that_contradict_themselves_are_refused(steps: list[Step], message: str) -> None:
    with pytest.raises(runner.StepsError, match=message):
        runner.check_steps(steps, slots=2)


def test_a_plain_step_counts_as_one(run: t.Callable[..., Ran]) -> None:
    ran = run(step("good"), step("bad", "import sys; print('the reason'); sys.exit(4)"))
    assert ran.count("good") == Count(passed=1)
    assert ran.count("bad") == Count(failed=1, failures=("bad",))
    assert ran.why("bad") == "exit status 4"
    assert "  | the reason" in ran.lines


@pytest.mark.parametrize(
    ("text", "status", "count", "why"),
    [
        pytest.param("<t><testcase name='a'/></t>", 0, Count(passed=1), "", id="passed"),
        pytest.param(
            "<t><testcase name='a'><failure/></testcase></t>",
            1,
            Count(failed=1, failures=("a",)),
            "exit status 1",
            id="failed",
        ),
        pytest.param(
            "<t><testcase name='a'/></t>",
            2,
            Count(passed=1, failed=1, failures=("s: exit status 2",)),
            "exit status 2",
            id="crashed after its tests",
        ),
        pytest.param("<t/>", 0, Count(failed=1, failures=("s: ran no test",)), "ran no test", id="no test"),
    ],
)
def test_a_step_with_a_junit_file(run: t.Callable[..., Ran], text: str, status: int, count: Count, why: str) -> None:
    ran = run(junit_step("s", text, status))
    assert ran.count("s") == count
    assert ran.why("s") == why


def test_a_junit_file_of_an_earlier_run_does_not_count(run: t.Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "s.xml").write_text("<t><testcase name='old'/></t>")
    ran = run(Step(name="s", argv=(sys.executable, "-c", "", "{junit}")))
    assert ran.count("s").passed == 0
    assert ran.count("s").failed == 1
    assert "no readable result" in ran.why("s")


@pytest.mark.parametrize(("status", "passed", "failed"), [(0, 2, 0), (1, 1, 1)], ids=["passed", "failed"])
def test_a_command_can_count_beside_its_tests(run: t.Callable[..., Ran], status: int, passed: int, failed: int) -> None:
    ran = run(junit_step("s", "<t><testcase name='a'/></t>", status, counts_itself=True))
    assert (ran.count("s").passed, ran.count("s").failed) == (passed, failed)


def test_a_preparation_counts_only_when_it_fails(run: t.Callable[..., Ran]) -> None:
    ran = run(
        step("a", preparation=True), step("b", needs=("a",)), step("c", "import sys; sys.exit(1)", preparation=True)
    )
    assert [ran.count(name) for name in "abc"] == [Count(), Count(passed=1), Count(failed=1, failures=("c",))]


def test_needs_come_first_and_a_failed_one_fails_what_needs_it(run: t.Callable[..., Ran]) -> None:
    ran = run(
        step("a", "import sys; sys.exit(1)"), step("b", needs=("a",)), step("c", needs=("b",)), step("d"), slots=1
    )
    assert [result.step.name for result in ran.results] == ["a", "b", "c", "d"]
    assert ran.why("b") == "not run: needs a"
    assert ran.why("c") == "not run: needs b"
    assert ran.count("c").failed == 1
    assert ran.count("d") == Count(passed=1)


def test_a_skip_tells_its_reason_and_skips_what_needs_it(run: t.Callable[..., Ran]) -> None:
    code = "import sys; print('SKIPPED a: no Python 3.9'); print('  more'); sys.exit(3)"
    ran = run(step("a", code, may_skip=True), step("b", needs=("a",)))
    assert ran.count("a") == Count(skipped=1, reasons={"SKIPPED a: no Python 3.9": 1})
    assert ran.count("b") == Count(skipped=1, reasons={"b: not run: needs a": 1})


def test_only_a_step_that_may_skip_can_skip(run: t.Callable[..., Ran]) -> None:
    assert run(step("a", "import sys; sys.exit(3)")).count("a").failed == 1


def test_tests_skipped_in_part_do_not_hold_back_others(run: t.Callable[..., Ran]) -> None:
    text = "<t><testcase name='a'/><testcase name='b'><skipped message='x'/></testcase></t>"
    ran = run(junit_step("a", text, 0), step("b", needs=("a",)))
    assert ran.count("b") == Count(passed=1)


def test_a_step_past_its_limit_is_stopped_with_what_it_started(run: t.Callable[..., Ran], tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "pathlib.Path('pid').write_text(str(child.pid))\n"
        "child.wait()"
    )
    ran = run(step("a", code, limit_s=0.5))
    assert ran.why("a") == "stopped after its limit of 0 s"
    assert ran.count("a").failed == 1
    state = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_has_not_ended_when_the_time_is_up_fails(run: t.Callable[..., Ran]) -> None:
    ran = run(step("quick"), step("slow", "import time; time.sleep(60)"), step("next"), slots=1, limit_s=1.0)
    assert [ran.count(name).failed for name in ("quick", "slow", "next")] == [0, 1, 1]
    assert ran.why("slow") == "stopped after the limit of 1 s for all steps"
    assert ran.why("next") == "not run: the limit of 1 s for all steps has passed"


def test_independent_steps_run_side_by_side(run: t.Callable[..., Ran], tmp_path: Path) -> None:
    # Each opens its end of a pipe for the other: alone, neither would come to its end.
    import os

    os.mkfifo(tmp_path / "pipe")
    ran = run(step("a", "open('pipe', 'w').write('x')", limit_s=20), step("b", "open('pipe').read()", limit_s=20))
    assert [ran.count(name).passed for name in ("a", "b")] == [1, 1]


@pytest.mark.parametrize(
    ("counts", "good"),
    [
        ([Count(passed=2), Count(skipped=1, reasons={"r": 1})], True),
        ([Count(passed=2), Count(failed=1, failures=("x",))], False),
        ([Count(skipped=1, reasons={"r": 1})], False),
    ],
    ids=["passed", "failed", "nothing passed"],
)
def test_report_ends_with_the_summary(counts: list[Count], good: bool, tmp_path: Path) -> None:
    results = [
        runner.Result(step=step(str(number)), count=count, status=0, elapsed_s=1.0, log=tmp_path)
        for number, count in enumerate(counts)
    ]
    lines: list[str] = []
    assert runner.report(results, say=lines.append, elapsed_s=61.4, seed=7) is good
    total = sum(counts, Count())
    assert lines[-2:] == ["seed 7, 61 s", total.summary()]
    assert all(f"  {number} x {reason}" in lines for reason, number in total.reasons.items())
    assert all(f"  {name}" in lines for name in total.failures)


def test_what_passed_only_when_run_once_more_is_told(run: t.Callable[..., Ran]) -> None:
    text = '<t><testcase name="late"/><testcase name="late"/></t>'
    said = "==== rerun test summary info ====\nRERUN late - the reason"
    code = f"print({said!r}); " + WRITES.format(text=text, status=0)
    ran = run(Step(name="s", argv=(sys.executable, "-c", code, "{junit}")))
    assert ran.count("s") == Count(passed=1, again=("late",))
    assert "  | RERUN late - the reason" in ran.lines
    lines: list[str] = []
    assert runner.report(ran.results, say=lines.append, elapsed_s=1.0, seed=7)
    assert lines[lines.index("failed at first, and passed when run once more:") + 1] == "  late"


def test_report_says_why_in_few_lines() -> None:
    said = "\n".join(f"line {number}" for number in range(100))
    count = Count(failed=2, failures=("x", "y"), said={"x": said, "y": "short"})
    result = runner.Result(step=step("s"), count=count, status=1, elapsed_s=1.0, log=Path("s.log"))
    lines: list[str] = []
    runner.report([result], say=lines.append, elapsed_s=1.0, seed=7)
    told = lines[lines.index("  x") + 1 : lines.index("  y")]
    assert len(told) == 2 * runner.SAID_LINES + 1
    assert (told[0], told[-1]) == ("    | line 0", "    | line 99")
    assert lines[lines.index("  y") + 1] == "    | short"
