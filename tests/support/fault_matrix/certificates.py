# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates for tests with TLS, made with openssl: a CA of its own, servers that it signed, and one that signed itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.lab.client import Host

# good: signed by the CA for the loopback addresses; expired: the same, of yesterday; other: for another host;
# selfsigned: signed by itself. KEY and CERT of NAME lie in NAME.key and NAME.crt.
_SCRIPT = r"""
set -eu
cd "$1"
test ! -e done || exit 0
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 30 -subj "/CN=matrix CA" \
  -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
: >index.txt
echo 01 >serial
cat >ca.conf <<'END'
[ca]
default_ca = own
[own]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
x509_extensions = leaf
[leaf]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[any]
commonName = supplied
END
sign() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "/CN=$1" -addext "subjectAltName=$2" 2>/dev/null
  openssl ca -batch -notext -config ca.conf -cert ca.crt -keyfile ca.key -in "$1.csr" -out "$1.crt" -startdate "$3" -enddate "$4" 2>/dev/null
}
loopback="DNS:localhost,IP:127.0.0.1,IP:::1"
past=20200101000000Z
sign good "$loopback" "$past" 20490101000000Z
sign expired "$loopback" "$past" 20200201000000Z
sign other "DNS:elsewhere.example" "$past" 20490101000000Z
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout selfsigned.key -out selfsigned.crt -days 30 \
  -subj "/CN=selfsigned" -addext "subjectAltName=$loopback" 2>/dev/null
touch done
"""


def write_certificates(host: Host, folder: str) -> None:
    """Make them in *folder* on *host*, once."""
    host.exec(["mkdir", "-p", folder])
    host.exec(["sh", "-c", _SCRIPT, "sh", folder])


def make_certificates(folder: Path) -> None:
    """Make them in *folder* on this machine."""
    subprocess.run(["sh", "-c", _SCRIPT, "sh", str(folder)], check=True)


__all__ = ("make_certificates", "write_certificates")
