# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What modules of units share; the specification is in ``plugins/module_utils/_unit_options.py``. PRIVATE to the collection."""

from __future__ import annotations


class ModuleDocFragment:
    """``_units.folders``: where units and their records lie. ``_units.config``: what units read. ``_units.instances``: what they are made of."""

    FOLDERS = r"""
options:
  unit_dir:
    description: Folder of the unit files.
    type: path
    default: /etc/systemd/system
  state_dir:
    description: Folder of the records.
    type: path
    default: /var/lib/specdec/sglang
"""

    CONFIG = r"""
options:
  config_dir:
    description: Folder of the environment files and credentials.
    type: path
    default: /etc/specdec/sglang
"""

    INSTANCES = r"""
options:
  units:
    description: The instances. Name and unit are enough where M(specdec.serving.sglang_unit) stops or removes them.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      unit:
        description: Name of the unit, such as V(sglang-k26-dflash.service).
        type: str
        required: true
      content:
        description: Text of the unit file.
        type: str
        default: ""
      environment_file:
        description: Path of the environment file, named by the hash of its content.
        type: path
        default: ""
      environment_text:
        description: Text of the environment file.
        type: str
        default: ""
      secret_environment_file:
        description:
          - Path of a second environment file, for the variables in O(secrets). It must hold C(@SECRET@), as it does in O(units[].content).
          - The host puts 16 hexadecimal digits in its place; the same content keeps its file.
        type: path
        default: ""
      credential:
        description: Path of the YAML file that holds the server's keys, with C(@SECRET@) as in O(units[].secret_environment_file).
        type: path
        default: ""
      credential_by_systemd:
        description: Whether systemd passes the credential (LoadCredential=), or the service user reads the file itself.
        type: bool
        default: true
      engine:
        description: Path of the engine that the unit runs.
        type: path
        default: ""
  secrets:
    description:
      - Instance name to C(config) (key names to keys) and C(environment) (variables). Never logged and in no result.
    type: dict
    default: {}
  user:
    description: User that owns the cache folders.
    type: str
    default: sglang
  cache_dirs:
    description: Folders that the server writes to, parents first.
    type: list
    elements: path
    default: []
  enabled:
    description: Whether the units start at boot.
    type: bool
    default: true
"""
