"""The command line."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
import pytest
from click.testing import CliRunner
from support.command_line import run, run_process
from support.disk import small_file_system
from support.each import of_each

from railscope.catalog import EVENTS, METRICS, rollups
from railscope.cli import root as railscope
from railscope.settings import CONFIGURATION_VARIABLE
from railscope_collector.access import credentials, tokens_file
from railscope_collector.access.credentials import Credential, Role


def walk(arguments: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
    yield arguments
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            assert member is not None
            yield from walk((*arguments, name), member)


COMMANDS = list(walk((), railscope))
INSTALLED = ("agent once", "agent check", "agent run", "claim list", "collector check", "collector run",
             "collector accept-clock --yes", "bill list", "bill reconcile")  # fmt: skip


@pytest.mark.parametrize("arguments", INSTALLED)
def test_all_commands_of_a_program_read_the_same_settings_file(tmp_path: Path, arguments: str):
    program = "agent" if arguments.startswith(("agent", "claim")) else "collector"
    (tmp_path / f"{program}.toml").write_text("no_such_setting = 1\n")
    named = tmp_path / "named.toml"
    named.write_text("no_other_setting = 1\n")
    assert f"{tmp_path}/{program}.toml" in trouble(tmp_path, *arguments.split())
    assert str(named) in trouble(tmp_path, *arguments.split(), "--config", str(named))


def trouble(installed: Path, *arguments: str) -> str:
    """Report of a command that fails, where settings are installed in a directory."""
    result = CliRunner().invoke(railscope, arguments, env={CONFIGURATION_VARIABLE: str(installed)})
    assert result.exit_code != 0
    return f"{result.output}{result.exception}"


@of_each(COMMANDS, " ".join)
def test_every_command_explains_itself(arguments: tuple[str, ...]):
    outcome = run(*arguments, "-h")
    usage, _, explanation = outcome.stdout.partition("\n\n")
    assert outcome.exit_code == 0
    assert usage.startswith("Usage:")
    assert explanation.strip()
    if "--config" in explanation:
        is_stated = re.search(r"/etc/railscope/|Default: no file", explanation)
        assert is_stated, "the default is stated"


def test_the_environment_goes_before_the_file(tmp_path: Path):
    file = tmp_path / "agent.toml"
    file.write_text('node = "from-the-file"\n')

    def node(*flags: str, **environment: str) -> str:
        options = ("--config", str(file), "--root", str(tmp_path), *flags)
        return (
            run("agent", "check", "--seconds", "0", *options, **environment)
            .stdout.splitlines()[0]
            .split()[-1]
        )

    assert node() == "from-the-file"
    assert node(RAILSCOPE_AGENT_NODE="from-the-environment") == "from-the-environment"


def test_one_reading_of_an_empty_tree(tmp_path: Path):
    outcome = run("agent", "once", "--root", str(tmp_path))
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert 'railscope_source_state{source="host",state="unsupported"} 1' in outcome.stdout
    samples = [line for line in outcome.stdout.splitlines() if not line.startswith("#")]
    assert all(
        line.startswith(
            ("railscope_source_", "railscope_agent_", "railscope_spool_", "railscope_governor_")
        )
        for line in samples
    )


def test_a_check_of_an_empty_tree_finds_nothing_broken(tmp_path: Path):
    outcome = run("agent", "check", "--seconds", "0", "--root", str(tmp_path))
    assert outcome.exit_code == 0
    assert "absent  GPUs:" in outcome.stdout


def test_a_server_is_simulated_and_replayed(tmp_path: Path):
    directory = str(tmp_path / "capture")
    made = run("simulate", "--seconds", "1", "--model", "gb200", "--node", "gpu-7", directory)
    assert made.exit_code == 0, made.stderr
    page = run("agent", "once", "--replay", directory).stdout
    assert page.count("railscope_gpu_power_watts{") == 4


def test_the_catalog_for_programs():
    listed = json.loads(run("catalog", "--format", "json").stdout)
    assert [entry["name"] for entry in listed["metrics"]] == list(METRICS)
    assert [entry["name"] for entry in listed["events"]] == list(EVENTS)
    assert [entry["name"] for entry in listed["rollups"]] == list(rollups())


def test_a_token_comes_with_its_line_for_the_tokens_file():
    lines = run("collector", "token", "gpu-1").stdout.splitlines()
    assert lines[0].startswith("token (for gpu-1 only): ")
    assert "[nodes]" in lines[1]
    assert lines[2].startswith('"gpu-1" = "sha256:')
    role = ("--role", "tenant", "--tenant", "vision")
    of_tenant = run("collector", "token", *role, "--days", "30", "board").stdout
    reported, place, line = of_tenant.splitlines()
    found = tokens_file.parse_credentials(f"{place.partition('section ')[2].rstrip(':')}\n{line}\n")
    ((key, entry),) = found.entries.items()
    assert key.value == credentials.digest_token(reported.rpartition(" ")[2])
    assert entry.credential == Credential("board", Role.TENANT, "vision")
    assert entry.until_ns
    assert 29 < (entry.until_ns / 1e9 - time.time()) / 86_400 <= 30
    for role in (("--role", "tenant"), ("--tenant", "vision")):
        assert "expected both or neither" in run("collector", "token", *role, "board").stderr


def test_a_token_with_a_limit_of_authority():
    _, place, line = run("collector", "token", "--max-authority", "2", "gpu-1").stdout.splitlines()
    found = tokens_file.parse_credentials(f"{place.partition('section ')[2].rstrip(':')}\n{line}\n")
    assert [entry.credential.max_authority for entry in found.entries.values()] == [2]
    wrong = run("collector", "token", "--role", "finance", "--max-authority", "2", "billing")
    assert "--max-authority: expected --role node as well" in wrong.stderr
    assert (
        "4 is not in the range" in run("collector", "token", "--max-authority", "4", "gpu-1").stderr
    )


def test_the_help_has_each_command_in_one_section():
    text = run("--help").stdout
    heads = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads[1:] == [
        "Inspect a running cluster:", "On a node:", "On the collector's server:", "Billing and audit:", "Try it:"
    ]  # fmt: skip
    for name in railscope.list_commands(click.Context(railscope)):
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1


def test_an_address_in_use_has_a_remedy(tmp_path: Path):
    (tmp_path / "agent.toml").write_text(f'state_directory = "{tmp_path}"\n')
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        options = ("--config", str(tmp_path / "agent.toml"), "--listen", address)
        outcome = run("agent", "run", *options)
    assert outcome.exit_code == 2
    assert f"cannot listen on {address}: " in outcome.stderr
    assert "fix: stop the program that listens there (ss -ltnp sport = :" in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "agent record --seconds 0 DISK/x",
        pytest.param("simulate node --seconds 20 DISK/x", marks=pytest.mark.thorough),
        pytest.param("files --to DISK/x", marks=pytest.mark.thorough),
    ],
)
def test_a_command_that_fills_the_disk_names_the_file_in_one_line(tmp_path: Path, arguments: str):
    with small_file_system(tmp_path / "disk", 4) as disk:
        outcome = run_process(*arguments.replace("DISK", str(disk)).split())
    assert (outcome.returncode, outcome.stdout) == (1, "")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: ")
    assert str(disk / "x") in line
    assert "No space left on device" in line


CAPTURE = str(Path(__file__).with_name("captures") / "dgx-a100")


@pytest.mark.parametrize(
    "arguments",
    [("--version",), pytest.param(("agent", "replay", CAPTURE), marks=pytest.mark.thorough)],
)
def test_output_to_a_full_device_is_one_line_and_a_failure(arguments: tuple[str, ...]):
    with Path("/dev/full").open("wb") as full:
        outcome = _write_output(full, arguments)
    assert outcome.returncode == 1
    assert outcome.stderr == (
        "railscope: writing to standard output failed: No space left on device;"
        " fix: write to another file or device\n"
    )


def test_output_whose_reader_has_ended_is_no_message():
    reader, writer = os.pipe()
    os.close(reader)
    outcome = _write_output(writer, ("catalog",))
    os.close(writer)
    assert (outcome.returncode, outcome.stderr) == (1, "")


def _write_output(
    file: IO[bytes] | int, arguments: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "railscope", *arguments]
    return subprocess.run(
        command, stdout=file, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(("unbuffered", "written"), [("1", "now"), ("", "")])
def test_unbuffered_output_stays_unbuffered(unbuffered: str, written: str):
    """As with `python -u`: a service manager reads each text at once, also before a crash."""
    program = (
        "import os; from railscope.standard_output import check_output; check_output();"
        " print('now', end=''); os._exit(0)"
    )
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert outcome.stdout == written
