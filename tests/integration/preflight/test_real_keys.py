# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys of every allowed sign arrive in the real SGLang as they are, from the file that the role writes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._credentials import credential_text

#: All of printable ASCII (what the role allows), the letters aside.
SIGNS = "".join(chr(number) for number in range(0x21, 0x7F) if not chr(number).isalpha())
KEYS = {"api_key": f"k{SIGNS}", "admin_api_key": f"k{SIGNS[::-1]}"}
ASK = (
    "import json, sys; from sglang.srt.server_args import prepare_server_args;"
    "found = prepare_server_args(['--model-path', '/models/none', '--config', sys.argv[1]]);"
    "print('FOUND', json.dumps([found.api_key, found.admin_api_key]))"
)


def test_keys_arrive_as_they_are(engine: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(credential_text(KEYS))
        file.flush()
        done = subprocess.run(
            [str(engine / "bin" / "python"), "-c", ASK, file.name],
            env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert json.loads(line.removeprefix("FOUND ")) == [KEYS["api_key"], KEYS["admin_api_key"]]
