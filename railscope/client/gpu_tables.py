"""GPUs with their NICs as rows of a table: those of one node, or a part of those of all nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from railscope import api, figures
from railscope.catalog.collector import NODE_STATES
from railscope.catalog.gpu_health import reason_text
from railscope.client import tables
from railscope.client.cluster_reading import ClusterReading, decided_state

RATES = ("receive_bytes_per_second", "transmit_bytes_per_second")
GPU_COLUMNS = (
    tables.TableColumn("index", "GPU", is_key=True),
    tables.TableColumn("state", "STATE"),
    tables.number("utilization_ratio", "BUSY", figures.percent),
    tables.number("power_watts", "POWER", tables.show_watts),
    tables.number("temperature_celsius", "TEMP", lambda value: f"{value:.0f} C"),
    tables.TableColumn("holder", "HOLDER", tables.show_list),
    tables.number("rail", "RAIL"),
    tables.TableColumn("nic_state", "NIC"),
    tables.number(RATES[0], "IN Gb/s", tables.show_gigabits),
    tables.number(RATES[1], "OUT Gb/s", tables.show_gigabits),
    tables.number("memory_used_bytes", "MEMORY GB", tables.show_gigabytes, wide=True),
    tables.number("unclaimed_processes", "UNCLAIMED", wide=True),
    tables.TableColumn("link", "LINK", is_wide=True),
    tables.TableColumn("reason", "REASON", is_wide=True),
    tables.TableColumn("pci_address", "PCI", is_wide=True),
    tables.TableColumn("gpu", "UUID", is_wide=True),
)
"""Columns of the GPUs of one node."""
FLEET_GPU_COLUMNS = (
    tables.TableColumn("node", "NODE", is_key=True),
    tables.TableColumn("index", "GPU"),
    tables.TableColumn("state", "STATE"),
    tables.number("utilization_ratio", "BUSY", figures.percent),
    tables.number("rail", "RAIL"),
    tables.TableColumn("nic_state", "NIC"),
    tables.TableColumn("holder", "HOLDER", tables.show_list),
    tables.TableColumn("reason", "REASON", is_sentence=True),
    tables.number("power_watts", "POWER", tables.show_watts, wide=True),
    tables.number("temperature_celsius", "TEMP", lambda value: f"{value:.0f} C", wide=True),
    tables.number(RATES[0], "IN Gb/s", tables.show_gigabits, wide=True),
    tables.number(RATES[1], "OUT Gb/s", tables.show_gigabits, wide=True),
    tables.number("memory_used_bytes", "MEMORY GB", tables.show_gigabytes, wide=True),
    tables.number("age_seconds", "AGE", tables.show_age, wide=True),
    tables.TableColumn("pci_address", "PCI", is_wide=True),
    tables.TableColumn("gpu", "UUID", is_wide=True),
)
ABSENCES = {column.key: "no fresh reading" for column in GPU_COLUMNS if column.is_number} | {
    "holder": "no job holds the GPU",
    "nic_state": "no NIC is on the rail of the GPU",
    "rail": "the rail of the GPU is not known",
    "link": "the link is not reported",
}
"""Reasons for absent values, by column."""


def fleet_gpu_table(reading: ClusterReading) -> tables.ClientTable:
    """Return a part of the GPUs of all nodes, in their order."""
    document: api.GpuList | None = reading.document("gpus")
    stale = reading.absence("gpus")
    if document is None or not document.timestamp_ns:
        return tables.ClientTable("gpus", FLEET_GPU_COLUMNS, absence=stale)
    rows = [_gpu_row(gpu, stale) for gpu in document.rows]
    notes = [f"gpus: {stale}"] if stale else []
    notes += [f"incidents: {document.problem}"] if document.problem else []
    return tables.ClientTable("gpus", FLEET_GPU_COLUMNS, rows, notes=tuple(notes), reasons=ABSENCES)


def node_gpu_table(reading: ClusterReading) -> tables.ClientTable:
    """Return the GPUs of a node, worst first, and their age: a stale node still has its last readings."""
    document: api.NodeDetail | None = reading.document("node")
    if document is None:
        return replace(gpu_table(()), absence=reading.absence("node"))
    stream = document.streams.get("gpu")
    age = stream.age_seconds if stream else None
    read = "it is not known when the GPUs were read"
    note = read if age is None else f"GPUs read {tables.show_age(age)} ago"
    return replace(gpu_table(document.gpus), notes=(f"{document.node}: {note}",))


def gpu_table(gpus: Iterable[api.Gpu]) -> tables.ClientTable:
    """Return the GPUs of one node, worst first."""
    rows = [_gpu_row(gpu) for gpu in gpus]
    rows.sort(key=lambda row: (NODE_STATES.index(row["state"]), _index_order(row["index"])))
    return tables.ClientTable("gpus", GPU_COLUMNS, rows, reasons=ABSENCES)


def without_rates(table: tables.ClientTable) -> tables.ClientTable:
    """Return a table of GPUs that are read only once."""
    return replace(table, columns=tuple(each for each in table.columns if each.key not in RATES))


def _gpu_row(gpu: api.Gpu, stale: str = "") -> tables.Row:
    """Return the values as in the API, and those of columns that combine them."""
    nics = ", ".join(gpu.nics)
    state, reason = decided_state(
        "GPUs", gpu.state, "; ".join(map(reason_text, gpu.reasons)), stale
    )
    values: tables.Row = msgspec.to_builtins(gpu)
    return values | {
        "state": state,
        "nic_state": f"{nics} down" if gpu.link_up is False else nics,
        "link": None if gpu.link_up is None else "up" if gpu.link_up else "down",
        "holder": [_holder_text(holder) for holder in gpu.holders],
        "reason": reason,
    }


def _holder_text(holder: api.Holder) -> str:
    """Return the job of a holder; an agent exposes only the share that is held."""
    if holder.workload:
        return f"{holder.tenant}/{holder.workload}"
    return f"claimed {100 * holder.held_ratio:.0f} %"


def _index_order(index: str) -> tuple[int, str]:
    return (int(index), "") if index.isdecimal() and len(index) < 9 else (1 << 30, index)  # noqa: PLR2004 - digits of an index
