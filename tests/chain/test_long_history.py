"""Real Prometheus and VictoriaMetrics as long-term stores: what is sent is read back, by remote write, import or lines."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chain_support import ProgramDirectory, debian_server, wait_until

from railscope.catalog import collector as catalog
from railscope_collector.config import RemoteWriteSettings
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.sinks.remote_write import RemoteWriteSink
from railscope_simulator.demo.process import free_port

NAME = catalog.NODE_CLOCK_OFFSET.name
NODES = ("n1", 'a"b\\c,d=e', "ü\nrail")
SECOND_NS = 1_000_000_000
Periods = list[tuple[int, list[ViewCell]]]


@asynccontextmanager
async def prometheus(port: int, directory: Path) -> AsyncIterator[None]:
    (directory / "prometheus.yml").write_text("{}")
    command = [
        "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
        "--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    async with debian_server("prometheus", *command, directory=directory):
        yield


@asynccontextmanager
async def victoria(port: int, directory: Path) -> AsyncIterator[None]:
    command = [
        "victoria-metrics", f"-httpListenAddr=127.0.0.1:{port}", "-storageDataPath=vm", "-search.latencyOffset=0s",
        "-search.disableCache", "-influxSkipSingleField",
    ]  # fmt: skip
    async with debian_server("victoria-metrics", *command, directory=directory):
        yield


STORES = {
    "Prometheus": (prometheus, "/api/v1/write", "remote_write"),
    "remote write to VictoriaMetrics": (victoria, "/api/v1/write", "remote_write"),
    "import": (victoria, "/api/v1/import/prometheus", "victoriametrics"),
}
EACH_STORE = [
    "Prometheus",
    *(pytest.param(name, marks=pytest.mark.thorough) for name in [*STORES][1:]),
]


async def get(port: int, path: str, **parameters: str) -> Any:
    """Return the data of a response; None while the server is away."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}", params=parameters) as response,
        ):
            return (await response.json())["data"]
    except (aiohttp.ClientError, json.JSONDecodeError):
        return None


async def samples(port: int, name: str = NAME) -> dict[str, list[tuple[float, float]]]:
    """Return the raw samples of a metric by its node; other labels are those of all series."""
    data = await get(port, "/api/v1/query", query=f"{name}[3h]")
    found = {}
    for series in (data or {}).get("result", ()):
        labels = dict(series["metric"])
        assert labels.pop("__name__") == name
        assert (labels.pop("job"), labels.pop("instance")) == ("railscope-collector", "head:9470")
        found[labels.pop("node")] = [(time, float(value)) for time, value in series["values"]]
        assert not labels
    return found


def periods(count: int, end_ns: int) -> Periods:
    """Return some periods up to a time, one second apart."""
    return [
        (
            end_ns - (count - second) * SECOND_NS,
            [
                ViewCell(catalog.NODE_CLOCK_OFFSET, (node,), round(second / 10 - 1e-7 * index, 7))
                for index, node in enumerate(NODES)
            ],
        )
        for second in range(1, count + 1)
    ]


def expected(sent: Iterable[tuple[int, list[ViewCell]]]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for timestamp_ns, cells in sent:
        for cell in cells:
            sample = (timestamp_ns // 1_000_000 / 1000, cell.value)
            found.setdefault(cell.labels[0], []).append(sample)
    return found


@asynccontextmanager
async def writing(
    port: int, path: str, form: str, sent: Periods, **settings: Any
) -> AsyncIterator[RemoteWriteSink]:
    """A sink that writes periods one after another."""
    configured = RemoteWriteSettings(
        url=f"http://127.0.0.1:{port}{path}", format=form, period_seconds=0.1, **settings
    )
    steps = iter(sent)
    sink = RemoteWriteSink(configured, lambda: next(steps, (sent[-1][0], [])), "head:9470")
    task = asyncio.create_task(sink.run())
    try:
        yield sink
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize("store", EACH_STORE)
async def test_samples_that_wait_for_the_server_are_all_written(store: str, tmp_path: Path):
    server, path, form = STORES[store]
    port = free_port()
    sent = periods(8, time.time_ns())
    async with writing(port, path, form, sent) as sink:

        async def queued() -> bool:
            return sink.writer.waiting >= 7 * len(NODES)

        await wait_until(queued, "samples wait")
        async with server(port, tmp_path):

            async def stored() -> bool:
                return await samples(port) == expected(sent)

            await wait_until(stored, "the store has all samples")
    writer = sink.writer
    assert (writer.written, writer.dropped, writer.waiting) == (8 * len(NODES), 0, 0)


@pytest.mark.parametrize("store", EACH_STORE)
async def test_the_store_has_the_series_of_the_metrics_endpoint(
    store: str, site: ProgramDirectory, tmp_path: Path
):
    server, path, form = STORES[store]
    site.prepare({"n1": "training"})
    port = free_port()
    collector = await site.collector(
        RAILSCOPE_COLLECTOR_REMOTE_WRITE__URL=f"http://127.0.0.1:{port}{path}",
        RAILSCOPE_COLLECTOR_REMOTE_WRITE__FORMAT=form,
        RAILSCOPE_COLLECTOR_REMOTE_WRITE__PERIOD_SECONDS="0.5",
        RAILSCOPE_COLLECTOR_REMOTE_WRITE__LABELS='{ job = "railscope-collector", instance = "" }',
    )
    await site.agent("n1")
    await collector.find_logged("sink_connection_failed")
    async with server(port, tmp_path):
        await collector.find_logged("sink_connected")

        async def same() -> bool:
            data = await get(port, "/api/v1/series", **{"match[]": '{job="railscope-collector"}'})
            stored = {
                f"{series.pop('__name__')}{json.dumps(series, sort_keys=True)}"
                for series in data or ()
                if series.pop("job")
            }
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{site.url}/metrics") as page,
            ):
                exposed = series_of_page(await page.text())
            return any("sum_gpu_power" in each for each in exposed) and exposed <= stored

        await wait_until(same, "the store has every series", every=0.5)


def series_of_page(text: str) -> set[str]:
    """Return the series of an exposition whose label values need no escapes."""
    found = set()
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, inner = line.rpartition(" ")[0].partition("{")
            pairs = [pair.split('="', 1) for pair in inner.removesuffix('"}').split('",') if pair]
            labels = {label: value for label, value in pairs if value}
            found.add(f"{name}{json.dumps(labels, sort_keys=True)}")
    return found


@pytest.mark.thorough
async def test_victoria_metrics_takes_the_views_as_line_protocol(
    site: ProgramDirectory, tmp_path: Path
):
    site.prepare({"n1": "training"})
    port = free_port()
    collector = await site.collector(
        RAILSCOPE_COLLECTOR_INFLUX__URL=f"http://127.0.0.1:{port}",
        RAILSCOPE_COLLECTOR_INFLUX__PERIOD_SECONDS="0.5",
    )
    await site.agent("n1")
    await collector.find_logged("sink_connection_failed")
    async with victoria(port, tmp_path):
        await collector.find_logged("sink_connected")

        async def written() -> bool:
            data = await get(port, "/api/v1/query", query="railscope_rail_sum_gpu_power_watts > 0")
            rails = sorted(series["metric"]["rail"] for series in (data or {}).get("result", ()))
            return rails == ["0", "1"]

        await wait_until(written, "VictoriaMetrics has the power of each rail")
