"""A driver whose list of statistics grows, shrinks and renames between any two calls."""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from railscope_agent.host.ethtool_ioctl import Ethtool

INTERFACE = "ens1f0np0"
GSTRINGS, GSTATS, GSSET_INFO = 0x1B, 0x1D, 0x37


def value_of(name: str) -> int:
    """Return the counter value of a name, unique so that a wrong pair is detected."""
    return zlib.crc32(name.encode()) << 16


class RacingDriver:
    """A kernel with one NIC. `lists` are its successive statistics; with `fixed`, it contains
    commit 7b07be1ff1cb: an answer of another length than expected is empty, and never an overrun.
    """

    def __init__(self, lists: Sequence[Sequence[str]], *, fixed: bool) -> None:
        self.buffer = memoryview(bytearray(1 << 20))
        self.lists = list(lists)
        self.fixed = fixed
        self.changes: list[bool] = []
        self.asked: list[int] = []

    @property
    def names(self) -> Sequence[str]:
        return self.lists[0]

    def execute(self, interface: str) -> None:
        assert interface == INTERFACE
        if self.changes and self.changes.pop(0) and len(self.lists) > 1:
            self.lists.pop(0)
        (command,) = struct.unpack_from("=I", self.buffer)
        self.asked.append(command)
        if command == GSSET_INFO:
            struct.pack_into("=IIQI", self.buffer, 0, command, 0, 1 << 1, len(self.names))
        elif command == GSTRINGS:
            self._answer(8, 12, [name.encode().ljust(32, b"\0") for name in self.names])
        elif command == GSTATS:
            self._answer(4, 8, [struct.pack("=Q", value_of(name)) for name in self.names])

    def _answer(self, at: int, start: int, pieces: list[bytes]) -> None:
        (expected,) = struct.unpack_from("=I", self.buffer, at)
        assert expected, "the caller passed the expected length"
        if self.fixed and expected != len(pieces):
            pieces = []
        struct.pack_into("=I", self.buffer, at, len(pieces))
        content = b"".join(pieces)
        self.buffer[start : start + len(content)] = content

    def close(self) -> None:
        """Do nothing: no descriptor is open."""


statistic_names = [f"rx_prio{p}_pause" for p in range(8)] + [f"rx{q}_packets" for q in range(8)]
one_list = st.lists(st.sampled_from(statistic_names), unique=True, max_size=8)
lists = st.lists(one_list, min_size=1, max_size=6, unique_by=tuple)
"""A list that returns unchanged between two calls cannot be distinguished from an unchanged list."""
changes = st.lists(st.booleans(), max_size=30)


@given(lists, changes, st.booleans(), st.integers(1, 4))
def test_a_value_is_never_put_under_a_wrong_name(
    all_lists: list[list[str]],
    when: list[bool],
    fixed: bool,  # noqa: FBT001 - a case
    polls: int,
) -> None:
    driver = RacingDriver(all_lists, fixed=fixed)
    driver.changes = list(when)
    reader = Ethtool(driver)
    for _ in range(polls):
        try:
            answer = reader.call("statistics", INTERFACE)
        except OSError as error:
            assert error.errno == errno.EAGAIN  # noqa: PT017 - either answer is right
            continue
        assert answer["values"] == [value_of(name) for name in answer["names"]]
        assert answer["names"] in all_lists or answer["names"] == []
    driver.changes = []
    assert reader.call("statistics", INTERFACE)["names"] == driver.names, "what stays is read"


@pytest.mark.parametrize("fixed", [True, False])
def test_pfc_that_moves_to_another_priority_changes_no_length(fixed: bool) -> None:  # noqa: FBT001
    before, after = ["rx_prio3_pause", "rx_bytes_phy"], ["rx_prio4_pause", "rx_bytes_phy"]
    driver = RacingDriver([before, after], fixed=fixed)
    reader = Ethtool(driver)
    first = reader.call("statistics", INTERFACE)
    assert first["names"] == before
    assert reader.call("statistics", INTERFACE)["names"] is first["names"], "decoded once"
    driver.changes = [False, True]  # between the values and the names
    answer = reader.call("statistics", INTERFACE)
    assert answer == {"names": after, "values": [value_of(name) for name in after]}


def test_a_nic_that_goes_up_has_many_times_the_statistics() -> None:
    """Old kernels write all statistics regardless of the request: the buffer holds them."""
    small, large = ["rx_bytes_phy"], [f"rx{queue}_packets" for queue in range(8000)]
    driver = RacingDriver([small, large], fixed=False)
    reader = Ethtool(driver)
    assert reader.call("statistics", INTERFACE)["names"] == small
    driver.changes = [False, True]
    assert reader.call("statistics", INTERFACE)["values"] == [value_of(name) for name in large]


def test_no_more_statistics_are_requested_than_the_buffer_holds() -> None:
    driver = RacingDriver([[f"rx{queue}_packets" for queue in range(9000)]], fixed=False)
    with pytest.raises(OSError, match=r"too many statistics of .*: 9000") as raised:
        Ethtool(driver).call("statistics", INTERFACE)
    assert raised.value.errno == errno.EOVERFLOW
    assert driver.asked == [GSSET_INFO]


def test_a_list_that_never_rests_is_an_error() -> None:
    driver = RacingDriver(
        [[f"rx_prio{n % 8}_pause", f"rx{n}_packets"] for n in range(100)], fixed=True
    )
    driver.changes = [True] * 100
    with pytest.raises(OSError, match="changes on every read") as raised:
        Ethtool(driver).call("statistics", INTERFACE)
    assert raised.value.errno == errno.EAGAIN
