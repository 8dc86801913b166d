#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds what the lab serves with the real SGLang on a CPU: the wheelhouse of its engine, and two tiny models.

``wheelhouse`` fills build/wheelhouse/cpu-engine (wheels and requirements.lock), ``models`` build/models/tiny and
build/models/tiny-draft. Both cost a look when nothing changed, go on where they were interrupted, and show a result
only when it is complete. Downloads are kept in build/cache/cpu-engine. Standard library only, Python >= 3.11.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import typing as t
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

# The checkout's own collection path, so that this runs with nothing installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / ".collections"))

from ansible_collections.specdec.serving.tests.support.cpu_engine import wheels
from ansible_collections.specdec.serving.tests.support.toolchain import environments

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

#: The Python of a lab host (Debian 12), which the wheels are for, and its glibc.
PYTHON = (3, 11)
GLIBC = (2, 36)
MODELS = ("tiny", "tiny-draft")
#: Distributions that are large enough to be fetched alone; the others go in groups.
LARGE = ("torch", "triton", "pyarrow", "sglang", "scipy")
GROUP = 25
#: What torch imports, and how the distributions of a CUDA build's libraries begin.
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "typing-extensions")
CUDA = ("cuda-", "nvidia-")

#: Appended to torchvision/extension.py. PyPI's torchvision links CUDA, so beside a CPU build of torch its operators do
#: not load, and importing it ends with "operator torchvision::nms does not exist". Their schemas are enough to import.
TORCHVISION_PATCH = """

if not _has_ops():
    _schemas_without_kernels = torch.library.Library("torchvision", "FRAGMENT")
    _schemas_without_kernels.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _schemas_without_kernels.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


class BuildError(Exception):
    """Something that the user has to put right; the message says what."""


@dataclasses.dataclass(frozen=True)
class Repack:
    """How a wheel is changed. Patterns are of fnmatch, over paths within the wheel; ``keep`` outranks ``drop``."""

    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    append: tuple[tuple[str, str], ...] = ()
    strip: tuple[str, ...] = ()

    def drops(self, path: str) -> bool:
        """Tell whether a file is left out."""
        return any(fnmatchcase(path, p) for p in self.drop) and not any(fnmatchcase(path, p) for p in self.keep)


#: What a CPU server never opens goes: it saves 0.7 of 2.4 GB on every lab host, and the time to write them.
REPACKS: t.Mapping[str, Repack] = {
    # Headers, static libraries and torch's own tests.
    "torch": Repack(
        drop=("torch/include/*", "torch/test/*", "torch/bin/*", "torch/lib/*.a"), keep=("torch/bin/torch_shm_manager",)
    ),
    "torchvision": Repack(
        drop=("torchvision.libs/*", "torchvision/*.so"), append=(("torchvision/extension.py", TORCHVISION_PATCH),)
    ),
    # SGLang imports triton but compiles nothing with it on a CPU: assemblers and profilers of GPUs, debug information.
    "triton": Repack(
        drop=(
            "triton/backends/nvidia/bin/*",
            "triton/backends/nvidia/include/*",
            "triton/backends/nvidia/lib/cupti/*",
            "triton/backends/amd/include/*",
            "triton/instrumentation/*",
            "triton/plugins/*",
            "triton/FileCheck",
            "triton/_C/libproton.so",
        ),
        strip=("triton/_C/libtriton.so",),
    ),
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where things lie below the build folder."""

    build: Path

    @property
    def wheelhouse(self) -> Path:
        return self.build / "wheelhouse" / "cpu-engine"

    @property
    def models(self) -> Path:
        return self.build / "models"

    @property
    def cache(self) -> Path:
        return self.build / "cache" / "cpu-engine"

    @property
    def downloads(self) -> Path:
        return self.cache / "downloads"


def say(message: str) -> None:
    """Print one line of progress."""
    print(f"[cpu-engine] {message}", flush=True)


