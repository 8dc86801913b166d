# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The instances of a host."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import resolve_engine
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import InstancesError
from ansible_collections.specdec.serving.plugins.plugin_utils._instances import resolve_instances
from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import (
    FACTS,
    KEY,
    faults,
    instance,
    resolve,
)


def test_the_contract() -> None:
    (item,) = resolve(
        instance(
            name="k26-dflash",
            gpus=[0, 1],
            api_key=KEY,
            args={
                "tp": 2,
                "speculative_algorithm": "DFLASH",
                "speculative_draft_model_path": "/models/d",
                "speculative_dflash_block_size": 8,
            },
        )
    )
    assert item["unit"] == "sglang-k26-dflash.service"
    assert item["served_model_name"] == "k26-dflash"
    assert (item["host"], item["port"], item["model_path"]) == ("127.0.0.1", 30001, "/models/a")
    assert item["draft_model_path"] == "/models/d"
    assert item["block_size"] == 8
    assert item["has_api_key"] is True
    assert item["has_admin_api_key"] is False
    assert item["gpus"] == [0, 1]
    assert item["settings"]["tp_size"] == 2
    config = item["argv"].index("--config")
    assert item["argv"][config + 1] == "${CREDENTIALS_DIRECTORY}/k26-dflash.yaml"
    assert item["argv"][:3] == ["/opt/specdec/engines/0.5.23-0123456789ab/bin/python", "-m", "sglang.launch_server"]
    assert KEY not in json.dumps(item)
    # Results go through JSON and through Ansible's templates.
    assert json.loads(json.dumps(item)) == item


