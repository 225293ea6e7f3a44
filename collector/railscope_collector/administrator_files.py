"""Files that administrators write in addition to the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import is_not
from pathlib import Path
from typing import Any

import structlog

from railscope.settings import SettingsError
from railscope_collector.config import CollectorSettings
from railscope_collector.evidence import file_versions
from railscope_collector.files import (
    calendar_file,
    claims_file,
    inventory_file,
    quotas_file,
    retirements_file,
    tenants_file,
    watched_file,
)

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class AdministratorFiles:
    """All administrator files, watched for changes."""

    claims: watched_file.WatchedFile[claims_file.FileClaims]
    tenants: watched_file.WatchedFile[tenants_file.TenantMappings]
    calendar: watched_file.WatchedFile[calendar_file.Calendar]
    quotas: watched_file.WatchedFile[quotas_file.Quotas]
    retired: watched_file.WatchedFile[retirements_file.RetiredGpus]
    inventory: watched_file.WatchedFile[inventory_file.DeviceInventory]
    _contents: tuple[Any, ...] = ()
    _last: file_versions.AdministratorInputs = field(
        default_factory=file_versions.AdministratorInputs
    )

    @classmethod
    def from_settings(cls, settings: CollectorSettings) -> AdministratorFiles:
        """Return the files that the settings name."""
        empty = file_versions.AdministratorInputs()

        def watched(kind: str, path: str) -> watched_file.WatchedFile[Any]:
            return watched_file.WatchedFile(
                kind, _path(path), file_versions.PARSERS[kind], getattr(empty, kind)
            )

        return cls(
            claims_file.watch(_path(settings.claims_file)),
            watched("tenants", settings.tenants_file),
            watched("calendar", settings.calendar_file),
            quotas_file.watch(_path(settings.quotas_file)),
            watched("retired", settings.retired_file),
            watched("inventory", settings.inventory_file),
        )

    @property
    def all_files(self) -> tuple[watched_file.WatchedFile[Any], ...]:
        """All files."""
        return *self._metering, self.quotas, self.inventory

    @property
    def _metering(self) -> tuple[watched_file.WatchedFile[Any], ...]:
        """Files that metering requires to be valid."""
        return self.claims, self.tenants, self.calendar, self.retired

    @property
    def evidence(self) -> file_versions.AdministratorInputs:
        """File contents for metering; the same object until one changes."""
        files = *self._metering, self.inventory
        parts = tuple(file.content for file in files)
        # By identity: comparing thousands of rows at each call would take long.
        if len(self._contents) != len(parts) or any(map(is_not, self._contents, parts)):
            self._contents, self._last = parts, file_versions.AdministratorInputs(*parts)
        return self._last

    @property
    def unknown(self) -> str:
        """Names of required files that were never valid; empty if there are none."""
        return ", ".join(f"the {file.kind} file" for file in self._metering if not file.is_known)

    def desired_state(self) -> inventory_file.DeviceInventory | None:
        """Return the inventory; None if there is none, or none that was ever valid."""
        file = self.inventory
        return file.content if file.path and file.is_known else None

    def texts(self) -> Mapping[str, str] | None:
        """Return the texts to store, by kind; None while a file that metering needs was never valid."""
        if self.unknown:
            return None
        recorded_files = (*self._metering, self.inventory)
        return {f.kind: f.text for f in recorded_files if f.path and f.is_known}

    def find_tenant(self, source: str, owner: str, timestamp_ns: int) -> str:
        """Return the tenant of an owner, by the present content of the tenants file."""
        return self.tenants.content.find_tenant(source, owner, timestamp_ns)

    def refresh(self) -> None:
        """Read the files that have changed. Blocking."""
        for file in self.all_files:
            file.refresh()

    def start(self, stored: Callable[[str], str | None]) -> None:
        """Read all files; an unusable file is replaced by its newest stored version. Blocking.

        `stored` returns the newest version of a kind of file in the database. Raises SettingsError for an
        unusable file of which there is no earlier version; UnusableLedgerError if the database is unavailable.
        """
        self.refresh()
        # Quotas are not among them: nothing is metered by them, so none are stored.
        for file in (*self._metering, self.inventory):
            if file.is_known:
                continue
            text = stored(file.kind)
            if text is None:
                message = (
                    f"invalid {file.kind}_file {file.path}: {file.problem}: the ledger has no"
                    " earlier version; fix: correct the file, or leave the setting empty"
                )
                raise SettingsError(message)
            file.restore(text)
            log.warning("earlier_version_used", kind=file.kind, file=str(file.path))

    async def watch(self) -> None:
        """Read each file after each change, until cancelled."""
        await asyncio.gather(*(file.watch() for file in self.all_files))


def _path(text: str) -> Path | None:
    return Path(text) if text else None
