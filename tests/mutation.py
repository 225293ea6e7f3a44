"""Mutation test: change one operator, constant or statement of the product, and run the tests that execute it.

`python tests/mutation.py --output FILE` appends a line per mutant: killed (by a test), survived, uncovered (no test
executes it, in its own process or in one that imports the copy), imported (it is executed only when its module is
imported), unjudged (only tests that fail without a mutant, or in a fork, execute it), partial (its tests take longer than --seconds), or
stopped (a test did not end). Mutants that FILE has are not run again.

All mutants are in one copy of the tree, each with a switch. A process imports an area and its tests once and runs them
once, to find which tests execute which mutants, also in programs that they start. Then it forks a child per mutant, which
runs these tests, cheapest first, until one fails. Tests that fail without a mutant are printed, and judge none.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

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
        tuple(f"collector/railscope_collector/{name}/*.py" for name in ("billing", "metering", "account", "ledger", "evidence", "finalization")),
        _collector(
            "billing", "metering", "account", "ledger", "evidence", "audit/test_audit_outbox.py", "audit/test_ledger_check.py",
            "test_metering.py", "test_copied_directory.py",
        ),
    ),
    "frames": Area(
        ("railscope/frame*.py", "railscope/wire*.py", "railscope/capture*.py", "collector/railscope_collector/framelog/*.py", "collector/railscope_collector/state/*.py"),
        (
            "tests/vocabulary", "tests/agent/test_capture_replay.py", "tests/agent/test_record_replay.py", "tests/agent/test_shipping.py", "tests/agent/test_spool.py",
            *_collector(
                "evidence/test_waiting_evidence.py", "test_framelog.py", "test_decode.py", "test_ingest.py",
                "test_quarantine.py", "test_restart.py", "test_sequences.py",
                "test_at_rest.py", "test_log_limit.py",
            ),
        ),
    ),
    "access": Area(
        ("collector/railscope_collector/access/*.py", "collector/railscope_collector/http/access*.py"),
        (*_collector("access", "test_api.py", "test_ingest.py", "test_ingest_refused.py"), "tests/console/test_console_access.py", "tests/console/test_answers.py"),
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
    "diagnosis": Area(("collector/railscope_collector/diagnosis/*.py", "collector/railscope_collector/live_diagnosis/*.py"), _collector("diagnosis", "test_incident_webhook.py", "test_entity_tags.py")),
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
MAX_TEST_SECONDS, MAX_WALL_SECONDS = 60, 180
"""Processor time in addition to --seconds in which the last test must end, and the wall time of a test: more is a loop.

A test is ended after 120 seconds, except one that waits for a thread: that needs the longer time.
"""


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


_SWITCH = "mutant_switch"
"""Module of the copy that all its mutants ask."""
_ACTIVE, _EXECUTED = "mutant_active", "mutants_executed"
"""Files beside it: the number of the mutant that is on, and a line for each one that a process executes first."""
_SWITCH_CODE = f"""
import os
_directory = os.path.dirname(os.path.abspath(__file__))
_executed = os.path.join(_directory, "{_EXECUTED}")
executed = set()

def read_active():
    global active
    executed.clear()
    with open(os.path.join(_directory, "{_ACTIVE}")) as file:
        active = int(file.read())

def is_on(number):
    if number not in executed:
        executed.add(number)
        try:
            with open(_executed, "a") as file:
                file.write(f"{{number}}\\n")
        except OSError:
            pass  # the disk of a test is full, or its process has another user
    return number == active

