"""Reader of switches with OpenConfig, or the models of Nokia SR Linux: a subscription ONCE for each group of facts.

ONCE returns what the switch has now and ends with `sync_response`, so a value is never older than its poll: nothing has to be
remembered between polls of a stream that closes, falls silent, or deletes what was sent before. A rate is computed from the times of
the polls, which samples at times of the switch's own would falsify. A switch without ONCE is subscribed to by SAMPLE, and the call
ends with the first pass, which is the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import ClassVar

from railscope import service, untrusted_text
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_collector.switches import (
    gnmi_messages,
    gnmi_updates,
    openconfig_tables as tables,
    switch_reading as base,
)
from railscope_collector.switches.gnmi_session import GnmiSession, PathNotFoundError, open_session
from railscope_collector.switches.switch_settings import ConfiguredSwitch

MAX_ANSWER_BYTES = 32 << 20
"""Messages of one group: 512 ports with 10 queues of 10 counters are 6 MiB, with each path in full."""
_BATCH_BYTES = 1 << 20
"""Messages that are decoded together: a switch may send one for each leaf."""
_MESSAGE_BYTES = 64
"""Memory of a message beside its content: an endless stream of empty ones reaches the limit as well."""
ONCE, STREAM = "ONCE", "STREAM"
_SAMPLE_NS = 60 * SECOND_NS
"""Interval of samples; the call ends before the second pass."""
_UPDATE_TAG = b"\x0a"
"""First byte of a message with a notification (field 1 of SubscribeResponse)."""
_ENCODINGS = ("PROTO", "JSON_IETF", "JSON")
"""Encodings in the order of choice: the types of PROTO are exact."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Models of a switch that the table uses, and the encoding to request."""

    models: frozenset[str]
    encoding: str
    is_sonic: bool
    """True if the switch names SONiC, or no models at all, as older images of SONiC do."""

    EXPECTED: ClassVar[str] = "openconfig-interfaces or srl_nokia-interfaces"

    @classmethod
    def decode(cls, body: bytes) -> Capabilities:
        """Return what an answer states. Raises SwitchReadError."""
        answer = gnmi_messages.decode("CapabilityResponse", body)
        named = gnmi_messages.enumeration("Encoding")
        supported = {named.get(number) for number in answer.supported_encodings}
        found = [name for name in _ENCODINGS if name in supported]
        return cls(
            tables.MODELS.intersection(model.name for model in answer.supported_models),
            found[0] if found else "JSON",  # each target supports JSON (gNMI specification, 2.3.1)
            not answer.supported_models
            or any(
                model.name.startswith("sonic-") or model.organization == "SONiC"
                for model in answer.supported_models
            ),
        )

    @property
    def ports(self) -> tables.Group | None:
        """The group of the ports; None if the switch has neither model. The native one has more facts."""
        return next(
            (each for each in (tables.SRL_PORTS, tables.PORTS) if each.model in self.models), None
        )

    @property
    def groups(self) -> Sequence[tables.Group]:
        """All groups of the models that the switch's ports have."""
        return tables.SRL_GROUPS if self.ports is tables.SRL_PORTS else tables.GROUPS


def encode_subscription(group: tables.Group, encoding: str, mode: str = ONCE) -> bytes:
    """Return the request for the present leaves of a group."""
    origin = "openconfig" if group.model.startswith("openconfig-") else ""
    paths = [
        {"origin": origin, "elem": [{"name": name} for name in path.split("/")]}
        for path in group.paths
    ]
    sampled = {} if mode == ONCE else {"mode": "SAMPLE", "sample_interval": _SAMPLE_NS}
    return gnmi_messages.encode(
        "SubscribeRequest",
        subscribe={
            "subscription": [{"path": path, **sampled} for path in paths],
            "mode": mode,
            "encoding": encoding,
        },
    )


