"""Check of wording: plain technical English in the terms of docs/glossary.md.

The readers of `passages.py` yield the passages of each kind of text, and each row of RULES has the kinds that
it applies to. A further check is a row, or a reader with a kind of its own.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from passages import (
    EVENT_EXCEPTIONS,
    HistoryError,
    Kind,
    Passage,
    alerts,
    comments,
    commits,
    document,
    event_name,
    lanes,
    module,
    source,
    source_of_test,
)

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "collector", "railscope", "simulator", "bench", "dashboards", "docs")
DOCUMENTS = ("*.md", "docs/**/*.md", "bench/*.md", "alerts/runbooks/*.md")
SAMPLES = ("deploy/**/*", "alerts/rules/*.yml", "alerts/*.yml", "Makefile", "pyproject.toml")
"""Further files whose comments are checked."""
ALERTS = ("alerts/rules/*.yml",)
TESTS = ("tests/**/*.py",)
COMMITS_SINCE = "ff381e0c51cbfe35bca6e77421ee89e3394a0d72"
"""Commit after which every subject is checked."""


@dataclass(frozen=True)
class Rule:
    """Pattern that is an error in some kinds of text; `problem` may refer to the match as {found}."""

    kinds: frozenset[Kind]
    pattern: re.Pattern[str]
    problem: str


DOCUMENT = frozenset({Kind.DOCUMENT, Kind.ALERT, Kind.COMMENT})
READER = DOCUMENT | {Kind.MESSAGE}
TEST_PROSE = frozenset({Kind.TEST_DOCSTRING, Kind.TEST_COMMENT})
TEST = TEST_PROSE | {Kind.TEST_NAME}
PRODUCT = frozenset({Kind.DOCSTRING, Kind.MESSAGE})
SENTENCES = READER | PRODUCT | TEST_PROSE
PROSE = SENTENCES | {Kind.TEST_NAME, Kind.COMMIT}
CODE = PRODUCT | TEST_PROSE | {Kind.COMMENT}
"""Kinds without documents, in which sentences also address people: `ask the owner`."""
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
_NOUNLESS = (
    "one|known|own|where|what|which|kept|held|seen|others|mine|ours|theirs|given|told|said|those|"
    "most|least|holds|wanted|struck|strikes|unheard|silent|witnessed"
)
"""Words that as a whole name state no kind of value."""
_GENERIC = "Place|Look|Word|Door|Office|Part|Trouble|Side|Whole"
"""Nouns that as a whole name of a type state no kind, singular or plural."""
_UNITS = "[num]?s|seconds?|minutes?|hours?|bytes?|[kKMG]?i?B|%|m?W|[kMG]?Hz"

_PROPER_NOUNS = "Kubernetes|Linux|Prometheus|Slurm"
"""Names that an error message may start with, beside those with a second capital letter or a digit."""

_PEOPLE = "anyone|everyone|(?:people|person|operator|administrator|tenant|user|auditor|attacker|intruder)s?"
_WHO = rf"(?:\A\s*|[|*(:]\s*|(?<!\w)(?!(?:{_PEOPLE})\b)\w+\W*\s)who\b"
"""`who` anywhere but after a noun for people."""
_LITERARY = (
    "afresh|amid|aught|henceforth|hitherto|lest|naught|thereby|thereof|thereupon|whilst|yonder"
)

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
    _word_rule("whose word|by (?:the|its|their) word", "authority, reported by"),
    _word_rule(_LITERARY, "plain words", SENTENCES),
    _word_rule(
        r"(?<!there )(?:is|are|was|were) no (?!longer|more)\w+", "what it is", SENTENCES | TEST
    ),
    _word_rule("mend(?:s|ed|ing)?", "fix", SENTENCES),
    _word_rule("dear(?:er|est)?", "expensive", SENTENCES),
    _word_rule("hears?|heard|hearing", "receive, report", SENTENCES),
    _word_rule("speaks?|spoken?|speaking", "implement, report", SENTENCES),
    _word_rule("knows?|knew|knowing", "contain, store, recognize", SENTENCES | TEST),
    _word_rule("believes?|believed|thinks?|wants?|wanted", "the condition", CODE),
    _word_rule("asks?|asked|asking", "request, query, read", CODE),
    _word_rule(r"look(?:s|ed|ing)?(?!-| (?:\w+ )?up\b)", "poll, read, search", CODE),
    _word_rule(r"comes? (?:of|again)|came (?:of|again)", "result, is received again", SENTENCES),
    _word_rule("tak(?:es?|en|ing) in|took in|g[ai]v(?:es?|en|ing) up|let(?:s|ting)? go|held against",
               "accept, drop, release, compare with", SENTENCES),
    Rule(SENTENCES, re.compile(_WHO, re.IGNORECASE), "contains {found!r}: write the name of the component"),
    _word_rule("refus(?:e|es|ed|ing|als?)", "reject", SENTENCES - {Kind.MESSAGE}),
    _word_rule("settl(?:e|es|ed|ing)", "finalize", DOCUMENT),
    _word_rule("rogue|stray", "unclaimed", READER),
    _word_rule("custody", "witness", DOCUMENT | PRODUCT),
    _word_rule("cards?", "NIC", DOCUMENT),
    _word_rule(
        r"silent (?:nodes?|GPUs?)|(?:nodes?|GPUs?) (?:is|are) silent", "stale", DOCUMENT | PRODUCT
    ),
    _word_rule("put(?:s|ting)? aside", "rename to", PRODUCT),
    _word_rule(r"(?:agent|collector)'s page", "metrics endpoint", DOCUMENT),
    _word_rule(r"(?!(?:is|as|has|was|takes|begins)\b)\w+s a second", "per second", SENTENCES),
    _word_rule("belongs? into", "belong in", SENTENCES),
    _word_rule(r"leaves? with \d", "exit status", SENTENCES),
    Rule(NAME, re.compile(r"^_?(?:most|least)_(?!common\b|expensive\b)\w*", re.IGNORECASE),
         "{found!r}: write max_, min_"),
    Rule(NAME, re.compile(r"^(?!folderUid$)\w*folder\w*", re.IGNORECASE),
         "{found!r}: write directory"),
    Rule(NAME, re.compile(r"^_?(?:\w*instants?_ns|instants?)\Z"), "{found!r}: write timestamp_ns"),
    Rule(NAME, re.compile(rf"^_?(?:{_NOUNLESS})\Z", re.IGNORECASE), "{found!r} states no kind: name kind and domain"),
    Rule(NAME, re.compile(r"^_?believed(?:_ns)?\Z|^_?silence_ns\Z"), "{found!r}: write trusted_ns, gap_ns"),
    _form(
        Kind.MODULE,
        rf"(?:\A|_){_PARTICIPLE}",
        "ends in the participle {found!r}: name the thing that the module contains",
    ),
    _form(
        (Kind.CLASS, Kind.TYPE),
        rf"\A_?(?:(?:{_GENERIC})s?|(?=[A-Z][a-z]+\Z)(?i:{_PARTICIPLE}))\Z",
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
    _form(Kind.LANE, ".+", "contains {found!r}: write rail"),
    _form(Kind.COMMIT, r"^.{73,}", "has more than 72 characters: {found!r}"),
    _form(Kind.COMMIT, r"^(?![a-z][\w,./ -]*: \S).*", "{found!r}: expected `area: change`"),
    _form(Kind.MERGE, r"^.*", "{found!r}: expected a linear history"),
)  # fmt: skip
"""Names of other programs are excluded from the rules on names, such as `folderUid` of Grafana."""


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
            if isinstance(node, ast.Call) and (event := event_name(node)):
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
        place, text = path.relative_to(root), path.read_text()
        yield module(place)
        yield from source(str(place), text)
        yield from lanes(str(place), text)
    readers = (
        (DOCUMENTS, document),
        (SAMPLES, comments),
        (ALERTS, alerts),
        (TESTS, source_of_test),
    )
    for patterns, read in readers:
        for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
            if path.is_file() and path.suffix != ".pyc":
                name, text = str(path.relative_to(root)), path.read_text()
                yield from read(name, text)
                yield from lanes(name, text)


def product_modules(root: Path) -> Iterator[Path]:
    """Yield every module of the product except this one, which lists the words to avoid."""
    for package in PACKAGES:
        yield from sorted(
            p for p in (root / package).rglob("*.py") if p.name != Path(__file__).name
        )


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
