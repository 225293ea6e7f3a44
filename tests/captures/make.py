"""Makes the case folders: simulated GPU servers, and the page that the agent makes of each.

    python tests/captures/make.py            write all of them anew
    python tests/captures/make.py --check    only say which are not as they would be made

A case is a capture of what the GPU sources read, and `expected.prom` beside it: everything on the
page but what the agent tells of itself. The servers have few GPUs, to keep the files small.
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
from railscope.simulator import NodeSpec, about, moments

HERE = Path(__file__).parent
EXPECTED = "expected.prom"
MOMENTS = 2
"""Moments after the first one; faults set in at the one in the middle."""

_PCI = "/sys/bus/pci/devices"
_PCI_FACTS = ("vendor", "device", "class")
_GPU_CLASS = "0x0302"
_KEPT_FILES = re.compile(r"/proc/(?:\d+/comm|sys/kernel/hostname|driver/nvidia/.*)")
_FAMILY = re.compile(r"(?:# (?:HELP|TYPE|UNIT) )?(?P<name>[a-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated, for how long and in which steps, of which few are kept."""

    gpus: int
    model: str
    scenario: str = "training"
    mode: str = "whole"
    seconds: int = 60
    step_seconds: float = 1.0

    def spec(self, name: str) -> NodeSpec:
        """The node of the case, which has the case's name."""
        return NodeSpec(
            node=name, gpus=self.gpus, model=self.model, scenario=self.scenario, mode=self.mode
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
}


def capture(name: str) -> Capture:
    """The capture of a case."""
    case = CASES[name]
    spec = case.spec(name)
    every_ns = case.seconds * 10**9 // MOMENTS
    fine = moments(spec, case.seconds, case.step_seconds)
    kept = tuple(_gpus_only(_thinned(fine, every_ns)))
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
    """What the GPU sources read: NVML, the kernel log, who has each GPU, names of processes."""
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
            names={_PCI: sorted(gpus)} if _PCI in moment.names else {},
            links={path: end for path, end in moment.links.items() if path in drivers},
            calls={call: a for call, a in moment.calls.items() if call.startswith("nvml.")},
            log=moment.log,
        )


def page(folder: Path) -> str:
    """What `railscope agent once` prints of a capture."""
    outcome = CliRunner().invoke(agent, ["once", "--replay", str(folder)])
    if outcome.exit_code:
        message = f"{folder}: agent once left with {outcome.exit_code}: {outcome.output}"
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
        folder = Path(temporary) / name
        capture(name).write(folder)
        made = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
        return made | {EXPECTED: without_the_agent(page(folder))}


def committed(name: str, root: Path = HERE) -> dict[str, str]:
    """Every file of a case as it lies here."""
    folder = root / name
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
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


def _write(folder: Path, made: dict[str, str], different: list[str]) -> None:
    """Write what differs; what no case has goes."""
    folder.mkdir(exist_ok=True)
    for file in different:
        if file in made:
            (folder / file).write_text(made[file], encoding="utf-8")
        else:
            (folder / file).unlink()


def _stray(folder: Path) -> bool:
    return folder.name not in CASES and not folder.name.startswith("__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
