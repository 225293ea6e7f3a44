"""Two real PostgreSQL servers on unix sockets: a primary, and a standby that each commit waits for."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from railscope_simulator.spec import SimulatorError

USER = "railscope"
START_SECONDS = 60.0
_POLL_SECONDS = 0.05


class DatabaseServerError(SimulatorError, RuntimeError):
    """A server is not installed, or did not start; the message has the end of its log."""


def find_program(name: str) -> str:
    """Return the path of a server program, from PATH or from Debian's directory."""
    directories = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, directories)))
    if found is None:
        message = f"cannot run {name}: not installed; fix: apt-get install postgresql"
        raise DatabaseServerError(message)
    return found


def server_identity() -> dict[str, int]:
    """Return user and group of the servers for `subprocess`: they do not run as root."""
    if os.getuid() != 0:
        return {}
    for user in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(user)
            return {"user": entry.pw_uid, "group": entry.pw_gid}
    message = "cannot run PostgreSQL as root: expected a user of its own, such as postgres"
    raise DatabaseServerError(message)


@dataclass
class DatabaseServer:
    """One server: its data and its socket are in a directory. All methods block."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the command line."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """Directory of the data."""
        return self.directory / "data"

    @property
    def socket(self) -> Path:
        """Socket on which it listens."""
        return self.directory / ".s.PGSQL.5432"

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database for libpq."""
        return f"postgresql://{USER}@/{database}?host={quote(str(self.directory), safe='')}"

    def initialize(self) -> None:
        """Create the data of a new server."""
        self.execute_program(
            "initdb",
            "-D",
            str(self.data),
            "--auth=trust",
            f"--username={USER}",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )

    def copy(self, source: DatabaseServer) -> None:
        """Create the data as that of a standby of another server, which is running."""
        self.execute_program(
            "pg_basebackup",
            "-D",
            str(self.data),
            "-h",
            str(source.directory),
            "-U",
            USER,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        )

    def execute_program(self, name: str, *arguments: str) -> None:
        """Run a program of PostgreSQL to its end. Raises DatabaseServerError."""
        made = subprocess.run(
            [find_program(name), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            **self._identity(),
        )
        if made.returncode:
            message = f"{name} failed: {made.stderr.strip()[-500:]}"
            raise DatabaseServerError(message)

    @staticmethod
    def _identity() -> dict[str, Any]:
        return dict(server_identity())

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        command = [find_program("postgres"), "-D", str(self.data), "-k", str(self.directory)]
        for name, value in {"listen_addresses": "", **self.settings}.items():
            command += ["-c", f"{name}={value}"]
        log = self.directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,
                **self._identity(),
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.accepts_connections():
            if self._process.poll() is not None or time.monotonic() > deadline:
                message = f"PostgreSQL did not start: {log.read_text(errors='replace')[-500:]}"
                raise DatabaseServerError(message)
            time.sleep(_POLL_SECONDS)

    def accepts_connections(self) -> bool:
        """True if the server is running and accepts connections."""
        try:
            psycopg.connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute a statement outside a transaction; return its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """End all processes of the server at once (SIGKILL), as a power failure does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server without waiting for its clients; no data is lost."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if number is signal.SIGKILL:
            # The server's processes have sessions of their own, so all are found by their parent.
            for child in _children_of(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
        process.send_signal(number)
        process.wait(START_SECONDS)


def _children_of(parent: int) -> list[int]:
    """Return the processes that a process has started (proc(5))."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(number) for number in text.split()]


@dataclass
class DatabasePair:
    """A primary and its synchronous standby: what is committed is durable on both."""

    primary: DatabaseServer
    standby: DatabaseServer
    database: str = "ledger"

    @property
    def url(self) -> str:
        """URL of the database for the collectors: whichever server accepts writes."""
        hosts = "&".join(
            f"host={quote(str(server.directory), safe='')}"
            for server in (self.primary, self.standby)
        )
        return f"postgresql://{USER}@/{self.database}?{hosts}&target_session_attrs=read-write"

    def start(self) -> None:
        """Create and start both servers. Blocking."""
        self.primary.initialize()
        self.primary.start()
        self.standby.settings["cluster_name"] = "standby"
        self.standby.copy(self.primary)
        self.standby.start()
        for setting in ("synchronous_standby_names = 'standby'", "synchronous_commit = on"):
            self.primary.execute(f"ALTER SYSTEM SET {setting}")
        self.primary.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + START_SECONDS
        while self.primary.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            if time.monotonic() > deadline:
                message = "the standby did not connect to the primary as a synchronous standby"
                raise DatabaseServerError(message)
            time.sleep(_POLL_SECONDS)
        self.primary.execute(f"CREATE DATABASE {self.database}")

    def promote(self) -> None:
        """Make the standby accept writes, and wait until it does. Blocking."""
        self.standby.execute("SELECT pg_promote(true, 60)")

    def dump_rows(self, statement: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the collectors' database. Blocking."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement.encode(), parameters or None).fetchall()

    def stop(self) -> None:
        """End both servers. Blocking."""
        self.primary.stop()
        self.standby.stop()


@contextlib.contextmanager
def running_pair() -> Iterator[DatabasePair]:
    """Run two servers in a directory of their own, which is removed at the end. Blocking."""
    identity = server_identity()
    # The path of a socket has at most 107 bytes, so the directory is not below the caller's.
    with tempfile.TemporaryDirectory(prefix="railscope-databases-") as name:
        primary, standby = (DatabaseServer(Path(name) / part) for part in ("primary", "standby"))
        for server in (primary, standby):
            server.directory.mkdir(mode=0o700)
            if identity:
                os.chown(server.directory, identity["user"], identity["group"])
        Path(name).chmod(0o755)
        pair = DatabasePair(primary, standby)
        try:
            pair.start()
            yield pair
        finally:
            pair.stop()
