"""Frames of broken and hostile nodes, and long operation: what one node sends affects no other, and every table is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.incidents import incident as reported_incident
from support.schemas import identity_of

from railscope.timestamps import SECOND_NS, format_timestamp, parse_timestamp
from railscope.wire import Batch, WireEntity, WireEvent, WireSchema
from railscope_collector.diagnosis import incidents
from railscope_collector.diagnosis.incident_classes import ChangeKind
from railscope_collector.diagnosis.incident_report import (
    MAX_LISTED,
    GpuDocument,
    IncidentDocument,
    JobDocument,
    LeafDocument,
    NicDocument,
    StorageDocument,
)
from railscope_collector.diagnosis.incident_table import ReportedIncident
from railscope_collector.diagnosis.ranking import Reach
from railscope_collector.live_diagnosis import diagnosis_engine
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine, ReceivedBatches
from railscope_collector.workloads.job_roster import JobKey

START_NS = 1_700_000_000 * SECOND_NS
STEP_NS = 10 * SECOND_NS


@dataclass
class HostileFeed:
    """An engine, and the frames of nodes that it receives every 10 seconds."""

    directory: Path
    schemas: dict[bytes, WireSchema] = field(default_factory=dict)
    now_ns: int = START_NS
    items: list[ReceivedBatches] = field(default_factory=list)
    running: dict[JobKey, list[str]] = field(default_factory=dict)
    """GPUs of the jobs that run."""
    engine: DiagnosisEngine = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Continue with the saved state."""
        self.engine = DiagnosisEngine(self.directory, self.schemas.__getitem__)
        self.engine.open(self.now_ns)

    def send(
        self,
        node: str,
        entities: Iterable[WireEntity] = (),
        events: Sequence[WireEvent] = (),
        *,
        stream: str = "gpu",
        offset_ns: int = 0,
    ) -> None:
        """Queue an envelope with one frame of these entities."""
        schema = WireSchema(stream, (), tuple(entities))
        digest = identity_of(schema)
        self.schemas[digest] = schema
        times = (self.now_ns + offset_ns,)
        batch = Batch(stream, digest, b"", 1, times, times, b"", b"", events=tuple(events))
        self.items.append(ReceivedBatches(node, "run", self.now_ns, offset_ns, [batch]))

    def evaluate(self, slots: int = 1) -> list[tuple[ChangeKind, str]]:
        """Evaluate slots; return kind and class of each change."""
        changes = []
        for _ in range(slots):
            self.now_ns += STEP_NS
            changes += self.engine.process(self.items, self.running, self.now_ns)
            self.items = []
        return [(change.kind, change.incident.class_name) for change in changes]

    @property
    def documents(self) -> list[IncidentDocument]:
        """Incidents as published."""
        return [each.document for each in self.engine.table.incidents]


def gpu(uuid: str, **facts: str) -> WireEntity:
    return WireEntity("gpu", (uuid,), {"pci_address": f"0000:{uuid}", **facts})


def xid(key: tuple[str, ...], at_ns: int, boot_ns: int = 1) -> WireEvent:
    return WireEvent("xid", 0, WireEntity("gpu_xid", key), at_ns, boot_ns)


@pytest.fixture
def feed(tmp_path: Path) -> HostileFeed:
    return HostileFeed(tmp_path)


@pytest.mark.parametrize(
    "key", [(), ("0000:a",), ("0000:a", "x"), ("", ""), ("0000:a", "9" * 4000)]
)
def test_an_invalid_event_does_not_hide_that_of_another_node(
    feed: HostileFeed, key: tuple[str, ...]
) -> None:
    feed.send("n1", [gpu("a")])
    feed.send("n2", [gpu("b")])
    feed.evaluate(2)
    feed.send("n1", [gpu("a")], [xid(key, feed.now_ns)])
    feed.send("n2", [gpu("b")], [xid(("0000:b", "79"), feed.now_ns)])
    feed.evaluate(2)
    found = [each for each in feed.documents if isinstance(each.cause, GpuDocument)]
    assert "n2" in {each.cause.node for each in found if isinstance(each.cause, GpuDocument)}
    assert feed.engine.failures == 0
    msgspec.json.encode(feed.documents)


