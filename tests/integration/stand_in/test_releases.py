# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-in as older releases: what they log, answer and do otherwise than 0.5.23.

There is no recording of them: what is asked for here was read from the source of their wheels.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import typing as t
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.stand_in import build
from ansible_collections.specdec.serving.tests.support.stand_in.harness import Factory, StandIn

FIXTURES = Path(__file__).resolve().parents[2] / "unit" / "fixtures"
FIRED_UP = "The server is fired up and ready to roll!"
EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
EAGLE += ["--speculative-num-draft-tokens", "4", "--speculative-draft-model-path", "DRAFT"]
DFLASH = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "DRAFT"]
SPECULATION = {"0.4.6": EAGLE, "0.5.9": EAGLE, "0.5.12": DFLASH, "0.5.23": DFLASH}
# All but the warm-up, in no time where the scale is 1.
STEPS = ["imports", "rank_imports", "init_parallel", "load_target", "load_draft", "kv_cache", "capture"]
STEPS += ["scheduler_ready", "bind", "warm_up_poll"]
GENERATE = {"text": "Hello", "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}}


@pytest.fixture
def stand_in(models: Path, tmp_path: Path) -> t.Iterator[Factory]:
    """From the source tree, which holds all profiles."""
    factory = Factory(build.SOURCES, models, tmp_path, sys.executable)
    yield factory
    factory.close()


def start(stand_in: Factory, release: str, *words: str, **options: t.Any) -> StandIn:
    return stand_in.start(*SPECULATION[release], *words, model="stand-in-target", STAND_IN_RELEASE=release, **options)


def by_rank(text: str) -> dict[str, list[str]]:
    """The lines of each process, without figures: between the processes the order is chance."""
    found: dict[str, list[str]] = {}
    for line in text[: text.index(FIRED_UP)].splitlines():
        # A progress bar that is not at its end has no newline before the next line.
        match = re.search(r"\[[0-9-]+ [0-9:.]+((?: [A-Z]+\d+)*)\] ", line)
        if match and "server_args=" not in line:
            figures = re.sub(r"-?\d+(\.\d+)?", "N", line[match.end() :])
            found.setdefault(match.group(1), []).append(re.sub(r"\[N(?:, N)*\]", "[N]", figures))
    return found


@pytest.mark.parametrize(
    ("release", "name"),
    [("0.4.6", "startup-eagle.log"), ("0.5.9", "startup-eagle.log"), ("0.5.12", "startup-dflash.log")],
)
def test_the_log_is_that_of_the_fixture(stand_in: Factory, release: str, name: str) -> None:
    ep = [] if release == "0.4.6" else ["--ep-size", "8"]
    server = start(stand_in, release, "--tp-size", "8", *ep)
    server.wait_ready()
    theirs = by_rank((FIXTURES / f"sglang-{release}" / name).read_text(encoding="utf-8"))
    ours = by_rank(server.log())
    assert len(ours) == 9
    assert ours == theirs


@pytest.mark.parametrize(
    ("release", "there", "missing"),
    [
        pytest.param(
            "0.4.6",
            ["/get_model_info", "/get_server_info", "/health", "/health_generate", "/v1/models"],
            ["/model_info", "/server_info", "/ready", "/v1/loads", "/get_load"],
            id="0.4.6",
        ),
        pytest.param(
            "0.5.9",
            ["/model_info", "/get_model_info", "/server_info", "/get_server_info", "/get_load", "/v1/loads"],
            ["/ready"],
            id="0.5.9",
        ),
        pytest.param("0.5.12", ["/model_info", "/server_info", "/get_load", "/v1/loads"], ["/ready"], id="0.5.12"),
        pytest.param("0.5.23", ["/model_info", "/server_info", "/ready", "/v1/loads"], ["/get_load"], id="0.5.23"),
    ],
)
def test_endpoints(stand_in: Factory, release: str, there: list[str], missing: list[str]) -> None:
    server = start(stand_in, release)
    server.wait_ready()
    assert {path: server.ask(path).status for path in there} == dict.fromkeys(there, 200)
    assert {path: server.ask(path).status for path in missing} == dict.fromkeys(missing, 404)
    info = server.ask("/get_server_info").json()
    assert info["version"] == release
    assert ("startup_time" in info, "launch_command" in info) == (release == "0.5.23", release == "0.5.23")
    assert ("internal_states" in info) is (release != "0.4.6")
    assert "last_gen_throughput" in (info if release == "0.4.6" else info["internal_states"][0])


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("0.4.6", set()),
        ("0.5.9", {"spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram", "spec_verify_ct"}),
        ("0.5.12", {"spec_accepted_drafts", "spec_num_correct_drafts", "spec_verify_ct"}),
        ("0.5.23", {"spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_verify_ct"}),
    ],
)
def test_figures_of_speculation(stand_in: Factory, release: str, names: set[str]) -> None:
    server = start(stand_in, release)
    server.wait_ready()
    meta = server.ask("/generate", GENERATE).json()["meta_info"]
    assert meta["completion_tokens"] == 40
    told = {key for key in meta if key.startswith("spec_")}
    assert names <= told
    assert bool(told) is bool(names)


