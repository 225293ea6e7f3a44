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
from support.metric_samples import sample, samples

from railscope.capture import write_capture
from railscope.catalog import METRICS, SUBJECT_OF, SUBJECTS
from railscope.catalog.declare import MetricDetail, MetricKind
from railscope.catalog.entities import NODE
from railscope.exposition import MetricSelection
from railscope.http_server import HttpServerRequest
from railscope.reading import Absent
from railscope.settings import SettingsError, load
from railscope_agent.commands import agent as agent_command
from railscope_agent.commands.running_agent import QUERY
from railscope_agent.config import (
    AgentSettings,
    BudgetSettings,
    BurstSettings,
    MetricsSettings,
    SourcePeriods,
    TextfileSettings,
)
from railscope_agent.endpoint.metrics_endpoint import UNUSED_NS, ExpositionCache, MetricsEndpoint
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
    ("detail", "max_series"), [("basic", 1500), ("standard", 3500), ("full", 9000)]
)
def test_the_metrics_of_a_node_are_few(usual_node: Path, detail: str, max_series: int) -> None:
    arguments = ["once", "--detail", detail, "--replay", str(usual_node)]
    outcome = CliRunner().invoke(
        agent_command, arguments, env={"RAILSCOPE_AGENT_READ_TIMEOUT_SECONDS": "60"}
    )
    assert outcome.exit_code == 0, outcome.output
    lines = [line for line in outcome.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) <= max_series


@pytest.mark.parametrize("name", sorted(name for name, metric in METRICS.items() if metric.sparse))
def test_the_help_of_a_metric_without_zeros_names_one_that_is_always_present(name: str) -> None:
    metric = METRICS[name]
    total = METRICS[metric.total]
    assert not total.sparse
    assert metric.detail.includes(total.detail)
    of_device = {*metric.about.outermost.labels} <= {*total.about.labels}
    assert of_device or total.about.outermost is NODE
    assert "otherwise" not in metric.help
    appears = (
        "Absent at zero"
        if metric.kind is MetricKind.GAUGE
        else "A series appears with its first non-zero value"
    )
    assert metric.help.endswith(f" {appears}; {total.name} is always present.")


def test_a_metric_without_zeros_has_one_that_is_always_present(agent: Agent) -> None:
    shown = samples(scrape(agent, "detail=full")[1])
    zeros = 0
    for frame in agent.endpoint.fresh_frames():
        for column, (metric, entity) in enumerate(frame.schema.columns):
            if metric.sparse and not isinstance(frame.reading(column), Absent):
                labels = zip(entity.kind.labels, entity.key, strict=True)
                of_total = METRICS[metric.total].about.labels
                device = {(name, value) for name, value in labels if name in of_total}
                assert any(name == metric.total and device <= labels for name, labels in shown), (
                    f"{metric.name} of {entity.key}"
                )
                zeros += 1
    assert zeros > 500


def test_the_default_is_basic(agent: Agent) -> None:
    assert scraped_names(agent) == scraped_names(agent, "detail=basic")
    assert scraped_names(agent, "x=1&detail=") == scraped_names(agent)


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


def test_a_source_is_selected_by_its_name(agent: Agent) -> None:
    shown = scraped_names(agent, "collect[]=rdma&detail=full")
    assert "railscope_rdma_port_up" in shown
    assert not any(name.startswith("railscope_gpu_") for name in shown)


def test_the_check_of_a_running_agent_reads_all_metrics_of_the_agent(agent: Agent) -> None:
    shown = scraped_names(agent, QUERY)
    assert shown == {
        name for name in scraped_names(agent, "detail=full") if SUBJECT_OF[name] == "agent"
    }
    assert {"railscope_source_period_seconds", "railscope_source_stretch_ratio"} <= shown


def test_statistics_of_sources_are_sums_unless_all_detail_is_requested(agent: Agent) -> None:
    full = samples(scrape(agent, "detail=full")[1])
    for detail in DETAILS[:2]:
        names = scraped_names(agent, f"detail={detail}&collect[]=agent")
        of_sources = {name for name in names if METRICS[name].about.outermost.labels == ("source",)}
        assert of_sources == {
            "railscope_source_state",
            "railscope_source_age_seconds",
            "railscope_source_absent_readings",
        }
    for total, of_source in (
        ("railscope_agent_reads_total", "railscope_source_reads_total"),
        ("railscope_agent_missed_ticks_total", "railscope_source_missed_ticks_total"),
        ("railscope_agent_read_cpu_seconds_total", "railscope_source_cpu_seconds_total"),
    ):
        parts = [value for (name, _), value in full.items() if name == of_source]
        assert full[sample(total)] == pytest.approx(sum(parts))
    stretched = [
        value > 1 for (name, _), value in full.items() if name == "railscope_source_stretch_ratio"
    ]
    assert full[sample("railscope_agent_stretched_sources")] == sum(stretched)


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


