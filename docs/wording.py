"""Check of wording: plain technical English in the terms of docs/glossary.md.

A reader yields the passages of one kind of text (docstrings, names, log events, documents, alerts, comments,
commit subjects), and each row of RULES has the kinds that it applies to. A further check is a row, or a
reader with a kind of its own. Code spans, code blocks and quotations are exempt.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click
import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "collector", "railscope", "simulator", "bench", "dashboards")
DOCUMENTS = ("README.md", "CHANGELOG.md", "docs/**/*.md", "bench/*.md", "alerts/runbooks/*.md")
SAMPLES = ("deploy/**/*", "alerts/rules/*.yml", "alerts/*.yml")
"""Files whose comments are checked."""
ALERTS = ("alerts/rules/*.yml",)
TESTS = ("tests/**/*.py",)
COMMITS_SINCE = "ff381e0c51cbfe35bca6e77421ee89e3394a0d72"
"""Commit after which every subject is checked."""


class Kind(StrEnum):
    """Kind of a passage."""

    DOCSTRING = "docstring"
    MESSAGE = "message"
    ERROR = "error message"
    NAME = "name"
    CLASS = "class name"
    FUNCTION = "function"
    MODULE = "module name"
    EVENT = "log event"
    EVENT_VALUE = "value in a log event"
    TEST_DOCSTRING = "docstring of a test"
    TEST_NAME = "name in a test"
    DOCUMENT = "document"
    ALERT = "alert"
    COMMENT = "comment"
    COMMIT = "commit subject"
    MERGE = "merge commit"


class HistoryError(Exception):
    """A Git history without the commits to check; an error unless the clone is expected to lack them."""

    def __init__(self, message: str, *, is_error: bool) -> None:
        """Create the error."""
        super().__init__(message)
        self.is_error = is_error


@dataclass(frozen=True)
class Passage:
    """Text of one kind, with the file or the commit that contains it and its first line there."""

    kind: Kind
    place: str
    line: int
    text: str


@dataclass(frozen=True)
class Rule:
    """Pattern that is an error in some kinds of text; `problem` may refer to the match as {found}."""

    kinds: frozenset[Kind]
    pattern: re.Pattern[str]
    problem: str


DOCUMENT = frozenset({Kind.DOCUMENT, Kind.ALERT, Kind.COMMENT})
READER = DOCUMENT | {Kind.MESSAGE}
TEST = frozenset({Kind.TEST_DOCSTRING, Kind.TEST_NAME})
PROSE = READER | TEST | {Kind.DOCSTRING, Kind.COMMIT}
PRODUCT = frozenset({Kind.DOCSTRING, Kind.MESSAGE})
NAME = frozenset({Kind.NAME})


def _word_rule(pattern: str, remedy: str, kinds: frozenset[Kind] = PROSE) -> Rule:
    whole = re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)
    return Rule(kinds, whole, f"contains {{found!r}}: write {remedy}")


def _form(kinds: Kind | Iterable[Kind], pattern: str, problem: str) -> Rule:
    several = [kinds] if isinstance(kinds, Kind) else kinds
    return Rule(frozenset(several), re.compile(pattern), problem)


_PARTICIPLES = (
    "begun|born|bought|broken|brought|built|withheld|caught|chosen|done|drawn|driven|fallen|fed|felt|forgotten|"
    "forbidden|found|frozen|given|gone|grown|heard|held|hidden|hung|kept|known|left|lost|made|met|"
    "owed|paid|seen|sent|shown|sold|spent|spoken|stolen|taken|taught|thrown|tied|told|understood|"
    "used|won|worn|written|agreed|freed|guaranteed"
)
"""Participles that the ending alone does not show; `read` or `cut` are nouns too."""
_NOT_PARTICIPLES = "embed|hundred|infrared|sacred|shred|testbed"
"""Further words in -ed, beside those in -eed such as `speed`."""
_PARTICIPLE = rf"(?:{_PARTICIPLES}|(?!(?:{_NOT_PARTICIPLES})\Z)[a-z]{{2,}}(?<!e)ed)\Z"
_UNITS = "[num]?s|seconds?|minutes?|hours?|bytes?|[kKMG]?i?B|%|m?W|[kMG]?Hz"

_PROPER_NOUNS = "Kubernetes|Linux|Prometheus|Slurm"
"""Names that an error message may start with, beside those with a second capital letter or a digit."""

LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
EVENT_EXCEPTIONS = {
    "{event}": "one of several names, each in the required form, with the same keys",
    "checkpoint_conflict_detected": "the keys of two checkpoints, in a mapping",
    "collector_unreachable": "a state, and the name that users search for in the log",
    "evidence_problem_found": "the facts of the problem, in a mapping",
}
"""Log events that may have several sets of keys, or keys in a mapping, each with its reason."""

RULES: tuple[Rule, ...] = (
    _form(
        (Kind.DOCSTRING, Kind.TEST_DOCSTRING),
        r"\A\s*(?:What|Who|Whose|Whom|Whether|How|Where|When|Which|Why)\b",
        "starts with {found!r}: expected a noun or a verb",
    ),
    _word_rule("tells?|told|telling", "report, state, contain, distinguish"),
    _word_rule("says?|said|saying", "state, report, contain"),
    _word_rule("whoever|nobody|somebody|whom", "name the component; these are for people only"),
    _word_rule("folders?", "directory"),
    _word_rule("anew|for ever|for good|lately", "again, permanently, recently"),
    _word_rule(r"(?<!there )(?:is|are|was|were) no (?!longer|more)\w+", "what it is", READER),
    _word_rule("mend(?:s|ed|ing)?", "fix", READER),
    _word_rule("dear(?:er|est)?", "expensive", READER),
    _word_rule("hears?|heard|hearing", "receive, report", READER),
    _word_rule("refus(?:e|es|ed|ing|als?)", "reject", DOCUMENT),
    _word_rule("settl(?:e|es|ed|ing)", "finalize", DOCUMENT),
    _word_rule("rogue|stray", "unclaimed", READER),
    _word_rule("custody", "witness", DOCUMENT | PRODUCT),
    _word_rule("cards?", "NIC", DOCUMENT),
    _word_rule(
        r"silent (?:nodes?|GPUs?)|(?:nodes?|GPUs?) (?:is|are) silent", "stale", DOCUMENT | PRODUCT
    ),
    _word_rule("put(?:s|ting)? aside", "rename to", PRODUCT),
    _word_rule("a look(?!-)", "a poll", PRODUCT),
    _word_rule(r"(?:agent|collector)'s page", "metrics endpoint", DOCUMENT),
    _word_rule(r"(?!(?:is|as|has|was)\b)\w+s a second", "per second", DOCUMENT),
    _word_rule("belongs? into", "belong in", READER),
    _word_rule(r"leaves? with \d", "exit status", READER),
    Rule(NAME, re.compile(r"^_?(?:most|least)_(?!common\b|expensive\b)\w*", re.IGNORECASE),
         "{found!r}: write max_, min_"),
    Rule(NAME, re.compile(r"^(?!folderUid$)\w*folder\w*", re.IGNORECASE),
         "{found!r}: write directory"),
    _form(
        Kind.MODULE,
        rf"(?:\A|_){_PARTICIPLE}",
        "ends in the participle {found!r}: name the thing that the module contains",
    ),
    _form(
        Kind.CLASS,
        r"\A_?(?:Told|Known|Kept|Held|Seen|Place|Look|Word|Door|Office|Part|Trouble)\Z",
        "{found!r} states no kind: name kind and domain",
    ),
    _form(
        Kind.ERROR,
        rf"\A(?!(?:{_PROPER_NOUNS})\b)(?:[A-Z][a-z]+|A)\b",
        "starts with {found!r}: expected lower case",
    ),
    _form(Kind.ERROR, r"(?<!\.)\.\Z", "ends with a full stop"),
    _form(
        Kind.FUNCTION,
        r"\A(?:of|at|on|over|beyond|by)\Z",
        "{found!r} is a preposition: name what the function returns or does",
    ),
    _form(
        Kind.EVENT,
        rf"\A(?!(?:[a-z0-9{{}}]+_)+{_PARTICIPLE}).*",
        "{found!r}: expected a noun and a past participle in snake_case",
    ),
    _form(
        Kind.EVENT_VALUE,
        rf"(?:\d+|\{{\}}) ?(?:{_UNITS})\Z",
        "contains the unit {found!r}: pass a number, with the unit in the name of the key",
    ),
    _word_rule(
        "who|looks?|words?|mend|dear|hears?|heard|rogue|stray|custody|settle[ds]?|settling|cards?|"
        "doors?|offices?|rooms?|boards?",
        "a term of docs/glossary.md",
        TEST,
    ),
    _form(Kind.COMMIT, r"^.{73,}", "has more than 72 characters: {found!r}"),
    _form(Kind.COMMIT, r"^(?![a-z][\w,./ -]*: \S).*", "{found!r}: expected `area: change`"),
    _form(Kind.MERGE, r"^.*", "{found!r}: expected a linear history"),
)  # fmt: skip
"""Names of other programs are excluded from the rules on names, such as `folderUid` of Grafana."""


# Readers ---------------------------------------------------------------------------------------

_EXEMPT = (
    re.compile(r"^ *(```+)[^\n]*\n.*?^ *\1`*$", re.DOTALL | re.MULTILINE),
    re.compile(r"(`+)(?:(?!\n\s*\n).)+?\1", re.DOTALL),
    re.compile(r'"(?:(?!\n\s*\n)[^"])*"'),
    re.compile(r"\]\([^)]*\)|<https?:[^>]*>"),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^>.*$", re.MULTILINE),
)
"""Code blocks, code spans, quotations, targets of links, comments, quoted paragraphs."""


def prose(text: str) -> str:
    """Return the text with blanks in place of all exempt parts; lines stay where they are."""
    for pattern in _EXEMPT:
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def source(place: str, text: str) -> Iterator[Passage]:
    """Yield every docstring of a module, those of attributes included, message, and bound name."""
    nodes = list(ast.walk(ast.parse(text)))
    yield from _messages(place, nodes)
    yield from _errors(place, nodes)
    yield from _docstrings(place, nodes, Kind.DOCSTRING)
    for line, name in _names(nodes):
        yield Passage(Kind.NAME, place, line, name)
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield Passage(Kind.FUNCTION, place, node.lineno, node.name)
            case ast.ClassDef():
                yield Passage(Kind.CLASS, place, node.lineno, node.name)
            case ast.Call():
                yield from _event(place, node)


def source_of_test(place: str, text: str) -> Iterator[Passage]:
    """Yield every docstring and every bound name of a test module, and its own name, by words."""
    nodes = list(ast.walk(ast.parse(text)))
    yield from _docstrings(place, nodes, Kind.TEST_DOCSTRING)
    for line, name in [(0, Path(place).stem), *_names(nodes)]:
        words = re.sub("([a-z])([A-Z])", r"\1_\2", name).replace("_", " ")
        yield Passage(Kind.TEST_NAME, place, line, words)


def _docstrings(place: str, nodes: Iterable[ast.AST], kind: Kind) -> Iterator[Passage]:
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield Passage(kind, place, node.lineno, prose(docstring))


def _names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield every name that a module binds, with its line."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def _event(place: str, call: ast.Call) -> Iterator[Passage]:
    """Yield name and texts of a log event; its keys are checked by `key_sets`."""
    if (name := _event_name(call)) and name not in EVENT_EXCEPTIONS:
        yield Passage(Kind.EVENT, place, call.lineno, name)
        for key in call.keywords:
            yield Passage(Kind.EVENT_VALUE, place, call.lineno, _rendered(key.value))


def _event_name(call: ast.Call) -> str:
    """Return the name of the event that a call logs, code in braces; empty for other calls."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=method), args=[event]):
            if method in LOG_METHODS:
                return _rendered(event) or f"{{{ast.unparse(event)}}}"
    return ""