read_active()
os.register_at_fork(after_in_child=read_active)
"""


def copy_tree(tree: Path, directory: Path) -> None:
    """Copy the files that git knows, or does not ignore."""
    command = ["git", "-C", str(tree), "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (tree / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, directory / name)


def switched(code: bytes, edit: Edit, number: int, kind: str) -> bytes:
    """Return a module with both forms of a place; the mutant is the one while its switch is on."""
    module, parsed, switch = _Module(code), ast.parse(code), f"{_SWITCH}.is_on({number})".encode()
    around = [
        (*module.span(node), isinstance(node, ast.stmt))
        for node in ast.walk(parsed)
        if isinstance(node, ast.expr | ast.stmt)
    ]
    around = [each for each in around if each[0] <= edit.start and edit.end <= each[1]]
    expressions = [(end - start, start, end) for start, end, is_stmt in around if not is_stmt]
    _, begin, end = min((end - start, start, end) for start, end, is_stmt in around if is_stmt)
    indent = code[code.rfind(b"\n", 0, begin) + 1 : begin]

    def changed(first: int, last: int) -> bytes:
        return code[first : edit.start] + edit.text.encode() + code[edit.end : last]

    forms = list[bytes]()
    if kind == "statement":
        forms.append(code[:begin] + b"if not %b: " % switch + code[begin:])
    else:
        if expressions:
            _, first, last = min(expressions)
            both = b"((%b) if %b else (%b))" % (changed(first, last), switch, code[first:last])
            forms.append(code[:first] + both + code[last:])
        rest = b"\n%belse: " % indent + code[begin:]
        forms.append(code[:begin] + b"if %b: " % switch + changed(begin, end) + rest)
    for form in forms:
        try:
            compile(form, "mutant", "exec")
        except SyntaxError:
            continue
        return form
    message = f"no switch: line {edit.line}: expected an expression or a simple statement"
    raise ValueError(message)


def write_switches(tree: Path, mutants: Iterable[tuple[int, Mutant]]) -> list[int]:
    """Write all mutants into a copy of the tree; return the numbers of those whose code the tree no longer has."""
    (tree / f"{_SWITCH}.py").write_text(_SWITCH_CODE)
    of_module, missing = defaultdict[str, list[tuple[int, int, Edit, str]]](list), list[int]()
    for number, mutant in mutants:
        if located := locate(tree, mutant):
            module, edit = located
            of_module[module].append((edit.start, number, edit, mutant.kind))
        else:
            missing.append(number)
    for name, places in of_module.items():
        code = (tree / name).read_bytes()
        for _, number, edit, kind in sorted(
            places, reverse=True
        ):  # so that no edit moves a later one
            code = switched(code, edit, number, kind)
        first = next(
            node
            for node in ast.parse(code).body
            if not (isinstance(node, ast.Expr) or getattr(node, "module", "") == "__future__")
        )
        at = _Module(code).span(first)[0]
        (tree / name).write_bytes(code[:at] + f"import {_SWITCH}\n".encode() + code[at:])
    return missing


def coverage_file(tree: Path, output: Path, area: str) -> Path:
    """Return the file for the tests that execute each mutant; other mutants, or another tree, have another one."""
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(tree)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return output.with_suffix(f".{area.replace(' ', '-')}-{digest.hexdigest()[:10]}.jsonl")


def _processor_seconds() -> float:
    """Return the processor time of this process, and of the programs that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _restart_executors() -> None:
    """Make executors of modules start threads again: a fork has none, and would wait for them."""
    for module in list(sys.modules.values()):
        for executor in list(getattr(module, "__dict__", {}).values()):
            if isinstance(executor, ThreadPoolExecutor):
                fresh = ThreadPoolExecutor(executor._max_workers)  # noqa: SLF001
                for name in ("_threads", "_idle_semaphore", "_work_queue"):
                    setattr(executor, name, getattr(fresh, name))


