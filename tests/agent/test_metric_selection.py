"""Selection of metrics on the agent's metrics endpoint: by settings, and by the query of a scrape."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from support.clock import ManualClock
from support.examples import fewer_examples
from support.machine import FakeHost
from support.metric_samples import samples

from railscope.capture import write_capture
from railscope.catalog import METRICS, SUBJECT_OF, SUBJECTS
from railscope.catalog.declare import MetricDetail
from railscope.http_server import HttpServerRequest
from railscope.settings import SettingsError
from railscope_agent.commands import agent as agent_command
from railscope_agent.config import (
    AgentSettings,
    BudgetSettings,
    MetricsSettings,
)
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, simulate

DETAILS = list(MetricDetail)
"""Each contains those before it."""


def read_agent(metrics: MetricsSettings) -> Agent:
    """Return an agent that has read a simulated node twice."""
    host = RecordedHost(simulate(NodeSpec("n1", gpus=2), 2, 1), ManualClock(), lambda: 0)
    settings = AgentSettings(node="n1", budget=BudgetSettings(cpu_ratio=0), metrics=metrics)
    agent = Agent(settings, host, "n1")

    async def read() -> None:
        for _ in range(2):  # the agent's own statistics are read beside the other sources
            await agent.sampler.once()

    asyncio.run(read())
    return agent


@pytest.fixture(scope="module")
def agent() -> Agent:
    return read_agent(MetricsSettings())


def scrape(agent: Agent, query: str = "") -> tuple[int, str]:
    response = agent.endpoint.respond(HttpServerRequest("/metrics", {}, query=query))
    return response.status, response.body.decode()


def scraped_names(agent: Agent, query: str = "") -> set[str]:
    status, text = scrape(agent, query)
    assert status == HTTPStatus.OK, text
    return {metric_name(name) for name, _ in samples(text)}


def metric_name(sample: str) -> str:
    """Return the metric of a sample; those of a histogram have a suffix."""
    stem = sample.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
    return sample if sample in METRICS else stem


def test_each_detail_contains_the_one_before_it(agent: Agent) -> None:
    names = [scraped_names(agent, f"detail={detail}") for detail in DETAILS]
    assert names[0] < names[1] < names[2]
    for index, shown in enumerate(names):
        assert {DETAILS.index(METRICS[name].detail) for name in shown} == set(range(index + 1))


@pytest.fixture(scope="module")
def usual_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capture of a node with 8 GPUs and 10 NICs."""
    capture = simulate(NodeSpec("n1"), 2, 1)
    directory = tmp_path_factory.mktemp("node") / "capture"
    write_capture(directory, capture.about, capture.moments)
    return directory


@pytest.mark.parametrize(
    ("detail", "max_series"),
    [("basic", 1500), pytest.param("full", 9000, marks=pytest.mark.thorough)],
)
def test_the_metrics_of_a_node_are_few(usual_node: Path, detail: str, max_series: int) -> None:
    arguments = ["once", "--detail", detail, "--replay", str(usual_node)]
    outcome = CliRunner().invoke(
        agent_command, arguments, env={"RAILSCOPE_AGENT_READ_TIMEOUT_SECONDS": "60"}
    )
    assert outcome.exit_code == 0, outcome.output
    lines = [line for line in outcome.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) <= max_series


names_of_selection = st.sets(st.sampled_from([*SUBJECTS, "gpu", "rdma", "nvlink", "pcie"]))


@fewer_examples(20)
@given(st.sampled_from(DETAILS), names_of_selection, names_of_selection)
def test_a_selection_is_a_filter_of_everything(
    agent: Agent, detail: MetricDetail, collected: set[str], excluded: set[str]
) -> None:
    everything = samples(scrape(agent, "detail=full")[1])
    pairs = [("detail", detail), *(("collect[]", name) for name in sorted(collected))]
    pairs += [("exclude[]", name) for name in sorted(excluded)]
    shown = samples(scrape(agent, urlencode(pairs))[1])
    assert shown.items() <= everything.items()
    selected = {metric_name(name) for name, _ in shown}
    for name in {metric_name(name) for name, _ in everything}:
        group = SUBJECT_OF[name]
        if group in excluded or not detail.includes(METRICS[name].detail):
            assert name not in selected
        elif group in collected and not excluded:
            assert name in selected
    if not collected and not excluded:
        assert selected == scraped_names(agent, f"detail={detail}")


@pytest.mark.parametrize(("query", "problem"), [
    ("detail=all", "invalid detail: 'all': expected one of basic, standard, full\n"),
    ("collect[]=gpus&collect[]=rdma", "invalid collect[]: 'gpus': expected one of account, agent, "),
    ("exclude[]=" + "x" * 500, "invalid exclude[]: '" + "x" * 64 + "': expected one of account, agent, "),
    ("&".join(["a=1"] * 101), "invalid query: expected at most 100 parameters"),
])  # fmt: skip
def test_an_invalid_query_is_answered_with_what_was_expected(
    agent: Agent, query: str, problem: str
) -> None:
    status, text = scrape(agent, query)
    assert status == HTTPStatus.BAD_REQUEST
    assert text.startswith(f"400: {problem}")
    assert len(text) < 2_000


def test_groups_have_a_detail_of_their_own() -> None:
    agent = read_agent(MetricsSettings(groups={"storage": "off", "host": "full"}))
    shown, basic = scraped_names(agent), scraped_names(agent, "detail=basic")
    assert not any(SUBJECT_OF[name] == "storage" for name in shown)
    assert {METRICS[name].detail for name in shown if SUBJECT_OF[name] == "host"} > {DETAILS[0]}
    assert {METRICS[name].detail for name in basic} == {DETAILS[0]}, "a query replaces the settings"
    for detail in DETAILS:
        shown = scraped_names(agent, f"detail={detail}")
        assert not any(SUBJECT_OF[name] == "storage" for name in shown)


def test_a_disabled_source_is_not_read() -> None:
    agent = read_agent(MetricsSettings(disabled_sources="rdma optics"))
    assert {"rdma", "optics"}.isdisjoint(agent.sampler.statuses)
    assert "gpu" in agent.sampler.statuses


@pytest.mark.parametrize(("settings", "problem"), [
    (MetricsSettings(groups={"gpus": "off"}), "^invalid metrics.groups: 'gpus': expected one of account, agent, "),
    (MetricsSettings(disabled_sources="rdma x"),
     "^invalid metrics.disabled_sources: 'x': expected one of bonds, ceph, "),
    *((MetricsSettings(disabled_sources=f"rdma {name}"), f"disabled_sources: '{name}': expected sources that ")
      for name in ("tenancy", "gpu", "mig", "gpu_health", "kernel")),
])  # fmt: skip
def test_an_unknown_name_in_the_settings_is_an_error(
    settings: MetricsSettings, problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem) as raised:
        Agent(AgentSettings(node="n1", metrics=settings), FakeHost(), "n1")
    assert len(str(raised.value)) < 1_000
