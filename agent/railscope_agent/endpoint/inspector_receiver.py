"""OTLP receiver of the agent: NCCL Inspector in the processes of this node pushes to it, over HTTP on loopback.

The sender is the process that has the other end of the connection, which is found before the body is read. The bounds are those of
a plugin that pushes every second or less often; what is beyond them is rejected and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from railscope import http_server, listen_address, otlp_metrics, otlp_receiving, service
from railscope.settings import SettingsError
from railscope_agent.host import Host
from railscope_agent.sources.inspector_pushes import (
    DELTA,
    EXCESS,
    INVALID,
    InspectorPush,
    InspectorPushes,
    PushingProcess,
    decode_push,
)

SETTING = "collectives.nccl_inspector_listen"
MAX_CONNECTIONS, MAX_SENDERS = 16, 256
PROCESS_RATE, NODE_RATE = 2.0, 20.0
"""Requests per second of a process, and of all: the search for a sender takes milliseconds."""
PROCESS_SHARE = 0.1
"""Largest share of a core for the pushes of a process: one of the largest takes a second."""
MAX_UNPACKED_BYTES, MAX_POINTS = 8 << 20, 12_000
"""Three points of 600 bytes for each of 3,000 calls: the plugin keeps 1,024 of a communicator between two pushes."""
_SENDER = "sender"


@dataclass(slots=True)
class InspectorReceiver:
    """Receives the pushes until cancelled."""

    listen: str
    pushes: InspectorPushes
    host: Host
    monotonic: Callable[[], float] = time.monotonic
    processor_seconds: Callable[[], float] = time.thread_time
    """Processor time of the calling thread."""
    address: tuple[str, int] = ("", 0)
    """Address and port of the listener, once `is_listening` is set."""
    is_listening: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: otlp_receiving.OtlpEndpoint = field(init=False)
    _of_node: otlp_receiving.SenderLimit = field(default_factory=otlp_receiving.SenderLimit)
    _of_process: dict[int, otlp_receiving.SenderLimit] = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    def __post_init__(self) -> None:
        """Create the endpoint. Raises SettingsError for an address that is not on loopback."""
        host, _ = listen_address.split_address(self.listen)
        if not listen_address.is_loopback(host):
            message = f"invalid {SETTING} {self.listen!r}: expected an address on loopback, such as 127.0.0.1:4318"
            raise SettingsError(message)
        self.endpoint = otlp_receiving.OtlpEndpoint(
            self._check_sender, self._receive, "docs/jobs.md", requests=self.pushes.requests
        )

    async def run(self) -> None:
        """Receive until cancelled; a listener that cannot start is started again later."""
        await otlp_receiving.keep_listening(self._serve)

    async def _serve(self) -> None:
        await self.endpoint.serve(self.listen, None, MAX_CONNECTIONS, self._note_listening)

    def _note_listening(self, host: str, port: int) -> None:
        self.address = host, port
        self.is_listening.set()

    async def _check_sender(self, request: http_server.HttpServerRequest) -> None:
        """Find the sender of a request. Raises OtlpRejectedError for an unknown one, or one that sends too often."""
        # Before the sender is searched: that search is what a flood of requests would cost.
        self._of_node.count_request(self.monotonic(), NODE_RATE)
        peer = request.peer, request.peer_port
        find = self.pushes.find_sender
        sender = await service.run_in_thread(find, self.host, peer, self.address)
        self._limit(sender).count_request(self.monotonic(), PROCESS_RATE)
        request.checked[_SENDER] = sender

    def _limit(self, sender: PushingProcess) -> otlp_receiving.SenderLimit:
        """Return the limit of a process; those of the processes that sent least recently are dropped."""
        # Removed and added again, which moves it to the end: the first entry is the one used least recently.
        limit = self._of_process.pop(sender.pid, None) or otlp_receiving.SenderLimit()
        self._of_process[sender.pid] = limit
        if len(self._of_process) > MAX_SENDERS:
            del self._of_process[next(iter(self._of_process))]
        return limit

    async def _receive(
        self, request: http_server.HttpServerRequest, media_type: str, encoding: str
    ) -> tuple[int, str]:
        """Store the reports or calls of a request; return the number of points that were not, and why."""
        sender: PushingProcess = request.checked[_SENDER]
        body = request.body

        limit = self._limit(sender)

        def decode() -> InspectorPush:
            began_seconds = self.processor_seconds()
            try:
                unpacked = otlp_metrics.unpack_body(body, encoding, MAX_UNPACKED_BYTES)
                return decode_push(otlp_metrics.decode_metrics(unpacked, media_type, MAX_POINTS))
            finally:
                spent_seconds = self.processor_seconds() - began_seconds
                # Also for a request that is rejected: its decoding has cost the time all the same.
                limit.charge(spent_seconds * PROCESS_RATE / PROCESS_SHARE)

        async with limit.turn(self._turns):
            # A compressed body may be large however short it is.
            is_small = len(body) <= otlp_receiving.MAX_LOOP_BYTES and not encoding
            push = decode() if is_small else await service.run_in_thread(decode)
        points = self.pushes.add(sender, push, self.host.clock.now().boot_ns)
        rejected = {reason: points[reason] for reason in (INVALID, DELTA, EXCESS)}
        return sum(rejected.values()), otlp_metrics.rejection_text(rejected)
