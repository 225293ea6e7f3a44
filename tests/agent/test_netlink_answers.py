"""Netlink answers that the kernel of the test machine cannot give, as stories.

    ethtool COMMAND ATTRIBUTE ...    the kernel answers one command of the ethtool family
    dcb ATTRIBUTE ...                it answers the request for data centre bridging
    links HEADER ATTRIBUTE ... | ... it lists interfaces: index, ARP type and flags of each, and attributes
    rdma NAME=INDEX ... COUNTER=N    it has RDMA devices, whose port 1 has counters
    refuse ERROR [TEXT ...]          it refuses every request
    reject-flags                     it refuses requests with flags of ethtool, as before 6.2
    call FUNCTION ARGUMENT ...       the answer as JSON, or the error
    sent                             kinds of the requests since the last `sent`, and the attributes of the last one

An attribute is KIND:FORMAT=VALUE,... with a format of struct, `text`, or `bits` and `mask` (INDEX|NAME of a bitset that are set; without
a mask, and with one: INDEX|NAME|1), or KIND{ATTRIBUTE ...}.
"""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Iterable
from contextlib import ExitStack

import pytest
from support.netlink import (
    CONTROLLER,
    MULTI,
    Answer,
    FakeKernel,
    NetlinkRequest,
    attribute,
    attributes,
    ethtool,
    open_netlink,
)
from support.stories import Story

from railscope_agent.host.netlink import Netlink

NESTED = 0x8000


def bitset(kind: int, entries: list[str]) -> bytes:
    """Return a verbose bitset (ETHTOOL_A_BITSET_*): with a mask, each bit has its value."""
    bits = [entry.split("|") for entry in entries if entry]
    has_mask = any(len(bit) == 3 for bit in bits)
    nested = b"".join(
        attribute(1 | NESTED, attribute(1, struct.pack("=I", int(index))) + attribute(2, f"{name}\0".encode()) + (attribute(3, b"") if value == ["1"] else b""))
        for index, name, *value in bits
    )  # fmt: skip
    head = b"" if has_mask else attribute(1, b"")
    body = head + attribute(2, struct.pack("=I", 120)) + attribute(3 | NESTED, nested)
    return attribute(kind | NESTED, body)


def encode(words: list[str]) -> bytes:
    """Return the attributes that words describe, up to the end of their nest."""
    found = b""
    while words and (word := words.pop(0)) != "}":
        if word.endswith("{"):
            found += attribute(int(word[:-1]) | NESTED, encode(words))
            continue
        kind, form, text = word.replace("=", ":", 1).split(":", 2)
        values = text.split(",")
        if form == "bits":
            found += bitset(int(kind), values)
        elif form == "text":
            found += attribute(int(kind), f"{text}\0".encode())
        else:
            numbers = [int(value, 0) for value in values if value]
            layout = form * len(numbers) if len(form) == 1 else form
            found += attribute(int(kind), struct.pack(f"={layout}", *numbers))
    return found


def parse(text: str) -> bytes:
    return encode(text.replace("{", "{ ").replace("}", " }").split())


class RdmaKernel:
    """Devices by name and index, as in drivers/infiniband/core/nldev.c."""

    def __init__(self, indexes: dict[str, int], counters: dict[str, int]) -> None:
        self._indexes, self._counters = indexes, counters

    def __call__(self, request: NetlinkRequest) -> list[bytes]:
        assert (request.protocol, request.kind >> 10) == (20, 5), "RDMA_NL_NLDEV"
        command = request.kind & 0x3FF
        if command == 1:
            bodies = [parse(f"1:I={index} 2:text={name}") for name, index in self._indexes.items()]
            return [b"".join(request.message(request.kind, body, MULTI) for body in bodies), request.done()]  # fmt: skip
        fields = attributes(request.body)
        index, port = (struct.unpack("=I", fields[kind])[0] for kind in (1, 3))
        if command != 17 or index not in self._indexes.values() or port != 1:
            return [request.refused(errno.EINVAL)]
        name = next(name for name, known in self._indexes.items() if known == index)
        entries = " ".join(
            f"81{{82:text={counter} 83:Q={n}}}" for counter, n in self._counters.items()
        )
        return [
            request.message(
                request.kind, parse(f"1:I={index} 2:text={name} 3:I={port} 80{{{entries}}}")
            )
        ]


