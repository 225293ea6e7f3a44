"""The commands of the page on availability, with a real collector: a move, a restore, and what it reports as lost."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory
from makers import SECOND, START_BOOT_NS, START_WALL_NS, FrameSender, gpu_schema
from support import postgresql
from support.waiting import wait_until

from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS
from railscope.wire import SentAt
from railscope_collector.access.credentials import digest_token
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.ledger.database import Database
from railscope_collector.tables import metadata

PAGE = Path(__file__).parents[2] / "docs" / "availability.md"
STATE, BACKUP = "/var/lib/railscope-collector", "/var/backups/railscope"
SNAPSHOT = f"/mnt/snapshot{STATE}"
PRICES = PAGE.parents[1] / "deploy" / "prices.toml"
FRAMES = 180
GPU = "GPU-n1-0"
QUICK = {
    "RAILSCOPE_COLLECTOR_AUDIT__REQUIRED_WITNESSES": "0",
    "RAILSCOPE_COLLECTOR_METERING__PERIOD_SECONDS": "0.2",
    "RAILSCOPE_COLLECTOR_METERING__QUIET_SECONDS": "0.2",
}


def commands(heading: str) -> list[str]:
    """Return the commands of the first block below a heading of the page."""
    found = re.search(
        rf"^#+ {re.escape(heading)}$.*?^```sh\n(.*?)^```",
        PAGE.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert found, heading
    return found[1].replace("\\\n", " ").splitlines()


class RestorableSite:
    """A collector with one node, whose agent keeps what it has sent."""

    def __init__(self, site: ProgramDirectory, database: str = "") -> None:
        self.site = site
        self.sender = FrameSender()
        quarter = (
            (time.time_ns() // SECOND - 3600) // 900 * 900
        )  # evidence is stored by quarters of an hour
        self.at = self.first = quarter - START_WALL_NS // SECOND
        (site.directory / "tokens.toml").write_text(f'[nodes]\nn1 = "{digest_token("token-n1")}"\n')
        self.configure(database)
        self.backup = ""

    def configure(self, database: str) -> None:
        """Set `ledger.url`; without one, the ledger is in the state directory."""
        self.database = database
        self.environment = QUICK | (
            {"RAILSCOPE_COLLECTOR_LEDGER__URL": database} if database else {}
        )
        (self.site.directory / "collector.toml").write_text(
            f'state_directory = "{self.state}"\n'
            + (f'[ledger]\nurl = "{database}"\n' if database else "")
        )

    @property
    def state(self) -> Path:
        return self.site.directory / "collector"

    @property
    def private_state(self) -> Path:
        return self.site.directory / "private" / self.state.name

    def link_state(self) -> None:
        """Make the state directory a relative link to a private one, as systemd does with `DynamicUser=` before each start.

        It moves a directory without such a link: setup_exec_directory() in execute.c.
        """
        self.private_state.parent.mkdir(exist_ok=True)
        if self.state.is_dir() and not self.state.is_symlink():
            self.state.rename(self.private_state)
        self.private_state.mkdir(exist_ok=True)
        if not self.state.is_symlink():
            self.state.symlink_to(Path("private", self.state.name))

    async def start(self) -> None:
        self.link_state()
        self.collector = await self.site.collector(**self.environment)

    def body(self) -> bytes:
        """Return the next minute of frames."""
        rows = [[50, 60, 1000, 2000, 10, 20]] * FRAMES
        frames = self.sender.frames(gpu_schema("n1"), rows, at=self.at)
        self.at += FRAMES
        return self.sender.body(frames, schemas=True)

    async def send(self, body: bytes) -> None:
        wall_ns = time.time_ns()
        boot_ns = START_BOOT_NS + wall_ns - START_WALL_NS
        sent = SentAt(wall_ns, boot_ns, self.sender.boot_id)
        headers = {"Authorization": "Bearer token-n1", **sent.to_headers()}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.site.url}/v1/frames", data=body, headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def metric(self, name: str) -> float:
        """Return a value of the collector's metrics endpoint; -1 if there is none."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.site.url}/metrics") as answer,
        ):
            text = await answer.text()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else -1

    async def reaches(self, name: str, value: float) -> None:
        async def has_value() -> bool:
            return await self.metric(name) == value

        await wait_until(has_value, f"{name} is {value:g}")

    async def run(self, heading: str) -> list[str]:
        """Run the commands below a heading, and return the output of those that fail."""
        failed = []
        for command in commands(heading):
            if command == "systemctl stop railscope-collector":
                await self.collector.stop()
            elif command == "systemctl start railscope-collector":
                await self.start()
            elif command.startswith("backup="):
                outcome = await run_in_thread(self._shell, f"{command}; echo $backup")
                self.backup = outcome.stdout.strip()
            elif output := await self.run_command(command):
                failed.append(output)
        return failed

    async def run_command(self, command: str) -> str:
        """Run a command of the page; return its output if it fails."""
        outcome = await run_in_thread(self._shell, command)
        return outcome.stdout + outcome.stderr if outcome.returncode else ""

    def _shell(self, command: str) -> subprocess.CompletedProcess[str]:
        directory = self.site.directory
        database = (
            f"'{self.database}'" if self.database else f"sqlite:///{self.state}/ledger.sqlite"
        )
        for text, own in ((f"sqlite:///{STATE}/ledger.sqlite", "URL"), ("URL", database),
                          (SNAPSHOT, str(self.state)), (STATE, str(self.state)),
                          (f"{BACKUP}/TIME", self.backup), (BACKUP, str(directory / "backup"))):  # fmt: skip
            command = command.replace(text, own)
        if command.startswith(("railscope bill", "railscope collector")):
            command += f" --config {directory}/collector.toml"
        command = re.sub(r"^railscope ", f"{sys.executable} -m railscope ", command)
        command = f"backup={self.backup}\n{command}"
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    async def lose_disk(self) -> None:
        """Lose the machine's disk."""
        self.collector.kill()
        await self.collector.wait_for_end()
        self.state.unlink()
        shutil.rmtree(self.private_state)

    def stored_bodies(self) -> set[int]:
        """Return the numbers of the bodies whose middle frame the evidence in the database covers.

        Only the middle: a body is placed by its age on receipt, so it is stored later by as much as its delivery took.
        """
        database = Database(self.database or f"sqlite:///{self.state / 'ledger.sqlite'}", metadata)
        try:
            found = FactStore(database)
            with database.transaction() as connection:
                first_day = (START_WALL_NS + self.first * SECOND) // DAY_NS
                quarters = [
                    each
                    for day in range(first_day, first_day + 2)
                    for each in found.read_day(connection, [GPU], day).quarters.get("n1", ())
                ]
        finally:
            database.close()
        spans = [span for each in quarters for span in each.gpus[GPU].spans]
        first_ns = START_WALL_NS + self.first * SECOND
        middles = {n: first_ns + (2 * n + 1) * FRAMES * SECOND // 2 for n in ALL}
        return {n for n, at in middles.items() if any(s.first_ns <= at <= s.last_ns for s in spans)}

    async def stores(self, bodies: set[int]) -> None:
        async def has_stored() -> bool:
            return bodies <= await run_in_thread(self.stored_bodies)

        await wait_until(has_stored, "the evidence is in the database")


FIRST, LOST, THIRD = {0}, {1}, {2}
ALL = FIRST | LOST | THIRD


@pytest.mark.parametrize(
    "heading",
    [
        pytest.param("Back up a stopped collector", marks=pytest.mark.journey),
        pytest.param("Back up a running collector", marks=pytest.mark.thorough),
    ],
)
async def test_a_state_directory_is_restored(site: ProgramDirectory, heading: str) -> None:
    one = RestorableSite(site)
    await one.start()
    await one.send(one.body())
    if heading == "Back up a running collector":
        one.collector.signal(signal.SIGSTOP)  # the copy is of one time, as a snapshot is
    assert await one.run(heading) == []
    if heading == "Back up a running collector":
        one.collector.signal(signal.SIGCONT)
    lost = one.body()
    await one.send(lost)
    if heading == "Back up a stopped collector":
        await one.lose_disk()
    assert await one.run("Restore the state directory") == []
    assert await one.metric("railscope_collector_lost_files") == 0
    assert await one.metric("railscope_ledger_replaced") == 0
    await one.send(one.body())
    await one.reaches("railscope_collector_missing_frames", FRAMES)
    await one.stores(FIRST | THIRD)
    assert not one.stored_bodies() & LOST
    await one.send(lost)  # an agent that still has it
    await one.reaches("railscope_collector_missing_frames", 0)
    await one.stores(ALL)
    assert await one.run("Verify after a restore") == []


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.PostgreSQL]:
    with postgresql.running() as found:
        yield found


