# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import argparse
import email.message
import io
import json
import os
import sys
import time
import types
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _bench_driver as driver

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
JOB: dict[str, t.Any] = {
    "kind": "natural",
    "api": "chat",
    "base_url": "http://127.0.0.1:30001",
    "model_path": "/models/tiny",
    "served_model_name": "tiny",
    "tokenizer": "/models/tiny",
    "input_length": None,
    "output_length": None,
    "temperature": 0.0,
    "template_arguments": {},
    "seed": 1,
    "repeats": 2,
    "steady_state_s": 0,
    "levels": [{"concurrency": 2, "requests": 4, "warm_up": 2, "most": 6}],
    "environment": {},
    "lease_s": 60.0,
    "stall_s": 60.0,
}


def parse(version: str, argv: list[str]) -> argparse.Namespace:
    """What the client of a release makes of a command line; its parser is recorded from its wheel."""
    recorded = json.loads((FIXTURES / f"sglang-{version}/client-arguments.json").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser()
    for action in recorded["actions"]:
        if action["action"] == "_HelpAction":
            continue
        options: dict[str, t.Any] = {"dest": action["dest"], "choices": action.get("choices")}
        if action["action"] == "_StoreTrueAction":
            parser.add_argument(*action["flags"], dest=action["dest"], action="store_true")
            continue
        options["type"] = {"int": int, "float": float, "number": float}.get(action.get("type", ""), str)
        parser.add_argument(*action["flags"], nargs=action.get("nargs"), **options)
    return parser.parse_args(argv)


def argv(**changes: t.Any) -> list[str]:
    return driver.argv_of({**JOB, **changes}, 8, 64, seed=1, dataset="/f/prompts.jsonl", output="/f/client.jsonl")


# --- the command line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.10", "0.5.23"])
@pytest.mark.parametrize(
    "job",
    [
        {},
        {"output_length": 256, "template_arguments": {"thinking": True}},
        {"api": "generate"},
        {"kind": "fixed", "api": "generate", "input_length": 1024, "output_length": 1024},
    ],
)
def test_releases_accept_what_we_ask(version: str, job: dict[str, t.Any]) -> None:
    found = parse(version, argv(**job))

    assert (found.num_prompts, found.max_concurrency, found.warmup_requests) == (64, 8, 0)
    assert found.request_rate == float("inf")
    assert found.backend == ("sglang" if job.get("api") == "generate" else "sglang-oai-chat")
    assert found.ready_check_timeout_sec == 0
    assert found.output_details
    assert not found.flush_cache


def test_a_parser_that_is_recorded_refuses_what_the_release_has_not() -> None:
    with pytest.raises(SystemExit):
        parse("0.5.10", ["--temperature", "1"])
    assert parse("0.5.23", ["--temperature", "1"]).temperature == 1


def test_fixed_lengths_are_exact() -> None:
    found = parse("0.5.23", argv(kind="fixed", api="generate", input_length=100, output_length=50))

    assert (found.random_input_len, found.random_output_len, found.random_range_ratio) == (100, 50, 1.0)
    assert found.dataset_name == "random-ids"
    assert found.tokenize_prompt
    assert not found.disable_ignore_eos
    assert found.extra_request_body is None


def test_natural_prompts_respect_the_end_of_text_and_ask_for_counts() -> None:
    found = parse("0.5.23", argv(output_length=77, temperature=0.6, template_arguments={"thinking": False}))
    body = json.loads(found.extra_request_body)

    assert found.disable_ignore_eos
    assert (found.dataset_name, found.dataset_path, found.sharegpt_output_len) == ("openai", "/f/prompts.jsonl", 77)
    assert body == {
        "temperature": 0.6,
        "stream_options": {"include_usage": True},
        "return_spec_tokens_details": True,
        "chat_template_kwargs": {"thinking": False},
    }


def test_a_temperature_of_generate_is_an_argument() -> None:
    assert parse("0.5.23", argv(api="generate", temperature=0.5)).temperature == 0.5
    assert "--temperature" not in argv(api="generate", temperature=0.0)


@pytest.mark.parametrize(
    ("rate", "most", "expected"),
    [(0.0, None, 64), (0.5, None, 64), (10.0, None, 668), (10.0, 480, 480), (0.1, 480, 64)],
)
def test_enough_requests_for_the_steady_state(rate: float, most: int | None, expected: int) -> None:
    assert driver.needed(64, most, steady_s=60, rate=rate, concurrency=8) == expected


# --- what passes by -----------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def output(**fields: t.Any) -> types.SimpleNamespace:
    defaults: dict[str, t.Any] = {"success": True, "latency": 2.0, "ttft": 0.5, "output_len": 5, "prompt_len": 9}
    return types.SimpleNamespace(**{**defaults, "start_time": 101.0, "error": "", **fields})


def passing(chunks: list[tuple[float, t.Any]], **fields: t.Any) -> dict[str, t.Any]:
    """The row of a request whose chunks came at these times."""
    clock = Clock()
    recorder = driver.Recorder(clock)
    clock.now = 101.0
    note = recorder.enter(16)
    driver._current.set(note)
    for at, value in chunks:
        clock.now = at
        recorder.see(value)
    driver._current.set(None)
    recorder.leave(note, output(**fields))
    return recorder.rows()[0]


def native(text: str, tokens: int, finish: t.Any = None, **spec: t.Any) -> dict[str, t.Any]:
    return {"text": text, "meta_info": {"completion_tokens": tokens, "finish_reason": finish, **spec}}


def test_a_native_stream_tells_its_drafts() -> None:
    spec = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [0, 1, 1]}
    found = passing(
        [(101.5, native("a", 1)), (102.0, native("abc", 3)), (103.0, native("abcde", 5, {"type": "length"}, **spec))]
    )

    assert found == {
        "start": 1.0,
        "ttft": 0.5,
        "latency": 2.0,
        "prompt_tokens": 9,
        "output_tokens": 5,
        "asked_tokens": 16,
        "ok": True,
        "error": "",
        "finish": "length",
        "reported": True,
        "chunks": 3,
        "gaps": [0.5, 1.0],
        "verify": 2,
        "correct": 3,
        "histogram": [0, 1, 1],
    }


