# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collects everything about one failed start. PRIVATE to the collection."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _journal as journal
from ansible_collections.specdec.serving.plugins.module_utils._evidence_machine import (
    Machine,
    Output,
    read_or_why,
    read_small,
)
from ansible_collections.specdec.serving.plugins.module_utils._evidence_processes import ProcessList
from ansible_collections.specdec.serving.plugins.module_utils._evidence_secrets import Secrets, settings_in, words_of
from ansible_collections.specdec.serving.plugins.module_utils._evidence_text import (
    Spool,
    entries_text,
    entry_line,
    safe_name,
    stamp_of,
)
from ansible_collections.specdec.serving.plugins.module_utils._gpus import find_nvidia_smi
from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import kernel_command, parse_kernel_log
from ansible_collections.specdec.serving.plugins.module_utils._processes import cgroup_folders
from ansible_collections.specdec.serving.plugins.module_utils._redact import (
    MASK,
    Masker,
    is_secret_variable,
    mask_command,
    secret_words,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

__all__ = (
    "WRITING_S",
    "Collector",
)

_PROCESSES_S = 3.0
_COMMANDS_S = 6.0

# For writing the archive, and for a second wait that writes its own.
WRITING_S = 3.0
_HEAD_BYTES = 4 * 1024 * 1024
_TAIL_BYTES = 12 * 1024 * 1024
_TAIL_LINES = 100_000
_UNIT_LINES = 2000
_MOST_DUMPS = 16

#: What is in an archive, in the order in which it is best read.
_FILES = {
    "verdict.json": "the result of sglang_ready: state, cause, remedy, gates, timeline",
    "journal.txt": "the journal of this start: UTC time, seconds since boot, [pid], message; PID 1's fields in braces",
    "systemd.txt": "what systemd says of this start",
    "unit-journal.txt": f"the last {_UNIT_LINES} lines of the unit in any start, also those that bear no start",
    "kernel.txt": "the kernel's log since the start: seconds since boot, message",
    "processes.txt": "the unit's processes and who holds the port: state (R runs, S sleeps, D waits for a device, T stopped, Z dead), "
    "wait channel, CPU, memory",
    "processes/": "one file a process: threads with state and wait channel, kernel stack, status, input and output, Python stack",
    "sockets.txt": "who listens on the port, and its connections",
    "unit.txt": "the unit's files as systemd finds them",
    "properties.txt": "the unit as systemd has it in memory",
    "environment.txt": "the environment that the unit gives, and that of the main process; secrets are masked",
    "arguments.txt": "the command line, one argument a line",
    "gpus.txt": "nvidia-smi: one line a GPU",
    "nvidia-smi.txt": "nvidia-smi -q",
    "gpu-processes.txt": "which processes use which GPU",
    "gpu-topology.txt": "how the GPUs are linked",
    "nvidia-driver.txt": "/proc/driver/nvidia",
    "memory.txt": "memory, pressure and load of the host; memory of the unit's control group",
    "disks.txt": "space and inodes of the file systems that matter",
    "releases.txt": "host, kernel, driver, SGLang and the packages beside it",
}
_QUERY = (
    "index,name,uuid,pci.bus_id,driver_version,pstate,utilization.gpu,utilization.memory,memory.used,memory.total,power.draw,"
    "power.limit,temperature.gpu,clocks.sm,ecc.errors.uncorrected.volatile.total"
)


class Collector:
    """Collects everything about one failed start; `files` maps names to text or spools, `notes` says what is missing."""

    def __init__(
        self, machine: Machine, result: t.Mapping[str, t.Any], params: t.Mapping[str, t.Any], deadline: float
    ) -> None:
        self._machine = machine
        self._result = result
        self._params = params
        self._deadline = deadline
        self._unit = str(result["unit"])
        self._invocation = str(result.get("invocation_id") or "")
        self._started = machine.monotonic()
        self._masker = Masker()
        self.files: dict[str, str | Spool] = {}
        self.notes: list[str] = []

    def collect(self) -> None:
        state = self._show()
        # Whatever else is read can be read later; processes end.
        processes = ProcessList(self._machine, state, int(self._params["port"]))
        processes.collect(min(_PROCESSES_S, self._left()))
        commands = self._commands(state, processes)
        outputs = self._machine.run_all(commands, timeout=max(min(_COMMANDS_S, self._left() - WRITING_S), 0.5))
        processes.sample_again()
        self._masker = Masker(self._secrets(outputs, processes))
        self._add_verdict()
        self._add_processes(processes, outputs)
        self._add_outputs(outputs, state)
        self._add_environment(outputs, processes)
        self._add_memory(state)
        self._add_releases(outputs)
        self._add_journal(state)

    def _left(self) -> float:
        return self._deadline - self._machine.monotonic()

    def _show(self) -> UnitState:
        try:
            return self._machine.show(self._unit)
        except Exception as error:  # noqa: BLE001  the rest is worth keeping all the same
            self.notes.append(f"systemctl show: {error}")
            return UnitState()

    def _add(self, name: str, text: str) -> None:
        self.files[name] = self._masker.text(text)

    # -- commands -----------------------------------------------------------------------------------------------

    def _commands(self, state: UnitState, processes: ProcessList) -> dict[str, list[str]]:
        namespace = [f"--namespace=+{state.log_namespace}"] if state.log_namespace else []
        nvidia_smi = find_nvidia_smi() or "nvidia-smi"
        json_output = ["--quiet", "--no-pager", "--output=json", "--all", *namespace]
        commands = {
            "sync": journal.sync(namespace=state.log_namespace),
            "unit": ["systemctl", "cat", "--no-pager", "--", self._unit],
            "properties": ["systemctl", "show", "--no-pager", "--", self._unit],
            "unit-journal": ["journalctl", *json_output, f"--lines={_UNIT_LINES}", f"--unit={self._unit}"],
            "kernel": kernel_command(),
            "connections": [
                "ss",
                "-H",
                "-tanpoe",
                f"sport = :{self._params['port']} or dport = :{self._params['port']}",
            ],
            "disks": ["df", "-PTh", "--", *self._paths()],
            "inodes": ["df", "-Pi", "--", *self._paths()],
            "gpus": [nvidia_smi, f"--query-gpu={_QUERY}", "--format=csv"],
            "nvidia-smi": [nvidia_smi, "-q"],
            "gpu-processes": [
                nvidia_smi,
                "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
                "--format=csv",
            ],
            "gpu-topology": [nvidia_smi, "topo", "-m"],
            "nvidia-driver": [
                "grep",
                "-rs",
                "",
                f"{self._machine.proc}/driver/nvidia/version",
                f"{self._machine.proc}/driver/nvidia/gpus",
            ],
        }
        if self._invocation:
            about = journal.command(invocation_id=self._invocation, namespace=state.log_namespace, about=True)
            commands["systemd"] = [*about, f"--lines={_UNIT_LINES}"]
        dump = self._py_spy(processes)
        wanted = [one for one in processes.seen if one.own and one.role in ("main", "scheduler", "detokenizer")]
        for one in wanted[:_MOST_DUMPS] if dump else ():
            # --nonblocking: a server that may yet recover is not stopped for it.
            commands[f"py-spy {one.process.pid}"] = [dump, "dump", "--nonblocking", "--pid", str(one.process.pid)]
        return commands

    def _py_spy(self, processes: ProcessList) -> str:
        folders = [os.path.dirname(one.process.cmdline[0]) for one in processes.seen[:1] if one.process.cmdline]
        path = os.pathsep.join([*filter(os.path.isabs, folders), os.environ.get("PATH", os.defpath), "/usr/local/bin"])
        return shutil.which("py-spy", path=path) or ""

    def _paths(self) -> list[str]:
        model = str(self._params.get("model_path") or "")
        records = str(self._params["state_dir"])
        while not os.path.exists(records) and records != "/":
            records = os.path.dirname(records) or "/"
        paths = ["/", "/tmp", "/dev/shm", "/var/log", records, model]
        return [path for path in dict.fromkeys(paths) if path.startswith("/")]

    # -- secrets ------------------------------------------------------------------------------------------------

    def _secrets(self, outputs: t.Mapping[str, Output], processes: ProcessList) -> set[str]:
        found = Secrets([str(self._params.get("api_key") or "")])
        properties, unit = outputs["properties"].text, outputs["unit"].text
        for text in re.findall(r"^\s*Environment=(.*)$", properties + "\n" + unit, re.MULTILINE):
            found.variables(settings_in("\n".join(words_of(text))))
        for path in self._environment_files(properties):
            found.variables(settings_in(self._text_of(path)))
        for text in re.findall(r"argv\[\]=(.*?) ; ignore_errors=", properties):
            self._learn_command(found, text.split())
        for text in re.findall(r"^\s*ExecStart=((?:[^\n]*\\\n)*[^\n]*)", unit, re.MULTILINE):
            self._learn_command(found, words_of(text.replace("\\\n", " ")))
        for path in re.findall(r"^\s*LoadCredential=[^:\n]+:(/.*)$", unit, re.MULTILINE):
            found.credential(self._text_of(path.strip()), every=True)
        for value in re.findall(r"^\s*SetCredential=[^:\n]+:(.*)$", unit, re.MULTILINE):
            found.value(value.strip())
        for name in glob.glob(f"/run/credentials/{self._unit}/*"):
            found.credential(self._text_of(name), every=True)
        for one in processes.seen:
            if one.own:
                self._learn_command(found, one.process.cmdline)
                found.variables(one.environ)
        return found.found

    @staticmethod
    def _environment_files(properties: str) -> list[str]:
        patterns = re.findall(r"^EnvironmentFiles=(.+) \(ignore_errors=\w+\)$", properties, re.MULTILINE)
        return [path for pattern in patterns for path in sorted(glob.glob(pattern)) or [pattern]]

    def _learn_command(self, found: Secrets, words: t.Sequence[str]) -> None:
        found.command(words)
        for word, following in zip(words, [*words[1:], ""]):
            path = following if word == "--config" else word[9:] if word.startswith("--config=") else ""
            if path.startswith("/"):
                found.credential(self._text_of(path), every=False)

    def _text_of(self, path: str) -> str:
        try:
            return read_small(path)
        except OSError as error:
            # Its secrets are then known by their names alone.
            self.notes.append(f"{path}: {error.strerror or error}")
            return ""

    # -- files --------------------------------------------------------------------------------------------------

    def _add_verdict(self) -> None:
        kept = {key: value for key, value in self._result.items() if key not in ("resume", "changed")}
        # Masked before it is JSON, where a secret may be spelt another way.
        self._add("verdict.json", json.dumps(self._masker.value(kept), indent=2, sort_keys=True, default=str) + "\n")

    def _add_processes(self, processes: ProcessList, outputs: t.Mapping[str, Output]) -> None:
        self._add("processes.txt", processes.table() + "\n")
        for one in processes.seen:
            lines = list(one.detail)
            dump = outputs.get(f"py-spy {one.process.pid}")
            if dump is not None:
                lines += ["", f"Python stack (py-spy{', ' + dump.note if dump.note else ''}):", dump.text]
            if lines:
                self._add(f"processes/{one.process.pid}-{safe_name(one.role)}.txt", "\n".join(lines) + "\n")
        lines = processes.owners or ["Nobody listens on the port."]
        connections = outputs["connections"]
        lines += [
            "",
            "Connections (ss):",
            connections.text or f"(none{'; ' + connections.note if connections.note else ''})",
        ]
        self._add("sockets.txt", "\n".join(lines) + "\n")

    def _add_outputs(self, outputs: t.Mapping[str, Output], state: UnitState) -> None:
        texts = {
            "unit.txt": outputs["unit"].text,
            "properties.txt": outputs["properties"].text,
            "unit-journal.txt": entries_text(outputs["unit-journal"].text),
            "kernel.txt": self._kernel(outputs["kernel"].text, state),
            # Several folders may lie on one file system.
            "disks.txt": "\n\n".join(
                "\n".join(dict.fromkeys(outputs[name].text.splitlines())) for name in ("disks", "inodes")
            )
            + "\n",
        }
        if "systemd" in outputs:
            texts["systemd.txt"] = entries_text(outputs["systemd"].text)
        for name in ("gpus", "nvidia-smi", "gpu-processes", "gpu-topology", "nvidia-driver"):
            texts[f"{name}.txt"] = outputs[name].text
        no_driver = outputs["nvidia-smi"].note == "not found" and not outputs["nvidia-driver"].text
        if no_driver:
            self.notes.append("no NVIDIA driver: neither nvidia-smi nor /proc/driver/nvidia is there")
        for name, text in texts.items():
            if text.strip():
                self._add(name, text if text.endswith("\n") else text + "\n")
        for name, output in outputs.items():
            if output.note and not (no_driver and ("gpu" in name or "nvidia" in name)):
                first = next((line for line in output.text.splitlines() if line.strip()), "")
                self.notes.append(self._masker.text(f"{name}: {output.note}" + (f": {first[:200]}" if first else "")))

    def _kernel(self, output: str, state: UnitState) -> str:
        lines = parse_kernel_log(output, since_us=state.exec_main_start_us)
        if not lines:
            return f"The kernel logged nothing since {state.exec_main_start_us / 1e6:.6f} s after boot, or its log cannot be read here.\n"
        return "\n".join(f"{line.at_us / 1e6:.6f} {line.text}" for line in lines)

    def _add_environment(self, outputs: t.Mapping[str, Output], processes: ProcessList) -> None:
        properties = outputs["properties"].text
        sections = [
            ("Environment= of the unit", settings_in("\n".join(words_of(text))))
            for text in re.findall(r"^Environment=(.*)$", properties, re.MULTILINE)
        ]
        sections += [(path, settings_in(self._text_of(path))) for path in self._environment_files(properties)]
        for one in processes.seen:
            if one.environ:
                sections.append((f"main process {one.process.pid}", one.environ))
            if one.process.pid and one.role == "main" and one.own:
                words = [self._masker.text(word) for word in one.process.cmdline]
                masked = [MASK if word in secret_words(one.process.cmdline) else word for word in words]
                self._add("arguments.txt", "\n".join(masked) + "\n")
        if "arguments.txt" not in self.files:
            found = re.findall(r"argv\[\]=(.*?) ; ignore_errors=", properties)
            self._add(
                "arguments.txt",
                "\n".join(mask_command(text.split()) for text in found[:1]).replace(" --", "\n--") + "\n",
            )
        lines = []
        for title, settings in sections:
            lines.append(f"# {title}")
            lines += [
                f"{name}={MASK if is_secret_variable(name) and value else value}" for name, value in sorted(settings)
            ]
            lines.append("")
        self._add("environment.txt", "\n".join(lines))

    def _add_memory(self, state: UnitState) -> None:
        proc = self._machine.proc
        paths = [
            f"{proc}/{name}"
            for name in ("meminfo", "loadavg", "uptime", "pressure/cpu", "pressure/io", "pressure/memory")
        ]
        for folder in list(cgroup_folders(state.control_group, cgroup_root=self._machine.cgroup_root))[:1]:
            paths += [
                f"{folder}/{name}"
                for name in ("memory.current", "memory.max", "memory.swap.current", "memory.events", "pids.current")
            ]
            paths += [f"{folder}/cpu.stat"]
        self._add("memory.txt", "\n\n".join(f"{path}:\n{read_or_why(path)}" for path in paths) + "\n")

    def _add_releases(self, outputs: t.Mapping[str, Output]) -> None:
        proc = self._machine.proc
        system = os.uname()
        lines = [
            f"host {system.nodename}, {system.sysname} {system.release} {system.version} {system.machine}",
            f"boot id {read_or_why(f'{proc}/sys/kernel/random/boot_id')}",
            f"kernel command line {read_or_why(f'{proc}/cmdline')}",
            f"driver {(read_or_why(f'{proc}/driver/nvidia/version').splitlines() or ['-'])[0]}",
            "",
            read_or_why("/etc/os-release"),
            "",
        ]
        program = re.search(r"^ExecStart=\{ path=(\S+) ;", outputs["properties"].text, re.MULTILINE)
        root = os.path.dirname(os.path.dirname(program.group(1))) if program else ""
        folders = glob.glob(os.path.join(root, "lib*", "python3*", "site-packages", "*.dist-info")) if root else []
        # lib64 is a link to lib in a virtual environment.
        names = sorted({os.path.basename(path)[: -len(".dist-info")] for path in folders})
        lines += [f"SGLang {name.partition('-')[2]}" for name in names if name.startswith("sglang-")]
        lines += ["", f"packages in {root}:" if names else "no packages beside the unit's program", *names]
        self._add("releases.txt", "\n".join(lines) + "\n")

    # -- the journal --------------------------------------------------------------------------------------------

    def _add_journal(self, state: UnitState) -> None:
        if not self._invocation:
            self.notes.append("the unit has no invocation: there is no journal of this start")
            return
        head, tail = Spool(self._masker), Spool(self._masker, limit=_TAIL_BYTES)
        last = self._machine.monotonic() + max(self._left() - WRITING_S, 0.5)
        complete = True
        try:
            cursor, complete, rate = self._read_head(head, state, (self._machine.monotonic() + last) / 2)
            if not complete:
                # As many of the newest as can be read in the time that is left, with some to spare.
                lines = int(min(max(rate * (last - self._machine.monotonic()) / 2, _UNIT_LINES), _TAIL_LINES))
                self._read_tail(tail, state, cursor, lines, last)
        except (OSError, ValueError) as error:
            self.notes.append(f"journal: {error}")
        if complete or not tail.size:
            self.files["journal.txt"] = head
            return
        whole = Spool(self._masker)
        whole.take(head)
        if tail.cut:
            self.notes.append("the journal of this start is long: its middle is left out where journal.txt says so")
            whole.add("[... lines are left out here ...]")
        whole.take(tail)
        self.files["journal.txt"] = whole

    def _read_head(self, head: Spool, state: UnitState, until: float) -> tuple[str, bool, float]:
        """The beginning of the journal; gives the last cursor, whether that was all, and lines read per second."""
        cursor = ""
        count = 0
        began = self._machine.monotonic()
        complete = True
        try:
            for entries in self._machine.journal(self._invocation, state.log_namespace, None, until):
                for entry in entries:
                    head.add(entry_line(entry))
                    cursor = entry.cursor
                count += len(entries)
                if head.size >= _HEAD_BYTES:
                    complete = False
                    break
        except TimeoutError:
            complete = False
        head.flush()
        return cursor, complete, count / max(self._machine.monotonic() - began, 0.001)

    def _read_tail(self, tail: Spool, state: UnitState, cursor: str, lines: int, until: float) -> None:
        """The end of the journal, from after the head's last line where they meet."""
        tail.cut = True
        for entries in self._machine.journal(self._invocation, state.log_namespace, lines, until):
            for entry in entries:
                if entry.cursor == cursor:
                    tail.clear()  # the head has all of this
                    continue
                tail.add(entry_line(entry))
        tail.flush()

    # -- the index ----------------------------------------------------------------------------------------------

    def index(self) -> str:
        """What each file is."""
        diagnosis = self._result.get("diagnosis") or {}
        lines = [
            f"Evidence of a failed start of {self._unit}",
            "",
            f"state       {self._result.get('state')}",
            f"cause       {diagnosis.get('cause', '')}",
            f"summary     {diagnosis.get('summary', '')}",
            f"invocation  {self._invocation or 'none'}",
            f"verdict     {stamp_of(float(self._result.get('detected_at') or self._machine.wall()))}",
            f"collected   {stamp_of(self._machine.wall())}, in {self._machine.monotonic() - self._started:.1f} s",
            "",
            "Values that look secret are replaced by asterisks. Look through the files all the same before you publish them.",
            "",
        ]
        for name, about in _FILES.items():
            there = any(one.startswith(name) for one in self.files) if name.endswith("/") else name in self.files
            lines.append(f"{name:<20} {about}" if there else f"{name:<20} (missing) {about}")
        if self.notes:
            lines += ["", "What could not be had:", *(f"- {note}" for note in dict.fromkeys(self.notes))]
        return self._masker.text("\n".join(lines) + "\n")
