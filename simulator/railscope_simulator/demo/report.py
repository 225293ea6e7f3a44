"""Output of the demo: a line for each change, the state of the cluster in a terminal, and the verdict on a run.

A run succeeded if every node reported, no frame was lost and the account adds up.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from railscope import figures
from railscope.api.status import Status, headline
from railscope.client.text_layout import cut, wrap
from railscope.standard_output import OutputError, check_output
from railscope.timestamps import SECOND_NS, parse_timestamp
from railscope_simulator.demo import link_ends
from railscope_simulator.demo.faults import FaultChange

GIGA = 1e9
HOURS_NS = 3_600_000_000_000
_PAUSES = {
    "paused": "railscope_rail_max_nic_receive_pfc_pause_ratio",
    "pausing": "railscope_rail_max_nic_transmit_pfc_pause_ratio",
}
_RAIL = (
    *((head, metric, 100, "{:.1f} %") for head, metric in _PAUSES.items()),
    ("busy", "railscope_rail_mean_gpu_utilization_ratio", 100, "{:.0f} %"),
    ("power", "railscope_rail_sum_gpu_power_watts", 1, "{:.0f} W"),
    ("hottest", "railscope_rail_max_gpu_temperature_celsius", 1, "{:.0f} C"),
    ("in", "railscope_rail_sum_nic_receive_bytes_per_second", 8 / GIGA, "{:.0f}"),
    ("out", "railscope_rail_sum_nic_transmit_bytes_per_second", 8 / GIGA, "{:.0f}"),
    ("marked/s", "railscope_rail_sum_rdma_ecn_marked_packets_per_second", 1, "{:.0f}"),
    ("CNP/s", "railscope_rail_sum_rdma_congestion_notifications_handled_per_second", 1, "{:.0f}"),
)
"""Columns of the rails, within 80 of a terminal. A narrower one has the first ones, by which the rails are sorted."""
_RAILS_TITLE = "Rails: pauses (worst 10 s), busy GPUs and traffic in Gb/s of the last 1 min"


def status_lines(
    views: Mapping[str, Any], links: Sequence[Sequence[str]], notes: Sequence[str]
) -> list[str]:
    """Return the state of a cluster in at most MAX_STATUS_LINES lines: the console and the next fault are in `notes`."""
    place, following = notes
    status = msgspec.convert(views["status"] | {"open_incidents": ()}, Status)
    root_causes = [row for row in views["status"]["open_incidents"] if row["severity"] != "info"]
    shown = [f"{row['severity']:8}  {row['title']}: {row['action']}" for row in root_causes]
    shown = shown[:_MAX_INCIDENTS]
    # The status lists the most urgent ones only, and has the number of all.
    counts = {**(status.incidents or {}), "info": 0}
    more = sum(counts.values()) - len(shown)
    shown += [f"and {more} more in the console"] if more > 0 else []
    paused = _table(link_ends.TABLE_HEAD, links[:_MAX_LINKS]).splitlines() if links else []
    rails = [_RAILS_TITLE, *_rails(views["rails"]["rows"]).splitlines()]
    lines = [
        "",
        *wrap(headline(status), _NARROW, "  "),
        f"{_load(views)}  {place}",
        f"{following}; Ctrl-C ends",
        *shown,
        *paused,
    ]
    return [*lines, *rails][:MAX_STATUS_LINES]


def _load(views: Mapping[str, Any]) -> str:
    values = {row["metric"]: row["value"] for row in views["cluster"]["rows"]}
    watts, busy = (
        values.get(f"railscope_cluster_{name}", 0)
        for name in ("sum_gpu_power_watts", "mean_gpu_utilization_ratio")
    )
    return f"{100 * busy:.0f} % busy 1min  {watts / 1000:.1f} kW"


def _rails(rows: Iterable[dict[str, Any]]) -> str:
    by_rail: dict[int, dict[str, float]] = {}
    for row in rows:
        values = by_rail.setdefault(int(row["labels"]["rail"]), {})
        # A rail may have several rows of a metric: the largest is shown.
        values[row["metric"]] = max(row["value"], values.get(row["metric"], row["value"]))
    body = []
    for rail, values in sorted(by_rail.items(), key=lambda item: (-_pause(item[1]), item[0])):
        shown = [
            form.format(values[metric] * factor) if metric in values else "-"
            for _, metric, factor, form in _RAIL
        ]
        body.append([str(rail), *shown])
    return _table(["RAIL", *(head for head, *_ in _RAIL)], body)


def _pause(values: dict[str, float]) -> float:
    """Largest percentage of a rail's time lost to pauses, rounded to suppress noise."""
    return round(100 * max(values.get(metric, 0.0) for metric in _PAUSES.values()))


_UNHELD_TITLES = {"unclaimed": "used without a claim"}
_HELD_STATES = {"observed", "inferred"}


