"""Integration with systemd: notification socket, watchdog, state directory.

READY, WATCHDOG, STOPPING and RELOADING follow the protocol of sd_notify(3). Outside systemd every call
does nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

_US_PER_SECOND = 1_000_000


def notify(state: str) -> None:
    """Send a state such as "READY=1" to systemd."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), address)


def notify_reloading() -> None:
    """Report the start of a reload, with its time as systemd requires."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


async def feed_watchdog() -> None:
    """Notify the watchdog, at half its interval, that the event loop is running.

    Returns at once if systemd has set no watchdog.
    """
    interval_us = int(os.environ.get("WATCHDOG_USEC", "0"))
    if not interval_us or not os.environ.get("NOTIFY_SOCKET"):
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_us / _US_PER_SECOND / 2)


def state_directory(configured: str, default: str) -> Path:
    """Return the configured directory, else the one set by systemd, else the default."""
    given = os.environ.get("STATE_DIRECTORY", "")
    return Path(given if configured == default and given else configured)
