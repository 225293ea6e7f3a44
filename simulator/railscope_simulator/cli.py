"""Commands of the simulator.

`railscope simulate` records a simulated node or a cluster as captures. `railscope simulate-agent` runs an agent on a node that is simulated in real
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from railscope import __version__, convert_errors, extras, listen_address, log_output, settings
from railscope.capture import Capture, write_capture
from railscope.durable_files import write_atomically
from railscope_agent.commands import config_option, load_settings
from railscope_agent.commands.replay import GC_ALLOCATIONS
from railscope_agent.commands.run import (
    REPLAY_DEFAULTS,
    collector_flags,
    run_agent,
    settings_flags,
)
from railscope_agent.config import PREFIX, AgentSettings
from railscope_agent.host import Clock, Host, live_clock, recorded_host
from railscope_agent.sampling.probe_result import format_count
from railscope_agent.shipping.collector_link import CollectorLinkError
from railscope_simulator import (
    SCENARIOS,
    NodeSpec,
    capture_metadata,
    find_model,
    moments,
)
from railscope_simulator.cluster.captures import write_cluster
from railscope_simulator.cluster.scenario import ScenarioError, read_scenario
from railscope_simulator.cluster.shipped_nodes import ShippedCluster, ShippingOutcome
from railscope_simulator.demo.faults import begin_node
from railscope_simulator.live import (
    STEP_NS,
    LiveNode,
    LiveNodeFileError,
    LiveSwitches,
    LiveTimeline,
    read_live_node,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _choice(name: str, default: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(name, default=default, show_default=True, help=text)


class _DefaultGroup(click.Group):
    """Group with a default command, `node`: `railscope simulate DIRECTORY`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the name of the default command."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["node", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultGroup)
def simulate() -> None:
    """Simulate GPU nodes; without a command, one node."""


@simulate.command()
@click.argument("scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--collector",
    "collector_urls",
    multiple=True,
    help="Send the frames of all nodes to the collector with this base URL in place of writing captures; repeatable, "
    "for several collectors.",
)
@click.option(
    "--speed",
    type=click.Choice(("real-time", "maximum")),
    default="real-time",
    show_default=True,
    help="Speed of sending: by the clock, from now on; or the past, until now, as fast as the collector acknowledges.",
)
@click.option(
    "--listen",
    default="",
    help="Serve the metrics of the nodes at HOST:PORT and the ports that follow, while frames are sent.",
)
@click.option(
    "--switches",
    default="",
    help="Serve the switches of the fabric by gNMI at HOST:PORT and the ports that follow, while frames are sent in real time.",
)
@config_option
def cluster(
    scenario: Path,
    directory: Path,
    collector_urls: tuple[str, ...],
    config: Path | None,
    **options: str,
) -> None:
    """Write captures of a cluster to DIRECTORY, or send its frames to a collector.

    SCENARIO is a TOML file with the cluster's size, jobs and faults. DIRECTORY has a subdirectory for each node, with
    its capture or the state of its agent, and the ground truth of the faults in truth.jsonl.

    The settings are those of the nodes' agents. {node} in collector.token, token_file, certificate_file and key_file
    is replaced by the name of the node. Without any of these, each node gets a token, and tokens.toml in
    DIRECTORY is the collector's file of tokens. With --listen, targets.json has the addresses for Prometheus; with
    --switches, switches.toml is the collector's switches file.

    Exit status 1 if the collector did not acknowledge all frames.
    """
    outcome = None
    gc.set_threshold(GC_ALLOCATIONS)
    with convert_errors((ScenarioError, CollectorLinkError), click.ClickException):
        try:
            plan = read_scenario(scenario)
            if collector_urls:
                flags = collector_flags(collector_urls)
                agents = settings.load(
                    AgentSettings,
                    file=config or settings.default_file("agent"),
                    prefix=PREFIX,
                    flags=flags,
                )
                is_real_time = options["speed"] == "real-time"
                if options["switches"]:
                    _check_switches(is_present=is_real_time)
                outcome = _ship(
                    ShippedCluster(
                        plan,
                        directory,
                        agents,
                        is_real_time,
                        options["listen"],
                        options["switches"],
                    )
                )
            else:
                _check_options_of_captures()
                write_cluster(plan, directory)
        except OSError as error:
            raise click.ClickException(_problem(error)) from error
    nodes = format_count(plan.topology.nodes, "node")
    click.echo(
        f"{directory}: {plan.seconds} s of {nodes}, {format_count(len(plan.faults), 'fault')}"
    )
    if outcome:
        click.echo(
            f"{format_count(outcome.shipped, 'frame')} acknowledged, {outcome.dropped} dropped, "
            f"{format_count(outcome.waiting, 'envelope')} waiting"
        )
        if outcome.dropped or outcome.waiting:
            raise click.exceptions.Exit(1)


