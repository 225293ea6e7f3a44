"""Files for contributors, researchers and reporters of bugs; the notice of files of others."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import railscope

ROOT = Path(__file__).parent.parent
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOW = ROOT / ".github/workflows/ci.yml"
KINDS = {"markdown", "textarea", "input"}


def vendored_directories() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", ":(glob)**/vendor/**"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted({ROOT / Path(name).parent for name in listed.split("\0") if name})


def test_the_notice_lists_every_vendored_file_with_its_licence():
    """A sentence names the first file with its directory, and further files of that directory without it."""
    notice = (ROOT / "NOTICE").read_text()
    directories = vendored_directories()
    assert len(directories) >= 2
    for directory in directories:
        files = {path.name for path in directory.iterdir()} - {"SHA256SUMS"}
        assert [name for name in files if name not in notice] == []
        licences = [name for name in files if name.endswith(".LICENSE")]
        assert licences
        assert all(f"{directory.relative_to(ROOT)}/{name}" in notice for name in licences)


def test_files_with_a_copyright_of_others_are_vendored():
    command = ["git", "-C", str(ROOT), "grep", "-lI", "-E", r"Copyright (\(c\)|[0-9]{4})"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    vendored = [str(path.relative_to(ROOT)) for path in vendored_directories()]
    own = {"NOTICE", "LICENSE"}
    assert [
        name for name in found if name not in own and str(Path(name).parent) not in vendored
    ] == []


def test_the_citation_is_that_of_the_last_release():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == railscope.__version__
    dated = re.escape(f"[{railscope.__version__}] - {citation['date-released']}")
    assert re.search(rf"^## {dated}$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["license"] == project["license"]


@pytest.mark.thorough
def test_the_workflow_is_valid_and_runs_what_the_readme_and_ci_run():
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    outcome = subprocess.run([*command, WORKFLOW], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    runs = {name: [step.get("run") for step in job["steps"]] for name, job in jobs.items()}
    assert runs.keys() == {"check", "test", "packages"}
    for name, last in {
        "check": "make check",
        "test": "bash .ci/run",
        "packages": "make packages",
    }.items():
        assert last in runs[name]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_of_issues_is_well_formed(form: Path):
    content = yaml.safe_load(form.read_text())
    if form.name == "config.yml":
        assert content == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= content.keys()
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert {field["type"] for field in content["body"]} <= KINDS
    assert all(field["attributes"]["label"] for field in fields)
    text = form.read_text()
    assert "`railscope agent check`" in text
    assert "`railscope agent record --redact" in text
