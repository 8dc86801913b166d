# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys reach the server, and nothing else: not in any encoding, whatever becomes of the deployment."""

from __future__ import annotations

import base64
import json
import re
import typing as t
import urllib.parse

import pytest

from ansible_collections.specdec.serving.tests.integration.secrets.conftest import CANARY, SECRETS, Campaign
from ansible_collections.specdec.serving.tests.integration.secrets.search import find, members

#: Where secrets belong, readable by root alone; those of configurations that can be gone back to stay.
HOLDERS = {
    re.compile(r"etc/specdec/sglang/credentials/a\.[^/]+\.yaml"): {"api_key", "admin_api_key", "api_key, replaced"},
    re.compile(r"etc/specdec/sglang/a\.[^/]+\.secret\.env"): {"HF_TOKEN", "DB_PASSWORD"},
}


def allowed(path: str) -> set[str]:
    """Names of the secrets that a file of the host may hold."""
    return {name for pattern, names in HOLDERS.items() if pattern.fullmatch(path) for name in names}


def names(found: list[str]) -> set[str]:
    """The secrets without their encodings."""
    return {text.partition(" (")[0] for text in found}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(str.encode, id="raw"),
        pytest.param(lambda text: json.dumps({"x": text}).encode(), id="json"),
        pytest.param(lambda text: json.dumps(json.dumps({"x": text})).encode(), id="json in json"),
        pytest.param(lambda text: repr({"x": text}).encode(), id="repr"),
        pytest.param(lambda text: urllib.parse.quote(text, safe="").encode(), id="url"),
        pytest.param(lambda text: urllib.parse.urlencode({"x": text}).encode(), id="form"),
        pytest.param(lambda text: base64.b64encode(text.encode()), id="base64"),
        pytest.param(lambda text: base64.b64encode(b"user:" + text.encode()), id="basic authentication"),
        pytest.param(lambda text: base64.b64encode(b"us:" + text.encode() + b"\n"), id="base64 of a line"),
        pytest.param(lambda text: text.encode().hex().encode(), id="hex"),
        pytest.param(lambda text: "".join(f"\\u{ord(sign):04x}" for sign in text).encode(), id="escapes"),
    ],
)
def test_the_search_can_find(write: t.Callable[[str], bytes], secret: str) -> None:
    blob = b"first line\nbefore " + write(secret) + b" after\n"
    assert find(blob, {"it": secret})
    assert not find(blob, {"it": "an0ther/secret+that=is&not-there"})


def test_host_every_outcome_was_reached(campaign: Campaign) -> None:
    assert campaign.codes == {
        **dict.fromkeys(campaign.codes, 0),
        "hung": 2,
        "crashed": 2,
    }, {step: campaign.said[step][-1500:] for step, code in campaign.codes.items() if code}
    assert "READY" in campaign.said["ready, first key"]
    assert "READY" in campaign.said["ready, new key"]
    assert "unauthorized" in campaign.said["wrong key"]
    assert "HUNG" in campaign.said["hung"]
    assert "gpu_out_of_memory" in campaign.said["crashed"]
    for step in ("hung", "crashed"):
        assert "put back" in campaign.said[step], step


def test_host_what_ansible_says_at_its_most_verbose(campaign: Campaign) -> None:
    assert {step: found for step, text in campaign.said.items() if (found := find(text.encode(), SECRETS))} == {}
    log = (campaign.folder / "ansible.log").read_bytes()
    assert find(log, SECRETS) == []
    # Diffs, results and labels were there to be searched.
    for step in ("check", "ready, first key", "ready, new key", "hung", "crashed"):
        assert find(campaign.said[step].encode(), {"canary": CANARY}), step
    assert find(log, {"canary": CANARY})
    assert "another secret, not shown" in campaign.said["ready, new key"]
    assert "(another secret)" in campaign.said["all differs"]


