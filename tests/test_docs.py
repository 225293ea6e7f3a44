"""Documentation is correct: links resolve, names exist, examples work."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import programs
import pytest
import website
import yaml
from support import stories
from support.each import of_each
from support.machine import FakeHost
from test_command_errors import CommandLine

from railscope import settings
from railscope.catalog import EVENTS, METRICS, rollups
from railscope_agent.config import AgentSettings, TextfileSettings
from railscope_agent.service import Agent

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROJECT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*PROJECT, ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
RUNBOOKS = sorted((ROOT / "alerts" / "runbooks").glob("*.md"))
UPGRADE_NOTES = re.compile(r"^## From .*?(?=^## (?!From)|\Z)", re.DOTALL | re.MULTILINE)
BY_HAND = [*PROJECT, *sorted(DOCS.glob("*.md")), *RUNBOOKS]
EACH_PAGE = of_each(PAGES)
EACH_PAGE_BY_HAND = of_each(BY_HAND)


COMMANDS: dict[str, click.Command] = programs.commands()


def present(page: Path) -> str:
    """Text of a page without its upgrade notes, which have former names."""
    return UPGRADE_NOTES.sub("", page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^ *(?P<fence>````*){language}\n(.*?)^ *(?P=fence)$",
        page.read_text(),
        re.DOTALL | re.MULTILINE,
    )


# Settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", programs.PROGRAMS)
def test_every_setting_is_documented_with_a_variable_that_works(program: str):
    page = (DOCS / "configuration.md").read_text()
    kind, prefix = programs.PROGRAMS[program]
    environment = {}
    for key, entry in settings.fields(kind):
        variable = programs.variable(prefix, key)
        (row,) = [line for line in page.splitlines() if f"`{variable}`" in line]
        assert entry.description in row
        assert entry.description.endswith("."), key
        is_text = isinstance(entry.default, str)
        environment[variable] = entry.default if is_text else json.dumps(entry.default)
    loaded = settings.load(kind, file=None, environment=environment, prefix=prefix)
    assert loaded == kind()


# Pages by hand ---------------------------------------------------------------------------------


@EACH_PAGE
def test_links_lead_to_files_that_are_there(page: Path):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    local = [link for link in links if not link.startswith("https://")]
    assert [link for link in local if not (page.parent / link).exists()] == []


@EACH_PAGE_BY_HAND
def test_commands_of_amtool_have_an_address(page: Path):
    lines = [line for block in blocks(page, "sh") for line in block[1].splitlines()]
    lines += re.findall(r"`(amtool [^`]+)`", present(page))
    shown = [line for line in lines if line.startswith("amtool ") and "check-config" not in line]
    assert [line for line in shown if "--alertmanager.url" not in line] == []


@EACH_PAGE
def test_files_that_are_named_are_there(page: Path):
    """A name in code style with a slash, below one of our directories."""
    directories = "railscope|agent|collector|dashboards|alerts|deploy|docs|tests"
    named = re.findall(rf"`((?:{directories})/[\w./-]+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@EACH_PAGE
def test_tests_that_are_named_are_there(page: Path):
    """A file of tests and the name of one, as pytest takes them."""
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


@EACH_PAGE
def test_commands_that_are_shown_exist(page: Path):
    whole = (block[1].replace("\\\n", " ") for block in blocks(page, "sh"))
    shown = [line for text in whole for line in text.splitlines()]
    shown += re.findall(r"`((?:railscope|make) [^`]+)`", present(page))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in shown:
        arguments = shlex.split(line, comments=True)
        if arguments and arguments[0] == "make":
            assert arguments[1] in targets, line
        elif arguments and Path(arguments[0]).name == "railscope":
            _exists(arguments[1:], line)


def _exists(arguments: list[str], line: str) -> None:
    name = "railscope"
    while arguments and isinstance(COMMANDS[name], click.Group) and arguments[0][0] != "-":
        name, arguments = f"{name} {arguments[0]}", arguments[1:]
        assert name in COMMANDS, line
    known = {option for param in COMMANDS[name].params for option in param.opts}
    assert [
        argument for argument in arguments if argument.startswith("--") and argument not in known
    ] == [], line


def test_the_periods_of_all_sources_are_listed():
    listed: dict[str, str] = {}
    for names, seconds in re.findall(
        r"^\| (`.*?`) \| ([\d.]+ s.*?) \|", (DOCS / "readings.md").read_text(), re.MULTILINE
    ):
        each = re.findall(r"`(\w+)`", names)
        periods = seconds.split(", ")
        listed |= zip(each, periods * (len(each) // len(periods)), strict=True)
    settings = AgentSettings(textfile=TextfileSettings(directory="/metrics"))
    sources = Agent(settings, FakeHost()).sampler.sources
    assert listed == {source.name: f"{source.period_seconds:g} s" for source in sources}


@pytest.mark.parametrize("page", ["operator.md", "tenancy.md", "readings.md"])
def test_settings_of_the_agent_that_are_shown_are_known(page: str, tmp_path: Path):
    """Blocks in a list are indented, which TOML ignores."""
    examples = re.findall(
        r"^ *```toml\n(.*?)^ *```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE
    )
    assert examples
    kind, prefix = programs.PROGRAMS["agent"]
    unit = (ROOT / "deploy/systemd/railscope-agent.service").read_text()
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        loaded = settings.load(kind, file=file, environment={}, prefix=prefix)
        if token := loaded.collector.token_file:
            assert f"LoadCredential={Path(token).name}:" in unit


@EACH_PAGE
def test_anchors_that_links_name_are_headings(page: Path):
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for name, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
        target = page.parent / name if name else page
        assert anchor in anchors(target), f"{name}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub derives them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_has_a_place_in_the_navigation_of_the_website():
    """One that another page of its directory lists needs none."""
    placed = [page.rpartition("<")[2] for pages in website.NAVIGATION.values() for page in pages]
    pages = {f"docs/{page.stem}" for page in DOCS.glob("*.md")} | {"README", "CHANGELOG"}
    assert pages - {place.removesuffix(">") for place in placed} == set()
    assert len(placed) == len(set(placed))


def test_every_picture_is_shown_and_small():
    shown = {
        name for page in PAGES for name in re.findall(r"pictures/(\w+\.png)\)", page.read_text())
    }
    sizes = {path.name: path.stat().st_size for path in (DOCS / "pictures").iterdir()}
    assert sizes.keys() == shown
    assert max(sizes.values()) < 300_000


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"]({name})" not in index} == set()


def layers(package: str) -> list[str]:
    """First-level modules of a package in the order of its import contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (found,) = [
        entry["layers"]
        for entry in contracts
        if entry.get("containers") == [package] and entry["type"] == "layers"
    ]
    return [name for layer in found for name in layer.split(" | ")]


