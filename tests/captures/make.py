"""Makes the case directories: simulated GPU servers, and the page that the agent makes of each.

    python tests/captures/make.py            write all of them anew
    python tests/captures/make.py --check    only say which are not as they would be made

A case is a capture of what the GPU sources read, or of what the network sources read, and
`expected.prom` beside it: everything on the page but what the agent tells of itself. The servers have
few GPUs, to keep the files small.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from agent.cli import agent
from railscope.capture import SECTIONS, Capture, Moment
from railscope.catalog import SUBJECT_OF
from simulator import NodeSpec, about, moments

HERE = Path(__file__).parent
EXPECTED = "expected.prom"
MOMENTS = 2
"""Moments after the first one; faults set in at the one in the middle."""

_PCI = "/sys/bus/pci/devices"
_PCI_FACTS = ("vendor", "device", "class")
_GPU_CLASS = "0x0302"
_CARD_CLASSES = ("0x0200", "0x0207")
_PATH_FACTS = (
    *_PCI_FACTS, "numa_node",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
)  # fmt: skip
_CARD_FACTS = (*_PATH_FACTS, "aer_dev_correctable", "aer_dev_fatal", "vpd")
_GPU_FACTS = (*_PATH_FACTS, "local_cpulist")
_NETWORK_ROOTS = ("/sys/class/infiniband", "/sys/class/net")
_NETWORK_FILES = ("/proc/net/route", "/proc/sys/kernel/hostname")
_NETWORK_SEAMS = ("ethtool.", "netlink.", "lldp.")
_KEPT_FILES = re.compile(
    r"/proc/(?:\d+/(?:comm|stat|cgroup)|sys/kernel/hostname|driver/nvidia/.*)|/sys/fs/cgroup/.*"
)
_KEPT_DIRECTORIES = ("/sys/fs/cgroup/", "/var/log/pods")
_GPU_SEAMS = ("nvml.", "kubelet.", "owner.")
_FAMILY = re.compile(r"(?:# (?:HELP|TYPE|UNIT) )?(?P<name>[a-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated, for how long and in which steps, of which few are kept."""

    gpus: int
    model: str
    scenario: str = "training"
    mode: str = "whole"
    scheduler: str = "none"
    stray: bool = False
    nic: str = ""
    """Which network cards it has; only where these are what the case is about."""
    seconds: int = 60
    step_seconds: float = 1.0
    moments: int = MOMENTS

    def spec(self, name: str) -> NodeSpec:
        """The node of the case, which has the case's name."""
        return NodeSpec(
            node=name,
            gpus=self.gpus,
            model=self.model,
            scenario=self.scenario,
            mode=self.mode,
            nic=self.nic or "cx7",
            scheduler=self.scheduler,
            stray=self.stray,
        )


CASES = {
    "dgx-a100": Case(2, "a100"),
    "hgx-h100-idle": Case(1, "h100", "idle"),
    "hgx-h100-load": Case(2, "h100"),
    "hgx-b200": Case(1, "b200"),
    "gb200-tray": Case(2, "gb200"),
    "h200-mig": Case(1, "h200", mode="mig"),
    "l40s": Case(2, "l40s"),
    "t4": Case(2, "t4"),
    "mps-node": Case(1, "h100", mode="mps"),
    "vgpu-host": Case(2, "l40s", mode="vgpu"),
    "passthrough-host": Case(2, "h100", mode="passthrough"),
    "lost-gpu": Case(4, "a100", "xid79"),
    "pending-row-remap": Case(1, "h100", "row_remap"),
    "thermal-throttling": Case(1, "h100", "thermal", seconds=240, step_seconds=2.0),
    "nvlink-errors": Case(1, "h100", "nvlink_errors"),
    "denied": Case(1, "h100", "nvml_denied"),
    "hung-gpu": Case(4, "a100", "gpu_hung"),
    "pods-on-mig": Case(2, "h200", mode="mig", scheduler="kubernetes", stray=True),
    "slurm-job": Case(2, "t4", scheduler="slurm"),
    "hgx-h100-roce-incast": Case(8, "h100", "incast", nic="cx7", moments=1),
    "hgx-h100-roce-pause-storm": Case(8, "h100", "pause_storm", nic="cx7", moments=1),
    "hgx-h100-roce-idle": Case(8, "h100", "idle", nic="cx7", moments=1),
    "index-is-not-rail": Case(6, "h100", nic="cx7", moments=1),
    "hgx-b200-bridges": Case(2, "b200", nic="cx7", moments=1),
    "bnxt-node": Case(4, "h100", "pfc_victim", nic="bnxt", moments=1),
    "irdma-node": Case(4, "h100", "pause_storm", nic="irdma", moments=1),
    "mixed-node": Case(6, "h100", nic="mixed", moments=1),
    "flapping-link": Case(4, "h100", "flapping", nic="cx7", moments=1),
    "port-trained-down": Case(4, "h100", "speed_down", nic="cx7"),
    "nic-lost": Case(4, "h100", "nic_lost", nic="cx7"),
    "pcie-degraded": Case(4, "h100", "pcie_degraded", nic="cx7", moments=1),
    "settings-drift-a": Case(4, "h100", nic="cx7", moments=1),
    "settings-drift-b": Case(4, "h100", "settings_drift", nic="cx7"),
}


