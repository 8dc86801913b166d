# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes one archive of the evidence that was fetched from all hosts; runs on the controller."""

from __future__ import annotations

import dataclasses
import time
import typing as t
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.specdec.serving.plugins.plugin_utils._evidence_bundle import (
    BundleError,
    Fetched,
    bundle,
    secrets_in,
    table,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import plain


class ActionModule(ActionBase):
    """See ``plugins/modules/sglang_evidence.py`` for the options."""

    TRANSFERS_FILES = False
    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        del tmp
        _checked, options = self.validate_argument_spec(
            argument_spec={
                "source": {"type": "path", "required": True},
                "destination": {"type": "path", "default": "."},
                "secrets": {"type": "raw", "no_log": True},
            }
        )
        source = Path(options["source"])
        files = [
            Fetched(host=path.parent.parent.name, unit=path.parent.name, path=path)
            for path in sorted(source.glob("*/*/*.tar.gz"))
        ]
        try:
            path, rows, left_out = bundle(
                files,
                destination=options["destination"],
                secrets=secrets_in(plain(options["secrets"])),
                now=time.time(),
            )
        except BundleError as error:
            raise AnsibleActionFail(str(error)) from error
        result.update(
            changed=True,
            path=str(Path(path).resolve()),
            rows=[dataclasses.asdict(row) for row in rows],
            table=table(rows),
        )
        if left_out:
            result["warnings"] = left_out
        return result