async def backed_up(site: ProgramDirectory, server: postgresql.PostgreSQL) -> RestorableSite:
    """Return a site with a backup, and a price book and frames that are newer than it."""
    one = RestorableSite(site, server.database())
    await one.start()
    await one.send(one.body())
    await one.stores(FIRST)
    assert await one.run("Back up a collector with PostgreSQL") == []
    assert await one.run_command(f"railscope bill prices publish {PRICES}") == ""
    await one.send(one.body())
    await one.stores(FIRST | LOST)

    async def is_recorded() -> bool:
        return "billing.head" in await one.run_command("railscope audit show --json URL; false")

    await wait_until(is_recorded, "the price book is in the audit log")
    return one


@pytest.mark.thorough
async def test_an_older_database_is_detected_and_accepted(
    site: ProgramDirectory, server: postgresql.PostgreSQL
) -> None:
    one = await backed_up(site, server)
    assert await one.run("Restore the database") == []
    await one.reaches("railscope_ledger_replaced", 1)
    assert await one.run("Accept the loss") == []
    await one.reaches("railscope_ledger_replaced", 0)
    await one.send(one.body())
    await one.stores(FIRST | THIRD)

    async def is_verified() -> bool:
        return await one.run("Verify after a restore") == []

    await wait_until(is_verified, "the loss is in the audit log", 1)
    named = await one.run_command(f"{commands('Verify after a restore')[0]}; false")
    assert re.findall(r"to explain: ([\w ]+ \d+) of record", named) == ["head 1", "price book 1"]