@pytest.mark.parametrize("read_after_seconds", [0, 25])
def test_an_event_is_known_from_the_sample_that_read_it_on(
    feed: HostileFeed, read_after_seconds: int
) -> None:
    """The kernel log states an earlier time than that of the sample."""
    feed.send("n1", [gpu("a")])
    feed.evaluate(2)
    at_ns, read_after_ns = feed.now_ns, read_after_seconds * SECOND_NS
    event = xid(("0000:a", "79"), at_ns)
    feed.now_ns += read_after_ns
    feed.send("n1", [gpu("a")], [event])
    feed.now_ns -= read_after_ns
    feed.evaluate(8)
    (document,) = feed.documents
    detected_ns, onset_ns = map(parse_timestamp, (document.detected, document.onset))
    assert onset_ns == at_ns
    assert read_after_ns <= detected_ns - at_ns <= read_after_ns + STEP_NS


def test_numbers_that_json_cannot_state_are_unknown(feed: HostileFeed) -> None:
    feed.send("n1", [gpu("a", index="9" * 30)], [xid(("0000:a", "79"), feed.now_ns)])
    feed.evaluate(2)
    (document,) = feed.documents
    assert isinstance(document.cause, GpuDocument)
    assert document.cause.index is None
    msgspec.json.encode(document)


def test_a_node_without_valid_frames_does_not_end_the_comparison_of_clocks(
    feed: HostileFeed,
) -> None:
    for _ in range(6):
        for number in range(4):
            feed.send(f"n{number}", offset_ns=-5 * SECOND_NS if number == 3 else 0)
        feed.items.append(ReceivedBatches("unknown", "run", feed.now_ns, SECOND_NS, []))
        feed.evaluate()
    causes = {each.title for each in feed.documents}
    assert causes == {"Wrong clock: node n3", "Wrong clock: node unknown"}
    assert feed.engine.failures == 0


def test_uneven_delays_of_a_busy_collector_leave_the_clocks_alone(feed: HostileFeed) -> None:
    rng, found = np.random.default_rng(3), set[str]()
    for number in range(60):
        delays_ns = (rng.uniform(0.0, 1.0, 8) * SECOND_NS).astype(np.int64).tolist()
        for node, delay_ns in enumerate(delays_ns):
            is_behind = node == 5 and number >= 30
            feed.send(f"n{node}", offset_ns=-delay_ns - (20 * SECOND_NS if is_behind else 0))
        feed.evaluate()
        found |= {each.title for each in feed.documents}
        assert number >= 30 or not found
    assert found == {"Wrong clock: node n5"}


@pytest.mark.parametrize(("error_seconds", "needed_slots"), [(0.5, 4), (-0.5, 5)])
def test_a_clock_that_is_set_wrong_is_found_from_its_first_receipt_on(
    feed: HostileFeed, error_seconds: float, needed_slots: int
) -> None:
    """A delay explains only a clock that is behind, which needs more receipts."""

    def report(error_ns: int) -> None:
        for number in range(4):
            feed.send(f"n{number}", offset_ns=error_ns if number == 3 else 0)
        feed.evaluate()

    for _ in range(8):
        report(0)
    assert not feed.documents
    since_ns = feed.now_ns
    for _ in range(needed_slots):
        report(round(error_seconds * SECOND_NS))
    (found,) = feed.documents
    assert found.title == "Wrong clock: node n3"
    assert found.onset == format_timestamp(since_ns)


def test_old_events_and_those_without_use_are_left_out(feed: HostileFeed) -> None:
    old_ns = feed.now_ns - 2 * 3600 * SECOND_NS
    claim = WireEvent("claim_start", 0, WireEntity("claim", ("a", "c")), feed.now_ns, 1)
    feed.send("n1", [gpu("a")], [xid(("0000:a", "79"), old_ns), claim])
    assert feed.evaluate(2) == []


def test_a_state_of_another_release_or_with_positions_of_nothing_is_set_aside(
    feed: HostileFeed,
) -> None:
    feed.send("n1", [gpu("a")], [xid(("0000:a", "79"), feed.now_ns)])
    feed.evaluate(2)
    path = feed.directory / diagnosis_engine.STATE_FILE
    saved = msgspec.msgpack.decode(path.read_bytes())
    (incident,) = saved["incidents"]
    for part, changes in (
        (incident["finding"], {"affected": [["gpu", 99, "", None]]}),
        (incident, {"onset_ns": 1 << 62}),
        (saved, {"version": 1}),  # of 0.3.0
    ):
        part.update(changes)
        path.write_bytes(msgspec.msgpack.encode(saved))
        feed.restart()
        assert feed.documents == []
        assert not path.exists()
        assert path.with_name(f"{path.name}.damaged").exists()


