# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's variables, and the unit that it renders for the lab's hosts, without connecting to anything."""

from __future__ import annotations

import ast
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible.vars.manager import VariableManager

from ansible_collections.specdec.serving.plugins.module_utils._own_units import find_units

CHECKOUT = Path(__file__).resolve().parents[3]
ROLE = CHECKOUT / "roles" / "sglang"
EXPECTATIONS = CHECKOUT / "tests" / "unit" / "expectations"

#: The host is not asked: this stands for the lock of the engine.
LOCK = "5d" * 32


def load(path: Path) -> dict[str, t.Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


class Renderer:
    """The role's variables of one host, as a play would have them."""

    def __init__(self, inventory: str, host: str, **extra: t.Any) -> None:
        loader = DataLoader()
        loader.set_basedir(str(ROLE / "tasks"))
        manager = InventoryManager(loader=loader, sources=[str(CHECKOUT / "inventories" / inventory / "hosts.yml")])
        found = manager.get_host(host)
        assert found is not None
        variables = VariableManager(loader=loader, inventory=manager)
        values: dict[str, t.Any] = dict(
            loader.load_from_file(str(ROLE / "defaults" / "main.yml"), trusted_as_template=True)
        )
        values.update(variables.get_vars(host=found, include_hostvars=False))
        values.update(loader.load_from_file(str(ROLE / "vars" / "main.yml"), trusted_as_template=True))
        values.update(extra)
        self.loader = loader
        self.values = values

    def evaluate(self, expression: str, **extra: t.Any) -> t.Any:
        templar = Templar(loader=self.loader, variables={**self.values, **extra})
        return templar.template(trust_as_template("{{ " + expression + " }}"))

    def unit(self, name: str) -> str:
        template = trust_as_template((ROLE / "templates" / "sglang.service.j2").read_text())
        values = {**self.values, "_sglang_instance": self.instance(name)}
        # As the template lookup does it.
        text = Templar(loader=self.loader, variables=values).copy_with_new_env().template(template)
        assert isinstance(text, str)
        return text

    def instance(self, name: str) -> dict[str, t.Any]:
        (found,) = [item for item in self.evaluate("_sglang_resolved") if item["name"] == name]
        assert isinstance(found, dict)
        return found


def facts() -> dict[str, t.Any]:
    """What sglang_preflight would return of the story's host: eight cards on two NUMA nodes."""
    card = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
            "name": card,
            "memory_total_mib": 97887,
            "pci_bus_id": f"00000000:{16 * index + 1:02X}:00.0",
            "driver_version": "580.95.05",
            "compute_capability": "12.0",
            "numa_node": index // 4,
        }
        for index in range(8)
    ]
    return {
        "gpus": gpus,
        "driver_version": "580.95.05",
        "numa_nodes": [0, 1],
        "nvidia_modprobe": "/usr/bin/nvidia-modprobe",
        "credentials": True,
        "systemd_version": 252,
        "lock_sha256": LOCK,
    }


@pytest.fixture(scope="module")
def ct200() -> Renderer:
    return Renderer("lab", "ct200", _sglang_preflight={"facts": facts()})


def check(path: Path, text: str) -> None:
    """Compare with a reviewed file. It is never written by a test: change it by hand, on purpose."""
    assert text == path.read_text(), f"{path.relative_to(CHECKOUT)} was reviewed; is the change meant?"


def test_unit_of_ct200(ct200: Renderer) -> None:
    check(EXPECTATIONS / "lab-ct200" / "sglang-k26-dflash.service", ct200.unit("k26-dflash"))


def test_environment_of_ct200(ct200: Renderer) -> None:
    check(EXPECTATIONS / "lab-ct200" / "k26-dflash.env", ct200.instance("k26-dflash")["environment_text"])


def test_command_line_of_ct200(ct200: Renderer) -> None:
    expected = (EXPECTATIONS / "lab-ct200" / "argv.txt").read_text().splitlines()
    assert ct200.instance("k26-dflash")["argv"] == expected


def test_the_story(ct200: Renderer) -> None:
    """What the mission says of CT200, each word of it."""
    item = ct200.instance("k26-dflash")
    assert ct200.values["ansible_host"] == "10.1.2.200"
    assert item["unit"] == "sglang-k26-dflash.service"
    assert item["port"] == 30001
    assert item["engine"]["name"].startswith("0.5.12-")
    assert item["block_size"] == 8
    settings = item["settings"]
    assert settings["ep_size"] == 8
    assert settings["tp_size"] == 8
    assert settings["disable_cuda_graph"] is True
    assert settings["speculative_algorithm"] == "DFLASH"
    assert len(item["gpus"]) == 8
    # With all graphs off there is no prefill graph to turn off.
    assert "--disable-piecewise-cuda-graph" not in item["argv"]


def test_b300_runs_the_same_configuration(ct200: Renderer) -> None:
    b300 = Renderer("lab", "b300")
    assert b300.instance("k26-dflash")["settings"] == ct200.instance("k26-dflash")["settings"]
    assert "SGLANG_ENABLE_JIT_DEEPGEMM" not in b300.instance("k26-dflash")["environment"]


