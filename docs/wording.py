"""Check of wording: plain technical English in the terms of docs/glossary.md.

A reader yields the passages of one kind of text (docstrings, names, documents, commit subjects), and each
row of RULES has the kinds that it applies to. A further check is a row, or a reader with a kind of its own.
Code spans, code blocks and quotations are exempt.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "collector", "railscope", "simulator", "bench", "dashboards")
DOCUMENTS = ("README.md", "CHANGELOG.md", "docs/**/*.md", "bench/*.md", "alerts/runbooks/*.md")
COMMITS_SINCE = "ff381e0c51cbfe35bca6e77421ee89e3394a0d72"
"""Commit after which every subject is checked."""


class Kind(StrEnum):
    """Kind of a passage."""

    DOCSTRING = "docstring"
    MESSAGE = "message"
    NAME = "name"
    MODULE = "module name"
    DOCUMENT = "document"
    COMMIT = "commit subject"
    MERGE = "merge commit"


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


PROSE = frozenset({Kind.DOCSTRING, Kind.MESSAGE, Kind.DOCUMENT, Kind.COMMIT})
DOCUMENT = frozenset({Kind.DOCUMENT})
READER = frozenset({Kind.MESSAGE, Kind.DOCUMENT})
NAME = frozenset({Kind.NAME})


def _word_rule(pattern: str, remedy: str, kinds: frozenset[Kind] = PROSE) -> Rule:
    whole = re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)
    return Rule(kinds, whole, f"contains {{found!r}}: write {remedy}")


def _form(kind: Kind, pattern: str, problem: str) -> Rule:
    return Rule(frozenset({kind}), re.compile(pattern), problem)


_PARTICIPLES = (
    "begun|born|bought|broken|brought|built|caught|chosen|done|drawn|driven|fallen|fed|felt|forgotten|"
    "forbidden|found|frozen|given|gone|grown|heard|held|hidden|hung|kept|known|left|lost|made|met|"
    "owed|paid|seen|sent|shown|sold|spent|spoken|stolen|taken|taught|thrown|tied|told|understood|"
    "used|won|worn|written|agreed|freed|guaranteed"
)
"""Participles that the ending alone does not show; `read` or `cut` are nouns too."""
_NOT_PARTICIPLES = "embed|hundred|infrared|sacred|shred|testbed"
"""Further words in -ed, beside those in -eed such as `speed`."""

RULES: tuple[Rule, ...] = (
    _form(
        Kind.DOCSTRING,
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
    _word_rule("custody", "witness", DOCUMENT),
    _word_rule("cards?", "NIC", DOCUMENT),
    _word_rule(r"silent (?:nodes?|GPUs?)|(?:nodes?|GPUs?) (?:is|are) silent", "stale", DOCUMENT),
    _word_rule(r"(?:agent|collector)'s page", "metrics endpoint", DOCUMENT),
    _word_rule(r"(?!(?:is|as|has|was)\b)\w+s a second", "per second", DOCUMENT),
    _word_rule("belongs? into", "belong in", READER),
    _word_rule(r"leaves? with \d", "exit status", READER),
    Rule(NAME, re.compile(r"^_?(?:most|least)_(?!common\b)\w*", re.IGNORECASE),
         "{found!r}: write max_, min_"),
    Rule(NAME, re.compile(r"^(?!folderUid$)\w*folder\w*", re.IGNORECASE),
         "{found!r}: write directory"),
    _form(
        Kind.MODULE,
        rf"(?:\A|_)(?:{_PARTICIPLES}|(?!(?:{_NOT_PARTICIPLES})\Z)[a-z]{{2,}}(?<!e)ed)\Z",
        "ends in the participle {found!r}: name the thing that the module contains",
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
    tree = ast.parse(text)
    yield from _messages(place, tree)
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield Passage(Kind.DOCSTRING, place, node.lineno, prose(docstring))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Passage(Kind.NAME, place, node.lineno, node.name)
            case ast.arg():
                yield Passage(Kind.NAME, place, node.lineno, node.arg)
            case ast.Name(ctx=ast.Store()):
                yield Passage(Kind.NAME, place, node.lineno, node.id)


def _messages(place: str, tree: ast.Module) -> Iterator[Passage]:
    """Yield every string of several words that is not a docstring; {} stands for a formatted value."""
    parts = set()  # of docstrings and of formatted strings; their nodes come first in a walk
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as docstring):
                parts.add(docstring)
                continue
            case ast.JoinedStr():
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}"
                    for part in node.values
                )
                parts |= {part for part in ast.walk(node) if isinstance(part, ast.Constant)}
            case ast.Constant(value=str(text)) if node not in parts:
                pass
            case _:
                continue
        if " " in text:
            yield Passage(Kind.MESSAGE, place, node.lineno, " ".join(prose(text).split()))


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
    """Yield the subject of every commit after `since`; nothing where the history lacks that commit."""
    git = shutil.which("git")
    if git is None or _git(git, root, "cat-file", "-e", f"{since}^{{commit}}") is None:
        return
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


def every_passage(root: Path) -> Iterator[Passage]:
    """Yield every passage of the repository."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            place = path.relative_to(root)
            yield module(place)
            yield from source(str(place), path.read_text())
    for pattern in DOCUMENTS:
        for path in sorted(root.glob(pattern)):
            yield from document(str(path.relative_to(root)), path.read_text())
    yield from commits(root, COMMITS_SINCE)


def main() -> int:
    """Print every problem; return 1 if there is one."""
    found = list(problems(every_passage(ROOT)))
    for problem in found:
        click.echo(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