@pytest.mark.parametrize("package", ["railscope_agent", "railscope_collector", "railscope"])
def test_the_packages_that_are_listed_are_those_of_the_import_contracts(package: str):
    text = (DOCS / "architecture.md").read_text()
    table = text.partition(f"| {package} | contents |\n|---|---|\n")[2].partition("\n\n")[0]
    listed = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()]
    assert sorted(name for row in listed for name in row) == sorted(layers(package))
    order = {name: i for i, name in enumerate(layers(package))}
    first = [min(order[name] for name in row) for row in listed]
    assert first == sorted(first)


@cache
def known_settings() -> frozenset[str]:
    """Return the settings of all programs."""
    kinds = (kind for kind, _ in programs.PROGRAMS.values())
    return frozenset(key for kind in kinds for key, _ in settings.fields(kind))


CHART = yaml.safe_load((ROOT / "deploy/helm/railscope/values.yaml").read_text())
CHART_VALUES = {f"{section}.{key}" for section, keys in CHART.items() if isinstance(keys, dict) for key in keys}  # fmt: skip
NOT_SETTINGS = re.compile(
    r"(tenancy|billing)\.(?!\w+_(file|url|seconds)$)"  # types of audit records
    r"|audit\.(key|pub)$|ledger\.(known|sqlite)$"  # files
)


@EACH_PAGE_BY_HAND
def test_settings_that_are_named_are_known(page: Path):
    """Names in code style: a section with a key, or the key of a file."""
    text = re.sub(r"^ *```.*?^ *```$", "", present(page), flags=re.DOTALL | re.MULTILINE)
    sections = {key.rpartition(".")[0] for key in known_settings()} - {""}
    dotted = re.findall(r"`(\w+\.\w+)(?=[` ])", text)
    named = {name for name in dotted if name.partition(".")[0] in sections}
    assert {
        name for name in named if not NOT_SETTINGS.match(name)
    } <= known_settings() | CHART_VALUES
    keys = {key.rpartition(".")[2] for key in known_settings()}
    assert set(re.findall(r"`(\w+_file)(?=[` ])", text)) <= keys