def capture(name: str) -> Capture:
    """The capture of a case."""
    case = CASES[name]
    spec = case.spec(name)
    every_ns = case.seconds * 10**9 // case.moments
    fine = moments(spec, case.seconds, case.step_seconds)
    only = _network_only if case.nic else _gpus_only
    kept = tuple(only(_thinned(fine, every_ns)))
    return Capture(about(spec, case.seconds), kept)


def _thinned(fine: Iterator[Moment], every_ns: int) -> Iterator[Moment]:
    """Some of the moments, each with what has changed since the one before."""
    changes = Moment(0)
    for moment in fine:
        changes.offset_ns = moment.offset_ns
        changes.log += moment.log
        for section in SECTIONS:
            getattr(changes, section).update(getattr(moment, section))
        if moment.offset_ns % every_ns == 0:
            yield changes
            changes = Moment(0)


def _gpus_only(whole: Iterator[Moment]) -> Iterator[Moment]:
    """What the GPU sources read: NVML, the kernel log, who has each GPU, processes and their owners."""
    gpus: set[str] = set()
    for moment in whole:
        gpus |= {
            path.split("/")[-2]
            for path, text in moment.files.items()
            if path.endswith("/class") and str(text).startswith(_GPU_CLASS)
        }
        facts = {f"{_PCI}/{gpu}/{fact}" for gpu in gpus for fact in _PCI_FACTS}
        drivers = {f"{_PCI}/{gpu}/driver" for gpu in gpus}
        yield Moment(
            moment.offset_ns,
            files={
                path: text
                for path, text in moment.files.items()
                if path in facts or _KEPT_FILES.fullmatch(path)
            },
            names=({_PCI: sorted(gpus)} if _PCI in moment.names else {})
            | {
                path: there
                for path, there in moment.names.items()
                if path.startswith(_KEPT_DIRECTORIES)
            },
            links={path: end for path, end in moment.links.items() if path in drivers},
            calls={call: a for call, a in moment.calls.items() if call.startswith(_GPU_SEAMS)},
            log=moment.log,
        )


def _network_only(whole: Iterator[Moment]) -> Iterator[Moment]:
    """What the network sources read: cards, the ports above them, and where the GPUs are."""
    all_of_it = tuple(whole)
    wanted = _places(all_of_it[0])
    facts = {f"{_PCI}/{device}/{fact}" for device, kept in wanted.items() for fact in kept}
    facts -= _tables_without_errors(all_of_it)
    for moment in all_of_it:
        # Without what NVML says, a GPU with a driver would be one whose driver is silent.
        drivers = {
            f"{_PCI}/{device}/driver" for device, kept in wanted.items() if kept is not _GPU_FACTS
        }
        devices = {f"{_PCI}/{device}" for device in wanted}
        yield Moment(
            moment.offset_ns,
            files={
                path: text
                for path, text in moment.files.items()
                if path in facts or path in _NETWORK_FILES or path.startswith(_NETWORK_ROOTS)
            },
            names={
                path: [device for device in entries if path != _PCI or device in wanted]
                if isinstance(entries, list)
                else entries
                for path, entries in moment.names.items()
                if path == _PCI or path.startswith(_NETWORK_ROOTS)
            },
            links={
                path: end
                for path, end in moment.links.items()
                if path in drivers | devices or path.startswith(_NETWORK_ROOTS)
            },
            calls={c: answer for c, answer in moment.calls.items() if c.startswith(_NETWORK_SEAMS)},
            log=moment.log,
        )