def test_a_chat_tells_its_drafts_in_an_extra_chunk() -> None:
    def chat(content: str, finish: str | None = None) -> dict[str, t.Any]:
        return {"choices": [{"delta": {"content": content}, "finish_reason": finish}]}

    details = {"spec_verify_ct": 4, "spec_num_correct_drafts": 6, "spec_correct_drafts_histogram": [1, 0, 3]}
    thought = {"choices": [{"delta": {"content": None, "reasoning_content": "hm"}, "finish_reason": None}]}
    found = passing(
        [
            (101.0, chat("")),
            (101.5, thought),
            (101.75, chat("yes")),
            (102.0, chat("", "stop")),
            (102.0, {"choices": [], "sglext": {"spec_tokens_details": details}}),
            (102.0, {"choices": [], "usage": {"completion_tokens": 10}}),
        ],
        output_len=10,
    )

    assert (found["chunks"], found["gaps"], found["finish"]) == (2, [0.25], "stop")
    assert (found["verify"], found["correct"], found["histogram"]) == (4, 6, [1, 0, 3])
    assert (found["output_tokens"], found["reported"]) == (10, True)


@pytest.mark.parametrize(
    "spec",
    [
        {"spec_accept_token_num": 3, "spec_accept_histogram": [0, 1, 1]},
        {"spec_accepted_drafts": 3, "spec_accept_histogram": [0, 1, 1]},
        {"spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [0, 1, 1]},
    ],
)
def test_releases_name_drafts_differently(spec: dict[str, t.Any]) -> None:
    assert driver.drafts({"spec_verify_ct": 2, **spec}) == {"verify": 2, "correct": 3, "histogram": [0, 1, 1]}


def test_an_error_in_the_middle_of_a_stream_is_no_success() -> None:
    found = passing([(101.5, native("a", 1)), (102.0, {"error": {"message": "Too many", "code": 503}})], output_len=16)

    assert not found["ok"]
    assert "Too many" in found["error"]
    assert found["output_tokens"] == 1


def test_answers_without_counts_are_told() -> None:
    assert not passing([(101.5, {"choices": [{"delta": {"content": "x"}}]})])["reported"]


def test_requests_in_flight_are_rows_too() -> None:
    recorder = driver.Recorder(Clock())
    recorder.enter(16)

    assert [(row["ok"], row["error"]) for row in recorder.rows()] == [(False, "unfinished")]


def test_acceptance_and_speed_of_now() -> None:
    clock = Clock()
    recorder = driver.Recorder(clock)
    assert recorder.acceptance() is None
    note = recorder.enter(8)
    driver._current.set(note)
    clock.now = 101.0
    recorder.see(native("a", 1))
    clock.now = 102.0
    recorder.see(native("abcd", 4, spec_verify_ct=2, spec_num_correct_drafts=1))
    recorder.leave(note, output())
    driver._current.set(None)

    assert recorder.rate() == pytest.approx(4 / 2)
    assert recorder.acceptance() == pytest.approx(1.5)
    clock.now = 120.0
    assert recorder.rate() == 0


def test_counters_are_summed_over_labels() -> None:
    text = (FIXTURES / "sglang-0.5.23/standalone-metrics_after.txt").read_text(encoding="utf-8")
    found = driver.counters(text)

    assert found["generation_tokens_total"] == 180
    assert found["num_requests_total"] == 7
    assert found["spec_verify_calls_total"] == 173


class Answers:
    """An opener that gives answers in turn, and notes what it was asked."""

    def __init__(self, *answers: tuple[int, str] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, str | None]] = []

    def __call__(self, request: urllib.request.Request, timeout: float) -> t.Any:
        assert timeout > 0
        self.asked.append((request.get_method(), request.full_url, request.get_header("Authorization")))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, text = answer
        if status != 200:
            raise urllib.error.HTTPError(
                request.full_url, status, "", email.message.Message(), io.BytesIO(text.encode())
            )
        reply = io.BytesIO(text.encode())
        reply.status = status  # type: ignore[attr-defined]  # as an HTTPResponse has it
        return reply


