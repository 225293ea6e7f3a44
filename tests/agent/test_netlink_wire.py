"""Netlink as bytes: well-formed messages are decoded, malformed ones raise an error only."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given, strategies as st
from support import netlink as by_hand
from support.netlink import MULTI, OVERRUN, NetlinkRequest, attribute, open_netlink

from railscope_agent.host.netlink import (
    Netlink,
    dcb,
    ethtool,
    interfaces,
    messages,
    rdma_statistics,
)
from railscope_agent.host.netlink.connection import ROUTE, NetlinkConnection

INTERFACE = struct.Struct("=BxHiII")
KINDS = st.integers(0, 0x3FFF)
VALUES = st.binary(max_size=40)


def link(name: str, index: int = 1) -> bytes:
    return INTERFACE.pack(0, 1, index, 1, 0) + attribute(3, name.encode() + b"\0")


@given(st.lists(st.tuples(KINDS, VALUES)))
def test_attributes_come_back_as_they_were_put(parts: list[tuple[int, bytes]]):
    raw = b"".join(messages.attribute(kind, value) for kind, value in parts)
    assert raw == b"".join(attribute(kind, value) for kind, value in parts)
    assert list(messages.attributes(raw)) == parts
    (outer,) = messages.attributes(messages.nest(5, raw))
    assert outer == (5, raw)


@given(st.lists(st.builds(messages.Message, KINDS, KINDS, st.integers(0, 2**32 - 1), VALUES)))
def test_messages_come_back_as_they_were_put(parts: list[messages.Message]):
    raw = b"".join(by_hand.pad(messages.encode(message)) for message in parts)
    assert list(messages.decode(raw)) == parts


@pytest.mark.parametrize(
    "read",
    [
        lambda raw: list(messages.attributes(raw)),
        lambda raw: list(messages.decode(raw)),
        messages.integer,
        lambda raw: messages.answer_error(messages.Message(2, 0x200, 1, raw)),
        lambda raw: messages.answer_error(messages.Message(3, 0x200, 1, raw)),
    ],
)
@given(raw=st.binary(max_size=200))
def test_random_bytes_are_read_or_rejected(read: Callable[[bytes], object], raw: bytes):
    try:
        read(raw)
    except OSError as error:
        assert error.errno == errno.EBADMSG  # noqa: PT017 - or they are read


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (bytes(15), "truncated message header"),
        (struct.pack("=IHHII", 15, 0, 0, 0, 0), "message of 15 bytes"),
        (struct.pack("=IHHII", 17, 0, 0, 0, 0), "message of 17 bytes: 16 bytes"),
    ],
)
def test_a_message_of_a_wrong_length(raw: bytes, what: str):
    with pytest.raises(OSError, match=what):
        list(messages.decode(raw))


@pytest.mark.parametrize("length", [0, 3, 9, 0xFFFF])
def test_an_attribute_of_a_wrong_length(length: int):
    with pytest.raises(OSError, match=f"attribute of {length} bytes"):
        list(messages.attributes(struct.pack("=HH", length, 1) + bytes(4)))


class ScriptedConnection:
    """A connection that returns the answers of a test for every request."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = list(bodies)

    def request(self, kind: int, body: bytes) -> bytes:
        del kind, body
        return self.bodies[0]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        del kind, body
        return self.bodies


READERS = {
    "links": interfaces.list_links,
    "ethernet_ports": interfaces.ethernet_ports,
    "dcb": lambda source: dcb.read_dcb(source, "eth0"),
    "rdma": lambda source: rdma_statistics.RdmaStatistics(lambda: source).statistics("mlx5_0", 1),
    **{
        name: lambda source, name=name: getattr(ethtool.EthtoolFamily(lambda: source), name)("eth0")
        for name in ("pause", "fec", "rings", "link_modes", "link_state")
    },
}

