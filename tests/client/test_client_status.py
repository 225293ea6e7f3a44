"""Status and tables: unknown is never healthy, the worst comes first, and texts of servers stay text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from support.command_line import run
from support.scripted_server import (
    NOW_NS,
    ScriptedServer,
    by_path,
    json_response,
    response,
    scripted_server,
)

from railscope.client.columns import age
from railscope.http_server import HttpServerRequest
from railscope.timestamps import SECOND_NS, format_timestamp
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint

HOSTILE = "evil\x1b[2J\u202e\n[red]<img src=x>"
NODE = {"gpus": 8, "state": "healthy", "reason": "", "incidents": [], "agent_version": "0.2.0", "streams": ["gpu"], "railscope_node_reporting": 1.0,
        "railscope_node_last_frame_age_seconds": 0.5, "railscope_node_clock_offset_seconds": 0.001}  # fmt: skip
JOB = {"tenant": "vision", "source": "slurm", "workload": "7", "start_ns": NOW_NS - 90 * SECOND_NS,
       "state": "healthy", "reason": "", "incidents": [], "gpus": 8.0, "nodes": 1, "stale_gpus": 0, "shared_gpus": 0, "rollups": [], "stragglers": [],
       "step": None}  # fmt: skip
JOB_OF_INCIDENT = {
    "kind": "job",
    "tenant": "vision",
    "source": "slurm",
    "workload": "7",
    "speed": 0.5,
}
INCIDENT = {
    "id": "abc", "class": "link_down", "text": "A link is down.", "title": "link_down: NIC eth0 of n1",
    "cause": {"kind": "nic", "node": "n1", "interface": "eth0", "device": "mlx5_0", "pci_address": "", "rail": 0, "switch": "", "switch_port": ""},
    "onset": format_timestamp(NOW_NS - 60 * SECOND_NS), "onset_uncertainty_seconds": 10.0, "runbook": "/runbooks/RailscopeIncident#link_down",
    "detected": format_timestamp(NOW_NS), "ended": None, "severity": "critical", "confidence": 0.9,
    "victims": [{"kind": "rack", "rack": "r", "nodes": ["n3"]}], "victim_count": 1,
    "jobs": [JOB_OF_INCIDENT],
    "evidence": [], "symptoms": [], "lost_gpu_seconds": 9, "action": "check cable", "detail": "",
    "limits": "", "explained_by": None,
}  # fmt: skip


def documents() -> dict[str, Any]:
    """A healthy cluster of two nodes with a job."""
    values = {
        "railscope_cluster_gpus": 16.0,
        "railscope_cluster_mean_gpu_claimed_ratio": 0.5,
        "railscope_cluster_unclaimed_gpus": 1.0,
    }
    cluster = [{"metric": name, "labels": {}, "value": value} for name, value in values.items()]
    view = {"timestamp_ns": NOW_NS}
    return {
        "/-/ready": response(b"ready\n"),
        "/api/v1/cluster": view | {"view": "cluster", "rows": cluster},
        "/api/v1/nodes": view | {"rows": [{"node": name, **NODE} for name in ("n1", "n2")]},
        "/api/v1/inventory": view | {"nodes": None},
        "/api/v1/incidents": view | {"rows": [], "suppressed": 0},
        "/api/v1/jobs": view | {"rows": [JOB], "suppressed": 0},
        "/api/v1/tenants": view
        | {"rows": [], "tenants": [{"tenant": "vision", "gpus": 8.0, "held_gpu_hours": 1.0}]},
    }


@contextmanager
def collector(changes: Mapping[str, Any]) -> Iterator[ScriptedServer]:
    """A collector of the healthy cluster with changed documents."""
    with scripted_server(by_path(documents() | changes)) as server:
        yield server


def status_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of `railscope status`."""
    with collector(changes) as server:
        outcome = run("status", "--json", "--collector", server.url)
    content: dict[str, Any] = json.loads(outcome.stdout)
    assert outcome.exit_code == content["exit_status"]
    return content


