# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The preflight's verdicts on bad and good configurations, held against the real SGLang's parser and rules."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._argument_rules import RULES
from ansible_collections.specdec.serving.plugins.module_utils._engine_parser import cache_path
from ansible_collections.specdec.serving.plugins.module_utils._preflight import preflight
from ansible_collections.specdec.serving.plugins.module_utils._preflight_request import (
    HostView,
    InstanceCheck,
    PreflightRequest,
    PreflightResult,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._instances import preflight_options, resolve_instances
from ansible_collections.specdec.serving.tests.support.real_parser.cases import BAD, DRAFT, GOOD, TARGET, Case

CHECKOUT = Path(__file__).resolve().parents[3]
VERSION = "0.5.23"
ALL = (*BAD, *GOOD)
SOURCES = {rule.id: rule.source for rule in RULES}
#: What `launch_server` does beyond what is asked here would show as one of these.
SERVER = re.compile(r"sglang::|sglang\.launch_server|uvicorn")


def quiet_host(argv: t.Sequence[str]) -> tuple[int, str, str]:
    """A host without GPUs, on which nothing is wrong; the arguments alone are on trial."""
    if argv[0] == "systemctl":
        return 0, "systemd 252 (252.38)\nLoadState=not-found\n", ""
    return (127, "", "No such file") if argv[0] == "nvidia-smi" else (0, "none\n", "")


def instance(case: Case, models: Path) -> dict[str, t.Any]:
    paths = {TARGET: str(models / TARGET), DRAFT: str(models / DRAFT)}
    args = {key: paths.get(value, value) if isinstance(value, str) else value for key, value in case.args.items()}
    return {
        "name": case.id,
        "model_path": paths[TARGET],
        "port": 30001,
        "args": {"device": "cpu", **args},
        **case.changes,
        "env": {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", **case.changes.get("env", {})},
    }


def check_of(option: t.Mapping[str, t.Any]) -> InstanceCheck:
    values: dict[str, t.Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in option.items()
    }
    return InstanceCheck(**values)


class Checked(t.NamedTuple):
    """One configuration with our verdict and the real one's."""

    case: Case
    verdict: dict[str, t.Any]
    real: dict[str, t.Any]


class Comparison(t.NamedTuple):
    """All of them, and what it took."""

    rows: dict[str, Checked]
    result: PreflightResult
    first_s: float


def processes() -> set[str]:
    """Command lines of processes that a server would be."""
    found = set()
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                text = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                environment = Path("/proc", pid, "environ").read_bytes()
            except OSError:
                continue
            if b"SPECDEC_ASKED=1" in environment and SERVER.search(text):
                found.add(text)
    return found


@pytest.fixture(scope="module")
def comparison(engine: Path, models: Path) -> Comparison:
    resolved = [
        resolve_instances(
            [instance(case, models)],
            version=VERSION,
            engine={"path": str(engine), "python": f"{engine}/bin/python", "name": engine.name},
        )[0]
        for case in ALL
    ]
    options = preflight_options(resolved)
    checks = tuple(check_of(item) for item in options)
    request = PreflightRequest(
        version=VERSION, python="/usr/bin/python3", root=str(engine.parent.parent), engine=str(engine), instances=checks
    )
    Path(cache_path(str(engine))).unlink(missing_ok=True)
    view = HostView(
        runner=quiet_host, find_listeners=lambda _port: ([], ""), which=lambda name, **_path: f"/usr/bin/{name}"
    )
    began = time.monotonic()
    first = preflight(request, view)
    first_s = time.monotonic() - began
    assert first.facts["parser"]["source"] == "engine", first.warnings[:1]
    result = preflight(request, view)
    assert result.facts["parser"]["source"] == "cache"

    questions = []
    for item in resolved:
        words = item["argv"][item["argv"].index("sglang.launch_server") + 1 :]
        if "--config" in words:
            position = words.index("--config")
            del words[position : position + 2]
        chosen = {name: value for name, value in item["environment"].items() if name.startswith("SGLANG_ALLOW")}
        questions.append({"argv": words, "environment": chosen})
    home = CHECKOUT / "build/preflight/home"
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [f"{engine}/bin/python", str(CHECKOUT / "tests/support/real_parser/ask.py")],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={
            "HF_HUB_OFFLINE": "1",
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "PATH": os.environ["PATH"],
            "SGLANG_CACHE_DIR": f"{home}/sglang",
            "SGLANG_USE_CPU_ENGINE": "1",
            "SPECDEC_ASKED": "1",
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {
        case.id: Checked(case, verdict, real)
        for case, verdict, real in zip(ALL, result.instances, map(json.loads, done.stdout.splitlines()), strict=True)
    }
    write_table(rows, first, result, first_s)
    return Comparison(rows, result, first_s)


def write_table(rows: dict[str, Checked], first: PreflightResult, result: PreflightResult, first_s: float) -> None:
    """Print the table, and leave it as `build/preflight.md` and `build/preflight.json`."""
    slowest = max(item["checked_in_s"] for item in result.instances)
    mean = sum(item["checked_in_s"] for item in result.instances) / len(result.instances)
    head = (
        f"{len(BAD)} bad and {len(GOOD)} good configurations against SGLang {VERSION}. The parser was asked in"
        f" {first.facts['parser']['seconds']} s (the whole first preflight took {first_s:.1f} s) and read from the cache in"
        f" {result.facts['parser']['seconds']} s; one configuration takes {mean * 1000:.1f} ms, at most {slowest * 1000:.1f} ms."
        " No server was started."
    )
    lines = [head, "", "| configuration | preflight | real SGLang | status |", "|---|---|---|---|"]
    for item in rows.values():
        ours = " · ".join(item.verdict["errors"]) or "fits"
        real = item.real["error"] or "takes it"
        lines.append(
            f"| {item.case.id} | {ours} | {item.real['step'] or '-'}: {real[:200]} | {item.real['status']} |".replace(
                "\n", " "
            )
        )
    print("\n".join(lines))
    (CHECKOUT / "build/preflight.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (CHECKOUT / "build/preflight.json").write_text(
        json.dumps(
            [
                {"id": item.case.id, "refused": item.case.refused, **item.real, "ours": item.verdict["errors"]}
                for item in rows.values()
            ],
            indent=1,
        ),
        encoding="utf-8",
    )


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.id)
def test_bad(comparison: Comparison, case: Case) -> None:
    row = comparison.rows[case.id]
    assert any(case.says in error for error in row.verdict["errors"]), row.verdict
    status = {"parse": 2, "resolve": 1, "later": 0}[case.refused]
    assert (row.real["step"], row.real["status"]) == (case.refused if status else "", status), row.real
    if case.refused == "resolve":
        # For the same reason: it is raised in the file that our rule names as its source.
        source = SOURCES[case.says.strip("[]")]
        assert row.real["where"].partition(":")[0] == source.partition(":")[0]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.id)
def test_good(comparison: Comparison, case: Case) -> None:
    row = comparison.rows[case.id]
    assert row.verdict["errors"] == []
    assert (row.real["step"], row.real["status"], row.real["error"]) == ("", 0, "")


def test_every_message_names_where_it_comes_from(comparison: Comparison) -> None:
    wrong = [
        error
        for case in BAD
        for error in comparison.rows[case.id].verdict["errors"]
        if not error.startswith((f"sglang_instances[0] ({case.id}): ", f"{case.id}: "))
    ]
    assert wrong == []


def test_fast(comparison: Comparison) -> None:
    """As a rule: on a machine that does other things, single ones may take longer."""
    assert statistics.median(item["checked_in_s"] for item in comparison.result.instances) < 0.5


def test_no_server_was_started(comparison: Comparison) -> None:
    """Nothing was bound and no process of a server began while configurations were resolved, and none is left."""
    begun = {text for row in comparison.rows.values() for text in row.real.get("started", ())}
    print(f"what resolving started: {sorted(begun) or 'nothing'}")
    assert [text for text in begun if text.startswith("bind") or SERVER.search(text) or "multiprocessing" in text] == []
    assert processes() == set()


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.id for case in ALL}) == len(ALL)
