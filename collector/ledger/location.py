"""Where the ledger is, by the settings."""

from __future__ import annotations

from pathlib import Path

from collector.config import LedgerSettings
from collector.ledger.database import LedgerError, check_url
from railscope.settings import SettingsError

FILE = "ledger.sqlite"
"""In the state directory, where no database is named."""


def ledger_url(ledger: LedgerSettings, folder: Path) -> str:
    """The URL of its database.

    Raises SettingsError where the file that holds it cannot be read, or where it is the URL of a
    database that this installation cannot open.
    """
    url, setting = ledger.url or f"sqlite:///{folder.absolute() / FILE}", "ledger.url"
    if ledger.url_file:
        setting = f"ledger.url_file {ledger.url_file}"
        try:
            url = Path(ledger.url_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"{setting}: cannot be read: {error}"
            raise SettingsError(message) from error
    try:
        check_url(url)
    except LedgerError as error:
        message = f"{setting}: {error}"
        raise SettingsError(message) from error
    return url
