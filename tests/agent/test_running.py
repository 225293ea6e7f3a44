"""`agent check` with the metrics of a running agent, and with the files of a machine."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.rdma_nics import INFINIBAND
from support.shared import capture_path
from support.tree import make_tree

from railscope.http_server import HttpServer, HttpServerRequest, HttpServerResponse
from railscope_agent.commands import agent
from railscope_agent.commands.running_agent import QUERY, check_running_agent
from railscope_agent.config import AgentSettings
from railscope_agent.sampling.probe_result import ProbeVerdict

TOKEN = "page-token"  # noqa: S105 - no secret
PAGE = """\
# TYPE railscope_source_period_seconds gauge
railscope_source_period_seconds{source="nic_burst"} 0.2
railscope_source_period_seconds{source="rdma"} 1.0
railscope_source_stretch_ratio{source="nic_burst"} 2
railscope_source_stretch_ratio{source="rdma"} 1
railscope_agent_resident_memory_bytes 40000000
railscope_agent_cpu_use_ratio 0.0093
railscope_agent_cpu_budget_ratio 0.01
railscope_governor_state{resource="cpu",state="within"} 0
railscope_governor_state{resource="cpu",state="stretching"} 1
railscope_governor_state{resource="memory",state="within"} 1"""


@asynccontextmanager
async def serving(page: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve a metrics endpoint with a token; yield the address of an agent that listens everywhere."""

    def respond(request: HttpServerRequest) -> HttpServerResponse:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return HttpServerResponse.text("no", HTTPStatus.UNAUTHORIZED)
        assert request.query == QUERY
        return HttpServerResponse.text(page)

    server = HttpServer(respond)
    _, port = await server.start("127.0.0.1:0", tls)
    try:
        yield f"0.0.0.0:{port}"
    finally:
        await server.close()


async def probe_endpoint(**settings: object) -> list[tuple[ProbeVerdict, str]]:
    found = await check_running_agent(AgentSettings(**settings))  # type: ignore[arg-type]
    return [(finding.verdict, finding.detail) for finding in found]


async def test_metrics_report_the_actions_of_the_governor() -> None:
    async with serving(PAGE) as listen:
        assert await probe_endpoint(listen=listen, metrics_token=TOKEN) == [
            (
                ProbeVerdict.SUPPORTED,
                "uses 0.93 % of a core, budget 1 %, cpu stretching, memory within",
            ),
            (ProbeVerdict.SUPPORTED, "nic_burst is read every 0.2 s instead of 0.1 s"),
        ]


@pytest.mark.parametrize(
    ("page", "token", "verdict", "problem"),
    [
        (PAGE, "", ProbeVerdict.BROKEN, "returned status 401"),
        ("up 1", TOKEN, ProbeVerdict.BROKEN, "is not the metrics endpoint of an agent"),
    ],
)
async def test_an_unusable_metrics_endpoint_is_reported(
    page: str, token: str, verdict: ProbeVerdict, problem: str
) -> None:
    async with serving(page) as listen:
        ((found, detail),) = await probe_endpoint(listen=listen, metrics_token=token)
    assert found is verdict
    assert problem in detail


async def test_a_missing_agent_is_not_a_fault() -> None:
    async with serving(PAGE) as listen:
        pass
    ((verdict, detail),) = await probe_endpoint(listen=listen)
    assert (verdict, "no response from" in detail) == (ProbeVerdict.ABSENT, True)
    ((verdict, detail),) = await probe_endpoint(listen="127.0.0.1:0")
    assert (verdict, "the port is not fixed" in detail) == (ProbeVerdict.ABSENT, True)


def check_root(root: Path) -> tuple[int, str]:
    outcome = CliRunner().invoke(agent, ["check", "--seconds", "0", "--root", str(root)])
    return outcome.exit_code, outcome.output


def test_a_tree_with_something_broken_leaves_with_1(tmp_path: Path) -> None:
    (make_tree(tmp_path) / INFINIBAND[1:] / "mlx5_0/ports/1/counters/port_xmit_packets").write_text(
        "garbage"
    )
    code, output = check_root(tmp_path)
    assert code == 1
    assert "BROKEN  rdma: 1 reading error" in output


@pytest.mark.filterwarnings("ignore:'sin' and 'sout' swap memory:RuntimeWarning")
def test_a_tree_of_a_real_machine_is_read_without_complaint() -> None:
    code, output = check_root(capture_path("sysfs/procfs/tree"))
    assert code == 0, output
    assert "ok      rdma: 116 readings (rdma_port: 4)" in output