def test_the_name_of_the_environment_file_is_its_content() -> None:
    (first,) = resolve(instance())
    (same,) = resolve(instance())
    (other,) = resolve(instance(env={"NCCL_DEBUG": "INFO"}))
    assert first["environment_file"] == same["environment_file"]
    assert first["environment_file"] != other["environment_file"]
    assert first["environment_file"].startswith("/etc/specdec/sglang/a.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"model_pth": "/x"}, "unknown key 'model_pth'; did you mean 'model_path'?", id="misspelt-key"),
        pytest.param(
            {"tp_size": 8}, "unknown key 'tp_size'; SGLang's own arguments belong under 'args'", id="argument"
        ),
        pytest.param({"name": "a b"}, "name 'a b' cannot name a unit", id="name-with-space"),
        pytest.param({"name": "a@0"}, "name 'a@0' cannot name a unit", id="name-of-a-template"),
        pytest.param({"name": "../x"}, "name '../x' cannot name a unit", id="name-with-a-path"),
        pytest.param({"name": "-x"}, "name '-x' cannot name a unit", id="name-like-an-option"),
        pytest.param({"name": ""}, "name '' cannot name a unit", id="empty-name"),
        pytest.param({"name": "x" * 201}, "200 at most", id="long-name"),
        pytest.param({"name": "a\n"}, r"name 'a\n' cannot name a unit", id="name-with-newline"),
        pytest.param({"name": 7}, "name 7 cannot name a unit", id="name-is-a-number"),
        pytest.param({"model_path": None}, "model_path is missing", id="no-model"),
        pytest.param({"model_path": 5}, "model_path: 5 is no text", id="model-is-a-number"),
        pytest.param({"model_path": "models/../x y"}, "neither an absolute path nor a model id", id="relative-path"),
        pytest.param({"model_path": "/models/a\nb"}, "newline", id="model-with-newline"),
        pytest.param({"served_model_name": "a:b"}, "must not contain ':'", id="served-name"),
        pytest.param({"port": 0}, "port 0 is no port from 1 to 65535", id="port-0"),
        pytest.param({"port": 65536}, "port 65536 is no port", id="port-high"),
        pytest.param({"port": True}, "port True is no port", id="port-boolean"),
        pytest.param({"port": "http"}, "port 'http' is no port", id="port-text"),
        pytest.param({"client_url": "serve.example"}, "(a): client_url 'serve.example' is no URL", id="client-url"),
        pytest.param({"client_url": 5}, "client_url: 5 is no text", id="client-url-number"),
        pytest.param({"leader": "ct200"}, "(a): leader 'ct200' is neither host:port nor a URL", id="leader"),
        pytest.param({"host": "a b"}, "host: 'a b' is no address or host name", id="host"),
        pytest.param({"gpus": [0, 0]}, "a: GPU 0 is listed twice", id="gpu-twice"),
        pytest.param({"gpus": ["0", 0]}, "a: GPU 0 is listed twice", id="gpu-twice-in-two-spellings"),
        pytest.param({"gpus": "0,1"}, "gpus: '0,1' is no list", id="gpus-text"),
        pytest.param({"gpus": [-1]}, "gpus: -1 is neither", id="gpu-negative"),
        pytest.param({"gpus": [1.5]}, "gpus: 1.5 is neither", id="gpu-float"),
        pytest.param({"args": ["tp_size"]}, "args: expected a mapping, not a list", id="args-list"),
        pytest.param({"args": {"port": 1}}, "'port' belongs to the role", id="owned-argument"),
        pytest.param({"args": {"tp": 1, "tp_size": 2}}, "'tp' and 'tp_size' are the same", id="same-argument-twice"),
        pytest.param({"args": {"x": "a\nb"}}, "newline", id="argument-with-newline"),
        pytest.param({"args": {"x": "a\0b"}}, "NUL", id="argument-with-nul"),
        pytest.param({"args": {"speculative_draft_model_path": "a b"}}, "neither an absolute path", id="draft"),
        pytest.param({"env": {"A": True}}, "'A' is the boolean True", id="env-boolean"),
        pytest.param({"env": {"A": [1]}}, "'A' holds [1]", id="env-list"),
        pytest.param({"env": {"A-B": "1"}}, "'A-B' is no name for an environment variable", id="env-name"),
        pytest.param({"env": {"A": "x\ny"}}, "newline", id="env-newline"),
        pytest.param({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "set 'gpus' of the instance", id="env-owned"),
        pytest.param({"env": {"HF_TOKEN": "short"}}, "'HF_TOKEN' is treated as a secret", id="env-short-secret"),
        pytest.param({"description": "x\\"}, "ends with a backslash", id="description"),
        pytest.param({"one_per_gpu": True}, "one_per_gpu needs 'gpus'", id="one-per-gpu-of-all"),
        pytest.param({"one_per_gpu": True, "gpus": []}, "one_per_gpu needs 'gpus'", id="one-per-gpu-of-none"),
        pytest.param(
            {"one_per_gpu": "yes", "gpus": [0]}, "one_per_gpu: 'yes' is neither true nor false", id="one-per-gpu-text"
        ),
        pytest.param({"one_per_gpu": True, "gpus": [0, "0"]}, "gpus: 0 is listed twice", id="one-per-gpu-twice"),
        pytest.param(
            {"one_per_gpu": True, "gpus": [1, "GPU-0"]}, "[1, 'GPU-0'] are numbers and UUIDs", id="one-per-gpu-mixed"
        ),
        pytest.param(
            {"one_per_gpu": True, "gpus": [0], "leader": "h:1"}, "no ranks on other nodes", id="one-per-gpu-leader"
        ),
        pytest.param(
            {"one_per_gpu": True, "gpus": [0, 7], "port": 65530},
            "port 65530 + 7 (the GPU's number) is above 65535",
            id="one-per-gpu-port",
        ),
        pytest.param(
            {"one_per_gpu": True, "gpus": [0, 1], "args": {"tp": 2}},
            "args: tp_size 2: one_per_gpu gives each instance of sglang_instances[0] (a) one GPU; leave tp_size out",
            id="one-per-gpu-ranks",
        ),
        pytest.param({"args": {"nccl_port": 70000}}, "args: nccl_port 70000 is no port", id="nccl-port"),
        pytest.param({"args": {"nccl_port": -1}}, "args: nccl_port -1 is no port", id="nccl-port-negative"),
        pytest.param({"args": {"grpc_port": 99999}}, "args: grpc_port 99999 is no port", id="grpc-port"),
        pytest.param({"args": {"dist_init_addr": "ct200"}}, "dist_init_addr 'ct200' is no HOST:PORT", id="meeting"),
        pytest.param(
            {"args": {"dist_init_addr": "[::1]:70000"}},
            "dist_init_addr '[::1]:70000' is no HOST:PORT",
            id="meeting-port",
        ),
        pytest.param(
            {"args": {"nccl_port": 30001}}, "port 30001 is used by a and a (nccl_port)", id="nccl-port-is-port"
        ),
    ],
)
def test_one_fault(changes: dict[str, t.Any], message: str) -> None:
    text = faults(instance(**changes))
    assert message in text
    assert text.startswith(("sglang_instances[0]", "sglang_instances: port", "a: "))
    assert len(text.splitlines()) <= 2


