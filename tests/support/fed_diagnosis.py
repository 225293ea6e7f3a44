"""The diagnosis of a collector without a second process: what the collector sends is applied, and lines are received."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope_collector.framelog.log_follower import LogFollower
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine, FindSchema
from railscope_collector.live_diagnosis.diagnosis_input import DiagnosisInput
from railscope_collector.live_diagnosis.diagnosis_service import NOTHING_SENT, DiagnosisService
from railscope_collector.live_diagnosis.log_diagnosis import LogDiagnosis


@dataclass
class FedLog(LogFollower):
    """A frame log in memory."""

    records: list[FrameRecord] = field(default_factory=list)

    def read(self) -> list[FrameRecord]:
        """Return the records that were added since the last call."""
        found, self.records = self.records, []
        return found


@dataclass
class FedDiagnosis:
    """Both sides of the diagnosis, by the time of the service."""

    service: DiagnosisService
    find_schema: FindSchema
    child: LogDiagnosis = field(init=False)
    log: FedLog = field(init=False)
    _sent: DiagnosisInput = NOTHING_SENT
    _is_open: bool = False

    def __post_init__(self) -> None:
        engine = DiagnosisEngine(self.service.directory, self.find_schema)
        self.log = FedLog(self.service.directory)
        self.child = LogDiagnosis(engine, self.service.receive, self.log, is_fed=True)

    async def evaluate(self) -> None:
        """Send what the collector has, and evaluate the slots that have ended."""
        self._sent, message = await self.service.next_message(self._sent)
        self.child.apply(message)
        if not self._is_open:
            self.child.open(message.wall_ns)
            self._is_open = True
        while self.child.step(message.wall_ns):
            pass