def _tables_without_errors(moments_: tuple[Moment, ...]) -> set[str]:
    """Files of error counts in which nothing is ever counted: they are many, and say nothing."""
    texts: dict[str, str] = {}
    for moment in moments_:
        for path, text in moment.files.items():
            if "/aer_dev_" in path:
                texts[path] = texts.get(path, "") + str(text)
    return {path for path, text in texts.items() if not re.search(r" [1-9]", text)}


def _places(first: Moment) -> dict[str, tuple[str, ...]]:
    """Cards, GPUs and every port above them, and what is kept of each."""
    classes = {
        path.split("/")[-2]: str(text)
        for path, text in first.files.items()
        if path.startswith(_PCI) and path.endswith("/class")
    }
    wanted: dict[str, tuple[str, ...]] = {}
    for device, kind in classes.items():
        if not kind.startswith((*_CARD_CLASSES, _GPU_CLASS)):
            continue
        path = [part for part in first.links[f"{_PCI}/{device}"].split("/") if part in classes]
        wanted |= {part: _PATH_FACTS for part in path if part not in wanted}
        wanted |= dict.fromkeys(path[-2:], _CARD_FACTS) if kind.startswith(_CARD_CLASSES) else {}
        wanted |= {device: _GPU_FACTS} if kind.startswith(_GPU_CLASS) else {}
    return wanted


def page(directory: Path) -> str:
    """What `railscope agent once` prints of a capture."""
    patient = {"RAILSCOPE_AGENT_DEADLINE_SECONDS": "60"}  # no capture hangs, however slow this is
    outcome = CliRunner().invoke(agent, ["once", "--replay", str(directory)], env=patient)
    if outcome.exit_code:
        message = f"{directory}: agent once left with {outcome.exit_code}: {outcome.output}"
        raise RuntimeError(message)
    return outcome.stdout


def without_the_agent(page: str) -> str:
    """A page without the lines about the agent itself, which no two runs have in common."""
    lines = page.splitlines(keepends=True)
    return "".join(line for line in lines if _subject(line) != "agent")


def _subject(line: str) -> str:
    match = _FAMILY.match(line)
    return SUBJECT_OF.get(match["name"], "") if match else ""


def files(name: str) -> dict[str, str]:
    """Every file of a case by its name."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / name
        capture(name).write(directory)
        made = {path.name: path.read_text(encoding="utf-8") for path in sorted(directory.iterdir())}
        return made | {EXPECTED: without_the_agent(page(directory))}


def committed(name: str, root: Path = HERE) -> dict[str, str]:
    """Every file of a case as it lies here."""
    directory = root / name
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def main(arguments: list[str], root: Path = HERE) -> int:
    """Write the cases, or check them. The exit status."""
    check = "--check" in arguments
    wrong = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and _stray(entry))
    for name in CASES:
        made, here = files(name), committed(name, root)
        different = sorted(file for file in made | here if made.get(file) != here.get(file))
        if check:
            wrong += [f"{name}/{file}" for file in different]
        elif different:
            _write(root / name, made, different)
            sys.stdout.write(f"{name}: {', '.join(different)} written\n")
    if wrong:
        sys.stdout.write(f"not as made: {', '.join(wrong)}; run python tests/captures/make.py\n")
    return int(bool(wrong))


def _write(directory: Path, made: dict[str, str], different: list[str]) -> None:
    """Write what differs; what no case has goes."""
    directory.mkdir(exist_ok=True)
    for file in different:
        if file in made:
            (directory / file).write_text(made[file], encoding="utf-8")
        else:
            (directory / file).unlink()


def _stray(directory: Path) -> bool:
    return directory.name not in CASES and not directory.name.startswith("__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
