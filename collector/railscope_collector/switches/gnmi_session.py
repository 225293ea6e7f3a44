"""Connection to a switch by gNMI: calls with a deadline, a largest message, and a named reason for each failure.

A switch may be broken or hostile. Messages are bytes here; the readers decode them in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import grpc

from railscope import __version__, service, tls_contexts, untrusted_text
from railscope_collector.switches import gnmi_messages, switch_reading as base
from railscope_collector.switches.switch_settings import ConfiguredSwitch

GET, SUBSCRIBE, CAPABILITIES = (
    f"/gnmi.gNMI/{name}" for name in ("Get", "Subscribe", "Capabilities")
)
MAX_MESSAGE_BYTES = 8 << 20
"""Size of one message: the queues of 128 ports, 20 each, are 2 MiB; the default of gRPC is 4 MiB."""
ANSWER_TIMEOUTS = 5
"""Timeouts of the settings until a call fails: an answer contains a whole table, one of SNMP one datagram."""
_UNTRUSTED, _OTHER_NAME = "CERTIFICATE_VERIFY_FAILED:", "Hostname Verification Check failed"
_UNSUPPORTED = {
    grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT,
}  # fmt: skip
"""Statuses for a path that a switch does not have, which depend on its system and version."""

TablePath: TypeAlias = Sequence[str]


class PathNotFoundError(base.SwitchReadError):
    """A path that the switch does not have."""


def encode_request(target: str, path: TablePath) -> bytes:
    """Return a request for one path of a database."""
    elements = [{"name": name} for name in path]
    return gnmi_messages.encode(
        "GetRequest", prefix={"target": target}, path=[{"elem": elements}], encoding="JSON_IETF"
    )


class GnmiSession:
    """Calls over one channel."""

    def __init__(self, channel: grpc.aio.Channel, switch: ConfiguredSwitch) -> None:
        self._channel = channel
        self._timeout_seconds = switch.timeout_seconds * ANSWER_TIMEOUTS
        user = switch.user
        self._metadata = (("username", user.user), ("password", user.password)) if user else ()

    async def get(self, target: str, path: TablePath) -> bytes | None:
        """Return the answer for a path; None if the switch does not have it. Raises SwitchReadError."""
        return await self._call(GET, encode_request(target, path))

    async def capabilities(self) -> bytes | None:
        """Return the answer of Capabilities; None if the switch does not have this call. Raises SwitchReadError."""
        return await self._call(CAPABILITIES, b"")

    async def subscribe(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a subscription until it ends or the generator is closed.

        Raises PathNotFoundError, SwitchReadError.
        """
        ended = asyncio.Event()

        async def requests() -> AsyncIterator[bytes]:
            yield request
            # Some servers end a call when its client has sent its last message.
            await ended.wait()

        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            SUBSCRIBE
        )
        call = method(requests(), timeout=self._timeout_seconds, metadata=self._metadata)
        try:
            async for body in call:
                yield body
        except grpc.aio.AioRpcError as error:
            failure = self._failure(error)
            if error.code() in _UNSUPPORTED:
                raise PathNotFoundError(str(failure)) from error
            raise failure from error
        finally:
            ended.set()
            call.cancel()

    async def _call(self, method: str, request: bytes) -> bytes | None:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        try:
            return await call(request, timeout=self._timeout_seconds, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNSUPPORTED:
                return None
            raise self._failure(error) from error

    def _failure(self, error: grpc.aio.AioRpcError) -> base.SwitchReadError:
        code = error.code()
        details = untrusted_text.printable(error.details() or "")
        if _UNTRUSTED in details:
            reason = details.rpartition(_UNTRUSTED)[2].strip()[: gnmi_messages.MAX_DETAILS]
            return base.SwitchReadError(f"untrusted certificate: {reason}; fix: set ca_file")
        if _OTHER_NAME in details:
            return base.SwitchReadError("certificate of another name; fix: set server_name")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            problem = f"no complete answer within {self._timeout_seconds:g} s"
            return base.SwitchReadError(problem, "timeout")
        if code in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            return base.SwitchReadError("credential not accepted: expected one of a read-only user")
        is_limit = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        problem = f"gRPC status {code.name} {details[: gnmi_messages.MAX_DETAILS]}".strip()
        return base.SwitchReadError(problem, "limit" if is_limit else "error")


@asynccontextmanager
async def open_session(switch: ConfiguredSwitch) -> AsyncIterator[GnmiSession]:
    """Yield a connection to a switch, which connects with the first request. Raises SwitchReadError."""
    options: list[tuple[str, int | str]] = [
        ("grpc.enable_http_proxy", 0),  # a proxy of the environment is not for the site's switches
        # A poll has its deadline; the next one follows within the period.
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.primary_user_agent", f"railscope-collector/{__version__}"),
        ("grpc.use_local_subchannel_pool", 1),  # a connection ends with its poll
    ]
    if switch.server_name:
        options.append(("grpc.ssl_target_name_override", switch.server_name))
    host = f"[{switch.host}]" if ":" in switch.host else switch.host
    address = f"{host}:{switch.port}"
    if switch.plaintext:
        channel = grpc.aio.insecure_channel(address, options)
    else:
        try:
            pem = await service.run_in_thread(
                tls_contexts.client_pem,
                switch.ca_file,
                switch.certificate_file,
                switch.key_file,
            )
        except OSError as error:
            text = f"cannot read a certificate: {error}"
            raise base.SwitchReadError(text) from error
        channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*pem), options)
    async with channel:
        yield GnmiSession(channel, switch)
