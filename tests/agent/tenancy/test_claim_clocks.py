"""Steps of a node's wall clock: claims keep their durations, as the collector computes them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings, strategies as st
from support.clock import NS
from support.examples import fewer_examples
from support.tenancy import LISTED, NODE, PolledTenancy, node, pod, uuid

from railscope.frame import Event
from railscope.wire import WireEntity, WireEvent
from railscope_agent.config import TenancySettings
from railscope_collector.evidence.claim_events import (
    ReportedClaim,
    ReportedEnd,
    ReportingBoot,
    first_report_key,
    parse_claim_event,
)

POLL = 5
ANCHOR_NS = 1_700_000_000 * NS
STEPS = st.lists(
    st.tuples(
        st.integers(1, 8).map(lambda n: n * POLL), st.integers(-90_000, 90_000), st.booleans()
    ),
    max_size=5,
)


def spans(events: list[Event]) -> dict[str, tuple[int, int]]:
    """Return start and end of each workload by the boot clock, as the collector places them."""
    boot = ReportingBoot(NODE, "boot-1", ANCHOR_NS)
    starts, ends = list[ReportedClaim](), list[ReportedEnd]()
    for event in events:
        entity = WireEntity("claim", event.entity.key, {})
        name, facts = event.event_class.name, dict(event.facts)
        found = parse_claim_event(
            boot, WireEvent(name, 0, entity, event.wall_ns, event.boot_ns, facts)
        )
        if isinstance(found, ReportedClaim):
            starts.append(found)
        else:
            ends.append(found)
    ended: dict[str, int] = {}
    for end in ends:
        ended[end.id] = min(end.timestamp_ns, ended.get(end.id, end.timestamp_ns))
    first = {each.id: each for each in sorted(starts, key=first_report_key, reverse=True)}
    assert len({each.workload for each in first.values()}) == len(first), "one claim each"
    return {
        each.workload: (each.start_ns - ANCHOR_NS, ended[key] - ANCHOR_NS)
        for key, each in first.items()
    }


class SteppedNode:
    """A node with a Slurm job and a pod, during steps of its clock."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.events = directory, list[Event]()
        self.host = node(2)
        self.hold(is_held=False)
        self.restart()

    def restart(self) -> None:
        self.polled = PolledTenancy(self.host, TenancySettings(slurm_gpu_directory="/run/gpus"))
        self.polled.tenancy.remember(self.directory, self.host.boot_id)

    def hold(self, *, is_held: bool) -> int:
        """Begin or end the job and the pod; return the time."""
        now = self.host.clock.now()
        self.host.files["/run/gpus/0"] = "7\n" if is_held else ""
        self.host.calls[LISTED] = [pod("train", uuid(1))] if is_held else []
        return now.boot_ns

    def pass_through(self, steps: list[tuple[int, int, bool]]) -> None:
        for seconds, step, is_restarted in [(POLL, 0, False), *steps]:
            for _ in range(seconds // POLL):
                self.events += self.polled.poll(POLL)
            self.host.clock.step_wall(step)
            self.events += self.polled.poll(POLL)
            if is_restarted:
                self.restart()


@settings(fewer_examples(100))
@given(STEPS, STEPS, STEPS)
def test_no_step_of_the_wall_clock_moves_more_than_a_poll(before, during, after):
    with TemporaryDirectory() as directory:
        stepped = SteppedNode(Path(directory))
        stepped.pass_through(before)
        began_ns = stepped.hold(is_held=True)
        stepped.pass_through(during)
        ended_ns = stepped.hold(is_held=False)
        stepped.pass_through(after)
        found = spans(stepped.events)
    assert set(found) == {"7", "research/train"}
    for start_ns, end_ns in found.values():
        assert abs(start_ns - began_ns) <= (POLL + 1) * NS
        assert abs(end_ns - ended_ns) <= (POLL + 1) * NS
