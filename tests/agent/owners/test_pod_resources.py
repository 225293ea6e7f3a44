"""The kubelet's answers, from the bytes of the wire."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st
from support import pod_resources as wire

from railscope_agent.owners import OwnerFormatError
from railscope_agent.owners.kubernetes_devices import ClaimedDevice
from railscope_agent.owners.pod_resources import (
    KubeletPod,
    PodContainer,
    PodDevices,
    PodResourceClaim,
    parse_allocatable,
    parse_pods,
)

TRAINING = KubeletPod(
    "train-0",
    "physics",
    (
        PodContainer(
            "pytorch",
            (
                PodDevices("nvidia.com/gpu", ("GPU-a", "GPU-b")),
                PodDevices("nvidia.com/gpu", ("GPU-c",)),
                PodDevices("rdma/hca", ("mlx5_0",)),
            ),
            (
                PodResourceClaim(
                    "gpu-claim",
                    "physics",
                    (ClaimedDevice("gpu.nvidia.com", "gpu-0", "share-1"),),
                    ("k8s.gpu.nvidia.com/claim=1",),
                ),
            ),
        ),
        PodContainer("sidecar"),
    ),
)
NAMES = st.text(max_size=12)
DEVICES = st.builds(
    PodDevices,
    NAMES,
    st.lists(NAMES, max_size=3).map(tuple),
)
CLAIMS = st.builds(
    PodResourceClaim,
    NAMES,
    NAMES,
    st.lists(st.builds(ClaimedDevice, NAMES, NAMES, NAMES), min_size=1, max_size=2).map(tuple),
    st.lists(NAMES, max_size=2).map(tuple),
)
CONTAINERS = st.builds(
    PodContainer,
    NAMES,
    st.lists(DEVICES, max_size=2).map(tuple),
    st.lists(CLAIMS, max_size=2).map(tuple),
)
PODS = st.builds(KubeletPod, NAMES, NAMES, st.lists(CONTAINERS, max_size=2).map(tuple))


def test_an_answer():
    assert parse_pods(wire.pod_entry(TRAINING)) == (TRAINING,)


def test_no_pods():
    assert parse_pods(b"") == ()


@given(st.lists(PODS, max_size=3).map(tuple))
def test_pods_come_back(sent):
    assert parse_pods(b"".join(map(wire.pod_entry, sent))) == sent


@given(st.lists(DEVICES, max_size=3).map(tuple))
def test_allocatable_devices_are_decoded(sent):
    assert parse_allocatable(b"".join(wire.piece(1, wire.devices(d)) for d in sent)) == sent


UNKNOWN = st.one_of(
    st.builds(wire.integer, st.integers(100, 2**29 - 1), st.integers(-(2**63), 2**64 - 1)),
    st.builds(wire.piece, st.integers(100, 2**29 - 1), st.binary(max_size=20)),
    st.builds(lambda n, raw: wire.tag(n, 5) + raw, st.integers(100, 200), st.just(bytes(4))),
    st.builds(lambda n, raw: wire.tag(n, 1) + raw, st.integers(100, 200), st.just(bytes(8))),
)


@given(PODS, UNKNOWN, UNKNOWN)
def test_fields_of_later_versions_are_skipped(sent, before, after):
    """Pod-level CPUs and memory (4 and 5) are such fields of a Pod."""
    later = wire.piece(4, bytes([3])) + wire.integer(4, 1) + wire.piece(5, b"\x0a\x01m")
    inside = before + wire.pod(sent) + later + after
    assert parse_pods(before + wire.piece(1, inside) + after) == (sent,)


def test_a_known_field_of_another_type_is_skipped():
    assert parse_pods(wire.piece(1, wire.integer(1, 7) + wire.piece(2, b"physics"))) == (
        KubeletPod("", "physics"),
    )


def test_a_repeated_field_replaces_the_first():
    again = wire.piece(1, b"old") + wire.piece(1, b"new")
    assert parse_pods(wire.piece(1, again)) == (KubeletPod("new", ""),)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x0a", "invalid number"),
        (b"\x0a\x05abc", "truncated field 1: 3 of 5 bytes"),
        (b"\x0d\x00", "truncated field 1: 1 of 4 bytes"),
        (b"\x09\x00", "truncated field 1: 1 of 8 bytes"),
        (b"\x02\x00", "invalid field number 0"),
        (wire.integer(1 << 29, 0), "invalid field number 536870912"),
        (b"\x0b", "unknown type 3"),
        (b"\x0c", "unknown type 4"),
        (b"\x0e", "unknown type 6"),
        (b"\x0f", "unknown type 7"),
        (b"\x08" + b"\xff" * 10, "invalid number"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (wire.piece(1, wire.piece(1, b"\xff")), "field 1: invalid UTF-8"),
    ],
)
def test_bytes_that_are_not_an_answer(content, problem):
    with pytest.raises(OwnerFormatError, match=problem):
        parse_pods(content)


@given(st.binary())
def test_any_bytes_are_an_answer_or_are_none(content):
    for parse in (parse_pods, parse_allocatable):
        with contextlib.suppress(OwnerFormatError):
            parse(content)


@given(st.data())
def test_a_damaged_answer_is_rejected_or_read(data):
    content = bytearray(wire.pod_entry(TRAINING))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(OwnerFormatError):
        parse_pods(bytes(content))


def test_an_answer_that_was_cut_is_never_taken_for_a_whole_one():
    content = wire.pod_entry(TRAINING)
    for length in range(1, len(content)):
        with pytest.raises(OwnerFormatError):
            parse_pods(content[:length])
