"""Queries of a dashboard, sent to a server with the API of Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given, strategies as st

from railscope_dashboards.prometheus_api import (
    Prometheus,
    PrometheusError,
    QueryWindow,
    fill_variables,
)

NODES = {"name": "node", "type": "query", "includeAll": False, "sort": 7,
         "query": "label_values(railscope_node_info, node)"}  # fmt: skip
RAILS = {"name": "rail", "type": "query", "includeAll": False, "sort": 7,
         "query": 'label_values(railscope_nic_info{node="$node"}, rail)'}  # fmt: skip
SOURCE = {"name": "datasource", "type": "datasource"}
SEVERAL = {"name": "node", "type": "query", "includeAll": True, "allValue": ".*"}


class PreparedClient:
    """Client that returns prepared answers and records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answers: dict[str, Any] = {}
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query)))
        answer = self.answers[request.path.removeprefix("/api/v1/")]
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)


@pytest.fixture
async def server() -> AsyncIterator[PreparedClient]:
    made = PreparedClient()
    application = web.Application()
    application.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield made
    await runner.cleanup()


def good(data: Any) -> dict[str, Any]:
    return {"status": "success", "data": data}


def test_variables_are_filled_in_and_unknown_ones_left():
    values = {"node": "n1", "__rate_interval": "5s"}
    text = 'rate(x{node="$node", rail="${rail}"}[$__rate_interval])'
    assert fill_variables(text, values) == 'rate(x{node="n1", rail="${rail}"}[5s])'
    assert fill_variables("${node}", values) == "n1"


@given(
    st.floats(1e9, 2e9),
    st.floats(1, 1e6),
    st.sampled_from([1.0, 2.0, 15.0, 60.0]),
    st.integers(1, 2000),
)
def test_instants_lie_evenly_and_never_closer_than_scrapes(
    start: float, length: float, scrape: float, points: int
):
    grid = QueryWindow(start, start + length, scrape).grid(points)
    assert len(grid) >= 1
    assert len(grid) <= points + 2
    if len(grid) > 1:
        steps = np.diff(grid)
        assert steps.min() >= scrape
        assert np.allclose(steps, steps[0])
        assert start <= grid[0]
        assert grid[-1] <= start + length


def test_a_rate_covers_four_scrapes_at_least():
    window = QueryWindow(0, 600, 15)
    assert window.rate_interval() == "60s"
    assert window.rate_interval(300) == "315s"


async def test_values_are_placed_at_their_instants(server: PreparedClient):
    values = [[1000, "1"], [1030, "NaN"], [1045, "+Inf"]]
    result = {"resultType": "matrix", "result": [{"metric": {"node": "n"}, "values": values}]}
    server.answers["query_range"] = good(result)
    async with Prometheus(server.url) as prometheus:
        answer = await prometheus.query_range("up", np.array([1000.0, 1015.0, 1030.0, 1045.0]))
    (one,) = answer.series
    assert one.labels == {"node": "n"}
    np.testing.assert_array_equal(one.values, [1, np.nan, np.nan, np.inf])
    assert server.asked[0][1]["step"] == "15.0"


async def test_a_scalar_has_no_labels(server: PreparedClient):
    server.answers["query"] = good({"resultType": "scalar", "result": [1000, "7"]})
    async with Prometheus(server.url) as prometheus:
        (one,) = (await prometheus.query_instant("7", 1000.0)).series
    assert (one.labels, one.values.tolist()) == ({}, [7.0])


async def test_the_first_value_in_natural_order_is_chosen_and_later_ones_follow_from_it(
    server: PreparedClient,
):
    server.answers["label/node/values"] = good(["gpu-10", "gpu-2"])
    server.answers["label/rail/values"] = good(["0", "3"])
    async with Prometheus(server.url) as prometheus:
        assert await prometheus.choose_values([SOURCE, NODES, RAILS], {}) == {
            "datasource": "",
            "node": "gpu-2",
            "rail": "0",
        }
        assert server.asked[-1][1]["match[]"] == 'railscope_nic_info{node="gpu-2"}'
        wanted = await prometheus.choose_values([SOURCE, NODES, RAILS], {"rail": "3"})
        assert wanted["rail"] == "3"
        every = [choice async for choice in prometheus.choices([NODES, RAILS])]
    assert len(every) == 4
    assert {"node": "gpu-10", "rail": "3"} in every


async def test_a_variable_of_several_values_takes_all(server: PreparedClient):
    async with Prometheus(server.url) as prometheus:
        assert await prometheus.choose_values([SEVERAL], {"node": "gpu-2"}) == {"node": ".*"}


async def test_a_value_that_is_not_offered_is_an_error_that_names_those_that_are(
    server: PreparedClient,
):
    server.answers["label/node/values"] = good(["gpu-1", "gpu-2"])
    async with Prometheus(server.url) as prometheus:
        with pytest.raises(PrometheusError, match="unknown node gpu-7: expected gpu-1, gpu-2"):
            await prometheus.choose_values([NODES], {"node": "gpu-7"})


async def test_a_query_that_is_rejected_is_an_error_with_its_reason(server: PreparedClient):
    server.answers["query"] = {"status": "error", "error": "parse error"}
    async with Prometheus(server.url) as prometheus:
        with pytest.raises(PrometheusError, match="parse error"):
            await prometheus.query_instant("up{", 0.0)


async def test_a_server_other_than_prometheus_is_an_error(server: PreparedClient):
    server.answers["query"] = "<html>hello</html>"
    async with Prometheus(server.url) as prometheus:
        with pytest.raises(PrometheusError, match="expected the JSON of the API of Prometheus"):
            await prometheus.query_instant("up", 0.0)
    async with Prometheus("http://127.0.0.1:1") as prometheus:
        with pytest.raises(PrometheusError, match="no response from"):
            await prometheus.query_instant("up", 0.0)
