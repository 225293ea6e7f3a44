"""`railscope diagnose` on captures of a simulated cluster: output, schema, errors, clocks by arrivals."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest
from support.command_line import refusal, run

from railscope.envelopes import unpack
from railscope.timestamps import SECOND_NS
from railscope.wire import pack
from railscope_collector import diagnosis
from railscope_collector.commands.diagnose import diagnose_captures, print_result
from railscope_collector.commands.follow_log import DiagnosisSite
from railscope_collector.commands.node_clocks import DiagnoseError, NodeClocks, read_arrivals
from railscope_collector.detector_thresholds import DetectorThresholds, NodeThresholds
from railscope_collector.diagnosis.incident_report import IncidentDocument, NicDocument
from railscope_collector.diagnosis.jobs import ClaimedGpus, owner_as_tenant
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    encode_record,
    frame_payload,
    read_segment,
    segment_numbers,
    segment_path,
    start_segment,
)


def test_a_slow_receiver_is_found(captures: Path, tmp_path: Path) -> None:
    """The directories of its captures have names of options."""
    for number, node in enumerate(sorted(path for path in captures.iterdir() if path.is_dir())):
        (tmp_path / f"-{number}").symlink_to(node)
    with contextlib.chdir(tmp_path):
        outcome = run("diagnose", "--captures", ".", "--format", "json")
    assert outcome.exit_code == 0, outcome.output
    (incident,) = [
        msgspec.json.decode(line, type=IncidentDocument) for line in outcome.stdout.splitlines()
    ]
    truth = json.loads((captures / "truth.jsonl").read_text())
    assert incident.incident_class == "slow_receiver"
    assert isinstance(incident.cause, NicDocument)
    cause = truth["cause"][0]
    assert (incident.cause.node, incident.cause.interface) == (cause["node"], cause["interface"])
    assert incident.cause.switch
    assert [job.source for job in incident.jobs] == ["slurm"]


def test_every_threshold_of_the_settings_is_read() -> None:
    names = {
        node.attr
        for path in Path(diagnosis.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    families = msgspec.structs.fields(DetectorThresholds)
    settings = {each.name for family in families for each in msgspec.structs.fields(family.type)}
    assert not settings - names


@pytest.mark.parametrize(
    "given",
    [
        "option",
        *(pytest.param(each, marks=pytest.mark.thorough) for each in ("file", "environment")),
    ],
)
def test_the_settings_name_the_tenants(frame_log: Path, tmp_path: Path, given: str) -> None:
    tenants, settings = tmp_path / "tenants.csv", tmp_path / "collector.toml"
    tenants.write_text(
        "tenant,source,owner,from,to\nphysics,slurm,research,1970-01-01T00:00:00Z,\n"
    )
    settings.write_text(f'tenants_file = "{tenants}"\n')
    command = ["diagnose", "--frame-log", str(frame_log), "--format", "json"]
    if given == "option":
        outcome = run(*command, "--config", str(settings))
    elif given == "file":
        outcome = run(*command, RAILSCOPE_CONFIGURATION=str(tmp_path))
    else:
        outcome = run(*command, RAILSCOPE_COLLECTOR_TENANTS_FILE=str(tenants))
    assert outcome.exit_code == 0, outcome.output
    (incident,) = map(json.loads, outcome.stdout.splitlines())
    assert (incident["class"], incident["cause"]["node"]) == ("slow_receiver", "gpu-node-2")
    assert {job["tenant"] for job in incident["jobs"]} == {"physics"}


@pytest.mark.parametrize(
    ("files", "arguments", "problem"),
    [
        ({}, (), "either --captures or --frame-log"),
        ({}, ("--frame-log", "."), "no frames in"),
        ({}, ("--captures", "."), "expected a subdirectory with capture.toml"),
        ({"c.toml": "[diagnosis.thresholds.jobs]\nslow_speed = 2\n"}, ("--captures", ".", "--config", "c.toml"), "slow_speed.*at most 1"),
        ({"c.toml": 'tenants_file = "missing.csv"\n'}, ("--captures", ".", "--config", "c.toml"), "cannot read tenants_file"),
        ({"arrivals.csv": "node,sent,received\nn,1\n"}, ("--captures", "."), "expected node,sent,received"),
        ({"arrivals.csv": "node,sent,received\nn,x,2\n"}, ("--captures", "."), "expected node,sent,received"),
        ({"twice/capture.toml": ""}, ("--captures", "."), "two captures of node"),
    ],
)  # fmt: skip
def test_wrong_input_is_named(
    captures: Path, tmp_path: Path, files: dict[str, str], arguments: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "frames").mkdir()
    about = next(captures.glob("*/capture.toml")).read_text()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text or about)
    if "arrivals.csv" in files or "twice/capture.toml" in files:
        (tmp_path / "once").mkdir()
        (tmp_path / "once" / "capture.toml").write_text(about)
    with contextlib.chdir(tmp_path):
        outcome = run("diagnose", *arguments)
    assert re.search(problem, refusal(outcome) if arguments else outcome.output)


def test_the_settings_change_a_threshold(frame_log: Path, tmp_path: Path) -> None:
    settings = tmp_path / "collector.toml"
    settings.write_text("[diagnosis.thresholds.jobs]\nslow_speed = 0.5\n")
    outcome = run("diagnose", "--frame-log", str(frame_log), "--config", str(settings))
    assert outcome.exit_code == 0, outcome.output
    assert "slow_receiver" in outcome.stdout
    assert "of its speed" not in outcome.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("is_cabled", [False, True])
def test_a_cabling_file_places_nics_without_lldp(
    captures: Path, tmp_path: Path, *, is_cabled: bool
) -> None:
    cause = json.loads((captures / "truth.jsonl").read_text())["cause"][0]
    for node in (path for path in captures.iterdir() if path.is_dir()):
        (tmp_path / node.name).symlink_to(node)
    (tmp_path / "agent.toml").write_text('[metrics]\ndisabled_sources = "neighbour"\n')
    cabling, settings = tmp_path / "cabling.csv", tmp_path / "collector.toml"
    row = f"leaf-9,swp1,{cause['node']},{cause['interface']}\n" if is_cabled else ""
    cabling.write_text(f"switch,port,node,interface\n{row}")
    settings.write_text(f'[switches]\ncabling_file = "{cabling}"\n')
    outcome = run(
        "diagnose", "--captures", str(tmp_path), "--config", str(settings), "--format", "json"
    )
    assert outcome.exit_code == 0, outcome.output
    (incident,) = map(json.loads, outcome.stdout.splitlines())
    place = incident["cause"]["switch"], incident["cause"]["switch_port"]
    assert place == (("leaf-9", "swp1") if is_cabled else ("", ""))


def test_batches_that_contradict_their_schema_are_ignored_and_their_node_is_named(
    frame_log: Path, tmp_path: Path
) -> None:
    (tmp_path / "frames").mkdir()
    (path,) = (segment_path(frame_log / "frames", n) for n in segment_numbers(frame_log / "frames"))
    descriptor, marker = start_segment(tmp_path / "frames", 1)
    damaged = 0
    for _, record in read_segment(path, FrameLogStats()):
        envelope = unpack(record.body, 1 << 26)
        if record.node == "gpu-node-2" and damaged < 2:
            first, *others = envelope.batches
            batches = (msgspec.structs.replace(first, reasons=first.reasons + b"\0"), *others)
            envelope = msgspec.structs.replace(envelope, batches=batches)
            damaged += 1
        body = pack(envelope)
        os.write(
            descriptor,
            frame_payload(marker, encode_record(msgspec.structs.replace(record, body=body))),
        )
    os.close(descriptor)
    outcome = run("diagnose", "--frame-log", str(tmp_path))
    assert outcome.exit_code == 0, outcome.output
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(
        "Warning: ignored 2 batches of node 'gpu-node-2', the first is of source "
    )
    assert line.endswith("': expected batches with a valid schema")


def test_a_segment_that_is_deleted_while_the_log_is_read_is_a_warning(
    frame_log: Path, tmp_path: Path
) -> None:
    """A link without its target is listed and cannot be read, as a segment that a running collector deletes."""
    state = tmp_path / "state"
    shutil.copytree(frame_log, state)
    (state / "frames" / f"frames-{9:010d}-{'0' * 32}.log").symlink_to(tmp_path / "deleted")
    outcome = run("diagnose", "--frame-log", str(state))
    assert outcome.exit_code == 0
    assert "segment 9 of" in outcome.stderr
    assert "slow_receiver" in outcome.stdout
    assert "-> check firmware" in outcome.stdout
    assert "runbook: /runbooks/RailscopeIncident#slow_receiver" in outcome.stdout
    assert re.search(r"^  \d+ GPU-seconds? lost$", outcome.stdout, re.MULTILINE)


def test_captures_that_are_years_apart_are_rejected(captures: Path, tmp_path: Path) -> None:
    node = next(path for path in sorted(captures.iterdir()) if path.is_dir())
    text = (node / "capture.toml").read_text()
    for name, start in (("a", "1"), ("b", "2000000000000000000")):
        (tmp_path / name).mkdir()
        lines = [
            f"started_wall_ns = {start}"
            if line.startswith("started_wall_ns")
            else f'node = "{name}"'
            if line.startswith("node")
            else line
            for line in text.splitlines()
        ]
        (tmp_path / name / "capture.toml").write_text("\n".join(lines) + "\n")
    assert "expected at most 7 days" in refusal(run("diagnose", "--captures", str(tmp_path)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("form", "last"),
    [("json", '{"failed":{"part":"detector stale_nodes"'), ("text", "incomplete: detector stale_")],
)
def test_a_detector_that_fails_leaves_the_incidents_of_the_others(
    captures: Path, capsys: pytest.CaptureFixture[str], form: str, last: str
) -> None:
    """Thresholds without those of nodes fail the detectors that read them."""
    broken = DetectorThresholds(nodes=cast("NodeThresholds", None))
    site = DiagnosisSite(ClaimedGpus(owner_as_tenant), broken, [])
    assert print_result(diagnose_captures(captures, site), form) == 1
    printed = capsys.readouterr()
    assert "slow_receiver" in printed.out
    assert any(line.startswith(last) for line in printed.out.splitlines())
    assert re.search(
        r"detector stale_nodes failed \d+ times: AttributeError: .*\.py:\d+\)", printed.err
    )


START_NS = 1_760_000_000 * SECOND_NS
OFFSET_NS = 40_000_000
HEADER = "node,sent,received\n"


def read(path: Path, rows: Sequence[str], begin: str = HEADER) -> NodeClocks:
    file = path / "arrivals.csv"
    file.write_bytes((begin + "".join(f"{row}\n" for row in rows)).encode())
    return read_arrivals(file, [START_NS])


def arrival(seconds: float, received_seconds: float | None = None, node: str = "n") -> str:
    """A line of a node whose clock is behind by 40 ms."""
    received = seconds if received_seconds is None else received_seconds
    sent_ns = START_NS + round(seconds * SECOND_NS) - OFFSET_NS
    return f"{node},{sent_ns},{START_NS + round(received * SECOND_NS)}"


def test_samples_of_a_backlog_keep_their_times(tmp_path: Path) -> None:
    silent = [arrival(seconds, 400 + seconds / 1000) for seconds in range(100, 400, 5)]
    clocks = read(tmp_path, [arrival(90), arrival(95), *silent, arrival(405)])
    convert = clocks.clock("n")
    for seconds in (50, 200, 399, 410):
        wall_ns = START_NS + seconds * SECOND_NS
        assert convert(wall_ns) - wall_ns == pytest.approx(OFFSET_NS, abs=SECOND_NS)


def test_a_clock_that_is_set_back_differs_from_a_backlog(tmp_path: Path) -> None:
    behind = [f"n,{START_NS + s * SECOND_NS - 300 * SECOND_NS},{START_NS + s * SECOND_NS}" for s in range(100, 200, 5)]  # fmt: skip
    clocks = read(tmp_path, [arrival(90), arrival(95), *behind])
    assert clocks.offsets_ns["n"] == [OFFSET_NS] * 2 + [300 * SECOND_NS] * len(behind)


@pytest.mark.parametrize(
    "line",
    [
        f"n,{10**30},{START_NS}",
        f"n,{START_NS},{10**30}",
        f"n,-5,{START_NS}",
        f"single,{10**30},{START_NS}",
        f"n,{START_NS},{START_NS + 30 * 86_400 * SECOND_NS}",
    ],
)
def test_a_line_that_contradicts_the_others_is_ignored_with_a_warning(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clocks = read(tmp_path, [arrival(seconds) for seconds in range(5)] + [line])
    assert len(clocks.receipts) == 5
    assert "ignored 1 of 6 lines" in (warning := capsys.readouterr().err)
    assert "line 7" in warning


def test_a_clock_that_is_wrong_by_years_counts(tmp_path: Path) -> None:
    rows = [f"n,{s * SECOND_NS},{START_NS + s * SECOND_NS}" for s in range(5)]
    convert = read(tmp_path, rows).clock("n")
    assert convert(2 * SECOND_NS) == START_NS + 2 * SECOND_NS


def test_a_byte_order_mark_and_empty_lines_are_accepted(tmp_path: Path) -> None:
    clocks = read(tmp_path, [arrival(1), "", arrival(2), ""], begin="\ufeff" + HEADER)
    assert len(clocks.receipts) == 2


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiagnoseError, match=r"arrivals.csv:3: 'n,1.5e9,2'"):
        read(tmp_path, [arrival(1), "n,1.5e9,2"])