def with_incident(**changes: Any) -> dict[str, Any]:
    return {"/api/v1/incidents": {"timestamp_ns": NOW_NS, "rows": [INCIDENT | changes]}}


def with_nodes(*nodes: Mapping[str, Any], age_seconds: int = 0) -> dict[str, Any]:
    rows = [{"node": f"n{number}", **NODE, **node} for number, node in enumerate(nodes, 1)]
    return {"/api/v1/nodes": {"timestamp_ns": NOW_NS - age_seconds * SECOND_NS, "rows": rows}}


STALE = {
    "state": "unknown",
    "reason": "stale since 2026-11-22T19:00:00Z",
    "railscope_node_reporting": 0.0,
    "railscope_node_last_frame_age_seconds": 300.0,
}
UNAVAILABLE = json_response({"error": "nothing has been diagnosed yet"}, "503 Service Unavailable")
DENIED = json_response({"error": "access denied"}, "403 Forbidden")


def test_the_keys_of_a_healthy_cluster():
    found = status_of({})
    assert list(found) == [
        "status", "exit_status", "reasons", "server", "program", "observed", "age_seconds", "nodes", "gpus",
        "jobs", "incidents", "open_incidents", "absent",
    ]  # fmt: skip
    assert (found["status"], found["exit_status"], found["reasons"]) == ("healthy", 0, [])
    assert found["nodes"] == {"healthy": 2, "degraded": 0, "failed": 0, "unknown": 0}
    assert found["gpus"] == {"total": 16.0, "claimed": 8.0, "unclaimed": 1.0, "idle": 7.0}
    assert found["incidents"] == {"critical": 0, "warning": 0, "info": 0}
    assert (found["jobs"], found["absent"]) == (1, {})


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        (with_incident(), "failed", "link_down"),
        (with_incident(severity="warning"), "degraded", "link_down"),
        (with_incident(severity="unheard"), "degraded", "link_down"),
        (with_incident(severity="info"), "healthy", ""),
        (with_incident(explained_by="def"), "healthy", ""),
        (with_incident(ended=format_timestamp(NOW_NS)), "healthy", ""),
        (with_nodes({}, STALE), "degraded", "stale: n2"),
        (with_nodes(STALE, STALE), "unknown", "no node reports"),
        (with_nodes({}, {"state": "failed", "reason": "GPU 3 failed"}), "failed", "n2: GPU 3 failed"),
        (with_incident(severity="warning") | with_nodes({"state": "failed", "reason": "GPU 3 failed", "incidents": ["abc"]}), "failed", "n1: GPU 3 failed"),
        (with_nodes(), "unknown", "no node has ever reported"),
        (with_nodes({}, age_seconds=600), "unknown", "stale: computed 10 min ago"),
        (with_nodes({}) | with_nodes({"railscope_node_reporting": None}), "unknown", "no node reports"),
        ({"/api/v1/incidents": UNAVAILABLE}, "unknown", "nothing has been diagnosed yet"),
        ({"/api/v1/incidents": {"timestamp_ns": NOW_NS - 600 * SECOND_NS, "rows": []}}, "unknown", "stale"),
        ({"/api/v1/nodes": UNAVAILABLE}, "unknown", "nodes: nothing has been diagnosed yet"),
        ({"/api/v1/nodes": {"timestamp_ns": 0, "rows": []}}, "unknown", "not been computed"),
        ({"/-/ready": response(b"not ready: read-only\n", "503 Service Unavailable")}, "degraded", "read-only"),
        ({"/api/v1/inventory": {"nodes": [{"node": "n9", "state": "missing"}]}}, "degraded", "never reported: n9"),
        ({"/api/v1/nodes": DENIED, "/api/v1/jobs": DENIED, "/api/v1/incidents": DENIED}, "unknown", "access denied"),
        (with_incident() | with_nodes(STALE, STALE), "failed", "no node reports"),
    ],
)  # fmt: skip
def test_the_status_follows_from_the_worst_reason(changes: dict[str, Any], status: str, text: str):
    found = status_of(changes)
    assert found["status"] == status
    assert found["exit_status"] == ("healthy", "degraded", "failed", "unknown").index(status)
    assert any(text in reason["text"] for reason in found["reasons"]) or not text


