"""Two machines with one name and one token are reported; a machine that starts over is not."""

from __future__ import annotations

from pathlib import Path

from makers import SECOND, START_BOOT_NS, START_WALL_NS, FrameSender
from running_collector import gpu_frames, run_collector, settings_in

from railscope.wire import SENT_HEADER, SentAt
from railscope_collector.evidence.evidence_records import EvidenceProblem
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.http.identity_conflicts import IdentityConflictDetector


class ConflictWatch:
    """Takes envelopes, and keeps what is reported."""

    def __init__(self) -> None:
        self.problems: list[EvidenceProblem] = []
        self.identity_conflicts = IdentityConflictDetector(self.problems.append)

    def send(
        self, sender: FrameSender, at: int, *, boot: str = "", sent_at: int | None = None
    ) -> None:
        """One envelope, sent under a boot."""
        now = at if sent_at is None else sent_at
        sent = SentAt(
            START_WALL_NS + now * SECOND, START_BOOT_NS + now * SECOND, boot or sender.boot_id
        )
        record = FrameRecord(sender.node, START_WALL_NS + now * SECOND, sent, b"")
        self.identity_conflicts.check(record, sender.envelope(gpu_frames(sender, at=at)))


def test_boots_that_take_turns_are_identity_conflict():
    watch = ConflictWatch()
    one, other = FrameSender(boot_id="boot-1"), FrameSender(boot_id="boot-2", run="run-2")
    for second in range(0, 100, 10):
        watch.send(one, second)
        watch.send(other, second)
    assert {tuple(sorted(t.facts.items())) for t in watch.problems} == {
        (("by", "boot"), ("one", "boot-1"), ("other", "boot-2")),
    }
    assert len({trouble.id for trouble in watch.problems}) == 1, "it is recorded once"
    assert watch.identity_conflicts.nodes(START_WALL_NS + 100 * SECOND) == ["n1"]
    assert watch.identity_conflicts.nodes(START_WALL_NS + 4000 * SECOND) == []


async def test_it_is_a_metric(tmp_path: Path):
    one_of, other = FrameSender(), FrameSender(boot_id="boot-2", run="run-2")
    async with run_collector(settings_in(tmp_path)) as running:
        for number in range(3):
            for sender in (one_of, other):
                sent = SentAt(START_WALL_NS, START_BOOT_NS + 10**12, sender.boot_id)
                body = sender.body(gpu_frames(sender, at=number * 3), schemas=True)
                assert (await running.post(body, headers=sent.to_headers()))[0] == 200, SENT_HEADER
        await running.collector.refresher.refresh()
        text = (await running.get("/metrics"))[1]
        assert 'railscope_node_identity_conflict{node="n1"} 1' in text