def asking(*answers: tuple[int, str] | Exception, admin: str = "") -> tuple[driver.Server, Answers]:
    server = driver.Server("http://h:1", "sk-key", admin)
    opener = Answers(*answers)
    server._open = t.cast("t.Any", opener)
    return server, opener


@pytest.mark.parametrize(("admin", "key"), [("", "Bearer sk-key"), ("sk-admin", "Bearer sk-admin")])
def test_the_cache_is_flushed_with_the_right_key(admin: str, key: str) -> None:
    server, opener = asking((200, "Cache flushed.\n"), admin=admin)

    assert server.flush()["status"] == 200
    assert opener.asked == [("POST", "http://h:1/flush_cache?timeout=60", key)]


def test_a_busy_server_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.1, 1.0, 2.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    server, opener = asking((400, "busy"), (400, "busy"), (400, "Timed out"))

    assert server.flush(2) == {"status": 400, "seconds": 2.5, "answer": "Timed out"}
    assert len(opener.asked) == 3


def test_a_server_that_is_gone_is_not_flushed() -> None:
    server, _opener = asking(ConnectionRefusedError("refused"))

    assert server.flush()["status"] == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, '# HELP sglang:x\nsglang:num_requests_total{a="b"} 3.0\n'), {"num_requests_total": 3.0}),
        ((200, "sglang:other 3.0\n"), {}),
        ((404, "Not Found"), {"problem": "/metrics answered 404"}),
        (ConnectionRefusedError("refused"), {"problem": "ConnectionRefusedError: refused"}),
    ],
)
def test_metrics(answer: tuple[int, str] | Exception, expected: dict[str, t.Any]) -> None:
    assert asking(answer)[0].metrics() == expected


# --- the whole, with a client that only looks like SGLang's -----------------------------------------------------------------------

