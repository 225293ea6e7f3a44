"""Location of the ledger according to the settings."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from collector.config import LedgerSettings
from collector.ledger.database import LedgerError, check_url
from railscope.settings import SettingsError

FILE = "ledger.sqlite"
"""File in the state directory, used if no database is configured."""


def ledger_url(ledger: LedgerSettings, directory: Path) -> str:
    """Return the URL of its database.

    Raises SettingsError if the file with the URL cannot be read, or the URL is that of a database that this
    installation cannot open, or of one in memory.
    """
    url, setting = ledger.url or f"sqlite:///{directory.absolute() / FILE}", "ledger.url"
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
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in {None, "", ":memory:"}:
        message = f"{setting}: a database in memory is lost at every stop: expected sqlite:////PATH"
        raise SettingsError(message)
    return url


def check_file(url: URL) -> None:
    """Raise SettingsError if SQLite cannot create or write its file now.

    A running collector waits for such a file, as it does for a database server that is unavailable.
    """
    name = url.database or ""
    if url.get_backend_name() != "sqlite" or name.startswith("file:"):
        return
    file = Path(name)
    problem = ""
    if file.is_dir():
        problem = f"{file} is a directory"
    elif not file.parent.is_dir():
        problem = f"no directory {file.parent}"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        problem = f"{file} cannot be written by this user (uid {os.geteuid()})"
    if problem:
        message = f"{problem}: expected sqlite:////PATH of a file in a directory that exists"
        raise SettingsError(message)
