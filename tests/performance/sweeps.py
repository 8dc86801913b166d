# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two ways to sweep the same twelve configurations of a stand-in: the playbook, and the shell loop that it replaces.

Both start the same servers with the same faults, a tenth as slow as the story's (210 s), and both clocks are scaled with it: the loop looks
every 1.5 s instead of 15, 90 times as ever. The loop measures once and asks for no correctness, as it was done; the playbook measures three
times and compares greedy answers. What is judged is judged from outside: the servers' own words and the units.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import text_table
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.observer import units
from ansible_collections.specdec.serving.tests.support.observer.host import MODELS, PYTHON
from ansible_collections.specdec.serving.tests.support.observer.units import MODEL_PATH
from ansible_collections.specdec.serving.tests.support.sweeps import playbook, twelve

#: Of the story's times: a start takes 21 s.
SCALE: t.Final = 0.1
#: The story's loop: every 15 s, 90 times.
INTERVAL_S, ROUNDS = 15.0, 90
#: Phases of a trial that any sweep needs; the rest is what ours adds.
NEEDED: t.Final = ("stop", "start", "benchmark", "evaluate")
LOOP_PORT: t.Final = 31711
LOOP_UNIT: t.Final = "sglang-by-hand.service"
SCRIPT: t.Final = Path(__file__).with_name("shell_loop.sh")
_RESULTS = "/var/lib/by-hand/results"


@dataclasses.dataclass(frozen=True)
class Swept:
    """What one sweep came to. ``rows``: configuration to what its row says; ``wrong``: the same to what is wrong with it.

    ``trials``: of ours, seconds by phase of each that ran. ``put_back_s``: until its own configuration ran again.
    """

    wall_s: float
    rows: t.Mapping[str, str]
    wrong: t.Mapping[str, str]
    winner: str
    left_running: str
    trials: t.Sequence[t.Mapping[str, float]] = ()
    put_back_s: float = 0.0

    @property
    def wrong_winner(self) -> bool:
        return self.winner != name(twelve.CONFIGURATIONS[twelve.WINNER])


def name(one: twelve.Configuration) -> str:
    """A configuration in words; the second spelling of one is told apart."""
    return (twelve.command_line(one.changes) or "baseline") + (" once more" if one.verdict == "duplicate" else "")


# --- ours ----------------------------------------------------------------------------------------------------------------------


def by_playbook(host: Host, *, scale: float = SCALE) -> Swept:
    """Sweep as users of the collection do."""
    with tempfile.TemporaryDirectory() as folder:
        deployment = playbook.prepared(host, Path(folder), scale=scale)
        play, wall = playbook.swept(deployment)
        told, end = playbook.table_of(play)
        trials = [one["details"]["times"] for one in playbook.outcomes(Path(folder))]
    rows, wrong, winner = {}, {}, ""
    for number, (one, again) in enumerate(twelve.planned()):
        row = told.get(number)
        key = name(one) + (" (again)" if again else "")
        rows[key] = row.verdict if row else "missing"
        if rows[key] != one.verdict:
            wrong[key] = f"{rows[key]}, and it is {one.verdict}"
        if row and row.place == "★":
            winner = name(one)
    put_back = re.search(r"^  put back +(?:(\d+) min )?([\d.]+) s", end, re.MULTILINE)
    seconds = 60 * int(put_back[1] or 0) + float(put_back[2]) if put_back else 0.0
    return Swept(wall, rows, wrong, winner, running(host, twelve.UNIT), trials, seconds)


def running(host: Host, unit: str) -> str:
    """What a unit runs, in words of the configurations."""
    show = host.exec(["systemctl", "show", "--value", "--property=ActiveState,MainPID", unit]).stdout.split()
    pid, state = sorted(show)
    if state != "active":
        return state
    words = host.exec(["cat", f"/proc/{pid}/cmdline"], check=False).stdout.split("\0")
    found = {flag: words[words.index(flag) + 1] for flag in _FLAGS if flag in words}
    return "known-good" if found == {_FLAGS[0]: "2"} else " ".join(f"{flag} {value}" for flag, value in found.items())


_FLAGS = ("--speculative-dflash-block-size", "--chunked-prefill-size")


# --- the loop ------------------------------------------------------------------------------------------------------------------


