"""Incidents as the collector reports them."""

from __future__ import annotations

from typing import Any

import msgspec

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.incident_report import IncidentDocument, NicDocument
from railscope_collector.diagnosis.incident_table import ReportedIncident
from railscope_collector.diagnosis.ranking import Reach

NIC = {
    "kind": "nic", "node": "n1", "interface": "eth3", "device": "mlx5_3", "pci_address": "", "rail": 3,
    "switch": "", "switch_port": "",
}  # fmt: skip
NO_REACH = Reach(("nic", 0, ""), frozenset(), frozenset(), frozenset())


def incident(number: str, reach: Reach = NO_REACH, **changes: Any) -> ReportedIncident:
    """Return an open incident, of a NIC unless its cause is changed."""
    content = {
        "id": number, "class": "slow_receiver", "text": "A NIC is slow.", "title": "slow receiver: NIC",
        "onset": "2026-01-01T00:00:00Z",
        "cause": NIC, "onset_uncertainty_seconds": 30.0, "detected": "2026-01-01T00:00:40Z", "ended": None,
        "severity": "warning", "confidence": 0.8, "victims": [], "victim_count": 0, "jobs": [], "evidence": [],
        "symptoms": [], "lost_gpu_time_seconds": 7, "action": "drain the node", "detail": "", "limits": "",
        "runbook": "/runbooks/RailscopeIncident#slow_receiver",
        "explained_by": None,
    }  # fmt: skip
    document = msgspec.convert(content | changes, IncidentDocument)
    nics = [each for each in document.victims if isinstance(each, NicDocument)]
    return ReportedIncident(document, SECOND_NS, reach, nics, document.jobs)
