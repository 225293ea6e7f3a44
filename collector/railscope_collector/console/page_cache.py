"""Cache of contents: each is made once per version and scope, however many readers there are."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from railscope_collector.http import json_compression

MAX_PAGES = 64
MAX_RENDERINGS = 2
"""Pages that are rendered at the same time; others wait."""
MAX_READINGS = 8
"""The same for pages that read from disk or database, which may take long: others do not wait for them."""
_DIGITS = 20
ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True)
class RenderedContent:
    """Content of a page in one form, compressed once for all readers."""

    body: str
    encoded: bytes
    compressed: bytes
    """With gzip; empty for a short body."""
    tag: str
    """Entity tag; it is weak because responses may be compressed."""

    @classmethod
    def from_body(cls, body: str) -> RenderedContent:
        """Return a content with its tag. Blocking."""
        encoded = body.encode(errors="replace")
        is_long = len(encoded) >= json_compression.MIN_GZIP_BYTES
        compressed = json_compression.gzip_body(encoded) if is_long else b""
        digest = hashlib.sha256(encoded).hexdigest()
        return cls(body, encoded, compressed, f'W/"{digest[:_DIGITS]}"')


@dataclass(slots=True)
class PageCache(Generic[ContentT]):
    """Keeps the newest contents; concurrent requests for one wait for the same rendering."""

    _pages: OrderedDict[Hashable, asyncio.Future[ContentT]] = field(default_factory=OrderedDict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_RENDERINGS))
    _reading_turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_READINGS)
    )

    async def get(
        self,
        key: Hashable,
        make: Callable[[], Awaitable[ContentT]],
        *,
        reads_storage: bool = False,
    ) -> ContentT:
        """Return the content of a key, made if it is not stored. Raises as `make`; failures are not stored."""
        page = self._pages.get(key)
        if page is None:
            turns = self._reading_turns if reads_storage else self._turns
            page = self._pages[key] = asyncio.ensure_future(self._make(key, make, turns))
            if len(self._pages) > MAX_PAGES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(key)
        return await asyncio.shield(page)

    async def _make(
        self,
        key: Hashable,
        make: Callable[[], Awaitable[ContentT]],
        turns: asyncio.Semaphore,
    ) -> ContentT:
        try:
            async with turns:
                return await make()
        except BaseException:
            self._pages.pop(key, None)
            raise
