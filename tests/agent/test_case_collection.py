"""A recorded node becomes a test case by adding a directory, and an incomplete directory is an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.cases import CASES, CaseError, check_files, names, read_case
from support.tree import make_tree

from railscope_agent.commands import agent

ROOT = Path(__file__).parents[2]
RUNNER = "tests/agent/test_cases.py"
COPIED = ("tests/conftest.py", RUNNER, "tests/captures/make.py", "pyproject.toml")
VALID = 'description = "A node in a test."\norigin = "recorded"\n'


def record(root: Path, directory: Path) -> None:
    """Record a node with files below a directory, as an administrator does."""
    arguments = ["record", "--root", str(root), "--seconds", "0", "--redact", str(directory)]
    outcome = CliRunner().invoke(agent, arguments)
    assert outcome.exit_code == 0, outcome.output


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the runner, with recorded cases only: one complete, the others not."""
    copy = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests/support", copy / "tests/support", ignore=ignored)
    for name in COPIED:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    complete = copy / "tests/captures/complete"
    record(make_tree(copy / "root"), complete)
    (complete / "case.toml").write_text(VALID)
    made = run(copy, "-m", "captures.make")
    assert made.returncode == 0, made.stderr
    for name in ("without-expectation", "other-output", "unknown-key"):
        shutil.copytree(complete, complete.parent / name)
    (complete.parent / "without-expectation/expected.prom").unlink()
    with (complete.parent / "other-output/expected.prom").open("a") as file:
        file.write("railscope_open_files 1\n")
    (complete.parent / "unknown-key/case.toml").write_text(VALID + "scenrio = 1\n")
    return copy


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{copy / 'tests'}"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_directory_is_collected_and_run(copy: Path) -> None:
    command = ("-m", "pytest", "-rA", "--tb=short", "-p", "no:cacheprovider", RUNNER)
    outcome = run(copy, *command)
    output = outcome.stdout
    assert outcome.returncode == 1, output + outcome.stderr
    rows = re.findall(rf"^(\w+) {RUNNER}::(\w+)\[([\w-]+)\]", output, re.MULTILINE)
    results = {(case, test): result for result, test, case in rows}
    assert {case for case, _ in results} == {
        "complete",
        "other-output",
        "unknown-key",
        "without-expectation",
    }
    failed = {(case, test) for (case, test), result in results.items() if result == "FAILED"}
    directory, same = "test_the_directory_is_complete_and_valid", "test_the_output_is_as_expected"
    assert results["complete", directory] == results["complete", same] == "PASSED"
    assert not [case for case, _ in failed if case == "complete"]
    assert ("other-output", same) in failed
    assert {("without-expectation", directory), ("without-expectation", same)} <= failed
    assert ("unknown-key", directory) in failed
    assert re.search(r"CaseError: missing \S+without-expectation/expected.prom; fix: `make", output)
    assert re.search(r"CaseError: invalid \S+unknown-key/case.toml: .*`scenrio`", output)


def test_a_case_is_a_directory_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b", "a", "__pycache__", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "make.py").write_text("")
    assert names(tmp_path) == ["a", "b"]


def test_the_documented_case_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/developer.md").read_text()
    (text,) = re.findall(r"^```toml\n(# tests/captures/.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "case.toml").write_text(text)
    assert len(read_case(tmp_path).facts) == 2


SIMULATED = 'description = "x"\norigin = "simulated"\n[simulation]\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('origin = "recorded"', "required field `description`"),
        ('description = "x"', "required field `origin`"),
        ('description = "x"\norigin = "invented"', "'invented'"),
        (VALID + "scenario = 1", "unknown field `scenario`"),
        (VALID + '[simulation]\nscenario = "idle"\nmodel = "t4"\ngpus = 1', "if and only if"),
        ('description = "x"\norigin = "simulated"', "if and only if"),
        (SIMULATED + 'scenario = "none"\nmodel = "t4"\ngpus = 1', "unknown scenario: 'none'"),
        (SIMULATED + 'scenario = "idle"\nmodel = "t5"\ngpus = 1', "unknown GPU model: 't5'"),
        (SIMULATED + 'scenario = "idle"\nmodel = "t4"\ngpus = 99', "expected 1 to 8"),
        (SIMULATED + 'scenario = "idle"\nmodel = "t4"\ngpus = 1\nmoments = 0', "moments"),
        (VALID + 'facts = [{ metric = "railscope_gpu_inof", count = 1 }]', "unknown metric"),
        (VALID + 'facts = [{ metric = "railscope_gpu_info" }]', "either `count` or `value`"),
        (VALID + "[health_reasons]\nGPU-1 = 1", r"\$\.health_reasons"),
        ("description", "Expected .="),
        ("description = '\udcff'", "utf-8"),
    ],
)
def test_an_invalid_description_is_an_error_that_names_the_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "case.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CaseError, match=f"(?s)invalid {tmp_path}/case.toml: .*{problem}.*fix: see"):
        read_case(tmp_path)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASES / "t4", tmp_path / "t4"))


@pytest.mark.parametrize("file", ["case.toml", "capture.toml", "timeline.jsonl", "expected.prom"])
def test_a_missing_file_is_an_error_that_names_it(case: Path, file: str) -> None:
    (case / file).unlink()
    with pytest.raises(CaseError, match=rf"missing .*{file}.*; fix: "):
        check_files(case)


def test_an_unknown_file_is_an_error_that_names_it(case: Path) -> None:
    (case / "expected.promt").write_text("")
    with pytest.raises(CaseError, match=r"unknown files expected\.promt"):
        check_files(case)


def test_the_origin_is_that_of_the_capture(case: Path) -> None:
    (case / "case.toml").write_text(VALID)
    with pytest.raises(CaseError, match=r"origin .simulated: .*: expected recorded"):
        check_files(case)


def test_a_recorded_capture_must_be_redacted(case: Path) -> None:
    head = (case / "capture.toml").read_text()
    (case / "case.toml").write_text(VALID)
    (case / "capture.toml").write_text(re.sub('origin = ".*"', 'origin = "recorded"', head))
    with pytest.raises(CaseError, match="not redacted; fix: record it with --redact"):
        check_files(case)