def test_the_tenant_of_a_token_sees_a_status_of_what_it_may_read():
    denied = dict.fromkeys(("/api/v1/nodes", "/api/v1/cluster", "/api/v1/inventory"), DENIED)
    found = status_of(denied)
    assert found["status"] == "healthy"
    assert found["nodes"] is None
    assert "tenant" in found["absent"]["nodes"]
    stale = {"/api/v1/jobs": {"timestamp_ns": NOW_NS, "rows": [JOB | {"stale_gpus": 8}]}}
    assert status_of(denied | stale)["status"] == "degraded"
    with collector(denied) as server:
        assert run("jobs", "--collector", server.url).exit_code == 0
        outcome = run("nodes", "--collector", server.url)
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert "access denied; fix: use a token whose role" in outcome.stderr


def test_a_screen_without_any_document_has_each_reason_once_within_80_columns():
    with collector(dict.fromkeys(documents(), DENIED)) as server:
        outcome = run("status", "--collector", server.url)
        once, content = (
            run("top", option, "--collector", server.url) for option in ("--once", "--json")
        )
    assert outcome.exit_code == once.exit_code == content.exit_code == 3
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    assert outcome.stdout.count("api/v1/jobs") == 1
    found = json.loads(content.stdout)
    assert (found["nodes"], "access denied" in found["absence"]) == (None, True)


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
    assert max(map(cell_len, wide.splitlines())) <= 80
    assert wide.count("標") == 60
    with collector(with_incident(title=title)) as server:
        outcome = run("status", "--collector", server.url)
    lines = outcome.stdout.splitlines()
    assert lines[0] == f"FAILED  collector {server.url}"
    assert max(map(len, lines)) <= 80
    assert "check cable" in outcome.stdout
    assert outcome.stdout.count("very long") == 30
    assert len(lines) <= 24


@pytest.mark.parametrize(
    ("age", "state", "count"), [(20, "open", 0), (50, "open", 1), (50, "closed", 0)]
)
def test_an_incident_states_how_old_its_last_evidence_is(age: int, state: str, count: int):
    last = format_timestamp(NOW_NS - age * SECOND_NS)
    changes = {"last_evidence": last, "ended": None if state == "open" else last}
    with collector(with_incident(**changes)) as server:
        listed = run("incidents", "--state", "all", "--collector", server.url).stdout
    assert " ".join(listed.split()).count("last evidence 50 s ago") == count


