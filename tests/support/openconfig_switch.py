"""A gNMI server of a switch with OpenConfig on loopback: real gRPC and the official messages, faults by the tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from railscope_collector.switches import gnmi_messages
from railscope_simulator import gnmi_server, openconfig_answers
from railscope_simulator.switch_ports import LldpNeighbour, SimulatedSwitch, SwitchPort

PORTS = "interfaces/interface/state"
QUEUES = "qos/interfaces/interface/output/queues/queue/state"


def simulated_switch(port_count: int = 2) -> SimulatedSwitch:
    """Return a switch whose ports count their number."""
    switch = SimulatedSwitch("leaf-07", "02:aa:00:00:00:07")
    for number in range(1, port_count + 1):
        neighbour = LldpNeighbour(
            f"gpu-{number}", "02:bb:00:00:00:01", f"02:bb:00:00:00:{number:02x}", "eth0"
        )
        port = SwitchPort(number, f"Ethernet{number}/1", f"to {number}", neighbour, 400_000)
        port.counters.received_bytes = 10**18 + number
        port.counters.pauses_sent = 1000 * number
        port.counters.lossless.marked_packets = 10 * number
        switch.add(port)
    return switch  # fmt: skip


@dataclass
class OpenConfigSwitch:
    """The server's port, its state, faults by the first path of a subscription, and the received requests."""

    state: SimulatedSwitch = field(default_factory=simulated_switch)
    models: Sequence[str] = openconfig_answers.MODELS
    encodings: Sequence[str] = gnmi_server.ENCODINGS
    port: int = 0
    messages: dict[str, Sequence[bytes]] = field(default_factory=dict)
    """Messages that replace the answer for a path."""
    failures: dict[str, grpc.StatusCode] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    has_once: bool = True
    remains_open: bool = False
    """True for a switch that does not end a call after its last message."""
    requests: list[str] = field(default_factory=list)
    decoded: list[Any] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def capabilities(self, _body: bytes, context: Any) -> bytes:
        """Answer with the models."""
        self.metadata.append(dict(context.invocation_metadata()))
        if "Capabilities" in self.failures:
            await context.abort(self.failures["Capabilities"], "a status of the test")
        return gnmi_server.encode_capabilities(self.models, self.encodings)

    async def subscribe(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer a subscription."""
        body = await anext(requests)
        request = gnmi_messages.decode("SubscribeRequest", body)
        path = "/".join(element.name for element in request.subscribe.subscription[0].path.elem)
        self.requests.append(path)
        self.decoded.append(request.subscribe)
        self.metadata.append(dict(context.invocation_metadata()))
        if not self.has_once and request.subscribe.mode == request.subscribe.Mode.Value("ONCE"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no mode ONCE")
        if path in self.silent:
            await self.ended.wait()
        if path in self.failures:
            await context.abort(self.failures[path], "a status of the test")
        if path in self.messages:
            for message in self.messages[path]:
                yield message
        else:
            answer = gnmi_server.answer_subscriptions(
                lambda: openconfig_answers.state_leaves(self.state)
            )
            async for message in answer(_one(body), context):
                yield message
        if self.remains_open:
            await self.ended.wait()  # fmt: skip

    def write_switches(self, directory: Path, name: str = "leaf-07", **more: object) -> Path:
        """Write a switches file with this switch; return its path."""
        settings = {"address": f"127.0.0.1:{self.port}", "protocol": "gnmi"} | more
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        file = directory / "switches.toml"
        file.write_text(f"[{name}]\n" + "\n".join(lines) + "\n")
        return file


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body


@asynccontextmanager
async def openconfig_switch(
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[OpenConfigSwitch]:
    """Serve a switch on a free port of loopback."""
    switch = OpenConfigSwitch()
    handlers = {
        "Capabilities": grpc.unary_unary_rpc_method_handler(switch.capabilities),
        "Subscribe": grpc.stream_stream_rpc_method_handler(switch.subscribe),
    }
    async with gnmi_server.serve(handlers, "127.0.0.1:0", credentials) as port:
        switch.port = port
        try:
            yield switch
        finally:
            switch.ended.set()
