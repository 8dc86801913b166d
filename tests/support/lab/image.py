# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of a lab host: a small Debian with systemd, sshd and two users, built once per recipe."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.lab import tools
from ansible_collections.specdec.serving.tests.support.lab.engine import Engine
from ansible_collections.specdec.serving.tests.support.lab.processes import LabError, run

__all__ = ["INIT", "SUITE", "ensure_image", "image_tag", "mirrors", "proxy_options"]

SUITE = "bookworm"
INIT = "/usr/sbin/lab-init"
PACKAGES = (
    "acl",  # Ansible needs it to become a user other than root
    "ca-certificates",
    "curl",
    "dbus",
    "iproute2",
    "libgomp1",
    "libnuma1",
    "libpam-systemd",
    "openssh-server",
    "procps",
    "python3",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
)
# Runs outside the new system with its folder as $1.
CUSTOMIZE = r"""#!/bin/sh
set -eu
root="$1"
in_root() { chroot "$root" "$@"; }

in_root useradd --uid 1000 --create-home --shell /bin/bash --password '*' deploy
in_root useradd --uid 1001 --create-home --shell /bin/bash --password '*' deploy-pw
cat >"$root/etc/sudoers.d/lab" <<'END'
deploy ALL=(ALL:ALL) NOPASSWD: ALL
deploy-pw ALL=(ALL:ALL) ALL
END
chmod 0440 "$root/etc/sudoers.d/lab"

rm -f "$root"/etc/ssh/ssh_host_*
cat >"$root/etc/ssh/sshd_config.d/lab.conf" <<'END'
# Keys come from the lab's read-only folder, so that the image holds none.
HostKey /etc/lab/ssh_host_ed25519_key
AuthorizedKeysFile /etc/lab/authorized_keys
PermitRootLogin no
PasswordAuthentication no
UseDNS no
MaxStartups 200
Match User deploy-pw
    PasswordAuthentication yes
END

mkdir -p "$root/etc/systemd/journald.conf.d"
ln -s /etc/lab/journald.conf "$root/etc/systemd/journald.conf.d/lab.conf"
cat >"$root/etc/systemd/system/lab-setup.service" <<'END'
[Unit]
Description=Finish this lab host: password of deploy-pw, no way out of the lab network
Before=ssh.service systemd-user-sessions.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo "deploy-pw:$(cat /etc/lab/deploy-pw.password)" | chpasswd'
ExecStart=-/bin/ip route delete default
[Install]
WantedBy=multi-user.target
END
# A container manager hands its root over as a private mount. On a real machine systemd itself makes it shared, and relies
# on that: with a private one LoadCredential= leaves an empty folder and says nothing (systemd 252).
cat >"$root/usr/sbin/lab-init" <<'END'
#!/bin/sh
mount --make-rshared / && exec /lib/systemd/systemd
END
chmod 0755 "$root/usr/sbin/lab-init"
in_root systemctl --quiet enable lab-setup.service
in_root systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
echo 'LANG=C.UTF-8' >"$root/etc/default/locale"
: >"$root/etc/machine-id"

# A lab host reaches no package mirror; nothing of this machine's set-up goes into the image.
rm -f "$root/etc/apt/sources.list" "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap
: >"$root/etc/apt/sources.list"
"""
EXCLUDED = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")


def image_tag() -> str:
    """``localhost/specdec-lab:HASH``; the hash is that of everything the image is made from."""
    recipe = json.dumps([SUITE, PACKAGES, CUSTOMIZE, EXCLUDED])
    return f"localhost/specdec-lab:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _entries(name: str, text: str) -> Iterator[tuple[str, str, str]]:
    """(URI, suite, options) of every binary source in one apt source file (sources.list(5))."""
    if name.endswith(".sources"):
        for stanza in re.split(r"\n\s*\n", text):
            fields: dict[str, str] = {}
            last = ""
            for line in stanza.splitlines():
                if line.startswith("#"):
                    continue
                if line[:1] in (" ", "\t") and last:
                    fields[last] += " " + line.strip()
                elif ":" in line:
                    last, _colon, value = line.partition(":")
                    last = last.strip().lower()
                    fields[last] = value.strip()
            if (
                fields.get("enabled", "yes").lower() in ("no", "false", "0")
                or "deb" not in fields.get("types", "").split()
            ):
                continue
            if "main" not in fields.get("components", "").split():
                continue
            for uri in fields.get("uris", "").split():
                for suite in fields.get("suites", "").split():
                    yield uri, suite, ""
    else:
        for line in text.splitlines():
            match = re.match(
                r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.*)",
                line.split("#")[0].strip(),
            )
            if match and "main" in match["components"].split():
                yield match["uri"], match["suite"], match["options"] or ""