def test_tables_list_the_worst_first_and_filter():
    incident = with_incident(severity="warning")
    touched = {"state": "degraded", "reason": "affected by link_down: NIC eth0 of n1"}
    job = {"/api/v1/jobs": {"timestamp_ns": NOW_NS, "rows": [JOB | touched]}}
    degraded = {
        "state": "degraded",
        "reason": "affected by link_down: NIC eth0 of n1",
        "incidents": ["abc"],
    }
    failed = degraded | {"state": "failed"}
    nodes = with_nodes(failed, STALE, degraded, {"node": "m1"})
    with collector(incident | nodes | job) as server:

        def table(*arguments: str) -> str:
            outcome = run(*arguments, "--collector", server.url)
            assert outcome.exit_code == 0, outcome.output
            assert max(map(len, outcome.stdout.splitlines())) <= 80
            return outcome.stdout

        listed = [line.split()[:2] for line in table("nodes").splitlines()]
        assert listed == [
            ["NODE", "STATE"], ["n1", "failed"], ["n2", "unknown"], ["n3", "degraded"], ["m1", "healthy"],
        ]  # fmt: skip
        assert table("nodes", "--state", "unknown", "--node", "N*").splitlines()[1].startswith("n2")
        assert table("nodes", "--state", "healthy", "--node", "n1") == "nodes: none of 4 matches\n"
        assert "affected by link_down" in table("jobs", "--state", "degraded")
        assert (
            table("jobs", "--tenant", "other")
            == "jobs: none of 1 matches\nno tenant matches 'other': vision\n"
        )
        assert table("jobs", "7").split("\n")[1:] == table("jobs").split("\n")[1:]
        assert "1 rack affected; jobs: vision/7; check cable" in table(
            "incidents", "--node", "n3", "--tenant", "vision"
        )
        assert table("incidents", "--severity", "critical") == "incidents: none of 1 matches\n"
        assert table("incidents").split("\n")[0].endswith(" link_down: NIC eth0 of n1  abc")
        assert table("tenants").split()[7:11] == ["vision", "8", "1", "1.00"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("nodes --state broken", "'broken': expected one of failed, unknown, degraded, healthy"),
        ("nodes nope", "no node matches 'nope': n1, n2"),
        ("nodes --node nope*", "no node matches 'nope*': n1, n2"),
        ("gpus nope", "no node matches 'nope': n1, n2"),
        ("jobs 8", "no workload matches '8': 7"),
        ("tenants other", "no tenant matches 'other': vision"),
        ("incidents other", "no incident 'other'; fix: railscope incidents --state all lists all IDs"),
        ("nodes n1 --node n2", "expected either NAME or --node"),
    ],
)  # fmt: skip
def test_a_name_or_state_that_nothing_has_is_an_error_that_lists_what_there_is(
    arguments: str, error: str
):
    nothing = {"/api/v1/gpus": {"timestamp_ns": NOW_NS, "found": 0, "rows": []}}
    with collector(nothing) as server:
        outcome = run(*arguments.split(), "--collector", server.url)
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert error in " ".join(outcome.stderr.split())


def test_a_node_is_shown_with_its_gpus_and_an_incident_with_its_evidence():
    gpus = [{"gpu": "GPU-a", "index": "0", "rail": 0}]
    evidence = [
        {"signal": "link", "device": "eth0", "value": 0.0, "threshold": None, "comparison": "", "window_seconds": 0.0}
    ]  # fmt: skip
    content = with_incident() | {
        "/api/v1/gpus": {"timestamp_ns": NOW_NS, "rows": gpus},
        "/api/v1/incidents/abc": INCIDENT | {"evidence": evidence},
        "/api/v1/incidents/def": INCIDENT
        | {
            "lost_gpu_seconds": 0,
            "lost_gpu_time_seconds": None,
            "commands": ["ssh n1 ethtool eth0"],
        },
    }
    with collector(content) as server:
        here = ("--collector", server.url)
        shown = run("nodes", "n1", *here).stdout.split("\n\n")
        assert [part.split()[0] for part in shown] == ["NODE", "GPU"]
        assert shown[1].splitlines()[1].split()[:2] == ["0", "unknown"]
        assert len(json.loads(run("nodes", "n1", "--json", *here).stdout)["gpus"]) == 1
        assert "gpus" not in json.loads(run("nodes", "n*", "--json", *here).stdout)
        lines = run("incidents", "abc", *here).stdout.splitlines()
        assert lines[0] == "title           link_down: NIC eth0 of n1"
        assert "evidence 1      eth0: link 0.0" in lines
        (row,) = json.loads(run("incidents", "abc", "--json", *here).stdout)["incidents"]
        assert (
            row["id"],
            [{"text": "", "worst_value": None, "worst_at": None} | each for each in evidence],
            row["lost_gpu_seconds"],
        ) == (
            "abc",
            row["evidence"],
            9,
        )
        text = run("incidents", "def", *here).stdout
    assert "lost GPU-hours  not known\n" in text
    assert text.splitlines()[-1] == "    ssh n1 ethtool eth0"


