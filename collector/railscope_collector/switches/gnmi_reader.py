"""Reader of SONiC switches by gNMI: requests for whole tables, with a connection for each poll.

A switch may be broken or hostile. An answer has a deadline and a largest size, is for the path and target of its
request, and has no more values than any switch needs. It is decoded in a thread, as bytes until then. The messages are
those of the official definition (`vendor/`), as descriptors: code generated from it would require one range of versions
of protobuf.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grpc
import msgspec
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message, message_factory

from railscope import __version__, service, tls_contexts, untrusted_text
from railscope.reading import Absent
from railscope_collector.switches import sonic_tables as tables, switch_reading as base
from railscope_collector.switches.switch_settings import ConfiguredSwitch, GnmiAccess

GET = "/gnmi.gNMI/Get"
MAX_MESSAGE_BYTES = 8 << 20
"""Size of one answer: 128 ports with 20 queues are 2 MiB."""
MAX_VALUES = 400_000
"""Colons in an answer, which precede each of its values: 512 ports of 20 queues with 16 values have 174,000."""
ANSWER_TIMEOUTS = 5
"""Timeouts of the settings until a request fails: an answer contains a whole table, one of SNMP one datagram."""
QUEUE_SECONDS, WATERMARK_SECONDS, NEIGHBOUR_SECONDS = 10.0, 60.0, 60.0
"""Periods in which a switch itself reads its queues and watermarks by default; that of its ports is 1 s."""
_EARLY = 0.8
"""Part of a period after which a group is due: polls have jitter."""
_MAX_DETAILS = 200
_UNTRUSTED, _OTHER_NAME = "CERTIFICATE_VERIFY_FAILED:", "Hostname Verification Check failed"
_UNSUPPORTED = {
    grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT,
}  # fmt: skip
"""Statuses for a path that a switch does not have, which depend on the version of SONiC."""
_OID_START, _MAX_OID = "oid:0x", 32

TablePath: TypeAlias = Sequence[str]


# Messages ----------------------------------------------------------------------------------------


@functools.cache
def message_class(name: str) -> type[Any]:
    """Return the class of a message of gNMI."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"gnmi.{name}"))


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    # A pool of its own: another library in this process may register the same files in the default one.
    pool = descriptor_pool.DescriptorPool()
    content = Path(__file__).with_name("vendor").joinpath("gnmi.binpb").read_bytes()
    for module in (any_pb2, descriptor_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def encode_request(target: str, path: TablePath) -> bytes:
    """Return a request for one path of a database."""
    elements = [{"name": name} for name in path]
    request = message_class("GetRequest")(
        prefix={"target": target}, path=[{"elem": elements}], encoding="JSON_IETF"
    )
    return bytes(request.SerializeToString())


def decode_answer(body: bytes, target: str, *, is_row: bool = False) -> tables.SonicTable:
    """Return the table in an answer; `is_row` if it is a single row, which has no key. Raises SwitchReadError."""
    try:
        answer = message_class("GetResponse").FromString(body)
    except message.DecodeError as error:
        text = f"malformed answer: {error}"
        raise base.SwitchReadError(text) from error
    # One path was requested, so more than one update is of something else.
    if len(answer.notification) != 1 or len(answer.notification[0].update) != 1:
        text = "unexpected answer: expected one update in one notification"
        raise base.SwitchReadError(text)
    notification = answer.notification[0]
    answered = notification.prefix.target
    if answered and answered != target:
        text = f"answer of target {untrusted_text.quote_text(answered)}: expected {target}"
        raise base.SwitchReadError(text)
    value = notification.update[0].val
    kind = value.WhichOneof("value")
    if kind not in {"json_ietf_val", "json_val"}:
        text = f"unexpected answer: {kind or 'no value'}: expected a value in JSON"
        raise base.SwitchReadError(text)
    return _decode_rows(getattr(value, kind), is_row=is_row)


def _decode_rows(content: bytes, *, is_row: bool) -> tables.SonicTable:
    # Before the text is decoded, which takes many times its size in memory.
    if content.count(b":") > MAX_VALUES:
        text = f"too many values in an answer: expected at most {MAX_VALUES}"
        raise base.SwitchReadError(text, "limit")
    try:
        # Fractions stay text: no value may be rounded.
        rows = msgspec.json.Decoder(dict[str, Any], float_hook=str).decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        text = f"invalid JSON in an answer: {str(error)[:_MAX_DETAILS]}"
        raise base.SwitchReadError(text) from error
    if is_row:
        return tables.SonicTable({"": rows})
    return tables.SonicTable(rows)


# The connection ----------------------------------------------------------------------------------


class GnmiSession(Protocol):
    """Requests to one switch."""

    async def get(self, target: str, path: TablePath) -> bytes | None:
        """Return the answer for a path; None if the switch does not have it. Raises SwitchReadError."""


class GrpcSession:
    """Requests over one channel."""

    def __init__(self, channel: grpc.aio.Channel, switch: ConfiguredSwitch) -> None:
        self._call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GET)
        self._timeout_seconds = switch.timeout_seconds * ANSWER_TIMEOUTS
        user = _access(switch).user
        self._metadata = (("username", user.user), ("password", user.password)) if user else ()

    async def get(self, target: str, path: TablePath) -> bytes | None:
        """Return the answer for a path; None if the switch does not have it. Raises SwitchReadError."""
        try:
            return await self._call(
                encode_request(target, path), timeout=self._timeout_seconds, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNSUPPORTED:
                return None
            raise self._failure(error) from error

    def _failure(self, error: grpc.aio.AioRpcError) -> base.SwitchReadError:
        code = error.code()
        details = untrusted_text.printable(error.details() or "")
        if _UNTRUSTED in details:
            reason = details.rpartition(_UNTRUSTED)[2].strip()[:_MAX_DETAILS]
            return base.SwitchReadError(f"untrusted certificate: {reason}; fix: set ca_file")
        if _OTHER_NAME in details:
            return base.SwitchReadError("certificate of another name; fix: set server_name")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            problem = f"no complete answer within {self._timeout_seconds:g} s"
            return base.SwitchReadError(problem, "timeout")
        if code in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            return base.SwitchReadError("credential not accepted: expected one of a read-only user")
        is_limit = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        problem = f"gRPC status {code.name} {details[:_MAX_DETAILS]}".strip()
        return base.SwitchReadError(problem, "limit" if is_limit else "error")


@asynccontextmanager
async def open_session(switch: ConfiguredSwitch) -> AsyncIterator[GnmiSession]:
    """Yield a connection to a switch, which connects with the first request. Raises SwitchReadError."""
    access = _access(switch)
    options: list[tuple[str, int | str]] = [
        ("grpc.enable_http_proxy", 0),  # a proxy of the environment is not for the site's switches
        # A poll has its deadline; the next one follows within the period.
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.primary_user_agent", f"railscope-collector/{__version__}"),
        ("grpc.use_local_subchannel_pool", 1),  # a connection ends with its poll
    ]
    if access.server_name:
        options.append(("grpc.ssl_target_name_override", access.server_name))
    host = f"[{switch.host}]" if ":" in switch.host else switch.host
    address = f"{host}:{switch.port}"
    if access.plaintext:
        channel = grpc.aio.insecure_channel(address, options)
    else:
        try:
            pem = await service.run_in_thread(
                tls_contexts.client_pem,
                access.ca_file,
                access.certificate_file,
                access.key_file,
            )
        except OSError as error:
            text = f"cannot read a certificate: {error}"
            raise base.SwitchReadError(text) from error
        channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*pem), options)
    async with channel:
        yield GrpcSession(channel, switch)


