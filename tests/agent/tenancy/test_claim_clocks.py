"""Steps of a node's wall clock: claims keep their durations for any source of starts and ends."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings, strategies as st
from support.tenancy import LISTED, NODE, PolledTenancy, node, pod, uuid

from railscope.catalog import tenancy as c
from railscope.frame import Event, NodeTimestamp
from railscope.wire import WireEntity, WireEvent
from railscope_agent.config import TenancySettings
from railscope_agent.endpoint.claims_endpoint import ClaimsEndpoint, ClaimStartRequest
from railscope_agent.health.node_health import NodeHealth
from railscope_agent.tenancy.clock_history import MAX_OFFSETS, ClockHistory
from railscope_collector.evidence.claim_events import (
    ReportedClaim,
    ReportedEnd,
    ReportingBoot,
    find_ends,
    first_report_key,
    parse_claim_event,
)

NS = 1_000_000_000
BOOT, ANCHOR_NS = "boot-1", 1_700_000_000 * NS
POLL = 5
UNCERTAINTY_NS = NS
"""Of Slurm's StartTime, which is in seconds."""


def reported(events: list[Event]) -> dict[str, tuple[int, int]]:
    """Start and end of each workload by its boot clock, as the collector places them."""
    teller = ReportingBoot(NODE, BOOT, ANCHOR_NS)
    facts: list[ReportedClaim | ReportedEnd] = []
    for event in events:
        assert event.event_class in {c.CLAIM_START_EVENT, c.CLAIM_END_EVENT}
        entity = WireEntity("claim", event.entity.key, {})
        wire = WireEvent(
            event.event_class.name, 0, entity, event.wall_ns, event.boot_ns, dict(event.facts)
        )
        facts.append(parse_claim_event(teller, wire))
    starts = [fact for fact in facts if isinstance(fact, ReportedClaim)]
    ends = find_ends(starts, [fact for fact in facts if isinstance(fact, ReportedEnd)], [])
    found = {}
    for key in {found_start.id for found_start in starts}:
        first = min(
            (found_start for found_start in starts if found_start.id == key), key=first_report_key
        )
        end_ns = ends.get((NODE, key), 0)
        assert first.workload not in found, "one claim, whatever the clock did"
        found[first.workload] = first.start_ns - ANCHOR_NS, end_ns - ANCHOR_NS
    return found


