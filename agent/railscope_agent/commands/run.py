"""`railscope agent run`: an agent that samples, serves metrics and ships frames until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from railscope import __version__, convert_errors, log_output, service, timestamps
from railscope.capture import CaptureError, read_capture
from railscope_agent.commands import config_option, load_settings, replay_option, root_option
from railscope_agent.host import Host, live_clock, live_host, recorded_host
from railscope_agent.service import Agent

REPLAY_DEFAULTS = {
    # Answering from a capture, or simulating a node, costs more than reading one.
    "budget.cpu_ratio": 0,
    "budget.memory_bytes": 0,
}
"""Settings of an agent that reads no live node that differ from those of other agents by default."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


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


@click.command()
@config_option
@root_option
@replay_option
@settings_flags
def run(config: Path | None, root: Path, replay: Path | None, **flags: Any) -> None:
    """Sample, serve /metrics and ship frames until stopped."""
    defaults = REPLAY_DEFAULTS if replay else None
    run_agent(lambda: running_host(root, replay), config, flags, defaults=defaults)


def run_agent(
    make_host: Callable[[], tuple[Host, str]],
    config: Path | None,
    flags: dict[str, Any],
    version: str = __version__,
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Run the agent on a host until it is stopped; `make_host` returns the host and its node name.

    `defaults` replace the defaults of settings, by dotted key.
    """
    flags |= collector_flags(flags.pop("collector_urls"))
    read = partial(load_settings, config, flags, defaults)
    log_output.configure_logs(read().log_level)
    host, node = make_host()

    def load() -> service.Serve:
        current = read()

        def build() -> Agent:
            return Agent(current, host, current.node or node, version=version)

        # Without a run: settings that are invalid on this node are reported while the agent with the former
        # ones still runs.
        build()

        async def serve() -> None:
            log_output.configure_logs(current.log_level)
            await build().run()

        return serve

    asyncio.run(service.supervise(load))


def running_host(root: Path, replay: Path | None) -> tuple[Host, str]:
    """Return the host to read continuously, and its name if a capture contains it."""
    if replay is None:
        return live_host.LiveHost(root), ""
    with convert_errors(CaptureError, click.ClickException):
        capture = read_capture(replay)
    clock = live_clock.LiveClock()
    started_ns, length_ns = clock.now().boot_ns, max(capture.about.duration_ns, 1)

    def offset_ns() -> int:
        # The last moment is at the end of the capture, and lasts as long as the others.
        return (clock.now().boot_ns - started_ns) % (length_ns + timestamps.SECOND_NS)

    return recorded_host.RecordedHost(capture, clock, offset_ns), capture.about.node
