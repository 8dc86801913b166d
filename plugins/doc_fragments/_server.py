# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where a server is asked; the specification is in ``plugins/module_utils/_server_options.py``. PRIVATE to the collection."""

from __future__ import annotations


class ModuleDocFragment:
    """For modules that ask one server."""

    DOCUMENTATION = r"""
options:
  unit:
    description: Full name of the server's unit, such as V(sglang-k26-dflash.service). It must run, and its invocation must stay the same.
    type: str
    required: true
  host:
    description: The address that the server was told to listen on. V(0.0.0.0) and V(::) are asked on the loopback address of that family.
    type: str
    default: 127.0.0.1
  port:
    description: The port that the server was told to listen on.
    type: int
    required: true
  scheme:
    description: How the server speaks.
    type: str
    choices: [http, https]
    default: http
  validate_certs:
    description: Whether the certificate of an V(https) server is verified.
    type: bool
    default: true
  ca_path:
    description: File on the target with the certificate authorities to trust instead of the system's.
    type: path
  api_key:
    description: The server's API key. Never part of the result.
    type: str
"""
