# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bad input ends the play with a clear error before anything on the host changed.

One run of the playbook for all: each row is an alias of the same lab host with its own variables.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment, Play
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

KEY = "sk-planted-2b9"

ROWS: dict[str, tuple[dict[str, t.Any], str]] = {
    "unknown-key": ({"sglang_instances": [instance(modle_path="/x")]}, "modle_path"),
    "unknown-argument-key": ({"sglang_instances": [instance(tp_size=8)]}, "tp_size"),
    "port-type": ({"sglang_instances": [instance(port="http")]}, "http"),
    "port-range": ({"sglang_instances": [instance(port=70000)]}, "port 70000 is no port from 1 to 65535"),
    "args-type": ({"sglang_instances": [instance(args=["tp_size"])]}, "args"),
    "gpus-type": ({"sglang_instances": [instance(gpus={"a": 1})]}, "gpus"),
    "instances-type": ({"sglang_instances": "none"}, "sglang_instances"),
    "no-name": ({"sglang_instances": [{"model_path": "/x"}]}, "name"),
    "no-model": ({"sglang_instances": [{"name": "a"}]}, "model_path"),
    "two-ports": ({"sglang_instances": [instance("a"), instance("b")]}, "port 30100 is used by a and b"),
    "two-names": ({"sglang_instances": [instance("a"), instance("a", port=2)]}, "2 instances are named 'a'"),
    "unit-name": ({"sglang_instances": [instance("no unit")]}, "name 'no unit' cannot name a unit"),
    "gpu-twice": ({"sglang_instances": [instance(gpus=[1, 1])]}, "GPU 1 is listed twice"),
    "gpu-in-two": (
        {"sglang_instances": [instance("a", gpus=[0]), instance("b", port=2, gpus=[0])]},
        "GPU 0 is used by a and b",
    ),
    "no-gpu": ({"sglang_instances": [instance(gpus=[0])]}, "nvidia-smi is not there, but GPUs are asked for"),
    "short-key": ({"sglang_instances": [instance(api_key="seven77")]}, "api_key is shorter than 8 characters"),
    "word-key": ({"sglang_instances": [instance(api_key="crash_loop")]}, "api_key equals a word of our results"),
    "path-key": (
        {"sglang_instances": [instance(admin_api_key="/models/stand-in-target")]},
        "admin_api_key equals a word of our results",
    ),
    "key-in-args": (
        {"sglang_instances": [instance(args={"api-key": KEY})]},
        "'api-key' belongs to the role: set 'api_key' of the instance",
    ),
    "newline": ({"sglang_instances": [instance(args={"chat_template": "a\nb"})]}, "contains a newline"),
    "two-spellings": (
        {"sglang_instances": [instance(args={"tp": 1, "tp_size": 2})]},
        "'tp' and 'tp_size' are the same",
    ),
    "one-per-gpu": ({"sglang_instances": [instance(one_per_gpu=True)]}, "one_per_gpu needs 'gpus'"),
    "runtime": ({"sglang_runtime": "docker"}, "sglang_runtime: 'docker' is not available yet"),
    "keep": ({"sglang_known_good_keep": -1}, "sglang_known_good_keep -1 is below 0"),
    "wait-none": ({"sglang_ready_timeout": "0"}, "sglang_ready_timeout '0' must be a number of seconds above 0"),
    "wait-stall": (
        {"sglang_ready_stall_timeout": "61"},
        "sglang_ready_stall_timeout 61 is above sglang_ready_timeout 60",
    ),
    "wait-stable": ({"sglang_ready_stable_for": 60}, "sglang_ready_stable_for 60 is not below sglang_ready_timeout 60"),
    "profile": ({"sglang_gpu_profile": "b30"}, "did you mean 'b300'?"),
    "argument-rule": (
        {"sglang_instances": [instance(args={**instance()["args"], "speculative_num_draft_tokens": 16})]},
        "[dflash-block-differs]",
    ),
    "argument-rule-of-a-default": (
        {"sglang_default_args": {"nnodes": 3}},
        "sglang_default_args: tp_size 2 x pp_size 1 cannot be split over nnodes 3",
    ),
    "no-wheelhouse": ({"sglang_wheelhouse": "/srv/none"}, "sglang_wheelhouse '/srv/none' is no folder on this host"),
    "wrong-version": ({"sglang_version": "0.5.12"}, "lists sglang==0.5.23+standin, but sglang_version is '0.5.12'"),
    "model-absent": (
        {"sglang_instances": [instance(model_path="/models/none")]},
        "a: model_path '/models/none' does not exist on this host",
    ),
    "draft-absent": (
        {"sglang_instances": [instance(args={"speculative_draft_model_path": "/models/none"})]},
        "a: speculative_draft_model_path '/models/none' does not exist on this host",
    ),
    "port-held": ({"sglang_instances": [instance(port=22, host="0.0.0.0")]}, "port 22 is held by pid"),
    "port-of-a-socket-unit": (
        {"sglang_instances": [instance(port=30177)]},
        "port 30177 is held by systemd for held.socket, which starts held.service",
    ),
    "sandbox": ({"sglang_hardening_omit": ["ProtectPrc"]}, "did you mean 'ProtectProc'?"),
    "writable-path-absent": (
        {"sglang_writable_paths": ["/srv/none"]},
        "sglang_writable_paths: '/srv/none' does not exist on this host",
    ),
    "python-absent": ({"sglang_python": "/no/python"}, "sglang_python '/no/python' cannot be executed"),
    "unreachable": ({"ansible_port": 9}, "Connection refused"),
    "sudo-password": ({"ansible_user": "deploy-pw", "ansible_become_password": "wrong"}, "Incorrect sudo password"),
}