def _rendered(node: ast.expr) -> str:
    """Return the text of a string, {} for each formatted value; empty for other expressions."""
    match node:
        case ast.JoinedStr():
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            return "".join(map(str, parts))
        case ast.Constant(value=str(text)):
            return text
    return ""


def _messages(place: str, nodes: Iterable[ast.AST]) -> Iterator[Passage]:
    """Yield every string of several words that is not a docstring; {} stands for a formatted value."""
    parts = set()  # of docstrings and of formatted strings; their nodes come first in a walk
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as docstring):
                parts.add(docstring)
                continue
            case ast.JoinedStr():
                text = _rendered(node)
                parts |= {part for part in ast.walk(node) if isinstance(part, ast.Constant)}
            case ast.Constant(value=str(text)) if node not in parts:
                pass
            case _:
                continue
        if " " in text:
            yield Passage(Kind.MESSAGE, place, node.lineno, " ".join(prose(text).split()))


def _errors(place: str, nodes: Iterable[ast.AST]) -> Iterator[Passage]:
    """Yield the text of each exception: an argument of its call, or the value of `message`."""
    for node in nodes:
        match node:
            case ast.Raise(exc=ast.Call(args=texts)):
                pass
            case ast.Assign(targets=[ast.Name(id="message")], value=text):
                texts = [text]
            case _:
                continue
        for text in texts:
            yield Passage(Kind.ERROR, place, text.lineno, prose(_rendered(text)).rstrip())


