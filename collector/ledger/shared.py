"""One database shared by all components of a collector, opened on first use."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from sqlalchemy import MetaData

from collector.ledger.database import Database


@dataclass(slots=True)
class SharedDatabase:
    """The database of a URL. Any thread may open it; each call fails while it is unavailable."""

    url: str
    tables: MetaData
    _opened: Database | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> Database:
        """Return the database, with its tables. Blocking; raises LedgerError."""
        with self._opening:
            if self._opened is None:
                self._opened = Database(self.url, self.tables)
            return self._opened

    def close(self) -> None:
        """Close all connections."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None
