"""The command `railscope agent` and its subcommands."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from railscope import (
    cli,
    device_names,
    exposition,
    log_output,
    service,
    settings,
    textfile_series,
    timestamps,
    wire,
)
from railscope.capture import DAMAGED_STATUS, Capture, CaptureError, CaptureMetadata, read_capture
from railscope.catalog.declare import MetricDetail
from railscope.catalog.entities import TEXTFILE_SERIES
from railscope.frame import FrameOrigin
from railscope.reading import Absent
from railscope_agent.config import PREFIX, AgentSettings, BurstSettings
from railscope_agent.host import Host, live_clock, live_host, recorded_host
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.meter import measure_memory
from railscope_agent.sampling.sampler import Sampler
from railscope_agent.service import Agent, node_name

if TYPE_CHECKING:
    from railscope_agent.commands.capture_walk import CaptureWalk

_Read: TypeAlias = Callable[[Agent], Coroutine[Any, Any, None]]

_Command = TypeVar("_Command", bound=Callable[..., Any])

config_option = click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Settings file (TOML). Default: {settings.CONFIGURATION}/agent.toml, if it exists.",
)
_root = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Read /proc, /sys and /dev below this directory.",
)
_replay = click.option(
    "--replay",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Replay a capture instead of reading this node.",
)


def settings_flags(command: _Command) -> _Command:
    """Add options for single settings to a command that runs the agent."""
    for option in (
        click.option("--state-directory", help="Directory of the spool and other state."),
        click.option(
            "--collector",
            "collector_urls",
            multiple=True,
            help="Base URL of the collector that frames are shipped to; repeatable, for one of several.",
        ),
        click.option("--listen", help="Address and port of the metrics endpoint."),
        click.option("--node", help="Name of this node."),
    ):
        command = option(command)
    return command


def collector_flags(urls: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the option --collector, in place of those of a file."""
    if not urls:
        return {}
    is_one = len(urls) == 1
    return {"collector.url": urls[0] if is_one else "", "collector.urls": [] if is_one else [*urls]}


@click.group()
def agent() -> None:
    """Read this node: GPUs, RDMA ports, NICs, PCIe, host, kernel log."""


@agent.command()
@config_option
@_root
@_replay
@settings_flags
def run(config: Path | None, root: Path, replay: Path | None, **flags: Any) -> None:
    """Sample, serve /metrics and ship frames until stopped."""
    run_agent(lambda: _host(root, replay), config, flags)


def run_agent(
    make_host: Callable[[], tuple[Host, str]], config: Path | None, flags: dict[str, Any]
) -> None:
    """Run the agent on a host until it is stopped; `make_host` returns the host and its node name."""
    flags |= collector_flags(flags.pop("collector_urls"))
    read = _loader(config, flags)
    log_output.configure_logs(read().log_level)
    host, node = make_host()

    def load() -> service.Serve:
        current = read()

        def build() -> Agent:
            return Agent(current, host, current.node or node)

        build()

        async def serve() -> None:
            log_output.configure_logs(current.log_level)
            await build().run()

        return serve

    asyncio.run(service.supervise(load))


@agent.command()
@config_option
@_root
@_replay
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


@agent.command()
@config_option
@_root
@_replay
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
    from railscope_agent.commands.check import check as run_check, read_twice  # noqa: PLC0415 - not in an agent that runs

    node_agent, read = _agent_once(config, root, replay, {})
    if replay is None and seconds:
        read = partial(read_twice, seconds=seconds)
    live = replay is None and root == Path("/")
    sys.exit(0 if asyncio.run(run_check(node_agent, click.echo, read, live=live)) else 1)


@agent.command()
@config_option
@_root
@_replay
@cli.format_option("text", "json")
def topology(config: Path | None, root: Path, replay: Path | None, form: str) -> None:
    """Show the PCI tree, the distances between GPUs and NICs, and the rails of the NICs.

    A capture is shown at its end, as by `once`. Exit status 1 if the section [topology] of the settings
    does not match this node.
    """
    from railscope_agent.topology import topology_report  # noqa: PLC0415 - only this command needs it

    loaded = _loader(config, {})()
    shown, fits = topology_report.show_topology(_host_at_end(root, replay), loaded.topology, form)
    click.echo(shown, nl=False)
    sys.exit(0 if fits else 1)


@agent.command()
@config_option
@_root
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Duration of the recording in seconds.",
)
@click.option(
    "--redact",
    is_flag=True,
    help="Replace everything except harmless values: names, addresses, serial numbers.",
)
@click.option(
    "--bursts", is_flag=True, help="Also record the data of burst sampling: ten times as much data."
)
@click.argument("directory", type=click.Path(path_type=Path))
def record(  # noqa: PLR0913, PLR0917 - flags
    config: Path | None,
    root: Path,
    seconds: float,
    redact: bool,  # noqa: FBT001 - flag
    bursts: bool,  # noqa: FBT001 - flag
    directory: Path,
) -> None:
    """Record this node into DIRECTORY, to be replayed with --replay.

    Of the settings, only those of textfiles are used: a replay with the same ones has the files as well.
    """
    log_output.configure_logs("warning")
    if directory.exists() and any(directory.iterdir()):
        message = (
            f"cannot record into {directory}: the directory is not empty; fix: "
            "specify a new directory"
        )
        raise click.ClickException(message)
    read = AgentSettings(
        bursts=BurstSettings(enabled=bursts), textfile=_loader(config, {})().textfile
    )
    capture = asyncio.run(_record(live_host.LiveHost(root), seconds, read, redact=redact))
    capture.write(directory)
    click.echo(f"{directory}: {len(capture.moments)} moments of {capture.about.node}")