def alerts(place: str, text: str) -> Iterator[Passage]:
    """Yield summary and description of every alert of a file of rules."""
    for group in yaml.safe_load(text)["groups"]:
        for rule in group["rules"]:
            for annotation in ("summary", "description"):
                if found := rule.get("annotations", {}).get(annotation):
                    where = f"{place}: {rule['alert']}: {annotation}"
                    yield Passage(Kind.ALERT, where, 0, prose(found))


def comments(place: str, text: str) -> Iterator[Passage]:
    """Yield the lines of a file that are comments as one passage; other lines are blank in it."""
    shown = (line if re.match(r"\s*#(?!!)", line) else "" for line in text.split("\n"))
    yield Passage(Kind.COMMENT, place, 1, prose("\n".join(shown)))


def module(path: Path) -> Passage:
    """Return the name of a module; of a package, the name of its directory."""
    return Passage(
        Kind.MODULE, str(path), 0, path.parent.name if path.stem == "__init__" else path.stem
    )


def document(place: str, text: str) -> Iterator[Passage]:
    """Yield the prose of a document; of a changelog, its section on unreleased changes."""
    start, end = 0, len(text)
    if unreleased := re.search(r"^## \[Unreleased\]$", text, re.MULTILINE):
        start = unreleased.start()
        following = re.compile(r"^## ", re.MULTILINE).search(text, unreleased.end())
        end = following.start() if following else end
    yield Passage(Kind.DOCUMENT, place, 1 + text.count("\n", 0, start), prose(text[start:end]))


