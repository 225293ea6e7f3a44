"""`railscope simulate-agent`: an agent on a node that is simulated in real time."""

from __future__ import annotations

from pathlib import Path

import click

from agent.cli import config_option, run_agent, settings_flags
from agent.host import Clock, Host
from agent.host.clock import RealClock
from agent.host.recorded import RecordedHost
from agent.sampling.replay_meter import with_memory_measured
from railscope.capture import Capture
from simulator.live import STEP_NS, LiveError, LiveNode, LiveTimeline, read_live_node
from simulator.run import about


class SimulatedHost(RecordedHost):
    """Host with the simulated node's results at the present offset; it never restarts."""

    def __init__(self, node: LiveNode, clock: Clock) -> None:
        def offset_ns() -> int:
            return max(clock.now().boot_ns - node.started_boot_ns, 0)

        capture = Capture(about(node.spec, 0), ())
        super().__init__(capture, clock, offset_ns, LiveTimeline(node, offset_ns()))

    @property
    def grain_ns(self) -> int:
        """Time step of the simulation."""
        return STEP_NS


@click.command()
@config_option
@settings_flags
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def simulate_agent(config: Path | None, file: Path, **flags: str | None) -> None:
    """Run an agent on the simulated node that FILE describes, until it is stopped."""
    run_agent(lambda: _host(file), config, flags)


def _host(file: Path) -> tuple[Host, str]:
    try:
        host = with_memory_measured(lambda: SimulatedHost(read_live_node(file), RealClock()))
    except LiveError as error:
        raise click.ClickException(str(error)) from error
    return host, host.node