def unheld_ns(account: dict[str, Any]) -> dict[str, int]:
    """Nanoseconds that no tenant holds, by state; empty states except idle and unknown are omitted."""
    always = {"idle", "unknown"}
    return {
        _UNHELD_TITLES.get(state, state): int(ns)
        for state, ns in account["states"].items()
        if state not in _HELD_STATES and (int(ns) or state in always)
    }


def account_table(account: dict[str, Any]) -> str:
    """Return the GPU-time account, in GPU-hours for readers and in nanoseconds for exact sums."""
    body = [
        [
            "held by " + name,
            *_time(tenant["held_ns"]),
            f"unknown {_hours(tenant['held_unknown_ns'])}",
        ]
        for name, tenant in account["tenants"].items()
        if int(tenant["held_ns"])
    ]
    body += [[title, *_time(str(ns)), ""] for title, ns in unheld_ns(account).items()]
    body += [
        [
            f"{account['gpus']} GPUs x time",
            *_time(account["capacity_ns"]),
            "balances" if account["balances"] else "DOES NOT BALANCE",
        ]
    ]
    return _table(["GPU TIME", "GPU-hours", "nanoseconds", ""], body)


def _time(ns: str) -> list[str]:
    return [_hours(ns), f"{int(ns):,}"]


def _hours(ns: str) -> str:
    return f"{int(ns) / HOURS_NS:.4f}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if position == 0 else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *body)
    ]
    return "\n".join(lines)


_MAX_SHOWN = 8
_NARROW = 79
MAX_STATUS_LINES = 16
_MAX_INCIDENTS, _MAX_LINKS = 3, 2
_LINES_OF_EVENTS = 8
"""Lines of a terminal that the state of the cluster leaves to events."""
_INDENT = " " * 24
"""Beginning of the second line of an event, below the text of the first."""


class DemoScreen:
    """Standard output; `is_gone` is true once it cannot be written any more."""

    def __init__(self) -> None:
        """Raises OutputError if there is no standard output."""
        if sys.stdout is None:
            message = "standard output is closed: expected a terminal or file; fix: redirect it to /dev/null"
            raise OutputError(message)
        # Without it, `python -m railscope_simulator.demo` gets an OSError, which would end the run.
        check_output()
        self._is_terminal = sys.stdout.isatty()
        self._drawn = 0
        """Lines below the events that the next output replaces."""
        self._states: dict[str, str] = {}
        self._incidents: dict[str, str] = {}
        """State of each incident that was shown."""
        self._causes = Counter[tuple[str, str]]()
        """Number of these incidents by class and node of the cause."""
        self.is_gone = False
        self.faults: list[FaultChange] = []
        """Faults that have begun."""

    def summary(self, nodes: int, seconds: float, *, good: bool | None = None) -> str:
        """Return the summary of a run of some seconds; a run that a signal ends has no checks."""
        checks = {
            None: "Stopped before the checks at the end",
            True: "All checks passed",
            False: "A check FAILED: its line above has the reason",
        }
        number, outcomes = len(self.faults), ", ".join(self._outcomes(seconds))
        faults = (
            f"{figures.count(number, 'fault')} began: {outcomes}" if number else "No fault began"
        )
        return f"SUMMARY: {nodes} nodes ran. {faults}. {checks[good]}."

    def _outcomes(self, seconds: float) -> Iterator[str]:
        """Yield what became of the faults."""
        found, counts = self._causes.copy(), Counter[str]()
        others: list[FaultChange] = []
        for change in self.faults:
            fault = change.fault
            if found[fault.incident, fault.node]:
                found[fault.incident, fault.node] -= 1
                counts["found as incidents"] += 1
            elif not fault.incident:
                counts["with an alert only, by design"] += 1
            else:
                others.append(change)
        missed = []
        for change in others:
            fault = change.fault
            other = next((key for key in +found if key[1] == fault.node), None)
            if other:
                found[other] -= 1
                counts["found as another incident"] += 1
            elif change.seconds + fault.within_seconds > seconds:
                counts["just before the end"] += 1
            else:
                missed.append(f"{fault.name} on {fault.node}")
        yield from (f"{number} {text}" for text, number in counts.items())
        if missed:
            yield f"{len(missed)} NOT FOUND: {', '.join(missed)}"

    def print(self, text: str) -> None:
        """Print a text in place of the state of the cluster; after an error nothing is printed any more."""
        if self.is_gone:
            return
        above, self._drawn = self._drawn, 0
        try:
            click.echo(f"\x1b[{above}A\r\x1b[J{text}" if above else text)
            sys.stdout.flush()
        except OutputError:
            self.is_gone = True

    def announce(self, text: str, detail: str = "") -> None:
        """Print an event, with its time; a terminal, which is narrow, does not have the detail."""
        line = f"{dt.datetime.now().astimezone():%H:%M:%S}  {text}"
        if self._is_terminal:
            width = shutil.get_terminal_size().columns
            wrapped = textwrap.wrap(line, width, subsequent_indent=_INDENT, break_on_hyphens=False)
            self.print("\n".join(wrapped))
        else:
            self.print(line + detail)

    def draw(
        self, views: dict[str, Any], links: link_ends.ComparedLinks, notes: Sequence[str]
    ) -> None:
        """Print what has changed; in a terminal also the state of the cluster below it."""
        for text in (*self._incident_changes(views["incidents"]["rows"]), *links.news()):
            self.announce(text)
        for row in views["nodes"]["rows"]:
            state = "reporting" if row.get("railscope_node_reporting") else "stale"
            if state == "stale" and row["node"] not in self._states:
                continue  # it has not reported yet
            now = f"{row['node']} is {state}, GPUs: {row['gpus']}"
            if self._states.get(row["node"]) != now:
                self._states[row["node"]] = now
                self.announce(now)
        if self._is_terminal:
            size = shutil.get_terminal_size()
            lines = status_lines(views, links.rows(), notes)
            lines = lines[: max(size.lines - _LINES_OF_EVENTS, 3)]
            # A line that wraps would be more lines than are replaced.
            self.print("\n".join(cut(line, size.columns - 1) for line in lines))
            self._drawn = len(lines)

    def _incident_changes(self, rows: Iterable[dict[str, Any]]) -> Iterator[str]:
        """Yield a text for each incident that has begun, ended or been explained since the last call."""
        for row in rows:
            state = "ended" if row["ended"] else "explained" if row["explained_by"] else "open"
            if self._incidents.get(row["id"], "ended") == state:
                continue
            if row["id"] not in self._incidents:
                self._causes[row["class"], row["cause"].get("node", "")] += 1
            self._incidents[row["id"]] = state
            yield incident_text(row, state)


