# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a look at a host is asked, and what it finds. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._sockets import Listener, listeners, owned_by_cgroup
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

__all__ = (
    "HostView",
    "InstanceCheck",
    "PathCheck",
    "PortCheck",
    "PreflightRequest",
    "PreflightResult",
)


@dataclasses.dataclass(frozen=True)
class PathCheck:
    """A path that must exist; ``what`` names it in the error."""

    path: str
    what: str
    may_be_empty: bool = False


@dataclasses.dataclass(frozen=True)
class PortCheck:
    """A port that must be free, or held by ``unit`` itself. ``what`` is the argument that it comes from."""

    host: str
    port: int
    unit: str
    what: str = "port"


@dataclasses.dataclass(frozen=True)
class InstanceCheck:
    """One instance, as the filter sglang_instances resolved it.

    ``argv`` is the whole command line, ``origins`` say by dest where an argument comes from. ``gpus`` are numbers or UUIDs; () = all
    of the host. ``wanted_tokens`` must fit into the KV cache at once; 0 = one request of the context length.
    """

    name: str
    unit: str
    argv: tuple[str, ...]
    origins: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    model_path: str = ""
    draft_model_path: str = ""
    cache_dirs: tuple[str, ...] = ()
    has_key: bool = False
    wanted_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class PreflightRequest:
    """What the deployment is going to need.

    ``prune``: units of ours that are none of ``instances`` will be removed before anything is started, so what they hold counts as free.
    """

    version: str
    python: str
    wheelhouse: str = ""
    paths: tuple[PathCheck, ...] = ()
    ports: tuple[PortCheck, ...] = ()
    needs_gpu: bool = False
    user: str = "sglang"
    root: str = "/opt/specdec"
    engine: str = ""
    instances: tuple[InstanceCheck, ...] = ()
    hardening: tuple[str, ...] = ()
    keep: bool = True
    prune: bool = False
    unit_dir: str = "/etc/systemd/system"
    state_dir: str = "/var/lib/specdec/sglang"


@dataclasses.dataclass
class PreflightResult:
    """``errors`` forbid the deployment. ``facts`` go to the filter sglang_instances, ``instances`` hold a verdict each."""

    errors: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    facts: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    instances: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class HostView:
    """How the host is looked at; tests give other roots and functions."""

    runner: Runner
    sys_root: str = "/sys"
    find_listeners: t.Callable[[int], tuple[list[Listener], str]] = listeners
    owned: t.Callable[..., bool | None] = owned_by_cgroup
    proc: str = "/proc"
    shared_memory: int | None = None
    make_runner: t.Callable[..., Runner] = command_runner
    which: t.Callable[..., str | None] | None = None