@pytest.mark.parametrize(
    ("args", "url"),
    [
        ({}, "http://127.0.0.1:30001"),
        ({"ssl-certfile": "/etc/tls/cert.pem", "ssl-keyfile": "/etc/tls/key.pem"}, "https://127.0.0.1:30001"),
    ],
)
def test_a_server_with_a_certificate_is_asked_by_tls(args: dict[str, str], url: str) -> None:
    (item,) = resolve(instance(args=args))
    assert (item["base_url"], item["scheme"]) == (url, url.partition(":")[0])


def test_two_entries_of_one_name_of_which_one_has_an_instance_per_gpu() -> None:
    text = faults(instance(gpus=[0, 1], one_per_gpu=True), instance(port=31000, gpus=[2]), facts=FACTS)
    assert text == "sglang_instances: 2 instances are named 'a'"


@pytest.mark.parametrize(("gpus", "warned"), [([], True), ([1], False)])
def test_an_instance_on_all_gpus_beside_another_one(gpus: list[int], warned: bool) -> None:
    items = resolve(instance(gpus=[0]), instance(name="b", port=31000, gpus=gpus), facts=FACTS)
    assert any(warning.startswith("b: without 'gpus'") for warning in items[0]["warnings"]) is warned


def test_instances_without_gpus_on_a_host_without_gpus() -> None:
    assert resolve(instance(), instance(name="b", port=31000))[0]["warnings"] == []


def test_between_instances() -> None:
    text = faults(
        instance(gpus=[0, 1]),
        instance(gpus=[1, 2], name="b", port="30001"),
        instance(name="b", port=30002),
    )
    assert "2 instances are named 'b'" in text
    assert "port 30001 is used by a and b" in text
    assert "GPU 1 is used by a and b" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"runtime": "docker"}, "sglang_runtime: 'docker' is not available yet", id="runtime"),
        pytest.param({"gpu_profile": "b30"}, "did you mean 'b300'?", id="profile"),
        pytest.param({"gpu_profiles": {"x": {"arg": {}}}}, "unknown key 'arg'; did you mean 'args'?", id="profile-key"),
        pytest.param(
            {"gpu_profile": "x", "gpu_profiles": {"x": {"args": ["a"]}}},
            "sglang_gpu_profiles['x']: args: expected a mapping, not a list",
            id="profile-args",
        ),
        pytest.param(
            {"gpu_profile": "x", "gpu_profiles": {"x": {"env": "A=1"}}},
            "sglang_gpu_profiles['x']: env: expected a mapping, not text",
            id="profile-env",
        ),
        pytest.param(
            {"gpu_profiles": {"x": {"disable_prefill_graph": "no"}}},
            "disable_prefill_graph 'no' is neither true nor false",
            id="profile-text-for-a-boolean",
        ),
        pytest.param({"user": "Root User"}, "sglang_user", id="user"),
        pytest.param({"config_dir": "etc"}, "sglang_config_dir", id="config-dir"),
        pytest.param({"cache_dir": "/a b"}, "sglang_cache_dir", id="cache-dir"),
        pytest.param({"state_dir": "lib"}, "sglang_state_dir: 'lib' is no absolute folder", id="state-dir"),
        pytest.param(
            {"state_dir": "/var/lib/a\nb"}, "sglang_state_dir: '/var/lib/a\\nb' is no", id="state-dir-newline"
        ),
        pytest.param({"gpu_profile": 5}, "sglang_gpu_profile: 5 is no text", id="profile-number"),
        pytest.param({"limits": {"stop_timeout": 0}}, "sglang_stop_timeout 0 must be a number of 1 or more", id="stop"),
        pytest.param({"limits": {"restart_delay": -1}}, "sglang_restart_delay -1 must be", id="restart-delay"),
        pytest.param({"limits": {"start_limit_burst": "-1"}}, "sglang_start_limit_burst '-1' must be", id="burst"),
        pytest.param(
            {"limits": {"drain_timeout": "long"}}, "sglang_drain_timeout 'long' is no number", id="drain-text"
        ),
        pytest.param({"limits": {"drain_timeout": -1}}, "sglang_drain_timeout -1 must be", id="drain-negative"),
        pytest.param({"limits": {"drain_timeout": "nan"}}, "sglang_drain_timeout 'nan' must be", id="drain-nan"),
        pytest.param({"default_args": 3}, "sglang_default_args: expected a mapping", id="default-args"),
    ],
)
def test_faults_of_the_host(options: dict[str, t.Any], message: str) -> None:
    assert message in faults(instance(), **options)


