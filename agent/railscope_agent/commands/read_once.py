"""Commands that read a node once, or a capture to its end: `railscope agent once`, `check` and `topology`."""

from __future__ import annotations

import asyncio
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import click

from railscope import (
    cli,
    convert_errors,
    device_names,
    exposition,
    log_output,
    textfile_series,
    wire,
)
from railscope.capture import Capture, CaptureError, read_capture
from railscope.catalog.declare import MetricDetail
from railscope.catalog.entities import TEXTFILE_SERIES
from railscope.reading import Absent
from railscope_agent.commands import (
    check as checks,
    config_option,
    load_settings,
    replay_option,
    root_option,
)
from railscope_agent.host import Host, live_host, recorded_host
from railscope_agent.service import Agent
from railscope_agent.topology import topology_report

_Read: TypeAlias = Callable[[Agent], Coroutine[Any, Any, None]]
MAX_READS = 12
"""Reads of a capture, for readings that depend on earlier ones."""


@click.command()
@config_option
@root_option
@replay_option
@cli.format_option("prom", "openmetrics", "json", "dcgm")
@click.option(
    "--detail",
    type=click.Choice([detail.value for detail in MetricDetail]),
    help="Detail of the metrics; default: that of the settings. JSON contains every reading.",
)
def once(
    config: Path | None, root: Path, replay: Path | None, form: str, detail: str | None
) -> None:
    """Read every source once and print the readings.

    A capture is read through to its end, for readings that depend on earlier ones; those at its end are
    printed.
    """
    node_agent, read = _agent_once(config, root, replay, {"metrics.detail": detail})
    asyncio.run(read(node_agent))
    if form == "json":
        click.echo(json.dumps(_as_json(node_agent), indent=1))
    elif form == "dcgm":
        click.echo(node_agent.endpoint.dcgm_text(exposition.TextFormat.PROMETHEUS), nl=False)
    else:
        text_format = (
            exposition.TextFormat.OPENMETRICS
            if form == "openmetrics"
            else exposition.TextFormat.PROMETHEUS
        )
        click.echo(node_agent.endpoint.text(text_format), nl=False)


@click.command()
@config_option
@root_option
@replay_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Time between two reads of this node, over which counters are compared; 0 reads it once.",
)
def check(config: Path | None, root: Path, replay: Path | None, seconds: float) -> None:
    """Report supported, denied and absent features of this node, and faults of GPUs and NICs, with remedies.

    Exit status 1 if something is denied or broken, or a GPU or a NIC is degraded or has failed.
    """
    node_agent, read = _agent_once(config, root, replay, {})
    if replay is None and seconds:
        read = partial(checks.read_twice, seconds=seconds)
    live = replay is None and root == Path("/")
    sys.exit(0 if asyncio.run(checks.check(node_agent, click.echo, read, live=live)) else 1)


@click.command()
@config_option
@root_option
@replay_option
@cli.format_option("text", "json")
def topology(config: Path | None, root: Path, replay: Path | None, form: str) -> None:
    """Show the PCI tree, the distances between GPUs and NICs, and the rails of the NICs.

    A capture is shown at its end, as by `once`. Exit status 1 if the section [topology] of the settings
    does not match this node.
    """
    loaded = load_settings(config)
    shown, fits = topology_report.show_topology(_host_at_end(root, replay), loaded.topology, form)
    click.echo(shown, nl=False)
    sys.exit(0 if fits else 1)


def _agent_once(
    config: Path | None, root: Path, replay: Path | None, flags: dict[str, str | None]
) -> tuple[Agent, _Read]:
    """Return an agent that reads a node or a capture once, and the function that reads it."""
    loaded = load_settings(config, flags)
    log_output.configure_logs("error")
    if replay is None:
        return Agent(loaded, live_host.LiveHost(root), loaded.node), Agent.once
    walk = _capture_walk(replay)
    return Agent(loaded, walk.host, loaded.node or walk.host.node), walk.read


def _host_at_end(root: Path, replay: Path | None) -> Host:
    """Return the host in its present state, or in the final state of a capture."""
    if replay is None:
        return live_host.LiveHost(root)
    walk = _capture_walk(replay)
    walk.go_to_end()
    return walk.host


def _capture_walk(replay: Path) -> CaptureWalk:
    with convert_errors(CaptureError, click.ClickException):
        return CaptureWalk(read_capture(replay))


class CaptureWalk:
    """A recorded node that is read several times, the last time at the end of the capture."""

    def __init__(self, capture: Capture) -> None:
        self._clock = recorded_host.RecordedClock(capture.about)
        self._offsets = find_read_offsets(capture)
        self.host = recorded_host.RecordedHost(capture, self._clock, lambda: self._clock.offset_ns)

    def go_to_end(self) -> None:
        """Advance to the end of the capture without earlier reads."""
        self._clock.go_to(self._offsets[-1])

    async def read(self, agent: Agent) -> None:
        """Have an agent of this host read all sources at each offset."""
        for offset_ns in self._offsets:
            self._clock.go_to(offset_ns)
            await agent.once()


def find_read_offsets(capture: Capture) -> list[int]:
    """Return the offsets of at most `MAX_READS` moments, evenly spread, and the end of the capture."""
    end_ns = capture.about.duration_ns
    offsets = sorted({moment.offset_ns for moment in capture.moments})
    targets_ns = (end_ns * step // (MAX_READS - 1) for step in range(MAX_READS - 1))
    # The last moment until each target: the state of the node at that time.
    places = (bisect_right(offsets, at_ns) - 1 for at_ns in targets_ns)
    return sorted({*(offsets[place] for place in places if place >= 0), end_ns})


def _as_json(node_agent: Agent) -> list[dict[str, Any]]:
    frames = list(node_agent.endpoint.fresh_frames())
    entities = chain.from_iterable(frame.schema.entities for frame in frames)
    devices = device_names.names_in(map(wire.to_wire_entity, entities))
    entries: list[dict[str, Any]] = []
    for frame in frames:
        columns = ((m.name, "".join(e.key[:1])) for m, e in frame.schema.columns)
        series = textfile_series.json_entries(columns, frame.reading)
        entries += ({**entry, "source": frame.schema.stream} for entry in series)
        for metric, entity, reading in frame.readings():
            # The series of textfiles were added above, with their own names.
            if metric.about is TEXTFILE_SERIES:
                continue
            entry: dict[str, Any] = {
                "metric": metric.name,
                "labels": dict(zip(entity.kind.labels, entity.key, strict=True)),
                "source": frame.schema.stream,
            }
            if names := devices.get(device_names.device_key(entity.kind.name, entity.key)):
                entry["device"] = names
            if isinstance(reading, Absent):
                entry["absent"] = reading.label
            else:
                # Integers where the scale allows it: a large counter is not exact as a float.
                numerator, denominator = metric.scale_of(entity.key).as_integer_ratio()
                value = reading * numerator
                entry["value"] = value if denominator == 1 else value / denominator
            entries.append(entry)
    return entries