def _check_options_of_captures() -> None:
    """Raise UsageError for options that have no effect on captures."""
    context = click.get_current_context()
    for name in ("speed", "listen", "switches", "config"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            message = (
                f"--{name} without --collector: expected both; fix: add --collector URL to send "
                f"frames, or omit --{name} to write captures"
            )
            raise click.UsageError(message)


def _check_switches(*, is_present: bool = True) -> None:
    """Raise UsageError or ClickException if switches cannot be served."""
    if not is_present:
        message = "--switches with --speed maximum: expected real-time, as a collector polls switches at the present"
        raise click.UsageError(message)
    if importlib.util.find_spec("grpc") is None:
        message = f"missing grpcio, which serving switches requires; fix: {extras.install_command('switches')}"
        raise click.ClickException(message)


def _ship(shipped: ShippedCluster) -> ShippingOutcome:
    """Send the frames of a cluster until its end, or until a signal."""

    async def run() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # A cancellation, not an end: the truth is written, and the outcome is shown.
            loop.add_signal_handler(number, cast("asyncio.Task[None]", task).cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await shipped.run()

    log_output.configure_logs("warning")
    nodes = format_count(len(shipped.nodes), "node")
    click.echo(
        f"sending frames of {nodes} to {' '.join(shipped.settings.collector.all_urls)}", err=True
    )
    asyncio.run(run())
    return shipped.outcome


@simulate.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--listen",
    default="127.0.0.1:9339",
    show_default=True,
    help="Address HOST:PORT of the first switch; the others have the ports that follow. Port 0: any.",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the collector's switches file here.  [default: standard output]",
)
def switches(files: tuple[Path, ...], listen: str, file: Path | None) -> None:
    """Serve the leaf switches of live nodes as SONiC by gNMI, without TLS, until stopped.

    FILE describes a live node, as for railscope simulate-agent. The switches of a simulated cluster are served by
    railscope simulate cluster --switches.
    """
    _check_switches()
    from railscope_simulator import gnmi_server  # noqa: PLC0415 - an extra: only switches need gRPC

    clock = live_clock.LiveClock()
    with convert_errors(
        (LiveNodeFileError, settings.SettingsError, OSError, ValueError), click.ClickException
    ):
        host, port = listen_address.split_address(listen)
        nodes = [read_live_node(path) for path in files]
        found = LiveSwitches(nodes, lambda: clock.now().boot_ns).answers()
        asyncio.run(_serve(gnmi_server.serve_switches(found, host, port), len(found), file))


async def _serve(server: AbstractAsyncContextManager[str], count: int, file: Path | None) -> None:
    """Serve switches until a signal."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with server as text:
        if file:
            write_atomically(file, text.encode())
        else:
            click.echo(text)
        click.echo(f"switches served: {count}", err=True)
        await stopped.wait()


def _problem(error: Exception) -> str:
    """Return the message of an error; that of a file names it."""
    if isinstance(error, OSError):
        return f"cannot write {error.filename}: {error.strerror}"
    return str(error)


@simulate.command()
@_choice("--scenario", "training", "Scenario to simulate.")
@_choice("--model", "h100", "GPU model: v100, t4, a100, l40s, h100, h200, b200, gb200.")
@_choice("--mode", "whole", "GPU sharing mode: whole, mig, mps, time_slicing, vgpu, passthrough.")
@_choice("--nic", "cx7", "NIC model: cx7, bnxt, irdma, mixed.")
@_choice("--scheduler", "none", "Scheduler that assigns the GPUs: none, kubernetes, slurm.")
@click.option(
    "--unclaimed", is_flag=True, help="Include one process that uses a GPU without a claim."
)
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Duration of the capture in seconds.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="Seconds between two samples; 0.1 shows bursts.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random numbers.")
@_choice("--node", "gpu-node-0", "Name of the node.")
@click.argument("directory", type=click.Path(path_type=Path))
def node(*, model: str, seconds: int, step_seconds: float, directory: Path, **choices: Any) -> None:
    """Write a capture of a simulated GPU node, with 8 GPUs (4 with gb200) and a rail each, to DIRECTORY."""
    try:
        device_model = find_model(model)
        spec = NodeSpec(gpus=device_model.per_node, model=device_model.name, **choices)
        write_capture(
            directory, capture_metadata(spec, seconds), moments(spec, seconds, step_seconds)
        )
    except (ValueError, OSError) as error:
        raise click.ClickException(_problem(error)) from error
    click.echo(f"{directory}: {seconds} s of {spec.node}, {SCENARIOS[spec.scenario]}")


class SimulatedHost(recorded_host.RecordedHost):
    """Host with the simulated node's results at the present offset; it never restarts."""

    def __init__(self, node: LiveNode, clock: Clock) -> None:
        def offset_ns() -> int:
            return max(clock.now().boot_ns - node.started_boot_ns, 0)

        capture = Capture(capture_metadata(node.spec, 0), ())
        super().__init__(capture, clock, offset_ns, LiveTimeline(node, offset_ns()))

    @property
    def statistics_period_ns(self) -> int:
        """Time step of the simulation."""
        return STEP_NS


SIMULATED_DEFAULTS = {
    **REPLAY_DEFAULTS,
    # On a busy machine the simulation may answer late; that must not count as an unresponsive GPU.
    "read_timeout_seconds": 30,
}
"""Settings of an agent on a simulated node that differ from those of other agents by default."""


@click.command()
@config_option
@settings_flags
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def simulate_agent(config: Path | None, file: Path | None, **flags: Any) -> None:
    """Run an agent on the simulated node that FILE describes, until it is stopped.

    Without FILE, the node begins now, and each start is a boot of it. If the number at the end of its name is 0, 1, 2 or
    3, it has faults of the demo; the first one begins after 40 s on node 0. A name without a number has no faults.

    By default, the budget of the agent is unlimited, and a read may take 30 s.
    """

    def read_node() -> LiveNode:
        if file:
            return read_live_node(file)
        return begin_node(
            load_settings(config, {"node": flags["node"]}).node or os.uname().nodename
        )

    run_agent(
        lambda: _host(read_node), config, flags, f"{__version__}+simulated", SIMULATED_DEFAULTS
    )


def _host(read_node: Callable[[], LiveNode]) -> tuple[Host, str]:
    with convert_errors(LiveNodeFileError, click.ClickException):
        host = SimulatedHost(read_node(), live_clock.LiveClock())
    return host, host.node
