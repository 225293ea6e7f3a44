"""The index of the frame log finds the records that reading whole segments finds."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from railscope.wire import SentAt
from railscope_collector.framelog.record_index import MAX_INDEXED_RECORDS, RecordIndex
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    FrameRecord,
    encode_record,
    frame_payload,
    read_segment,
    segment_numbers,
    segment_path,
    start_segment,
)

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
FOREVER_NS = START_NS * 2
NAMES = ["n0", "n1", "é" * 20, "long-" + "x" * 250]


def record(number: int, size: int = 50) -> FrameRecord:
    node = NAMES[number % len(NAMES)]
    return FrameRecord(
        node, START_NS + number * SECOND_NS, SentAt(1, 2, "b"), bytes([number % 256]) * size
    )


def write(directory: Path, segment: int, numbers: range) -> Path:
    descriptor, marker = start_segment(directory, segment)
    os.close(descriptor)
    path = segment_path(directory, segment)
    path.write_bytes(b"".join(frame_payload(marker, encode_record(record(n))) for n in numbers))
    return path


def stored(directory: Path, node: str) -> list[FrameRecord]:
    return [
        found
        for number in segment_numbers(directory)
        for _, found in read_segment(segment_path(directory, number), FrameLogStats())
        if found.node == node
    ]


def found_by(records: RecordIndex, node: str) -> list[FrameRecord]:
    return records.find(node, START_NS, FOREVER_NS, 1000).records


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for segment in range(1, 5):
        write(tmp_path, segment, range(segment * 20 - 20, segment * 20))
    return tmp_path


@pytest.mark.parametrize("node", [*NAMES, "unknown"])
def test_the_records_of_a_node_are_those_of_all_segments(directory: Path, node: str) -> None:
    records = RecordIndex(directory)
    assert found_by(records, node) == stored(directory, node)
    assert records.records == 80


def test_a_period_is_read_from_its_own_segments_only(directory: Path) -> None:
    records = RecordIndex(directory)
    from_ns, to_ns = START_NS + 44 * SECOND_NS, START_NS + 48 * SECOND_NS
    found = records.find("n0", from_ns, to_ns, 1000)
    assert found.records == [record(44), record(48)]
    assert records.records == 20, "only the third segment was indexed"
    assert found.oldest_ns == START_NS + 40 * SECOND_NS
    assert not found.is_truncated


def test_what_is_no_longer_stored_is_reported(directory: Path) -> None:
    segment_path(directory, 1).unlink()
    found = RecordIndex(directory).find("n0", START_NS, FOREVER_NS, 1000)
    assert found.oldest_ns == START_NS + 20 * SECOND_NS
    assert RecordIndex(directory / "none").find("n0", START_NS, FOREVER_NS, 9).oldest_ns == 0


def test_too_many_records_are_truncated_at_the_end(directory: Path) -> None:
    found = RecordIndex(directory).find("n0", START_NS, FOREVER_NS, 3)
    assert found.records == [record(0), record(4), record(8)]
    assert found.is_truncated


def test_new_records_are_found_and_those_of_deleted_segments_forgotten(directory: Path) -> None:
    records = RecordIndex(directory)
    found_by(records, "n0")
    path = segment_path(directory, 4)
    marker = bytes.fromhex(path.stem.split("-")[2])
    torn = frame_payload(marker, encode_record(record(80)))
    path.write_bytes(path.read_bytes() + torn[:-3])
    assert found_by(records, "n0") == stored(directory, "n0")
    path.write_bytes(path.read_bytes() + torn[-3:])
    segment_path(directory, 1).unlink()
    assert found_by(records, "n0") == [record(n) for n in range(20, 81, 4)]
    assert records.records == 61


def test_the_index_is_bounded(directory: Path) -> None:
    records = RecordIndex(directory, max_records=45)
    assert found_by(records, "n1") == stored(directory, "n1")
    assert records.records <= 45


def test_the_index_forgets_what_was_used_least_recently(tmp_path: Path) -> None:
    seconds = {1: range(10), 2: range(10, 15), 3: range(15, 17)}
    for segment, numbers in seconds.items():
        write(tmp_path, segment, numbers)
    records = RecordIndex(tmp_path, max_records=15)
    sizes = []
    for segment in (1, 2, 1, 3):
        received_ns = START_NS + seconds[segment][0] * SECOND_NS
        records.find("n0", received_ns, received_ns, 1000)
        sizes.append(records.records)
    assert sizes == [10, 15, 15, 12], "the second segment was forgotten"


def test_a_query_scans_a_bounded_size_and_reports_where_it_began(directory: Path) -> None:
    sizes = [segment_path(directory, segment).stat().st_size for segment in (3, 4)]
    for max_bytes, first in ((sum(sizes), 40), (sum(sizes) - 1, 60)):
        records = RecordIndex(directory, max_scanned_bytes=max_bytes)
        found = records.find("n0", START_NS, FOREVER_NS, 1000)
        assert found.oldest_ns == START_NS + first * SECOND_NS
        assert found.records == [record(number) for number in range(first, 80, 4)]
    found = records.find("n0", START_NS, FOREVER_NS, 1000)
    assert found.oldest_ns == START_NS + 40 * SECOND_NS, "a later query scans the next ones"


def test_the_index_stays_small() -> None:
    assert MAX_INDEXED_RECORDS * 16 <= 32 << 20


@settings(max_examples=150, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 7)), max_size=4),
    cut=st.integers(0, 300),
)
def test_damage_costs_only_the_damaged_records(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], cut: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    path = write(directory, 1, range(12))
    damaged = bytearray(path.read_bytes())
    for position, bit in flips:
        damaged[position % len(damaged)] ^= 1 << bit
    path.write_bytes(damaged[: len(damaged) - cut])
    records = RecordIndex(directory)
    for node in NAMES:
        found = found_by(records, node)
        missing = [each for each in stored(directory, node) if each not in found]
        # Except a first record that is damaged: the segment then has no time at which it begins.
        assert not missing or not records.records
        assert all(before != after for before, after in pairwise(found))
