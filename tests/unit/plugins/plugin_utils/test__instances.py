# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._instances import (
    InstancesError,
    instance_secrets,
    resolve_engine,
    resolve_instances,
)

KEY = "sk-planted-4fd1c0"
EIGHT_CARDS = [
    {
        "index": index,
        "uuid": f"GPU-{index}{index}{index}",
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "compute_capability": "12.0",
        "numa_node": index // 4,
    }
    for index in range(8)
]
FACTS = {"gpus": EIGHT_CARDS, "driver_version": "580.95.05", "numa_nodes": [0, 1], "credentials": True}


def resolve(*instances: t.Any, version: str = "0.5.23", **options: t.Any) -> list[dict[str, t.Any]]:
    engine = resolve_engine(version, root="/opt/specdec", lock_sha256="0123456789ab" + "c" * 52)
    return resolve_instances(list(instances), version=version, engine=engine, **options)


def instance(**changes: t.Any) -> dict[str, t.Any]:
    return {"name": "a", "model_path": "/models/a", "port": 30001, **changes}


def faults(*instances: t.Any, **options: t.Any) -> str:
    with pytest.raises(InstancesError) as caught:
        resolve(*instances, **options)
    return str(caught.value)


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
        pytest.param({"one_per_gpu": True}, "one_per_gpu: True is not available yet", id="one-per-gpu"),
    ],
)
def test_one_fault(changes: dict[str, t.Any], message: str) -> None:
    text = faults(instance(**changes))
    assert message in text
    assert text.startswith(("sglang_instances[0]", "a: "))
    assert len(text.splitlines()) <= 2


@pytest.mark.parametrize(
    ("key", "message"),
    [
        pytest.param("", "shorter than 8", id="empty"),
        pytest.param("1234567", "shorter than 8", id="seven-characters"),
        pytest.param(9876543210, "no text", id="number"),
        pytest.param("a key with spaces", "HTTP header", id="spaces"),
        pytest.param("schlüssel-lang", "HTTP header", id="non-ascii"),
        pytest.param("line\nbreak-x", "HTTP header", id="newline"),
        pytest.param("-starts-with-dash", "option", id="dash"),
        pytest.param("not_found", "word of our results", id="state-not-found"),
        pytest.param("/models/a-big-one", "word of our results", id="model-path"),
        pytest.param("sglang-a.service", "word of our results", id="unit"),
        pytest.param("crash_loop", "word of our results", id="state"),
        pytest.param("port_owner", "word of our results", id="gate"),
        pytest.param("loading_draft", "word of our results", id="phase"),
        pytest.param("served-id", "word of our results", id="served-name"),
        pytest.param("/opt/specdec", "word of our results", id="part-of-a-path"),
    ],
)
@pytest.mark.parametrize("option", ["api_key", "admin_api_key"])
def test_keys_that_are_refused_are_not_quoted(key: t.Any, message: str, option: str) -> None:
    text = faults(instance(model_path="/models/a-big-one", served_model_name="served-id", **{option: key}))
    assert f"sglang_instances[0] (a): {option} " in text
    assert message in text
    if key and message != "word of our results":
        assert str(key) not in text


def test_a_key_that_is_a_word_of_another_instance() -> None:
    text = faults(instance(api_key="model-of-b"), instance(name="b", port=2, served_model_name="model-of-b"))
    assert "sglang_instances[0] (a): api_key equals a word" in text


def test_secrets_in_the_wrong_place_are_not_quoted() -> None:
    text = faults(KEY, {"name": "a", "model_path": "/x", "args": KEY, "apikey": KEY, "env": [KEY]})
    assert KEY not in text
    assert "did you mean 'api_key'?" in text


def test_between_instances() -> None:
    text = faults(
        instance(gpus=[0, 1]),
        instance(gpus=[1, 2], name="b", port="30001"),
        instance(name="b", port=30002),
    )
    assert "2 instances are named 'b'" in text
    assert "port 30001 is used by a and b" in text
    assert "GPU 1 is used by a and b" in text


def test_the_same_gpu_by_number_and_by_uuid() -> None:
    text = faults(instance(gpus=[3]), instance(name="b", port=2, gpus=["GPU-333"]), facts=FACTS)
    assert "GPU GPU-333 is used by a and b" in text


