"""The lists of the API as tables: a row here is all that a list needs in the terminal. Rows are those of the API."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from railscope import figures, timestamps
from railscope.catalog.event_titles import title_of
from railscope.untrusted_text import printable

Row: TypeAlias = Mapping[str, Any]
NONE = "-"


def show(value: Any) -> str:
    """Return any value as one printable line."""
    return printable(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def age(seconds: float) -> str:
    """Format a duration; a small negative one is a difference of clocks."""
    return figures.duration(max(round(seconds, 1), 0.0))


def seconds_since(timestamp: str | None, now_ns: int) -> float:
    """Return the seconds from a timestamp to a time; not a number without a valid timestamp."""
    try:
        return (now_ns - timestamps.parse_timestamp(timestamp)) / timestamps.SECOND_NS
    except timestamps.TimestampError:
        return math.nan


def _holder(each: Row) -> str:
    if each["workload"]:
        return f"{each['tenant']}/{each['workload']}"
    return f"claimed {100 * each['held_ratio']:.0f} %"


def _holders(gpu: Row) -> str:
    if gpu.get("use") == "unclaimed":
        return "used without a claim"
    return ", ".join(map(_holder, gpu.get("holders", ())))


def _nics(gpu: Row) -> str:
    state = gpu.get("nic_state", "")
    suffix = f" {state}" if state in {"down", "failed", "degraded"} else ""
    return ", ".join(gpu.get("nics", ())) + suffix


def _straggler(job: Row) -> str:
    slow = [each for each in job.get("stragglers", ()) if each.get("deviation_ratio") is not None]
    worst = min(slow, key=lambda each: each["deviation_ratio"], default=None)
    if worst is None:
        return ""
    return f"{worst['node']} GPU {worst['index']} {worst['measure']} {100 * worst['deviation_ratio']:.0f} %"


def _rollup(name: str) -> Callable[[Row], Any]:
    return lambda row: next(
        (each["value"] for each in row.get("rollups", ()) if each["metric"] == name), None
    )


FORMS: Mapping[str, Callable[[Any], str]] = {
    "name": show,
    "text": show,
    "sentence": show,
    "state": show,
    "event": title_of,
    "time": lambda at_ns: (
        timestamps.format_timestamp(at_ns, "seconds")[5:].rstrip("Z").replace("T", " ")
    ),
    "number": lambda value: f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}",
    "age": age,
    "ratio": figures.percent,
    "watts": lambda value: figures.quantity(value, "watts"),
    "celsius": lambda value: f"{value:.0f} C",
    "gigabits": lambda value: f"{8 * value / 1e9:.0f}",
    "gigabytes": lambda value: f"{value / 1e9:.0f}",
    "hours": lambda value: f"{value:,.2f}",
    "offset": lambda seconds: f"{seconds:+.3f} s",
}
_WORDS = frozenset({"name", "text", "sentence", "state", "event", "time"})
"""Forms of text; all others are numbers."""


class Column(NamedTuple):
    """A column: its head, how to find its value in a row, the form of the value, and whether only `--wide` shows it."""

    head: str
    value: Callable[[Row], Any]
    form: str
    is_wide: bool = False

    @property
    def is_number(self) -> bool:
        """True for a column that is aligned right."""
        return self.form not in _WORDS

    @property
    def is_whole(self) -> bool:
        """True for a column of which each value is on one line."""
        return self.is_number or self.form in {"state", "time"}

    @property
    def is_name(self) -> bool:
        """True for a column that names the object of a row."""
        return self.form == "name"

    @property
    def is_sentence(self) -> bool:
        """True for a column that may follow its row, on lines of its own."""
        return self.form == "sentence"

    def text(self, row: Row) -> str:
        """Return the text of a value; a dash for none."""
        value = self.value(row)
        return NONE if value is None or value in ("", []) else printable(FORMS[self.form](value))


def _value(key: str, row: Row) -> Any:
    return row.get(key)


def columns(text: str, **computed: Callable[[Row], Any]) -> tuple[Column, ...]:
    """Return columns from lines of head, key, form and `wide`, with two spaces or more between them."""
    found = []
    for line in text.strip().splitlines():
        head, key, form, *wide = re.split(r" {2,}", line.strip())
        found.append(Column(head, computed.get(key) or partial(_value, key), form, bool(wide)))
    return tuple(found)


class Listing(NamedTuple):
    """A list of the API as a command: its help, its options, and its columns."""

    about: str
    columns: tuple[Column, ...]
    options: tuple[str, ...] = ()
    """Keys of the rows that options of the same name select; the argument NAME selects by the first one."""
    served: tuple[str, ...] = ()
    """Those that the server selects by."""
    rows: str = "rows"
    """Key of the rows in the document."""


LISTINGS: Mapping[str, Listing] = {
    "nodes": Listing(
        """List the nodes, worst first. With a NAME, those that match it, such as gpu-1*; one node with its GPUs.

        failed: the cause of a critical incident, or a GPU that has failed, is on the node. degraded: the cause
        of a warning is on the node, or a GPU is degraded; a victim keeps its own state. unknown: the node or its
        diagnosis is stale, or it never reported.
        """,
        columns("""
            NODE     node                                 name
            STATE    state                                state
            AGE      railscope_node_last_frame_age_seconds  age
            GPUS     gpus                                 number
            REASON   reason                               sentence
            CLOCK    railscope_node_clock_offset_seconds  offset  wide
            SOURCES  sources                              number  wide
            AGENT    agent_version                        text    wide
        """, sources=lambda row: len(row.get("streams", ()))),
        ("node", "state"),
    ),
    "gpus": Listing(
        "List the GPUs with rail and NIC, worst first. With a NAME, those of the nodes that match it.",
        columns("""
            NODE       node                       name
            GPU        index                      name
            STATE      state                      state
            BUSY 1min  utilization_ratio          ratio
            RAIL       rail                       number
            NIC        nics                       text
            HOLDER     holders                    text
            REASON     reason                     sentence
            POWER      power_watts                watts      wide
            TEMP       temperature_celsius        celsius    wide
            IN Gb/s 1min   receive_bytes_per_second   gigabits   wide
            OUT Gb/s 1min  transmit_bytes_per_second  gigabits   wide
            MEMORY GB  memory_used_bytes          gigabytes  wide
            UNCLAIMED  unclaimed_processes        number     wide
            AGE        age_seconds                age        wide
            PCI        pci_address                text       wide
            UUID       gpu                        text       wide
        """, nics=_nics, holders=_holders),
        ("node", "rail", "tenant", "state"),
        served=("node", "rail", "tenant", "state", "limit", "offset"),
    ),
    "incidents": Listing(
        """List the incidents, worst first: cause, victims, action and ID. Ended ones follow.

        With an ID, one incident with its evidence and the commands to type, also an ended one.
        """,
        columns("""
            SEVERITY  severity  state
            ONSET     onset     text
            INCIDENT  title     text
            ACTION    action    sentence
            JOBS      jobs      text
            ID        id        text
        """, jobs=lambda row: [f"{job['tenant']}/{job['workload']}" for job in row.get("jobs", ())]),
        ("id", "node", "tenant", "state", "severity"),
        served=("state",),
    ),
    "rails": Listing(
        "List the rails over all nodes, with their cells by state and readings of the last minute: of pauses the largest share of ten seconds.",
        columns("""
            RAIL      rail                       number
            FAILED    failed                     number
            UNKNOWN   unknown                    number
            DEGRADED  degraded                   number
            HEALTHY   healthy                    number
            PAUSED max   max_paused_ratio        ratio
            PAUSING max  max_pausing_ratio       ratio
            BUSY 1min    mean_utilization_ratio  ratio
            IN Gb/s 1min      receive_bytes_per_second   gigabits  wide
            OUT Gb/s 1min     transmit_bytes_per_second  gigabits  wide
            HOTTEST   max_temperature_celsius    celsius   wide
            POWER     power_watts                watts     wide
            PORTS UP  ports_up                   number    wide
        """),
        ("rail",),
        rows="rails",
    ),
    "jobs": Listing(
        "List the running jobs, worst first, with step period and slowest GPU. With a NAME, those that match it.",
        columns("""
            TENANT       tenant            name
            JOB          workload          name
            STATE        state             state
            GPUS         gpus              number
            NODES        nodes             number  wide
            RUNTIME      runtime_seconds   age
            BUSY 1min    busy              ratio
            STEP         step              age
            REASON       reason            sentence
            SLOWEST GPU  stragglers        text    wide
            POWER        power             watts   wide
            SOURCE       source            text    wide
        """, stragglers=_straggler, step=lambda row: (row.get("step") or {}).get("period_seconds"),
            busy=_rollup("railscope_job_mean_gpu_utilization_ratio"), power=_rollup("railscope_job_sum_gpu_power_watts")),
        ("workload", "tenant", "state"),
    ),
    "tenants": Listing(
        "List the tenants with their GPUs, jobs and open incidents now, and their GPU time so far.",
        columns("""
            TENANT     tenant          name
            GPUS       gpus            number
            JOBS       jobs            number
            INCIDENTS  incidents       number
            GPU-HOURS  held_gpu_hours  hours
        """),
        ("tenant",),
        rows="tenants",
    ),
    "switches": Listing(
        "List the switches with their ports, links and cabling faults.",
        columns("""
            SWITCH  switch       name
            STATE   state        state
            AGE     age_seconds  age
            PORTS   ports        number
            UP      ports_up     number
            LINKS   links        number
            FAULTS  faults       number
            REASON  reason       sentence
        """),
        ("switch", "state"),
    ),
    "events": Listing(
        "List the newest events of all nodes, the newest last.",
        columns("""
            TIME    wall_ns  time
            NODE    node     name
            EVENT   name     event
            DEVICE  devices  text
            TEXT    text     sentence
        """),
        ("node",),
        rows="events",
    ),
}  # fmt: skip