@dataclass(slots=True)
class OpenConfigReader:
    """Reads one switch, with a connection for each poll; a group of facts no more often than its period."""

    switch: ConfiguredSwitch
    capabilities: Capabilities
    monotonic: Callable[[], float]
    _mode: str = ONCE
    _facts: tables.SwitchFacts = field(default_factory=tables.SwitchFacts)
    _times: base.ReadTimes = field(init=False)

    def __post_init__(self) -> None:
        """Derive the periods from the groups."""
        groups = self.capabilities.groups
        self._times = base.ReadTimes({group.name: group.period_seconds for group in groups})

    async def read(self) -> base.SwitchReading:
        """Return the current readings. Raises SwitchReadError."""
        now_seconds = self.monotonic()
        due = self._times.due(now_seconds)
        leaves, failures = gnmi_updates.Leaves(tables.TREE), dict[str, Absent]()
        async with open_session(self.switch) as session:
            for group in self.capabilities.groups:
                if group.name not in due or group.model not in self.capabilities.models:
                    continue
                # Further requests to a switch that hangs would each wait for a timeout.
                if Absent.TIMEOUT in failures.values():
                    failures[group.name] = Absent.TIMEOUT
                    continue
                try:
                    await self._subscribe(session, group, leaves)
                except PathNotFoundError:
                    # Every switch of the model has ports: one that refuses them does not have the mode.
                    if group is self.capabilities.ports:
                        await self._subscribe_otherwise(session, group, leaves)
                except base.SwitchReadError as error:
                    if group is self.capabilities.ports or error.reason == "limit":
                        raise
                    failures[group.name] = error.absence
        # Only after all requests: a poll that failed reads the same groups again.
        self._times.note(due, now_seconds)
        answers = tables.OpenConfigAnswers(leaves, due, failures)
        return await service.run_in_thread(
            tables.make_reading, self.switch.name, answers, self._facts
        )

    async def _subscribe_otherwise(
        self, session: GnmiSession, group: tables.Group, leaves: gnmi_updates.Leaves
    ) -> None:
        """Take the leaves of a group in the other mode, and keep it if the switch has it. Raises SwitchReadError."""
        before, self._mode = self._mode, STREAM if self._mode == ONCE else ONCE
        try:
            await self._subscribe(session, group, leaves)
        except base.SwitchReadError:
            self._mode = before
            raise

    async def _subscribe(
        self, session: GnmiSession, group: tables.Group, leaves: gnmi_updates.Leaves
    ) -> None:
        """Take the leaves of a group. Raises SwitchReadError if the switch does not send them completely."""
        request = encode_subscription(group, self.capabilities.encoding, self._mode)
        size, batch, batch_size, is_complete = 0, list[bytes](), 0, False
        async with aclosing(session.subscribe(request)) as messages:
            async for body in messages:
                cost = len(body) + _MESSAGE_BYTES
                size, batch_size = size + cost, batch_size + cost
                if size > MAX_ANSWER_BYTES:
                    text = f"answer of {group.name} too large: expected at most {MAX_ANSWER_BYTES} bytes"
                    raise base.SwitchReadError(text, "limit")
                batch.append(body)
                if not body.startswith(_UPDATE_TAG) and _is_complete(body):
                    is_complete = True
                    break
                if batch_size >= _BATCH_BYTES:
                    await service.run_in_thread(apply_messages, batch, leaves)
                    batch, batch_size = [], 0
        if not is_complete:
            text = f"stream of {group.name} closed before sync_response: expected the state of the switch"
            raise base.SwitchReadError(text)
        await service.run_in_thread(apply_messages, batch, leaves)


def _is_complete(body: bytes) -> bool:
    """True for the message that follows all present leaves."""
    answer = gnmi_messages.decode("SubscribeResponse", body)
    return answer.WhichOneof("response") == "sync_response" and bool(answer.sync_response)


def apply_messages(messages: Sequence[bytes], leaves: gnmi_updates.Leaves) -> None:
    """Apply the notifications in messages of a subscription. Raises SwitchReadError."""
    for body in messages:
        answer = gnmi_messages.decode("SubscribeResponse", body)
        kind = answer.WhichOneof("response")
        if kind == "error":
            details = untrusted_text.quote_text(answer.error.message)
            text = f"the switch answered with an error: {details}"
            raise base.SwitchReadError(text)
        if kind == "update":
            leaves.apply(answer.update)
