"""Counters of two servers before and after injected RDMA faults: both instants, and what grew."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator

import pytest
from support.machine import FakeHost
from support.nics import set_statistics
from support.reading import ORIGIN, Label, numbers
from support.shared import capture_path

from railscope.catalog.declare import Metric
from railscope.catalog.rdma import meaning
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.ethtool_statistics import DRIVERS
from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.sources.rdma import RdmaSource

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
OF_THE_LINK = {
    "port_rcv_errors",
    "local_link_integrity_errors",
    "link_error_recovery",
    "link_downed",
}
Row = dict[str, str]


def trials(file: str) -> Iterator[list[Row]]:
    """Return the rows of each trial and side; a new trial begins where a counter occurs again."""
    found: dict[str, list[Row]] = defaultdict(list)
    lines = capture_path(f"ethtool/rdma-fault/{file}").read_text().splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        rows = found[row["side"]]
        if any(row["counter"] == earlier["counter"] for earlier in rows):
            yield found.pop(row["side"])
            rows = found[row["side"]]
        rows.append(row)
    yield from found.values()


def rdma_metric(name: str) -> Metric | None:
    return None if name == "lifespan" else meaning("mlx5", name)


def nic_metric(name: str) -> Metric | None:
    return dict(DRIVERS["mlx5_core"]).get(name)


def rdma_host(rows: list[Row], moment: str) -> FakeHost:
    host = FakeHost()
    for row in rows:
        directory = "counters" if row["counter"] in OF_THE_LINK else "hw_counters"
        host.files[f"{PORT}/{directory}/{row['counter']}"] = row[moment]
    return host


def nic_host(rows: list[Row], moment: str) -> FakeHost:
    host = FakeHost()
    set_statistics(host, "mlx5_core", {row["counter"]: int(row[moment]) for row in rows})
    return host


def read_both(source: Source, before: FakeHost, after: FakeHost) -> list[dict[Label, float]]:
    """Return the readings of one source at both instants."""
    reader = SourceReader(source, before, ORIGIN)
    first = numbers(reader.run().frame)
    before.files, before.calls = after.files, after.calls
    return [first, numbers(reader.run().frame)]


CASES = {
    "RETRY_EXC_LINK_DOWN.csv": (RdmaSource, rdma_host, rdma_metric, ("mlx5_0", "1"), 6),
    "ethtool_RETRY_EXC_QP_ERR.csv": (NicSource, nic_host, nic_metric, ("eth0",), 6),
}


@pytest.mark.parametrize("file", CASES)
def test_both_instants_of_a_fault_and_the_growth_between(file: str) -> None:
    source, host, metric_of, key, count = CASES[file]
    all_trials = list(trials(file))
    assert len(all_trials) == count
    grown = 0
    for rows in all_trials:
        before, after = read_both(source(), host(rows, "before"), host(rows, "after"))
        checked = set()
        for row in rows:
            metric = metric_of(row["counter"])
            if metric is None:
                assert row["counter"] == "lifespan", "all others are typed"
                continue
            label = metric.name, key
            checked.add(label)
            scale = float(metric.scale)
            assert before[label] == pytest.approx(int(row["before"]) * scale)
            assert after[label] == pytest.approx(int(row["after"]) * scale)
            assert after[label] - before[label] == pytest.approx(
                int(row["delta"]) * scale, abs=1e-9
            )
            grown += int(row["delta"]) > 0
        assert {label for label in after if label[0].endswith("_total")} <= checked
    assert grown > 0
