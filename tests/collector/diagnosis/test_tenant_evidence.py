"""Evidence of incidents as two tenants read it: that of their own jobs, and nothing of the other one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.incidents import NIC, incident

from railscope.api import (
    EntityDocument,
    EvidenceDocument,
    GpuDocument,
    LeafDocument,
    NodeDocument,
)
from railscope.catalog.incidents import ONSET as ONSET_METRIC
from railscope.timestamps import SECOND_NS
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.diagnosis.diagnosis_curves import CurvePoint, EvidenceCurve
from railscope_collector.diagnosis.evidence_words import dated_text
from railscope_collector.diagnosis.incident_report import JobDocument
from railscope_collector.diagnosis.incident_table import IncidentTable, ReportedIncident
from railscope_collector.http.incidents_api import IncidentsApi
from railscope_collector.http.resource_server import ResourceRequest
from railscope_collector.workloads.job_roster import JobKey

OWN, OTHER = JobKey("red", "slurm", "7"), JobKey("blue", "slurm", "secret")
CAUSE = {"kind": "job", "tenant": "red", "source": "slurm", "workload": "7"}
SHARED, OWN_NODE, OTHER_NODE = "n1", "n2", "n9"
NODES = {"red": frozenset({SHARED, OWN_NODE}), "blue": frozenset({SHARED, OTHER_NODE})}


def evidence(device: str, comparison: str = "limit", value: float = 1.0) -> dict[str, Any]:
    """Return evidence as the diagnosis reports it, with its text."""
    found = EvidenceDocument("send", device, value, 0.25, comparison, 30.0)
    found = msgspec.structs.replace(found, text=dated_text(found))
    shown: dict[str, Any] = msgspec.to_builtins(found)
    return shown


def reported(
    jobs: tuple[JobKey | None, ...], *shown: dict[str, Any], **changes: Any
) -> ReportedIncident:
    """Return an incident that touches jobs of both tenants, with the jobs of its evidence."""
    found = incident("i1", evidence=list(shown), **changes)
    curve = EvidenceCurve("send", "", [CurvePoint(SECOND_NS, 0.5, 0.75)])
    return ReportedIncident(
        found.document,
        found.onset_ns,
        found.reach,
        jobs=[JobDocument(*OWN), JobDocument(*OTHER)],
        curves=(curve.document(),),
        tenant_nodes=NODES,
        evidence_jobs=jobs,
    )


async def read(found: ReportedIncident, tenant: str) -> dict[str, Any]:
    """Return the response of the API to a tenant."""
    table = IncidentTable(SECOND_NS, (found,))
    reader = Credential("reader", Role.TENANT, tenant)
    asked = ResourceRequest(reader, {"incident": found.document.id})
    document = IncidentsApi(lambda: table).incident_detail(asked)
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return content


async def test_a_tenant_reads_evidence_detail_and_curve_of_its_own_job() -> None:
    ranks = evidence(f"{OWN_NODE} rank 3 (GPU 2)"), evidence("rail 3")
    found = reported(
        (OWN, OWN, OWN), evidence("7"), *ranks, cause=CAUSE, detail="n2 rank 3 has not entered"
    )
    own = await read(found, "red")
    assert [each["device"] for each in own["evidence"]] == ["7", "n2 rank 3 (GPU 2)", "rail 3"]
    assert own["detail"] == "n2 rank 3 has not entered"
    assert own["curves"][0]["points"] == [{"timestamp_ns": SECOND_NS, "value": 0.5, "peers": None}]
    other = await read(found, "blue")
    assert (other["evidence"], other["detail"], other["curves"]) == ([], "", [])
    assert "red" not in json.dumps(other)
    assert OWN_NODE not in json.dumps(other)


async def test_a_tenant_reads_nothing_that_devices_and_jobs_of_others_are_a_part_of() -> None:
    own = await read(reported((), symptoms=["job_slowdown"]), "red")
    (curve,) = own["curves"]
    assert [point["peers"] for point in curve["points"]] == [None]
    assert own["symptoms"] == []


@pytest.mark.parametrize(
    ("cause", "has_curves"),
    [
        (GpuDocument(SHARED, 1, "", ""), True),
        (NodeDocument(OWN_NODE), True),
        (NodeDocument(SHARED), False),
        (NodeDocument(OTHER_NODE), False),
        (LeafDocument("leaf-1", 0, 1), False),
    ],
)
async def test_a_tenant_reads_curves_of_its_own_devices_only(
    cause: EntityDocument, *, has_curves: bool
) -> None:
    """Those of a leaf, and of a node that tenants share, are means that contain devices of others."""
    found = reported((), cause=msgspec.to_builtins(cause))
    assert bool((await read(found, "red"))["curves"]) is has_curves


async def test_an_explanation_that_a_tenant_may_not_read_is_none() -> None:
    """The incident is a cause for that tenant, also in its metrics; the identity of the other one is not shown."""
    effect = reported((), explained_by="i2")
    cause = replace(incident("i2"), tenant_nodes={"blue": frozenset({OTHER_NODE})})
    table = IncidentTable(SECOND_NS, (effect, cause))
    read_by = {
        tenant: {each.document.id: each for each in table.of_tenant(tenant)} for tenant in NODES
    }
    assert read_by["red"].keys() == {"i1"}
    assert read_by["red"]["i1"].is_root
    assert read_by["blue"]["i1"].document.explained_by == "i2"
    shown = {
        tenant: {cell.labels[0] for cell in table.cells(tenant) if cell.metric is ONSET_METRIC}
        for tenant in NODES
    }
    assert shown == {"red": {"i1"}, "blue": {"i2"}}
    assert (await read(effect, "red"))["explained_by"] is None


async def test_a_rank_that_another_tenant_left_on_a_shared_node_is_not_named() -> None:
    """An event without a GPU counts for the only job of its node, and may name a node of the job before."""
    found = reported(
        (OWN, OWN), evidence("7"), evidence(f"{OTHER_NODE} rank 5"), cause=CAUSE, detail=f"{OTHER_NODE} rank 5"
    )  # fmt: skip
    own = await read(found, "red")
    assert [each["device"] for each in own["evidence"]] == ["7"]
    assert OTHER_NODE not in json.dumps(own)


@pytest.mark.parametrize("kind", ["nic", "node", "leaf"])
async def test_jobs_of_two_tenants_on_a_shared_device_have_their_own_evidence(kind: str) -> None:
    causes = {
        "nic": {"cause": incident("i1").document.cause},
        "node": {"cause": {"kind": "node", "node": SHARED}},
        "leaf": {"cause": {"kind": "leaf", "switch": "leaf1", "pod": 0, "rail": 3, "or": []}},
    }
    paths = [evidence(f"{SHARED} AllReduce of communicator {name}") for name in ("red", "blue")]
    found = reported((None, OWN, OTHER), evidence(f"{SHARED} eth3"), *paths, **causes[kind])
    for tenant in ("red", "blue"):
        seen = await read(found, tenant)
        devices = [each["device"] for each in seen["evidence"]]
        assert devices == [f"{SHARED} eth3", f"{SHARED} AllReduce of communicator {tenant}"]


GPU_CAUSE = {
    "kind": "gpu",
    "node": OTHER_NODE,
    "index": 3,
    "uuid": "GPU-secret",
    "pci_address": "0:1",
}


@pytest.mark.parametrize(
    ("cause", "title", "labels"),
    [
        (NIC | {"node": OTHER_NODE, "switch": "leaf1", "switch_port": "swp9"}, "NIC of another node", ("nic", "3")),
        (GPU_CAUSE, "GPU of another node", ("gpu", "")),
        ({"kind": "node", "node": OTHER_NODE, "interfaces": ["eth3"]}, "another node", ("node", "")),
    ],
)  # fmt: skip
async def test_a_tenant_reads_no_name_of_a_cause_on_a_node_of_another_tenant(
    cause: dict[str, Any], title: str, labels: tuple[str, str]
) -> None:
    shown = evidence(f"{OTHER_NODE} eth3"), evidence(f"{OWN_NODE} eth3"), evidence("")
    found = reported((), *shown, cause=cause, title=f"Slow receiver: {OTHER_NODE}")
    own = await read(found, "red")
    assert own["title"] == f"Slow receiver: {title}"
    assert own["action"].startswith("by the operator: ")
    assert [each["device"] for each in own["evidence"]] == [f"{OWN_NODE} eth3"]
    assert own["curves"] == []
    cells = list(IncidentTable(SECOND_NS, (found,)).cells("red"))
    for name in (OTHER_NODE, "secret", "mlx5_3", "leaf1"):
        assert name not in json.dumps(own)
        assert name not in repr([cell.labels for cell in cells])
    (onset,) = [cell for cell in cells if cell.metric is ONSET_METRIC]
    kind, rail = labels
    assert onset.labels[-4:] == (kind, "", "", rail)
    holder = await read(found, "blue")
    assert holder["cause"]["node"] == OTHER_NODE
    again = found.of_tenant("red")
    assert again is not None
    assert again.of_tenant("red") == again