CLIENT = """
import argparse, asyncio, json, os, types
from dataclasses import dataclass, field

@dataclass
class Row:
    prompt: object
    prompt_len: int = 3
    text_prompt_len: int = 3
    output_len: int = 16
    extra_request_body: dict = field(default_factory=lambda: {"x": 1})

class Tokenizer:
    def apply_chat_template(self, messages, **options):
        return [len(messages[0]["content"]), int(bool(options.get("thinking")))]

async def request(request_func_input, pbar=None):
    body = {"text": "ab", "meta_info": {"completion_tokens": 16, "finish_reason": {"type": "stop"},
            "spec_verify_ct": 8, "spec_num_correct_drafts": 8}, "prompt": request_func_input.prompt}
    json.loads(json.dumps(body))
    SEEN.append(request_func_input.prompt)
    if os.environ.get("FAKE_FAILS"):
        return types.SimpleNamespace(success=False, latency=0.0, ttft=0.0, output_len=0, prompt_len=0, start_time=0.0,
                                     error="ClientConnectorError: refused")
    return types.SimpleNamespace(success=True, latency=1.0, ttft=0.1, output_len=16, prompt_len=3, start_time=0.0, error="")

SEEN = []
ASYNC_REQUEST_FUNCS = {"sglang": request, "sglang-oai-chat": request}

def get_dataset(args, tokenizer, model_id=None):
    with open(args.dataset_path) as file:
        return [Row(json.loads(line)["messages"]) for line in file][: args.num_prompts]

def run_benchmark(args):
    rows = get_dataset(args, Tokenizer(), "m")
    async def main():
        call = ASYNC_REQUEST_FUNCS[args.backend]
        return await asyncio.gather(*(call(request_func_input=row) for row in rows))
    outputs = asyncio.run(main())
    with open(args.output_file, "a") as file:
        file.write(json.dumps({"duration": 2.0, "output_throughput": 32.0, "server_info": {"api_key": "secret"},
                               "generated_texts": ["x"], "errors": [""]}) + "\\n")
"""
PARSER = """
    parser = argparse.ArgumentParser()
    for name in ("--backend", "--dataset-path", "--output-file"):
        parser.add_argument(name)
    parser.add_argument("--num-prompts", type=int)
    args, _rest = parser.parse_known_args()
    run_benchmark(args)
"""


class Server:
    def __init__(self) -> None:
        self.flushed = 0

    def flush(self, _seconds: int = 60) -> dict[str, t.Any]:
        self.flushed += 1
        return {"status": 200, "seconds": 0.0, "answer": ""}

    def metrics(self) -> dict[str, t.Any]:
        return {"generation_tokens_total": 1.0}