def test_a_gpu_that_the_host_does_not_have() -> None:
    assert "a: GPU 8 does not exist on this host (nvidia-smi shows 0, 1, 2, 3, 4, 5, 6, 7)" in faults(
        instance(gpus=[8]), facts=FACTS
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"runtime": "docker"}, "sglang_runtime: 'docker' is not available yet", id="runtime"),
        pytest.param({"gpu_profile": "b30"}, "did you mean 'b300'?", id="profile"),
        pytest.param({"gpu_profiles": {"x": {"arg": {}}}}, "unknown key 'arg'; did you mean 'args'?", id="profile-key"),
        pytest.param({"user": "Root User"}, "sglang_user", id="user"),
        pytest.param({"config_dir": "etc"}, "sglang_config_dir", id="config-dir"),
        pytest.param({"cache_dir": "/a b"}, "sglang_cache_dir", id="cache-dir"),
        pytest.param({"default_args": 3}, "sglang_default_args: expected a mapping", id="default-args"),
    ],
)
def test_faults_of_the_host(options: dict[str, t.Any], message: str) -> None:
    assert message in faults(instance(), **options)


@pytest.mark.parametrize(
    ("wait", "message"),
    [
        ({"timeout": "0"}, "sglang_ready_timeout '0' must be a number of seconds above 0"),
        ({"timeout": "20", "stall_timeout": "21"}, "sglang_ready_stall_timeout 21 is above sglang_ready_timeout 20"),
        ({"timeout": 20, "stable_for": 50}, "sglang_ready_stable_for 50 is not below sglang_ready_timeout 20"),
        ({"timeout": "auto", "spin_timeout": "soon"}, "sglang_ready_spin_timeout 'soon' is no number"),
        ({"timeout": "auto", "stable_for": -1}, "sglang_ready_stable_for -1.0 must not be below 0"),
        ({"timeout": "auto", "keep_evidence": -1}, "sglang_evidence_keep -1.0 must not be below 0"),
        ("soon", "sglang_ready_*: expected a mapping, not text"),
    ],
)
def test_a_wait_that_would_be_refused_after_the_restart(wait: t.Any, message: str) -> None:
    assert faults(instance(), wait=wait).startswith(message)


@pytest.mark.parametrize(("tokens", "refused"), [("4", True), (9, True), (10, False), (0, False), (-1, False)])
def test_tokens_that_one_verify_step_could_give_are_refused(tokens: t.Any, refused: bool) -> None:
    speculative = instance(
        args={
            "speculative_algorithm": "DFLASH",
            "speculative_dflash_block_size": 8,
            "speculative_draft_model_path": "/models/d",
        }
    )
    wait = {"timeout": "1350", "generation_tokens": tokens}
    if not refused:
        assert resolve(speculative, wait=wait)
        return
    message = faults(speculative, wait=wait)
    assert message.startswith(f"sglang_ready_generation_tokens {tokens}: {tokens} tokens can fit in one verify step")
    assert "ask for 10 or more, leave it at -1" in message


def test_a_wait_that_is_left_to_the_module_in_part() -> None:
    left = {"generation_tokens": -1, "stall_timeout": "-1", "spin_timeout": -1}
    assert resolve(instance(), wait={"timeout": "1350", "stable_for": 0, "max_restarts": 0, **left})


def test_the_wait_is_told_with_the_other_faults() -> None:
    assert len(faults(instance(port=0), wait={"timeout": "0"}).splitlines()) == 2


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


