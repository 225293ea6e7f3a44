"""Two collectors with copies of one state directory: the second one does not run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from running_collector import run_collector, settings_in
from support.postgresql import PostgreSQL

from railscope_collector.config import CollectorSettings, LedgerSettings
from railscope_collector.ledger import database as databases, directory_holder, leases
from railscope_collector.tables import metadata

IN_USE = (
    r"state_directory .*copy is a copy of that of the running collector \S+: expected one collector for each; "
    "fix: stop that one, or set another directory"
)


@pytest.fixture
def url(server: PostgreSQL):
    found = server.database()
    yield found
    server.drop(found)


@pytest.fixture
def settings(tmp_path: Path, url: str) -> CollectorSettings:
    return settings_in(tmp_path, ledger=LedgerSettings(url=url))


def copied(settings: CollectorSettings) -> CollectorSettings:
    """Settings with a copy of the state directory."""
    directory = Path(settings.state_directory)
    shutil.copytree(directory, directory.parent / "copy")
    return msgspec.structs.replace(settings, state_directory=str(directory.parent / "copy"))


async def test_a_collector_with_a_copy_of_a_state_directory_in_use_does_not_start(
    settings: CollectorSettings,
):
    async with run_collector(settings) as first:
        with pytest.raises(directory_holder.DirectoryInUseError, match=IN_USE):
            async with run_collector(copied(settings)):
                pass
        assert (await first.get("/-/healthy"))[0] == 200
    async with run_collector(settings):
        pass


@dataclass
class CopiedDirectories:
    """Holders of directories with the same log, each by its own connections."""

    path: Path
    database: databases.SharedDatabase
    is_away: bool = False

    def open(self) -> databases.Database:
        if self.is_away:
            message = "the database is away"
            raise databases.UnusableLedgerError(message)
        return self.database.open()

    async def start(self, name: str) -> directory_holder.DirectoryHolder:
        """A process that starts in a directory."""
        (self.path / name).mkdir(exist_ok=True)
        holder = directory_holder.DirectoryHolder(self.path / name, self.open, "boot-1")
        await holder.begin("log-1")
        return holder

    def expire(self) -> None:
        """Let the lease end now, by the clock of the database."""
        with self.database.open().transaction(writes=True) as connection:
            connection.execute(sa.update(leases.rows).values(expires_at=sa.func.clock_timestamp()))


@pytest.fixture
def copies(tmp_path: Path, url: str):
    shared = databases.SharedDatabase(url, metadata)
    yield CopiedDirectories(tmp_path, shared)
    shared.close()
