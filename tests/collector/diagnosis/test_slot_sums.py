"""Sums by slot: quotients over any window are exact, and what was not read is unknown."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from railscope_collector.diagnosis.quantities import QUANTITIES, DeviceKind
from railscope_collector.diagnosis.signals import PAUSE_QUANTA_BITS, SIGNALS, WindowSums
from railscope_collector.diagnosis.slot_sums import MAX_DEVICES_AT_ONCE, SlotSums

STEPS = st.lists(
    st.tuples(st.integers(0, 19), st.integers(0, 1000), st.integers(1, 20)), max_size=40
)


def sums_of(steps: list[tuple[int, int, int]], slots: int = 20) -> SlotSums:
    """One NIC with increases of a counter: slot, increase, seconds."""
    sums = SlotSums(DeviceKind.NIC, slots, slots)
    sums.add_device()
    sums.advance(19)
    quantity = np.array([sums.index["rdma_sent_bytes"]])
    for slot, increase, seconds in steps:
        sums.add(
            quantity,
            np.array([slot]),
            np.array([[0]]),
            np.array([[float(increase)]]),
            np.array([[float(seconds)]]),
        )
    return sums


@given(STEPS, st.integers(0, 19), st.integers(1, 20))
def test_a_rate_is_the_increase_over_the_seconds_of_its_slots(
    steps: list[tuple[int, int, int]], end: int, count: int
) -> None:
    rate = sums_of(steps).rate("rdma_sent_bytes", end, count)[0]
    inside = [(increase, seconds) for slot, increase, seconds in steps if end - count < slot <= end]
    if not inside:
        assert np.isnan(rate)
    else:
        expected = sum(increase for increase, _ in inside) / sum(seconds for _, seconds in inside)
        assert np.isclose(rate, expected)


def test_slots_leave_the_ring() -> None:
    sums = sums_of([(19, 10, 10)], slots=5)
    assert sums.rate("rdma_sent_bytes", 19, 5)[0] == 1
    sums.advance(24)
    assert np.isnan(sums.rate("rdma_sent_bytes", 24, 5)[0])


def test_readings_of_slots_outside_of_the_ring_are_ignored() -> None:
    sums = sums_of([(3, 10, 10)], slots=5)
    assert np.isnan(sums.rate("rdma_sent_bytes", 19, 5)[0])


@given(
    st.lists(st.tuples(st.integers(0, 19), st.integers(1, 9), st.integers(0, 19)), max_size=12),
    st.sampled_from([8, 20]),
)
def test_the_latest_reading_is_that_of_the_last_slot_whenever_it_arrives(
    readings: list[tuple[int, int, int]], open_slots: int
) -> None:
    """Each has a slot, a value and the evaluation that it precedes; one of an earlier slot may arrive after a later one."""
    sums = SlotSums(DeviceKind.NIC, 20, open_slots)
    sums.add_device()
    quantity = np.array([sums.index["link_speed"]])
    newest: dict[int, int] = {}
    for now in range(20):
        sums.advance(now)
        for slot, value, evaluation in readings:
            if evaluation == now and slot <= now:
                one = np.array([[1.0]])
                sums.add(quantity, np.array([slot]), np.array([[0]]), value * one, one)
                newest[slot] = value
        sums.settle(now)
        latest = sums.latest("link_speed")[0]
        assert latest == newest[max(newest)] if newest else np.isnan(latest)


def test_a_new_device_has_no_readings() -> None:
    sums = sums_of([(19, 10, 10)])
    for _ in range(20):
        sums.add_device()
    assert np.isnan(sums.rate("rdma_sent_bytes", 19, 20)[1:]).all()
    assert sums.rate("rdma_sent_bytes", 19, 1)[0] == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.integers(0, 12),
            st.sampled_from(["rdma_sent_bytes", "ack_timeouts", "link_speed"]),
            st.integers(0, 9),
            st.integers(0, 10**12),
        ),
        max_size=60,
    )
)
def test_compressed_slots_and_those_of_many_devices_yield_the_same_as_others(
    readings: list[tuple[int, int, str, int, int]],
) -> None:
    forms = [SlotSums(DeviceKind.NIC, 12, open_slots) for open_slots in (12, 3, 12)]
    for _ in range(MAX_DEVICES_AT_ONCE + 1):
        forms[-1].add_device()
    now = 0
    for seconds, late, name, device, value in readings:
        now += seconds
        for sums in forms:
            while sums.devices <= device:
                sums.add_device()
            sums.advance(now // 10)
            place = np.array([sums.index[name]]), np.array([now // 10 - late]), np.array([[device]])
            sums.add(*place, np.array([[float(value)]]), np.array([[1.0]]))
    slot = now // 10
    for end, count in ((slot, 12), (slot - 2, 6), (slot - 9, 3)):
        for name in ("rdma_sent_bytes", "ack_timeouts", "link_speed", "marked_packets"):
            for read in (SlotSums.rate, SlotSums.total, SlotSums.last, SlotSums.history):
                expected, *others = (read(sums, name, end, count) for sums in forms)
                for found in others:
                    np.testing.assert_array_equal(found[..., : forms[0].devices], expected)


def test_large_sums_are_accurate() -> None:
    values = np.random.default_rng(1).uniform(1e11, 1e12, 100)
    sums = SlotSums(DeviceKind.NIC, 1, 1)
    sums.add_device()
    sums.advance(0)
    place = np.array([sums.index["rdma_sent_bytes"]]), np.array([0]), np.array([[0]])
    for value in values:
        sums.add(*place, np.array([[value / len(values)]]), np.array([[0.1]]))
    assert np.isclose(
        sums.total("rdma_sent_bytes", 0, 1)[0], values.sum() / len(values), rtol=1e-6, atol=0
    )


def test_every_quantity_has_a_metric_of_the_catalog() -> None:
    from railscope.catalog import METRICS  # noqa: PLC0415 - only this test needs it

    assert not [quantity.name for quantity in QUANTITIES.values() if quantity.metric not in METRICS]


def window_of(**quantities: list[float]) -> WindowSums:
    """A slot of NICs with these increases; NaN for a counter that a NIC does not have."""
    sums = SlotSums(DeviceKind.NIC, 4, 4)
    for _ in range(2):
        sums.add_device()
    sums.advance(0)
    for name, values in quantities.items():
        known = ~np.isnan(values)
        sums.add(
            np.full(2, sums.index[name]),
            np.array([0]),
            np.arange(2)[None],
            np.nan_to_num(values)[None],
            10.0 * known[None],
        )
    sums.settle(0)
    return WindowSums(sums, 0, 1)


def test_bytes_that_a_driver_counts_by_version_of_ip_are_what_the_nic_sends() -> None:
    """irdma has no counter of all bytes; a NIC that has one is not counted twice."""
    window = window_of(
        ipv4_sent_bytes=[300.0, 300.0],
        ipv6_sent_bytes=[200.0, 200.0],
        rdma_sent_bytes=[np.nan, 500.0],
        port_rate=[100.0, 100.0],
    )
    assert SIGNALS[DeviceKind.NIC]["send"].formula(window).tolist() == [0.5, 0.5]


def test_traffic_outside_the_lossless_priority_is_a_share_of_what_the_nic_sends() -> None:
    """A NIC of bnxt_re without a counter of RDMA bytes has that of its port."""
    window = window_of(
        port_sent_bytes=[1000.0, 1000.0],
        rdma_sent_bytes=[np.nan, 1000.0],
        priority_0_sent_bytes=[1000.0, 250.0],
        priority_3_sent_bytes=[0.0, 750.0],
        priority_3_lossless=[10.0, 10.0],
    )
    share = SIGNALS[DeviceKind.NIC]["unprotected_share"].formula(window)
    assert share.tolist() == [1.0, 0.25]


def test_a_nic_that_pauses_the_link_has_counters_of_pfc_that_are_zero() -> None:
    """By durations, of ionic, and by frames, of ice and of bnxt, whose durations are those of PFC."""
    window = window_of(
        pausing_seconds=[0.0, np.nan],
        paused_seconds=[0.0, 0.0],
        pause_frames_sent=[0.0, 0.0],
        pause_frames_received=[0.0, 0.0],
        global_paused_seconds=[4.0, np.nan],
        global_pause_frames_sent=[8e4, 1e9],
        global_pause_frames_received=[1e9, 4e4],
        port_rate=[PAUSE_QUANTA_BITS * 2e3] * 2,
    )
    signals = SIGNALS[DeviceKind.NIC]
    found = {
        name: each.formula(window).tolist() for name, each in signals.items() if "paus" in name
    }
    assert found["pausing_share"] == found["pausing_frames"] == [0.5, 1.0]
    assert found["paused_share"] == [0.4, 0.25]
    assert found["pause_frames"] == [1e8 + 8e3, 1e8 + 4e3]


def test_durations_of_pfc_count_beside_counters_of_the_link_that_are_zero() -> None:
    window = window_of(
        pausing_seconds=[3.0, 3.0],
        pause_frames_sent=[1e9, 1e9],
        global_pausing_seconds=[0.0, np.nan],
        global_pause_frames_sent=[0.0, 0.0],
        port_rate=[5e10, 5e10],
    )
    assert SIGNALS[DeviceKind.NIC]["pausing_share"].formula(window).tolist() == [0.3, 0.3]


def test_heat_that_two_counters_count_is_not_added() -> None:
    """One counter of the driver has all reasons of heat, another one that of hardware."""
    sums = SlotSums(DeviceKind.GPU, 5, 5)
    sums.add_device()
    sums.advance(4)
    for name, seconds in (("thermal_seconds", 2.5), ("hardware_thermal_seconds", 2.0)):
        place = np.array([sums.index[name]]), np.array([4]), np.array([[0]])
        sums.add(*place, np.array([[seconds]]), np.array([[10.0]]))
    window = WindowSums(sums, 4, 1)
    assert SIGNALS[DeviceKind.GPU]["thermal_share"].formula(window).tolist() == [0.25]
