# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the image's packages come from, and when it is built again."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.tests.support.lab import image
from ansible_collections.specdec.serving.tests.support.lab.image import image_tag, mirrors, proxy_options

DEB822 = """Types: deb
# a note
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
"""
RELEASE, UPDATES, SECURITY = (
    "deb http://mirror.example/debian bookworm main",
    "deb http://mirror.example/debian bookworm-updates main",
    "deb http://mirror.example/debian-security/ bookworm-security main",
)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        pytest.param("debian.sources", DEB822, [RELEASE, UPDATES, SECURITY], id="deb822"),
        pytest.param("debian.sources", DEB822.replace("bookworm", "trixie"), [RELEASE, UPDATES, SECURITY], id="newer-release"),
        pytest.param("debian.sources", DEB822.replace("Types: deb\n", "Types: deb\nEnabled: no\n", 1), [], id="disabled"),
        pytest.param("debian.sources", DEB822.replace("Types: deb\n", "Types: deb-src\n"), [], id="source-packages-only"),
        pytest.param(
            "debian.sources", DEB822.replace("Suites: bookworm bookworm-updates", "Suites:\n bookworm\n bookworm-updates"),
            [RELEASE, UPDATES, SECURITY], id="folded-field",
        ),
        pytest.param(
            "sources.list",
            "# deb http://old.example/debian bookworm main\n"
            "deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib\n"
            "deb http://mirror.example/debian bookworm-updates main # why not\n"
            "deb http://mirror.example/debian bookworm-backports main\n"
            "deb-src http://mirror.example/debian bookworm main\n",
            [RELEASE, UPDATES],
            id="one-line",
        ),
        pytest.param("x.list", "deb https://packages.example/apt cloud-sdk-bookworm main\n", [], id="not-debian"),
        pytest.param("x.list", "deb http://archive.example/ubuntu noble main universe\n", [], id="ubuntu"),
        pytest.param("x.list", "deb http://mirror.example/debian-security bookworm-security main\n", [], id="security-alone"),
        pytest.param("sources.list", "", [], id="empty"),
    ],
)  # fmt: skip
def test_mirrors_come_from_this_machine(name: str, text: str, lines: list[str]) -> None:
    assert mirrors([(name, text)]) == lines


def test_a_source_that_is_named_twice_is_used_once() -> None:
    assert mirrors([("debian.sources", DEB822), ("sources.list", RELEASE)]) == [RELEASE, UPDATES, SECURITY]


def test_proxy_settings_are_taken_along() -> None:
    dump = (
        'APT::Architecture "amd64";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::Proxy "";\n'
        'Acquire::https::CAInfo "/etc/ssl/own.pem";\n'
        'Acquire::http::Dl-Limit "70";\n'
        'Acquire::Languages "none";\n'
    )
    assert proxy_options(dump) == [
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::https::CAInfo "/etc/ssl/own.pem";',
    ]


def test_tag_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image_tag()
    assert before == image_tag()
    monkeypatch.setattr(image, "PACKAGES", (*image.PACKAGES, "less"))
    assert image_tag() != before