def test_a_server_of_the_other_kind_is_named_with_the_option_for_it():
    with collector(
        {"/metrics": response(b"# HELP a b\nrailscope_collector_schemas 1\n")}
    ) as server:
        outcome = run("nodes", "--agent", server.url)
        assert outcome.exit_code == 3
        fix = f"the server is a collector; fix: --collector {server.url}"
        assert fix in outcome.stderr
        assert fix in " ".join(run("status", "--agent", server.url).stdout.split())
    agent = MetricsEndpoint("n1", lambda: (), lambda: 0, "secret")
    for headers in ({}, {"authorization": "Bearer secret"}):
        rejection = agent.respond(HttpServerRequest("/api/v1/nodes", headers))
        status = f"{rejection.status.value} {rejection.status.phrase}"
        answer = response(rejection.body, status)
        paths = dict.fromkeys(("/api/v1/nodes", "/api/v1/inventory"), answer)
        with scripted_server(by_path(paths)) as server:
            outcome = run("nodes", "--collector", server.url)
        assert outcome.exit_code == 3
        assert f"the server is an agent; fix: --agent {server.url}" in outcome.stderr


@pytest.mark.parametrize("command", ["nodes", "jobs"])
def test_states_are_those_of_the_collector_and_unknown_from_an_older_one(command: str):
    old = {"stale_gpus": 1, "tenant": "vision", "workload": "7", "source": "slurm", "start_ns": 0, "node": "n1", "gpus": 8, "nodes": 1}  # fmt: skip
    for state, reason, age, shown in (
        ("failed", "as stated", 0, "failed as stated"),
        ("", "", 0, f"unknown the collector does not report states of {command}; fix: upgrade it"),
        ("healthy", "", 600, "unknown the views are stale: computed 10 min ago"),
        ("healthy", "", None, ""),
    ):
        at_ns = 0 if age is None else NOW_NS - age * SECOND_NS
        rows = [old | ({"state": state, "reason": reason} if state else {})]
        content = {"timestamp_ns": at_ns, "rows": rows if at_ns else []}
        with collector(with_incident() | {f"/api/v1/{command}": content}) as server:
            outcome = run(command, "--json", "--collector", server.url)
        found = json.loads(outcome.stdout)
        if not shown:
            assert (outcome.exit_code, found[command]) == (3, None), "not none"
            assert found["absence"].startswith("it has not been computed yet; fix: ")
            continue
        (row,) = found[command]
        assert (outcome.exit_code, f"{row['state']} {row['reason']}") == (0, shown)


def test_json_of_tables_has_the_rows_and_the_reason_for_their_absence():
    with collector({"/api/v1/incidents": UNAVAILABLE}) as server:
        found = run("incidents", "--json", "--collector", server.url)
        assert found.exit_code == 3
        assert json.loads(found.stdout)["incidents"] is None
        assert "nothing has been diagnosed" in json.loads(found.stdout)["absence"]
    with collector(with_nodes({}, age_seconds=600)) as server:
        (row,) = json.loads(run("nodes", "--json", "--collector", server.url).stdout)["nodes"]
        assert (row["node"], row["state"]) == ("n1", "unknown")
        assert row["reason"] == "the views are stale: computed 10 min ago"


@pytest.mark.parametrize("command", ["status", "nodes", "jobs", "incidents", "tenants"])
def test_hostile_names_stay_text(command: str):
    content = deepcopy(documents())
    for row in content["/api/v1/nodes"]["rows"]:
        row["node"] = row["agent_version"] = HOSTILE
    names = {"tenant": HOSTILE, "workload": HOSTILE}
    content["/api/v1/jobs"]["rows"] = [JOB | names]
    content["/api/v1/incidents"]["rows"] = [
        INCIDENT | {"id": HOSTILE, "title": HOSTILE, "action": HOSTILE, "jobs": [JOB_OF_INCIDENT | names],
                    "onset": HOSTILE, "severity": HOSTILE, "cause": {"kind": "node", "node": HOSTILE},
                    "victims": [{"kind": "rack", "rack": "r", "nodes": [HOSTILE]}]}
    ]  # fmt: skip
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


