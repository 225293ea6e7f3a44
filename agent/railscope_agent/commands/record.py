"""`railscope agent record`: a node recorded into a capture."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from railscope import log_output, timestamps
from railscope.capture import Capture, CaptureMetadata
from railscope.frame import FrameOrigin
from railscope_agent.commands import config_option, load_settings, root_option
from railscope_agent.config import AgentSettings, BurstSettings
from railscope_agent.host import live_host
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.sampler import Sampler
from railscope_agent.service import node_name


@click.command()
@config_option
@root_option
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
    help="Keep only harmless values; replace names, addresses and serial numbers.",
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
        bursts=BurstSettings(enabled=bursts), textfile=load_settings(config).textfile
    )
    capture = asyncio.run(_record(live_host.LiveHost(root), seconds, read, redact=redact))
    try:
        capture.write(directory)
    except OSError as error:
        message = f"cannot write {error.filename}: {error.strerror}"
        raise click.ClickException(message) from error
    click.echo(f"{directory}: {len(capture.moments)} moments of {capture.about.node}")


async def _record(
    real: live_host.LiveHost, seconds: float, read: AgentSettings, *, redact: bool
) -> Capture:
    node = node_name(AgentSettings(), real)
    redactor = Redactor([node]) if redact else None
    host = RecordingHost(real, redactor)
    started = host.clock.now()
    sampler = Sampler(
        host, FrameOrigin(node, "record", host.boot_id), machine_sources(read), lambda _frame: None
    )
    # Every source is read before the timers start, so that the first moment contains the answers to all
    # queries.
    await sampler.once()
    sampling = asyncio.ensure_future(sampler.run())
    await host.clock.sleep_until(started.boot_ns + round(seconds * timestamps.SECOND_NS))
    sampling.cancel()
    # Until the reads in progress have ended: their answers are part of the capture.
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
