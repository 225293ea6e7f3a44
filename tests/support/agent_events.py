"""Events of agents as the collector receives them."""

from __future__ import annotations

from dataclasses import dataclass

from railscope.catalog.declare import EventClass
from railscope.catalog.gpu_health import GPU_CHANGE_EVENT
from railscope.catalog.nic_settings import SETTING_EVENT
from railscope.catalog.tenancy import CLAIM_END_EVENT, CLAIM_START_EVENT
from railscope.wire import VERSION, Envelope, SentAt, WireEntity, WireEvent
from railscope_collector.fleet.recent_events import EventPosition, SeenEvent
from railscope_collector.framelog.segment_files import FrameRecord

NOON_NS = 1_790_000_000_000_000_000


@dataclass
class AgentEvents:
    """An agent's run: creates events and numbers them."""

    node: str = "n1"
    run: str = "run-1"
    boot_id: str = "boot-1"
    last: int = 0

    def event(self, event_class: EventClass, *key: str, **facts: str) -> SeenEvent:
        """Return the next event of the run."""
        self.last += 1
        entity = WireEntity(event_class.about.name, key)
        now_ns = NOON_NS + self.last
        event = WireEvent(event_class.name, 0, entity, now_ns, self.last, facts, self.last)
        position = EventPosition(self.run, "tenancy", self.last, 0, now_ns)
        return SeenEvent(self.node, self.boot_id, event, position)

    def claimed(self, claim: str, gpu: str = "GPU-1", **facts: str) -> SeenEvent:
        """A GPU was assigned to a job."""
        given = {
            "source": "slurm", "level": "scheduler", "tenant": "red", "workload": "job 7",
            "compute": "0-840", "exclusive": "true", "start_ns": str(NOON_NS),
        } | facts  # fmt: skip
        return self.event(CLAIM_START_EVENT, gpu, claim, **given)

    def released(self, claim: str, gpu: str = "GPU-1") -> SeenEvent:
        """The GPU was released."""
        facts = {"source": "slurm", "level": "scheduler", "tenant": "red", "why": "ended"}
        return self.event(CLAIM_END_EVENT, gpu, claim, **facts)

    def changed(self, change: str, **facts: str) -> SeenEvent:
        """A GPU changed."""
        return self.event(GPU_CHANGE_EVENT, "0000:01:00.0", change=change, gpu="GPU-1", **facts)

    def set(self, setting: str) -> SeenEvent:
        """A setting of a NIC changed."""
        return self.event(SETTING_EVENT, "eth0", setting=setting, before="a", after="b")

    def envelope(self, at_seconds: int, version: str = "1.0") -> tuple[FrameRecord, Envelope]:
        """Return an empty envelope, with the record of its arrival."""
        now_ns = at_seconds * 10**9
        sent = SentAt(NOON_NS + now_ns, now_ns, self.boot_id)
        record = FrameRecord(self.node, NOON_NS + now_ns, sent, b"")
        return record, Envelope(VERSION, self.node, self.run, self.boot_id, agent_version=version)
