# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import socket
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _preflight
from ansible_collections.specdec.serving.plugins.module_utils._gpu_facts import parse_gpus
from ansible_collections.specdec.serving.plugins.module_utils._preflight import preflight
from ansible_collections.specdec.serving.plugins.module_utils._preflight_request import (
    HostView,
    InstanceCheck,
    PathCheck,
    PortCheck,
    PreflightRequest,
    PreflightResult,
)
from ansible_collections.specdec.serving.plugins.module_utils._sockets import Listener, Owner

# The form of nvidia-smi's answer; no GPU is at hand to record one.
SMI = (
    "0, GPU-aaaa, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887, 00000000:01:00.0, 580.95.05, 12.0\n"
    "1, GPU-bbbb, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887, 00000000:C1:00.0, 580.95.05, 12.0\n"
)


class FakeHost:
    """Answers of the commands that the preflight runs."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, str]] = {
            "systemctl --version": (0, "systemd 252 (252.38-1~deb12u1)\n+PAM +AUDIT\n", ""),
            "nvidia-smi": (127, "", "No such file"),
            "/usr/bin/python3": (0, "3.11.2\n", ""),
            "systemctl show": (0, "LoadState=loaded\nControlGroup=/system.slice/sglang-a.service\n", ""),
            "systemd-detect-virt": (1, "none\n", ""),
            "systemd-run": (0, "credential is-here\n", ""),
            "systemctl list-unit-files": (0, "nvidia-persistenced.service enabled enabled\n", ""),
        }

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        return self.answers.get(" ".join(argv[:2])) or self.answers[argv[0]]


@pytest.fixture
def fake() -> FakeHost:
    return FakeHost()


def look(fake: FakeHost, request: PreflightRequest | None = None, **view: t.Any) -> PreflightResult:
    view.setdefault("find_listeners", lambda _port: ([], ""))
    return preflight(
        request or PreflightRequest(version="0.5.23", python="/usr/bin/python3"), HostView(runner=fake, **view)
    )


def test_a_host_without_a_gpu(fake: FakeHost) -> None:
    result = look(fake)
    assert result.errors == []
    assert result.facts["gpus"] == []
    assert result.facts["systemd_version"] == 252
    assert result.facts["credentials"] is True
    assert result.facts["python_version"] == "3.11.2"
    assert "lock_sha256" not in result.facts


def make_nodes(root: Path, cpus: dict[str, str], memory: str = "") -> None:
    """NUMA nodes as the kernel shows them below /sys, with the lists of their processors."""
    folder = root / "devices" / "system" / "node"
    for node, text in cpus.items():
        (folder / node).mkdir(parents=True)
        (folder / node / "cpulist").write_text(text + "\n")
    if memory:
        (folder / "has_memory").write_text(memory + "\n")


@pytest.mark.parametrize("text", ["-1\n", "", "odd\n", None], ids=["minus-one", "empty", "odd", "no-file"])
def test_a_gpu_without_a_numa_node(fake: FakeHost, tmp_path: Path, text: str | None) -> None:
    """Machines with one node and most virtual ones say -1."""
    fake.answers["nvidia-smi"] = (0, SMI, "")
    folder = tmp_path / "bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "numa_node").write_text(text)
    make_nodes(tmp_path, {"node0": "0-7", "node1": "8-15"})
    facts = look(fake, sys_root=str(tmp_path)).facts
    assert [gpu["numa_node"] for gpu in facts["gpus"]] == [-1, -1]
    # Kernels without the list have memory everywhere.
    assert [node["memory"] for node in facts["numa"]] == [True, True]


def test_mig_devices_belong_to_their_gpu(fake: FakeHost) -> None:
    fake.answers["nvidia-smi"] = (0, SMI, "")
    listing = (
        "GPU 0: NVIDIA H200 (UUID: GPU-aaaa)\n"
        "  MIG 1g.18gb     Device  0: (UUID: MIG-1111-22)\n"
        "  MIG 1g.18gb     Device  1: (UUID: MIG-1111-33)\n"
        "GPU 1: NVIDIA H200 (UUID: GPU-bbbb)\n"
    )
    fake.answers["nvidia-smi -L"] = (0, listing, "")
    request = PreflightRequest(
        version="0.5.23",
        python="/usr/bin/python3",
        instances=(InstanceCheck("a", "sglang-a.service", ("--port", "1"), gpus=("MIG-1111-33",)),),
        unit_dir="/no/units",
        state_dir="/no/state",
    )
    assert [gpu["mig"] for gpu in look(fake, request).facts["gpus"]] == [("MIG-1111-22", "MIG-1111-33"), ()]


def test_gpus_with_their_numa_nodes(fake: FakeHost, tmp_path: Path) -> None:
    fake.answers["nvidia-smi"] = (0, SMI, "")
    for address, node in (("0000:01:00.0", "0"), ("0000:c1:00.0", "1")):
        folder = tmp_path / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(node + "\n")
    make_nodes(tmp_path, {"node0": "0-15,32-47", "node1": "16-31", "node2": "", "possible": ""}, memory="0,2-3")
    facts = look(fake, sys_root=str(tmp_path)).facts
    assert [(gpu["index"], gpu["uuid"], gpu["numa_node"]) for gpu in facts["gpus"]] == [
        (0, "GPU-aaaa", 0),
        (1, "GPU-bbbb", 1),
    ]
    assert facts["gpus"][0]["memory_total_mib"] == 97887
    assert facts["gpus"][0]["compute_capability"] == "12.0"
    assert facts["driver_version"] == "580.95.05"
    assert facts["numa"] == [
        {"node": 0, "cpus": "0-15,32-47", "memory": True},
        {"node": 1, "cpus": "16-31", "memory": False},
        {"node": 2, "cpus": "", "memory": True},
    ]
    # Memory of a card or an expander is no place to run.
    assert facts["numa_nodes"] == [0, 1]
    assert [gpu["mig"] for gpu in facts["gpus"]] == [(), ()]
    assert facts["gpu_services"] == ["nvidia-persistenced.service"]


def test_parse_gpus_passes_over_other_lines() -> None:
    assert parse_gpus("Warning: x\n\n") == []
    assert parse_gpus("0, GPU-a, X, [N/A], 00000000:01:00.0, 580, 12.0\n")[0].memory_total_mib == 0


@pytest.mark.parametrize(
    ("answers", "needs_gpu", "message"),
    [
        pytest.param(
            {"nvidia-smi": (127, "", "")}, True, "nvidia-smi is not there, but GPUs are asked for", id="no-driver"
        ),
        pytest.param({"nvidia-smi": (0, "", "")}, True, "nvidia-smi shows no GPU", id="no-gpu"),
        pytest.param(
            {"nvidia-smi": (9, "Failed to initialize NVML", "")}, False, "Failed to initialize NVML", id="broken"
        ),
        pytest.param({"systemctl --version": (127, "", "No such file")}, False, "no systemd", id="no-systemd"),
        pytest.param({"/usr/bin/python3": (127, "", "No such file")}, False, "cannot be executed", id="no-python"),
        pytest.param(
            {"/usr/bin/python3": (1, "", "Traceback\nModuleNotFoundError: No module named 'ensurepip'")},
            False,
            "cannot make virtual environments (ModuleNotFoundError: No module named 'ensurepip'); install its venv package",
            id="no-venv",
        ),
    ],
)
def test_what_is_missing(fake: FakeHost, answers: dict[str, t.Any], needs_gpu: bool, message: str) -> None:
    fake.answers.update(answers)
    request = PreflightRequest(version="0.5.23", python="/usr/bin/python3", needs_gpu=needs_gpu)
    (error,) = look(fake, request).errors
    assert message in error


def test_credentials_need_systemd_247(fake: FakeHost) -> None:
    fake.answers["systemctl --version"] = (0, "systemd 245 (245.4)\n", "")
    assert look(fake).facts["credentials"] is False


class TestWheelhouse:
    def look(self, fake: FakeHost, folder: Path, version: str = "0.5.23") -> PreflightResult:
        return look(fake, PreflightRequest(version=version, python="/usr/bin/python3", wheelhouse=str(folder)))

    @pytest.fixture
    def wheelhouse(self, tmp_path: Path) -> Path:
        (tmp_path / "requirements.lock").write_text(
            "# sglang-engine: x\nAiohttp==3.14.5\nruamel.yaml==0.19\nsglang==0.5.23+cpu\n"
        )
        for name in ("aiohttp-3.14.5-py3-none-any", "ruamel_yaml-0.19-py3-none-any", "sglang-0.5.23+cpu-py3-none-any"):
            (tmp_path / f"{name}.whl").touch()
        return tmp_path

    def test_complete(self, fake: FakeHost, wheelhouse: Path) -> None:
        result = self.look(fake, wheelhouse)
        assert result.errors == []
        assert result.facts["lock_version"] == "0.5.23+cpu"
        assert len(result.facts["lock_sha256"]) == 64

    def test_missing_folder(self, fake: FakeHost, tmp_path: Path) -> None:
        (error,) = self.look(fake, tmp_path / "none").errors
        assert error == f"sglang_wheelhouse {str(tmp_path / 'none')!r} is no folder on this host"

    def test_without_a_lock(self, fake: FakeHost, tmp_path: Path) -> None:
        (error,) = self.look(fake, tmp_path).errors
        assert "has no readable requirements.lock (No such file or directory)" in error

    def test_without_sglang(self, fake: FakeHost, wheelhouse: Path) -> None:
        (wheelhouse / "requirements.lock").write_text("aiohttp==3.14.5\n")
        (error,) = self.look(fake, wheelhouse).errors
        assert "does not list sglang==VERSION" in error

    def test_another_version(self, fake: FakeHost, wheelhouse: Path) -> None:
        (error,) = self.look(fake, wheelhouse, version="0.5.12").errors
        assert "lists sglang==0.5.23+cpu, but sglang_version is '0.5.12'" in error

    def test_missing_wheels(self, fake: FakeHost, wheelhouse: Path) -> None:
        (wheelhouse / "ruamel_yaml-0.19-py3-none-any.whl").unlink()
        (error,) = self.look(fake, wheelhouse).errors
        assert "has no wheel for ruamel.yaml==0.19" in error


def test_paths(fake: FakeHost, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").touch()
    (tmp_path / "empty").mkdir()
    checks = tuple(
        PathCheck(str(tmp_path / name), f"a: {name}") for name in ("model", "empty", "absent", "model/config.json")
    )
    request = PreflightRequest(version="0.5.23", python="/usr/bin/python3", paths=checks)
    assert look(fake, request).errors == [
        f"a: empty {str(tmp_path / 'empty')!r} is an empty folder",
        f"a: absent {str(tmp_path / 'absent')!r} does not exist on this host",
    ]


class TestPorts:
    request = PreflightRequest(
        version="0.5.23",
        python="/usr/bin/python3",
        ports=(PortCheck(host="127.0.0.1", port=30001, unit="sglang-a.service"),),
    )
    listener = Listener(
        family=socket.AF_INET, address="127.0.0.1", port=30001, inode=5555, cgroup_id=7, uid=1000, source="sock_diag"
    )

    @pytest.mark.parametrize("owned", [False, None])
    def test_held_by_somebody_else(self, fake: FakeHost, owned: bool | None) -> None:
        view = {"find_listeners": lambda _port: ([self.listener], ""), "owned": lambda *_args: owned}
        (error,) = look(fake, self.request, **view).errors
        assert error.startswith("sglang-a.service: port 30001 is held by ")
        assert error.endswith("stop it or choose another port")

    def test_held_by_the_unit(self, fake: FakeHost) -> None:
        seen = []

        def owned(sockets: t.Sequence[Listener], control_group: str) -> bool:
            seen.append((list(sockets), control_group))
            return True

        assert look(fake, self.request, find_listeners=lambda _port: ([self.listener], ""), owned=owned).errors == []
        assert seen == [([self.listener], "/system.slice/sglang-a.service")]

    def test_another_argument_is_named(self, fake: FakeHost) -> None:
        ports = (
            PortCheck("0.0.0.0", 30001, UNIT, "nccl_port"),
            PortCheck("127.0.0.1", 30001, UNIT, "attention DP, from port 2"),
        )
        request = dataclasses.replace(self.request, ports=ports)
        view = {"find_listeners": lambda _port: ([self.listener], ""), "owned": lambda _sockets, _group: False}
        first, second = look(fake, request, **view).errors
        assert first.startswith("sglang-a.service: nccl_port: port 30001 is held by ")
        assert first.endswith("stop it or choose another nccl_port")
        assert second.endswith("stop it or choose another port")

    @pytest.mark.parametrize("prune", [False, True])
    def test_held_by_a_unit_that_left_the_list(
        self, fake: FakeHost, tmp_path: Path, prune: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner = Owner(self.listener, (77,), "sglang-old.service", "python", "python -m sglang.launch_server")
        monkeypatch.setattr(_preflight, "find_owners", lambda _sockets, **_options: [owner])
        (tmp_path / "sglang-old.service").write_text(
            "# sglang-old.service: written by the role specdec.serving.sglang. X\n"
        )
        fake.answers["systemctl show"] = (
            0,
            "LoadState=loaded\nActiveState=active\nControlGroup=/x/sglang-old.service\n",
            "",
        )
        request = dataclasses.replace(
            self.request,
            instances=(InstanceCheck("a", UNIT, ("--port", "30001")),),
            prune=prune,
            unit_dir=str(tmp_path),
            state_dir=str(tmp_path),
        )

        def owned(_sockets: t.Any, group: str) -> bool:
            # Asked for the unit itself first, for the one that leaves next.
            asked.append(group)
            return len(asked) > 1

        asked: list[str] = []
        result = look(fake, request, find_listeners=lambda _port: ([self.listener], ""), owned=owned)
        assert [unit["name"] for unit in result.facts["leftovers"]] == ["old"]
        if prune:
            assert result.errors == []
        else:
            (error,) = result.errors
            assert error.endswith(
                "another port (sglang-old.service left sglang_instances: sglang_prune: true removes it)"
            )

    def test_another_address(self, fake: FakeHost) -> None:
        other = dataclasses.replace(self.listener, address="127.0.0.2")
        assert look(fake, self.request, find_listeners=lambda _port: ([other], "")).errors == []

    def test_a_real_listener(self, fake: FakeHost) -> None:
        from ansible_collections.specdec.serving.plugins.module_utils._sockets import listeners

        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            port = server.getsockname()[1]
            request = dataclasses.replace(self.request, ports=(PortCheck("127.0.0.1", port, "sglang-a.service"),))
            (error,) = look(fake, request, find_listeners=listeners).errors
        assert f"port {port} is held by pid" in error

    def test_unknown(self, fake: FakeHost) -> None:
        def fail(_port: int) -> t.Any:
            raise OSError(13, "Permission denied")

        (error,) = look(fake, self.request, find_listeners=fail).errors
        assert "who holds port 30001 cannot be found out" in error


def test_complete_engines(fake: FakeHost, tmp_path: Path) -> None:
    for name, files in (
        ("0.5.23-a", ("engine.json", "bin/python")),
        ("0.5.23-b", ("bin/python",)),
        ("0.5.23-c", ("engine.json",)),
    ):
        for file in files:
            path = tmp_path / "engines" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"format": 1}')
            path.chmod(0o755)
    request = PreflightRequest(version="0.5.23", python="/usr/bin/python3", root=f"{tmp_path}/")
    assert look(fake, request).facts["engines"] == ["0.5.23-a"]
    assert look(fake, dataclasses.replace(request, root="/no/root")).facts["engines"] == []


def test_all_faults_at_once(fake: FakeHost, tmp_path: Path) -> None:
    fake.answers["/usr/bin/python3"] = (127, "", "")
    request = PreflightRequest(
        version="0.5.23",
        python="/usr/bin/python3",
        wheelhouse=str(tmp_path / "none"),
        paths=(PathCheck("/no/model", "a: model_path"),),
        needs_gpu=True,
        user="no-such-user",
    )
    result = look(fake, request)
    assert len(result.errors) == 4
    assert result.facts["user_exists"] is False


# --- instances ----------------------------------------------------------------------------------------------------------------

PROFILES = Path(__file__).resolve().parents[3] / "support/stand_in/src/sglang/stand_in/profiles"
UNIT = "sglang-a.service"


def asker(release: str = "0.5.23", **more: t.Any) -> t.Callable[..., t.Any]:
    """What makes a runner that answers as the engine of a release does, with its recorded parser."""
    actions = json.loads((PROFILES / release / "arguments.json").read_text())
    text = "noise\nspecdec-parser:" + json.dumps({"actions": actions, "algorithms": ["DFLASH", "NGRAM"], **more})
    return lambda **_options: lambda _argv: (0, text, "")


class TestInstances:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        engine = tmp_path / "engines/0.5.23-abc"
        (engine / "bin").mkdir(parents=True)
        (engine / "bin/python").touch(0o755)
        (engine / "engine.json").write_text('{"format": 1}')
        for name, content in (
            ("target", {"text_config": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61}}),
            ("draft", {"block_size": 8, "num_hidden_layers": 5}),
        ):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text(json.dumps(content))
            (tmp_path / name / "model-1.safetensors").write_bytes(b"x" * 64)
            size = 577 * 2**30 if name == "target" else 6 * 2**30
            (tmp_path / name / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": {"total_size": size}, "weight_map": {"x": "model-1.safetensors"}})
            )
        return tmp_path

    @pytest.fixture
    def eight(self, fake: FakeHost) -> FakeHost:
        rows = [
            f"{n}, GPU-{n}, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887, 00000000:0{n}:00.0, 580.95.05, 12.0"
            for n in range(8)
        ]
        fake.answers["nvidia-smi"] = (0, "\n".join(rows) + "\n", "")
        return fake

    def look(
        self,
        fake: FakeHost,
        root: Path,
        *words: str,
        version: str = "0.5.23",
        make_runner: t.Any = None,
        engine: str = "0.5.23-abc",
        prune: bool = False,
        **changes: t.Any,
    ) -> PreflightResult:
        argv = (
            "/e/bin/python",
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(root / "target"),
            "--tp-size",
            "8",
            *words,
        )
        values: dict[str, t.Any] = {
            "name": "a",
            "unit": UNIT,
            "argv": argv,
            "origins": {"tp_size": "sglang_instances[0] (a): args"},
            "model_path": str(root / "target"),
            **changes,
        }
        request = PreflightRequest(
            version=version,
            python="/usr/bin/python3",
            user="nobody-of-that-name",
            root=str(root),
            engine=str(root / "engines" / engine),
            instances=(InstanceCheck(**values),),
            prune=prune,
            unit_dir=str(root / "units"),
            state_dir=str(root / "state"),
        )
        view = {"make_runner": make_runner or asker(version), "which": lambda name, **_path: name}
        return look(fake, request, shared_memory=2**33, proc=str(root), **view)

    def test_fits(self, eight: FakeHost, root: Path) -> None:
        result = self.look(eight, root, "--disable-cuda-graph", "--mem-fraction-static", "0.85")
        assert result.errors == []
        (verdict,) = result.instances
        assert verdict["name"] == "a"
        assert verdict["argv"][-1] == "0.85"
        assert verdict["estimate"]["weights_gib"] == 72.12
        assert verdict["estimate"]["fits"] is True
        assert result.facts["parser"]["source"] == "engine"
        assert result.facts["parser"]["arguments"] > 500
        assert any("'disable_cuda_graph' is deprecated" in warning for warning in result.warnings)
        assert self.look(eight, root).facts["parser"]["source"] == "cache"

    def test_all_faults_of_arguments(self, eight: FakeHost, root: Path) -> None:
        words = ("--tp-size", "x", "--cuda-graph-max-bs", "8", "--speculative-algorithm", "DFLASHY", "--dtype", "fp16")
        result = self.look(eight, root, *words)
        assert [error.partition(": '")[0] for error in result.errors[:2]] == [
            "sglang_instances[0] (a): args",
            "a: its command line",
        ]
        text = "\n".join(result.errors)
        for part in (
            "'tp_size' must be",
            "use cuda_graph_max_bs_decode",
            "none that this engine knows",
            "'dtype' is 'fp16'",
        ):
            assert part in text
        assert result.instances[0]["errors"] == result.errors

    def test_the_weights_do_not_fit(self, eight: FakeHost, root: Path) -> None:
        (error,) = self.look(eight, root, "--mem-fraction-static", "0.5").errors
        assert error.startswith("a: the weights do not fit: weights 72.1 GiB, draft 0.0 GiB")

    def test_little_room(self, eight: FakeHost, root: Path) -> None:
        result = self.look(eight, root, "--mem-fraction-static", "0.85", wanted_tokens=10**7)
        assert result.errors == []
        assert "10000000 are wanted at once" in "".join(result.warnings)

    def test_fewer_gpus_than_ranks(self, eight: FakeHost, root: Path) -> None:
        (error,) = self.look(eight, root, gpus=("0", "1", "GPU-2")).errors
        assert "need 8 GPUs on this host, but the instance may use 3" in error

    def test_a_model_that_is_not_complete(self, eight: FakeHost, root: Path) -> None:
        (root / "target/model-1.safetensors").unlink()
        (error,) = self.look(eight, root).errors
        assert "its index names model-1.safetensors, which is not there or empty" in error

    @pytest.mark.parametrize("running", [False, True])
    def test_foreign_processes(self, eight: FakeHost, root: Path, running: bool) -> None:
        eight.answers["nvidia-smi --query-compute-apps=pid,gpu_uuid,used_gpu_memory"] = (0, "4242, GPU-3, 40960\n", "")
        if running:
            eight.answers["systemctl show"] = (0, "LoadState=loaded\nActiveState=active\nMainPID=1\n", "")
        result = self.look(eight, root)
        text = (
            "GPU 3 (NVIDIA RTX PRO 6000 Blackwell Server Edition): pid 4242 (not visible from here) holds 40960 MiB,"
            " which a would have to do without"
        )
        if running:
            assert result.errors == []
            assert text in result.warnings
        else:
            assert result.errors == [f"{text}; stop it (it is never stopped for you), or choose other 'gpus'"]

    @pytest.mark.parametrize("prune", [False, True])
    def test_a_process_of_a_unit_that_left_the_list(self, eight: FakeHost, root: Path, prune: bool) -> None:
        eight.answers["nvidia-smi --query-compute-apps=pid,gpu_uuid,used_gpu_memory"] = (0, "4242, GPU-3, 40960\n", "")
        (root / "4242").mkdir()
        (root / "4242/cgroup").write_text("0::/system.slice/system-sglang\\x2da.slice/sglang-a@3.service\n")
        (root / "units").mkdir()
        line = "# sglang-a@3.service: written by the role specdec.serving.sglang. X\n"
        (root / "units/sglang-a@3.service").write_text(line)
        errors = self.look(eight, root, prune=prune).errors
        if prune:
            assert errors == []
        else:
            (error,) = errors
            assert "of sglang-a@3.service holds 40960 MiB" in error
            assert error.endswith("(sglang-a@3.service left sglang_instances: sglang_prune: true removes it)")

    def test_a_foreign_process_on_another_gpu(self, eight: FakeHost, root: Path) -> None:
        eight.answers["nvidia-smi --query-compute-apps=pid,gpu_uuid,used_gpu_memory"] = (0, "4242, GPU-7, 40960\n", "")
        result = self.look(eight, root, "--tp-size", "2", "--load-format", "dummy", gpus=("0", "1"), model_path="org/m")
        assert result.errors == []

    def test_the_driver_is_too_old(self, eight: FakeHost, root: Path) -> None:
        eight.answers["nvidia-smi"] = (0, eight.answers["nvidia-smi"][1].replace("580.95.05", "570.86.15"), "")
        (error,) = self.look(eight, root, make_runner=asker(torch_cuda="13.0")).errors
        assert "the GPU driver 570.86.15 is too old for this engine, which is built for CUDA 13.0" in error

    def test_an_engine_that_is_not_there_yet(self, fake: FakeHost, root: Path) -> None:
        result = self.look(fake, root, "--zzz", "--nnodes", "3", engine="0.5.23-none")
        assert result.facts["parser"]["source"] == ""
        # What needs no parser is told all the same.
        assert [error.rpartition("[")[2] for error in result.errors] == ["nodes-divide]", "nodes-need-address]"]

    def test_an_engine_that_does_not_answer(self, fake: FakeHost, root: Path) -> None:
        def make_runner(**_options: t.Any) -> t.Any:
            return lambda _argv: (1, "", "Traceback\nImportError: libcuda.so.1: cannot open shared object file\n")

        result = self.look(fake, root, make_runner=make_runner)
        assert result.errors == []
        assert "ImportError: libcuda.so.1" in result.warnings[0]

    def test_keys_need_a_file_for_them(self, fake: FakeHost, root: Path) -> None:
        result = self.look(fake, root, version="0.4.6", has_key=True)
        assert result.errors == ["a: SGLang 0.4.6 has no 'config', so keys cannot be given to it; use a newer release"]

    def test_ngram_needs_a_compiler(self, fake: FakeHost, root: Path) -> None:
        words = ("--speculative-algorithm", "NGRAM", "--device", "cpu")
        assert self.look(fake, root, *words).errors == []
        request_view = {"which": lambda _name, **_path: None}
        argv = ("--model-path", "/m", *words)
        request = PreflightRequest(
            version="0.5.23", python="/usr/bin/python3", root=str(root), engine=str(root / "engines/0.5.23-abc"),
            instances=(InstanceCheck(name="a", unit=UNIT, argv=argv),),
        )  # fmt: skip
        (error,) = look(fake, request, make_runner=asker(), **request_view).errors
        assert error.startswith("a: NGRAM compiles a library at its first start")

    def test_secrets_are_in_no_result(self, eight: FakeHost, root: Path) -> None:
        result = self.look(eight, root, "--ssl-keyfile-password", "planted-91ab77", "--api-key=planted-91ab78", "--zzz")
        assert "planted" not in json.dumps(dataclasses.asdict(result))

    def test_a_container(self, eight: FakeHost, root: Path) -> None:
        eight.answers["systemd-detect-virt"] = (0, "podman\n", "")
        assert any("this host is a container (podman)" in warning for warning in self.look(eight, root).warnings)


class TestSandbox:
    SETTINGS = ("ProtectSystem=strict", "ProtectProc=invisible")

    def look(self, fake: FakeHost, user: str = "root") -> PreflightResult:
        return look(
            fake, PreflightRequest(version="0.5.23", python="/usr/bin/python3", user=user, hardening=self.SETTINGS)
        )

    def test_what_does_not_work_is_a_fact_and_no_fault(self, fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 0)
        fake.answers["systemd-run"] = (226, "", "")
        fake.answers["journalctl"] = (0, "", "")
        result = self.look(fake)
        # Not even a unit without any of them starts.
        assert result.facts["hardening_refused"] == {}
        assert "no unit can be started" in result.warnings[0]
        fake.answers["systemd-run"] = (0, "NoNewPrivs:\t0\nSeccomp:\t2\n", "")
        result = self.look(fake)
        assert set(result.facts["hardening_refused"]) == {"ProtectSystem", "ProtectProc"}
        assert (result.errors, result.warnings) == ([], [])

    @pytest.mark.parametrize("there", [True, False])
    def test_keys_lie_in_files_where_credentials_do_not_arrive(
        self, fake: FakeHost, monkeypatch: pytest.MonkeyPatch, there: bool
    ) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 0)
        fake.answers["systemd-run"] = (0, f"credential {'is-here' if there else ''}\n", "")
        server = InstanceCheck(name="a", unit="sglang-a.service", argv=("x",), has_key=True)
        request = PreflightRequest(version="0.5.23", python="/usr/bin/python3", instances=(server,))
        result = look(fake, request)
        assert result.facts["credentials"] is there
        assert any("credentials do not reach a unit" in warning for warning in result.warnings) is not there
        # Without instances, too: the units' texts follow from it.
        result = look(fake, PreflightRequest(version="0.5.23", python="/usr/bin/python3"))
        assert (result.facts["credentials"], result.warnings) == (there, [])

    def test_without_root_nothing_is_tried(self, fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        assert self.look(fake).facts["hardening_refused"] == {}

    @pytest.mark.parametrize(("user", "system"), [("root", False), ("daemon", True), ("no-such-user", True)])
    def test_whether_the_user_is_a_system_user(self, fake: FakeHost, user: str, system: bool) -> None:
        fake.answers["systemd-run"] = (0, "", "")
        assert self.look(fake, user).facts["user_is_system"] is system


def test_folders_that_may_be_empty(fake: FakeHost, tmp_path: Path) -> None:
    paths = [
        PathCheck(str(tmp_path), "out"),
        PathCheck(str(tmp_path), "out", may_be_empty=True),
        PathCheck("/nope", "out", True),
    ]
    for check, errors in zip(paths, (1, 0, 1)):
        request = PreflightRequest(version="0.5.23", python="/usr/bin/python3", paths=(check,))
        assert len(look(fake, request).errors) == errors


def test_caches_of_another_service_user(fake: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    owner = (tmp_path / "cache").stat().st_uid
    fake.answers["setpriv"] = (0, f"w:{tmp_path}/cache\n", "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.struct_passwd((name, "x", 999, 999, "", "/", "/bin/sh")))
    check = InstanceCheck(
        name="a", unit="sglang-a.service", argv=("--model-path", "x/y"), cache_dirs=(f"{tmp_path}/cache",)
    )
    request = PreflightRequest(version="0.5.23", python="/usr/bin/python3", user="llm", instances=(check,))
    errors = look(fake, request).errors
    assert (
        f"the service user 'llm' cannot write to '{tmp_path}/cache'; it belongs to user id {owner}: chown -R llm: {tmp_path}/cache"
        in errors
    )
