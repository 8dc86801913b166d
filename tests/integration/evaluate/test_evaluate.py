# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task as users write it: scripted answers get the known pass@1, scripted divergences their right names."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import typing as t
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _problems
from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import UNIT_PREFIX
from ansible_collections.specdec.serving.plugins.plugin_utils import _record
from ansible_collections.specdec.serving.plugins.plugin_utils._evaluations import SHIPPED
from ansible_collections.specdec.serving.tests.support.observer.task import answer_of

KEY = "sk-planted-key-9"
PROBLEMS = _problems.parse(SHIPPED.read_text(encoding="utf-8"))


def solved(problem: _problems.Problem) -> str:
    """The right answer, as a model writes it."""
    return f"Here is the function:\n\n```python\n{problem.prompt}{problem.canonical_solution}```\n\nIt does what was asked.\n"


def stub(problem: _problems.Problem) -> str:
    return f"```python\n{problem.prompt}    return None\n```\n"


def script(answers: t.Mapping[int, str] | None = None) -> list[dict[str, t.Any]]:
    """Right answers to all problems, but those given by number."""
    given = answers or {}
    return [
        {"match": f"def {problem.entry_point}(", "text": given.get(number, solved(problem))}
        for number, problem in enumerate(PROBLEMS)
    ]


def code(number: int, body: str) -> str:
    problem = PROBLEMS[number]
    return f"```python\n{problem.prompt}{body}\n```\n"


WRONG = {
    0: stub(PROBLEMS[0]),
    3: code(3, "    return ("),
    5: code(5, "    while True:\n        pass"),
    13: code(13, "    return bytearray(8 * 1024 ** 3)"),
    14: code(14, "    return open('/etc/shadow').read()"),
    16: "I would rather not.",
    20: "Let me think. " * 250,
    25: "",
    30: code(30, "    import os\n    os._exit(0)"),
}
VERDICTS = {
    "passed": 27,
    "wrong_answer": 2,
    "syntax_error": 1,
    "timeout": 1,
    "memory": 1,
    "forbidden": 1,
    "truncated": 1,
    "no_code": 2,
}


def test_scripted_answers_get_the_known_share(server: t.Any, task: t.Any, tmp_path: Path) -> None:
    server.start(script(WRONG))
    output, answer = task.run(
        thinking="off", max_tokens=3000, program_timeout=5, results_dir=str(tmp_path / "results"), api_key=KEY
    )
    assert answer["failed"] is False, output
    coding = answer["coding"]
    assert coding["verdicts"] == VERDICTS
    assert (coding["passed"], coding["problems"], coding["pass_at_1"]) == (27, 36, 0.75)
    # Wilson's interval of 27 of 36.
    assert (coding["low"], coding["high"]) == (pytest.approx(0.589, abs=2e-3), pytest.approx(0.862, abs=2e-3))
    assert coding["by_difficulty"]["easy"]["passed"] == 9
    assert coding["loops"] == 1
    verdicts = {one["task_id"]: one["verdict"] for one in answer["outcomes"]}
    assert verdicts["specdec/5"] == "timeout"
    assert f"95 % interval {coding['low']:.3f} to {coding['high']:.3f}" in answer["table"]
    assert "DFLASH" in answer["table"]
    assert KEY not in output
    record = _record.read(answer["record"])
    jsonschema.validate(record, json.loads(_record.SCHEMA_FILE.read_text(encoding="utf-8")))
    assert record["kind"] == "evaluation"
    assert record["results"]["coding"]["passed"] == 27
    assert record["invocation"]["invocation_id"] == answer["invocation_id"]
    lines = server.host.exec(["cat", f"{answer['folder']}/answers.jsonl"]).stdout.splitlines()
    assert len(lines) == 36
    assert server.host.exec(["stat", "-c", "%a %U", answer["folder"]]).stdout.strip() == "700 root"
    left = server.host.exec(["systemctl", "list-units", "--all", "--no-legend", "--plain", f"{UNIT_PREFIX}*"]).stdout
    assert left == ""
    if "memory" not in server.host.exec(["cat", "/sys/fs/cgroup/cgroup.controllers"]).stdout.split():
        assert "MemoryMax" in output


def test_completions(server: t.Any, task: t.Any) -> None:
    answers = {number: problem.canonical_solution + "\n\nprint('more')\n" for number, problem in enumerate(PROBLEMS)}
    server.start(script(answers))
    output, answer = task.run(mode="completion", limit=6)
    assert answer["failed"] is False, output
    assert (answer["coding"]["passed"], answer["coding"]["problems"]) == (6, 6)
    # Spread over the file, so that each difficulty is among them.
    assert set(answer["coding"]["by_difficulty"]) == {"easy", "medium", "hard"}