def mirrors(sources: Sequence[tuple[str, str]]) -> list[str]:
    """``deb`` lines for the image's suite from this machine's apt sources, given as (file name, text).

    Only sources of a Debian archive are used (a path that ends in ``debian`` or ``debian-security``); on a machine with
    another Debian release their address is kept and the suite replaced. An empty list where there is none.
    """
    lines: list[str] = []
    for name, text in sources:
        for uri, suite, _options in _entries(name, text):
            path = uri.rstrip("/").rpartition("/")[2]
            if path == "debian-security":
                line = f"deb {uri} {SUITE}-security main"
            elif path == "debian":
                updates = "-updates" if suite.endswith("-updates") else ""
                if "-" in suite and not updates:
                    continue  # backports, proposed updates
                line = f"deb {uri} {SUITE}{updates} main"
            else:
                continue
            if line not in lines:
                lines.append(line)
    # Without the release itself the rest is of no use.
    return lines if any(line.endswith(f" {SUITE} main") for line in lines) else []


def proxy_options(dump: str) -> list[str]:
    """The proxy and certificate settings in the output of ``apt-config dump``, as apt options."""
    wanted = re.compile(r"Acquire::(?:https?::(?:Proxy\b|CAInfo\b|CaInfo\b|Verify-)|Retries\b)", re.IGNORECASE)
    return [line for line in dump.splitlines() if wanted.match(line) and not line.endswith('"";')]


def _machine_sources() -> list[tuple[str, str]]:
    folder = Path("/etc/apt")
    files = [
        folder / "sources.list",
        *sorted((folder / "sources.list.d").glob("*.list")),
        *sorted((folder / "sources.list.d").glob("*.sources")),
    ]
    return [(file.name, file.read_text()) for file in files if file.is_file()]


@contextlib.contextmanager
def _machine_lock(tag: str) -> Iterator[None]:
    """One build of a tag at a time on this machine, whichever checkout asked."""
    folder = (
        Path("/run/lock") if os.geteuid() == 0 else Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    )
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"specdec-lab-{os.geteuid()}-{tag.rpartition(':')[2]}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(engine: Engine, tag: str, folder: Path) -> None:
    archive = folder / "rootfs.tar"
    script = folder / "customize"
    script.write_text(CUSTOMIZE)
    script.chmod(0o755)
    folder.chmod(0o755)  # without root, mmdebstrap works as other users of a user namespace
    argv = [
        "mmdebstrap",
        "--variant=minbase",
        "--skip=output/dev",
        f"--include={','.join(PACKAGES)}",
        f"--customize-hook={script}",
    ]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
    if tools.missing(["apt-config"]) == []:
        argv += [f"--aptopt={option}" for option in proxy_options(run(["apt-config", "dump"]).stdout)]
    argv += [SUITE, str(archive), *mirrors(_machine_sources())]
    log = folder / "mmdebstrap.log"
    with log.open("w") as out:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise LabError(f"mmdebstrap could not build the image of the lab hosts (status {done.returncode}):\n{tail}")
    engine.call("import", "--quiet", str(archive), tag)


def ensure_image(engine: Engine) -> str:
    """The tag of the image, built first where this machine has none of this recipe."""
    tag = image_tag()
    if engine.call("image", "exists", tag, check=False).returncode == 0:
        return tag
    with _machine_lock(tag):
        if engine.call("image", "exists", tag, check=False).returncode != 0:
            tools.ensure(["mmdebstrap"])
            print("lab: building the image of the lab hosts, once (a minute or two)", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix="specdec-lab-") as folder:
                _build(engine, tag, Path(folder))
    return tag
