# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.specdec.serving.plugins.filter.instances import FilterModule

FILTERS = FilterModule().filters()
ENGINE = FILTERS["sglang_engine"]("0.5.23", root="/opt/specdec", requirements=["sglang==0.5.23"])
GOOD = [{"name": "a", "model_path": "/models/a", "api_key": "sk-planted-3c1", "env": {"HF_TOKEN": "hf_planted_3c1"}}]


def test_all_faults_as_a_list() -> None:
    with pytest.raises(AnsibleFilterError) as caught:
        FILTERS["sglang_instances"](
            [{"name": "a"}, {"name": "a b", "model_path": "/x", "port": 1}], version="0.5.23", engine=ENGINE
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "this cannot be deployed; nothing on the host was changed:"
    assert len(lines) == 3
    assert all(line.startswith("- ") for line in lines[1:])


def test_units_and_secrets_fit_the_module() -> None:
    resolved = FILTERS["sglang_instances"](GOOD, version="0.5.23", engine=ENGINE)
    (unit,) = FILTERS["sglang_units"](resolved, {"a": "[Service]\n"})
    assert unit["content"] == "[Service]\n"
    assert unit["engine"] == ENGINE["path"]
    assert unit["environment_file"] == resolved[0]["environment_file"]
    assert FILTERS["sglang_units"](resolved)[0]["content"] == ""
    secrets = FILTERS["sglang_secrets"](GOOD)
    assert secrets == {"a": {"config": {"api_key": "sk-planted-3c1"}, "environment": {"HF_TOKEN": "hf_planted_3c1"}}}
    # The module refuses unknown keys of a unit; its specification is the other half of this contract.
    from ansible_collections.specdec.serving.plugins.modules.sglang_unit import ARGUMENT_SPEC

    assert set(unit) == set(ARGUMENT_SPEC["units"]["options"])


@pytest.mark.parametrize(
    "module",
    ["sglang_drift", "sglang_engine", "sglang_known_good", "sglang_preflight", "sglang_unit", "sglang_unit_info"],
)
def test_documentation_is_the_specification(module: str) -> None:
    import importlib

    found = importlib.import_module(f"ansible_collections.specdec.serving.plugins.modules.{module}")

    def described(options: dict[str, dict[str, object]]) -> dict[str, object]:
        return {
            name: {
                **{key: option.get(key) for key in ("type", "default", "choices", "elements")},
                "required": bool(option.get("required")),
                "sub": described(option.get("suboptions") or option.get("options") or {}),  # type: ignore[arg-type]  # checked by use
            }
            for name, option in options.items()
        }

    documentation = yaml.safe_load(found.DOCUMENTATION)
    options = dict(documentation["options"])
    for fragment in documentation["extends_documentation_fragment"]:
        # NAMESPACE.COLLECTION.FRAGMENT, and a part of it where it has several.
        name, _dot, part = fragment.removeprefix("specdec.serving.").partition(".")
        shared = importlib.import_module(f"ansible_collections.specdec.serving.plugins.doc_fragments.{name}")
        text = getattr(shared.ModuleDocFragment, part.upper() or "DOCUMENTATION")
        options.update(yaml.safe_load(text).get("options") or {})
    assert described(options) == described(found.ARGUMENT_SPEC)


def test_checks_hold_no_secret_and_say_where_arguments_come_from() -> None:
    instances = [
        {
            "name": "a",
            "model_path": "/models/a",
            "api_key": "planted-91ab77",
            "gpus": [0],
            "args": {"tp": 2},
            "env": {"HF_TOKEN": "hf_planted_91ab77", "X": "1"},
        }
    ]
    options = {"version": "0.5.23", "engine": ENGINE, "default_args": {"enable_metrics": True, "tp_size": 1}}
    resolved = FILTERS["sglang_instances"](instances, gpu_profile="rtx_pro_6000", **options)
    (check,) = FILTERS["sglang_checks"](resolved)
    assert "planted" not in str(check)
    assert (check["has_key"], check["gpus"], check["unit"]) == (True, ["0"], "sglang-a.service")
    assert check["environment"]["X"] == "1"
    assert check["argv"] == resolved[0]["argv"]
    assert check["origins"] == {
        "cuda_graph_backend_prefill": "GPU profile 'rtx_pro_6000'",
        "enable_metrics": "sglang_default_args",
        "host": "sglang_instances[0] (a): host",
        "model_path": "sglang_instances[0] (a): model_path",
        "nccl_port": "the role's defaults",
        "port": "sglang_instances[0] (a): port",
        "served_model_name": "sglang_instances[0] (a): served_model_name",
        "tp_size": "sglang_instances[0] (a): args",
        "uvicorn_access_log_exclude_prefixes": "the role's defaults",
    }
