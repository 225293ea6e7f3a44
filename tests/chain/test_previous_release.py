"""Agents and collectors of the last two releases with those of this checkout, their captures and their state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory
from support.once_per_run import once_per_run
from support.waiting import wait_until
from test_crash import frames_of_runs, identities

from railscope_collector.access.credentials import digest_token

ROOT = Path(__file__).parents[2]
RELEASES = tomllib.loads((ROOT / "RELEASES.toml").read_text())["release"]
NODE = "gpu-1"
CAPTURE = "tests/captures/hgx-h100-load"
GPUS = 2
FRAMES = 50
SPOOLED = 3
RUNS = 2
pytestmark = pytest.mark.timeout(600)


def extract(release: Mapping[str, str], target: Path, clone: Path = ROOT) -> None:
    """Write the tree of a release."""
    archive = ["git", "-C", str(clone), "archive", release["commit"]]
    made = subprocess.run(archive, capture_output=True, check=False)
    if made.returncode:
        pytest.fail(
            f"cannot read release {release['version']}: {made.stderr.decode().strip()}: "
            "expected a clone with its history; fix: git fetch --unshallow"
        )
    target.mkdir()
    subprocess.run(["tar", "-x", "-C", str(target)], input=made.stdout, check=True)


@pytest.fixture(
    name="previous",
    scope="module",
    params=RELEASES[-2:],
    ids=lambda release: f"release {release['version']}",
)
def _previous(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = f"release-{request.param['version']}"
    return once_per_run(tmp_path_factory, name, partial(extract, request.param))


def import_path(tree: Path) -> str:
    """Directories from which the programs of a tree are imported, as PYTHONPATH."""
    if has_former_names(tree):
        return str(tree)
    return os.pathsep.join(str(tree / name) for name in ("", "agent", "collector", "simulator"))


def has_former_names(tree: Path) -> bool:
    """True for a release whose packages have the names of their directories, as until 0.2.0."""
    return (tree / "agent/__init__.py").exists()


@pytest.fixture(autouse=True)
def _node(site: ProgramDirectory, previous: Path) -> None:
    """A node with a capture of the previous release, which programs of both read."""
    (site.directory / NODE).symlink_to(previous / CAPTURE)
    (site.directory / "tokens.toml").write_text(
        f'[nodes]\n"{NODE}" = "{digest_token(f"token-{NODE}")}"\n'
    )


async def metrics(url: str) -> dict[str, float]:
    """Return the metrics of an endpoint by name and labels."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


async def wait_until_received(site: ProgramDirectory) -> None:
    """Wait until the collector has received frames and shows the GPUs; none was rejected or lost."""

    async def has_received() -> bool:
        rows = (await site.get("/api/v1/nodes"))["rows"]
        found = await metrics(site.url)
        received = found["railscope_collector_received_frames_total"]
        reporting = found.get(f'railscope_node_reporting{{node="{NODE}"}}')
        return bool(rows) and rows[0]["gpus"] == GPUS and received >= FRAMES and reporting == 1

    await wait_until(has_received, f"the collector has {FRAMES} frames of the node", 0.5)
    found = await metrics(site.url)
    rejected = {name for name in found if name.startswith("railscope_collector_rejected_envelopes")}
    assert rejected <= {'railscope_collector_rejected_envelopes_total{reason="unknown_schema"}'}
    assert found["railscope_collector_missing_frames"] == 0


@pytest.mark.thorough
async def test_a_collector_accepts_frames_of_an_agent_of_the_previous_release(
    site: ProgramDirectory, previous: Path
):
    await site.collector()
    await site.agent(NODE, PYTHONPATH=import_path(previous))
    await wait_until_received(site)


@pytest.mark.thorough
async def test_an_agent_keeps_its_frames_until_the_collector_is_updated(
    site: ProgramDirectory, previous: Path
):
    collector = await site.collector(PYTHONPATH=import_path(previous))
    agent = await site.agent(NODE)
    spool = site.directory / f"state-{NODE}/spool"

    async def has_spooled() -> bool:
        return len(list(spool.glob("*.envelope"))) >= SPOOLED

    await wait_until(has_spooled, "the agent has spooled frames", 0.2)
    await collector.stop()
    collector = await site.collector()
    await wait_until_received(site)
    await agent.stop()
    await collector.stop()
    for sequences in frames_of_runs(identities(site)).values():
        assert sequences == set(range(1, max(sequences) + 1))


