"""A gNMI server of a switch with OpenConfig on loopback: real gRPC and the official messages, faults by the tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from railscope_collector.switches import gnmi_messages
from railscope_simulator import gnmi_server

PORTS = "interfaces/interface/state"
QUEUES = "qos/interfaces/interface/output/queues/queue/state"
MODELS = (
    "openconfig-interfaces", "openconfig-if-ethernet", "openconfig-qos", "openconfig-lldp", "openconfig-system",
    "arista-intf-augments",
)  # fmt: skip
ENCODINGS = ("JSON", "JSON_IETF", "PROTO")
Row: TypeAlias = dict[str, int | str]


def containers(port_count: int = 2) -> Iterator[tuple[str, dict[str, dict[str, str]], Row]]:
    """Yield the containers of a switch whose ports count their number: path, keys by element, and leaves."""
    yield "system/state", {}, {"hostname": "leaf-07"}
    yield "lldp/state", {}, {"chassis-id": "02:aa:00:00:00:07", "chassis-id-type": "MAC_ADDRESS", "system-name": "leaf-07"}  # fmt: skip
    for number in range(1, port_count + 1):
        name = f"Ethernet{number}/1"
        port = {"interface": {"name": name}}
        yield PORTS, port, {"name": name, "type": "iana-if-type:ethernetCsmacd", "admin-status": "UP", "oper-status": "UP"}  # fmt: skip
        yield f"{PORTS}/counters", port, {"in-octets": 10**18 + number, "out-octets": number}
        yield "interfaces/interface/ethernet/state", port, {"port-speed": "SPEED_400GB"}
        priority = port | {"priority": {"index": "3"}}
        frames: Row = {"index": 3, "in-frames": 0, "out-frames": 1000 * number}
        yield "interfaces/interface/ethernet/pfc/priorities/priority/state", priority, frames
        queue = {"interface": {"interface-id": name}, "queue": {"name": "UC3"}}
        yield QUEUES, queue, {"name": "UC3", "id": 3, "queue-type": "UC", "transmit-pkts": number, "ecn-marked-pkts": 10 * number}  # fmt: skip
        neighbour = port | {"neighbor": {"id": "1"}}
        yield "lldp/interfaces/interface/neighbors/neighbor/state", neighbour, {
            "chassis-id": "02:bb:00:00:00:01", "chassis-id-type": "MAC_ADDRESS", "port-id-type": "MAC_ADDRESS",
            "port-id": f"02:bb:00:00:00:{number:02x}", "port-description": "eth0", "system-name": f"gpu-{number}",
        }  # fmt: skip


def encode_state(paths: Sequence[str], encoding: str) -> Iterator[bytes]:
    """Yield the messages of a subscription: the containers at or below its paths."""
    for path, keys, row in containers():
        if not any(f"{path}/".startswith(f"{wanted}/") for wanted in paths):
            continue
        elements = [{"name": name, "key": keys.get(name, {})} for name in path.split("/")]
        updates = [
            {"path": {"elem": [{"name": name}]}, "val": _typed(value, encoding)}
            for name, value in row.items()
        ]
        update = {"timestamp": time.time_ns(), "prefix": {"elem": elements}, "update": updates}
        yield gnmi_messages.encode("SubscribeResponse", update=update)
    yield gnmi_messages.encode("SubscribeResponse", sync_response=True)


def _typed(value: int | str, encoding: str) -> dict[str, object]:
    if encoding == "PROTO":
        return {"uint_val" if isinstance(value, int) else "string_val": value}
    # Numbers of 64 bits are text in JSON_IETF (RFC 7951), with quotes as every text here.
    text = f'"{value}"' if encoding == "JSON_IETF" or isinstance(value, str) else str(value)
    return {"json_ietf_val" if encoding == "JSON_IETF" else "json_val": text.encode()}


@dataclass
class OpenConfigSwitch:
    """The server's port, faults by the first path of a subscription, and the received requests."""

    models: Sequence[str] = MODELS
    encodings: Sequence[str] = ENCODINGS
    port: int = 0
    messages: dict[str, Iterable[bytes]] = field(default_factory=dict)
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
        return gnmi_messages.encode(
            "CapabilityResponse",
            supported_models=[{"name": name} for name in self.models],
            supported_encodings=self.encodings,
            gNMI_version=gnmi_messages.VERSION,
        )

    async def subscribe(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer a subscription."""
        body = await anext(requests)
        request = gnmi_messages.decode("SubscribeRequest", body)
        paths = [
            "/".join(element.name for element in each.path.elem)
            for each in request.subscribe.subscription
        ]
        path = paths[0]
        self.requests.append(path)
        self.decoded.append(request.subscribe)
        self.metadata.append(dict(context.invocation_metadata()))
        if not self.has_once and request.subscribe.mode == request.subscribe.Mode.Value("ONCE"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no mode ONCE")
        if path in self.silent:
            await self.ended.wait()
        if path in self.failures:
            await context.abort(self.failures[path], "a status of the test")
        encoding = gnmi_messages.enumeration("Encoding")[request.subscribe.encoding]
        for message in self.messages.get(path, encode_state(paths, encoding)):
            yield message
        if self.remains_open:
            await self.ended.wait()

    def write_switches(self, directory: Path, name: str = "leaf-07", **more: object) -> Path:
        """Write a switches file with this switch; return its path."""
        settings = {"address": f"127.0.0.1:{self.port}", "protocol": "gnmi"} | more
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        file = directory / "switches.toml"
        file.write_text(f"[{name}]\n" + "\n".join(lines) + "\n")
        return file


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