def run(argv: t.Sequence[str | Path], *, log: Path, env: t.Mapping[str, str] | None = None) -> str:
    """Run a command and return its output, which goes to *log* as well; raises BuildError with the output's end."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, check=False
    )
    output = done.stdout.decode(errors="replace")
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"$ {' '.join(words)}\n{output}\n")
    if done.returncode != 0:
        end = "\n".join(f"  {line}" for line in output.splitlines()[-15:])
        raise BuildError(f"{' '.join(words)!r} ended with {done.returncode}. Its last lines (all of it: {log}):\n{end}")
    return output


@contextlib.contextmanager
def only_one(layout: Layout) -> t.Iterator[None]:
    """Let one build go on at a time in a checkout; others wait and then find it done."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is at work here, waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def inventory(folder: Path) -> dict[str, int]:
    """Return the size of each file of a folder, by path; what the stamp compares."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".stamp"
    }


def is_current(folder: Path, *, key: str) -> bool:
    """Tell whether a folder was completed from inputs with this key, and still holds what it held then."""
    try:
        stamp = json.loads((folder / ".stamp").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(stamp, dict) and stamp.get("key") == key and stamp.get("files") == inventory(folder)


def publish(fresh: Path, *, folder: Path, key: str) -> None:
    """Stamp a finished folder, make it readable for every user, and put it in the place of *folder*."""
    for path in [fresh, *fresh.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    stamp = fresh / ".stamp"
    stamp.write_text(json.dumps({"key": key, "files": inventory(fresh)}, indent=1) + "\n", encoding="utf-8")
    stamp.chmod(0o644)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def workspace(folder: Path) -> Path:
    """Return an empty folder beside *folder*, for what will take its place; leftovers of a killed build go."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def source_key(*paths: Path) -> str:
    """Hash the content of files and folders."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            data = file.read_bytes()
            digest.update(f"{file.relative_to(HERE)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def wheelhouse_key() -> str:
    """Hash what decides the wheelhouse's content: packages, their changes, and how wheels are written."""
    recipe = f"{REPACKS!r} {'stripped' if shutil.which('strip') else 'whole'}"
    files = source_key(HERE / "wheels.py", HERE / "requirements.txt", HERE / "sgl_kernel")
    return hashlib.sha256(f"{files} {recipe}".encode()).hexdigest()


def find_python() -> str:
    """Return a working Python 3.11; raises BuildError that says what was looked at."""
    try:
        return environments.find_interpreter(versions=(PYTHON,), environ=os.environ).path
    except environments.ToolchainError as exc:
        raise BuildError(str(exc)) from exc


def downloaded(folder: Path) -> dict[str, wheels.Wheel]:
    """Return the wheels of a folder by name."""
    found = (wheels.Wheel.parse(path.name) for path in sorted(folder.glob("*.whl")))
    return {wheel.name: wheel for wheel in found}


def missing(pins: t.Mapping[str, str], *, folder: Path) -> list[str]:
    """Return the pinned names that a folder has no wheel of; a local version part (torch 2.13.0+cpu) is no matter."""
    have = downloaded(folder)
    return [name for name, version in pins.items() if name not in have or have[name].version.split("+")[0] != version]


def fetch(pins: t.Mapping[str, str], *, layout: Layout, python: Path) -> None:
    """Fetch what is missing; what an index has only as source is built into a wheel."""
    downloads = layout.downloads
    downloads.mkdir(parents=True, exist_ok=True)
    for path in downloads.glob("*.whl"):
        if not zipfile.is_zipfile(path):
            path.unlink()
    wanted = missing(pins, folder=downloads)
    rest = [name for name in wanted if name not in LARGE]
    groups = [[name] for name in LARGE if name in wanted]
    groups += [rest[start : start + GROUP] for start in range(0, len(rest), GROUP)]
    for number, group in enumerate(groups, start=1):
        what = (
            f"{group[0]} {pins[group[0]]}" if len(group) == 1 else f"{len(group)} packages, {group[0]} to {group[-1]}"
        )
        say(f"fetching {number} of {len(groups)}: {what}")
        pip_wheel([f"{name}=={pins[name]}" for name in group], layout=layout, python=python, options=["--no-deps"])
    if still := missing(pins, folder=downloads):
        raise BuildError(
            f"pip ended well but gave no wheel of {', '.join(still)}: look into {layout.cache / 'pip.log'}"
        )


def pip_wheel(requirements: t.Iterable[str], *, layout: Layout, python: Path, options: t.Sequence[str] = ()) -> None:
    """Fetch or build wheels, and move them to the downloads when all of them are complete."""
    with tempfile.TemporaryDirectory(dir=layout.cache) as folder:
        argv: list[str | Path] = [
            python,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "wheel",
            "--progress-bar=off",
        ]
        run([*argv, *options, "--wheel-dir", folder, *requirements], log=layout.cache / "pip.log")
        for path in Path(folder).glob("*.whl"):
            # Another version of the same package would be installed in its place.
            if old := downloaded(layout.downloads).get(wheels.Wheel.parse(path.name).name):
                (layout.downloads / old.file_name).unlink()
            path.rename(layout.downloads / path.name)