def test_code_in_the_thinking_does_not_count(server: t.Any, task: t.Any) -> None:
    answers = {
        0: f"<think>{solved(PROBLEMS[0])}</think>I do not know.",
        12: f"<think>maybe this: {stub(PROBLEMS[12])}</think>{solved(PROBLEMS[12])}",
        24: f"<think>{'hm, again. ' * 400}",
    }
    server.start(script(answers), extra="--reasoning-parser kimi_k2")
    output, answer = task.run(limit=3, thinking="on", max_tokens=3500)
    assert answer["failed"] is False, output
    found = {one["task_id"]: one for one in answer["outcomes"]}
    assert found["specdec/0"]["verdict"] == "no_code"
    assert found["specdec/12"]["verdict"] == "passed"
    assert (found["specdec/24"]["verdict"], found["specdec/24"]["loop"]) == ("truncated", True)
    assert found["specdec/24"]["detail"] == "nothing but thinking; raise max_tokens"


def test_a_file_of_users(server: t.Any, task: t.Any, tmp_path: Path) -> None:
    server.start([{"match": "def double", "text": "def double(n):\n    return 2 * n\n"}])
    problem = {
        "task_id": "mine/1",
        "prompt": "def double(n):\n",
        "entry_point": "double",
        "canonical_solution": "    return 2 * n\n",
        "test": "def check(candidate):\n    assert candidate(4) == 8\n",
    }
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(problem) + "\n", encoding="utf-8")
    _output, answer = task.run(problems=str(file))
    assert (answer["coding"]["passed"], answer["coding"]["by_difficulty"]) == (1, {})
    file.write_text(json.dumps(problem) + "\n" + json.dumps({**problem, "test": 7}) + "\n", encoding="utf-8")
    _output, answer = task.run(problems=str(file))
    assert answer["failed"] is True
    assert "mine.jsonl line 2: field 'test' must be text, not 7" in answer["msg"]


def test_progress_is_told_and_slices_go_on(server: t.Any, task: t.Any) -> None:
    # An answer takes some seconds, so that the first slice of 15 s ends before the last answer.
    server.start(script(), decode_step=0.015)
    output, answer = task.run(limit=18, concurrency=2)
    assert (answer["failed"], answer["coding"]["passed"]) == (False, 18), output
    assert answer["elapsed"] > 15
    line = re.search(
        rf"^evaluate \| {re.escape(server.unit)} \| coding \| +(\d+)/18 \| (\d+) passed \| +\d+ s$",
        output,
        re.MULTILINE,
    )
    assert line is not None, output
    assert 0 < int(line[1]) < 18
    assert line[1] == line[2]


def test_check_mode_asks_nothing(server: t.Any, task: t.Any) -> None:
    server.start(script())
    # Its own warm-up.
    before = server.host.journal(server.unit).count("POST /v1/chat")
    _output, answer = task.run("--check")
    assert answer["failed"] is False
    assert answer["would"] == {"problems": 36, "max_tokens": 16384, "parity": "off"}
    assert server.host.journal(server.unit).count("POST /v1/chat") == before


def test_a_server_that_does_not_run_is_told(server: t.Any, task: t.Any) -> None:
    server.start(script())
    server.host.exec(["systemctl", "stop", server.unit])
    _output, answer = task.run()
    assert answer["failed"] is True
    assert f"{server.unit} is inactive (dead): start it" in answer["msg"]


def until(condition: t.Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)


def answers_so_far(server: t.Any) -> int:
    words = f"cat /var/lib/specdec-test/{server.name}/evaluations/*/*/answers.jsonl 2>/dev/null | wc -l"
    return int(server.host.exec(["sh", "-c", words]).stdout)


def module_runs(server: t.Any) -> bool:
    return bool(server.host.exec(["pgrep", "--full", "sglang_evaluate"], check=False).stdout.strip())


def slow(server: t.Any) -> None:
    """A server that gives its first six answers within seconds, and works for minutes at each of the others."""
    server.start(script(dict.fromkeys(range(6, 36), "x = 1\n" * 8000)), decode_step=0.005)


def test_it_ends_with_the_controller(server: t.Any, task: t.Any) -> None:
    slow(server)
    process = task.start(concurrency=2, max_tokens=60000)
    until(lambda: answers_so_far(server) >= 6)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    until(lambda: not module_runs(server), 30)
    left = server.host.exec(["systemctl", "list-units", "--all", "--no-legend", "--plain", f"{UNIT_PREFIX}*"]).stdout
    assert left == ""
    # Its requests ended with it.
    loads = f"curl -s http://127.0.0.1:{server.port}/v1/loads"

    def idle() -> bool:
        answer = json.loads(server.host.exec(["sh", "-c", loads]).stdout)
        return all(load["num_running_reqs"] == 0 for load in answer["loads"])

    until(idle, 30)


