"""Test cases as directories: each directory of `tests/captures` is a node and its expected metrics.

  case.toml        description, origin and facts of the case
  capture.toml, timeline.jsonl   the capture, recorded on a node or simulated
  expected.prom    output of `railscope agent once` for the capture, without the agent's own metrics

`make cases` writes all files but case.toml; a recorded capture is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from click.testing import CliRunner

from railscope.capture import Capture, read_capture
from railscope.catalog import SUBJECT_OF
from railscope.untrusted_text import TomlError, parse_toml
from railscope_agent.commands import agent
from railscope_simulator import NodeSpec, find_model

CASES = Path(__file__).parents[1] / "captures"
DESCRIPTION, EXPECTED = "case.toml", "expected.prom"
FILES = frozenset({DESCRIPTION, "capture.toml", "timeline.jsonl", EXPECTED})
MAX_BYTES = 4_000_000
"""Maximum size of a case."""
_HELP = 'fix: see "Add a test case" in docs/developer.md'
_FAMILY = re.compile(r"(?:# (?:HELP|TYPE|UNIT) )?(?P<name>[a-z0-9_]+)")


class CaseError(ValueError):
    """A directory that is not a complete and valid case."""


class CaptureOrigin(Enum):
    """Origin of the capture of a case."""

    RECORDED = "recorded"
    SIMULATED = "simulated"


class CaseSources(Enum):
    """Sources whose data a simulated capture contains; the others are left out to keep it small."""

    GPU = "gpu"
    NETWORK = "network"
    BOTH = "both"


class CaseSimulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Simulated node, duration and steps of the simulation, and number of moments kept."""

    scenario: str
    model: str
    gpus: int
    mode: str = "whole"
    nic: str = "cx7"
    scheduler: str = "none"
    unclaimed: bool = False
    hung_job: bool = False
    """A rank of the Slurm job does not enter a collective, and all ranks wrote a dump of their flight recorder."""
    inspected_job: bool = False
    """Ranks of the Slurm job wrote files of NCCL Inspector, and one arrives last at each collective."""
    sources: CaseSources = CaseSources.GPU
    seconds: Annotated[int, msgspec.Meta(ge=1)] = 60
    step_seconds: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    moments: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Moments after the first one; a fault begins at the middle one."""

    def __post_init__(self) -> None:
        """Reject a node that cannot be simulated."""
        self.spec("node")

    def spec(self, node: str) -> NodeSpec:
        """Return the specification of the node."""
        find_model(self.model)
        return NodeSpec(
            node=node,
            gpus=self.gpus,
            model=self.model,
            scenario=self.scenario,
            mode=self.mode,
            nic=self.nic,
            scheduler=self.scheduler,
            unclaimed=self.unclaimed,
        )


class ExpectedSeries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Expected series of a metric with some labels: their number, or the value of each of them."""

    metric: str
    labels: dict[str, str] = {}
    count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        """Reject an unknown metric, which would never have any series."""
        if self.metric not in SUBJECT_OF:
            message = f"unknown metric {self.metric!r}"
            raise ValueError(message)
        if (self.count is None) == (self.value is None):
            message = f"{self.metric}: expected either `count` or `value`"
            raise ValueError(message)


class CaptureCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of case.toml."""

    description: str
    origin: CaptureOrigin
    simulation: CaseSimulation | None = None
    health_reasons: dict[str, list[str]] = {}
    """Active health reasons of each GPU that is degraded or has failed, by UUID."""
    nic_reasons: dict[str, list[str]] = {}
    """Reasons of `agent check` against each NIC, by interface."""
    facts: list[ExpectedSeries] = []

    def __post_init__(self) -> None:
        """Reject a simulated case without a scenario, and a recorded one with it."""
        if (self.simulation is not None) != (self.origin is CaptureOrigin.SIMULATED):
            message = "expected a table [simulation] if and only if the origin is 'simulated'"
            raise ValueError(message)


def names(root: Path = CASES) -> list[str]:
    """Return the name of every case: each directory is one."""
    return sorted(
        path.name for path in root.iterdir() if path.is_dir() and path.name[0] not in "_."
    )


def third_of(parameters: Iterable[str]) -> list[Any]:
    """Return parameters of a slow test: two thirds of them are left to `make thorough`."""
    return _each(3, parameters)


def few_of(parameters: Iterable[str]) -> list[Any]:
    """Return parameters of a very slow test: all but each twelfth of them are left to `make thorough`."""
    return _each(12, parameters)


def _each(step: int, parameters: Iterable[str]) -> list[Any]:
    return [
        pytest.param(name, marks=[pytest.mark.thorough] if number % step else [])
        for number, name in enumerate(parameters)
    ]


def read_case(directory: Path) -> CaptureCase:
    """Read case.toml. Raises CaseError that names the invalid or missing key."""
    path = directory / DESCRIPTION
    try:
        return msgspec.convert(parse_toml(path.read_text(encoding="utf-8")), CaptureCase)
    except FileNotFoundError as error:
        message = f"missing {path}: expected a description of the case; {_HELP}"
        raise CaseError(message) from error
    except (UnicodeDecodeError, TomlError, msgspec.ValidationError) as error:
        message = f"invalid {path}: {error}; {_HELP}"
        raise CaseError(message) from error


def check_files(directory: Path) -> None:
    """Raise CaseError if a file is missing or unknown, or the capture contradicts case.toml."""
    case = read_case(directory)
    present = {path.name for path in directory.iterdir()}
    if missing := sorted(FILES - present - {EXPECTED}):
        message = (
            f"{directory}: missing {', '.join(missing)}; fix: record the node, or `make cases`"
        )
        raise CaseError(message)
    if unknown := sorted(present - FILES):
        expected = ", ".join(sorted(FILES))
        message = f"{directory}: unknown files {', '.join(unknown)}: expected {expected}"
        raise CaseError(message)
    expected_metrics(directory)
    if (size := sum(path.stat().st_size for path in directory.iterdir())) > MAX_BYTES:
        message = (
            f"{directory}: {size} bytes: expected at most {MAX_BYTES}; fix: record fewer seconds"
        )
        raise CaseError(message)
    about = read_capture(directory).about
    if about.origin.partition(":")[0] != case.origin.value:
        message = (
            f"{directory}: capture.toml has origin {about.origin!r}: expected {case.origin.value}"
        )
        raise CaseError(message)
    if case.origin is CaptureOrigin.RECORDED and not about.redacted:
        message = f"{directory}: the capture is not redacted; fix: record it with --redact"
        raise CaseError(message)


def expected_metrics(directory: Path) -> str:
    """Return the expected metrics in text form. Raises CaseError if there are none."""
    try:
        return (directory / EXPECTED).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        message = f"missing {directory / EXPECTED}; fix: `make cases`, then review the new file"
        raise CaseError(message) from error


def capture_of(case: str) -> Capture:
    """Return the capture of a case."""
    return read_capture(CASES / case)


def page(directory: Path) -> str:
    """Return the output of `railscope agent once` for a capture. Raises CaseError if it fails."""
    patient = {
        "RAILSCOPE_AGENT_READ_TIMEOUT_SECONDS": "60",  # no capture hangs, however slow this is
        "RAILSCOPE_AGENT_COLLECTIVES__NCCL_INSPECTOR_DIRECTORY": "/run/railscope/nccl-inspector",
    }
    outcome = CliRunner().invoke(
        agent, ["once", "--detail", "full", "--replay", str(directory)], env=patient
    )
    if outcome.exit_code:
        message = f"{directory}: agent once: exit status {outcome.exit_code}: {outcome.output}"
        raise CaseError(message)
    return outcome.stdout


def without_agent_metrics(page: str) -> str:
    """Return the metrics without those of the agent itself, which differ in each run."""
    lines = page.splitlines(keepends=True)
    return "".join(line for line in lines if _subject(line) != "agent")


def _subject(line: str) -> str:
    match = _FAMILY.match(line)
    return SUBJECT_OF.get(match["name"], "") if match else ""