def _access(switch: ConfiguredSwitch) -> GnmiAccess:
    return switch.gnmi or GnmiAccess()


# Polls -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GnmiReader:
    """Reads one switch by gNMI; a group of counters no more often than the switch itself does."""

    switch: ConfiguredSwitch
    monotonic: Callable[[], float]
    open: Callable[[ConfiguredSwitch], AbstractAsyncContextManager[GnmiSession]] = open_session
    _facts: tables.SwitchFacts = field(default_factory=tables.SwitchFacts)
    _read_at: dict[str, float] = field(default_factory=dict)
    """Time of the last read of each group."""

    async def read(self) -> base.SwitchReading:
        """Return the current readings. Raises SwitchReadError."""
        now_seconds = self.monotonic()
        groups = {
            "watermarks": WATERMARK_SECONDS,
            "queues": QUEUE_SECONDS,
            "neighbours": NEIGHBOUR_SECONDS,
        }
        due = {
            name
            for name, period in groups.items()
            if now_seconds >= self._read_at.get(name, -period) + period * _EARLY
        }
        async with self.open(self.switch) as session:
            ports = await _read_table(session, "COUNTERS_DB", ("COUNTERS", "Ethernet*"))
            if ports.failure:
                text = "no COUNTERS/Ethernet* in COUNTERS_DB: expected a switch with SONiC"
                raise base.SwitchReadError(text)
            # Essential: without it, ports would have other names
            states = await _read_table(session, "APPL_DB", ("PORT_TABLE",))
            found = tables.SonicTables(ports, states)
            if due & {"queues", "watermarks"}:  # the watermarks of queues are in the same answer
                path = ("COUNTERS", "Ethernet*", "Queues")
                found.queues = await _read_optional(session, "COUNTERS_DB", path)
                due.add("queues")
            if "watermarks" in due:
                path = ("PERIODIC_WATERMARKS", "Ethernet*", "PriorityGroups")
                found.groups = await _read_optional(session, "COUNTERS_DB", path)
                found.pools = await _read_pools(session)
                found.profile_names, found.profiles = [
                    await _read_optional(session, "APPL_DB", (table,))
                    for table in ("BUFFER_PG_TABLE", "BUFFER_PROFILE_TABLE")
                ]
            if "neighbours" in due:
                found.neighbours = await _read_optional(session, "APPL_DB", ("LLDP_ENTRY_TABLE",))
                found.chassis = await _read_optional(
                    session, "APPL_DB", ("LLDP_LOC_CHASSIS",), is_row=True
                )
        # Only after all requests: a poll that failed reads the same groups again.
        self._read_at.update(dict.fromkeys(due, now_seconds))
        return await service.run_in_thread(
            tables.make_reading, self.switch.name, found, self._facts
        )