@pytest.mark.parametrize(
    "previous",
    [
        pytest.param(RELEASES[-2], marks=pytest.mark.thorough),
        pytest.param(RELEASES[-1], marks=pytest.mark.journey),
    ],
    indirect=True,
    ids=lambda release: release["version"],
)
async def test_the_state_of_the_previous_release_is_read(site: ProgramDirectory, previous: Path):
    """Frame log, ledger and audit log of the collector, and frames in the spool of the agent."""
    collector = await site.collector(PYTHONPATH=import_path(previous))
    agent = await site.agent(NODE, PYTHONPATH=import_path(previous))
    await wait_until_received(site)
    await collector.stop()
    spool = site.directory / f"state-{NODE}/spool"

    async def has_spooled() -> bool:
        return len(list(spool.glob("*.envelope"))) >= SPOOLED

    await wait_until(has_spooled, "the agent has spooled frames", 0.2)
    await agent.stop()
    waiting = set(spool.glob("*.envelope"))
    assert len(waiting) >= SPOOLED

    collector = await site.collector()
    agent = await site.agent(NODE)

    async def has_sent() -> bool:
        return not any(path.exists() for path in waiting)

    await wait_until(has_sent, "the agent has sent the frames of the previous release", 0.2)
    await wait_until_received(site)
    await agent.stop()
    await collector.stop()
    runs = frames_of_runs(identities(site))
    assert len({run for _, run, _ in runs}) == RUNS
    for sequences in runs.values():
        assert sequences == set(range(1, max(sequences) + 1))
    url, note = "sqlite:///collector/ledger.sqlite", "collector/audit.before/checkpoint"
    log = ["audit", "verify", url, "--key", "collector/audit.before/key.pub", "--anchor", note]
    verified = railscope(*log, "--ledger", url, directory=site.directory)
    assert verified.returncode == 0, verified.stdout + verified.stderr


READ_PATHS = (
    "cluster", "rails", "nodes", f"nodes/{NODE}", "gpus", "switches", "links", "events", "incidents", "jobs",
    "jobs/vision/file/train", "tenants", "account", "audit", "audit/entries/0", "audit/checkpoint",
)  # fmt: skip
CLIENT_COMMANDS = ("status", "nodes", "gpus", "jobs", "tenants", "incidents")
Documents = dict[str, object]


@pytest.mark.thorough
@pytest.mark.parametrize("previous", RELEASES[-1:], indirect=True, ids=lambda each: each["version"])
async def test_what_the_previous_release_answers_and_reads_is_left(
    site: ProgramDirectory, previous: Path
):
    """Keys of the API, and documents of this API as its command line reads them."""
    (site.directory / "claims.csv").write_text(
        f"tenant,gpu,from,to,workload\nvision,{NODE},2026-01-01T00:00:00Z,,train\n"
    )
    given = ("--claims-file", "claims.csv")
    collector = await site.collector(*given, PYTHONPATH=import_path(previous))
    agent = await site.agent(NODE, PYTHONPATH=import_path(previous))
    await wait_until_received(site)
    answers, listed = await read_documents(site, previous)
    await collector.stop()
    collector = await site.collector(*given)
    answers_now, listed_now = await read_documents(site, previous)
    await agent.stop()
    await collector.stop()
    assert {"nodes", "gpus", f"nodes/{NODE}", "incidents", "cluster"} <= answers.keys()
    gone = keys_of(answers) - keys_of(answers_now)
    # The account has a tenant once a quarter of an hour is stored, which is after this test.
    gone = {key for key in gone if not key.startswith("account.tenants.vision")}
    gone |= {f"railscope {key}" for key in keys_of(listed) - keys_of(listed_now)}
    notes = (ROOT / "docs/compatibility.md").read_text()
    # A key is named itself, or one that contained it.
    assert {
        key for key in gone if all(f"`{name}`" not in notes for name in key.split("."))
    } == set()