class Judge:
    """Plugin of pytest that runs the tests once, and those of each mutant in a child process."""

    def __init__(
        self, tree: Path, mutants: dict[int, Mutant], executed: Path, output: Path, seconds: float
    ) -> None:
        self._mutants, self._executed, self._output = mutants, executed, output
        self._seconds, self._is_failed = seconds, False
        self._forkable: dict[str, bool] = {}
        """True for tests that pass in a child process without a mutant."""
        self._tree = tree
        (tree / _ACTIVE).write_text("-1")
        self._switch: Any = importlib.import_module(_SWITCH)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run in place of the tests."""
        if session.testsfailed:
            message = "tests cannot be imported"
            raise session.Failed(message)
        imported = set(self._switch.executed)
        costs, failing = self._tests_of_mutants(session.items, imported)
        items = {item.nodeid: item for item in session.items if item.nodeid not in failing}
        for name in failing:
            sys.stdout.write(f"\nfails without a mutant: {name}")
        executed_failing = {number for numbers in failing.values() for number in numbers}
        for number, mutant in self._mutants.items():
            found = sorted((seconds, name) for name, seconds in costs[number].items())
            # A shared fixture may have executed the line for another test of the file.
            files = {name.partition("::")[0] for _, name in found}
            beside = [name for name in items if name.partition("::")[0] in files]
            names = list(dict.fromkeys([*(name for _, name in found), *beside]))
            if found:
                result, test, used = self._judge(number, [items[name] for name in names])
                if result == "imported" and not all(self._forkable.get(n, True) for _, n in found):
                    result = "unjudged"
            else:
                is_unjudged, is_imported = number in executed_failing, number in imported
                result = "unjudged" if is_unjudged else "imported" if is_imported else "uncovered"
                test, used = "", 0.0
            row = [mutant.key, mutant.area, f"{mutant.module}:{mutant.scope}", mutant.change]
            with self._output.open("a") as table:
                table.write("\t".join([*row, result, test, f"{used:.1f}"]) + "\n")
        return True

    def _tests_of_mutants(
        self, items: list[pytest.Item], imported: set[int]
    ) -> tuple[dict[int, dict[str, float]], dict[str, list[int]]]:
        """Return the tests that execute each mutant, with their processor time, and the mutants of tests that fail.

        The file has those run before.
        """
        executed = self._tree / _EXECUTED
        with self._executed.open("a+") as file:
            file.seek(0)
            known = {name: entry for name, *entry in map(json.loads, file)}
            waiting = [item for item in items if item.nodeid not in known]
            for item, following in _with_next(waiting):
                self._switch.executed.clear()
                executed.write_text("")
                started = _processor_seconds()
                is_failed = self._fails(item, following)
                used = round(_processor_seconds() - started, 3)
                # Programs import modules again, with the mutant; the process of the tests does not.
                numbers = set(map(int, executed.read_text().split()))
                numbers -= imported - self._switch.executed
                entry = [used, sorted(numbers), is_failed]
                known[item.nodeid] = entry
                file.write(json.dumps([item.nodeid, *entry]) + "\n")
                file.flush()
        found, failing = defaultdict[int, dict[str, float]](dict), dict[str, list[int]]()
        for item in items:
            seconds, numbers, is_failed = known[item.nodeid]
            if is_failed:
                failing[item.nodeid] = numbers
                continue
            for number in numbers:
                found[number][item.nodeid] = seconds
        return found, failing

    def _judge(self, number: int, items: list[pytest.Item]) -> tuple[str, str, float]:
        """Return the result of a mutant, by tests that also pass in a child process without it."""
        total = 0.0
        while items := [item for item in items if self._forkable.get(item.nodeid, True)]:
            result, test, used = self._in_child(number, items)
            total += used
            if not test:
                return result, test, total
            if test not in self._forkable:
                # A library with threads of its own does not work in a fork.
                item = [item for item in items if item.nodeid == test]
                self._forkable[test] = not self._in_child(-1, item)[1]
            if self._forkable[test]:
                return result, test, total
            sys.stdout.write(f"\nfails in a fork without a mutant: {test}")
        return "unjudged", "", total

    def _in_child(self, number: int, items: list[pytest.Item]) -> tuple[str, str, float]:
        """Return the result of a mutant, the test that kills it, and the processor time."""
        reader, writer = os.pipe()
        # Also for programs that tests start, and for forks of those that run.
        (self._tree / _ACTIVE).write_text(str(number))
        executed = self._tree / _EXECUTED
        executed.write_text("")
        child = os.fork()
        if not child:
            try:
                os.close(reader)
                null = os.open(os.devnull, os.O_WRONLY)
                for stream in (1, 2):
                    os.dup2(null, stream)
                limit = int(self._seconds) + MAX_TEST_SECONDS
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
                _restart_executors()
                self._run_until_failure(items, writer)
            finally:
                os._exit(0)
        os.close(writer)
        result, test = _read_answer(reader)
        if result == "stopped":
            os.kill(child, signal.SIGKILL)
        os.close(reader)
        usage = os.wait4(child, 0)[2]
        # A test of the first run imported the module: the child has it already, without the mutant.
        if result == "survived" and str(number) not in executed.read_text().split():
            result = "imported"
        return result, test, usage.ru_utime + usage.ru_stime

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._is_failed |= report.failed

    def _fails(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        self._is_failed = False
        item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=following
        )  # with its time limit
        return self._is_failed

    def _run_until_failure(self, items: list[pytest.Item], writer: int) -> None:
        """Write the name of each test before it runs, and at the end a line with the result."""
        result = "survived"
        for item, following in _with_next(items):
            os.write(writer, f"{item.nodeid}\n".encode())
            if self._fails(item, following):
                result = "killed"
                break
            if _processor_seconds() > self._seconds:
                result = "partial"
                break
        os.write(writer, f"{_RESULT}{result}\n".encode())


_RESULT = "\t"
"""Beginning of the line that no name of a test has."""


def _read_answer(reader: int) -> tuple[str, str]:
    """Return the result of a child process, and the test that failed or did not end."""
    content = b""
    while select.select([reader], [], [], MAX_WALL_SECONDS)[0]:
        part = os.read(reader, 1 << 16)
        content += part
        if not part or _RESULT.encode() in part:
            break
    *tests, last = content.decode().splitlines() or [""]
    if not last.startswith(_RESULT):
        return "stopped", last
    result = last.removeprefix(_RESULT)
    return result, tests[-1] if result == "killed" else ""


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip_longest(items, items[1:])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice of mutants")
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--areas", default=",".join(AREAS), help="areas whose mutants are run")
    parser.add_argument("--seconds", type=float, default=40, help="processor time of one's tests")
    parser.add_argument("--list", type=Path, help="write the mutants to this JSON file, and end")
    parser.add_argument("--mutants", type=Path, help="take the mutants from this file")
    parser.add_argument("--tests", default="not thorough", help="marker expression of the tests")
    parser.add_argument("--output", type=Path, default=Path("mutation.tsv"), help="the results")
    options = parser.parse_args()
    if options.mutants:
        drawn = [Mutant(**entry) for entry in json.loads(options.mutants.read_text())]
    else:
        drawn = draw(ROOT, options.seed, options.count)
    if options.list:
        text = json.dumps([asdict(mutant) for mutant in drawn], indent=1)
        options.list.write_text(f"{text}\n")
        return
    output: Path = options.output.resolve()
    output.touch()
    done = {line.partition("\t")[0] for line in output.read_text().splitlines()}
    mutants = {n: each for n, each in enumerate(drawn) if each.key not in done}
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        tree = Path(directory)
        copy_tree(ROOT, tree)
        for number in write_switches(tree, enumerate(drawn)):
            mutants.pop(number, None)
        files = {area: coverage_file(tree, output, area) for area in options.areas.split(",")}
        for area, executed in files.items():
            of_area = {number: each for number, each in mutants.items() if each.area == area}
            child = os.fork() if of_area else 0
            if of_area and not child:
                status = run_area(tree, area, of_area, executed, options)
                sys.stdout.flush()
                os._exit(status)
            if child:
                os.waitpid(child, 0)
    keys = {mutant.key for mutant in drawn}
    rows = [line.split("\t") for line in output.read_text().splitlines()]
    summarize([row for row in rows if row[0] in keys])


def run_area(
    tree: Path, area: str, mutants: dict[int, Mutant], executed: Path, options: argparse.Namespace
) -> int:
    """Run the tests and the mutants of an area in this process, with the modules of the copy."""
    paths = [str(tree / name) for name in SOURCES]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    output: Path = options.output.resolve()
    os.chdir(tree)
    plugins: list[Any] = [Judge(tree, mutants, executed, output, options.seconds)]
    arguments = [
        "-q",
        "-m",
        options.tests,
        "--timeout",
        "120",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    return int(pytest.main([*arguments, *AREAS[area].tests], plugins=plugins))


def summarize(rows: Iterable[list[str]]) -> None:
    """Print the number of each result, and the processor time, by area."""
    for area in AREAS:
        found = [row for row in rows if row[1] == area]
        if found:
            results = Counter(row[4] for row in found).most_common()
            numbers = ", ".join(f"{number} {result}" for result, number in results)
            sys.stdout.write(f"{area}: {numbers}; {sum(float(row[6]) for row in found):.0f} s\n")


if __name__ == "__main__":
    main()