@pytest.mark.parametrize(
    ("version", "args", "expected"),
    [
        pytest.param("0.5.23", {}, ["--cuda-graph-backend-prefill", "disabled"], id="0.5.23"),
        pytest.param("0.5.14", {}, ["--cuda-graph-backend-prefill", "disabled"], id="0.5.14"),
        pytest.param("0.5.13", {}, ["--disable-piecewise-cuda-graph"], id="0.5.13"),
        pytest.param("0.5.10", {}, ["--disable-piecewise-cuda-graph"], id="0.5.10"),
        pytest.param("0.5.9", {}, [], id="0.5.9-has-it-off"),
        pytest.param("0.5.12", {"disable_cuda_graph": True}, [], id="graphs-off-anyway"),
        pytest.param("0.5.23", {"disable_cuda_graph": True}, [], id="graphs-off-anyway-new"),
        pytest.param(
            "0.5.23",
            {"cuda-graph-backend-prefill": "full"},
            ["--cuda-graph-backend-prefill", "full"],
            id="instance-decides",
        ),
        pytest.param("0.5.23", {"disable_prefill_cuda_graph": True}, [], id="instance-turned-it-off"),
    ],
)
def test_prefill_graph_of_the_rtx_pro_6000(version: str, args: dict[str, t.Any], expected: list[str]) -> None:
    (item,) = resolve(instance(args=args), version=version, gpu_profile="rtx_pro_6000")
    found = [word for word in item["argv"] if "prefill" in word or "piecewise" in word or word in ("disabled", "full")]
    assert found == [*expected, *(["--disable-prefill-cuda-graph"] if "disable_prefill_cuda_graph" in args else [])]


@pytest.mark.parametrize(
    ("version", "name"),
    [("0.5.23", "SGLANG_ENABLE_JIT_DEEPGEMM"), ("0.4.6", "SGL_ENABLE_JIT_DEEPGEMM")],
)
def test_jit_deepgemm_is_off_on_the_rtx_pro_6000(version: str, name: str) -> None:
    (item,) = resolve(instance(), version=version, gpu_profile="rtx_pro_6000")
    assert item["environment"][name] == "0"
    assert len([key for key in item["environment"] if key.endswith("_JIT_DEEPGEMM")]) == 1


@pytest.mark.parametrize(("version", "has"), [("0.5.7", False), ("0.5.8", True), ("0.5.23", True)])
def test_access_log_excludes_only_where_the_flag_exists(version: str, has: bool) -> None:
    (item,) = resolve(instance(), version=version)
    assert ("--uvicorn-access-log-exclude-prefixes" in item["argv"]) is has


def test_access_log_excludes_can_be_taken_away() -> None:
    (item,) = resolve(instance(args={"uvicorn_access_log_exclude_prefixes": None}))
    assert "--uvicorn-access-log-exclude-prefixes" not in item["argv"]


def test_a_release_without_config_file_takes_no_key() -> None:
    text = faults(instance(api_key=KEY), version="0.4.6")
    assert "SGLang 0.4.6 takes keys only on its command line" in text
    assert KEY not in text


