"""Server of gNMI for switches that are simulated or recorded, with the official messages.

Each switch has a port of its own, and answers Get of one path of SONiC; a path that it does not have has the status
NOT_FOUND, as in SONiC. A simulated one also answers Capabilities and Subscribe ONCE, by the models of OpenConfig.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import groupby
from typing import Any, TypeAlias

import grpc

from railscope import service
from railscope_collector.switches import gnmi_messages, gnmi_session, grpc_listener
from railscope_simulator import openconfig_answers, snmp_server
from railscope_simulator.sonic_answers import FindAnswer, TablePath

GetHandler: TypeAlias = Callable[[bytes, Any], Awaitable[bytes]]
SubscribeHandler: TypeAlias = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
ENCODINGS = ("JSON", "JSON_IETF", "PROTO")
PERIOD_SECONDS = 5
"""Seconds between two polls of a simulated switch: the fewest that a collector accepts."""


def decode_path(body: bytes) -> TablePath:
    """Return the target and the path of a request. Raises ValueError unless it has one path."""
    request = gnmi_messages.decode("GetRequest", body)
    (path,) = request.path
    return (request.prefix.target, *(element.name for element in path.elem))


def encode_answer(target: str, content: bytes, kind: str = "json_ietf_val") -> bytes:
    """Return the message of an answer with a value."""
    update = {"val": {kind: content}}
    return gnmi_messages.encode(
        "GetResponse", notification=[{"prefix": {"target": target}, "update": [update]}]
    )


def answer_requests(find: FindAnswer) -> GetHandler:
    """Return a handler of requests that answers from these tables."""

    async def answer(body: bytes, context: Any) -> bytes:
        try:
            path = decode_path(body)
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected one path")
        rows = await service.run_in_thread(find, path)
        if rows is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{'/'.join(path)} not found")
        return encode_answer(path[0], json.dumps(rows).encode())

    return answer


def encode_leaves(
    leaves: Iterable[openconfig_answers.StateLeaf], encoding: str, timestamp_ns: int
) -> Iterator[bytes]:
    """Yield a message of a subscription for the leaves of each container."""
    for container, group in groupby(leaves, key=lambda leaf: leaf.container):
        prefix = {"elem": [{"name": name, "key": keys} for name, keys in container]}
        updates = [
            {"path": {"elem": [{"name": leaf.name}]}, "val": _typed(leaf.value, encoding)}
            for leaf in group
        ]
        notification = {"timestamp": timestamp_ns, "prefix": prefix, "update": updates}
        yield gnmi_messages.encode("SubscribeResponse", update=notification)


def _typed(value: openconfig_answers.LeafValue, encoding: str) -> dict[str, object]:
    if encoding == "PROTO":
        return {"uint_val" if isinstance(value, int) else "string_val": value}
    # Numbers of 64 bits are text in JSON_IETF (RFC 7951), with quotes as every text here.
    text = f'"{value}"' if encoding == "JSON_IETF" or isinstance(value, str) else str(value)
    return {"json_ietf_val" if encoding == "JSON_IETF" else "json_val": text.encode()}


def encode_capabilities(models: Iterable[str], encodings: Sequence[str] = ENCODINGS) -> bytes:
    """Return the answer of a switch with these models."""
    supported = [{"name": name, "organization": "railscope"} for name in models]
    return gnmi_messages.encode(
        "CapabilityResponse",
        supported_models=supported,
        supported_encodings=encodings,
        gNMI_version=gnmi_messages.VERSION,
    )


def answer_subscriptions(find: openconfig_answers.FindState) -> SubscribeHandler:
    """Return a handler of subscriptions that answers with this state; a STREAM ends after its first pass."""

    async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        request = gnmi_messages.decode("SubscribeRequest", await anext(requests)).subscribe
        if request.mode == request.Mode.Value("POLL"):
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "expected mode ONCE or STREAM")
        paths = [[element.name for element in each.path.elem] for each in request.subscription]
        found = await service.run_in_thread(lambda: list(find()))
        wanted = [
            leaf
            for leaf in found
            if any(openconfig_answers.is_below(leaf.container, path) for path in paths)
        ]
        encoding = gnmi_messages.enumeration("Encoding")[request.encoding]
        for message in encode_leaves(wanted, encoding, time.time_ns()):
            yield message
        yield gnmi_messages.encode("SubscribeResponse", sync_response=True)

    return answer


def openconfig_handlers(find: openconfig_answers.FindState) -> dict[str, Any]:
    """Return the handlers of a switch with OpenConfig, by method."""

    async def capabilities(_body: bytes, _context: Any) -> bytes:
        return encode_capabilities(openconfig_answers.MODELS)

    return {
        "Capabilities": grpc.unary_unary_rpc_method_handler(capabilities),
        "Subscribe": grpc.stream_stream_rpc_method_handler(answer_subscriptions(find)),
    }


@contextlib.asynccontextmanager
async def serve(
    handlers: dict[str, Any], address: str, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    """Serve methods at an address, without TLS unless there are credentials; yield its port. Raises SettingsError."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    name = gnmi_session.GET.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    async with grpc_listener.serving_at(server, address, credentials) as port:
        yield port


@contextlib.asynccontextmanager
async def serve_switches(
    switches: Mapping[str, FindAnswer],
    host: str,
    first_port: int,
    states: Mapping[str, openconfig_answers.FindState] = {},
    communities: Mapping[str, snmp_server.Communities] = {},
) -> AsyncIterator[str]:
    """Serve switches at this port and those that follow, at any with port 0; yield the switches file for them.

    Those with a state are also served by the models of OpenConfig, those with communities by SNMP at the same port
    (UDP). Raises SettingsError.
    """
    lines = []
    async with contextlib.AsyncExitStack() as stack:
        for number, (name, find) in enumerate(switches.items()):
            address = f"{host}:{first_port and first_port + number}"
            handlers: dict[str, Any] = {
                "Get": grpc.unary_unary_rpc_method_handler(answer_requests(find))
            }
            if name in states:
                handlers |= openconfig_handlers(states[name])
            port = await stack.enter_async_context(serve(handlers, address))
            if name in communities:
                agent = snmp_server.serve(communities[name], host, port)
                await stack.enter_async_context(agent)
            lines.append(
                f'[{json.dumps(name)}]\naddress = "{host}:{port}"\nprotocol = "gnmi"\ndialect = "sonic"\nplaintext = true\n'
                f"period_seconds = {PERIOD_SECONDS}\n"
            )
        yield "\n".join(lines)
