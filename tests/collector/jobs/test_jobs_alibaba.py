"""A real cluster's month of 156 applications: whole GPUs, and parts of NICs in percent."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import groupby, islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.alibaba_trace import jobs_of_trace, nic_evidence, read_trace, units_of_share
from support.job_books import job_days, with_placeholders, write_jobs
from support.shared import capture_path

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.job_metering import timeline_entries
from railscope_collector.jobs.job_reconciliation import compare_jobs
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.units import Tiling
from railscope_collector.tables import metadata

NS = 1e9


@pytest.fixture(scope="module")
def trace() -> Path:
    return capture_path("jobs/alibaba-v2025-disaggregated_DLRM_trace.csv.gz")


def straight(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Application, nanoseconds, GPUs and percent of a NIC of each instance, read independently."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    last = max(float(row["deletion_time"]) for row in rows if row["deletion_time"])
    for row in rows:
        start, end = float(row["scheduled_time"] or 0), float(row["deletion_time"] or last)
        length = round(end * NS) - round(start * NS)
        if length > 0:
            yield row["app_name"], length, int(row["gpu_request"]), int(row["rdma_request"])


@pytest.mark.thorough  # below: the same of some of its GPUs
def test_every_application_has_its_gpus_to_the_nanosecond(trace):
    expected: Counter[str] = Counter()
    for application, length, gpus, _ in straight(trace):
        expected[application] += gpus * length * GPU_CAPACITY
    found: Counter[str] = Counter()
    listed = with_placeholders(jobs_of_trace(read_trace(trace)))
    tiled: Counter[Tiling] = Counter()
    for day in job_days(listed):
        for entry in day.entries:
            tiled[entry.tiling] += entry.quantity
            if entry.tenant and entry.tiling is Tiling.COMPUTE:
                found[entry.tenant] += entry.quantity
    assert found == Counter({name: total for name, total in expected.items() if total})
    assert tiled[Tiling.COMPUTE] == tiled[Tiling.MEMORY] > found.total()
    assert len(found) > 100


def test_the_ledger_of_some_of_its_gpus_equals_the_list(trace, tmp_path):
    listed = with_placeholders(jobs_of_trace(read_trace(trace)))
    gpus = {gpu for job in listed for gpu in job.gpus if int(gpu.address) % 40 == 1}
    some = [job for job in listed if gpus.issuperset(job.gpus)]
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}", metadata)
    assert write_jobs(ledger, some).added > 1000
    found = compare_jobs(ledger.entries(0, FOREVER_NS), some, 0)
    ledger.close()
    assert found.agrees
    assert found.jobs == len(some) > 100


def test_parts_of_nics_that_are_whole_units_are_exact_and_the_others_are_reported(trace):
    expected: Counter[str] = Counter()
    inexact = 0
    for application, length, _, percent in straight(trace):
        if percent % 5:
            inexact += 1
        else:
            expected[application] += GPU_CAPACITY * percent // 100 * length
    metered, left = nic_evidence(read_trace(trace))
    assert len(left) == inexact
    assert {one.nic for one in left} == {Fraction(1, 100), Fraction(51, 100)}
    found: Counter[str] = Counter()
    for nic_percent in metered:
        for entry in timeline_entries(nic_percent):
            if entry.tenant and entry.tiling is Tiling.COMPUTE:
                found[entry.tenant] += entry.quantity
    assert found == expected


def test_no_part_of_a_nic_is_given_twice(trace):
    metered, _ = nic_evidence(read_trace(trace))
    for nic_percent in islice(metered, 200):
        claims = sorted(nic_percent.claims, key=lambda claim: (claim.compute, claim.start_ns))
        for _, own in groupby(claims, key=lambda claim: claim.compute):
            spans = [(claim.start_ns, claim.end_ns) for claim in own]
            assert all(before[1] <= after[0] for before, after in pairwise(spans))


@given(st.integers(1, 1000))
def test_a_portion_is_exact_or_none(thousandths):
    part = Fraction(thousandths, 1000)
    units = units_of_share(part)
    assert (units is not None) == (thousandths % 25 == 0)
    assert units is None or Fraction(units, GPU_CAPACITY) == part


def test_every_way_to_share_among_eight_is_exact():
    assert [units_of_share(Fraction(1, of)) for of in range(1, 9)] == [
        840,
        420,
        280,
        210,
        168,
        140,
        120,
        105,
    ]
    for wrong in (Fraction(0), Fraction(-1, 2), Fraction(3, 2)):
        with pytest.raises(ValueError, match="invalid part of a device"):
            units_of_share(wrong)
