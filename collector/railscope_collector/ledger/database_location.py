"""Location of the ledger's database according to the settings."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from railscope import convert_errors
from railscope.settings import SettingsError, read_named_file
from railscope_collector.config import LedgerSettings
from railscope_collector.ledger.database import UnusableLedgerError, check_url

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
        url = read_named_file("ledger.url_file", ledger.url_file)
    with convert_errors(UnusableLedgerError, SettingsError, f"cannot use {setting}: "):
        check_url(url)
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in {None, "", ":memory:"}:
        message = f"invalid {setting}: a database in memory is lost at every stop: expected sqlite:////PATH"
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
        problem = "is a directory"
    elif not file.parent.is_dir():
        problem = f"directory {file.parent} does not exist"
    # SQLite also creates a journal beside its file, so a new file needs a writable directory.
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        problem = f"not writable by this user (uid {os.geteuid()})"
    if problem:
        message = f"cannot use the ledger {file}: {problem}: expected a writable file in a directory that exists"
        raise SettingsError(message)