@agent.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings file (TOML) of the agents. Default: no file.",
)
@click.option(
    "--source", "sources", multiple=True, metavar="NAME", help="Read only this source; repeatable."
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Read and write only columns of this metric; repeatable. Events are written as without it.",
)
@click.argument(
    "captures",
    nargs=-1,
    required=True,
    metavar="CAPTURE...",
    type=click.Path(file_okay=False, path_type=Path),
)
def replay(
    config: Path | None,
    sources: tuple[str, ...],
    metrics: tuple[str, ...],
    captures: tuple[Path, ...],
) -> None:
    """Write the frames of captures to standard output, in the wire format.

    Each record is the length of an envelope (4 bytes, little-endian) and the envelope, as an agent ships it.
    A schema is in the first envelope of its capture that uses it.

    Sources with a period of at most 5 s are read at every recorded moment; those with a longer one, and those of
    claims, sharing and health of GPUs, at their period. A source that uses the results of others needs them as well.

    Exit status 3 if a capture is damaged; the others, and its moments before the damage, are written.
    """
    from railscope_agent.commands.replay import replay_captures  # noqa: PLC0415 - not in an agent that runs

    log_output.configure_logs("error")
    loaded = settings.load(AgentSettings, file=config, prefix=PREFIX)
    is_complete = replay_captures(captures, loaded, sources, metrics, sys.stdout.buffer)
    sys.exit(0 if is_complete else DAMAGED_STATUS)


@agent.command(name="sample-config")
def sample_config() -> None:
    """Print a commented settings file with every setting at its default."""
    click.echo(settings.sample(AgentSettings, "Settings of the Railscope agent."), nl=False)


def _loader(config: Path | None, flags: dict[str, Any]) -> Callable[[], AgentSettings]:
    file = config or settings.default_file("agent")
    return lambda: settings.load(AgentSettings, file=file, prefix=PREFIX, flags=flags)


def _host(root: Path, replay: Path | None) -> tuple[Host, str]:
    """Return the host to read continuously, and its name if a capture contains it."""
    if replay is None:
        return live_host.LiveHost(root), ""
    clock = live_clock.LiveClock()
    started_ns = clock.now().boot_ns

    def recorded() -> recorded_host.RecordedHost:
        capture = _capture(replay)
        length_ns = max(capture.about.duration_ns, 1)

        def offset_ns() -> int:
            # The last moment is at the end of the capture, and lasts as long as the others.
            return (clock.now().boot_ns - started_ns) % (length_ns + timestamps.SECOND_NS)

        return recorded_host.RecordedHost(capture, clock, offset_ns)

    host = measure_memory(recorded)
    return host, host.node


def _agent_once(
    config: Path | None, root: Path, replay: Path | None, flags: dict[str, str | None]
) -> tuple[Agent, _Read]:
    """Return an agent that reads a node or a capture once, and the function that reads it."""
    loaded = _loader(config, flags)()
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
    from railscope_agent.commands.capture_walk import CaptureWalk  # noqa: PLC0415 - not in an agent that runs

    return CaptureWalk(_capture(replay))


def _capture(directory: Path) -> Capture:
    try:
        return read_capture(directory)
    except CaptureError as error:
        raise click.ClickException(str(error)) from error


async def _record(
    real: live_host.LiveHost, seconds: float, read: AgentSettings, *, redact: bool
) -> Capture:
    from railscope_agent.host.recording_host import RecordingHost  # noqa: PLC0415 - not in an agent that runs
    from railscope_agent.host.redactor import Redactor  # noqa: PLC0415 - as above

    node = node_name(AgentSettings(), real)
    redactor = Redactor([node]) if redact else None
    host = RecordingHost(real, redactor)
    started = host.clock.now()
    sampler = Sampler(
        host, FrameOrigin(node, "record", host.boot_id), machine_sources(read), lambda _frame: None
    )
    await sampler.once()
    sampling = asyncio.ensure_future(sampler.run())
    await host.clock.sleep_until(started.boot_ns + round(seconds * timestamps.SECOND_NS))
    sampling.cancel()
    await asyncio.wait({sampling})
    hide = redactor.redact_text if redactor else str
    about = CaptureMetadata(
        node=hide(node),
        boot_id=hide(host.boot_id),
        started_wall_ns=started.wall_ns,
        started_boot_ns=started.boot_ns,
        duration_ns=host.clock.now().boot_ns - started.boot_ns,
        origin="recorded",
        redacted=redact,
    )
    return Capture(about, tuple(host.moments))


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
                numerator, denominator = metric.scale_of(entity.key).as_integer_ratio()
                value = reading * numerator
                entry["value"] = value if denominator == 1 else value / denominator
            entries.append(entry)
    return entries