def test_gpus_by_uuid_and_caches_by_driver_and_architecture() -> None:
    (item,) = resolve(instance(gpus=[0, 1]), facts=FACTS, gpu_profile="rtx_pro_6000")
    assert item["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-000,GPU-111"
    key = "/var/cache/specdec/sglang/0.5.23-0123456789ab-driver580.95.05-sm120"
    assert item["environment"]["SGLANG_CACHE_DIR"] == f"{key}/sglang"
    assert item["environment"]["HOME"] == f"{key}/home"
    assert key in item["cache_dirs"]
    assert item["warnings"] == []


@pytest.mark.parametrize(("gpus", "node"), [([0, 3], 0), ([4], 1), ([3, 4], None), ([], None)], ids=str)
def test_numa_node(gpus: list[int], node: int | None) -> None:
    (item,) = resolve(instance(gpus=gpus), facts=FACTS)
    assert item["numa_node"] == node


def test_numa_node_is_left_alone_on_a_host_with_one() -> None:
    (item,) = resolve(instance(gpus=[0]), facts={**FACTS, "numa_nodes": [0]})
    assert item["numa_node"] is None


def test_a_profile_for_another_card_warns() -> None:
    (item,) = resolve(instance(), facts=FACTS, gpu_profile="b300")
    assert item["warnings"] == [
        "the GPU profile 'b300' is meant for 'B300', but the host has NVIDIA RTX PRO 6000 Blackwell Server Edition"
    ]


def test_cpu_profile() -> None:
    (item,) = resolve(instance(), gpu_profile="cpu")
    assert item["settings"]["device"] == "cpu"
    assert item["environment"]["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in item["environment"]
    assert "leave 'gpus' out" in faults(instance(gpus=[0]), gpu_profile="cpu")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_addresses_without_a_key_warns(host: str) -> None:
    (open_to_all,) = resolve(instance(host=host))
    assert "all addresses" in open_to_all["warnings"][0]
    (with_key,) = resolve(instance(host=host, api_key=KEY))
    assert with_key["warnings"] == []


def test_where_systemd_has_no_credentials_the_file_itself_is_named() -> None:
    (item,) = resolve(instance(api_key=KEY), facts={"credentials": False})
    assert "/etc/specdec/sglang/credentials/a.yaml" in item["argv"]
    assert item["credential_by_systemd"] is False


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("HUGGING_FACE_HUB_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("OPENAI_API_KEY", True),
        ("OPENAI_APIKEY", True),
        ("DB_PASSWORD", True),
        ("some_key", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("MAX_TOKENS_PER_STEP", False),
        ("NCCL_DEBUG", False),
        ("KEYBOARD_LAYOUT", False),
    ],
)
def test_which_variables_are_secret(name: str, secret: bool) -> None:
    raw = instance(env={name: "value-of-it"})
    (item,) = resolve(raw)
    assert ("value-of-it" not in json.dumps(item)) is secret
    assert bool(item["secret_environment_file"]) is secret
    assert instance_secrets([raw]) == ({"a": {"config": {}, "environment": {name: "value-of-it"}}} if secret else {})


def test_secrets_of_all_layers() -> None:
    found = instance_secrets(
        [instance(api_key=KEY, admin_api_key=KEY + "-admin", env={"A_TOKEN": "instance-token"}), instance(name="b")],
        default_env={"A_TOKEN": "default-token"},
        gpu_profile="mine",
        gpu_profiles={"mine": {"env": {"B_SECRET": "profile-secret"}}},
    )
    assert found == {
        "a": {
            "config": {"api_key": KEY, "admin_api_key": KEY + "-admin"},
            "environment": {"A_TOKEN": "instance-token", "B_SECRET": "profile-secret"},
        },
        "b": {"config": {}, "environment": {"A_TOKEN": "default-token", "B_SECRET": "profile-secret"}},
    }


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({}, 0),
        ({"speculative_dflash_block_size": 8}, 0),
        ({"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": 8}, 8),
        ({"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": "4"}, 4),
        ({"speculative_algorithm": "NGRAM"}, 0),
    ],
    ids=str,
)
def test_block_size(args: dict[str, t.Any], size: int) -> None:
    (item,) = resolve(instance(args=args))
    assert item["block_size"] == size


def test_mount_points_are_quoted_without_variables() -> None:
    (item,) = resolve(instance(model_path="/models/a b$c%d"))
    assert '"/models/a b$c%%d"' in item["mounts"]
    assert '--model-path "/models/a b$$c%%d"' in item["exec_start"]


class TestEngine:
    def test_named_by_the_lock(self) -> None:
        engine = resolve_engine("0.5.23", root="/opt/specdec/", lock_sha256="ab" * 32)
        assert engine["path"] == "/opt/specdec/engines/0.5.23-abababababab"
        assert engine["python"] == engine["path"] + "/bin/python"

    def test_without_a_wheelhouse_named_by_requirements_and_index(self) -> None:
        names = {
            resolve_engine("0.5.23", root="/opt", requirements=requirements, index_url=index)["name"]
            for requirements in (["sglang==0.5.23"], ["sglang==0.5.23", "x"])
            for index in ("", "index")
        }
        assert len(names) == 4

    @pytest.mark.parametrize(
        ("version", "root", "lock", "message"),
        [
            ("newest", "/opt", "", "sglang_version"),
            ("0.5.23", "opt", "", "sglang_root"),
            ("0.5.23", "/", "", "sglang_root"),
            ("0.5.23", "/opt/a b", "", "sglang_root"),
            ("0.5.23", "/opt", "xyz", "lock_sha256"),
        ],
    )
    def test_refused(self, version: str, root: str, lock: str, message: str) -> None:
        with pytest.raises(InstancesError, match=message):
            resolve_engine(version, root=root, lock_sha256=lock)