def test_a_state_of_the_future_is_set_aside(feed: HostileFeed) -> None:
    feed.send("n1", [gpu("a")], [xid(("0000:a", "79"), feed.now_ns)])
    feed.evaluate(2)
    feed.now_ns -= 30 * 3600 * SECOND_NS
    feed.restart()
    assert feed.documents == []
    assert (feed.directory / "incidents.damaged").exists()
    assert feed.evaluate(3) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_incidents_continue_after_the_clock_was_set_back(
    feed: HostileFeed, *, restarts: bool
) -> None:
    feed.send("n1", [gpu("a")], [xid(("0000:a", "79"), feed.now_ns)])
    assert (ChangeKind.OPENED, "gpu_lost") in feed.evaluate(2)
    (before,) = feed.documents
    feed.now_ns -= 3600 * SECOND_NS
    if restarts:
        feed.restart()
    changes = feed.evaluate(14)
    (after,) = feed.documents
    assert after.id == before.id
    assert after.detected < before.detected
    assert changes == []
    assert feed.evaluate(incidents.STALE_SLOTS) == [(ChangeKind.CLOSED, "gpu_lost")]


def test_a_state_that_cannot_be_written_does_not_end_the_evaluation(feed: HostileFeed) -> None:
    (feed.directory / diagnosis_engine.STATE_FILE).unlink(missing_ok=True)
    (feed.directory / diagnosis_engine.STATE_FILE).mkdir()
    feed.send("n1", [gpu("a")], [xid(("0000:a", "79"), feed.now_ns)])
    assert (ChangeKind.OPENED, "gpu_lost") in feed.evaluate(2)
    assert feed.engine.failures == 1
    assert len(feed.documents) == 1


def test_a_tenant_reads_its_own_victims_behind_many_of_another_tenant() -> None:
    nics = [
        NicDocument(f"n{number}", "eth0", "mlx5_0", "", 0, "", "")
        for number in range(MAX_LISTED + 1)
    ]
    jobs = [JobDocument("other", "slurm", str(number)) for number in range(MAX_LISTED)]
    own_job = JobDocument("own", "slurm", "1")
    listed = (*nics[:MAX_LISTED], *jobs)
    whole = reported_incident("1").document
    document = msgspec.structs.replace(whole, victims=listed, jobs=tuple(jobs))
    reported = ReportedIncident(
        document,
        START_NS,
        reported_incident("1").reach,
        nics,
        [*jobs, own_job],
        tenant_nodes={"own": frozenset({nics[-1].node})},
    )
    own = reported.of_tenant("own")
    assert own is not None
    assert own.document.jobs == (own_job,)
    assert own.document.victims == (nics[-1], own_job)
    assert own.document.victim_count == 2


def test_a_tenant_reads_no_name_of_another_tenants_node() -> None:
    rack = msgspec.convert(
        {
            "id": "1", "class": "hw_slowdown", "text": "", "title": "hw_slowdown: rack r of n1, n2", "cause": {"kind": "rack", "rack": "r", "nodes": ["n1", "n2"]},
            "onset": "", "onset_uncertainty_seconds": 30.0, "detected": "", "ended": None, "severity": "warning", "confidence": 0.8, "victims": [],
            "victim_count": 0, "jobs": [], "symptoms": [], "lost_gpu_time_seconds": 7, "action": "", "runbook": "", "detail": "n2", "limits": "", "explained_by": None,
            "evidence": [
                {"signal": "s", "device": f"{node} GPU 1", "value": 1.0, "threshold": 0.0, "comparison": "", "window_seconds": 30.0} for node in ("n1", "n2")
            ],
        },
        IncidentDocument,
    )  # fmt: skip
    reach = Reach(("rack", -1, "r"), frozenset({"n1", "n2"}), frozenset(), frozenset())
    causes = (rack.cause, StorageDocument("server"), LeafDocument("leaf", 0, 0))
    for cause in causes:
        whole = msgspec.structs.replace(rack, cause=cause)
        nodes = {"own": frozenset({"n1"}), "other": frozenset({"n2"})}
        own = ReportedIncident(whole, START_NS, reach, tenant_nodes=nodes).of_tenant("own")
        assert own is not None
        assert "n2" not in repr(own.document)
        assert [each.device for each in own.document.evidence] == ["n1 GPU 1"]