def cuda_requirements(torch_wheel: Path) -> list[str]:
    """Return what a CUDA build of torch needs to be imported even without a GPU; nothing for a CPU build."""
    with zipfile.ZipFile(torch_wheel) as archive:
        name = next(path for path in archive.namelist() if path.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().split("\n\n", 1)[0].splitlines()
    needed = [line.removeprefix("Requires-Dist:").strip() for line in lines if line.startswith("Requires-Dist:")]
    return [line for line in needed if line.startswith(CUDA) and "extra ==" not in line]


def repacked(source: Path, *, folder: Path, recipe: Repack) -> Path:
    """Write a wheel changed as its recipe says; its version carries a fingerprint of the recipe."""
    strip = shutil.which("strip") if recipe.strip else None
    touched = {name: False for name, _text in recipe.append}

    def edit(path: str, read: t.Callable[[], bytes]) -> bytes | None:
        if recipe.drops(path):
            return None
        data = read()
        for name, text in recipe.append:
            if path == name:
                touched[name] = True
                data += text.encode()
        if strip and any(fnmatchcase(path, pattern) for pattern in recipe.strip):
            data = stripped(data, strip=strip)
        return data

    mark = wheels.fingerprint(repr(recipe), "stripped" if strip else "whole")
    made = wheels.repack(source, folder=folder, local=f"specdec.{mark}", edit=edit)
    if absent := [name for name, done in touched.items() if not done]:
        raise BuildError(f"{source.name} holds no {', '.join(absent)}: the patch no longer fits this version")
    return made


def stripped(data: bytes, *, strip: str) -> bytes:
    """Return a shared library without debug information and local symbols."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(data)
        done = subprocess.run([strip, "--strip-unneeded", str(path)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{strip} ended with {done.returncode}: {done.stderr.strip()}")
        return path.read_bytes()


def check_platform() -> None:
    """Refuse machines that the pinned wheels are not for."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise BuildError(
            f"the CPU engine is for Linux on x86-64, this is {sys.platform} on {platform.machine()}: use the stand-in"
        )


def assemble(pins: t.Mapping[str, str], *, layout: Layout, folder: Path) -> dict[str, str]:
    """Fill a folder with the engine's wheels, changed where they have to be, and return the lock's pins."""
    for name, wheel in downloaded(layout.downloads).items():
        if name not in pins:
            continue
        source = layout.downloads / wheel.file_name
        needed = wheels.glibc_needed(wheel)
        if needed is not None and needed > GLIBC:
            raise BuildError(
                f"{wheel.file_name} needs glibc {needed[0]}.{needed[1]}, lab hosts have {GLIBC[0]}.{GLIBC[1]}: "
                f"pin another version of {name} in {HERE / 'requirements.txt'}"
            )
        if name in REPACKS:
            say(f"repacking {name} {wheel.version}")
            repacked(source, folder=folder, recipe=REPACKS[name])
        else:
            wheels.link_or_copy(source, folder / wheel.file_name)
    kernel = HERE / "sgl_kernel"
    wheels.build(
        packages=[kernel],
        name="specdec-sgl-kernel-stand-in",
        version=f"0.5.23+{wheels.fingerprint(*(path.read_bytes() for path in sorted(kernel.rglob('*.py'))))}",
        summary="The functions of sgl_kernel that SGLang calls on a CPU, in plain torch",
        folder=folder,
    )
    return {wheel.name: wheel.version for wheel in downloaded(folder).values()}