def test_a_server_that_dies_in_the_middle_is_named(server: t.Any, task: t.Any) -> None:
    slow(server)
    process = task.start(concurrency=2, max_tokens=60000)
    until(lambda: answers_so_far(server) >= 6)
    server.host.exec(["systemctl", "kill", "--signal=SIGKILL", server.unit])
    output, answer = answer_of(process, timeout=120)
    assert answer["failed"] is True, output
    assert "is not the start any more" in answer["msg"]
    assert "killed by signal 9" in answer["msg"]


@pytest.mark.long("a connection that is cut for half a minute")
def test_a_dropped_connection_loses_no_answer(server: t.Any, task: t.Any) -> None:
    server.start(script(), decode_step=0.005)
    process = task.start(concurrency=2)
    until(lambda: answers_so_far(server) >= 4)
    server.host.exec(["sh", "-c", "pgrep -f '^sshd: deploy' | xargs -r kill -KILL"])
    output, answer = answer_of(process, timeout=150)
    assert answer["failed"] is False, output
    assert "connection lost, trying again" in output
    assert answer["coding"]["passed"] == 36
    lines = server.host.exec(["cat", f"{answer['folder']}/answers.jsonl"]).stdout.splitlines()
    assert len({json.loads(line)["task_id"] for line in lines}) == len(lines) == 36


# Parity

TIE = {"top": {"7": [[-0.69, 11], [-0.73, 12]]}, "tokens": {"7": 11}}
FIRM = {"top": {"3": [[-0.1, 11], [-2.7, 12]]}, "tokens": {"3": 11}}


def prompts(*numbers: int, **entry: t.Any) -> list[dict[str, t.Any]]:
    return [{"match": f"def {PROBLEMS[number].entry_point}(", **entry} for number in numbers]


def parity_options(server: t.Any, **changes: t.Any) -> dict[str, t.Any]:
    return {
        "coding": False,
        "parity": "auto",
        "parity_baseline": f"/var/lib/specdec-test/{server.name}/parity.json",
        "parity_prompts": 12,
        "parity_tokens": 24,
        **changes,
    }


def test_ties_and_mismatches_are_named(server: t.Any, task: t.Any, tmp_path: Path) -> None:
    server.start(prompts(2, 4, **TIE) + prompts(5, **FIRM), speculates=False)
    output, answer = task.run(**parity_options(server))
    assert answer["failed"] is False, output
    assert answer["parity"]["mode"] == "record"
    assert answer["parity"]["floor"]["equal"] == 12

    # The same server with speculation: equal.
    server.start(prompts(2, 4, **TIE) + prompts(5, **FIRM))
    output, answer = task.run(**parity_options(server))
    assert answer["failed"] is False, output
    assert (answer["parity"]["mode"], answer["parity"]["equal"], answer["parity"]["passed"]) == ("compare", 12, True)

    # Two prompts go the other way where it was a tie: still parity.
    server.start(prompts(2, 4, tokens={"7": 12}) + prompts(5, **FIRM))
    output, answer = task.run(**parity_options(server))
    assert answer["failed"] is False, output
    assert (answer["parity"]["ties"], answer["parity"]["mismatches"]) == (2, 0)
    assert [one["gap"] for one in answer["parity"]["differences"]] == [pytest.approx(0.04)] * 2

    # One goes another way where it was none, and one takes a token that was not in question.
    server.start(prompts(2, tokens={"7": 40}) + prompts(5, tokens={"3": 12}) + prompts(4, **TIE))
    output, answer = task.run(**parity_options(server, results_dir=str(tmp_path)))
    assert answer["failed"] is True
    assert answer["msg"].startswith("NO parity: 10 of 12 equal, 0 ties, 2 mismatches")
    found = {one["prompt"]: one for one in answer["parity"]["differences"]}
    assert (found[5]["at"], found[5]["kind"], found[5]["gap"]) == (3, "mismatch", pytest.approx(2.6))
    assert (found[2]["at"], found[2]["kind"], found[2]["gap"]) == (7, "mismatch", None)
    record = _record.read(answer["record"])
    jsonschema.validate(record, json.loads(_record.SCHEMA_FILE.read_text(encoding="utf-8")))
    assert record["results"]["parity"]["mismatches"] == 2


def test_another_backend_is_not_compared(server: t.Any, task: t.Any) -> None:
    server.start(speculates=False, extra="--attention-backend triton")
    _output, answer = task.run(**parity_options(server))
    assert answer["failed"] is False
    server.start(extra="--attention-backend flashinfer")
    _output, answer = task.run(**parity_options(server))
    assert answer["failed"] is True
    assert answer["msg"].startswith("not comparable: attention_backend: 'triton' when the baseline was recorded")


def test_a_comparison_without_a_baseline_says_what_to_do(server: t.Any, task: t.Any) -> None:
    server.start()
    _output, answer = task.run(**parity_options(server))
    assert answer["failed"] is True
    assert "record it first, with the same server without speculation" in answer["msg"]
