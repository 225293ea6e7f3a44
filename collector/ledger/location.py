"""Where the ledger is, by the settings."""

from __future__ import annotations

from pathlib import Path

from collector.config import LedgerSettings
from railscope.settings import SettingsError

FILE = "ledger.sqlite"
"""In the state directory, where no database is named."""


def ledger_url(ledger: LedgerSettings, folder: Path) -> str:
    """The URL of its database. Raises SettingsError where the file that holds it cannot be read."""
    if not ledger.url_file:
        return ledger.url or f"sqlite:///{folder.absolute() / FILE}"
    try:
        return Path(ledger.url_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"ledger.url_file {ledger.url_file} cannot be read: {error}"
        raise SettingsError(message) from error