async def _read_table(
    session: GnmiSession, target: str, path: TablePath, *, is_row: bool = False
) -> tables.SonicTable:
    """Return a table, unsupported if the switch does not have it. Raises SwitchReadError."""
    body = await session.get(target, path)
    if body is None:
        return tables.SonicTable(failure=Absent.UNSUPPORTED)
    return await service.run_in_thread(decode_answer, body, target, is_row=is_row)


async def _read_optional(
    session: GnmiSession, target: str, path: TablePath, *, is_row: bool = False
) -> tables.SonicTable:
    """Return a table that is not essential: a failure concerns it alone."""
    try:
        return await _read_table(session, target, path, is_row=is_row)
    except base.SwitchReadError as error:
        is_timeout = error.reason == "timeout"
        return tables.SonicTable(failure=Absent.TIMEOUT if is_timeout else Absent.ERROR)


async def _read_pools(session: GnmiSession) -> tables.SonicTable:
    """Return the watermarks of the buffer pools by their names."""
    path = ("COUNTERS_BUFFER_POOL_NAME_MAP",)
    named = await _read_optional(session, "COUNTERS_DB", path, is_row=True)
    rows: dict[str, object] = {}
    row = named.rows.get("")
    for name, oid in sorted(row.items() if isinstance(row, dict) else ())[: tables.MAX_POOLS]:
        if not isinstance(oid, str) or not oid.startswith(_OID_START) or len(oid) > _MAX_OID:
            rows[name] = oid
            continue
        table = await _read_optional(
            session, "COUNTERS_DB", ("PERIODIC_WATERMARKS", oid), is_row=True
        )
        # One failure is enough: further pools of a switch that hangs would each wait for a timeout.
        if table.failure not in {None, Absent.UNSUPPORTED}:
            return table
        rows[name] = table.rows.get("", {})
    return tables.SonicTable(rows, named.failure)
