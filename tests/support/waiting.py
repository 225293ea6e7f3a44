"""Waits for a condition that has no event in the process of a test: of a program, a thread, a database or a page."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest


async def wait_until(
    condition: Callable[[], object], what: str, every: float = 0.02, patience: float = 240.0
) -> Any:
    """Wait until a condition holds, and return its result; fail with its description if it never does.

    An expensive condition is evaluated less often: `every` is in seconds, as is `patience`.
    """
    try:
        async with asyncio.timeout(patience):
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(every)
    except TimeoutError:
        pytest.fail(f"waited {patience:g} s in vain until {what}")


def block_until(condition: Callable[[], object], what: str, patience: float = 60.0) -> Any:
    """Wait like `wait_until`, in a test without an event loop."""
    end = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"waited {patience:g} s in vain until {what}")
        time.sleep(0.05)
    return found
