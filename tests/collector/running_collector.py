"""A collector that runs for a test, on a free port, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from makers import FrameSender, gpu_schema

from railscope.frame import Frame
from railscope_collector.access.credentials import digest_token
from railscope_collector.config import (
    AuditSettings,
    CollectorSettings,
    DiagnosisSettings,
    IngestLimits,
)
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    read_segment,
    segment_numbers,
    segment_path,
)
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.service import Collector

SMALL = IngestLimits(
    body_bytes=200_000,
    decompressed_bytes=1_000_000,
    columns_per_schema=50,
    frames_per_batch=100,
)


class RunningCollector:
    """A collector on a free port, and requests to it."""

    def __init__(self, settings: CollectorSettings, **more: Any) -> None:
        self.collector = Collector(settings, **more)
        self.url = ""

    async def post(
        self,
        body: bytes,
        *,
        node: str = "n1",
        at: int = 100,
        headers: dict[str, str] | None = None,
        path: str = "/v1/frames",
    ) -> tuple[int, dict[str, Any]]:
        sent = FrameSender(node).sent(at).to_headers()
        given = {"Authorization": f"Bearer token-{node}", **sent} | (headers or {})
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, data=body, headers=given) as response,
        ):
            # An acknowledgement states that a record is durable; the state has it a moment later.
            answer = response.status, await response.json()
            if collector := getattr(self, "collector", None):  # not of another process
                await collector.reader.wait_until_applied()
            return answer

    async def get(
        self,
        path: str,
        token: str = "token-reader",  # noqa: S107 - a test's token
        accept: str = "*/*",
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Accept": accept}
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.url + path, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, text

    async def json(self, path: str, token: str = "token-reader") -> Any:  # noqa: S107 - as above
        status, text = await self.get(path, token, "application/json")
        assert status == 200, text
        return msgspec.json.decode(text)


def settings_in(directory: Path, **more: Any) -> CollectorSettings:
    """Settings with tokens of three nodes and a reader; views are refreshed ten times per second.

    The diagnosis, which is a process that takes a second to start, is not enabled.
    """
    lines = [f'{name} = "{digest_token("token-" + name)}"' for name in ("n1", "n2", "n3")]
    reader = f'[operators]\nreader = "{digest_token("token-reader")}"\n'
    (directory / "tokens.toml").write_text("[nodes]\n" + "\n".join(lines) + "\n" + reader)
    given: dict[str, Any] = {
        "listen": "127.0.0.1:0", "state_directory": str(directory / "state"),
        "tokens_file": str(directory / "tokens.toml"), "limits": SMALL, "view_refresh_seconds": 0.1,
        "audit": AuditSettings(required_witnesses=0), "diagnosis": DiagnosisSettings(enabled=False),
    }  # fmt: skip
    return CollectorSettings(**(given | more))


@contextlib.asynccontextmanager
async def run_collector(
    settings: CollectorSettings,
    ready: Callable[[RunningCollector], None] = lambda _one: None,
    **more: Any,
) -> AsyncIterator[RunningCollector]:
    """A collector until the end; `ready` may prepare it before it starts."""
    one = RunningCollector(settings, **more)
    ready(one)
    listening = asyncio.Event()

    def on_listening(host: str, port: int) -> None:
        scheme = "https" if settings.tls.certificate_file else "http"
        one.url = f"{scheme}://{host}:{port}"
        listening.set()

    one.collector.on_listening = on_listening
    task = asyncio.create_task(one.collector.run())
    waiting = asyncio.create_task(listening.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()
    elif not one.collector.read_only and one.collector.reader._is_behind:  # noqa: SLF001 - see `put`
        await one.collector.reader.restored.wait()
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.wait({task})


def logged_envelopes(directory: Path) -> int:
    """Number of envelopes in the frame log."""
    frames = directory / "state" / "frames"
    return sum(
        1
        for n in segment_numbers(frames)
        for _ in read_segment(segment_path(frames, n), FrameLogStats())
    )


def gpu_frames(sender: FrameSender, at: int = 0, rows: int = 3) -> list[Frame]:
    """Frames of two GPUs, one a second from `at` on."""
    return sender.frames(
        gpu_schema(sender.node), [[50, 60, 1000, 2000, 10 + r, 20 + r] for r in range(rows)], at=at
    )


async def write_audit_log(collector: Collector, drafts: list[RecordDraft]) -> int:
    """Write these records to the audit log and sign it; return its size."""
    log = collector.trail.log
    # Without the guard, for which the collector would have to run.
    log.before_signing = lambda: None
    collector.directory.mkdir(parents=True, exist_ok=True)
    collector.store.open()
    collector.trail.open()
    task = asyncio.create_task(log.run())
    await asyncio.gather(*(log.append(draft) for draft in drafts))
    with contextlib.suppress(UnusableLedgerError):
        await log.sign()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    collector.store.close()
    return log.signed.size