@pytest.mark.thorough
async def test_a_ledger_moves_to_postgresql_while_agents_keep_their_frames(
    site: ProgramDirectory, server: postgresql.PostgreSQL
) -> None:
    one = RestorableSite(site)
    await one.start()
    await one.send(one.body())
    await one.stores(FIRST)
    assert await one.run_command(f"railscope bill prices publish {PRICES}") == ""
    second = one.body()
    await one.send(second)  # received, and perhaps not stored
    one.configure(server.database())
    assert await one.run("Move the ledger from SQLite to PostgreSQL") == []
    await one.send(second)  # an agent that received no response
    await one.send(one.body())  # an agent that kept it in its spool
    await one.stores(ALL)
    await one.reaches("railscope_ledger_replaced", 0)
    assert await one.metric("railscope_collector_missing_frames") == 0

    async def is_verified() -> bool:
        return await one.run("Verify after a restore") == []

    await wait_until(is_verified, "all records are in the audit log", 1)


@pytest.mark.thorough
async def test_the_audit_log_outlives_the_state_directory(
    site: ProgramDirectory, server: postgresql.PostgreSQL
) -> None:
    """It is in the database: an older copy of the state directory continues it."""
    one = await backed_up(site, server)
    await one.lose_disk()
    await one.run("Restore the state directory")
    await one.stores(FIRST | LOST)  # it is in the database
    await one.send(one.body())
    await one.stores(ALL)
    assert await one.run("Verify after a restore") == []