NESTS = st.recursive(
    st.lists(st.tuples(st.integers(0, 16), st.binary(max_size=24)), max_size=6).map(
        lambda parts: b"".join(attribute(kind, value) for kind, value in parts)
    ),
    lambda inner: st.lists(st.tuples(st.integers(0, 90), inner), max_size=4).map(
        lambda parts: b"".join(attribute(kind, value) for kind, value in parts)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("name", READERS)
@given(head=st.sampled_from([0, 4, 16]), body=st.one_of(st.binary(max_size=120), NESTS))
@example(head=16, body=b"")
def test_hostile_answers_raise_an_os_error_or_none(name: str, head: int, body: bytes):
    try:
        READERS[name](ScriptedConnection(bytes(head) + body))
    except OSError as error:
        known = {errno.EBADMSG, errno.ENODEV}
        assert error.errno in known  # noqa: PT017 - or there is something to be read in it


# Over a socket ----------------------------------------------------------------------------------


def names(netlink: Netlink) -> list[str]:
    return [entry["name"] for entry in netlink.call("links")]


def test_a_dump_of_many_parts_with_several_messages_each():
    def answer(request: NetlinkRequest) -> list[bytes]:
        assert (request.kind, request.flags) == (18, 0x301)
        parts = [request.message(16, link(f"eth{n}", n), MULTI) for n in range(1, 7)]
        return [b"".join(parts[:2]), b"".join(parts[2:5]), parts[5] + request.done()]

    with open_netlink(answer) as (netlink, kernel):
        for _ in range(3):
            assert names(netlink) == [f"eth{n}" for n in range(1, 7)]
    assert kernel.opened == [ROUTE], "the socket is kept"
    assert len({request.sequence for request in kernel.requests}) == 3


def test_messages_of_another_question_are_passed_over():
    def answer(request: NetlinkRequest) -> Iterable[bytes]:
        late = NetlinkRequest(0, 18, 0, request.sequence - 1, b"")
        return [
            late.message(16, link("late")),
            late.refused(errno.ENODEV) + late.done(),
            request.message(1, b"", MULTI) + request.message(16, link("now"), MULTI),
            late.message(16, link("late"), MULTI) + request.done() + request.message(16, b"x"),
        ]

    with open_netlink(answer) as (netlink, _):
        assert names(netlink) == ["now"]


def test_a_list_that_changed_meanwhile_is_read_again():
    def answer(request: NetlinkRequest) -> list[bytes]:
        interrupted = 0x10 if len(kernel.requests) < 3 else 0
        body = link(f"try{len(kernel.requests)}")
        return [request.message(16, body, MULTI | interrupted), request.done()]

    with open_netlink(answer) as (netlink, kernel):
        assert names(netlink) == ["try3"]


def test_a_lost_answer_is_requested_again_on_a_new_socket():
    def answer(request: NetlinkRequest) -> list[bytes]:
        if len(kernel.requests) == 1:
            return [request.message(16, link("half"), MULTI) + request.message(OVERRUN)]
        return [request.message(16, link("whole"), MULTI), request.done()]

    with open_netlink(answer) as (netlink, kernel):
        assert names(netlink) == ["whole"]
    assert kernel.opened == [ROUTE, ROUTE]


class OverflowingSocket:
    """A socket that dropped a part of the answer and reports it as recv(2) does: ENOBUFS."""

    def __init__(self) -> None:
        self.closed = False

    def setsockopt(self, *option: object) -> None:
        del option

    def send(self, raw: bytes) -> int:
        return len(raw)

    def recvmsg(self, most: int) -> object:
        raise OSError(errno.ENOBUFS, f"No buffer space available for {most} bytes")

    def close(self) -> None:
        self.closed = True


def test_a_socket_that_overflowed_is_replaced():
    sockets = [OverflowingSocket() for _ in range(4)]
    waiting = iter(sockets)
    connection = NetlinkConnection(lambda: next(waiting))
    with pytest.raises(OSError, match="No buffer space") as raised:
        connection.dump(18, b"")
    assert raised.value.errno == errno.ENOBUFS
    assert all(socket.closed for socket in sockets)


@pytest.mark.parametrize("capped", [True, False])
def test_the_driver_message_is_in_the_error(capped: bool):  # noqa: FBT001
    def answer(request: NetlinkRequest) -> list[bytes]:
        return [request.refused(errno.EPERM, "not in this slot", capped=capped)]

    with (
        open_netlink(answer) as (netlink, kernel),
        pytest.raises(PermissionError, match="Operation not permitted: not in this slot"),
    ):
        netlink.call("dcb", "eth0")
    assert kernel.opened == [ROUTE]


def test_a_dump_that_fails_at_its_end():
    def answer(request: NetlinkRequest) -> list[bytes]:
        return [request.message(16, link("eth0"), MULTI), request.done(errno.ENOMEM)]

    with (
        open_netlink(answer) as (netlink, _),
        pytest.raises(OSError, match="Cannot allocate memory"),
    ):
        netlink.call("links")


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (lambda request: [request.refused(0)], errno.EBADMSG),
        (lambda request: [request.refused(5000)], errno.EBADMSG),
        (lambda request: [request.message(78, b"", MULTI) * 2, request.done()], errno.EBADMSG),
        (lambda request: [request.message(78, bytes(3))], errno.EBADMSG),
        (lambda request: [request.message(78, bytes(4))[:19]], errno.EBADMSG),
        (lambda request: [request.message(78, bytes(70_000))], errno.EMSGSIZE),
        (lambda _: [bytes(1 << 16)], errno.EBADMSG),
    ],
)
def test_an_answer_that_makes_no_sense(
    answer: Callable[[NetlinkRequest], list[bytes]], number: int
):
    with open_netlink(answer) as (netlink, _):
        with pytest.raises(OSError, match=r"malformed netlink response|too long") as raised:
            netlink.call("dcb", "eth0")
        assert raised.value.errno == number


def test_an_answer_without_end_is_given_up():
    def answer(request: NetlinkRequest) -> Iterable[bytes]:
        while True:
            yield request.message(16, link("eth0") + bytes(60_000), MULTI)

    with (
        open_netlink(answer) as (netlink, _),
        pytest.raises(OSError, match="expected at most 16777216 bytes") as raised,
    ):
        netlink.call("links")
    assert raised.value.errno == errno.EMSGSIZE


def test_a_kernel_that_does_not_answer_is_given_up_and_so_is_the_socket():
    def answer(request: NetlinkRequest) -> list[bytes]:
        silent = len(kernel.requests) == 1
        return [] if silent else [request.message(16, link("eth0"), MULTI) + request.done()]

    with open_netlink(answer) as (netlink, kernel):
        with pytest.raises(TimeoutError, match="did not respond within 2 s"):
            netlink.call("links")
        assert names(netlink) == ["eth0"]
    assert kernel.opened == [ROUTE, ROUTE]


def test_each_thread_has_a_socket_of_its_own():
    """A call that hangs in a driver must not block another thread."""
    hanging, asked = threading.Event(), threading.Event()

    def answer(request: NetlinkRequest) -> list[bytes]:
        if request.kind == 78:
            asked.set()
            assert hanging.wait(60)
            return [request.message(78, bytes(4))]
        return [request.message(16, link("eth0"), MULTI) + request.done()]

    answers: list[object] = []
    with open_netlink(answer) as (netlink, _):
        thread = threading.Thread(target=lambda: answers.append(netlink.call("dcb", "eth0")))
        thread.start()
        assert asked.wait(60)
        assert names(netlink) == ["eth0"]
        hanging.set()
        thread.join(60)
    assert answers == [{}]
