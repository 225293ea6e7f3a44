"""Check of wording: a short list of words that docs/glossary.md replaces, and the form of commit subjects.

Read are documents, alert rules, and the docstrings, comments and names of the product. Code spans, code
blocks, quotations and targets of links are exempt.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("agent", "bench", "collector", "dashboards", "docs", "railscope", "simulator")
DOCUMENTS = ("*.md", "docs/**/*.md", "bench/*.md", "alerts/runbooks/*.md", "alerts/rules/*.yml")
COMMITS_SINCE = "ff381e0c51cbfe35bca6e77421ee89e3394a0d72"
"""Commit after which every subject is checked."""

WORDS = {
    r"tells?|told|telling": "report, state, contain",
    r"says?|said|saying": "state, report, contain",
    r"whoever|nobody|somebody|whom": "the name of the component",
    r"folders?": "directory",
    r"anew|for ever|for good|lately": "again, permanently, recently",
    r"mend(?:s|ed|ing)?": "fix",
    r"rogue|stray": "unclaimed",
}
NAMES = {
    r"_?most_(?!common\b|expensive\b)\w+|_?least_\w+": "max_, min_",
    r"\w*folder(?!Uid)\w*": "directory",
}
EXEMPT = re.compile(
    r"^ *(?P<fence>```+)[^\n]*\n.*?^ *(?P=fence)`*$|(?P<span>`+)(?:(?!\n\s*\n).)+?(?P=span)"
    r'|"(?:(?!\n\s*\n)[^"])*"|\]\([^)]*\)|<https?:[^>]*>|^>[^\n]*$',
    re.DOTALL | re.MULTILINE,
)


def problems(place: str, first_line: int, text: str) -> Iterator[str]:
    """Yield a line for each word to replace in a text, with its place."""
    prose = EXEMPT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for words, remedy in WORDS.items():
        for match in re.finditer(rf"\b(?:{words})\b", prose, re.IGNORECASE):
            line = first_line + prose.count("\n", 0, match.start())
            yield f"{place}:{line}: {match[0]!r}: write {remedy}"


def source_problems(place: str, text: str) -> Iterator[str]:
    """Yield the problems of a module: in its docstrings, its comments and the names that it binds."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from problems(place, token.start[0], token.string)
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield from problems(place, node.lineno, docstring)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield from _name_problems(f"{place}:{node.lineno}", name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield from _name_problems(f"{place}:{node.lineno}", name)


def _name_problems(place: str, name: str) -> Iterator[str]:
    for pattern, remedy in NAMES.items():
        if re.fullmatch(pattern, name, re.IGNORECASE):
            yield f"{place}: {name!r}: write {remedy}"


def subject_problems(commit: str, subject: str) -> Iterator[str]:
    """Yield the problems of a commit subject: expected `area: change` of at most 72 characters."""
    if len(subject) > 72:  # noqa: PLR2004 - what tools show of a subject without cutting it
        yield f"{commit}: {len(subject)} characters: {subject!r}: expected at most 72"
    if not re.match(r"[a-z][\w,./ -]*: \S", subject):
        yield f"{commit}: {subject!r}: expected `area: change`"


def main() -> int:
    """Print every problem of the repository; return 1 if there is one."""
    found: list[str] = []
    documents = {path for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    modules = {path for name in PRODUCT for path in (ROOT / name).rglob("*.py")} - {Path(__file__)}
    for path in sorted(documents | modules):
        place, text = str(path.relative_to(ROOT)), path.read_text()
        found += problems(place, 1, text) if path in documents else source_problems(place, text)
    # A source archive has no history, and a shallow clone lacks the first commit: subjects are not checked there.
    log = ["git", "-C", str(ROOT), "log", "--format=%h%x09%s", f"{COMMITS_SINCE}..HEAD"]
    done = subprocess.run(log, capture_output=True, text=True, check=False)  # noqa: S603 - git itself
    for commit, _, subject in (line.partition("\t") for line in done.stdout.splitlines()):
        found += subject_problems(commit, subject)
    sys.stdout.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
