"""Service of H3C's gRPC dial-out: a switch opens a call and sends messages on it for as long as it runs."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from railscope import service
from railscope.otlp_metrics import OtlpRejectedError
from railscope_collector.switches import comware_dialout
from railscope_collector.switches.grpc_listener import (
    grpc_listener,
    peer_address,
    server_credentials,
)

if TYPE_CHECKING:
    from railscope_collector.switches.dialout_receiver import DialoutReceiver

SERVICES = "grpc_dialout.GRPCDialout", "grpc_dialout.gRPCDialout"
"""Names of the service in the definition, and in H3C's description of it."""
METHOD = "Dialout"
_PACKAGE = "grpc_dialout"
_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _SIGNED, _UNSIGNED, _MESSAGE = (
    _Field.TYPE_STRING, _Field.TYPE_INT64, _Field.TYPE_UINT64, _Field.TYPE_MESSAGE,
)  # fmt: skip
_MESSAGES = {
    "DeviceInfo": (
        ("producerName", 1, _TEXT), ("deviceName", 2, _TEXT), ("deviceModel", 3, _TEXT), ("deviceIpAddr", 4, _TEXT),
        ("eventType", 5, _TEXT), ("deviceSerialNumber", 6, _TEXT),
    ),
    "ChunkInfo": (("totalSize", 1, _SIGNED), ("totalFragments", 2, _UNSIGNED), ("nodeId", 3, _UNSIGNED)),
    "DialoutMsg": (
        ("deviceMsg", 1, "DeviceInfo"), ("sensorPath", 2, _TEXT), ("jsonData", 3, _TEXT), ("chunkMsg", 4, "ChunkInfo"),
    ),
    "DialoutResponse": (("response", 1, _TEXT),),
}  # fmt: skip
"""Fields of H3C's definition. All are optional here: what a switch leaves out is empty."""
_STATUS = {
    "unknown_sender": grpc.StatusCode.PERMISSION_DENIED,
    "busy": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "storage": grpc.StatusCode.UNAVAILABLE,
}
"""Codes by the reason of a call that is rejected."""


@functools.cache
def message_class(name: str) -> type[Any]:
    """Return the class of a message of the definition."""
    file = descriptor_pb2.FileDescriptorProto(
        name="dialout.proto", package=_PACKAGE, syntax="proto2"
    )
    for of, fields in _MESSAGES.items():
        described = file.message_type.add(name=of)
        for field_name, number, kind in fields:
            added = described.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
            added.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                added.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def unpack_message(body: bytes) -> comware_dialout.DialoutMessage:
    """Return a message as the switch sent it. Raises OtlpRejectedError."""
    try:
        found = message_class("DialoutMsg").FromString(body)
    except message.DecodeError as error:
        problem = f"invalid message: {error}"
        raise comware_dialout.malformed(problem) from error
    part, parts = (
        (found.chunkMsg.nodeId, found.chunkMsg.totalFragments)
        if found.HasField("chunkMsg")
        else (1, 1)
    )
    name = found.deviceMsg.deviceName
    return comware_dialout.DialoutMessage(found.sensorPath, found.jsonData, name, part, parts)


@asynccontextmanager
async def serve_dialout(receiver: DialoutReceiver, max_connections: int) -> AsyncIterator[int]:
    """Serve on the configured address; the value is the port. Raises SettingsError."""
    settings = receiver.settings
    handler: grpc.RpcMethodHandler[bytes, bytes]
    handler = grpc.stream_unary_rpc_method_handler(_Dialout(receiver).handle)
    handlers = [grpc.method_handlers_generic_handler(name, {METHOD: handler}) for name in SERVICES]
    credentials = await service.run_in_thread(
        server_credentials,
        settings.certificate_file,
        settings.key_file,
        settings.client_ca_file,
    )
    async with grpc_listener(
        settings.listen, handlers, credentials, comware_dialout.MAX_TEXT_BYTES, max_connections
    ) as port:
        yield port


class _Dialout:
    """The method that receives messages."""

    def __init__(self, receiver: DialoutReceiver) -> None:
        self._receiver = receiver

    async def handle(
        self, _messages: Any, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """Store the messages of a call until the switch ends it; return the response, or abort the call."""
        receiver, peer = self._receiver, peer_address(context.peer())
        try:
            switch = receiver.identify(peer, _certificate_names(context))
            with switch.limit.reading():
                parts = comware_dialout.TextParts()
                while (body := await _read(context)) is not None:
                    receiver.check_receiving()
                    await receiver.receive(switch, parts, body, unpack_message)
        except OtlpRejectedError as error:
            receiver.count_rejection(error, peer)
            code = _STATUS.get(error.reason, grpc.StatusCode.INVALID_ARGUMENT)
            await context.abort(code, str(error))
        response: bytes = message_class("DialoutResponse")(response="ok").SerializeToString()
        return response


async def _read(context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes | None:
    """Return the next message of a call; None after the last one, for which gRPC returns a mark of its own."""
    body: object = await context.read()
    return body if isinstance(body, bytes) else None


def _certificate_names(context: grpc.aio.ServicerContext[bytes, bytes]) -> frozenset[str]:
    """Return the names in the certificate of a client, which gRPC has verified; none without one."""
    of = context.auth_context()
    kinds = ("x509_common_name", "x509_subject_alternative_name")
    return frozenset(name.decode(errors="replace") for kind in kinds for name in of.get(kind, ()))
