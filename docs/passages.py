"""Readers of text for `wording.py`: each yields the passages of one kind of text.

The kinds are docstrings, names, log events, documents, alerts, comments and commit subjects. Code spans,
code blocks and quotations are exempt.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml


class Kind(StrEnum):
    """Kind of a passage."""

    DOCSTRING = "docstring"
    MESSAGE = "message"
    ERROR = "error message"
    NAME = "name"
    CLASS = "class name"
    TYPE = "type name"
    FUNCTION = "function"
    MODULE = "module name"
    EVENT = "log event"
    EVENT_VALUE = "value in a log event"
    TEST_DOCSTRING = "docstring of a test"
    TEST_COMMENT = "comment in a test"
    TEST_NAME = "name in a test"
    DOCUMENT = "document"
    ALERT = "alert"
    COMMENT = "comment"
    COMMIT = "commit subject"
    MERGE = "merge commit"
    LANE = "file without electrical links"


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


LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
EVENT_EXCEPTIONS = {
    "{event}": "one of several names, each in the required form, with the same keys",
    "checkpoint_conflict_detected": "the keys of two checkpoints, in a mapping",
    "collector_unreachable": "a state, and the name that users search for in the log",
    "evidence_problem_found": "the facts of the problem, in a mapping",
}
"""Log events that may have several sets of keys, or keys in a mapping, each with its reason."""

_EXEMPT = (
    re.compile(r"^ *(```+)[^\n]*\n.*?^ *\1`*$", re.DOTALL | re.MULTILINE),
    re.compile(r"(`+)(?:(?!\n\s*\n).)+?\1", re.DOTALL),
    re.compile(r'"(?:(?!\n\s*\n)[^"])*"'),
    re.compile(r"\]\([^)]*\)|<https?:[^>]*>"),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^>.*$", re.MULTILINE),
)
"""Code blocks, code spans, quotations, targets of links, comments, quoted paragraphs."""


_TYPE_NAME = re.compile(r"_?(?=\w*[a-z])[A-Z][A-Za-z0-9]*")
"""Name of a type alias or a type variable, as pep8-naming requires it."""
_DIRECTIVE = re.compile(
    r"# *(?:noqa(?:: [A-Z0-9, ]*\d)?|type: ignore(?:\[[^]]*\])?|fmt: \w+|pragma: [\w ]+)"
)
"""Comments that other programs read; a reason may follow."""


def prose(text: str) -> str:
    """Return the text with blanks in place of all exempt parts; lines stay where they are."""
    for pattern in _EXEMPT:
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def source(place: str, text: str) -> Iterator[Passage]:
    """Yield every docstring of a module, those of attributes included, comment, message, and name."""
    nodes = list(ast.walk(ast.parse(text)))
    yield _code_comments(place, text, Kind.COMMENT)
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
            case ast.Name(ctx=ast.Store()) if _TYPE_NAME.fullmatch(node.id):
                yield Passage(Kind.TYPE, place, node.lineno, node.id)
            case ast.Call():
                yield from _event(place, node)


def source_of_test(place: str, text: str) -> Iterator[Passage]:
    """Yield every docstring, comment and bound name of a test module, and its own name, by words."""
    nodes = list(ast.walk(ast.parse(text)))
    yield _code_comments(place, text, Kind.TEST_COMMENT)
    yield from _docstrings(place, nodes, Kind.TEST_DOCSTRING)
    for line, name in [(0, Path(place).stem), *_names(nodes)]:
        words = re.sub("([a-z])([A-Z])", r"\1_\2", name).replace("_", " ")
        yield Passage(Kind.TEST_NAME, place, line, words)


def _code_comments(place: str, text: str, kind: Kind) -> Passage:
    """Return the comments of a module as one passage, without directives; other text is blank in it."""
    lines = [""] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = _DIRECTIVE.sub("#", token.string)
    return Passage(kind, place, 1, prose("\n".join(lines)))


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
    if (name := event_name(call)) and name not in EVENT_EXCEPTIONS:
        yield Passage(Kind.EVENT, place, call.lineno, name)
        for key in call.keywords:
            yield Passage(Kind.EVENT_VALUE, place, call.lineno, _rendered(key.value))


def event_name(call: ast.Call) -> str:
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
    """Yield every help text, and every other string of several words that is not a docstring.

    {} stands for a formatted value.
    """
    parts = set()  # of docstrings and of formatted strings; their nodes come first in a walk
    helps = set()
    for node in nodes:
        match node:
            case ast.keyword(arg="help" | "short_help", value=text_node):
                helps.add(text_node)
                continue
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
        if " " in text or node in helps:
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
    for group in yaml.load(text, yaml.CSafeLoader)["groups"]:
        for rule in group["rules"]:
            for annotation in ("summary", "description"):
                if found := rule.get("annotations", {}).get(annotation):
                    annotation_place = f"{place}: {rule['alert']}: {annotation}"
                    yield Passage(Kind.ALERT, annotation_place, 0, prose(found))


def comments(place: str, text: str) -> Iterator[Passage]:
    """Yield the comments of a file as one passage; other text is blank in it."""
    found = (re.search(r"(?:^|(?<=\s))#(?!!).*", line) for line in text.split("\n"))
    shown = "\n".join(match[0] if match else "" for match in found)
    yield Passage(Kind.COMMENT, place, 1, prose(shown))


_LANE = re.compile(r"(?<![a-z])lanes?(?![a-z])", re.IGNORECASE)
_ELECTRICAL = re.compile(r"PCIe|NVLink|transceiver|optic|ethtool|\blinks?\b|\bNIC\b", re.IGNORECASE)


def lanes(place: str, text: str) -> Iterator[Passage]:
    """Yield every `lane` of a file that does not mention electrical links."""
    for match in () if _ELECTRICAL.search(text) else _LANE.finditer(text):
        yield Passage(Kind.LANE, place, 1 + text.count("\n", 0, match.start()), match[0])


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
