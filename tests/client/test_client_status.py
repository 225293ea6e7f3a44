"""Status and tables: unknown is never healthy, the worst comes first, and texts of servers stay text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run
from support.healthy_cluster import ROWS, STATUS, healthy_cluster
from support.scripted_server import (
    NOW_NS,
    ScriptedServer,
    by_path,
    scripted_server,
)

from railscope.client.columns import LISTINGS
from railscope.client.commands import table_text
from railscope.client.text_layout import cell_width

HOSTILE = "evil\x1b[2J\u202e\n[red]<img src=x>"
JOB_OF_INCIDENT = {
    "kind": "job",
    "tenant": "vision",
    "source": "slurm",
    "workload": "7",
    "speed": 0.5,
    "loss": "steps take 12 s, before 5.6 s",
}


@contextmanager
def collector(changes: Mapping[str, Any]) -> Iterator[ScriptedServer]:
    """A collector of the healthy cluster with changed documents."""
    with scripted_server(by_path(healthy_cluster() | changes)) as server:
        yield server


def with_incident(**changes: Any) -> dict[str, Any]:
    """A list with an incident, and the status that a collector makes of it."""
    found = ROWS["incident"] | {"jobs": [JOB_OF_INCIDENT]} | changes
    reason = {"status": "failed", "text": found["title"]}
    status = {
        "status": "failed",
        "reasons": [reason],
        "open_incidents": [found],
        "incidents": {"critical": 1, "warning": 0, "info": 0},
    }
    return {
        "/api/v1/incidents": {"timestamp_ns": NOW_NS, "rows": [found]},
        "/api/v1/status": STATUS | status,
    }


def test_no_answer_is_unknown_on_the_screen_and_in_json():
    for options in ((), ("--json",)):
        outcome = run("status", "--collector", "http://127.0.0.1:1", *options)
        assert outcome.exit_code == 3
        assert "connection refused" in outcome.stdout
        assert "UNKNOWN" in outcome.stdout.upper()
    for wrong in (
        ("--nope",),
        ("--timeout-seconds", "x"),
        ("--agent", "http://a", "--collector", "http://b"),
    ):
        assert run("status", *wrong).exit_code == 3


def test_the_screen_names_cause_and_action_within_80_columns():
    title = "link_down: " + "very long " * 30
    with collector(with_incident(title="標題" * 60, action="do \u0301é " * 40)) as server:
        wide = run("status", "--collector", server.url).stdout
    assert max(map(cell_width, wide.splitlines())) <= 80
    assert wide.count("標") == 60
    with collector(with_incident(title=title)) as server:
        outcome = run("status", "--collector", server.url)
    lines = outcome.stdout.splitlines()
    assert lines[0] == f"FAILED  collector {server.url}, data 0.5 s old"
    assert max(map(len, lines)) <= 80
    assert "check cable" in outcome.stdout
    assert outcome.stdout.count("very long") == 30
    assert len(lines) <= 24


@pytest.mark.parametrize("command", ["status", "nodes", "jobs", "incidents", "tenants"])
def test_hostile_names_stay_text(command: str):
    content = deepcopy(healthy_cluster())
    for row in content["/api/v1/nodes"]["rows"]:
        row["node"] = row["agent_version"] = HOSTILE
    names = {"tenant": HOSTILE, "workload": HOSTILE}
    content["/api/v1/jobs"]["rows"] = [ROWS["job"] | names]
    rows = [
        ROWS["incident"] | {"id": HOSTILE, "title": HOSTILE, "action": HOSTILE, "jobs": [JOB_OF_INCIDENT | names],
                    "onset": HOSTILE, "severity": HOSTILE, "cause": {"kind": "node", "node": HOSTILE},
                    "victims": [{"kind": "rack", "rack": "r", "nodes": [HOSTILE]}]}
    ]  # fmt: skip
    content["/api/v1/incidents"]["rows"] = rows
    content["/api/v1/status"] |= {
        "status": "degraded",
        "open_incidents": rows,
        "absent": {"jobs": HOSTILE},
    }
    content["/api/v1/tenants"]["tenants"].append(
        {"tenant": HOSTILE, "gpus": None, "held_gpu_hours": None}
    )
    with scripted_server(by_path(content)) as server:
        for options in ((), ("--wide",), ("--json",)):
            if (command, options) == ("status", ("--wide",)):
                continue
            outcome = run(command, *options, "--collector", server.url)
            assert outcome.exit_code in {0, 1}, outcome.output
            assert outcome.stdout.replace("\n", "").isprintable()
            assert "evil" in outcome.stdout


def test_a_url_is_typed_once(tmp_path: Path):
    file, token = tmp_path / "own" / "context.toml", tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    environment = {"RAILSCOPE_CONTEXT": str(file)}
    with collector({}) as server:
        stored = run(
            "context",
            "set",
            "one",
            "--collector",
            server.url,
            "--token-file",
            str(token),
            **environment,
        )
        assert stored.exit_code == 0, stored.output
        assert (
            run("context", "set", "two", "--agent", "http://127.0.0.1:1", **environment).exit_code
            == 0
        )
        assert file.stat().st_mode & 0o777 == 0o600
        assert run("status", **environment).exit_code == 0
        assert "Authorization: Bearer secret" in server.requests[-1]
        assert run("status", "--context", "two", **environment).exit_code == 3
        assert run("status", "--collector", server.url, **environment).exit_code == 0
        assert "Authorization" not in server.requests[-1], "a token is sent to its own server only"
        assert run("context", "use", "two", **environment).exit_code == 0
        assert "agent http://127.0.0.1:1" in run("status", **environment).stdout
    shown = run("context", "show", **environment).stdout.splitlines()
    assert shown[0] == str(file)
    assert shown[2].split()[:2] == ["-", "one"]
    assert shown[3].split()[:2] == ["*", "two"]
    for arguments in (("use", "three"), ("set", "bad name", "--agent", "http://a"), ("set", "x"),
                      ("set", "x", "--agent", "ftp://a")):  # fmt: skip
        assert run("context", *arguments, **environment).exit_code == 3


@pytest.mark.parametrize(
    "content",
    ["nonsense", "contexts = 5", '[contexts.a]\nurl = "http://x"', "[contexts.a]\n", '[contexts."a b"]\nagent = "http://x"',
     '[contexts.a]\nagent = "http://x"\ncollector = "http://y"', 'current = "gone"', "a = " + "[" * 5000],
)  # fmt: skip
def test_an_invalid_context_file_is_reported_in_one_line(tmp_path: Path, content: str):
    file = tmp_path / "context.toml"
    file.write_text(content)
    outcome = run("nodes", RAILSCOPE_CONTEXT=str(file))
    assert outcome.exit_code == 3
    (line,) = outcome.stderr.splitlines()
    assert str(file) in line
    assert "expected" in line


LARGE = {"ratio": 0.99949, "number": 123456, "age": 93_784, "watts": 123_456.0, "celsius": 100.0, "gigabits": 1.25e11,
         "gigabytes": 192e9, "hours": 1_234_567.89, "time": NOW_NS, "state": "degraded", "reasons": ["xid_fatal"] * 9}  # fmt: skip
"""Values of each form; others are long names."""
NAMES = ["gpu-node-0001", "a-rather-long-name.of-a-node-in-a-cluster.example"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", LISTINGS)
def test_numbers_are_whole_in_80_columns_and_so_is_the_name_of_a_row(command: str, name: str):
    columns = [column for column in LISTINGS[command].columns if not column.is_wide]
    values = [LARGE.get(column.form, name) for column in columns]
    found = [column._replace(value=itemgetter(n)) for n, column in enumerate(columns)]
    lines = table_text(found, [values, values]).splitlines()
    assert max(map(cell_width, lines)) <= 80
    for column in found:
        if column.is_whole or (column is found[0] and name == NAMES[0]):
            assert column.head in lines[0]
            assert sum(column.text(values) in line for line in lines) >= 2, column.head