def by_loop(host: Host, *, scale: float = SCALE) -> Swept:
    """Sweep as it was done before, with a unit of its own beside."""
    entry = twelve.instance(tokenizer_path=f"{MODELS}/tiny", scale=scale)
    args = {key: value for key, value in entry["args"].items() if key != "speculative_dflash_block_size"}
    flags = " ".join(
        f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}") for key, value in args.items()
    )
    command = f"/usr/bin/python3 -m sglang.launch_server --model-path {MODEL_PATH}"
    command += f" --served-model-name {twelve.NAME} --port {LOOP_PORT} --enable-metrics {flags}"
    environment = {**entry["env"], "PYTHONPATH": units.STAND_IN, "PYTHONUNBUFFERED": "1"}
    # Inside of the single quotes of a unit file; the faults have none of those.
    environment = {key: value.replace('"', '\\"').replace("%", "%%") for key, value in environment.items()}
    # Not restarted by systemd, so that the loop can see it fail.
    text = units.unit_file(command, environment=environment, service=["Restart=no"])
    host.exec(["sh", "-c", f"rm -rf {_RESULTS}*; mkdir -p {_RESULTS.rpartition('/')[0]}"])
    host.write_file(f"/etc/systemd/system/{LOOP_UNIT}", text)
    host.write_file("/usr/local/bin/shell_loop.sh", SCRIPT.read_text(encoding="utf-8"))
    lines = [twelve.command_line(one.changes) or "--speculative-dflash-block-size 2" for one in twelve.CONFIGURATIONS]
    words = ["bash", "/usr/local/bin/shell_loop.sh", LOOP_UNIT, str(LOOP_PORT), f"{INTERVAL_S * scale:g}", str(ROUNDS)]
    began = time.monotonic()
    said = host.exec([*words, _RESULTS, command, *_client()], input="\n".join(lines) + "\n", timeout=7200).stdout
    wall = time.monotonic() - began
    print(said)
    appended = host.exec(["sh", "-c", f"cat {_RESULTS}"], check=False).stdout
    rows = {}
    for line in appended.splitlines():
        _words, speed, file = line.split("|")
        # By number, since one configuration is there in two spellings.
        rows[int(file.split(".")[-2]) - 1] = (speed, _served(host, file))
    found = judged(rows)
    left = running(host, LOOP_UNIT)
    stop = f"systemctl kill -s KILL {LOOP_UNIT}; systemctl stop {LOOP_UNIT}; rm -f /etc/systemd/system/{LOOP_UNIT}; systemctl daemon-reload"
    host.exec(["sh", "-c", stop], check=False)
    return dataclasses.replace(found, wall_s=wall, left_running=left)


def _client() -> list[str]:
    """SGLang's own client as people call it, for the workload of the playbook."""
    work = twelve.WORKLOAD
    return [
        *(
            PYTHON,
            "-m",
            "sglang.benchmark.serving",
            "--backend",
            "sglang",
            "--host",
            "127.0.0.1",
            "--port",
            str(LOOP_PORT),
        ),
        *("--model", MODEL_PATH, "--tokenizer", f"{MODELS}/tiny", "--disable-tqdm"),
        *("--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1.0"),
        *("--random-input-len", str(work["input_length"]), "--random-output-len", str(work["output_length"])),
        *("--num-prompts", str(work["requests"]["minimum"]), "--max-concurrency", "2", "--seed", "1"),
    ]


def _served(host: Host, file: str) -> str:
    """By the client's own file: with which arguments the server ran that it measured; '' when there is none."""
    text = host.exec(["cat", file], check=False).stdout
    if not text.strip():
        return ""
    info = json.loads(text.splitlines()[-1]).get("server_info") or {}
    return json.dumps([info.get("speculative_dflash_block_size"), info.get("chunked_prefill_size")])


def judged(rows: t.Mapping[int, tuple[str, str]]) -> Swept:
    """``rows``: number of a configuration to what its row says, and what served it (see :func:`_served`)."""
    told, wrong = {}, {}
    speeds: dict[str, float] = {}
    for number, one in enumerate(twelve.CONFIGURATIONS):
        key = name(one)
        if number not in rows:
            told[key] = "no row"
            if one.is_sound:
                wrong[key] = "missing, and it is sound"
            continue
        speed, served = rows[number]
        told[key] = f"{speed} tok/s" if speed else "an empty row"
        if speed:
            speeds[key] = float(speed)
        asked = [int(one.changes.get("speculative_dflash_block_size", 2)), one.changes.get("chunked_prefill_size")]
        if served and one.changes and json.loads(served) != asked:
            wrong[key] = f"measured a server with {served}"
        elif not (one.is_sound or one.verdict == "duplicate"):
            wrong[key] = f"accepted, and it is {one.verdict}"
        elif not speed:
            wrong[key] = "a row without a figure"
    winner = max(speeds, key=lambda key: speeds[key]) if speeds else ""
    return Swept(0.0, told, wrong, winner, "")


def comparison(ours: Swept, loop: Swept) -> str:
    """Both beside each other, for people."""
    lines = [("configuration", "sweep.yml", "shell loop", "what is wrong")]
    for one in twelve.CONFIGURATIONS:
        key = name(one)
        faults = [
            f"{who}: {found.wrong[key]}" for who, found in (("sweep.yml", ours), ("loop", loop)) if key in found.wrong
        ]
        lines.append((key, ours.rows.get(key, "-"), loop.rows.get(key, "-"), "; ".join(faults)))
    lines += [
        ("wall time", f"{ours.wall_s:.0f} s", f"{loop.wall_s:.0f} s", ""),
        ("wrong rows", str(len(ours.wrong)), str(len(loop.wrong)), ""),
        ("winner", ours.winner, loop.winner, "the loop's is wrong" if loop.wrong_winner else ""),
        ("left running", ours.left_running, loop.left_running, ""),
    ]
    return text_table(lines)


__all__ = ("NEEDED", "SCALE", "Swept", "by_loop", "by_playbook", "comparison", "judged", "name")
