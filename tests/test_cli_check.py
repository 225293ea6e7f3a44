"""Settings that cannot work are rejected at the start, and `collector check` names them all."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.command_line import refusal, run

from railscope.service import lock_state_directory
from railscope.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('listen = "127.0.0.1:99999"', "expected HOST:PORT with a port from 0 to 65535"),
        ('listen = "9470"', "expected HOST:PORT"),
        ('[ledger]\nurl = "mysql://me:hunter2@db/ledger"', "ledger.url: invalid ledger URL mysql"),
        ('[ledger]\nurl = "oracle://db"', "expected sqlite:////PATH or postgresql://"),
        (
            'view_refresh_seconds = "soon"',
            "collector.toml: 'soon': expected a finite number",
        ),
        (
            "[limits]\nframes_per_batch = 0",
            "[limits]: 0: expected an integer, at least 1",
        ),
        ('[billing]\nseller_file = "/absent/seller.toml"', "/absent/seller.toml"),
        ('[influx]\ntoken_file = "/absent/token"', "/absent/token"),
        ('[remote_write]\nurl = "localhost:9090"', "invalid remote_write.url 'localhost:9090'"),
        ('[remote_write]\nurl = "http://me:hunter2@h/"', "without user and password"),
        ('[remote_write]\nurl = "http://h"\ntoken_file = "/absent/token"', "/absent/token"),
        (
            '[remote_write]\nurl = "http://h"\nca_file = "/absent/ca"',
            "remote_write.ca_file '/absent/ca'",
        ),
        ('[remote_write]\nurl = "http://h"\nheaders = { Host = "x" }', "remote_write.headers"),
        ('[remote_write]\nurl = "http://h"\nlabels = { "a-b" = "x" }', "remote_write.labels"),
        ('[remote_write]\nformat = "json"', "one of remote_write, victoriametrics"),
        ("[slurm]\nresume = true", "expected slurm.drain = true"),
        (
            "[slurm]\ndrain = true\n[diagnosis]\nenabled = false",
            "expected diagnosis.enabled = true",
        ),
    ],
)
def test_a_collector_that_cannot_work_does_not_start(tmp_path: Path, text: str, expected: str):
    (tmp_path / "tokens.toml").write_text("[nodes]\n")
    file = tmp_path / "collector.toml"
    paths = {
        "STATE_DIRECTORY": str(tmp_path / "state"),
        "TOKENS_FILE": str(tmp_path / "tokens.toml"),
    }
    file.write_text(text)
    environment = {f"RAILSCOPE_COLLECTOR_{name}": value for name, value in paths.items()}
    line = refusal(run("collector", "run", "--config", str(file), **environment))
    assert expected in line
    assert "hunter2" not in line
    assert not (tmp_path / "state").exists(), "nothing is half-made"


@pytest.mark.parametrize("text", ["[budget]\ncpu_ratio = 5", 'listen = "0.0.0.0:99999"'])
def test_an_agent_that_cannot_work_does_not_start(tmp_path: Path, text: str):
    file = tmp_path / "agent.toml"
    file.write_text(text)
    line = refusal(run("agent", "run", "--config", str(file), "--root", str(tmp_path)))
    assert "expected" in line


def checked(directory: Path, text: str, **environment: str) -> tuple[int, dict[str, str]]:
    """Exit status and lines of `collector check`, by what each is about."""
    file = directory / "collector.toml"
    file.write_text(text)
    outcome = run("collector", "check", "--config", str(file), **environment)
    assert not outcome.stderr, outcome.stderr
    _, *lines = outcome.stdout.splitlines()
    return outcome.exit_code, {line[8:].partition(": ")[0]: line for line in lines}


def test_check_passes_and_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "tokens.toml").write_text(f"[operators]\nanna = 'sha256:{'0' * 64}'\n")
    (tmp_path / "claims.csv").write_text("tenant,holds,from,to\nvision,n1,2026-01-01T00:00:00Z,\n")
    before = sorted(tmp_path.iterdir())
    status, lines = checked(
        tmp_path,
        f'listen = "127.0.0.1:0"\nstate_directory = "{tmp_path}/state"\n'
        f'tokens_file = "{tmp_path}/tokens.toml"\nclaims_file = "{tmp_path}/claims.csv"\n',
    )
    assert status == 0, lines
    assert {line[:8] for line in lines.values()} == {"ok      "}
    assert "is valid" in lines["claims_file"]
    assert "will be created" in lines["ledger"]
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "collector.toml"])


def test_check_warns_about_a_trial(tmp_path: Path):
    (tmp_path / "tokens.toml").write_text("[nodes]\n")
    given = (
        f'listen = "127.0.0.1:0"\nstate_directory = "{tmp_path}/state"\n'
        f'tokens_file = "{tmp_path}/tokens.toml"\ntrial_token_file = "{tmp_path}/token"\n'
    )
    (tmp_path / "token").write_text("0123456789abcdef" * 2)
    status, lines = checked(tmp_path, given)
    assert status == 0
    assert lines["trial_token_file"].startswith("warning trial_token_file: Trial: all agents share")
    (tmp_path / "token").write_text("short")
    status, lines = checked(tmp_path, given)
    assert status == 1
    assert lines["trial_token_file"].startswith("BROKEN  trial_token_file: invalid")


def test_check_names_everything_that_is_wrong_at_once(tmp_path: Path):
    (tmp_path / "tokens.toml").write_text('[nodes]\nn1 = "short"\n')
    (tmp_path / "claims.csv").write_text("tenant,holds,from,to\nvision,n1,yesterday,\n")
    (tmp_path / "seller.toml").write_text("provider = 3\n")
    (tmp_path / "ledger.sqlite").write_bytes(b"this is not a database, whatever its name says")
    (tmp_path / "audit.key").write_text("no key\n")
    status, lines = checked(
        tmp_path,
        f'listen = "192.0.2.1:0"\nstate_directory = "{tmp_path}"\n'
        f'tokens_file = "{tmp_path}/tokens.toml"\nclaims_file = "{tmp_path}/claims.csv"\n'
        f'calendar_file = "{tmp_path}/absent.toml"\n'
        f'[billing]\nseller_file = "{tmp_path}/seller.toml"\n'
        f'[tls]\ncertificate_file = "{tmp_path}/absent.pem"\n'
        '[influx]\nurl = "http://127.0.0.1:9"\n'
        '[remote_write]\nurl = "http://127.0.0.1:9"\n'
        "[slurm]\nresume = true\n",
    )
    assert status == 1
    broken = {what for what, line in lines.items() if line.startswith("BROKEN")}
    assert broken == {
        "listen", "tls", "tokens_file", "claims_file", "calendar_file", "billing.seller_file",
        "ledger", "audit.key_file", "influx", "remote_write", "slurm",
    }  # fmt: skip
    assert "line 2" in lines["claims_file"]


@pytest.mark.parametrize(
    ("listen", "more", "tls", "tokens"),
    [
        ("127.0.0.1", "", "ok      tls: off: plain HTTP", "warning tokens_file: "),
        ("", "", "warning tls: off: plain HTTP on :0: tokens can be read", "no operator: nobody can open"),
        ("127.0.0.1", "allow_anonymous_read = true\n", "ok      tls", "ok      tokens_file: "),
        ("127.0.0.1", "[operators]", "ok      tls", "ok      tokens_file: "),
    ],
)  # fmt: skip
def test_check_notes_open_networks_and_that_nobody_can_sign_in(
    tmp_path: Path, listen: str, more: str, tls: str, tokens: str
):
    digest = f"anna = 'sha256:{'0' * 64}'\n"
    (tmp_path / "tokens.toml").write_text(
        f"{more}\n{digest}" if "[" in more else f"[nodes]\n{digest}"
    )
    status, lines = checked(
        tmp_path,
        f'listen = "{listen}:0"\nstate_directory = "{tmp_path}/state"\n'
        f'tokens_file = "{tmp_path}/tokens.toml"\n{more if "=" in more else ""}',
    )
    assert (status, lines["tls"].startswith(tls), tokens in lines["tokens_file"]) == (0, True, True)


def test_an_address_a_certificate_and_a_directory_that_cannot_be_used_have_a_remedy(tmp_path: Path):
    (tmp_path / "tokens.toml").write_text("[nodes]\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, lines = checked(
            tmp_path,
            f'listen = "127.0.0.1:{port}"\nstate_directory = "/proc/x"\n'
            f'tokens_file = "{tmp_path}/tokens.toml"\n[tls]\ncertificate_file = "/none.pem"\n',
        )
        settings = tmp_path / "agent.toml"
        settings.write_text(f'listen = "127.0.0.1:{port}"\nstate_directory = "{tmp_path}"\n')
        agent = run("agent", "run", "--config", str(settings))
    assert status == 1
    assert f"fix: stop the program that listens there (ss -ltnp sport = :{port})" in lines["listen"]
    assert "fix: check that both are PEM files" in lines["tls"]
    assert "or set another state_directory" in lines["state_directory"]
    assert agent.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}: " in agent.stderr
    with pytest.raises(SettingsError, match="; fix: set a directory that this user may create"):
        lock_state_directory(tmp_path / "tokens.toml" / "x", "collector")


@pytest.mark.parametrize(
    ("sinfo", "expected"),
    [
        (r"printf 'n1|idle|Unknown|none\nn2|idle|Unknown|none\n'", "ok      slurm: sinfo lists 2"),
        ("echo no route to slurmctld >&2; exit 1", "BROKEN  slurm: sinfo: exit status 1: no route"),
        ("echo 'n1 idle'", "BROKEN  slurm: invalid node 'n1 idle'"),
        ("true", "BROKEN  slurm: no node"),
        ("", "BROKEN  slurm: invalid slurm.drain: expected the programs sinfo and scontrol"),
    ],
)
def test_check_runs_sinfo_once(tmp_path: Path, sinfo: str, expected: str):
    (tmp_path / "tokens.toml").write_text("[nodes]\n")
    for name in ("sinfo", "scontrol") if sinfo else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{sinfo}\n")
        (tmp_path / name).chmod(0o755)
    status, lines = checked(
        tmp_path,
        f'listen = "127.0.0.1:0"\nstate_directory = "{tmp_path}/state"\n'
        f'tokens_file = "{tmp_path}/tokens.toml"\n[slurm]\ndrain = true\n',
        PATH=str(tmp_path),
    )
    assert lines["slurm"].startswith(expected)
    assert status == expected.startswith("BROKEN")


def test_check_warns_of_nodes_that_the_inventory_does_not_list(tmp_path: Path):
    tokens = [run("collector", "token", name).stdout for name in ("gpu-1", "gpu-2")]
    lines = [line for text in tokens for line in text.splitlines() if " = " in line]
    (tmp_path / "tokens.toml").write_text("\n".join(["[nodes]", *lines]) + "\n")
    header = "node,gpus,rdma_ports,from,to"
    rows = {"gpu-1": "gpu-1,8,,2026-01-01T00:00:00Z,", "gpu-3": "gpu-3,8,,2026-01-01T00:00:00Z,"}
    settings = (
        f'listen = "127.0.0.1:0"\nstate_directory = "{tmp_path}/state"\n'
        f'tokens_file = "{tmp_path}/tokens.toml"\ninventory_file = "{tmp_path}/inventory.csv"\n'
    )
    (tmp_path / "collector.toml").write_text(settings)
    for listed, expected in (
        (["gpu-1"], ["nodes without a row: all of their GPUs are under review: gpu-2"]),
        (["gpu-1", "gpu-3"], ["under review: gpu-2", "reported no GPU: gpu-3"]),
        ([], []),
    ):
        text = "\n".join([header, *(rows[name] for name in listed)]) + "\n"
        (tmp_path / "inventory.csv").write_text(text)
        outcome = run("collector", "check", "--config", str(tmp_path / "collector.toml"))
        assert outcome.exit_code == 0, outcome.stdout
        found = [
            line for line in outcome.stdout.splitlines() if line.startswith("warning inventory")
        ]
        assert len(found) == len(expected), found
        assert all(arguments in line for arguments, line in zip(expected, found, strict=True))
