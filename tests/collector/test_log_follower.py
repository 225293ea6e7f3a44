"""Following a frame log: growth, rotation, retention, torn and damaged records, restart from a position."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from railscope.wire import SentAt
from railscope_collector.framelog import segment_files
from railscope_collector.framelog.log_follower import LogFollower, LogPosition
from railscope_collector.framelog.segment_files import FrameRecord


def record(number: int, size: int = 50) -> FrameRecord:
    return FrameRecord(f"n{number}", number, SentAt(1, 2, "b"), bytes([number % 256]) * size)


class GrowingLog:
    """A log that is written byte by byte."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.number = directory, 0
        self.rotate()

    def rotate(self) -> None:
        """Continue in a new segment."""
        self.number += 1
        descriptor, self.marker = segment_files.start_segment(self.directory, self.number)
        os.close(descriptor)

    def encoded(self, number: int, size: int = 50) -> bytes:
        """A record as it is stored."""
        payload = segment_files.encode_record(record(number, size))
        return segment_files.frame_payload(self.marker, payload)

    def write(self, content: bytes) -> None:
        """Append bytes to the present segment."""
        with segment_files.segment_path(self.directory, self.number).open("ab") as file:
            file.write(content)

    def delete(self, number: int) -> None:
        """Delete a segment, as retention does."""
        segment_files.segment_path(self.directory, number).unlink()


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    return GrowingLog(tmp_path)


def numbers(follower: LogFollower) -> list[int]:
    found = []
    while records := follower.read():
        found += [each.received_wall_ns for each in records]
    return found


def test_records_are_read_while_the_log_grows_across_segments(log: GrowingLog) -> None:
    follower = LogFollower(log.directory)
    assert numbers(follower) == []
    log.write(log.encoded(1) + log.encoded(2))
    assert numbers(follower) == [1, 2]
    log.write(log.encoded(3))
    log.rotate()
    log.write(log.encoded(4))
    assert numbers(follower) == [3, 4]
    assert (follower.damaged_records, follower.lost_segments) == (0, 0)
    assert follower.count_waiting_bytes() == 0
    log.write(log.encoded(5))
    assert follower.count_waiting_bytes() == len(log.encoded(5))


def test_a_torn_tail_is_waited_for(log: GrowingLog) -> None:
    follower, whole = LogFollower(log.directory), log.encoded(2)
    log.write(log.encoded(1))
    for byte in whole[:-1]:
        log.write(bytes([byte]))
        assert numbers(follower) in ([], [1])
    log.write(whole[-1:])
    assert numbers(follower) == [2]
    assert follower.damaged_records == 0


def test_a_torn_tail_that_a_restart_cuts_off_is_no_record(log: GrowingLog) -> None:
    follower = LogFollower(log.directory)
    log.write(log.encoded(1) + log.encoded(2)[:-3])
    assert numbers(follower) == [1]
    os.truncate(segment_files.segment_path(log.directory, 1), len(log.encoded(1)))
    log.write(log.encoded(3))
    assert numbers(follower) == [3]
    assert follower.damaged_records == 0


def test_a_record_whose_write_was_undone_does_not_hide_its_successors(log: GrowingLog) -> None:
    follower = LogFollower(log.directory)
    log.write(log.encoded(1) + log.encoded(2))
    assert numbers(follower) == [1, 2]
    os.truncate(segment_files.segment_path(log.directory, 1), len(log.encoded(1)))
    assert numbers(follower) == []
    log.write(log.encoded(3))
    assert numbers(follower) == [3]


def test_a_torn_end_of_a_full_segment_is_counted(log: GrowingLog) -> None:
    follower = LogFollower(log.directory)
    log.write(log.encoded(1) + log.encoded(2)[:-3])
    log.rotate()
    log.write(log.encoded(3))
    assert numbers(follower) == [1, 3]
    assert follower.damaged_records == 1


