"""Mutation test: change one operator, constant or statement of a product module, and run the tests of its area.

`python tests/mutation.py --output FILE` appends a line per mutant: killed (by a test that passes without it), survived,
undecided (its tests took longer than --seconds), broken (tests cannot be loaded without it either), or missing (the
tree no longer has the code). Mutants that FILE has are not run again. Each job works in its own copy of the tree.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parent.parent
PRODUCT = ("railscope/**/*.py", "agent/**/*.py", "collector/**/*.py")
SOURCES = ("", "agent", "collector", "dashboards", "simulator")
MAX_MEMORY_BYTES = 8 << 30
"""Address space of a test run: a loop that no longer ends must not use the memory of the machine."""
_Change: TypeAlias = tuple[int, int, str]
"""First and last byte of what a mutant replaces, and the new text."""


class Area(NamedTuple):
    """Product modules, as patterns, and the tests that must notice a change of them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


def _collector(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/collector/{name}" for name in names)


AREAS = {
    "money": Area(
        tuple(f"collector/railscope_collector/{name}/*.py" for name in ("billing", "metering", "account", "ledger")),
        _collector(
            "billing", "metering", "account", "ledger", "evidence", "audit/test_audit_outbox.py", "audit/test_ledger_check.py",
            "test_metering.py", "test_cluster_head.py", "test_copied_directory.py", "test_record_exchange.py",
        ),
    ),
    "frames": Area(
        ("railscope/frame*.py", "railscope/wire*.py", "railscope/capture*.py", "collector/railscope_collector/framelog/*.py"),
        (
            "tests/vocabulary", "tests/agent/test_capture_replay.py", "tests/agent/test_record_replay.py", "tests/agent/test_spool.py",
            *_collector(
                "evidence/test_waiting_evidence.py", "test_framelog.py", "test_decode.py", "test_ingest.py", "test_copied_frames.py",
                "test_delivered_frames.py", "test_quarantine.py", "test_restart.py", "test_lost_disk.py", "test_sequences.py",
                "test_node_records.py", "test_at_rest.py", "test_record_feed.py",
            ),
        ),
    ),
    "access": Area(
        ("collector/railscope_collector/access/*.py", "collector/railscope_collector/http/access*.py"),
        (*_collector("access", "test_api.py", "test_ingest.py", "test_ingest_refused.py"), "tests/console/test_console_access.py"),
    ),
    "audit": Area(
        ("collector/railscope_collector/audit/*.py", "railscope/audit/*.py"),
        (
            *_collector("audit", "access/test_access_trail.py", "access/test_access_entries.py", "test_audit_live.py", "test_audit_trail.py", "test_archived_entries.py"),
            *(f"tests/vocabulary/test_{name}.py" for name in ("merkle", "note", "audit_record", "cosignature")),
        ),
    ),
    "agent sources": Area(
        tuple(f"agent/railscope_agent/{name}/**/*.py" for name in ("sources", "sampling", "tenancy", "health")),
        ("tests/agent",),
    ),
    "diagnosis": Area(("collector/railscope_collector/diagnosis/*.py",), _collector("diagnosis", "test_cluster_switches.py", "test_incident_webhook.py", "test_slurm_drain.py", "test_entity_tags.py")),
}  # fmt: skip
_COMPARISONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
_NOT_CODE = {"annotation", "returns", "decorator_list", "bases", "keywords"}
"""Fields of declarations; `keywords` of classes only."""
_PASSED = (0, 5)
"""Exit statuses of pytest: all tests passed, or none was selected."""


@dataclass(frozen=True)
class Mutant:
    """One change of a module. Its identity is the text around it, so that other changes may move it."""

    area: str
    module: str
    scope: str
    source: str
    """Text of the changed lines, with single spaces."""
    kind: str
    change: str
    number: int
    """Position among equal changes of equal lines in the scope."""

    @property
    def key(self) -> str:
        """Identity in a table of results."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:10]


class Edit(NamedTuple):
    """A mutant as it is in a tree: its line, and the bytes of the module to replace."""

    line: int
    start: int
    end: int
    text: str


def _nodes(node: ast.AST, scope: str, parent: ast.AST) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    """Yield the nodes that may be changed, with the scope and the statement that contain them."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return
        case ast.Expr(ast.Constant()) | ast.Expr(ast.Call(ast.Attribute(ast.Name("log" | "_log")))):
            return  # docstrings and logging
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Assign([ast.Name("message")]):
            return
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            scope = f"{scope}.{name}".lstrip(".")
        case ast.Raise():
            yield node, scope, parent
            return  # its message
        case _:
            yield node, scope, parent
    for field, value in ast.iter_fields(node):
        if field in _NOT_CODE and not (field == "keywords" and isinstance(node, ast.Call)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, scope, node if isinstance(node, ast.stmt) else parent)


def _is_removable(node: ast.AST, parent: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            return True
        case ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.Assign(targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case ast.Return():  # the last one of a function has no statement after it to reach
            return not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
    return False


class _Module:
    """The text of a module, with the places of its nodes."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.lines = code.splitlines(keepends=True)
        self._starts = list(accumulate(map(len, self.lines), initial=0))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the first and the last byte of a node."""
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def text(self, start: int, end: int) -> str:
        return self.code[start:end].decode()

    def changes(self, node: ast.AST, parent: ast.AST) -> Iterator[tuple[str, _Change]]:
        """Yield the kind of each change of a node, and the change."""
        match node:
            case ast.Compare(left, [sign], [right]) | ast.BinOp(left, sign, right):
                yield from self._operators(left, sign, right)
            case ast.AugAssign(left, sign, right):
                yield from self._operators(left, sign, right, "=")
            case ast.Constant():
                yield from self._constants(node)
            case ast.If(test) | ast.While(test) | ast.IfExp(test):
                start, end = self.span(test)
                yield "boolean", (start, end, f"(not ({self.text(start, end)}))")
        if isinstance(node, ast.stmt) and _is_removable(node, parent):
            yield "statement", (*self.span(node), "pass")

    def _operators(
        self, left: ast.expr, sign: ast.AST, right: ast.expr, suffix: str = ""
    ) -> Iterator[tuple[str, _Change]]:
        table = _COMPARISONS if isinstance(sign, ast.cmpop) else _ARITHMETIC
        is_text = not isinstance(sign, ast.cmpop) and (_is_text(left) or _is_text(right))
        if type(sign) not in table or is_text:
            return
        old, new = (f"{sign}{suffix}" for sign in table[type(sign)])
        start, end = self.span(left)[1], self.span(right)[0]
        pattern = r"\s+".join(map(re.escape, old.split()))
        if found := re.search(rf"(?<![<>=*/]){pattern}", self.text(start, end)):
            kind = "comparison" if table is _COMPARISONS else "arithmetic"
            yield kind, (start + found.start(), start + found.end(), new)

    def _constants(self, node: ast.Constant) -> Iterator[tuple[str, _Change]]:
        match node.value:
            case bool(value):
                yield "boolean", (*self.span(node), str(not value))
            case int(value):
                for other in (value + 1, value - 1):
                    yield "constant", (*self.span(node), str(other))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str | bytes)


def find_mutants(tree: Path, area: str, name: str) -> Iterator[tuple[Mutant, Edit]]:
    """Yield every mutant of a module."""
    module = _Module((tree / name).read_bytes())
    parsed = ast.parse(module.code)
    seen = Counter[tuple[str, ...]]()
    for node, scope, parent in _nodes(parsed, "", parsed):
        for kind, (start, end, text) in module.changes(node, parent):
            first, last = (module.code.count(b"\n", 0, at) for at in (start, end))
            source = " ".join(b"".join(module.lines[first : last + 1]).decode().split())
            change = " ".join(f"{module.text(start, end)} -> {text}".split())
            seen[identity := (scope, source, change)] += 1
            mutant = Mutant(area, name, scope, source, kind, change, seen[identity])
            yield mutant, Edit(first + 1, start, end, text)


def _files(tree: Path, patterns: Iterable[str]) -> list[str]:
    paths = (path for pattern in patterns for path in tree.glob(pattern))
    return sorted({str(path.relative_to(tree)) for path in paths})


def draw(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Return mutants at random: as many of each area, of each kind where there are enough, and one of a line."""
    chosen = list[Mutant]()
    for number, area in enumerate(AREAS, 1):
        names = _files(tree, AREAS[area].modules)
        found = [each for name in names for each in find_mutants(tree, area, name)]
        random.Random(f"{seed} {area}").shuffle(found)  # noqa: S311 - reproducible
        seen, of_line = Counter[str](), dict[tuple[str, int], tuple[int, Mutant]]()
        for mutant, edit in found:
            of_line.setdefault((mutant.module, edit.line), (seen[mutant.kind], mutant))
            seen[mutant.kind] += 1
        in_turn = [mutant for _, mutant in sorted(of_line.values(), key=itemgetter(0))]
        chosen += in_turn[: count * number // len(AREAS) - len(chosen)]
    return chosen


def locate(tree: Path, mutant: Mutant) -> tuple[str, Edit] | None:
    """Return the module that contains the code of a mutant now, and the edit; None if none does."""
    for name in [mutant.module, *_files(tree, PRODUCT)]:
        path = tree / name
        if path.is_file() and mutant.source in " ".join(path.read_text().split()):
            for found, edit in find_mutants(tree, mutant.area, name):
                if found == replace(mutant, module=name):
                    return name, edit
    return None


@cache
def importers(tree: Path) -> dict[str, set[str]]:
    """Return the files that import each module, product modules and helpers of tests included."""
    found = defaultdict[str, set[str]](set)
    for file in _files(tree, (*PRODUCT, "tests/**/*.py")):
        for node in ast.walk(ast.parse((tree / file).read_bytes())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(file)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    found[name].add(file)
    return dict(found)


def groups_of_tests(tree: Path, area: str, module: str) -> Iterator[list[str]]:
    """Yield the tests of an area: those that import a module, those that import these importers, and so on."""
    rest = set[str]()
    for name in AREAS[area].tests:
        is_directory = (tree / name).is_dir()
        rest.update(_files(tree, (f"{name}/**/test_*.py",)) if is_directory else [name])
    reached, seen = {module}, set[str]()
    while rest and (reached := reached - seen):
        seen |= reached
        paths = [
            re.sub(r"^(agent|collector|tests)/|(/__init__)?\.py$", "", file) for file in reached
        ]
        names = {name for path in paths for name in (path.replace("/", "."), Path(path).name)}
        reached = set[str]().union(*(importers(tree).get(name, ()) for name in names))
        if group := sorted(rest & reached):
            yield group
        rest -= reached
    if rest:
        yield sorted(rest)


class Copy:
    """A copy of a tree that runs its own modules, not those of the environment's installation."""

    def __init__(self, tree: Path, directory: Path) -> None:
        self.tree = directory
        command = ["git", "-C", str(tree), "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (tree / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, directory / name)
        self._environment = dict(os.environ)
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
            self._environment.pop(name, None)
        self._environment["PYTHONPATH"] = os.pathsep.join(str(directory / name) for name in SOURCES)

    def write(self, module: str, code: bytes) -> None:
        """Replace a module. Its bytecode is deleted: times and sizes of two mutants may be equal."""
        path = self.tree / module
        path.write_bytes(code)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def run(self, arguments: Iterable[str], seconds: float) -> tuple[int | None, str]:
        """Run tests; return pytest's exit status, None if they take too long, and the first that fails."""
        limits = f"setpriv --pdeathsig KILL prlimit --as={MAX_MEMORY_BYTES}"
        pytest = "-m pytest -x -q -p no:cacheprovider -p no:xdist --timeout 120"
        process = subprocess.Popen(
            [*limits.split(), sys.executable, *pytest.split(), *arguments],
            cwd=self.tree,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return process.returncode, found[1] if found else ""

    def judge(self, mutant: Mutant, seconds: float) -> tuple[str, str, str]:
        """Return where the mutant is in this tree, its result, and the test that kills it."""
        located = locate(self.tree, mutant)
        if located is None:
            return mutant.module, "missing", ""
        module, edit = located
        place, flaky = f"{module}:{edit.line}", list[str]()
        code, until = (self.tree / module).read_bytes(), time.monotonic() + seconds
        for group in groups_of_tests(self.tree, mutant.area, module):
            while True:
                self.write(module, code[: edit.start] + edit.text.encode() + code[edit.end :])
                skipped = [f"--deselect={test}" for test in flaky]
                files = [file for file in group if file not in flaky]
                status, test = self.run([*files, *skipped], max(until - time.monotonic(), 1))
                self.write(module, code)
                if status is None:
                    return place, "undecided", ""
                if status in _PASSED:
                    break
                again = [test] if test else ["--collect-only", *files]
                if self.run(again, 600)[0] == 0:
                    return place, "killed", test or "import"
                if not test or test in flaky:
                    return place, "broken", "tests fail without the mutant"
                flaky.append(test)
        return place, "survived", " ".join(flaky)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice of mutants")
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--seconds", type=float, default=3600, help="limit of the tests of one")
    parser.add_argument("--list", type=Path, help="write the mutants to this JSON file, and end")
    parser.add_argument("--mutants", type=Path, help="take the mutants from this file")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to mutate, not this one")
    parser.add_argument("--output", type=Path, default=Path("mutation.tsv"), help="the results")
    options = parser.parse_args()
    tree = options.tree.resolve()
    if options.mutants:
        mutants = [Mutant(**entry) for entry in json.loads(options.mutants.read_text())]
    else:
        mutants = draw(tree, options.seed, options.count)
    if options.list:
        text = json.dumps([asdict(mutant) for mutant in mutants], indent=1)
        options.list.write_text(f"{text}\n")
        return
    options.output.touch()
    rows = [line.split("\t") for line in options.output.read_text().splitlines()]
    done = {row[0] for row in rows}
    waiting = [mutant for mutant in mutants if mutant.key not in done]
    with options.output.open("a") as table:
        for row in run_mutants(tree, waiting, options.jobs, options.seconds):
            rows.append(row)
            table.write("\t".join(row) + "\n")
            table.flush()
    summarize([row for row in rows if row[0] in {mutant.key for mutant in mutants}])


def run_mutants(
    tree: Path, mutants: Iterable[Mutant], jobs: int, seconds: float
) -> Iterator[list[str]]:
    """Yield a row for each mutant as its tests end."""
    copies = SimpleQueue[Copy]()

    def run(mutant: Mutant) -> list[str]:
        copy, started = copies.get(), time.monotonic()
        place, result, test = copy.judge(mutant, seconds)
        copies.put(copy)
        elapsed = f"{time.monotonic() - started:.0f}"
        return [mutant.key, mutant.area, place, mutant.change, result, test, elapsed]

    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        for number in range(jobs):
            copies.put(Copy(tree, Path(directory) / str(number)))
        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(run, mutant) for mutant in mutants]):
                yield done.result()


def summarize(rows: Iterable[list[str]]) -> None:
    """Print the number of each result, and the median time, by area."""
    for area in AREAS:
        found = [row for row in rows if row[1] == area]
        if found:
            results = Counter(row[4] for row in found).items()
            numbers = ", ".join(f"{number} {result}" for result, number in results)
            seconds = median(float(row[6]) for row in found)
            sys.stdout.write(f"{area}: {numbers}; median {seconds:.0f} s\n")


if __name__ == "__main__":
    main()
