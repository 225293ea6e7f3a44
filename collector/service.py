"""The collector put together: state, frame log, ingest, views, API, sinks."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from aiohttp.web import Application

from collector import web
from collector.access.audit_api import AuditApi
from collector.access.billing_api import Billing, BillingApi
from collector.access.books import LedgerBooks
from collector.access.credential import Role
from collector.access.enrolment import Told
from collector.access.entries import Entries
from collector.access.gate import Gate, application
from collector.access.routes import Route
from collector.access.tokens_file import TokensFile
from collector.access.trail import AccessTrail
from collector.account.live import LiveAccount
from collector.api import Api
from collector.auditing import OBSERVED, Auditing
from collector.config import CollectorSettings
from collector.core import Checkpoint, Core, SeenEvent, events_of
from collector.evidence.days import Door
from collector.evidence.settle import Settler
from collector.evidence.store import EvidenceStore
from collector.files import AdministratorsFiles
from collector.framelog import FrameLog
from collector.ingest import Ingest
from collector.ledger.database import Database
from collector.ledger.store import Ledger
from collector.metrics import Own
from collector.schemas import Schemas
from collector.segments import LogStats, read_segment, segment_path, segments, write_durably
from collector.sinks.influx import InfluxSink
from collector.views.refresh import Refresher
from railscope import __version__, listen
from railscope.settings import SettingsError
from railscope.systemd import feed_watchdog, notify, state_directory
from railscope.wire import WireError, unpack

log = structlog.get_logger(__name__)

CHECKPOINT = "checkpoint"
MOST_REPLAYED_BYTES = 1 << 30
"""What was accepted once is read again, even if the limits have become narrower since."""
_DAY_NS = 86_400_000_000_000


@dataclass
class Collector:
    """One collector: `run` takes frames in and serves views until cancelled."""

    settings: CollectorSettings
    on_listening: Callable[[str, int], None] = lambda _host, _port: None
    billing: Callable[[], Billing] | None = None
    """Finds who makes statements and exports; unless one is given, the collector's own books."""

    def __post_init__(self) -> None:
        """Build all parts. Raises SettingsError where a setting cannot work."""
        self.folder = state_directory(
            self.settings.state_directory, CollectorSettings().state_directory
        )
        self.tokens = TokensFile(Path(self.settings.tokens_file))
        self.core = Core(Schemas(self.folder / "schemas"))
        log_settings = self.settings.frame_log
        self.log = FrameLog(
            self.folder / "frames", log_settings.segment_bytes, log_settings.most_bytes,
            on_rotate=self._checkpoint,
        )  # fmt: skip
        self.auditing = Auditing(
            self.settings, self.folder, lambda: self.ledger_url, self._events, self._known_nodes
        )
        self.auditing.listen_to(self.core)
        self.trail = self.auditing.trail
        self._first_segment = 0
        self.access = AccessTrail(self.trail, Told(self.folder / "identities"))
        self.tokens.on_change = self.access.enrolled
        self.entries = Entries(self.trail.log.folder, self.trail.log.signer.public)
        self.files = AdministratorsFiles.of(self.settings)
        self.live = LiveAccount(self.core.evidence, lambda: self.files.evidence, ready=False)
        self.settler = Settler(
            self.core.evidence, self.live, self._open_ledger, self.files.texts,
            self.settings.metering, self.folder / "evidence.seen",
        )  # fmt: skip
        self.refresher = Refresher(
            self.core, self.live, self.settings.stale_seconds, self.settings.views_seconds,
            known=lambda: not self.files.unknown, quotas=lambda: self.files.quotas.content,
        )  # fmt: skip
        self.ledger_url = self._ledger_url()
        self.books = LedgerBooks(self.ledger_url, self.settings.billing.seller_file)
        self._tls = listen.server_tls(
            self.settings.tls.certificate_file, self.settings.tls.key_file,
            self.settings.tls.client_ca_file,
        )  # fmt: skip
        self.sink = InfluxSink(self.settings.influx, lambda: self.refresher.views)

    def _known_nodes(self) -> set[str]:
        entries = self.tokens.credentials.entries.values()
        listed = {one.credential.name for one in entries if one.credential.role is Role.NODE}
        return listed | self.core.fleet.nodes.keys()

    def _ledger_url(self) -> str:
        ledger = self.settings.ledger
        if not ledger.url_file:
            return ledger.url or f"sqlite:///{(self.folder / 'ledger.sqlite').absolute()}"
        try:
            return Path(ledger.url_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"ledger.url_file {ledger.url_file} cannot be read: {error}"
            raise SettingsError(message) from error

    def _open_ledger(self) -> Door:
        """The ledger and the evidence in its database. Blocking; raises LedgerError."""
        database = Database(self.ledger_url)
        return Door(Ledger(database), EvidenceStore(database))

    async def run(self) -> None:
        """Run until cancelled. Raises SettingsError where a setting cannot work."""
        lock = self._lock()
        watchdog = asyncio.create_task(feed_watchdog())
        try:
            await asyncio.to_thread(self.restore)
            calm_garbage_collection()
            await self._serve()
        finally:
            watchdog.cancel()
            self.settler.close()
            self.log.close()
            self.auditing.close()
            self.books.close()
            os.close(lock)

    def application(self) -> Application:
        """All that is served, behind the gate."""
        ingest = Ingest(self.core, self.log, self.settings.limits, self.trail.deny)
        own = Own(
            self.core, self.log, self.files, self.settler, self.sink, self.trail, self.tokens,
            self.auditing.numbers.cells,
        )  # fmt: skip
        api = Api(self.core, own, lambda: self.refresher.views, self.settings.stale_seconds)
        gate = Gate(
            lambda: self.tokens.credentials, self.access, self.settings.open_reading,
            refused=self._count_refusal,
        )  # fmt: skip
        handlers = {
            "frames": ingest.handle,
            **api.handlers(),
            **AuditApi(self.entries).handlers(),
            **self.auditing.custody.handlers(),
            **BillingApi(self.billing or self.books.open, self.access.exported).handlers(),
        }
        return application(gate, handlers, self.settings.limits.body_bytes)

    def _count_refusal(self, route: Route | None, reason: str) -> None:
        """A refused sender is counted where refused envelopes are."""
        if route and route.name == "frames":
            self.core.counts.reject(reason)

    async def _serve(self) -> None:
        runner = web.runner(self.application())
        self.access.enrolled(self.tokens.credentials)
        await runner.setup()
        try:
            host, port = await web.start(runner, self.settings.listen, self._tls)
            self.on_listening(host, port)
            log.info("collector_started", version=__version__, listen=f"{host}:{port}",
                     nodes=len(self.core.fleet.nodes))  # fmt: skip
            notify("READY=1")
            async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as group:
                # The outer one ends last: what the others leave is still recorded.
                outer.create_task(self.trail.run())
                group.create_task(self.access.run())
                group.create_task(self.tokens.watch())
                group.create_task(self.entries.run())
                group.create_task(self.log.run())
                self.auditing.start(group)
                group.create_task(self.files.watch())
                group.create_task(self.settler.run())
                group.create_task(self.refresher.run())
                group.create_task(self.sink.run())
        finally:
            await runner.cleanup()

    def _lock(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"state_directory {self.folder} cannot be used: {error.strerror}"
            raise SettingsError(message) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            message = f"state_directory {self.folder} is in use by another collector"
            raise SettingsError(message) from error
        return descriptor

    # Restart -----------------------------------------------------------------------------------

    def restore(self) -> None:
        """Read schemas, checkpoint and the segments behind it. Blocking; raises OSError."""
        self.auditing.open()
        self.access.open()
        self.files.refresh()
        damaged = self.core.schemas.open()
        if damaged:
            log.error("schemas_damaged", files=damaged, advice="agents will send them again")
        self._first_segment = self._read_checkpoint()
        self.log.open()
        for number in segments(self.folder / "frames"):
            if number >= self._first_segment:
                self._replay(segment_path(self.folder / "frames", number))
        if self.log.stats.damaged_records:
            log.error("frame_log_damaged", records=self.log.stats.damaged_records)

    def _replay(self, path: Path) -> None:
        for _, record in read_segment(path, self.log.stats):
            try:
                self.core.accept(record, unpack(record.body, MOST_REPLAYED_BYTES))
            except WireError as error:
                log.error("record_unreadable", segment=path.name, problem=str(error))

    def _events(self) -> Iterator[SeenEvent]:
        """The events of what a restart would replay."""
        folder = self.folder / "frames"
        for number in segments(folder):
            if number >= self._first_segment:
                for _, record in read_segment(segment_path(folder, number), LogStats()):
                    yield from events_of(record, unpack(record.body, MOST_REPLAYED_BYTES))

    def _read_checkpoint(self) -> int:
        path = self.folder / CHECKPOINT
        try:
            checkpoint = msgspec.msgpack.decode(path.read_bytes(), type=Checkpoint)
        except FileNotFoundError:
            return 0
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.error("checkpoint_damaged", file=str(path), problem=str(error),
                      advice="all segments there are will be read instead")  # fmt: skip
            return 0
        self.core.resume(checkpoint)
        return checkpoint.first_segment

    async def _checkpoint(self, first_segment: int) -> None:
        """Keep what older segments say, then let the oldest go."""
        newest = max((node.instant_ns for node in self.core.fleet.nodes.values()), default=0)
        horizon = newest - (self.settings.limits.oldest_frame_days + 1) * _DAY_NS
        self.core.received.forget_before(horizon)
        observed = self.auditing.observed.snapshot(horizon)
        if observed is None:
            log.warning("checkpoint_waits", advice="events are to be recorded from these segments")
            return
        content = msgspec.msgpack.encode(self.core.checkpoint(first_segment))
        try:
            await asyncio.to_thread(write_durably, self.folder / OBSERVED, observed)
            await asyncio.to_thread(write_durably, self.folder / CHECKPOINT, content)
            self._first_segment = first_segment
            await asyncio.to_thread(self.log.delete_before, first_segment)
        except OSError as error:
            log.error("checkpoint_failed", file=str(self.folder / CHECKPOINT), problem=str(error),
                      advice="no segment is deleted until one succeeds")  # fmt: skip


def calm_garbage_collection() -> None:
    """Keep the garbage collector from walking the whole fleet again and again.

    What a restart has read stays for good. A full collection over the state of thousands of nodes
    would hold all acknowledgements up for a fifth of a second; the state holds no cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
