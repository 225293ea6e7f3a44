"""A running collector with its inventory and its retired file, over real HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from makers import FrameSender, gpu_schema, rdma_schema
from running_collector import RunningCollector, run_collector, settings_in
from support.audit import verified_records
from support.waiting import wait_until

from railscope_collector.access.credentials import digest_token
from railscope_collector.config import MeteringSettings

INVENTORY = "node,gpus,rdma_ports,from,to\n"
RETIRED = "gpu,from,to,reason\n"
ALWAYS = "2020-01-01T00:00:00Z,"
T = TypeVar("T")


async def once(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], bool]) -> T:
    """Wait for the expected response; return it."""
    answers = list[T]()

    async def is_wanted() -> bool:
        answers.append(await ask())
        return wanted(answers[-1])

    await wait_until(is_wanted, "the response is the expected one")
    return answers[-1]


async def page(one: RunningCollector) -> dict[str, float]:
    """The series of /metrics that are about the inventory, and the files' state."""
    _, text = await one.get("/metrics")
    prefixes = ("railscope_inventory_", "railscope_retired_", "railscope_gone_", "_file_valid")
    lines = [line for line in text.splitlines() if line.startswith("railscope_")]
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
        if any(prefix in name for prefix in prefixes)
    }


async def report(one: RunningCollector, node: str = "n1", *, at: int = 0) -> None:
    """Three frames of a node with two GPUs and two ports, the last of them just now."""
    sender = FrameSender(node, run=f"run-{at}")
    frames = sender.frames(gpu_schema(node), [[50, 60, 1000, 2000, 10, 20]] * 3, at=at)
    frames += sender.frames(rdma_schema(), [[1, 2, 3, 4]] * 3, at=at)
    status, reply = await one.post(sender.body(frames, schemas=True), node=node, at=at + 2)
    assert status == 200, reply


async def test_what_administrators_write_is_in_the_audit_log(tmp_path: Path):
    inventory, retired = tmp_path / "inventory.csv", tmp_path / "retired.csv"
    inventory.write_text(f"{INVENTORY}n1,2,2,{ALWAYS}\n")
    retired.write_text(RETIRED)
    settings = settings_in(
        tmp_path,
        inventory_file=str(inventory),
        retired_file=str(retired),
        metering=MeteringSettings(period_seconds=0.1),
    )
    with (tmp_path / "tokens.toml").open("a") as tokens:
        tokens.write(f'[auditors]\naudit = "{digest_token("token-auditor")}"\n')
    async with run_collector(settings) as running:
        await report(running)
        await once(lambda: running.get("/api/v1/account"), lambda found: found[0] == 200)
        retired.write_text(f"{RETIRED}GPU-n1-1,2020-01-01T00:00:00Z,,sent back\n")
        series = 'railscope_retired_gpu_reporting{node="n1",gpu="GPU-n1-1"}'
        await once(lambda: page(running), lambda found: found.get(series) == 1)
        reported = (await running.json("/api/v1/inventory"))["retired_gpus"]
        assert [(row["gpu"], row["reason"], row["reported_by"]) for row in reported] == [
            ("GPU-n1-1", "sent back", "n1")
        ]
        await once(
            lambda: running.get("/api/v1/audit", "token-auditor"),
            lambda found: "retired_seen" in found[1] and "device.retire" in found[1],
        )
    found = {(r.type, r.data.get("what")): r for r in verified_records(tmp_path / "state")}
    retirement = found["device.retire", "retired"]
    assert (retirement.obj.gpu, retirement.data["why"]) == ("GPU-n1-1", "sent back")
    assert (retirement.actor.kind, retirement.actor.id) == ("administrator", "retired_file")
    change = found["admin.config", None]
    assert (change.actor.id, change.data["rows"]) == ("inventory_file", 1)
    seen = found["evidence.quarantine", "retired_seen"]
    assert (seen.obj.node, seen.obj.gpu) == ("n1", "GPU-n1-1")