def incident_text(row: Mapping[str, Any], state: str) -> str:
    """Return an incident with its cause, its effect and what to do."""
    if state == "ended":
        return f"INCIDENT ENDS {row['title']}"
    if state == "explained":
        return f"EXPLAINED     {row['title']}: an effect of incident {row['explained_by']}"
    delay = (parse_timestamp(row["detected"]) - parse_timestamp(row["onset"])) // SECOND_NS
    jobs = ", ".join(f"job {job['workload']} of {job['tenant']}" for job in row["jobs"])
    affected = jobs or f"{row['victim_count']} devices" if row["victim_count"] else "none"
    return (
        f"INCIDENT      {row['severity']}: {row['title']}; found {delay} s after its onset; affected: {affected};"
        f" {row['action']}"
    )


def verdict(
    nodes: Sequence[str],
    shipped: Sequence[Mapping[str, int]],
    views: Mapping[str, Any],
    links: link_ends.ComparedLinks | None = None,
) -> tuple[bool, str]:
    """Return True if a run succeeded, and a line-by-line report."""
    reporting = {row["node"] for row in views["nodes"]["rows"] if row["streams"]}
    stale = [node for node in nodes if node not in reporting]
    sent = sum(counts["shipped"] for counts in shipped)
    lost = sum(counts["dropped"] + counts["waiting"] for counts in shipped)
    received, of_switches, missing = (
        int(views["own"][f"railscope_collector_{name}"])
        for name in ("received_frames_total", "received_switch_frames_total", "missing_frames")
    )
    # Agents count their own frames only.
    received -= of_switches
    account = views["account"]
    parts = (int(account["held_ns"]), *unheld_ns(account).values())
    checks = [
        (not stale, f"every node reported ({len(nodes)} of them)", f"stale: {', '.join(stale)}"),
        (
            lost == missing == 0 and sent == received,
            f"no frame was lost ({received} sent, {received} received)",
            f"frames lost: {sent} sent, {received} received, {lost} dropped, {missing} missing",
        ),
        (
            sum(parts) == int(account["capacity_ns"]) > 0,
            f"the account balances: {_sum(parts)} = {int(account['capacity_ns']):,} ns",
            "the account does not balance",
        ),
    ]
    if links and links.comparisons:
        checks.append(
            (
                not links.differences,
                f"both ends of {links.links} links count the same pauses ({links.comparisons} comparisons)",
                f"the ends of links differ: {'; '.join(links.differences[:_MAX_SHOWN])}",
            )
        )
    lines = [account_table(account), ""]
    lines += [f"{'ok  ' if good else 'FAIL'}  {yes if good else no}" for good, yes, no in checks]
    return all(good for good, _, _ in checks), "\n".join(lines)


def _sum(parts: Sequence[int]) -> str:
    return " + ".join(f"{part:,}" for part in parts)