@pytest.mark.parametrize("engine", ["cpu_engine", "stand_in"])
@pytest.mark.parametrize("host", ["ct200", "b300"])
def test_demo(host: str, engine: str) -> None:
    demo = Renderer("demo", host, demo_engine=engine, inventory_hostname=host)
    assert demo.values["ansible_host"] == "127.0.0.1"
    assert demo.evaluate("sglang_notice").startswith(f"DEMO on loopback: {host} ")
    item = demo.instance("k26-dflash")
    assert (item["unit"], item["host"], item["port"]) == ("sglang-k26-dflash.service", "127.0.0.1", 30001)
    assert item["has_api_key"]
    assert "specdec-demo-key" not in demo.unit("k26-dflash")
    assert item["draft_model_path"]


def test_units_are_known_as_ours(ct200: Renderer, tmp_path: Path) -> None:
    """By their first line; otherwise a unit that left the list would never be found again."""
    (tmp_path / "sglang-k26-dflash.service").write_text(ct200.unit("k26-dflash"))
    (unit,) = find_units(lambda _argv: (0, "LoadState=loaded\n", ""), unit_dir=str(tmp_path), state_dir=str(tmp_path))
    assert unit.name == "k26-dflash"


class TestOnePerGpu:
    ENTRY: t.ClassVar = {
        "name": "coder",
        "model_path": "/models/coder",
        "port": 30010,
        "gpus": [3, 4],
        "one_per_gpu": True,
        "api_key": "planted-91ab77",
    }

    @pytest.fixture
    def host(self) -> Renderer:
        own = {"sglang_instances": [self.ENTRY], "_sglang_preflight": {"facts": facts()}}
        return Renderer("lab", "ct200", **own)

    def test_unit(self, host: Renderer) -> None:
        lines = host.unit("coder@4").splitlines()
        for line in (
            "EnvironmentFile=" + host.instance("coder@4")["environment_file"],
            "LoadCredential=coder@4.yaml:/etc/specdec/sglang/credentials/coder@4.@SECRET@.yaml",
            "NUMAMask=1",
            "SyslogIdentifier=sglang-coder@4",
            "  --port 30014 \\",
            "  --nccl-port 30714 \\",
        ):
            assert line in lines
        assert "NUMAMask=0" in host.unit("coder@3")
        assert 'CUDA_VISIBLE_DEVICES="GPU-00000004-' in host.instance("coder@4")["environment_text"]

    def test_the_key_of_the_entry(self, host: Renderer) -> None:
        key = host.evaluate("_sglang_api_key", _sglang_instance=host.instance("coder@4"))
        assert key == "planted-91ab77"
        assert "planted" not in str(host.evaluate("_sglang_resolved"))
        assert host.evaluate("_sglang_names") == ["coder@3", "coder@4"]


def test_without_a_key_there_is_none(ct200: Renderer) -> None:
    assert ct200.evaluate("_sglang_api_key", _sglang_instance=ct200.instance("k26-dflash")) == ""


class TestVariables:
    defaults: t.ClassVar = load(ROLE / "defaults" / "main.yml")
    options: t.ClassVar = load(ROLE / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"]

    def test_defaults_are_the_argument_specification(self) -> None:
        assert list(self.defaults) == list(self.options)
        assert {name: option.get("default") for name, option in self.options.items()} == self.defaults

    def test_every_variable_is_public_and_has_the_prefix(self) -> None:
        assert [name for name in self.defaults if not name.startswith("sglang_")] == []

    def test_instance_keys_are_those_of_the_filter(self) -> None:
        source = (CHECKOUT / "plugins" / "plugin_utils" / "_instance_members.py").read_text()
        (keys,) = [
            ast.literal_eval(node.value.args[0])
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "_INSTANCE_KEYS"
            and isinstance(node.value, ast.Call)
        ]
        assert set(self.options["sglang_instances"]["options"]) == keys

    def test_every_number_of_the_wait_is_checked_before_the_restart(self) -> None:
        checked = load(ROLE / "vars" / "main.yml")["_sglang_wait_options"].values()
        names = [name for name in self.defaults if name.startswith("sglang_ready_")]
        assert sorted(checked) == sorted("{{ " + name + " }}" for name in [*names, "sglang_evidence_keep"])

    def test_no_internal_variable_is_documented_and_no_public_one_is_unused(self) -> None:
        used = "\n".join(
            path.read_text() for folder in ("tasks", "templates", "vars") for path in sorted((ROLE / folder).iterdir())
        )
        assert [name for name in self.defaults if name not in used] == []


def test_keys_are_looked_up_in_one_place() -> None:
    """The item of a loop is the name of an instance, which may be one of several of an entry; the entry holds the key."""
    for path in sorted((ROLE / "tasks").glob("*.yml")):
        text = path.read_text()
        assert not re.search(r"sglang_instances\b.*selectattr\('name'", text), path


def test_loops_never_go_over_what_may_hold_a_key() -> None:
    """An item is printed; an instance holds keys."""
    for path in sorted((ROLE / "tasks").glob("*.yml")):
        for line in path.read_text().splitlines():
            word, _, expression = line.strip().partition(": ")
            if word == "loop":
                assert expression in (
                    '"{{ _sglang_names }}"',
                    '"{{ _sglang_units.restart_needed }}"',
                    '"{{ _sglang_put_back.restart_needed }}"',
                    '"{{ _sglang_put_back.put_back }}"',
                    '"{{ _sglang_archives | default([]) }}"',  # paths
                    # Trials without keys, and of the environment only what the sweep file sets.
                    '"{{ range(_sglang_sweep.most) | list }}"',
                    '"{{ _sglang_sweep.workloads }}"',
                    "\"{{ _sglang_sweep.trials | selectattr('state', 'eq', 'waiting') | rejectattr('faults') }}\"",
                ), path
