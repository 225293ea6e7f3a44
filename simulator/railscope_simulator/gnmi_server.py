"""Server of gNMI for simulated switches, with the official messages.

Each switch has a port of its own, and answers Get of one path of SONiC; a path that it does not have has the status
NOT_FOUND, as in SONiC.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc

from railscope import service
from railscope.settings import SettingsError
from railscope_collector.switches import gnmi_messages, gnmi_session
from railscope_simulator.sonic_answers import FindAnswer, TablePath

GetHandler: TypeAlias = Callable[[bytes, Any], Awaitable[bytes]]
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


@contextlib.asynccontextmanager
async def serve(
    handlers: dict[str, Any], address: str, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    """Serve methods at an address, without TLS unless there are credentials; yield its port. Raises SettingsError."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    name = gnmi_session.GET.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    try:
        port = (
            server.add_secure_port(address, credentials)
            if credentials
            else server.add_insecure_port(address)
        )
    except RuntimeError as error:
        message = f"cannot listen on {address}: {error}"
        raise SettingsError(message) from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def serve_switches(
    switches: Mapping[str, FindAnswer], host: str, first_port: int
) -> AsyncIterator[str]:
    """Serve switches at this port and those that follow, at any with port 0; yield the switches file for them.

    Raises SettingsError.
    """
    lines = []
    async with contextlib.AsyncExitStack() as stack:
        for number, (name, find) in enumerate(switches.items()):
            handlers: dict[str, Any] = {
                "Get": grpc.unary_unary_rpc_method_handler(answer_requests(find))
            }
            address = f"{host}:{first_port and first_port + number}"
            port = await stack.enter_async_context(serve(handlers, address))
            lines.append(
                f'[{json.dumps(name)}]\naddress = "{host}:{port}"\nprotocol = "gnmi"\ndialect = "sonic"\nplaintext = true\n'
                f"period_seconds = {PERIOD_SECONDS}\n"
            )
        yield "\n".join(lines)
