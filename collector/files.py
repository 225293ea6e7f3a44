"""The files that administrators write beside the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.account.quotas import Quotas, quotas_file
from collector.config import CollectorSettings
from collector.evidence.assemble import Files
from collector.evidence.calendar_file import Calendar, calendar_file
from collector.evidence.claims_file import FileClaims, claims_file
from collector.evidence.tenants_file import Tenants, tenants_file
from collector.evidence.watched import Watched


@dataclass(slots=True)
class AdministratorsFiles:
    """All of them, watched."""

    claims: Watched[FileClaims]
    tenants: Watched[Tenants]
    calendar: Watched[Calendar]
    quotas: Watched[Quotas]
    _now: Files | None = None

    @classmethod
    def of(cls, settings: CollectorSettings) -> AdministratorsFiles:
        """The files that the settings name."""
        return cls(
            claims_file(_path(settings.claims_file)),
            tenants_file(_path(settings.tenants_file)),
            calendar_file(_path(settings.calendar_file)),
            quotas_file(_path(settings.quotas_file)),
        )

    @property
    def all(self) -> tuple[Watched[Any], ...]:
        """Every one."""
        return self.claims, self.tenants, self.calendar, self.quotas

    @property
    def evidence(self) -> Files:
        """What metering is told by them; the same object until one changes."""
        claims, tenants = self.claims.content, self.tenants.content
        calendar, now = self.calendar.content, self._now
        if (
            now is None
            or now.claims is not claims
            or now.tenants is not tenants
            or now.calendar is not calendar
        ):
            now = self._now = Files(claims, tenants, calendar)
        return now

    @property
    def unknown(self) -> str:
        """Which of them has never been valid; empty where it is known who holds what."""
        said = (self.claims, self.tenants, self.calendar)
        return ", ".join(f"the {file.kind} file" for file in said if not file.known)

    def texts(self) -> Mapping[str, str] | None:
        """What those that metering is told by say; None while one has never been valid."""
        if self.unknown:
            return None
        return {f.kind: f.text for f in (self.claims, self.tenants, self.calendar) if f.path}

    def refresh(self) -> None:
        """Read those that have changed. Blocking."""
        for file in self.all:
            file.refresh()

    async def watch(self) -> None:
        """Read each whenever it changes, until cancelled."""
        await asyncio.gather(*(file.watch() for file in self.all))


def _path(text: str) -> Path | None:
    return Path(text) if text else None