@dataclass
class ClockStepNode:
    """A node with a Slurm job, a pod and a claim by command, during steps of its clock."""

    directory: Path
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host = node(3)
        self.host.calls[LISTED] = []
        self.host.files["/run/jobs/0"] = json.dumps({"jobs": []})
        self.agent()

    def agent(self) -> None:
        """Start a new agent in the same boot with the stored state of the previous one."""
        self.looked = PolledTenancy(self.host, TenancySettings(slurm_job_directory="/run/jobs"))
        self.looked.tenancy.remember(self.directory, NODE)
        self.endpoint = ClaimsEndpoint(
            TenancySettings(),
            self.directory,
            self.looked.tenancy,
            self.host.clock,
            NodeHealth(dict),
        )

    def wait(self, seconds: int) -> None:
        for _ in range(seconds // POLL):
            self.events += self.looked.poll(POLL)

    def begin(self) -> None:
        clock = self.host.clock.now()
        job = {"job_id": 7, "job_state": ["RUNNING"], "start_time": clock.wall_ns // NS, "end_time": 0,
               "account": "astro", "nodes": NODE, "gres_detail": ["gpu:1(IDX:0)"]}  # fmt: skip
        self.host.files["/run/jobs/7"] = json.dumps({"jobs": [job]})
        self.host.calls[LISTED] = [pod("train", uuid(1))]
        start = ClaimStartRequest(id="c", gpus=["2"], tenant="red", workload="batch")
        self.looked.tenancy.commands.start(self.endpoint._claim(start))  # noqa: SLF001 - no socket needed

    def end(self) -> None:
        self.host.files["/run/jobs/7"] = json.dumps({"jobs": []})
        self.host.calls[LISTED] = []
        edge = self.endpoint._timestamp(None, "end")  # noqa: SLF001 - no socket needed
        self.looked.tenancy.commands.end("c", *edge)


steps = st.lists(
    st.tuples(
        st.integers(1, 8).map(lambda n: n * POLL), st.integers(-90_000, 90_000), st.booleans()
    ),
    max_size=5,
)


@settings(max_examples=max(20, settings.default.max_examples // 4))
@given(steps, steps, steps)
def test_no_step_of_the_wall_clock_moves_more_than_a_poll(before, during, after):
    with TemporaryDirectory() as directory:
        story = ClockStepNode(Path(directory))
        story.wait(2 * POLL)

        def pass_through(some: list[tuple[int, int, bool]]) -> None:
            for seconds, step, restart in some:
                story.wait(seconds)
                story.host.clock.step_wall(step)
                story.wait(POLL)
                if restart:
                    story.agent()
                    story.wait(POLL)

        pass_through(before)
        story.begin()
        began_ns = story.host.clock.now().boot_ns
        story.wait(POLL)
        pass_through(during)
        story.end()
        ended_ns = story.host.clock.now().boot_ns
        pass_through(after)
        story.wait(2 * POLL)
        found = reported(story.events)
    assert set(found) == {"7", "research/train", "batch"}
    assert found["batch"] == (began_ns, ended_ns), "both of its edges are instants"
    for start_ns, end_ns in found.values():
        assert abs(start_ns - began_ns) <= POLL * NS + UNCERTAINTY_NS
        assert abs(end_ns - ended_ns) <= POLL * NS + UNCERTAINTY_NS


def test_an_end_before_the_start_by_the_wall_clock_is_not_an_end_at_the_start(tmp_path):
    story = ClockStepNode(tmp_path)
    story.wait(POLL)
    story.begin()
    story.wait(600)
    story.host.clock.step_wall(-7200)
    story.end()
    story.wait(POLL)
    spans = reported(story.events)
    assert spans["batch"][1] - spans["batch"][0] == 600 * NS
    assert all(abs(end - start - 600 * NS) <= (POLL + 1) * NS for start, end in spans.values())


def test_an_id_may_begin_again_after_the_clock_was_set_back(tmp_path):
    story = ClockStepNode(tmp_path)
    story.wait(POLL)
    story.begin()
    story.wait(600)
    story.end()
    story.host.clock.step_wall(-7200)
    again = ClaimStartRequest(
        id="c", gpus=["2"], tenant="red", workload="batch", allow_restart=True
    )
    claims = story.looked.tenancy.commands
    claims.start(story.endpoint._claim(again), allow_restart=True)  # noqa: SLF001 - no socket needed
    assert [one.end_ns is None for one in claims.all] == [False, True]


def test_a_boot_time_means_nothing_in_another_boot(tmp_path):
    story = ClockStepNode(tmp_path)
    story.wait(POLL)
    story.begin()
    story.wait(POLL)
    story.end()
    story.wait(POLL)
    story.host.boot_id = "boot-2"
    story.agent()
    story.events.clear()
    story.wait(POLL)
    (begun,) = [e for e in story.events if e.facts.get("workload") == "research/train"]
    assert "start_boot_ns" not in begun.facts
    assert int(begun.facts["end_ns"]) > int(begun.facts["start_ns"]), (
        "its end has the wall clock only"
    )


def clock(*seconds: tuple[int, int]) -> ClockHistory:
    """Observe at these seconds of the boot clock, with a wall clock each."""
    history = ClockHistory(BOOT)
    for boot, wall in seconds:
        history.observe(NodeTimestamp(wall * NS, boot * NS))
    return history


def boot_second(history: ClockHistory, wall: int) -> float | None:
    found = history.convert_wall_time(wall * NS)
    return found and found.boot_ns / NS


def test_a_time_is_converted_by_the_offset_of_that_time():
    back = clock((100, 1100), (200, 1200), (205, 705), (300, 800))
    assert boot_second(back, 1150) == 150, "before the clock was set back"
    assert boot_second(back, 750) == 250
    assert boot_second(back, 1020) == 20, "the first offset is that since the boot"
    assert boot_second(back, 400) is None, "before this boot"
    forth = clock((100, 1100), (200, 1200), (205, 5205), (300, 5300))
    assert boot_second(forth, 3000) == 205, "a time that the clock left out is its step"
    assert boot_second(forth, 5250) == 250
    assert boot_second(forth, 5400) == 400, "not shown yet"
    twice = clock((100, 1100), (200, 1200), (205, 1105), (300, 1200))
    assert boot_second(twice, 1150) == 250, "of two instants the later one"


def test_offsets_are_kept_over_a_restart_but_not_over_a_boot():
    history = clock((100, 1100), (200, 900))
    assert boot_second(ClockHistory(BOOT, history.state), 1150) == 150
    assert ClockHistory("boot-2", history.state).convert_wall_time(1150 * NS) is None


@given(st.lists(st.integers(-10_000, 10_000), max_size=300))
def test_the_offsets_that_are_kept_have_a_bound(steps_):
    history, wall = ClockHistory(BOOT), 1_000_000
    for number, step in enumerate(steps_):
        wall += 5 + step
        history.observe(NodeTimestamp(wall * NS, number * 5 * NS))
    assert len(history.state.offsets) <= MAX_OFFSETS
