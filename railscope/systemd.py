"""Notifications of systemd and its watchdog.

READY, WATCHDOG, STOPPING and RELOADING follow the protocol of sd_notify(3). Outside systemd every
call does nothing. A notification is never waited for: a systemd that does not read must not stop the service.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

import structlog

log = structlog.get_logger(__name__)

_US_PER_SECOND = 1_000_000


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as "READY=1" to systemd; one that cannot be sent is logged."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # An abstract socket: its name begins with a NUL (unix(7)).
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            # Would block while the queue of the receiver is full (unix(7)).
            channel.sendto(state.encode(), socket.MSG_DONTWAIT, address)
        except OSError as error:
            log.warning("notification_lost", state=state, problem=error.strerror)


async def feed_watchdog() -> None:
    """Notify the watchdog, at half its interval, that the event loop is running.

    Returns at once if systemd has set no watchdog.
    """
    interval_us = int(os.environ.get("WATCHDOG_USEC", "0"))
    if not interval_us or not os.environ.get("NOTIFY_SOCKET"):
        return
    while True:
        notify("WATCHDOG=1")
        # Half, as sd_watchdog_enabled(3) recommends.
        await asyncio.sleep(interval_us / _US_PER_SECOND / 2)
