"""The diagnosis of a collector without a second process: what the collector sends is applied, and lines are received."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine, FindSchema
from railscope_collector.live_diagnosis.diagnosis_input import DiagnosisInput
from railscope_collector.live_diagnosis.diagnosis_service import NOTHING_SENT, DiagnosisService
from railscope_collector.live_diagnosis.log_diagnosis import LogDiagnosis


@dataclass
class FedDiagnosis:
    """Both sides of the diagnosis, by the time of the service."""

    service: DiagnosisService
    find_schema: FindSchema
    child: LogDiagnosis = field(init=False)
    _sent: DiagnosisInput = NOTHING_SENT
    _is_open: bool = False

    def __post_init__(self) -> None:
        engine = DiagnosisEngine(self.service.directory, self.find_schema)
        self.child = LogDiagnosis(engine, self.service.receive, is_fed=True)

    async def evaluate(self) -> None:
        """Send what the collector has, and evaluate the slots that have ended."""
        self._sent, message = await self.service.next_message(self._sent)
        self.child.apply(message)
        if not self._is_open:
            self.child.open(message.wall_ns)
            self._is_open = True
        self.child.step(message.wall_ns)