@pytest.fixture(scope="module")
def held_port(role_host: Host) -> t.Iterator[None]:
    """A port that systemd itself holds for a service which nobody has asked for yet."""
    for suffix, text in (
        ("socket", "[Socket]\nListenStream=127.0.0.1:30177\n"),
        ("service", "[Service]\nExecStart=/bin/cat\n"),
    ):
        role_host.write_file(f"/run/systemd/system/held.{suffix}", text)
    role_host.exec(["systemctl", "daemon-reload"])
    role_host.exec(["systemctl", "start", "held.socket"])
    yield
    role_host.exec(["systemctl", "stop", "held.socket"])
    role_host.exec(["sh", "-c", "rm /run/systemd/system/held.*; systemctl daemon-reload"])


@pytest.fixture(scope="module")
def all_rows(role_host: Host, held_port: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Play, str, str]:
    deployment = Deployment(role_host, tmp_path_factory.mktemp("bad-input"), variables=dict(VARIABLES))
    deployment.hosts = {name: variables for name, (variables, _message) in ROWS.items()}
    before = deployment.snapshot()
    # Aliases share one connection: sshd takes ten sessions on it.
    play = deployment.play("deploy.yml", "--forks=5", "--diff")
    return play, before, deployment.snapshot()


@pytest.mark.parametrize("row", ROWS)
def test_clear_error(all_rows: tuple[Play, str, str], row: str) -> None:
    play, _before, _after = all_rows
    message = play.failure(row)
    assert ROWS[row][1] in message
    recap = play.recap(row)
    assert (recap["failed"] + recap["unreachable"], recap["changed"]) == (1, 0)


def test_nothing_on_the_host_changed(all_rows: tuple[Play, str, str]) -> None:
    _play, before, after = all_rows
    assert after == before


def test_no_key_was_printed(all_rows: tuple[Play, str, str]) -> None:
    play, _before, _after = all_rows
    assert KEY not in play.output
    assert "seven77" not in play.output


def test_a_host_of_the_playbook_that_is_not_in_the_inventory(tmp_path: Path, role_host: Host) -> None:
    play = Deployment(role_host, tmp_path, variables=dict(VARIABLES)).play("deploy.yml", "--limit=nowhere")
    assert play.returncode != 0
    assert "nowhere" in play.output
