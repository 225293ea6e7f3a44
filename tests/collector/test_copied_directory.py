"""Two collectors with copies of one state directory: the second one does not run."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from running_collector import run_collector, settings_in
from support.postgresql import PostgreSQL

from railscope_collector.config import CollectorSettings, LedgerSettings
from railscope_collector.ledger import directory_holder

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
