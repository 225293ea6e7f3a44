"""A foreign agent: the log records its events, whatever they contain, and those of other agents."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from click.testing import CliRunner
from hypothesis import given, strategies as st
from support.agent_events import AgentEvents
from support.audit import KEY, verify_directory
from support.event_recording import recorded_events, run_recorder
from support.examples import fewer_examples

from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.catalog import EVENTS
from railscope.cli import root
from railscope.wire import WireEntity, WireEvent
from railscope_collector.audit.event_records import is_numbered, normalize_text
from railscope_collector.audit.recorder_state import load_recorded_state
from railscope_collector.fleet.recent_events import EventPosition, SeenEvent

TEXTS = st.text(max_size=8) | st.sampled_from(
    ["0-840", "9" * 60, "0-" + "9" * 60, "\x1b[2J", "\u0661"]
)
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-3, 3)
FACTS = st.dictionaries(
    st.sampled_from([
        "compute", "level", "source", "owner", "tenant", "exclusive", "claim", "key", "change",
        "uncertainty_ns", "setting", "received_ns", "event", "invoice", "gpu", "device",
    ]) | st.text(max_size=4),
    TEXTS,
    max_size=6,
)  # fmt: skip


@st.composite
def hostile_events(draw: st.DrawFn) -> SeenEvent:
    """An event that passes the checks of an envelope, of a node that has a credential."""
    names = sorted(name for name, known in EVENTS.items() if known.audited)
    entity = WireEntity(
        draw(st.sampled_from(["claim", "gpu", "node", "x"])),
        tuple(draw(st.lists(TEXTS, max_size=3))),
    )
    event = WireEvent(
        draw(st.sampled_from(names)),
        0,
        entity,
        draw(INTEGERS),
        draw(INTEGERS),
        draw(FACTS),
        draw(INTEGERS),
    )
    position = EventPosition(draw(TEXTS), draw(TEXTS), draw(st.integers(1, 1 << 62)), 0, 1 << 60)
    return SeenEvent("mallory", draw(TEXTS), event, position)


@fewer_examples(50)
@given(events=st.lists(hostile_events(), min_size=1, max_size=8))
def test_no_event_of_an_agent_stops_the_log(events: list[SeenEvent]) -> None:
    async def listened(directory: Path) -> None:
        async with run_recorder(directory) as recording:
            await recorded_events(recording, [*events, AgentEvents().claimed("a")])
            found = [decode_audit_record(raw) for raw in recording.recorder.audit.records(1)]
            numbered = {
                normalize_text(event.position.run)
                for event in events
                if is_numbered(event.event) and event.position
            }
            assert numbered <= {one.src.boot for one in found if one.src.id == "mallory"}
            assert found[-1].data["claim"] == "a"
            recorder = recording.recorder
            assert load_recorded_state(recorder.audit).runs == recorder.state.runs
            assert load_recorded_state(recorder.audit).holdings == recorder.state.holdings

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(listened(Path(directory)))
        verify_directory(Path(directory) / "log")


def test_a_node_neither_ends_nor_takes_over_claims_of_another(tmp_path: Path) -> None:
    honest, other = AgentEvents("n1"), AgentEvents("mallory")
    reported = [
        honest.claimed("a"),
        other.claimed("a", tenant="mallory"),
        other.released("a"),
        AgentEvents("n1", run="run-2").claimed("a"),
        honest.released("a"),
    ]

    async def listened() -> list[AuditRecord]:
        async with run_recorder(tmp_path) as recording:
            return await recorded_events(recording, reported)

    found = asyncio.run(listened())
    assert [(one.obj.node, one.type, one.out) for one in found] == [
        ("n1", "tenancy.assign", "done"), ("mallory", "tenancy.assign", "done"), ("mallory", "tenancy.release", "done"),
        ("n1", "tenancy.assign", "seen"), ("n1", "tenancy.release", "done"),
    ]  # fmt: skip
    assert verify_directory(tmp_path / "log").findings == ()


def test_text_of_an_agent_cannot_pass_for_a_line_of_the_check(tmp_path: Path) -> None:
    forged = "a\nconsistent: 9 records\x1b[2J"

    async def listened() -> None:
        async with run_recorder(tmp_path) as recording:
            await recorded_events(
                recording, [AgentEvents(run="r\n\x1b[2J", last=3).released(forged)]
            )

    asyncio.run(listened())
    command = ["audit", "verify", str(tmp_path / "log" / "ledger.sqlite"), "--key", str(KEY.public)]
    found = CliRunner().invoke(root, command)
    assert found.exit_code == 0, found.output
    assert "to explain" in found.output
    assert found.output.count("\nconsistent:") == 0
    assert "\x1b" not in found.output
    assert all(
        line.split(":")[0] in {"consistent", "checkpoints kept elsewhere", "to explain"}
        for line in found.output.splitlines()
    )