@pytest.mark.parametrize("place", [0, 17, 20, 30])
def test_a_damaged_record_is_counted_and_passed_over(log: GrowingLog, place: int) -> None:
    follower = LogFollower(log.directory)
    damaged = bytearray(log.encoded(2))
    damaged[place] ^= 0xFF
    log.write(log.encoded(1) + bytes(damaged) + log.encoded(3))
    assert numbers(follower) == [1, 3]
    assert follower.damaged_records == 1


def test_a_segment_that_retention_deletes_while_it_is_read_is_read_to_its_end(
    log: GrowingLog,
) -> None:
    follower = LogFollower(log.directory, read_bytes=100)
    log.write(b"".join(map(log.encoded, range(1, 9))))
    first = follower.read()
    assert [each.received_wall_ns for each in first] == [1]
    log.rotate()
    log.write(log.encoded(9))
    log.delete(1)
    assert numbers(follower) == list(range(2, 10))
    assert follower.lost_segments == 0


def test_segments_that_were_deleted_before_they_were_read_are_counted(log: GrowingLog) -> None:
    log.write(log.encoded(1))
    follower = LogFollower(log.directory)
    assert numbers(follower) == [1]
    position = follower.position
    follower.close()
    for number in (2, 3, 4):
        log.rotate()
        log.write(log.encoded(number))
    for number in (1, 2):
        log.delete(number)
    restarted = LogFollower(log.directory, position)
    assert numbers(restarted) == [3, 4]
    assert restarted.lost_segments == 2


def test_numbers_that_the_collector_left_out_are_not_lost(log: GrowingLog) -> None:
    log.write(log.encoded(1))
    follower = LogFollower(log.directory)
    assert numbers(follower) == [1]
    log.number = 4
    log.rotate()
    log.write(log.encoded(2))
    assert numbers(follower) == [2]
    assert follower.lost_segments == 0


def test_old_segments_are_passed_over_by_the_time_of_their_successor(log: GrowingLog) -> None:
    for number in (10, 20, 30):
        log.write(log.encoded(number) + log.encoded(number + 1))
        log.rotate()
    follower = LogFollower(log.directory)
    follower.skip_before(25)
    assert numbers(follower) == [20, 21, 30, 31]
    assert follower.lost_segments == 0
    newest = LogFollower(log.directory)
    newest.skip_before(99)
    assert numbers(newest) == [30, 31], "the last segment is empty"


def test_a_record_may_be_longer_than_one_read(log: GrowingLog) -> None:
    follower = LogFollower(log.directory, read_bytes=64)
    log.write(log.encoded(1, 10_000) + log.encoded(2))
    assert numbers(follower) == [1, 2]
    assert follower.damaged_records == 0


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=30),
    st.lists(st.integers(1, 120), max_size=60),
    st.sets(st.integers(0, 29)),
    st.sets(st.integers(0, 59)),
    st.integers(24, 400),
)
@settings(deadline=None)
def test_every_record_is_read_once_however_it_is_written_and_whenever_the_reader_restarts(  # noqa: PLR0913, PLR0917 - drawn
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    pieces: list[int],
    rotations: set[int],
    restarts: set[int],
    read_bytes: int,
) -> None:
    log = GrowingLog(tmp_path_factory.mktemp("log"))
    follower = LogFollower(log.directory, read_bytes=read_bytes)
    found: list[int] = []
    turn, lengths = 0, iter(pieces)
    for number, size in enumerate(sizes):
        content = log.encoded(number, size)
        while content:
            length = next(lengths, len(content))
            log.write(content[:length])
            content = content[length:]
            found += numbers(follower)
            turn += 1
            if turn in restarts:
                position = LogPosition(*follower.position)
                follower.close()
                follower = LogFollower(log.directory, position, read_bytes=read_bytes)
        if number in rotations:
            log.rotate()
    found += numbers(follower)
    assert found == list(range(len(sizes)))
    assert (follower.damaged_records, follower.lost_segments) == (0, 0)