def take_sglang() -> dict[str, types.ModuleType]:
    """Remove whatever is imported as sglang, and give it."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "sglang"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Path]:
    for name, value in (("job.json", JOB), ("keys.json", {"api_key": "sk-key-key", "admin_api_key": ""})):
        (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
    for name, count in (("prompts", 6), ("warm_up", 2)):
        lines = [json.dumps({"messages": [{"role": "user", "content": name + "!" * n}]}) for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    # Tests of the stand-in may have imported that one.
    others = take_sglang()
    monkeypatch.setattr(driver, "_keys", [])
    yield tmp_path
    take_sglang()
    sys.modules.update(others)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, new: bool, chat: bool = True) -> None:
    package = folder / "site/sglang"
    (package / "srt/entrypoints/openai").mkdir(parents=True)
    (package / "srt/entrypoints/openai/protocol.py").write_text(
        "return_spec_tokens_details = 1" if chat else "", encoding="utf-8"
    )
    (package / "__init__.py").touch()
    if new:
        (package / "benchmark").mkdir()
        (package / "benchmark/__init__.py").touch()
        (package / "benchmark/serving.py").write_text(f"{CLIENT}\ndef cli_main():{PARSER}", encoding="utf-8")
    else:
        # 0.5.10 to 0.5.14 have the package as well, without the client.
        (package / "benchmark").mkdir()
        (package / "benchmark/__init__.py").touch()
        (package / "bench_serving.py").write_text(f'{CLIENT}\nif __name__ == "__main__":{PARSER}', encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder / "site"))


def runs(folder: Path) -> list[dict[str, t.Any]]:
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("new", [True, False])
def test_all_runs_of_a_job(folder: Path, monkeypatch: pytest.MonkeyPatch, new: bool) -> None:
    install(folder, monkeypatch, new=new)
    work = driver.Driver(str(folder))
    server = Server()
    work.server = t.cast("driver.Server", server)
    work.measure()

    found = runs(folder)
    assert [(run["kind"], run["concurrency"], run["repeat"], len(run["rows"])) for run in found] == [
        ("warm_up", 2, 0, 2),
        ("measured", 2, 1, 4),
        ("measured", 2, 2, 4),
    ]
    # Before each run, and after it.
    assert server.flushed == 6
    assert {row["verify"] for run in found for row in run["rows"]} == {8}
    assert found[1]["client"] == {"duration": 2.0, "output_throughput": 32.0}
    assert json.loads((folder / "end.json").read_text(encoding="utf-8"))["reason"] == "done"
    assert not (folder / "keys.json").exists()
    assert os.environ["OPENAI_API_KEY"] == "sk-key-key"
    assert (work.progress()["runs_done"], work.progress()["runs"]) == (3, 3)


def test_the_chat_template_is_applied_here_where_a_chat_tells_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.json").write_text(json.dumps({**JOB, "template_arguments": {"thinking": True}}), encoding="utf-8")
    install(folder, monkeypatch, new=True, chat=False)
    work = driver.Driver(str(folder))
    work.server = t.cast("driver.Server", Server())
    work.measure()

    assert {run["api"] for run in runs(folder)} == {"generate"}
    assert work.client is not None
    assert work.client.module.SEEN[:2] == [[len("warm_up"), 1], [len("warm_up") + 1, 1]]


def test_nothing_more_is_asked_of_a_server_that_answers_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(folder, monkeypatch, new=True)
    monkeypatch.setenv("FAKE_FAILS", "1")
    work = driver.Driver(str(folder))
    work.server = t.cast("driver.Server", Server())
    with pytest.raises(
        driver.Refused, match="no request of the client succeeded with 2 in flight: ClientConnectorError"
    ):
        work.measure()

    assert [run["kind"] for run in runs(folder)] == ["warm_up"]


def test_a_refusal_is_told_in_its_own_words() -> None:
    words = "Requested token count exceeds the model's maximum context length of 2048 tokens. " * 3
    refusal = 'Bad Request: {"object":"error","message":' + json.dumps(words) + ',"type":"BadRequestError","code":400}'
    assert driver.told(refusal) == words
    for text in ("ClientConnectorError: refused", "{", 'x {"code": 400}', '{"message": ' + "[" * 100_000, "x {} y", ""):
        assert driver.told(text) == text


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (driver.Refused("it answers nothing"), {"reason": "refused", "detail": "it answers nothing"}),
        (RuntimeError("torch"), {"reason": "failed", "detail": "RuntimeError: torch"}),
    ],
)
def test_what_ended_it_is_written_down(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, end: dict[str, str]
) -> None:
    def measure(_self: driver.Driver) -> None:
        raise error

    monkeypatch.setattr(driver.Driver, "measure", measure)
    monkeypatch.setattr(driver.Driver, "watch", lambda _self: None)
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    monkeypatch.setattr("sys.argv", ["driver.py", str(folder)])
    monkeypatch.chdir(folder)
    driver.main()

    assert json.loads((folder / "end.json").read_text(encoding="utf-8")) == end


def test_a_release_without_a_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "site/sglang").mkdir(parents=True)
    (folder / "site/sglang/__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder / "site"))
    with pytest.raises(driver.Refused, match=r"neither sglang\.benchmark\.serving nor sglang\.bench_serving"):
        driver.load_client()


class Ended(Exception):
    pass


@pytest.mark.parametrize(
    ("age", "still", "sent", "reason"),
    [(61, 0, 1, "abandoned"), (0, 61, 1, "stalled"), (0, driver._PREPARING_S + 1, 0, "stalled")],
)
def test_it_ends_by_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch, age: float, still: float, sent: int, reason: str
) -> None:
    install(folder, monkeypatch, new=True)
    work = driver.Driver(str(folder))
    work.client = driver.load_client()
    clock = Clock()
    recorder = work.client.recorder = driver.Recorder(clock)
    if sent:
        recorder.enter(4)
    work.run_head = {"kind": "measured", "concurrency": 2, "repeat": 1, "asked": 4}
    (folder / "alive").touch()
    told = os.stat(folder / "alive").st_mtime
    monkeypatch.setattr(time, "time", lambda: told + age)
    clock.now += still

    def end(_code: int) -> t.NoReturn:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended):
        work.watch()

    assert json.loads((folder / "end.json").read_text(encoding="utf-8"))["reason"] == reason
    assert [(run["ended"], len(run["rows"])) for run in runs(folder)] == [(reason, sent)]
    assert json.loads((folder / "progress.json").read_text(encoding="utf-8"))["in_flight"] == sent


def test_a_client_that_prepares_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(folder, monkeypatch, new=True)
    work = driver.Driver(str(folder))
    work.client = driver.load_client()
    clock = Clock()
    work.client.recorder = driver.Recorder(clock)
    (folder / "alive").touch()
    clock.now += driver._PREPARING_S - 1

    def over(_seconds: float) -> None:
        work.over = True

    monkeypatch.setattr(time, "sleep", over)
    work.watch()
    assert not (folder / "end.json").exists()


@pytest.mark.parametrize(
    "chunk",
    [
        {"text": "b", "meta_info": {"completion_tokens": float("nan")}},
        {"text": "b", "meta_info": {"completion_tokens": "many"}},
        {"choices": ["b"]},
        {"choices": 5},
        {"sglext": "b"},
        {"object": "error"},
    ],
)
def test_an_answer_that_makes_no_sense_is_no_success(chunk: dict[str, t.Any]) -> None:
    found = passing([(101.5, native("a", 1)), (102.0, chunk)])
    assert not found["ok"]
    assert "makes no sense" in found["error"]


@pytest.mark.parametrize(
    "fields",
    [
        {"output_len": float("nan")},
        {"output_len": -1},
        {"latency": float("inf")},
        {"ttft": -0.5},
        {"ttft": 3.0},
        {"latency": 0.0},
        {"latency": "2"},
        {"prompt_len": [9]},
    ],
)
def test_times_and_counts_that_make_no_sense_are_no_success(fields: dict[str, t.Any]) -> None:
    found = passing([(101.5, native("a", 1))], **fields)
    assert not found["ok"]
    assert found["error"] == "times or counts of the client that make no sense"


def test_numbers_of_numpy_are_numbers() -> None:
    class Number:
        def __float__(self) -> float:
            return 9.0

        def __int__(self) -> int:
            return 9

    found = passing([(101.5, native("a", 1))], prompt_len=Number(), output_len=Number(), latency=Number())
    assert (found["ok"], found["prompt_tokens"], found["output_tokens"], found["latency"]) == (True, 9, 9, 9.0)


@pytest.mark.parametrize(
    "spec",
    [
        "x",
        [5],
        {"spec_verify_ct": "12", "spec_num_correct_drafts": "3", "spec_correct_drafts_histogram": "01"},
        {"spec_verify_ct": -1, "spec_num_correct_drafts": float("nan"), "spec_correct_drafts_histogram": [1, None]},
        {"spec_verify_ct": True, "spec_num_correct_drafts": [1], "spec_correct_drafts_histogram": {"0": 1}},
    ],
)
def test_drafts_of_other_types_are_none(spec: t.Any) -> None:
    assert driver.drafts(spec) == {"verify": None, "correct": None, "histogram": None}


def test_who_watches_goes_on_whatever_cannot_be_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def progress(_self: driver.Driver) -> t.NoReturn:
        raise TypeError("unsupported operand")

    monkeypatch.setattr(driver.Driver, "progress", progress)
    driver.Driver(str(folder)).tell()


def test_counters_that_are_none_are_left_out() -> None:
    text = 'sglang:generation_tokens_total{a="1"} NaN\nsglang:generation_tokens_total{a="2"} 3\nsglang:prompt_tokens_total +Inf\n'
    assert driver.counters(text) == {"generation_tokens_total": 3.0}


@pytest.mark.parametrize("text", ["[1]\n", "null\n", '{"cut', "", "[" * 100_000])
def test_a_result_of_the_client_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "client.jsonl").write_text(text, encoding="utf-8")
    assert driver.Driver._client_result(str(tmp_path / "client.jsonl")) is None


def test_no_half_of_a_key_is_told(folder: Path) -> None:
    # So that its end stands where the text is cut.
    text = "no such key: sk-key-key" + "." * (driver._ERROR_SIGNS - 4)
    assert passing([], success=False, error=text)["error"].startswith("-key.")

    driver.Driver(str(folder))
    assert passing([], success=False, error=text)["error"].startswith("****.")
    asked, _answers = asking((401, "." * 115 + " sk-key-key"))
    assert asked.flush()["answer"] == "." * 115 + " ****"
