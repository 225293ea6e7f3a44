"""Simulated switches as programs: a collector polls them and joins their ports to the simulated nodes."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from chain_support import ProgramDirectory, wait_until

from tests.chain.test_simulated_cluster import start_simulator

SCENARIO = """
seconds = 300

[cluster]
nodes_per_pod = 2

[[jobs]]
name = "train"
nodes = [0, 1]
checkpoint_period_seconds = 0

[[faults]]
fault = "pfc_storm"
begin_seconds = 2
nodes = [1]
indices = [3]
"""
RAILS, STORAGE = 8, 2


@pytest.mark.thorough
async def test_links_of_a_simulated_cluster_have_the_counts_of_both_ends(
    site: ProgramDirectory,
) -> None:
    await start_simulator(site, SCENARIO, "--switches", "127.0.0.1:0")
    simulated = site.directory / "simulated"

    async def is_served() -> bool:
        return (simulated / "switches.toml").exists()

    await wait_until(is_served, "the switches are served")
    shutil.copy(simulated / "tokens.toml", site.directory)
    await site.collector(
        RAILSCOPE_COLLECTOR_SWITCHES__FILE=str(write_mixed(simulated / "switches.toml")),
    )

    async def has_links() -> bool:
        return (await site.get("/api/v1/links"))["total"] == 2 * (RAILS + STORAGE)

    await wait_until(has_links, "all links are known")
    listed = await site.get("/api/v1/links")
    assert {tuple(link["evidence"]) for link in listed["links"]} == {("host_lldp", "switch_lldp")}
    assert not listed["cabling_faults"]
    (port, _) = (await site.get("/api/v1/switches/leaf-3"))["ports"]
    rate = "railscope_switch_port_receive_pfc_pause_frames_per_second"
    assert [each["priority"] for each in port["readings"] if each["metric"] == rate] == [
        str(priority) for priority in range(8)
    ]
    before = await pauses(site)

    async def has_counted() -> bool:
        now = await pauses(site)
        return all(now[end] > before[end] for end in now)

    await wait_until(has_counted, "both ends count the pauses of the storm")
    early = await pauses(site)

    async def is_later() -> bool:
        now = await pauses(site)
        return now["switch"] > early["switch"] and now["host"] >= now["switch"]

    await wait_until(is_later, "the NIC has counted at least what the switch had")
    late = await pauses(site)
    assert early["switch"] <= late["host"]


def write_mixed(file: Path) -> Path:
    """Write a switches file in which one leaf is read as H3C Comware by SNMP, and one by OpenConfig; return its path."""
    tables = tomllib.loads(file.read_text())
    credential, mixed = file.with_name("comware.toml"), file.with_name("mixed.toml")
    credential.write_text('community = "comware"\n')
    tables["leaf-2"]["dialect"] = "openconfig"
    tables["leaf-3"] = {
        "address": tables["leaf-3"]["address"],
        "credential_file": str(credential),
        "period_seconds": 5,
    }
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    mixed.write_text("\n".join(lines))
    return mixed


async def pauses(site: ProgramDirectory) -> dict[str, int]:
    """Pause frames from the NIC of the fault to its switch port, as both ends count them."""
    switch = await site.get("/api/v1/switches/leaf-4")
    (port,) = (port for port in switch["ports"] if port.get("link", {}).get("node") == "gpu-node-2")
    (row,) = (
        row
        for row in port["link"]["counters"]
        if (row["quantity"], row.get("priority")) == ("to_switch_pfc_pause_frames", "3")
    )
    return {end: row[end] for end in ("switch", "host")}
