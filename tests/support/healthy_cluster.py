"""Documents of a collector with a healthy cluster: two nodes n1 and n2, and a job."""

from __future__ import annotations

from typing import Any

from support.scripted_server import NOW_NS

from railscope.timestamps import SECOND_NS, format_timestamp

ROWS: dict[str, dict[str, Any]] = {
    "node": {
        "gpus": 8, "state": "healthy", "reason": "", "incidents": [], "agent_version": "0.2.0", "streams": ["gpu"],
        "railscope_node_reporting": 1.0, "railscope_node_last_frame_age_seconds": 0.5, "railscope_node_clock_offset_seconds": 0.001,
    },
    "job": {
        "tenant": "vision", "source": "slurm", "workload": "7", "start_ns": NOW_NS - 90 * SECOND_NS, "state": "healthy", "reason": "",
        "incidents": [], "gpus": 8.0, "nodes": 1, "stale_gpus": 0, "shared_gpus": 0, "rollups": [], "stragglers": [], "step": None,
    },
    "gpu": {
        "node": "n1", "gpu": "GPU-a", "index": "0", "pci_address": "", "rail": 0, "nics": ["eth0"], "state": "healthy", "use": "claimed",
        "health": "healthy", "reasons": [], "nic_state": "", "holders": [],
    },
    "incident": {
        "id": "abc", "class": "link_down", "text": "A link is down.", "title": "link_down: NIC eth0 of n1",
        "cause": {"kind": "nic", "node": "n1", "interface": "eth0", "device": "mlx5_0", "pci_address": "", "rail": 0, "switch": "", "switch_port": ""},
        "onset": format_timestamp(NOW_NS - 60 * SECOND_NS), "onset_uncertainty_seconds": 10.0, "runbook": "/runbooks/RailscopeIncident#link_down",
        "detected": format_timestamp(NOW_NS), "ended": None, "severity": "critical", "confidence": 0.9,
        "victims": [{"kind": "rack", "rack": "r", "nodes": ["n3"]}], "victim_count": 1, "jobs": [], "evidence": [], "symptoms": [],
        "lost_gpu_time_seconds": 9, "action": "check cable", "detail": "", "limits": "", "explained_by": None,
    },
}  # fmt: skip
"""A healthy row of each kind."""
STATUS = {
    "status": "healthy", "reasons": [], "age_seconds": 0.5, "nodes": {"healthy": 2, "degraded": 0, "unknown": 0, "failed": 0},
    "gpus": {"claimed": 8, "unclaimed": 1, "idle": 7, "unknown": 0}, "jobs": 1, "incidents": {"critical": 0, "warning": 0, "info": 0},
    "open_incidents": [], "absent": {},
}  # fmt: skip


def healthy_cluster() -> dict[str, Any]:
    """Return the documents by their paths."""
    rows: dict[str, list[Any]] = {
        "nodes": [ROWS["node"] | {"node": name} for name in ("n1", "n2")],
        "jobs": [ROWS["job"]],
        "gpus": [],
        "incidents": [],
        "tenants": [],
    }
    documents: dict[str, Any] = {
        f"/api/v1/{name}": {"timestamp_ns": NOW_NS, "rows": found, "suppressed": 0, "found": 0}
        for name, found in rows.items()
    }
    tenant = {"tenant": "vision", "gpus": 8.0, "held_gpu_hours": 1.0, "jobs": 1, "incidents": 0}
    documents["/api/v1/tenants"]["tenants"] = [tenant]
    documents["/api/v1/status"] = STATUS
    return documents
