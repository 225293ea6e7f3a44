"""The command `railscope health`: the verdict of this node's agent, for schedulers and monitoring systems.

A prolog waits for it: it imports neither the agent nor an HTTP client. Whatever fails, the verdict is `unknown`, with the
exit status for it: exit statuses of other errors would be read as failed devices.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click
import msgspec

from railscope import RailscopeError, health_verdict as verdicts, settings
from railscope_agent.commands.agent_client import agent_socket, ask_agent

MAX_ANSWER_BYTES = 1 << 20
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,255}")
_SLURM_GPUS = re.compile(r"\d{1,4}(?:,\d{1,4}){0,127}")
_UNKNOWN_STATUS = 3


class _HealthQueryError(RailscopeError):
    """The agent did not answer, or not with a verdict; the message states the reason."""


class _HealthCommand(click.Command):
    """Command whose usage errors have the exit status for `unknown`, which no receiver acts on."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            error.show()
            raise click.exceptions.Exit(_UNKNOWN_STATUS) from error


@click.command(cls=_HealthCommand)
@click.option(
    "--job",
    default="",
    help="Judge only the GPUs that the claims of this job hold, and the NICs of their rails: 123, slurm:123, kubernetes:research/train.",
)
@click.option(
    "--from-slurm",
    is_flag=True,
    help="In a prolog: judge the GPUs of SLURM_JOB_GPUS and the NICs of their rails; a job without GPUs is healthy.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(verdicts.FORMATS),
    default=verdicts.FORMATS[0],
    show_default=True,
    help="Output format; nagios for Nagios, Icinga and Naemon, npd for node-problem-detector.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Settings file of the agent (TOML). Default: {settings.CONFIGURATION}/agent.toml, if it exists.",
)
@click.option("--socket", "path", help="Socket of the agent. Default: as in its settings.")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0.01, max=60),
    default=2.0,
    show_default=True,
    help="Maximum time of the command, until it has the answer of the agent.",
)
def health(*, job: str, from_slurm: bool, form: str, **agent: Any) -> None:
    """Report whether the GPUs and NICs of this node, or those of a job, are healthy, with the recommended action.

    The running agent answers from its latest readings; only root may query it. No device is read.

    Exit status of text, json and nagios: 0 healthy, 1 degraded, 2 failed, 3 unknown. Of npd: 0 healthy or
    degraded, 1 failed, 2 unknown. Without an answer of the agent the verdict is unknown.
    """
    try:
        verdict = _ask(job, os.environ if from_slurm else None, **agent)
    except (RailscopeError, OSError) as error:
        verdict = verdicts.unknown_verdict(str(error), job)
    except Exception as fault:  # noqa: BLE001 - a defect must not be read as a failed device
        verdict = verdicts.unknown_verdict(f"{type(fault).__name__}: {fault}", job)
    text, status = verdicts.format_verdict(verdict, form)
    click.echo(text)
    sys.exit(status)


def _ask(
    job: str,
    slurm: Mapping[str, str] | None,
    *,
    config: Path | None,
    path: str | None,
    timeout_seconds: float,
) -> verdicts.NodeVerdict:
    # Before the settings are read: the timeout is that of the whole command.
    started = time.monotonic()
    parameters: list[tuple[str, str]] = []
    if slurm is not None:
        job, devices = read_slurm_job(slurm)
        if not devices:
            return verdicts.node_verdict((), (), job)
        parameters += (("gpu", device) for device in devices)
    if job:
        if not _JOB.fullmatch(job):
            message = f"invalid job {job[:40]!r}: expected an ID such as 123 or slurm:123"
            raise _HealthQueryError(message)
        parameters.insert(0, ("job", job))
    target = (
        f"{verdicts.HEALTH_PATH}?{urlencode(parameters)}" if parameters else verdicts.HEALTH_PATH
    )
    return query_agent(agent_socket(config, path), target, timeout_seconds, started)


def read_slurm_job(environment: Mapping[str, str]) -> tuple[str, Sequence[str]]:
    """Return job ID and device files from the environment of a prolog. Raises RailscopeError."""
    job, gpus = (environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_JOB_GPUS"))
    if not re.fullmatch(r"\d{1,20}", job, re.ASCII):
        message = "missing SLURM_JOB_ID: expected a job ID; fix: use --from-slurm only in a prolog"
        raise _HealthQueryError(message)
    if gpus and not _SLURM_GPUS.fullmatch(gpus):
        message = f"invalid SLURM_JOB_GPUS {gpus[:40]!r}: expected numbers separated by commas"
        raise _HealthQueryError(message)
    return f"slurm:{job}", [f"/dev/nvidia{number}" for number in gpus.split(",") if number]


def query_agent(path: str, target: str, seconds: float, started: float) -> verdicts.NodeVerdict:
    """Return the verdict that an agent answers on its socket, in the time since the start. Raises RailscopeError."""
    try:
        answer = ask_agent(path, ("GET", target), b"", started + seconds, MAX_ANSWER_BYTES)
    except TimeoutError as error:
        message = f"no answer from the agent within {seconds:g} s"
        raise _HealthQueryError(message) from error
    except PermissionError as error:
        message = f"permission denied by the agent's socket {path}; fix: run as root"
        raise _HealthQueryError(message) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        message = (
            f"agent not running; fix: systemctl start railscope-agent; {path}: {error.strerror}"
        )
        raise _HealthQueryError(message) from error
    except OSError as error:
        message = f"no response at {path}: {error.strerror or error}"
        raise _HealthQueryError(message) from error
    if answer.status != HTTPStatus.OK:
        message = f"answer of the agent: {answer.line or 'none'}"
        raise _HealthQueryError(message)
    try:
        return msgspec.json.decode(answer.body, type=verdicts.NodeVerdict)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"invalid answer of the agent: {error}"
        raise _HealthQueryError(message) from error