def test_many_selections_leave_the_others_as_they_are(agent: Agent) -> None:
    before = scrape(agent)
    for name in SUBJECTS:
        scrape(agent, f"exclude[]={name}")
    assert scrape(agent) == before


def test_the_cache_keeps_the_configured_selection_and_two_others() -> None:
    now_ns = [0]
    cache = ExpositionCache(lambda: now_ns[0])
    cache.configured = MetricSelection(MetricDetail.BASIC)
    kept = cache.exposition(cache.configured)
    others = [MetricSelection(excluded=frozenset({name})) for name in list(SUBJECTS)[:3]]
    cached = [cache.exposition(selection) for selection in others]
    assert set(cache.cached) == {cache.configured, *others[1:]}
    assert cache.exposition(others[2]) is cached[2]
    now_ns[0] += UNUSED_NS
    assert cache.exposition(others[1]) is cached[1]
    now_ns[0] += 1
    cache.drop_unused()
    assert set(cache.cached) == {cache.configured, others[1]}, "the last one is unused for too long"
    assert cache.exposition(cache.configured) is kept


def test_any_request_drops_selections_that_are_not_requested() -> None:
    now_ns = [0]
    endpoint = MetricsEndpoint("n1", list, lambda: now_ns[0], "")
    for query in ("", "detail=basic", "detail=standard"):
        endpoint.respond(HttpServerRequest("/metrics", {}, query=query))
    assert len(endpoint.expositions.cached) == 3
    now_ns[0] += UNUSED_NS + 1
    endpoint.respond(HttpServerRequest("/-/healthy", {}))
    assert set(endpoint.expositions.cached) == {endpoint.expositions.configured}


def test_metrics_of_dcgm_have_no_parameters(agent: Agent) -> None:
    for query in ("detail=full", "collect[]=gpu", "x=1", "x" * 500):
        response = agent.endpoint.respond(HttpServerRequest("/metrics/dcgm", {}, query=query))
        text = response.body.decode()
        assert response.status == HTTPStatus.BAD_REQUEST
        assert text.startswith(f"400: invalid query: {query[:64]!r}: expected no parameters ")
        assert len(text) < 300
    assert agent.endpoint.respond(HttpServerRequest("/metrics/dcgm", {})).status == HTTPStatus.OK


def test_groups_have_a_detail_of_their_own() -> None:
    agent = read_agent(MetricsSettings(groups={"storage": "off", "host": "full"}))
    shown, basic = scraped_names(agent), scraped_names(agent, "detail=basic")
    assert not any(SUBJECT_OF[name] == "storage" for name in shown)
    assert {METRICS[name].detail for name in shown if SUBJECT_OF[name] == "host"} > {DETAILS[0]}
    assert {METRICS[name].detail for name in basic} == {DETAILS[0]}, "a query replaces the settings"
    for detail in DETAILS:
        shown = scraped_names(agent, f"detail={detail}")
        assert not any(SUBJECT_OF[name] == "storage" for name in shown)


def test_each_source_has_the_period_of_its_name() -> None:
    """The window of burst sampling of NICs is in its own section, with burst sampling as a whole."""
    names = SourcePeriods.__struct_fields__
    configured = {name: 10.0 + number for number, name in enumerate(names)}
    settings = AgentSettings(
        node="n1",
        period_seconds=SourcePeriods(**configured),
        textfile=TextfileSettings(directory="/site"),
    )
    sources = Agent(settings, FakeHost(), "n1").sampler.sources
    periods = {source.name: source.period_seconds for source in sources}
    assert periods.pop("nic_burst") == BurstSettings().window_seconds
    assert periods == configured


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


@pytest.mark.parametrize(("text", "problem"), [
    ('detail = "all"', "invalid detail in {}: 'all': expected one of basic, standard, full"),
    ('groups = { gpu = "all" }', "invalid groups.gpu in {}: 'all': expected one of off, basic, standard, full"),
    ('groups = "all"', "invalid groups in {}: expected a table such as {{ a = 1 }}: "),
])  # fmt: skip
def test_the_error_of_an_invalid_value_lists_the_allowed_ones(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"[metrics]\n{text}\n")
    with pytest.raises(SettingsError) as raised:
        load(AgentSettings, file=file, environment={}, prefix="RAILSCOPE_AGENT_")
    assert str(raised.value).startswith(problem.format(f"{file} [metrics]"))
