# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Thousands of values through the real systemd of a lab host: what a program gets must be byte-identical."""

from __future__ import annotations

import itertools
import json
import random
import re
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import (
    CredentialFile,
    environment_file,
    exec_line,
    list_word,
    setting_value,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd_reading import (
    environment_values,
    exec_words,
    expanded,
    merged,
    parse_unit,
)
from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, up

pytestmark = pytest.mark.lab

UNITS = 8
WORDS_PER_UNIT = 500
SPECIAL = list("\"'\\%$;#{}()[]<>|&*?~`!@:+-= \t,/abnrtsx0é模🚀\r\x01\x1b\x7f\u00a0\u0085\u2028\ue000")
NONCHARACTERS = ["\ufdd0", "\ufffe", "\U0001ffff"]
NAMED = [
    "",
    "pa$5w",
    "${HOME}",
    "$HOME",
    "$$",
    "$",
    "%",
    "%%",
    "%n %i %H",
    "it's",
    'a"b',
    "back\\slash",
    "\\",
    "\\;",
    ";",
    "#",
    "-@:+!/bin/true",
    '{"method": "x", "n": 16, "s": "a b%c$d"}',
    '{"a":{"b":1}}',
    "${CREDENTIALS_DIRECTORY}/probe.yaml",
    "größe 模型 🚀",
    "\ufeffbyte order mark",
    " leading",
    "trailing ",
    "x" * 5000,
]

# Written with hex, so that nothing between the program and us can change a byte.
DUMP = r"""
import json, os, sys
with open(sys.argv[1] + ".new", "w") as out:
    json.dump({
        "argv": [os.fsencode(word).hex() for word in sys.argv[2:]],
        "environ": {os.fsdecode(name): value.hex() for name, value in os.environb.items() if name.startswith(b"V")},
        "credentials": os.environ.get("CREDENTIALS_DIRECTORY", ""),
        "folder": os.fsencode(os.getcwd()).hex(),
    }, out)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


@pytest.fixture(scope="module")
def host() -> Host:
    try:
        lab_host = up(["quoting"])["quoting"]
    except LabError as error:
        pytest.skip(f"no lab host: {error}")
    lab_host.write_file("/opt/quoting/dump.py", DUMP)
    return lab_host


def generated(seed: str, count: int) -> list[str]:
    """The named values, every pair of special characters, then random ones, long and short."""
    rng = random.Random(seed)
    values = [*NAMED, *("".join(pair) for pair in itertools.product(SPECIAL, repeat=2))]
    while len(values) < count:
        length = rng.choice([1, 3, 8, 40, 200])
        characters = [
            rng.choice(SPECIAL)
            if rng.random() < 0.7
            else chr(rng.choice([rng.randrange(1, 0x300), rng.randrange(0xE000, 0x10000)]))
            for _ in range(length)
        ]
        values.append("".join(characters).replace("\n", "").replace("\0", ""))
    return values


def run_unit(host: Host, name: str, lines: t.Sequence[str]) -> dict[str, t.Any]:
    """Run one unit and return what its program saw; fails with systemd's own words."""
    text = "\n".join(["[Unit]", *lines[:1], "[Service]", "Type=oneshot", *lines[1:], ""])
    # One call: entering the host costs more than what is done there.
    script = (
        f"rm -f /opt/quoting/{name}.json; cat > /run/systemd/system/{name}.service; systemctl daemon-reload;"
        f" systemctl start {name}.service && cat /opt/quoting/{name}.json"
        f" || {{ journalctl --no-pager --quiet --lines=20 --unit {name}.service >&2; exit 1; }}"
    )
    done = host.exec(["sh", "-c", script], input=text, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, t.Any] = json.loads(done.stdout)
    return seen


def command(name: str, words: t.Sequence[str | CredentialFile]) -> str:
    return "ExecStart=" + exec_line(
        ["/usr/bin/python3", "/opt/quoting/dump.py", f"/opt/quoting/{name}.json", *words], origin="test"
    )


def test_arguments(host: Host, seed: str) -> None:
    values = [*generated(seed, UNITS * WORDS_PER_UNIT - len(NONCHARACTERS)), *NONCHARACTERS]
    wrong = []
    for number in range(UNITS):
        words = values[number * WORDS_PER_UNIT : (number + 1) * WORDS_PER_UNIT]
        seen = run_unit(host, f"quoting-argv-{number}", ["", command(f"quoting-argv-{number}", words)])
        got = [bytes.fromhex(word) for word in seen["argv"]]
        assert len(got) == len(words)
        wrong += [(word, back) for word, back in zip(words, got, strict=True) if word.encode() != back]
    assert wrong == []
    print(f"{len(values)} arguments came back byte-identical")


def test_environment(host: Host, seed: str) -> None:
    values = [
        value
        for value in generated(seed, UNITS * WORDS_PER_UNIT)
        if "\ufeff" not in value and not set(value) & {"\ufffe", "\uffff"}
    ]
    values = [value for value in values if not any(0xFDD0 <= ord(char) <= 0xFDEF for char in value)]
    wrong = []
    for number in range(UNITS):
        some = {
            f"V{index}": value
            for index, value in enumerate(values[number * WORDS_PER_UNIT : (number + 1) * WORDS_PER_UNIT])
        }
        name = f"quoting-env-{number}"
        host.write_file(f"/opt/quoting/{name}.env", environment_file(some, origin="test"))
        seen = run_unit(host, name, ["", f"EnvironmentFile=/opt/quoting/{name}.env", command(name, [])])
        got = {key: bytes.fromhex(value) for key, value in seen["environ"].items()}
        assert got.keys() == some.keys()
        wrong += [(value, got[key]) for key, value in some.items() if value.encode() != got[key]]
    assert wrong == []
    print(f"{len(values)} variables came back byte-identical")


def test_credential_is_the_only_word_that_is_expanded(host: Host) -> None:
    name = "quoting-credential"
    host.write_file("/opt/quoting/probe.yaml", "x: 1\n", mode="0600")
    words: list[str | CredentialFile] = [
        "--config",
        CredentialFile("probe.yaml"),
        "${CREDENTIALS_DIRECTORY}/probe.yaml",
    ]
    seen = run_unit(host, name, ["", "LoadCredential=probe.yaml:/opt/quoting/probe.yaml", command(name, words)])
    got = [bytes.fromhex(word).decode() for word in seen["argv"]]
    assert seen["credentials"].startswith("/run/credentials/")
    assert got == ["--config", f"{seen['credentials']}/probe.yaml", "${CREDENTIALS_DIRECTORY}/probe.yaml"]


@pytest.mark.parametrize(
    "value",
    [
        "100% of $HOME",
        "\"quoted\" and 'quoted'",
        "back\\slash\\n",
        "größe 模型",
        "%n %%",
        "; not a comment",
        "# nor this",
    ],
    ids=ascii,
)
def test_description(host: Host, value: str) -> None:
    run_unit(
        host, "quoting-setting", [f"Description={setting_value(value, origin='test')}", command("quoting-setting", [])]
    )
    shown = host.exec(["systemctl", "show", "--property=Description", "--value", "quoting-setting.service"]).stdout
    assert shown == value + "\n"


@pytest.mark.parametrize(
    "folder", ["/opt/quoting/a b", "/opt/quoting/50% $HOME", "/opt/quoting/'q\"x\\y", "/opt/quoting/größe"], ids=ascii
)
def test_folders(host: Host, folder: str) -> None:
    host.exec(["mkdir", "-p", folder])
    name = "quoting-folder"
    seen = run_unit(
        host,
        name,
        [
            f"RequiresMountsFor={list_word(folder, origin='test')}",
            f"WorkingDirectory={setting_value(folder, origin='test')}",
            command(name, []),
        ],
    )
    assert bytes.fromhex(seen["folder"]).decode() == folder
    shown = host.exec(["systemctl", "show", "--property=RequiresMountsFor", "--value", f"{name}.service"]).stdout
    # systemctl shows the list quoted for a shell.
    assert re.sub(r"\\(.)", r"\1", shown.strip().strip('"')) == folder


#: Parts of a command line as people write them, none as our escaper does.
BY_HAND = [
    r"--a  'single \"double\"'   \"double 'single'\"",
    r"--joined=\"two words\" mid\"dle\"quote",
    r"\x41\x20b \u00e9 \101 tab\there back\\slash \s",
    r"unknown\qescape",
    ";comma",
    r"\;",
    "$WORDS ${WORDS} x${ONE}y $$ONE $ONE-x ${NONE}z",
    "%% %n %N %p %t %S",
    "'' \"\"",
]
ENVIRONMENT_BY_HAND = """\
# VONE=comment
; VTWO=comment
VBARE=two words  # no comment
VQUOTED="a \\"b\\" \\$c \\z"
VSINGLE='it is "$x" \\z'
VPARTS='a' "b"
VSPACE= x
VESCAPED=a\\ b\\"c
VLONG="one \\
two"
VMANY="one
two"
VTWICE=1
VTWICE=2
V-BAD=1
VMID=a"b"c
"""


def test_what_people_write_is_read_as_systemd_reads_it(host: Host) -> None:
    name = "quoting-by-hand"
    host.write_file(f"/opt/quoting/{name}.env", ENVIRONMENT_BY_HAND)
    lines = [
        "",
        f"EnvironmentFile=-/opt/quoting/{name}.env",
        "Environment='WORDS=one two' ONE=1",
        "# between",
        command(name, []) + " \\",
        *(f"  {part} \\\n# within" for part in BY_HAND[:-1]),
        f"  {BY_HAND[-1]}",
    ]
    seen = run_unit(host, name, lines)
    settings = merged(parse_unit("\n".join(["[Unit]", "[Service]", *lines])))
    (value,) = settings["Service", "ExecStart"]
    words = expanded(exec_words(value), unit=f"{name}.service", environment={"WORDS": "one two", "ONE": "1"})
    assert [bytes.fromhex(word).decode() for word in seen["argv"]] == words[3:]
    variables = {key: bytes.fromhex(value).decode() for key, value in seen["environ"].items()}
    assert variables == {key: value for key, value in environment_values(ENVIRONMENT_BY_HAND).items() if key[0] == "V"}