def test_variables_without_anything_behind_their_colon() -> None:
    nothing: t.Any = None
    (item,) = resolve(
        instance(args=None, env=None, gpus=None),
        gpu_profile=nothing,
        gpu_profiles=None,
        default_args=None,
        default_env=None,
        hardening_omit=nothing,
        writable_paths=nothing,
    )
    assert item["hardening"]
    assert resolve_engine("0.5.23", root="/opt", requirements=nothing)["name"].startswith("0.5.23-")


def test_bad_version() -> None:
    engine = {"name": "x", "path": "/opt/x", "python": "/opt/x/bin/python"}
    with pytest.raises(InstancesError, match="sglang_version: 'latest' is no SGLang version"):
        resolve_instances([], version="latest", engine=engine)


def test_instance_over_profile_over_defaults() -> None:
    (item,) = resolve(
        instance(args={"expert_parallel_size": 4, "enable_metrics": False}, env={"A": 1, "B": None}),
        gpu_profile="mine",
        gpu_profiles={"mine": {"args": {"ep_size": 8, "page_size": 64}, "env": {"A": "profile", "C": "profile"}}},
        default_args={"enable_metrics": True, "page_size": 1},
        default_env={"B": "default", "C": "default", "D": "default"},
    )
    assert "--enable-metrics" not in item["argv"]
    assert item["settings"]["ep_size"] == 4
    assert item["settings"]["page_size"] == 64
    assert {name: item["environment"].get(name) for name in "ABCD"} == {
        "A": "1",
        "B": None,
        "C": "profile",
        "D": "default",
    }


def test_a_release_without_config_file_takes_no_key() -> None:
    text = faults(instance(api_key=KEY), version="0.4.6")
    assert "SGLang 0.4.6 takes keys only on its command line" in text
    assert KEY not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_addresses_without_a_key_warns(host: str) -> None:
    (open_to_all,) = resolve(instance(host=host))
    assert "all addresses" in open_to_all["warnings"][0]
    (with_key,) = resolve(instance(host=host, api_key=KEY))
    assert with_key["warnings"] == []


def test_where_systemd_has_no_credentials_the_file_itself_is_named() -> None:
    (item,) = resolve(instance(api_key=KEY), facts={"credentials": False})
    assert "/etc/specdec/sglang/credentials/a.@SECRET@.yaml" in item["argv"]
    assert item["credential_by_systemd"] is False


def test_mount_points_are_quoted_without_variables() -> None:
    (item,) = resolve(instance(model_path="/models/a b$c%d"))
    assert '"/models/a b$c%%d"' in item["mounts"]
    assert '--model-path "/models/a b$$c%%d"' in item["exec_start"]


class TestSandbox:
    def test_what_the_host_refuses_is_left_out_with_one_warning(self) -> None:
        facts = {**FACTS, "hardening_refused": {"ProtectProc": "the container has its own /proc"}}
        first, second = resolve(instance(gpus=[0]), instance(name="b", port=30002, gpus=[1]), facts=facts)
        for item in (first, second):
            assert "ProtectProc=invisible" not in item["hardening"]
            assert "ProtectSystem=strict" in item["hardening"]
        assert first["warnings"] == ["the units run without ProtectProc=: the container has its own /proc"]
        assert second["warnings"] == []

    def test_without_it_nothing_is_set_and_nothing_told(self) -> None:
        (item,) = resolve(instance(), facts={"hardening_refused": {"ProtectProc": "x"}}, hardening=False)
        assert (item["hardening"], item["warnings"]) == ([], [])

    def test_names_that_are_none_are_refused(self) -> None:
        assert "'ProtectPrc' is no directive" in faults(instance(), hardening_omit=["ProtectPrc"])

    def test_the_users_own_shared_memory_stays(self) -> None:
        (item,) = resolve(instance(), facts={"user_is_system": False})
        assert "RemoveIPC=yes" not in item["hardening"]

    def test_writable_paths_must_exist_on_the_host(self) -> None:
        (item,) = resolve(instance(), writable_paths=["/srv/out"])
        assert item["hardening"][-1] == "ReadWritePaths=/var/cache/specdec/sglang /srv/out"
        assert {"path": "/srv/out", "what": "sglang_writable_paths:", "may_be_empty": True} in item["paths"]
        (item,) = resolve(instance(), writable_paths=["/srv/out"], hardening=False)
        assert "/srv/out" not in json.dumps(item["paths"])
