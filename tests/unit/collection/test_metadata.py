# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The metadata of the collection agrees with itself and with what the folders hold."""

from __future__ import annotations

import re

import yaml

from ansible_collections.specdec.serving.tests.support.toolchain import source_tree
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT

GALAXY = yaml.safe_load((ROOT / "galaxy.yml").read_text())
#: What ansible-test needs in an archive though it is not packed.
FOR_ANSIBLE_TEST = ("tests/config.yml",)


def test_an_archive_holds_what_is_packed_and_what_ansible_test_needs() -> None:
    ignored = set(GALAXY["build_ignore"])
    left = [name for name in source_tree.exported(root=ROOT) if name.split("/")[0] in ignored]
    assert [name for name in left if not name.startswith(FOR_ANSIBLE_TEST)] == []
    packed = {name for name in source_tree.files(root=ROOT) if name.split("/")[0] not in ignored}
    assert packed <= set(source_tree.exported(root=ROOT))


def test_every_module_is_in_the_action_group() -> None:
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())
    modules = {f"specdec.serving.{path.stem}" for path in (ROOT / "plugins" / "modules").glob("*.py")}
    assert set(runtime["action_groups"]["sglang"]) == modules


def test_every_root_playbook_only_imports_the_collections() -> None:
    playbooks = [name for name in source_tree.files(root=ROOT) if re.fullmatch(r"[a-z_]+\.yml", name)]
    playbooks.remove("galaxy.yml")
    assert "deploy.yml" in playbooks
    for name in playbooks:
        plays = yaml.safe_load((ROOT / name).read_text())
        imported = [play.get("ansible.builtin.import_playbook", "") for play in plays]
        assert all(target.startswith("specdec.serving.") for target in imported), f"{name}: {imported}"
        assert name in GALAXY["build_ignore"]


def test_no_check_is_ignored_without_a_reason_beside_it() -> None:
    # ansible-test's ignore files are not allowed by ansible-lint's production profile either.
    assert not list((ROOT / "tests").glob("sanity/ignore-*.txt"))
    bare = [
        f"{name}:{number}"
        for name in source_tree.files(root=ROOT)
        if name.endswith(".py")
        for number, line in enumerate((ROOT / name).read_text().splitlines(), start=1)
        if re.search(r"#\s*(?:pylint: disable=[\w,-]+|type: ignore(?:\[[\w, -]+\])?|noqa(?:: [A-Z\d, ]+)?)\s*$", line)
    ]
    assert bare == []
