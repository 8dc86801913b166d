# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all instances of a host share."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import resolve_engine
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import InstancesError
from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import (
    FACTS,
    faults,
    instance,
    resolve,
)


@pytest.mark.parametrize(
    ("version", "name"),
    [("0.5.23", "SGLANG_ENABLE_JIT_DEEPGEMM"), ("0.4.6", "SGL_ENABLE_JIT_DEEPGEMM")],
)
def test_jit_deepgemm_is_off_on_the_rtx_pro_6000(version: str, name: str) -> None:
    (item,) = resolve(instance(), version=version, gpu_profile="rtx_pro_6000")
    assert item["environment"][name] == "0"
    assert len([key for key in item["environment"] if key.endswith("_JIT_DEEPGEMM")]) == 1


def test_gpus_by_uuid_and_caches_by_driver_and_architecture() -> None:
    (item,) = resolve(instance(gpus=[0, 1]), facts=FACTS, gpu_profile="rtx_pro_6000")
    assert item["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-000,GPU-111"
    key = "/var/cache/specdec/sglang/0.5.23-0123456789ab-driver580.95.05-sm120"
    assert item["environment"]["SGLANG_CACHE_DIR"] == f"{key}/sglang"
    assert item["environment"]["HOME"] == f"{key}/home"
    assert key in item["cache_dirs"]
    assert item["warnings"] == []


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

    def test_a_new_password_for_an_index_makes_no_new_engine(self) -> None:
        urls = ("https://i/simple", "https://user:one@i/simple", "https://user:two@i/simple")
        assert len({resolve_engine("0.5.23", root="/opt", index_url=url)["name"] for url in urls}) == 1

    @pytest.mark.parametrize(
        ("version", "root", "lock", "message"),
        [
            ("newest", "/opt", "", "sglang_version"),
            (0.6, "/opt", "", "sglang_version: 0.6 is no text; quote it"),
            (None, "/opt", "", "sglang_version: None is no text"),
            ("0.5.23", "opt", "", "sglang_root"),
            ("0.5.23", "/", "", "sglang_root"),
            ("0.5.23", "/opt/a b", "", "sglang_root"),
            ("0.5.23", "/opt", "xyz", "lock_sha256"),
        ],
    )
    def test_refused(self, version: str, root: str, lock: str, message: str) -> None:
        with pytest.raises(InstancesError, match=message):
            resolve_engine(version, root=root, lock_sha256=lock)