ROLE = "".join(path.read_text() for path in (ROOT / "deploy/ansible").rglob("*.yml"))
PACKAGES = {path.name for path in ROOT.glob("*/railscope_*")}
KNOWN = {*METRICS, *EVENTS, *rollups(), *PACKAGES, *re.findall(r"railscope_token\w*", ROLE)}
"""Metrics, packages, and the Ansible role with its variables."""
SUFFIXES = re.compile(r"_(bucket|count|sum)$")
PREFIX = re.compile(r"(_|\.|\*)$")
"""An ellipsis or an asterisk behind a name stands for several metrics."""


@EACH_PAGE_BY_HAND
def test_metrics_that_are_named_are_declared(page: Path):
    spans = re.findall(r"`(railscope_[\w.*]+)", present(page))
    names = {SUFFIXES.sub("", span) for span in spans if not PREFIX.search(span)}
    assert {name for name in names if name not in KNOWN and "*" not in name} == set()


def test_the_page_for_operators_on_call_has_each_class_of_incident_once():
    runbook = (ROOT / "alerts/runbooks/RailscopeIncident.md").read_text()
    linked = re.findall(r"RailscopeIncident\.md#(\w+)\)", (DOCS / "on-call.md").read_text())
    assert sorted(linked) == sorted(re.findall(r"^### (\w+)$", runbook, re.MULTILINE))


def test_the_example_of_sizing_follows_from_the_costs():
    """Figures of one node, times nodes and days, to two digits."""
    page = (DOCS / "sizing.md").read_text()
    (series,) = re.findall(r"^\| `basic` \| ([\d,]+) \|", page, re.MULTILINE)
    (collector,) = re.findall(r"^\| 1 \| [\d.]+ cores \|(.*)\|$", page, re.MULTILINE)
    (log,) = re.findall(r"^\| frame log \| ([\d.]+) GB", page, re.MULTILINE)
    numbers = re.compile(r"(?<![\w.])[\d.,]*\d")
    held = 250 * int(series.replace(",", ""))
    disk = held * 2 * 5760 * 30 / 1e9
    _, network, own_cores, own_memory = map(float, numbers.findall(collector))
    shown = page.partition("<!-- example: 250 nodes, 30 days -->")[2].partition("<!-- end")[0]
    figures = [
        float(numbers.findall(row)[0].replace(",", ""))
        for row in re.findall(r"^\| [^|]+ \|( [\d].*)\|$", shown, re.MULTILINE)
    ]
    expected = [
        held, disk, 250 * own_cores, 250 * own_memory, 250 * network, 20, 250 * 1.16e-3 * 30,
    ]  # fmt: skip
    assert figures == [pytest.approx(number, rel=0.05) for number in expected]
    days = re.findall(r"20 GiB, ([\d.]+) days", shown)
    assert [float(found) for found in days] == [
        pytest.approx(20 * 1.024**3 / (250 * float(log)), rel=0.03)
    ]


# Following the page on adding ------------------------------------------------------------------


def follow(page: Path, tree: Path) -> None:
    """Run the blocks of a page in a copy of the tree."""
    text = page.read_text()
    for match in re.finditer(r"^(````*)(\w+)\n(.*?)^\1$", text, re.DOTALL | re.MULTILINE):
        first, _, body = match[3].partition("\n")
        reported = re.search(r"(append to|new file|in) ([\w./-]+\.\w+)", first)
        if reported is None:
            continue
        file = tree / reported[2]
        if reported[1] == "append to":
            file.write_text(file.read_text() + body)
        elif reported[1] == "new file":
            assert not file.exists()
            file.write_text(body)
        else:
            _insert(file, body.splitlines())


def _insert(file: Path, change: list[str]) -> None:
    """Put the lines that start with + behind the others, which the file must have, once."""
    context = [line.strip() for line in change if not line.startswith("+")]
    lines = file.read_text().splitlines()
    bare = [line.strip() for line in lines]
    starts = [i for i in range(len(bare)) if bare[i : i + len(context)] == context]
    assert len(starts) == 1, f"{file}: {context} is there {len(starts)} times"
    indent = lines[starts[0]][: -len(bare[starts[0]])]
    outer = min(len(line) - len(line.lstrip()) for line in lines[starts[0] :][: len(context)])
    behind = starts[0] + len(context)
    lines[behind:behind] = [indent[:outer] + line[1:] for line in change if line.startswith("+")]
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(lambda name: (ROOT / name).is_file(), listed):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    follow(DOCS / "developer.md", tree)
    return tree