async def has_views(site: ProgramDirectory) -> bool:
    """True once the collector shows the job, and the first evaluation of incidents."""
    if not await site.answers("/api/v1/incidents"):
        return False
    return bool((await site.get("/api/v1/jobs"))["rows"])


async def read_documents(site: ProgramDirectory, client: Path) -> tuple[Documents, Documents]:
    """Return the answers of the API that there are, and what the commands of a release print about them."""
    await wait_until(partial(has_views, site), "the collector shows the job and incidents", 0.2)
    answers: Documents = {}
    async with aiohttp.ClientSession() as session:
        for path in READ_PATHS:
            async with session.get(f"{site.url}/api/v1/{path}") as response:
                if response.status == HTTPStatus.OK and response.content_type == "application/json":
                    answers[path] = await response.json()
    listed: Documents = {}
    for command in CLIENT_COMMANDS:
        done = railscope(command, "--collector", site.url, "--json", tree=client)
        assert "invalid JSON" not in done.stderr
        listed[command] = json.loads(done.stdout)
    return answers, listed


def keys_of(document: object, path: str = "") -> set[str]:
    """Return the keys of a document with those above them; elements of a list have the same ones."""
    if isinstance(document, list):
        return {key for each in document for key in keys_of(each, path)}
    members = document.items() if isinstance(document, dict) else ()
    found = {f"{path}.{name}".lstrip(".") for name, _ in members}
    return found.union(*(keys_of(each, f"{path}.{name}".lstrip(".")) for name, each in members))


@pytest.mark.thorough
@pytest.mark.parametrize("capture", ["gb200-tray", "slurm-job"])
def test_captures_of_the_previous_release_are_replayed(previous: Path, capture: str):
    done = railscope("agent", "once", "--replay", str(previous / "tests/captures" / capture))
    assert done.returncode == 0, done.stderr
    assert "railscope_gpu_info{" in done.stdout


SETTINGS = """
from importlib import import_module; import msgspec, sys
agent, collector = (import_module(f"{name}.config") for name in sys.argv[1:])
def names(type_, tables=""):
    for field in msgspec.structs.fields(type_):
        yield tables + field.name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from names(field.type, f"{tables}{field.name}.")
print(*names(agent.AgentSettings), *names(collector.CollectorSettings))
"""


def stable_names(tree: Path) -> set[str]:
    """Return metrics, events and settings of a release."""
    catalog = json.loads(railscope("catalog", "--format", "json", tree=tree).stdout)
    prefix = "" if has_former_names(tree) else "railscope_"
    settings = subprocess.run(
        [sys.executable, "-P", "-c", SETTINGS, f"{prefix}agent", f"{prefix}collector"],
        env=os.environ | {"PYTHONPATH": import_path(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    listed = {each["name"] for kind in ("metrics", "events") for each in catalog[kind]}
    return listed | set(settings.stdout.split())


def upgrade_notes(previous: Path) -> str:
    """Return the notes of this checkout and of the releases since one: each has those of its own upgrade."""
    versions = [f"release-{release['version']}" for release in RELEASES]
    later = RELEASES[versions.index(previous.name) + 1 :]
    shown = [f"{release['commit']}:docs/compatibility.md" for release in later]
    pages = [subprocess.check_output(["git", "-C", str(ROOT), "show", page]) for page in shown]
    return b"\n".join([(ROOT / "docs/compatibility.md").read_bytes(), *pages]).decode()


@pytest.mark.thorough
def test_the_upgrade_notes_name_what_the_previous_release_had(previous: Path):
    """A table stands for its keys."""
    before, now = stable_names(previous), stable_names(ROOT)
    assert before & now
    notes = upgrade_notes(previous)
    gone = before - now
    names = {name.rpartition(".")[2] for name in gone if name.rpartition(".")[0] not in gone}
    assert {name for name in names if f"{name}`" not in notes} == set()


def railscope(
    *arguments: str, directory: Path = ROOT, tree: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "railscope", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": import_path(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
