# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A line now and then while a module runs that answers only at its end. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import threading
import time
import typing as t

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

EVERY_S = 20.0
display = Display()


@contextlib.contextmanager
def heartbeat(
    tell: t.Callable[[str], None],
    what: str,
    *,
    every: float = EVERY_S,
    wait: t.Callable[[threading.Event, float], bool] = threading.Event.wait,
    monotonic: t.Callable[[], float] = time.monotonic,
) -> t.Iterator[None]:
    """While the block runs, ``tell`` every ``every`` seconds how long ``what`` has taken.

    ``wait`` waits until the event is set, at most so many seconds, and gives whether it is.
    """
    over = threading.Event()
    began = monotonic()

    def beat() -> None:
        while not wait(over, every):
            tell(f"{what}: {monotonic() - began:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class TellingAction(ActionBase):
    """Runs the module of the same name, and tells meanwhile ``what``, in which the version that is asked for is named."""

    TRANSFERS_FILES = False
    what: str

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        del tmp
        host = str((task_vars or {}).get("inventory_hostname", ""))
        what = self.what.format(version=self._task.args.get("version", ""))
        with heartbeat(lambda text: display.display(text, color="dark gray"), f"{host} | {what}"):
            result.update(self._execute_module(task_vars=task_vars))
        return result


__all__ = ("EVERY_S", "TellingAction", "heartbeat")