def make_wheelhouse(layout: Layout) -> None:
    """Build the wheelhouse unless it is current."""
    key = wheelhouse_key()
    if is_current(layout.wheelhouse, key=key):
        say(f"{layout.wheelhouse} is current")
        return
    check_platform()
    with only_one(layout):
        if is_current(layout.wheelhouse, key=key):
            return
        began = time.monotonic()
        pins = wheels.parse_lock((HERE / "requirements.txt").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(dir=layout.cache, prefix="venv-") as venv:
            run([find_python(), "-m", "venv", venv], log=layout.cache / "pip.log")
            python = Path(venv) / "bin" / "python"
            fetch(pins, layout=layout, python=python)
            torch_wheel = layout.downloads / downloaded(layout.downloads)["torch"].file_name
            cuda = cuda_requirements(torch_wheel)
            if cuda:
                say(
                    f"pip gave the CUDA build of torch ({torch_wheel.stat().st_size / 1e6:.0f} MB). It serves on a CPU "
                    "as well, but needs its CUDA libraries to be imported: fetching them, 3 GB more on every host. "
                    "An index or --find-links folder with torch's CPU build in pip's configuration avoids it."
                )
                with tempfile.TemporaryDirectory(dir=layout.cache) as extra:
                    libraries = Layout(Path(extra))
                    libraries.downloads.mkdir(parents=True)
                    pip_wheel(cuda, layout=libraries, python=python)
                    for wheel in downloaded(libraries.downloads).values():
                        if wheel.name not in pins:
                            pins[wheel.name] = wheel.version
                            (libraries.downloads / wheel.file_name).replace(layout.downloads / wheel.file_name)
        fresh = workspace(layout.wheelhouse)
        lock = wheels.format_lock(
            assemble(pins, layout=layout, folder=fresh),
            head=[
                f"sglang-engine: SGLang {pins['sglang']} on a CPU, Python {PYTHON[0]}.{PYTHON[1]}, x86-64",
                "pip install --no-index --no-deps --find-links FOLDER --requirement FOLDER/requirements.lock",
            ],
        )
        (fresh / "requirements.lock").write_text(lock, encoding="utf-8")
        publish(fresh, folder=layout.wheelhouse, key=key)
        files = inventory(layout.wheelhouse)
        say(
            f"{layout.wheelhouse}: {len(files) - 1} wheels, {sum(files.values()) / 1e6:.0f} MB, "
            f"in {time.monotonic() - began:.0f} s"
        )


def make_models(layout: Layout) -> None:
    """Build the models unless they are current; needs the wheelhouse, whose torch and transformers make them."""
    make_wheelhouse(layout)
    lock = layout.wheelhouse / "requirements.lock"
    pins = wheels.parse_lock(lock.read_text(encoding="utf-8"))
    made_with = {name: pins[name].split("+")[0] for name in ("torch", "transformers", "tokenizers")}
    key = source_key(HERE / "tiny_model.py") + json.dumps(made_with)
    if all(is_current(layout.models / name, key=key) for name in MODELS):
        say(f"{', '.join(str(layout.models / name) for name in MODELS)} are current")
        return
    with only_one(layout):
        if all(is_current(layout.models / name, key=key) for name in MODELS):
            return
        began = time.monotonic()
        log = layout.cache / "models.log"
        with tempfile.TemporaryDirectory(dir=layout.cache, prefix="venv-") as folder:
            say("installing torch and transformers into an environment for this")
            run([find_python(), "-m", "venv", folder], log=log)
            python = Path(folder) / "bin" / "python"
            pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--isolated", "install"]
            pip += ["--no-compile", "--no-index", "--find-links", layout.wheelhouse, "--constraint", lock]
            isolated = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
            # With dependencies pip would ask for a newer setuptools, which torch does not need to run.
            cuda = [name for name in pins if name.startswith(CUDA)]
            run([*pip, "--no-deps", "torch", *TORCH_NEEDS, *cuda], log=log, env=isolated)
            run([*pip, "transformers"], log=log, env=isolated)
            say("teaching the models their conversations")
            env = {
                "HF_HUB_OFFLINE": "1",
                "HOME": folder,
                "OMP_NUM_THREADS": "1",
                "PATH": os.environ.get("PATH", os.defpath),
                "TOKENIZERS_PARALLELISM": "false",
            }
            output = Path(folder) / "models"
            report = run([python, HERE / "tiny_model.py", output], log=log, env=env)
            for line in report.splitlines():
                if line.startswith(MODELS):
                    say(line)
            for name in MODELS:
                fresh = workspace(layout.models / name)
                shutil.copytree(output / name, fresh, dirs_exist_ok=True)
                publish(fresh, folder=layout.models / name, key=key)
        say(f"{', '.join(str(layout.models / name) for name in MODELS)} in {time.monotonic() - began:.0f} s")


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="build.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("wheelhouse", "models"), help="what to build; models need the wheelhouse")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the build folder (default: %(default)s)")
    arguments = parser.parse_args(argv)
    layout = Layout(build=arguments.build.resolve())
    try:
        (make_wheelhouse if arguments.command == "wheelhouse" else make_models)(layout)
    except (BuildError, wheels.WheelError) as exc:
        print(f"[cpu-engine] {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