def within(tree: Path, *command: str) -> str:
    """Run a command that must succeed, with the packages of a tree; return its output."""
    directories = (tree / name for name in ("", "agent", "collector", "dashboards", "simulator"))
    outcome = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, directories))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "Traceback" not in outcome.stderr
    return outcome.stdout


def railscope(tree: Path, *arguments: str) -> str:
    return within(tree, sys.executable, "-m", "railscope", *arguments)


@pytest.mark.thorough
def test_the_metric_and_the_source_that_the_page_adds_work(followed: Path, tmp_path: Path):
    (tmp_path / "proc/sys/fs").mkdir(parents=True)
    (tmp_path / "proc/sys/fs/file-nr").write_text("7136\t0\t9223372036854775807\n")
    root = ("--root", str(tmp_path))
    assert "\nrailscope_open_files 7136\n" in railscope(followed, "agent", "once", *root)
    checked = railscope(followed, "agent", "check", "--seconds", "0", *root)
    assert "ok      open_files: 1 reading (node: 1)" in checked


@pytest.mark.thorough
def test_the_switch_vendor_that_the_page_adds_is_found_and_read(followed: Path):
    lines = (
        "from railscope.catalog import switches as catalog",
        "from railscope_collector.switches import snmp_columns, snmp_tables",
        "from railscope_collector.switches.snmp_values import TableRows",
        "(*_, table) = snmp_columns.VENDOR_TABLES[snmp_columns.find_vendor('.1.3.6.1.4.1.32473.1')]",
        "sent, received = '1.3.6.1.4.1.32473.1.1.2', '1.3.6.1.4.1.32473.1.1.3'",
        "ports = TableRows({'ifType': {(1,): 6}, 'ifName': {(1,): b'Ethernet1'}})",
        "rows = {table: TableRows({received: {(1, 3): 7}, sent: {(1, 3): 5}})}",
        "found = snmp_tables.SwitchTables({}, ports, rows)",
        "streams = snmp_tables.make_reading('leaf-1', found).streams",
        "values = {(metric, entity.key[-1]): value for (metric, entity), value in streams['switch_priorities']}",
        "assert values[catalog.PFC_RECEIVED, '3'] == 7, values",
        "assert values[catalog.PFC_SENT, '3'] == 5, values",
    )
    within(followed, sys.executable, "-c", "\n".join(lines))


def make(tree: Path, *targets: str) -> None:
    """Make targets of a tree with this environment."""
    environment = Path(sys.prefix)
    installed = environment / ".ready-to-test"
    within(tree, "make", *targets, f"VENV={environment}", f"--old-file={installed}")


@pytest.mark.thorough  # the metric is in a module that all others import: mypy reads all again
@pytest.mark.timeout(300)
def test_what_the_page_adds_has_the_types_it_states(followed: Path):
    make(followed, "types")


@pytest.mark.thorough
@pytest.mark.timeout(900)  # all checks but types, of a copy
def test_what_the_page_adds_passes_all_checks_and_its_own_tests(followed: Path):
    make(followed, "docs", "lint")
    assert "| 157339 | Open files |" in (followed / "docs/dashboards.md").read_text()
    assert "## RailscopeOpenFiles" in (followed / "docs/alerts.md").read_text()
    assert (
        "- `railscope_cluster_sum_open_files` — "
        in (followed / "docs/metrics/rollups.md").read_text()
    )
    assert "### memory_hot" in (followed / "alerts/runbooks/RailscopeIncident.md").read_text()
    changed = "not test_alerts_fire or host_test"
    judging = ("tests/test_alerts.py", "tests/test_dashboards.py", "tests/test_dashboard_queries.py",
               "tests/test_event_judges.py", "tests/test_docs.py", "tests/vocabulary")  # fmt: skip
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    within(followed, *pytest_command, "-k", f"({changed}) and not page_adds", *judging)


def test_the_story_that_the_page_adds_passes(tmp_path: Path):
    file = tmp_path / "stories.txt"
    (body,) = (
        text for _, text in blocks(DOCS / "developer.md", "text") if "tests/command_" in text
    )
    file.write_text(body.partition("\n")[2])
    (story,) = stories.read(file)
    story.play(CommandLine(tmp_path).run)