# An agent ----------------------------------------------------------------------------------------

METRICS = """# HELP railscope_gpu_health Verdict.
railscope_node_info{hostname="n1",agent_version="0.2.0"} 1
railscope_source_state{source="gpu",state="ok"} 1
railscope_source_age_seconds{source="gpu"} 0.5
railscope_source_age_seconds{source="gpu_verdict"} 2
railscope_gpu_info{gpu="GPU-a",index="0",pci_address="0000:01:00.0",rail="0"} 1
railscope_gpu_info{gpu="GPU-b",index="1",pci_address="0000:02:00.0",rail="1"} 1
railscope_gpu_health{gpu="GPU-a",state="healthy"} 1
railscope_gpu_health{gpu="GPU-b",state="STATE"} 1
railscope_gpu_health_reason_active{gpu="GPU-b",reason="row \\"remap\\""} 1
railscope_gpu_power_watts{gpu="GPU-a"} 500.5
railscope_nic_info{interface="eth0",rail="0"} 1
railscope_network_link_up{interface="eth0"} 1
"""
IPOIB = (
    METRICS.replace("STATE", "healthy").split("railscope_nic_info")[0]
    + """
railscope_nic_info{interface="ib0",rail="0",rdma_device="mlx5_0"} 1
railscope_rdma_port_up{device="mlx5_0",port="1"} PORT
"""
)


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        (METRICS.replace("STATE", "healthy"), "healthy", ""),
        (METRICS.replace("STATE", "degraded"), "degraded", 'GPU 1: row "remap"'),
        (METRICS.replace("STATE", "failed"), "failed", 'GPU 1: row "remap"'),
        (METRICS.replace("STATE", "degraded").replace('row \\"remap\\"', "row_remap_pending"), "degraded", "GPU 1: memory row to be replaced at a reset"),
        (METRICS.replace("STATE", "unknown"), "unknown", "GPU 1: "),
        (METRICS.replace("STATE", "surprising"), "unknown", "GPU 1: "),
        (METRICS.replace("STATE", "healthy").replace("} 2\n", "} 200\n"), "unknown", "stale"),
        (METRICS.replace("STATE", "healthy").replace('="eth0"} 1\n', '="eth0"} 0\n'), "degraded", "the link of eth0 is down"),
        (IPOIB.replace("PORT", "1"), "healthy", ""),
        (IPOIB.replace("PORT", "0"), "degraded", "the link of ib0 is down"),
        (METRICS.replace("STATE", "healthy").replace('state="ok"', 'state="failed"'), "degraded", "source gpu"),
        ("railscope_node_info{} 1\n", "unknown", "no GPU"),
        ("up 1\n", "unknown", "the server is no Railscope agent; fix: check the URL"),
        ("\x1b[2J{}{}\n", "unknown", "the server is no Railscope agent"),
    ],
)  # fmt: skip
def test_the_status_of_a_node_is_that_of_its_gpus(text: str, status: str, reason: str):
    with scripted_server(lambda _: response(text.encode())) as server:
        found = json.loads(run("status", "--json", "--agent", server.url).stdout)
        table = run("nodes", "--agent", server.url)
    assert (found["status"], found["program"]) == (status, "agent")
    assert any(reason in one["text"] for one in found["reasons"]) or not reason
    assert table.stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999"])
def test_a_value_that_is_not_finite_is_absent(value: str):
    labels = '{gpu="GPU-a"}'
    text = METRICS.replace("STATE", "healthy") + (
        f"railscope_gpu_unclaimed_processes{labels} {value}\n"
        f"railscope_gpu_claimed_ratio{labels} {value}\n"
        f'railscope_source_age_seconds{{source="nic"}} {value}\n'
    )
    with scripted_server(lambda _: response(text.encode())) as server:
        assert run("status", "--agent", server.url).exit_code == 0
        found = json.loads(run("gpus", "--json", "--agent", server.url).stdout)
    row = next(each for each in found["gpus"] if each["gpu"] == "GPU-a")
    assert (row["unclaimed_processes"], row["holder"]) == (None, [])


# Tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-0.2, "0 s"), (9.94, "9.9 s"), (75, "1 min 15 s"), (600, "10 min"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h"),
     (180_000, "2 d 2 h"), (9e6, "104 d 4 h")],
)  # fmt: skip
def test_ages(seconds: float, text: str):
    assert age(seconds) == text


# Contexts ----------------------------------------------------------------------------------------


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


def test_a_token_is_sent_to_a_named_server_only(tmp_path: Path):
    outcome = run("nodes", "--token-file", "token", RAILSCOPE_CONTEXT=str(tmp_path / "missing"))
    assert outcome.exit_code == 3
    assert "no collector is named for --token-file" in outcome.stderr


def test_the_default_file_is_that_of_the_user(tmp_path: Path):
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "RAILSCOPE_CONTEXT": ""}
    assert run("context", "set", "a", "--agent", "http://127.0.0.1:1", **environment).exit_code == 0
    assert (tmp_path / "railscope" / "context.toml").is_file()


GPU = {"node": "n1", "gpu": "GPU-a", "index": "0", "pci_address": "", "rail": 0, "nics": ["eth0", HOSTILE], "state": "failed",
       "health": "failed", "reasons": ["xid"], "link_up": False, "holders": [{"tenant": HOSTILE, "source": "s", "workload": "7", "held_ratio": 1.0}]}  # fmt: skip


def test_the_gpus_of_all_nodes_are_listed_in_parts():
    found = {
        "timestamp_ns": NOW_NS,
        "found": 3,
        "offset": 1,
        "rows": [GPU],
        "problem": "not diagnosed",
    }
    with collector({"/api/v1/gpus": found}) as server:
        options = (
            "--node",
            "n*",
            "--rail",
            "0",
            "--state",
            "failed",
            "--limit",
            "1",
            "--offset",
            "1",
        )
        printed = run("gpus", *options, "--collector", server.url)
        content = json.loads(run("gpus", "--json", "--collector", server.url).stdout)
        wide = run("gpus", "--wide", "--collector", server.url)
    path = server.requests[0].split(" ")[1]
    assert path == "/api/v1/gpus?node=n%2A&rail=0&state=failed&limit=1&offset=1"
    assert printed.exit_code == 0
    lines = printed.stdout.splitlines()
    assert lines[1].split()[:3] == ["n1", "0", "failed"]
    assert lines[-2:] == ["incidents: not diagnosed", "1 of 3 follow: --offset 2"]
    assert max(map(len, lines)) <= 80
    assert printed.stdout.replace("\n", "").isprintable()
    assert r"evil\x1b[2J" in wide.stdout
    (row,) = content["gpus"]
    assert {key: row[key] for key in GPU} == GPU
    assert (row["power_watts"], row["holder"]) == (None, [f"{HOSTILE}/7"])


def test_an_older_collector_has_no_list_of_gpus():
    with collector({}) as server:
        outcome = run("gpus", "--collector", server.url)
    assert outcome.exit_code == 3
    assert "status 404" in outcome.stderr


def test_the_gpus_of_an_agent_are_those_of_its_node():
    text = (
        'railscope_node_info{hostname="n1"} 1\nrailscope_gpu_info{gpu="GPU-a",index="0",rail="3"} 1\n'
        'railscope_gpu_info{gpu="GPU-b",index="1",rail="4"} 1\n'
    )
    with scripted_server(by_path({"/metrics": response(text.encode())})) as server:
        outcome = run("gpus", "--rail", "3", "--agent", server.url)
    assert [line.split()[0] for line in outcome.stdout.splitlines()] == ["GPU", "0"]