@pytest.mark.parametrize("release", ["0.4.6", "0.5.9", "0.5.12", "0.5.23"])
def test_health_while_it_warms_up(stand_in: Factory, release: str) -> None:
    """In 0.4.6 it says nothing: 200 as soon as the port is open."""
    server = start(stand_in, release, times={**dict.fromkeys(STEPS, 0.0), "warm_up": 3.0}, scale=1.0)
    server.wait_for_event("port_bound")
    assert server.ask("/v1/models").status == 200
    assert server.ask("/health").status == (200 if release == "0.4.6" else 503)
    assert server.truth("ready") == []


@pytest.mark.parametrize(
    ("release", "words", "text"),
    [
        pytest.param("0.4.6", ["--speculative-algorithm", "DFLASH"], "invalid choice: 'DFLASH'", id="0.4.6 DFLASH"),
        pytest.param("0.5.9", ["--speculative-algorithm", "DFLASH"], "invalid choice: 'DFLASH'", id="0.5.9 DFLASH"),
        pytest.param("0.4.6", ["--config", "x.yaml"], "unrecognized arguments: --config x.yaml", id="0.4.6 --config"),
        pytest.param("0.5.12", ["--cuda-graph-backend-decode", "disabled"], "unrecognized arguments", id="0.5.12"),
        pytest.param("0.5.23", ["--disable-piecewise-cuda-graph"], "unrecognized arguments", id="0.5.23"),
    ],
)
def test_arguments_of_other_releases_are_refused(stand_in: Factory, release: str, words: list[str], text: str) -> None:
    server = stand_in.start(*words, STAND_IN_RELEASE=release)
    assert server.exit() == 2
    assert text in server.log()
    prog = "launch_server.py" if release in ("0.4.6", "0.5.9") else "sglang serve"
    assert f"{prog}: error: " in server.log()


def test_an_unknown_release_is_told(stand_in: Factory) -> None:
    server = stand_in.start(STAND_IN_RELEASE="0.4.1")
    assert server.exit() == 1
    assert "no profile of release '0.4.1' here: there are" in server.log()


@pytest.mark.parametrize("release", ["0.4.6", "0.5.9", "0.5.12", "0.5.23"])
def test_a_scheduler_killed_while_serving(stand_in: Factory, release: str) -> None:
    """Before there was a watchdog the server stayed up, and answered nobody."""
    server = start(stand_in, release)
    server.wait_ready()
    os.kill(server.schedulers()[0], signal.SIGKILL)
    if release in ("0.5.12", "0.5.23"):
        assert server.exit() == -signal.SIGKILL
        assert "crashed with exit code -9. Triggering SIGQUIT for cleanup..." in server.log()
        return
    if release == "0.4.6":
        server.wait_for_log("Child process unexpectedly failed with an exit code 9. pid=")
    assert server.ask("/v1/models").status == 200
    with pytest.raises(OSError):
        server.ask("/generate", GENERATE, timeout=1.0)
    assert server.process.poll() is None


@pytest.mark.parametrize(("release", "status"), [("0.4.6", -9), ("0.5.9", -9), ("0.5.12", -9), ("0.5.23", 0)])
def test_how_a_drain_ends(stand_in: Factory, release: str, status: int) -> None:
    server = start(stand_in, release)
    server.wait_ready()
    server.process.terminate()
    assert server.exit() == status
    assert re.search(r"Gracefully exiting\.\.\. [Rr]emaining number of requests 0", server.log())


@pytest.mark.parametrize("release", ["0.4.6", "0.5.9", "0.5.12", "0.5.23"])
def test_paths_that_need_no_key(stand_in: Factory, release: str) -> None:
    server = start(stand_in, release, "--api-key", "sk-test-0001", "--enable-metrics")
    server.wait_ready()
    paths = ("/health", "/metrics", "/v1/models", "/ready")
    statuses = Counter({path: server.ask(path).status for path in paths})
    ready = 200 if release == "0.5.23" else 401
    assert statuses == {"/health": 200, "/metrics": 200, "/v1/models": 401, "/ready": ready}


def test_a_wheel_is_one_release(models: Path, tmp_path: Path) -> None:
    build.build_wheelhouse(tmp_path / "wheels", "0.5.12")
    with zipfile.ZipFile(tmp_path / "wheels" / "sglang-0.5.12+standin-py3-none-any.whl") as archive:
        archive.extractall(tmp_path / "engine")
    (tmp_path / "runs").mkdir()
    factory = Factory(tmp_path / "engine", models, tmp_path / "runs", sys.executable)
    try:
        server = factory.start(*DFLASH, model="stand-in-target")
        server.wait_ready()
        assert server.ask("/server_info").json()["version"] == "0.5.12"
        other = factory.start(STAND_IN_RELEASE="0.5.23")
        assert other.exit() == 1
        assert "no profile of release '0.5.23' here: there are ['0.5.12']" in other.log()
    finally:
        factory.close()