def commits(root: Path, since: str) -> Iterator[Passage]:
    """Yield the subject of every commit after `since`. Raises HistoryError without that commit."""
    git = shutil.which("git")
    if git is None or _git(git, root, "rev-parse", "--git-dir") is None:
        message = "no Git repository"
        raise HistoryError(message, is_error=False)
    if _git(git, root, "cat-file", "-e", f"{since}^{{commit}}") is None:
        is_shallow = _git(git, root, "rev-parse", "--is-shallow-repository") == "true\n"
        message = f"{'shallow clone' if is_shallow else 'unknown range'}: no commit {since}"
        raise HistoryError(message, is_error=not is_shallow)
    log = _git(git, root, "log", "--format=%h%x09%p%x09%s", f"{since}..HEAD") or ""
    for line in log.splitlines():
        commit, parents, subject = line.split("\t", 2)
        if " " in parents:
            yield Passage(Kind.MERGE, commit, 0, subject)
        else:
            yield Passage(Kind.COMMIT, commit, 0, prose(subject))


def _git(git: str, root: Path, *arguments: str) -> str | None:
    """Return the output of a git command, None if it fails."""
    done = subprocess.run(  # noqa: S603 - git itself, with arguments of this module
        [git, "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


# The check -------------------------------------------------------------------------------------


def problems(passages: Iterable[Passage]) -> Iterator[str]:
    """Yield a line for each match of a rule."""
    for passage in passages:
        for rule in RULES:
            if passage.kind in rule.kinds:
                for match in rule.pattern.finditer(passage.text):
                    problem = rule.problem.format(found=" ".join(match[0].split()))
                    yield f"{_where(passage, match.start())}: {passage.kind} {problem}"


def _where(passage: Passage, offset: int) -> str:
    if not passage.line:
        return passage.place
    return f"{passage.place}:{passage.line + passage.text.count(chr(10), 0, offset)}"


def key_sets(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each log event whose calls have different keys."""
    calls: dict[str, dict[str, str]] = {}
    for place, text in sources.items():
        for node in ast.walk(ast.parse(text if "log." in text else "")):
            if isinstance(node, ast.Call) and (event := _event_name(node)):
                keys = ", ".join(sorted(key.arg or "**" for key in node.keywords))
                calls.setdefault(event, {})[keys] = f"{place}:{node.lineno}"
    for event, by_keys in calls.items():
        if event in EVENT_EXCEPTIONS:
            continue
        if len(by_keys) > 1:
            found = "; ".join(f"{place} ({keys})" for keys, place in by_keys.items())
            yield f"log event {event!r} has several sets of keys: {found}: expected one"
        elif any("**" in keys for keys in by_keys):
            yield f"{by_keys.popitem()[1]}: log event {event!r}: expected each key in the call"


def every_passage(root: Path) -> Iterator[Passage]:
    """Yield every passage of the files of the repository."""
    for path in product_modules(root):
        place = path.relative_to(root)
        yield module(place)
        yield from source(str(place), path.read_text())
    readers = (
        (DOCUMENTS, document),
        (SAMPLES, comments),
        (ALERTS, alerts),
        (TESTS, source_of_test),
    )
    for patterns, read in readers:
        for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
            if path.is_file():
                yield from read(str(path.relative_to(root)), path.read_text())


def product_modules(root: Path) -> Iterator[Path]:
    """Yield every module of the product."""
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def check(root: Path, since: str) -> tuple[list[str], list[str]]:
    """Return the problems of a repository, and notes on what could not be checked."""
    found = list(problems(every_passage(root)))
    found += key_sets({str(m.relative_to(root)): m.read_text() for m in product_modules(root)})
    try:
        found += problems(commits(root, since))
    except HistoryError as error:
        message = f"commit subjects were not checked: {error}"
        return (
            ([*found, f"{message}; fix: git fetch --unshallow"], [])
            if error.is_error
            else (found, [message])
        )
    return found, []


def main() -> int:
    """Print every problem; return 1 if there is one."""
    found, notes = check(ROOT, COMMITS_SINCE)
    for line in found + notes:
        click.echo(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
