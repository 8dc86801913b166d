# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On a lab host: run programs in the evaluation's sandbox. Reads {"limits": {...}, "programs": {name: text}, "jobs": 1}, writes the judgements."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import sys
import time

from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import Limits, Sandbox


def main() -> None:
    asked = json.load(sys.stdin)
    sandbox = Sandbox("/usr/bin/python3", Limits(**asked.get("limits", {})))
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(asked.get("jobs", 1)) as pool:
        running = {name: pool.submit(sandbox.run, text) for name, text in asked["programs"].items()}
    result = {name: dataclasses.asdict(future.result()) for name, future in running.items()}
    json.dump({"judgements": result, "wall_s": time.monotonic() - started}, sys.stdout)


if __name__ == "__main__":
    main()
