# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An entry that stands for an instance on each of its GPUs."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.specdec.serving.plugins.plugin_utils._instances import instance_secrets
from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import (
    EIGHT_CARDS,
    FACTS,
    KEY,
    faults,
    instance,
    resolve,
)


class TestOnePerGpu:
    ENTRY: t.ClassVar = {
        "one_per_gpu": True,
        "gpus": [0, 4, "7"],
        "api_key": KEY,
        "env": {"HF_TOKEN": "hf_planted_0001"},
        "client_url": "http://ct200:30001/v1",
    }

    def test_each_gpu_has_an_instance_of_its_own(self) -> None:
        items = resolve(instance(**self.ENTRY), facts=FACTS)
        assert [(item["name"], item["unit"], item["port"], item["source"]) for item in items] == [
            ("a@0", "sglang-a@0.service", 30001, "a"),
            ("a@4", "sglang-a@4.service", 30005, "a"),
            ("a@7", "sglang-a@7.service", 30008, "a"),
        ]
        assert [item["environment"]["CUDA_VISIBLE_DEVICES"] for item in items] == ["GPU-000", "GPU-444", "GPU-777"]
        assert [item["numa_node"] for item in items] == [0, 1, 1]
        assert [item["settings"]["nccl_port"] for item in items] == [30701, 30705, 30708]
        assert [item["client_url"] for item in items] == [f"http://ct200:{port}/v1" for port in (30001, 30005, 30008)]
        assert {item["served_model_name"] for item in items} == {"a"}
        assert len({item["environment_file"] for item in items}) == 3
        assert [item["credential"] for item in items] == [
            f"/etc/specdec/sglang/credentials/a@{number}.@SECRET@.yaml" for number in (0, 4, 7)
        ]
        assert items[0]["description"] == "SGLang a@0: a"
        assert KEY not in json.dumps(items)

    def test_names_do_not_depend_on_what_the_host_says(self) -> None:
        """A play that stops units does not ask the host; it must stop the same ones."""
        for gpus in ([5, 3], ["GPU-555", "GPU-333"], ["MIG-1", "MIG-2"]):
            entry = instance(one_per_gpu=True, gpus=gpus)
            mig = [{**EIGHT_CARDS[0], "mig": ["MIG-1", "MIG-2"]}, *EIGHT_CARDS[1:]]
            with_facts, without = (
                [item["name"] for item in resolve(entry, facts=facts)] for facts in ({**FACTS, "gpus": mig}, None)
            )
            assert with_facts == without == (["a@5", "a@3"] if gpus[0] == 5 else ["a@0", "a@1"])

    def test_a_gpu_that_leaves_moves_no_other(self) -> None:
        """Ports follow from the number, not from the place in the list: the rest is not restarted."""
        before = {item["name"]: item for item in resolve(instance(**self.ENTRY), facts=FACTS)}
        for item in resolve(instance(**{**self.ENTRY, "gpus": [4, 7]}), facts=FACTS):
            assert item == before[item["name"]]

    def test_secrets_of_each(self) -> None:
        secrets = instance_secrets([instance(**self.ENTRY), instance(name="b", api_key=KEY)])
        assert set(secrets) == {"a@0", "a@4", "a@7", "b"}
        assert secrets["a@7"] == {"config": {"api_key": KEY}, "environment": {"HF_TOKEN": "hf_planted_0001"}}
        assert {item["name"] for item in resolve(instance(**self.ENTRY))} < set(secrets)

    def test_a_routers_address_is_left_alone(self) -> None:
        items = resolve(instance(**{**self.ENTRY, "client_url": "http://router:8000/v1"}))
        assert {item["client_url"] for item in items} == {"http://router:8000/v1"}

    def test_descriptions_tell_which_is_which(self) -> None:
        items = resolve(instance(**self.ENTRY, description="Coder"))
        assert [item["description"] for item in items] == ["Coder (GPU 0)", "Coder (GPU 4)", "Coder (GPU 7)"]

    def test_parts_of_a_gpu(self) -> None:
        gpus = [{**EIGHT_CARDS[0], "mig": ["MIG-1", "MIG-2"]}, *EIGHT_CARDS[1:]]
        items = resolve(instance(one_per_gpu=True, gpus=["MIG-1", "MIG-2"]), facts={**FACTS, "gpus": gpus})
        assert [item["environment"]["CUDA_VISIBLE_DEVICES"] for item in items] == ["MIG-1", "MIG-2"]
        assert [item["numa_node"] for item in items] == [0, 0]
        assert "a@0: GPU 'MIG-3' does not exist" in faults(
            instance(one_per_gpu=True, gpus=["MIG-3"]), facts={**FACTS, "gpus": gpus}
        )

    def test_a_fault_of_the_entry_is_told_once(self) -> None:
        text = faults(
            instance(one_per_gpu=True, gpus=list(range(8)), env={"A": True}, args={"dp_size": 2}), facts=FACTS
        )
        assert len(text.splitlines()) == 2

    def test_ranks_from_the_defaults_are_told_with_where_they_come_from(self) -> None:
        text = faults(instance(one_per_gpu=True, gpus=[0]), default_args={"tp_size": "8"})
        assert text.startswith("sglang_default_args: tp_size '8': one_per_gpu gives each instance")

    def test_against_other_instances(self) -> None:
        text = faults(instance(one_per_gpu=True, gpus=[0, 1]), instance(name="b", port=30002, gpus=[1]), facts=FACTS)
        assert "port 30002 is used by a@1 and b" in text
        assert "GPU GPU-111 is used by a@1 and b" in text

    def test_all_addresses_without_a_key_warn_once(self) -> None:
        items = resolve(instance(one_per_gpu=True, gpus=[0, 1], host="0.0.0.0"))
        assert {warning for item in items for warning in item["warnings"]} == {
            "a: host '0.0.0.0' listens on all addresses and no api_key is set: anybody may use it"
        }