def dcb_kernel(body: bytes) -> Answer:
    def answer(request: NetlinkRequest) -> list[bytes]:
        assert (request.protocol, request.kind) == (0, 78), "RTM_GETDCB"
        head = bytes([0, 21, 0, 0])
        assert request.body[:4] == head, "DCB_CMD_IEEE_GET"
        return [request.message(78, head + body)]

    return answer


def links_kernel(bodies: list[bytes]) -> Answer:
    def answer(request: NetlinkRequest) -> list[bytes]:
        return [b"".join(request.message(16, body, MULTI) for body in bodies), request.done()]

    return answer


def older_kernel(wrapped: Answer) -> Answer:
    def answer(request: NetlinkRequest) -> Iterable[bytes]:
        if request.kind != CONTROLLER and attributes(attributes(request.body[4:])[1])[3] != bytes(
            4
        ):
            return [request.refused(errno.EINVAL, "reserved bit set")]
        return wrapped(request)

    return answer


class NetlinkStory:
    """A kernel whose answers change, and a reader of it."""

    def __init__(self, stack: ExitStack) -> None:
        self._answer: Answer = lambda request: [request.refused(errno.EOPNOTSUPP)]
        opened = stack.enter_context(open_netlink(self._respond))
        self._netlink: Netlink = opened[0]
        self._kernel: FakeKernel = opened[1]

    def _respond(self, request: NetlinkRequest) -> Iterable[bytes]:
        return self._answer(request)

    def run(self, line: str) -> list[str]:
        command, _, rest = line.partition(" ")
        match command:
            case "ethtool":
                number, _, body = rest.partition(" ")
                self._answer = ethtool(int(number), parse(body))
            case "dcb":
                self._answer = dcb_kernel(parse(rest))
            case "links":
                self._answer = links_kernel([self._link(each) for each in rest.split(" | ")])
            case "rdma":
                given = {
                    name: int(n) for name, _, n in (word.partition("=") for word in rest.split())
                }
                devices = {name: n for name, n in given.items() if name.startswith("mlx5")}
                self._answer = RdmaKernel(
                    devices, {k: n for k, n in given.items() if k not in devices}
                )
            case "refuse":
                name, _, text = rest.partition(" ")
                number = getattr(errno, name)
                self._answer = lambda request: [request.refused(number, text)]
            case "reject-flags":
                self._answer = older_kernel(self._answer)
            case "call":
                return self._call(*rest.split(" "))
            case "sent":
                return self._sent()
            case _:
                pytest.fail(f"unknown command: {line}")
        return []

    @staticmethod
    def _link(text: str) -> bytes:
        index, arp_type, flags, *words = text.split(" ", 3)
        return struct.pack("=BxHiII", 0, int(arp_type), int(index), int(flags, 0), 0) + parse(" ".join(words))  # fmt: skip

    def _call(self, function: str, *arguments: str) -> list[str]:
        given = [int(each) if each.isdecimal() else each for each in arguments]
        try:
            answer = self._netlink.call(function, *given)
        except OSError as error:
            return [f"{errno.errorcode[error.errno or 0]}: {error.strerror}"]
        return [json.dumps(each) for each in (answer if isinstance(answer, list) else [answer])]

    def _sent(self) -> list[str]:
        requests = self._kernel.requests
        kinds = " ".join(f"{request.kind:#x}" for request in requests)
        last = attributes(requests[-1].body[4:])
        self._kernel.requests = []
        return [kinds, " ".join(f"{kind}:{value.hex()}" for kind, value in last.items())]


def test_netlink_answers(story: Story) -> None:
    with ExitStack() as stack:
        story.play(NetlinkStory(stack).run)
