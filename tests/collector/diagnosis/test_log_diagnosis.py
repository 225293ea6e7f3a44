"""The diagnosis of a log while it grows: lines, restarts, what is read too late, states of earlier releases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from support.arriving_frames import ArrivingFrames
from support.schemas import schemas_in, store_parts

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.incident_table import DiagnosisLine, DiagnosisState
from railscope_collector.diagnosis.jobs import ClaimedGpus
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.log_follower import LogFollower
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.live_diagnosis.diagnosis_engine import STATE_FILE, DiagnosisEngine
from railscope_collector.live_diagnosis.diagnosis_input import DiagnosisInput
from railscope_collector.live_diagnosis.log_diagnosis import MAX_BACKLOG_NS, LogDiagnosis

ONSET_NS = 300 * SECOND_NS


@pytest.fixture(scope="module")
def frames(frame_log: Path) -> ArrivingFrames:
    found = ArrivingFrames()
    found.read(frame_log)
    return found


@dataclass
class FollowedLog:
    """A log, and the diagnosis that follows it."""

    directory: Path
    frames: ArrivingFrames
    is_fed: bool = True
    lines: list[DiagnosisLine] = field(default_factory=list)
    numbers: int = 0

    def __post_init__(self) -> None:
        self.log = self.directory / "frames"
        self.log.mkdir()
        self.rotate()

    def rotate(self) -> None:
        self.numbers += 1
        descriptor, self.marker = segment_files.start_segment(self.log, self.numbers)
        os.close(descriptor)

    def append(self, records: Iterable[FrameRecord]) -> None:
        with segment_files.segment_path(self.log, self.numbers).open("ab") as file:
            for record in records:
                payload = segment_files.encode_record(record)
                file.write(segment_files.frame_payload(self.marker, payload))

    def append_until(self, from_ns: int, to_ns: int) -> None:
        start_ns = self.frames.start_ns
        self.append(self.frames.records(start_ns + from_ns, start_ns + to_ns))

    def start(self, at_ns: int) -> LogDiagnosis:
        """Start the diagnosis, as the collector does."""
        claims = None if self.is_fed else ClaimedGpus(lambda *_: "physics")
        engine = DiagnosisEngine(
            self.directory / "state", self.frames.schemas.__getitem__, claims=claims
        )

        def receive(line: bytes) -> None:
            self.lines.append(msgspec.json.decode(line, type=DiagnosisLine))

        diagnosis = LogDiagnosis(engine, receive, LogFollower(self.log), is_fed=self.is_fed)
        now_ns = self.frames.start_ns + at_ns
        if self.is_fed:
            jobs = list(self.frames.jobs.items())
            diagnosis.apply(DiagnosisInput(wall_ns=now_ns, jobs=jobs))
        diagnosis.open(now_ns)
        return diagnosis

    def read(self, diagnosis: LogDiagnosis, at_ns: int) -> None:
        while diagnosis.step(self.frames.start_ns + at_ns):
            pass

    @property
    def changes(self) -> dict[tuple[str, str, int], int]:
        """Number of the lines about each change."""
        keys = [line.change.key for line in self.lines if line.change]
        return {key: keys.count(key) for key in keys}

    @property
    def state(self) -> DiagnosisState:
        return [line.state for line in self.lines if line.state][-1]

    @property
    def classes(self) -> list[str]:
        found = {
            line.incident.document.id: line.incident.document
            for line in self.lines
            if line.incident
        }
        return [found[name].incident_class for name in self.state.incidents]


@pytest.fixture
def followed(frames: ArrivingFrames, tmp_path: Path) -> FollowedLog:
    return FollowedLog(tmp_path, frames)


def run(followed: FollowedLog, diagnosis: LogDiagnosis, from_ns: int, to_ns: int) -> None:
    """Append and read every five seconds."""
    for at_ns in range(from_ns, to_ns, 5 * SECOND_NS):
        followed.append_until(at_ns, at_ns + 5 * SECOND_NS)
        followed.read(diagnosis, at_ns + 5 * SECOND_NS)


def test_a_growing_log_has_the_incident_and_its_change_once(followed: FollowedLog) -> None:
    diagnosis = followed.start(0)
    run(followed, diagnosis, 0, 400 * SECOND_NS)
    assert followed.classes == ["slow_receiver"]
    assert list(followed.changes.values()) == [1]
    state = followed.state
    assert followed.frames.start_ns + 380 * SECOND_NS < state.timestamp_ns
    assert (state.lag_bytes, state.failures, state.dropped) == (0, 0, 0)


@pytest.mark.parametrize(
    "at_seconds", [333, *(pytest.param(each, marks=pytest.mark.thorough) for each in (100, 365))]
)
def test_a_process_that_is_killed_evaluates_what_was_received_meanwhile(
    followed: FollowedLog, at_seconds: int
) -> None:
    """It continues with its last saved state, and has the same result as one that was not killed."""
    killed_ns = at_seconds * SECOND_NS
    run(followed, followed.start(0), 0, killed_ns)
    followed.append_until(killed_ns, killed_ns + 55 * SECOND_NS)
    followed.rotate()
    again = followed.start(killed_ns + 55 * SECOND_NS)
    followed.read(again, killed_ns + 55 * SECOND_NS)
    run(followed, again, killed_ns + 55 * SECOND_NS, 450 * SECOND_NS)
    assert followed.classes == ["slow_receiver"]
    assert len(followed.changes) == 1, "the same change has the same identity"
    (change,) = followed.changes
    assert change[2] <= followed.frames.start_ns + ONSET_NS + 60 * SECOND_NS
    assert followed.state.dropped == 0


def test_a_change_is_sent_again_until_it_is_acknowledged(followed: FollowedLog) -> None:
    diagnosis = followed.start(0)
    run(followed, diagnosis, 0, 400 * SECOND_NS)
    again = followed.start(401 * SECOND_NS)
    assert list(followed.changes.values()) == [2]
    assert followed.state.acknowledged == 0
    again.apply(DiagnosisInput(wall_ns=1, acknowledged=1))
    followed.read(again, 410 * SECOND_NS)
    followed.start(411 * SECOND_NS)
    assert followed.state.acknowledged == 1, "it is saved with the next evaluation"


def test_what_is_read_too_late_is_left_out_and_counted(followed: FollowedLog) -> None:
    diagnosis = followed.start(0)
    run(followed, diagnosis, 0, 100 * SECOND_NS)
    followed.append_until(100 * SECOND_NS, 200 * SECOND_NS)
    late = len(
        followed.frames.records(*(followed.frames.start_ns + n * SECOND_NS for n in (100, 200)))
    )
    now_ns = 200 * SECOND_NS + 2 * MAX_BACKLOG_NS
    followed.read(diagnosis, now_ns)
    followed.read(diagnosis, now_ns + 30 * SECOND_NS)
    assert followed.state.dropped == late
    assert followed.state.timestamp_ns >= followed.frames.start_ns + now_ns - 30 * SECOND_NS
    assert followed.classes == []


def test_a_copied_log_is_read_from_its_beginning_with_the_jobs_of_its_claims(
    frames: ArrivingFrames, tmp_path: Path
) -> None:
    followed = FollowedLog(tmp_path, frames, is_fed=False)
    followed.append_until(0, 360 * SECOND_NS)
    now_ns = 900_000 * SECOND_NS
    diagnosis = followed.start(now_ns)
    followed.read(diagnosis, now_ns)
    assert followed.classes == ["slow_receiver"]
    evaluated_ns = followed.state.timestamp_ns
    assert evaluated_ns <= frames.start_ns + 360 * SECOND_NS
    (line, *_) = [each.incident for each in followed.lines if each.incident]
    assert [job.tenant for job in line.jobs] == ["physics"]
    diagnosis.close()
    followed.append_until(360 * SECOND_NS, 400 * SECOND_NS)
    again = followed.start(now_ns)
    followed.read(again, now_ns)
    assert followed.classes == ["slow_receiver"]
    assert followed.state.timestamp_ns > evaluated_ns
    assert set(followed.changes.values()) == {2}, "once by each process"


def diagnose(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "railscope", "diagnose", *arguments)


def test_the_command_follows_a_copied_log_until_a_signal(followed: FollowedLog) -> None:
    schemas = schemas_in(followed.directory)
    for _, envelope in followed.frames.envelopes:
        store_parts(schemas, envelope)
    followed.append_until(0, 400 * SECOND_NS)
    log, state = str(followed.directory), str(followed.directory / "own")
    command = diagnose("--follow", "--frame-log", log, "--state", state)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found: list[DiagnosisLine] = []
        while not found or found[-1].change is None:
            found.append(msgspec.json.decode(process.stdout.readline(), type=DiagnosisLine))
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode
        assert "is in use by another diagnosis" in second.stderr
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait() == 0
    documents = [line.incident.document for line in found if line.incident]
    assert {each.incident_class for each in documents} == {"slow_receiver"}
    assert (followed.directory / "own" / STATE_FILE).exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--follow",), "expected either --captures or --frame-log"),
        (("--follow", "--captures", "."), "--follow reads a growing frame log"),
        (("--follow", "--frame-log", ".", "--to", "2026-01-01T00:00:00Z"), "and no --to"),
        (("--frame-log", ".", "--state", "x"), "expected both or none"),
        (("--follow", "--frame-log", "."), "no frame log in .: expected"),
    ],
)
def test_invalid_options_are_rejected(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    done = subprocess.run(
        diagnose(*arguments), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert problem in done.stderr
