"""Results of the mutation test in a small tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mutation

NAMES = (
    "in_process",
    "in_process_and_equal",
    "in_program",
    "in_failing_test",
    "in_test_of_a_thread",
    "unused",
)
MODULE = "".join(f"def {name}(n):\n    return n > 2\n" for name in NAMES) + "LIMIT = 1 < 2\n"
TESTS = """
import subprocess, sys, threading, module
from concurrent.futures import ThreadPoolExecutor
threads = ThreadPoolExecutor(1)
threading.Thread(target=threading.Event().wait, daemon=True).start()
def test_fails():
    assert module.in_failing_test(3) is None
def test_in_process():
    import imported_by_a_test
    assert threads.submit(module.in_process, 3).result(timeout=10)
def test_in_a_fork():
    assert module.in_test_of_a_thread(3) and threading.active_count() > 1
def test_in_process_and_equal():
    assert not module.in_process_and_equal(2)
def test_in_program():
    code = "import module; assert not module.in_program(2)"
    subprocess.run([sys.executable, "-c", code], env={}, check=True)
"""
JUDGE = """
import sys
from pathlib import Path
import mutation, pytest
names = ("module.py", "imported_by_a_test.py")
found = [mutant for name in names for mutant, _ in mutation.find_mutants(Path(), "money", name)]
mutants = dict(enumerate(mutant for mutant in found if mutant.kind == "comparison"))
assert mutation.write_switches(Path(), mutants.items()) == []
sys.path.insert(0, "")
judge = mutation.Judge(Path(), mutants, Path("executed.jsonl"), Path("results.tsv"), 40)
pytest.main(["-q", "-p", "no:cacheprovider", "--timeout", "60", "test_module.py"], plugins=[judge])
"""


def test_a_mutant_is_judged_by_tests_that_pass_without_it_also_in_programs(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "imported_by_a_test.py").write_text("LIMIT = 1 < 2\n")
    (tmp_path / "test_module.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", JUDGE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)  # fmt: skip
    rows = [line.split("\t") for line in (tmp_path / "results.tsv").read_text().splitlines()]
    assert {row[2].removeprefix("module.py:"): row[4] for row in rows} == {
        "": "imported",
        "imported_by_a_test.py:": "imported",
        "in_process": "survived",
        "in_process_and_equal": "killed",
        "in_program": "killed",
        "in_failing_test": "unjudged",
        "in_test_of_a_thread": "unjudged",
        "unused": "uncovered",
    }
    assert "\nfails without a mutant: test_module.py::test_fails" in done.stdout


def test_tests_of_other_mutants_or_of_another_tree_are_not_reused(tmp_path: Path) -> None:
    names = set[str]()
    for code, numbers in ((MODULE, (0, 1)), (MODULE, (0, 1)), (MODULE, (1, 0)), (TESTS, (0, 1))):
        (tmp_path / "module.py").write_text(MODULE)
        (tmp_path / "test_module.py").write_text(code)
        found = [mutant for mutant, _ in mutation.find_mutants(tmp_path, "money", "module.py")]
        mutants = [mutant for mutant in found if mutant.kind == "comparison"][:2]
        mutation.write_switches(tmp_path, zip(numbers, mutants, strict=True))
        names.add(mutation.coverage_file(tmp_path, Path("mutation.tsv"), "agent sources").name)
    assert len(names) == 3
    assert all(name.startswith("mutation.agent-sources-") for name in names)
