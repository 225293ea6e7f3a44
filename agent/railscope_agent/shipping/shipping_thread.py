"""Thread of a shipper, with an event loop of its own: a disk that hangs stops shipping only."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress

import structlog

from railscope_agent.sampling.worker_thread import WorkerThread
from railscope_agent.shipping.shipper import SHUTDOWN_SECONDS, Shipper

log = structlog.get_logger(__name__)

# The shipper itself ends in time unless a call on its disk does not return.
END_SECONDS = SHUTDOWN_SECONDS + 1.0


async def run_on_thread(shipper: Shipper) -> None:
    """Run a shipper until cancelled; it is left behind if it does not end. Raises what ends it."""
    loop = asyncio.new_event_loop()
    shipping = loop.create_task(shipper.run())

    def work() -> None:
        with closing(loop), suppress(asyncio.CancelledError):
            loop.run_until_complete(shipping)

    thread = WorkerThread("shipping")
    ended = thread.submit(work)
    thread.stop()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(shipping.cancel)
        await asyncio.wait({ended}, timeout=END_SECONDS)
        if ended.done():
            ended.result()
        else:
            log.error(
                "shipping_hangs",
                directory=str(shipper.directory),
                unspooled_frames=shipper.pending_frames,
                advice="check the disk",
            )
        raise
