"""A real PostgreSQL server for tests, on its own unix socket."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from support.disk import memory_directory

from tests.failover.database_pair import (
    DatabaseServerError,
    find_program,
    server_identity,
)

START_SECONDS = 60
USER = "railscope"


class PostgreSQL:
    """A running server; databases are created on request."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count(1)

    def address(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={quote(str(self._directory), safe='')}"

    def database(self, template: str = "template1") -> str:
        """Create an empty database, or a copy of one without clients, and return its URL."""
        name = f"ledger_{next(self._numbers)}"
        create = f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(create.encode())
        return self.address(name)

    def drop(self, url: str) -> None:
        """Drop a database, even with clients connected."""
        name = name_in(url)
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def name_in(url: str) -> str:
    """Return the name of the database in a URL."""
    return url.partition("@/")[2].partition("?")[0]


@contextmanager
def running() -> Iterator[PostgreSQL]:
    """Run a server with an empty cluster, stopped by its own pid; skips if there is none."""
    initdb, postgres = _find("initdb"), _find("postgres")
    identity = server_identity()
    # pytest's directories are closed to other users, and a socket path must be short.
    with tempfile.TemporaryDirectory(prefix="postgresql-", dir=memory_directory()) as name:
        directory = Path(name)
        if identity:
            os.chown(directory, identity["user"], identity["group"])
        data = directory / "data"
        make = [initdb, "-D", str(data), "--auth=trust", f"--username={USER}"]
        make += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            make, capture_output=True, text=True, check=False, cwd=directory, **identity
        )
        assert made.returncode == 0, made.stderr
        command = [postgres, "-D", str(data), "-k", str(directory), "-c", "listen_addresses="]
        command += ["-c", "fsync=off"]
        log = directory / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command, stdout=output, stderr=output, cwd=directory, **identity
            ) as process,
        ):
            server = PostgreSQL(directory)
            try:
                _wait(server, process, log)
                yield server
            finally:
                process.send_signal(signal.SIGQUIT)  # end at once: no data is kept
                process.wait(START_SECONDS)


def _find(name: str) -> str:
    """Return the path of a server program; skips if it is not installed."""
    try:
        return find_program(name)
    except DatabaseServerError as error:
        pytest.skip(str(error))


def _wait(server: PostgreSQL, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(server.address("postgres")).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return
