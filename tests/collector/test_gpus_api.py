"""The list of all GPUs: worst first, with rail and NIC, in parts, for each reader its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from makers import FrameSender, gpu_schema
from running_collector import RunningCollector, run_collector, settings_in
from support.batches import batch_of
from support.incidents import NIC, incident

from railscope.catalog import METRICS, collector as catalog, nic
from railscope.catalog.entities import GPU, GPU_REASON, NIC as NIC_KIND
from railscope.claim_terms import GPU_CAPACITY
from railscope.frame import Column, Entity, Schema
from railscope.reading import Absent
from railscope.wire import to_wire_schema
from railscope_collector.access.credentials import ANYONE, Credential, Role, digest_token
from railscope_collector.diagnosis.entity_states import node_rows
from railscope_collector.diagnosis.incident_table import IncidentTable, ReportedIncident
from railscope_collector.fleet.fleet import Fleet, NodeUpdate
from railscope_collector.fleet.schemas import StoredSchemas, make_layout
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.http.gpus_api import FleetGpus, GpusApi, GpusQuery
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.view_refresh import CollectorViews
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.gpu_list import ListedReadings
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, JobKey, RunningJob
from railscope_collector.workloads.job_view import RunningJobs

SECOND_NS = 1_000_000_000
NOW_NS = 100 * SECOND_NS
HEALTHY, DEGRADED, FAILED = 1, 2, 3


def gpus_of(node: str, count: int) -> dict[int, str]:
    return {rail: f"GPU-{node}-{rail}" for rail in range(count)}


def verdict_schema(node: str, count: int, codes: Sequence[str]) -> Schema:
    """The verdict on each GPU, and reasons for it."""
    gpus = [
        Entity(GPU, (uuid,), {"rail": str(rail)}) for rail, uuid in gpus_of(node, count).items()
    ]
    reasons = [Entity(GPU_REASON, (gpu.key[0], code)) for code in codes for gpu in gpus]
    columns: list[Column] = [(METRICS["railscope_gpu_health"], gpu) for gpu in gpus]
    columns += [(METRICS["railscope_gpu_health_reason_active"], reason) for reason in reasons]
    return Schema("gpu_verdict", tuple(columns))


def nic_schema(count: int) -> Schema:
    """Two ports on rail 0, one on each other rail."""
    nics = [Entity(NIC_KIND, (f"eth{n}",), {"rail": str(max(n - 1, 0))}) for n in range(count + 1)]
    metrics = ("railscope_network_link_up", "railscope_nic_receive_bytes_total")
    return Schema("nic", tuple((METRICS[name], nic) for name in metrics for nic in nics))


class SmallFleet:
    """A fleet without a server: nodes with verdicts, jobs and incidents."""

    def __init__(
        self, directory: Path, nodes: int, gpus: int = 2, codes: Sequence[str] = ("xid",)
    ) -> None:
        self.names = [f"n{number:04}" for number in range(nodes)]
        self.core = CollectorState(StoredSchemas(directory))
        self.core.gpus_by_node = {name: gpus_of(name, gpus) for name in self.names}
        self.gpus, self.stale = gpus, set[str]()
        self.incidents: list[ReportedIncident] = []
        self.jobs: list[RunningJob] = []
        self.verdicts: dict[tuple[str, int], int] = {}
        self.diagnosed_ns = NOW_NS
        self.link_up = 1
        self.codes = codes
        self.verdict_layout = make_layout(to_wire_schema(verdict_schema("n", gpus, codes)))
        self.nic_layout = make_layout(to_wire_schema(nic_schema(gpus)))

    def hold(self, tenant: str, node: str, rail: int, *, alone: bool = True) -> None:
        key = JobKey(tenant, "slurm", f"job-of-{tenant}")
        holding = JobHolding(key, node, GPU_CAPACITY if alone else GPU_CAPACITY // 2, 1)
        place = JobGpu(f"GPU-{node}-{rail}", 0, holding, alone)
        self.jobs.append(RunningJob(key, len(self.jobs), (place,)))

    def views(self) -> CollectorViews:
        fleet, read = Fleet(), ListedReadings(dict(self.core.gpus_by_node))
        for name in self.names:
            codes = [self.verdicts.get((name, rail), HEALTHY) for rail in range(self.gpus)]
            row = [*codes, *(int(code > HEALTHY) for code in codes * len(self.codes))]
            ports = self.gpus + 1
            traffic = [[*[self.link_up] * ports, *[number * 1000] * ports] for number in (0, 2)]
            for layout, rows in ((self.verdict_layout, [row, row]), (self.nic_layout, traffic)):
                batch = batch_of(rows, boot_ns=[SECOND_NS, 3 * SECOND_NS])
                at_ns = 1 if name in self.stale else NOW_NS
                fleet.apply(NodeUpdate(name, "r", "b", layout, batch, at_ns))
        for block in fleet.blocks():
            fresh = find_fresh_rows(block, fleet.fresh_rows(block, NOW_NS // 2, NOW_NS))
            if fresh:
                read.add(fresh)
        cells = [ViewCell(catalog.NODE_UP, (name,), name not in self.stale) for name in self.names]
        jobs = RunningJobs(NOW_NS, tuple(self.jobs))
        return CollectorViews(NOW_NS, node=View("node", NOW_NS, tuple(cells)), jobs=jobs, gpus=read)

    def read(self, reader: Credential = ANYONE, **query: Any) -> dict[str, Any]:
        views, table = self.views(), IncidentTable(self.diagnosed_ns, tuple(self.incidents))
        api = GpusApi(self.core, lambda: views, lambda: table, lambda: NOW_NS)
        content = api.select(FleetGpus(views), table, reader, msgspec.convert(query, GpusQuery))
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content))
        return found


def places(content: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(row["node"], row["rail"], row["state"]) for row in content["rows"]]


def test_the_worst_come_first_with_their_reasons(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 4)
    fleet.verdicts = {("n0002", 1): FAILED, ("n0001", 0): 0}
    fleet.stale = {"n0003"}
    fleet.incidents = [
        incident("I1", cause=NIC | {"node": "n0000", "rail": 1}, title="slow NIC"),
        incident("I2", cause=NIC | {"node": "n0000", "rail": 0}, severity="info"),
        incident("I3", cause=NIC | {"node": "n0000", "rail": 0}, ended="2026-01-01T00:00:00Z"),
        incident(
            "I5", cause=NIC | {"node": "n0000", "rail": 0}, severity="critical", title="NIC lost"
        ),
        incident(
            "I6", cause=NIC | {"node": "n0002", "rail": 0}, severity="critical", explained_by="I5"
        ),
        incident(
            "I4", cause=NIC | {"node": "n0003", "rail": 0}, severity="critical", title="silent NIC"
        ),
    ]
    found = fleet.read()
    # The worst of both first; at equal ones a GPU comes before a NIC.
    assert [(*place, row["nic_state"]) for place, row in zip(places(found), found["rows"], strict=True)] == [
        ("n0002", 1, "failed", ""), ("n0000", 0, "healthy", "failed"),
        ("n0001", 0, "unknown", ""), ("n0003", 0, "unknown", ""), ("n0003", 1, "unknown", ""),
        ("n0000", 1, "healthy", "degraded"), ("n0002", 0, "healthy", "degraded"),
        ("n0001", 1, "healthy", ""),
    ]  # fmt: skip
    rows = found["rows"]
    assert found["states"] == {"failed": 1, "unknown": 3, "degraded": 0, "healthy": 4}
    assert found["rails"] == [
        {"rail": 0, "failed": 0, "unknown": 2, "degraded": 0, "healthy": 2},
        {"rail": 1, "failed": 1, "unknown": 1, "degraded": 0, "healthy": 2},
    ]
    assert [row["reasons"] for row in rows[:6]] == [
        ["xid"], ["NIC lost"], ["the agent has no verdict on the GPU"],
        ["no frame is received", "silent NIC"], ["no frame is received"], ["slow NIC"],
    ]  # fmt: skip
    assert (rows[5]["health"], rows[5]["incidents"]) == ("healthy", ["I1"])
    assert rows[1]["receive_bytes_per_second"] == 2000, "both ports of the rail"
    assert rows[5]["receive_bytes_per_second"] == 1000
    assert rows[5]["link_up"] is True
    assert rows[3]["link_up"] is rows[3]["power_watts"] is None
    fleet.diagnosed_ns = 0
    found = fleet.read()
    assert found["states"] == {"failed": 1, "unknown": 7, "degraded": 0, "healthy": 0}
    assert "nothing has been diagnosed" in found["problem"]


def test_a_link_that_is_down_is_the_state_of_the_nic_alone(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 1)
    fleet.link_up = 0
    fleet.hold("vision", "n0000", 0)
    rows = fleet.read()["rows"]
    assert [(row["state"], row["nic_state"]) for row in rows] == [("healthy", "down")] * 2
    assert [row["use"] for row in rows] == ["claimed", "unknown"], "no count of processes is known"


def test_the_reasons_of_a_gpu_come_before_those_of_its_nic(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 1)
    cause = {"kind": "gpu", "node": "n0000", "index": 1, "uuid": "GPU-n0000-1", "pci_address": ""}
    fleet.incidents = [
        incident("I1", cause=cause, title="slow GPU"),
        incident("I2", cause=NIC | {"node": "n0000", "rail": 1}, title="slow NIC"),
    ]
    row = fleet.read()["rows"][0]
    assert (row["reasons"], row["incidents"]) == (["slow GPU", "slow NIC"], ["I1", "I2"])


def test_one_fault_has_one_reason_in_a_list_and_in_the_row_of_its_node(tmp_path: Path) -> None:
    fleet = SmallFleet(
        tmp_path, 1, codes=("recovery_drain", "ecc_uncorrected_volatile", "xid_fatal")
    )
    fleet.verdicts = {("n0000", 1): FAILED}
    cause = {"kind": "gpu", "node": "n0000", "index": 1, "uuid": "GPU-n0000-1", "pci_address": ""}
    fleet.incidents = [
        incident("I1", cause=cause, severity="critical", title="Uncorrectable memory error: GPU 1")
    ]
    row = fleet.read()["rows"][0]
    assert row["reason"] == "uncorrectable memory error"
    assert row["reasons"] == [
        "ecc_uncorrected_volatile",
        "xid_fatal",
        "recovery_drain",
        "Uncorrectable memory error: GPU 1",
    ]
    table = IncidentTable(NOW_NS, tuple(fleet.incidents))
    (node,) = node_rows(FleetGpus(fleet.views()).node_facts(fleet.core), table, NOW_NS)
    assert (node.state, node.reason) == ("failed", "GPU GPU-n0000-1: uncorrectable memory error")


def test_a_part_is_selected_by_state_rail_node_tenant_and_position(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 3)
    fleet.verdicts = {("n0001", 1): DEGRADED}
    fleet.hold("vision", "n0002", 0)
    assert places(fleet.read(state="degraded")) == [("n0001", 1, "degraded")]
    assert [row["rail"] for row in fleet.read(rail=1)["rows"]] == [1, 1, 1]
    assert [row["node"] for row in fleet.read(node="N0002*")["rows"]] == ["n0002", "n0002"]
    assert [row["gpu"] for row in fleet.read(gpu="*0000-1")["rows"]] == ["GPU-n0000-1"]
    held = {"tenant": "vision", "source": "slurm", "workload": "job-of-vision", "held_ratio": 1.0}
    assert [row["holders"] for row in fleet.read(tenant="vis*")["rows"]] == [[held]]
    assert fleet.read(tenant="vis*", workload="x")["rows"] == []
    whole = places(fleet.read())
    parts = [places(fleet.read(limit=4, offset=offset)) for offset in (0, 4, 8)]
    assert [place for part in parts for place in part] == whole
    assert fleet.read(limit=4)["found"] == 6


def test_a_tenant_reads_its_own_gpus_and_no_reading_of_a_shared_one(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 3)
    fleet.hold("vision", "n0000", 0)
    for tenant in ("vision", "speech"):
        fleet.hold(tenant, "n0001", 1, alone=False)
    fleet.hold("speech", "n0002", 0)
    fleet.incidents = [incident("I1", cause=NIC | {"node": "n0000", "rail": 0})]
    found = fleet.read(Credential("board", Role.TENANT, "vision"))
    assert places(found) == [("n0000", 0, "healthy"), ("n0001", 1, "healthy")]
    assert found["found"] == sum(found["states"].values()) == 2
    own, shared = found["rows"]
    assert (own["incidents"], own["receive_bytes_per_second"]) == ([], 2000)
    assert [each["tenant"] for each in shared["holders"]] == ["vision"]
    assert (shared["link_up"], shared["receive_bytes_per_second"]) == (None, None)
    assert fleet.read(Credential("x", Role.TENANT, "nobody"))["rows"] == []
    assert len(fleet.read(rail=1)["rows"][0]["holders"]) == 0


def test_the_order_of_a_tenants_list_shows_no_reading_of_a_shared_gpu(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 2)
    for tenant in ("vision", "speech"):
        fleet.hold(tenant, "n0000", 0, alone=False)
    fleet.hold("vision", "n0001", 0)
    by_traffic = {"sort": "receive_bytes_per_second"}
    found = fleet.read(Credential("board", Role.TENANT, "vision"), **by_traffic)
    assert [row["node"] for row in found["rows"]] == ["n0001", "n0000"], "as one without a reading"
    everything = fleet.read(rail=0, **by_traffic)
    assert [row["node"] for row in everything["rows"]] == ["n0000", "n0001"]


def test_a_response_is_bounded_whatever_the_size_of_the_fleet(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 4_000, gpus=8)
    fleet.incidents = [
        incident(str(number), cause=NIC | {"node": name, "rail": number % 8})
        for number, name in enumerate(fleet.names[::20])
    ]
    found = fleet.read(limit=1000)
    assert (found["found"], len(found["rows"])) == (32_000, 1000)
    assert sum(row["nic_state"] == "degraded" for row in found["rows"]) == 200
    assert len(msgspec.json.encode(found)) < 1_000_000


def test_an_empty_fleet_has_no_rows(tmp_path: Path) -> None:
    assert SmallFleet(tmp_path, 0).read(node="*")["rows"] == []
    assert SmallFleet(tmp_path, 2, gpus=0).read(tenant="x")["rows"] == []


def test_a_gpu_without_a_rail_has_no_verdict(tmp_path: Path) -> None:
    fleet = SmallFleet(tmp_path, 1)
    fleet.core.gpus_by_node["n0000"] = {-1: "GPU-x"}
    (row,) = fleet.read()["rows"]
    assert (row["rail"], row["state"], row["gpu"]) == (None, "unknown", "GPU-x")
    assert row["reasons"] == ["the rail of the GPU is not known"]


# Over HTTP ---------------------------------------------------------------------------------------


async def answer(one: RunningCollector, path: str, token: str = "reader", tag: str = "") -> Any:  # noqa: S107 - a test's token
    headers = {"Authorization": f"Bearer token-{token}", "If-None-Match": tag}
    async with (
        aiohttp.ClientSession() as session,
        session.get(one.url + path, headers=headers) as response,
    ):
        return response.status, await response.text(), response.headers.get("ETag", "")


async def test_the_list_over_http_has_a_tag_and_rejects_an_invalid_query(tmp_path: Path):
    claims, sender = tmp_path / "claims.csv", FrameSender()
    claims.write_text("tenant,holds,from,to\nvision,GPU-n1-0,2020-01-01T00:00:00Z,\n")
    settings = settings_in(tmp_path, claims_file=str(claims), view_refresh_seconds=0.2)
    with (tmp_path / "tokens.toml").open("a") as tokens:
        tokens.write(f'[tenants.vision]\nboard = "{digest_token("token-board")}"\n')
    async with run_collector(settings) as running:
        rows = [[50, 60, 1000, 2000, 10, 20]] * 3
        frames = sender.frames(gpu_schema("n1"), rows, at=0)
        assert (await running.post(sender.body(frames, schemas=True), at=2))[0] == 200
        async with asyncio.timeout(60):
            while True:
                status, text, tag = await answer(running, "/api/v1/gpus")
                found = msgspec.json.decode(text)
                if status == 200 and found["found"] == 2 and found["rows"][0]["holders"]:
                    break
        row = found["rows"][0]
        assert (row["node"], row["rail"], row["utilization_ratio"], row["power_watts"]) == (
            "n1",
            0,
            0.5,
            1,
        )
        assert row["state"] == "unknown"
        assert tag.startswith('W/"')
        own = msgspec.json.decode((await answer(running, "/api/v1/gpus", "board"))[1])
        assert [each["gpu"] for each in own["rows"]] == ["GPU-n1-0"]
        assert (await answer(running, "/api/v1/gpus?tenant=speech", "board"))[0] == 403
        for query, expected in (
            ("limit=0", "invalid limit '0': expected a number from 1 to 1000"),
            ("limit=x", "invalid limit 'x': expected a number from 1 to 1000"),
            ("offset=-1", "invalid offset '-1': expected a number from 0 to 10000000"),
            ("rail=abc", "invalid rail 'abc': expected a number from 0 to 1000000"),
            (
                "state=bad",
                "invalid state 'bad': expected one of degraded, failed, healthy, unknown",
            ),
            (
                "rial=1",
                "unknown parameter 'rial': expected one of limit, offset, state, use, sort, rail, ",
            ),
            ("node=" + 101 * "x", f"invalid node '{40 * 'x'}': expected at most 100 characters"),
        ):
            status, text, _ = await answer(running, f"/api/v1/gpus?{query}")
            assert status == 400
            assert expected in msgspec.json.decode(text)["error"]
        async with asyncio.timeout(60):
            while True:  # until both requests are between the same two refreshes of the views
                tag = (await answer(running, "/api/v1/gpus"))[2]
                status, text, again = await answer(running, "/api/v1/gpus", tag=tag)
                if status == 304:
                    break
        assert (text, again) == ("", tag)
        assert (await answer(running, "/api/v1/gpus", "board", tag))[0] == 200


def test_the_pause_of_a_nic_is_that_of_pfc_or_of_the_whole_link_and_at_most_all_the_time() -> None:
    """The driver counts 0 of the other kind. The first NIC pauses the link by 1.02 s per second, the second one a priority."""
    counters = [(nic.PFC_SENT_TIME, ("3",)), (nic.GLOBAL_PAUSE_SENT_TIME, ())]
    names = ("eth0", "eth1")
    columns = tuple(
        (metric, Entity(metric.about, (name, *part), {} if part else {"rail": name[-1]}))
        for metric, part in counters
        for name in names
    )
    schema = Schema("nic", columns)
    batch = batch_of([[0] * 4, [0, 10**6, 4_080_000, 0]], boot_ns=[SECOND_NS, 5 * SECOND_NS])
    fleet, layout = Fleet(), make_layout(to_wire_schema(schema))
    fleet.apply(NodeUpdate("n", "r", "b", layout, batch, NOW_NS))
    read = ListedReadings({"n": gpus_of("n", 2)})
    for block in fleet.blocks():
        fresh = find_fresh_rows(block, fleet.fresh_rows(block, NOW_NS // 2, NOW_NS))
        assert fresh
        read.add(fresh)
    view = View("node", NOW_NS, (ViewCell(catalog.NODE_UP, ("n",), 1),))
    gpus = FleetGpus(CollectorViews(NOW_NS, node=view, gpus=read))
    assert [gpus.value(number, "pausing_ratio") for number in range(2)] == [1.0, 0.25]
    assert gpus.value(0, "paused_ratio") is None


def test_gpus_used_without_a_claim_are_counted_without_the_shares_that_claims_hold() -> None:
    """Claimed and used, claimed by half and used, used, idle; the claims of the last one are not known."""
    claimed = (GPU_CAPACITY, GPU_CAPACITY // 2, 0, 0, 0)
    gpus = [Entity(GPU, (uuid,), {"rail": rail}) for rail, uuid in zip("01234", "abcde", strict=True)]  # fmt: skip
    metrics = ("railscope_gpu_unclaimed_processes", "railscope_gpu_claimed_ratio")
    columns = tuple((METRICS[name], gpu) for name in metrics for gpu in gpus)
    fleet, layout = Fleet(), make_layout(to_wire_schema(Schema("tenancy", columns)))
    reasons = [[0] * 9 + [int(Absent.DENIED.value)]]
    batch = batch_of([[1, 1, 2, 0, 1, *claimed]], boot_ns=[SECOND_NS], reasons=reasons)
    fleet.apply(NodeUpdate("n", "r", "b", layout, batch, NOW_NS))
    read = ListedReadings()
    assert read.unclaimed is None
    for block in fleet.blocks():
        fresh = find_fresh_rows(block, fleet.fresh_rows(block, NOW_NS // 2, NOW_NS))
        assert fresh
        read.add(fresh)
    assert read.unclaimed == 1.5