def test_host_command_lines_of_all_processes(campaign: Campaign) -> None:
    lines = b"\n".join(line.replace(b"\0", b" ") for line in campaign.arguments)
    assert find(lines, SECRETS) == []
    # The server and the controller were among them.
    assert find(lines, {"canary": CANARY})
    assert b"deploy.yml" in lines
    assert b"credentials/sglang-a.service/a.yaml" in lines
    assert campaign.samples > 100


def test_host_files_on_the_target(campaign: Campaign) -> None:
    wrong: dict[str, list[str]] = {}
    held: dict[str, set[str]] = {}
    for step, tree in campaign.trees.items():
        for path, (mode, owner, content) in tree.items():
            found = find(content, SECRETS)
            held.setdefault(step, set()).update(names(found))
            if names(found) - allowed(path) or (found and (mode & 0o077 or owner != "root")):
                wrong[f"{step}: {path} {mode:o} {owner}"] = found
    assert wrong == {}
    # The search saw the places where keys belong, and all others.
    assert held["check"] == set()
    assert held["ready, first key"] == {"admin_api_key", "api_key, replaced", "HF_TOKEN", "DB_PASSWORD"}
    assert held["ready, new key"] == {*held["ready, first key"], "api_key"}
    holders = {path for path, row in campaign.trees["crashed"].items() if find(row[2], {"canary": CANARY})}
    for pattern in (
        r"etc/specdec/sglang/a\.[0-9a-f]{12}\.env",
        r"etc/systemd/system/sglang-a\.service",
        r"var/lib/specdec/sglang/known-good/a/\w+\.json",
        *(
            rf"var/lib/specdec/sglang/evidence/.*\.tar\.gz!.*/{inner}"
            for inner in ("environment.txt", "arguments.txt", "unit.txt")
        ),
    ):
        assert any(re.fullmatch(pattern, path) for path in holders), (pattern, sorted(holders))
    assert {"var/lib/specdec/sglang/starts.jsonl", "var/lib/specdec/sglang/a.json"} <= set(campaign.trees["status"])


def test_host_nothing_of_ansible_is_left_on_the_target(campaign: Campaign) -> None:
    left = {
        path
        for tree in campaign.trees.values()
        for path in tree
        if re.search(r"(^|/)\.ansible/|ansible-tmp|AnsiballZ|ansible_.*payload", path)
    }
    assert left == set()


def test_host_units_as_systemd_knows_them(campaign: Campaign) -> None:
    assert {step: found for step, text in campaign.units.items() if (found := find(text, SECRETS))} == {}
    assert find(campaign.units["status"], {"canary": CANARY})


def test_host_environments_of_processes(campaign: Campaign) -> None:
    """Variables are the server's by their nature; its keys are not."""
    keys = {name: secret for name, secret in SECRETS.items() if "key" in name}
    assert {step: found for step, text in campaign.environments.items() if (found := find(text, keys))} == {}
    variables = {name: SECRETS[name] for name in ("HF_TOKEN", "DB_PASSWORD")}
    assert names(find(campaign.environments["status"], variables)) == set(variables)
    assert find(campaign.environments["stop"], variables) == []


def test_host_the_journal_but_for_the_servers_own_log(campaign: Campaign) -> None:
    assert find(campaign.journal, SECRETS) == []
    # What SGLang itself prints is documented; it shows that the journal was read.
    assert {"api_key", "admin_api_key"} <= names(find(campaign.server_log, SECRETS))
    assert b"ansible-" in campaign.journal


def test_host_what_was_collected_on_the_controller(campaign: Campaign) -> None:
    archives = list((campaign.folder / "collected").glob("*.tar.gz"))
    assert archives
    files = {
        f"{archive.name}!{path}": content
        for archive in archives
        for path, _mode, _owner, content in members(archive.read_bytes())
    }
    assert {path: found for path, content in files.items() if (found := find(content, SECRETS))} == {}
    assert any(find(content, {"canary": CANARY}) for content in files.values())
    left = [
        str(path)
        for path in (campaign.folder / "ansible").rglob("*")
        if path.is_file() and find(path.read_bytes(), SECRETS)
    ]
    assert left == []
