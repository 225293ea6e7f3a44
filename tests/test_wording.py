"""The check of wording finds each violation, and nothing in plain text."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import wording
from passages import alerts, comments, commits, document, lanes, module, source, source_of_test
from wording import key_sets, problems

BAD = {
    '"""What a read returned."""': "starts with 'What'",
    '"""Result that is told once."""': "'told'",
    '"""Reason, as the driver says."""': "'says'",
    '"""Value that nobody reads."""': "'nobody'",
    'x = 1\n"""Folder of the spool."""': "'Folder'",
    "most_bytes = 1": "'most_bytes'",
    "def f(folder): ...": "'folder'",
    "class Spool:\n    def of(self): ...": "'of' is a preposition",
    "def at(x): ...": "'at' is a preposition",
    "MOST_EVENTS = 1": "'MOST_EVENTS'",
    "for one in claims: ...": "'one' states no kind",
    "def f(known): ...": "'known' states no kind",
    "_KNOWN = 1": "'_KNOWN' states no kind",
    "def f(most): ...": "'most' states no kind",
    "class Entry:\n    holds: str": "'holds' states no kind",
    "STRUCK = 3": "'STRUCK' states no kind",
    "silence_ns = 1": "'silence_ns': write trusted_ns, gap_ns",
    'x = f"line {n}: {word!r} is no number"': "'is no number'",
    'x = ("the names " "are no words")': "'are no words'",
    'f(help=f"as the driver {x} tells")': "'tells'",
    'x = f"mend {y:{width + 1}}"': "'mend'",
    'x = {"problem": "nobody reads it"}': "'nobody'",
    '"""Report of a silent node."""': "'silent node'",
    'x = "in the custody of the log"': "'custody'",
    '"""Segment that was put aside."""': "'put aside'",
    '"""Time of a look at the pods."""': "'look'",
    'x = "kept for ever"': "'for ever'",
    '"""Start anew."""': "'anew'",
    "class Grown: ...": "class name 'Grown' states no kind",
    "class _Bounded: ...": "class name '_Bounded' states no kind",
    "class _Place: ...": "'_Place'",
    "Place = int": "type name 'Place' states no kind",
    'Ranked = TypeVar("Ranked")': "type name 'Ranked' states no kind",
    "_Parts: TypeAlias = list[int]": "'_Parts'",
    'message = f"Unknown claim: {name}"': "error message starts with 'Unknown'",
    'raise ValueError("A claim exists")': "starts with 'A'",
    'raise ClaimError(f"{name}: no claim.")': "ends with a full stop",
    'message = ("invalid time: " "expected RFC 3339.")': "ends with a full stop",
    "x = 1  # as the driver says": "comment contains 'says'",
    "# The card is\n# held up.\nx = 1": "'card'",
    "x = f(  # noqa: S603 - nobody else reads it\n    1)": "'nobody'",
    "x = 1  # type: ignore[arg-type] - is no frame": "'is no frame'",
    "x = 1  # lest it grows": "'lest'",
    'f(help="Tell")': "message contains 'Tell'",
    'f(short_help="Folder")': "'Folder'",
    '"""Report of an agent who runs."""': "'agent who'",
    '"""Value that the source knows."""': "'knows'",
    '"""State that was asked for."""': "'asked'",
    '"""File that is looked at."""': "'looked'",
    '"""Condition that the check believes."""': "'believes'",
    '"""Result of a call that comes again."""': "'comes again'",
    '"""Frame that is taken in."""': "'taken in'",
    '"""Server that speaks HTTP."""': "'speaks'",
    '"""File that is refused."""': "'refused'",
    '"""Time that is no value."""': "'is no value'",
}


@pytest.mark.parametrize("text", BAD)
def test_a_broken_rule_is_named_with_its_place(text: str) -> None:
    found = list(problems(source("agent/x.py", text)))
    assert len(found) == 1
    assert found[0].startswith("agent/x.py:")
    assert BAD[text] in found[0]


@pytest.mark.parametrize(
    "text",
    [
        '"""Return the module `told`, or "says" as it is quoted."""',
        'x = "told"',
        'x = "the key `told` is missing"',
        'x = "it is no longer held"',
        'x = "there is no GPU"',
        'x = f"there are no {kind} devices"',
        "found = counts.most_common(1)",
        "almost_full = max_bytes = 1",
        "folderUid = 1",
        "def at_end(): ...",
        "at = 1",
        '"""Result of a look-up."""',
        "class PlaceOfRecord: ...",
        "FileKey = str | int",
        "_KNOWN_STARTS = 1",
        'message = "GPU 3: expected a UUID"',
        'message = "Slurm: missing job ID"',
        'message = "Ed25519: invalid key"',
        'raise ValueError(f"{name}: expected at most ...")',
        'x = "Panel of a dashboard."',
        "x = '#'  # noqa: S603 - one of two",
        'x = "tell"',
        'f(help="Listen")',
        '"""The operator who runs the command, and users who read."""',
        '"""Value to look up, that was looked up."""',
        '"""Anyone\n    who can read it."""',
        '"""Connection that takes a second."""',
    ],
)
def test_plain_text_has_no_problem(text: str) -> None:
    assert list(problems(source("agent/x.py", text))) == []


@pytest.mark.parametrize(
    "name", ["told", "kept", "rated", "known", "days_kept", "claims_imported", "used", "_written"]
)
def test_a_module_is_not_named_by_a_participle(name: str) -> None:
    for path in (Path("agent") / f"{name}.py", Path("agent") / name / "__init__.py"):
        (found,) = problems([module(path)])
        assert found.startswith(f"{path}: module name ends in the participle")


@pytest.mark.parametrize(
    "name",
    ["__init__", "__main__", "speed", "feed", "kept_days", "imported_lists", "token", "screen", "embed",
     "read", "metering", "test_bed", "red", "children", "data_need", "infrared"],
)  # fmt: skip
def test_other_names_of_a_module_have_no_problem(name: str) -> None:
    assert list(problems([module(Path("agent") / f"{name}.py")])) == []


def test_a_document_is_checked_with_lines_and_without_code_and_quotations() -> None:
    text = """\
# Title

The agent reports `told` and "what it says", also "a quotation that
says more than one line", and [a link](told/says.md).

```sh
echo told
```

> A quotation says so.

| a | the collector tells |
|---|---|
| `b
c` | 5 reads a second |
"""
    assert list(problems(document("docs/x.md", text))) == [
        "docs/x.md:12: document contains 'tells': write report, state, contain, distinguish",
        "docs/x.md:15: document contains 'reads a second': write per second",
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "A share is no whole GPU.",
        "The fix is to mend the file.",
        "The dearest source is read half as often.",
        "A file that is refused changes nothing.",
        "The day is settled.",
        "Network cards of a silent node.",
        "See the agent's page.",
        "The command leaves with 1.",
    ],
)
def test_a_document_has_no_term_of_the_old_dialect(sentence: str) -> None:
    assert list(problems(document("docs/x.md", f"{sentence}\n"))) != []


@pytest.mark.parametrize(
    "sentence", ["There is no GPU.", "It is no longer held.", "PCIe lanes", "a second node"]
)
def test_plain_sentences_have_no_problem(sentence: str) -> None:
    assert list(problems(document("docs/x.md", f"{sentence}\n"))) == []


def test_of_a_changelog_only_unreleased_changes_are_checked() -> None:
    text = "# Changes\n\n## [Unreleased]\n\n- Told.\n\n## [0.1.0]\n\n- Said.\n"
    (found,) = problems(document("CHANGELOG.md", text))
    assert found.startswith("CHANGELOG.md:5: document contains 'Told'")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ('log.info("read", url=url)', "log event 'read': expected a noun and a past participle"),
        ('log.error("collector_away", url=url)', "'collector_away'"),
        ('log.info("FileRead_closed")', "'FileRead_closed'"),
        ('log.warning("file closed", file=file)', "'file closed'"),
        ("log.info(name, file=file)", "'{name}'"),
        ('log.info("call_closed", wait=f"{seconds:.1f} s")', "contains the unit '{} s'"),
        ('log.info("file_closed", size="12 MiB")', "contains the unit '12 MiB'"),
    ],
)
def test_a_log_event_is_a_noun_and_a_participle_with_numbers(call: str, problem: str) -> None:
    (found,) = problems(source("agent/x.py", call))
    assert found.startswith("agent/x.py:1: ")
    assert problem in found


@pytest.mark.parametrize(
    "call",
    [
        'log.info("file_closed", file=file, size_bytes=size)',
        'log.error("claims_write_failed", problem=f"{path}: 12 entries", address=f"{host}:{port}")',
        'log.warning(f"{kind}_file_rejected", advice="free 2 s before the end of the disk")',
        'gauge.info("read", 1)',
    ],
)
def test_a_log_event_in_the_right_form_has_no_problem(call: str) -> None:
    assert list(problems(source("agent/x.py", call))) == []


def test_a_log_event_has_one_set_of_keys() -> None:
    first = 'log.info("file_read", file=file, lines=lines)\n'
    second = 'log.info("file_read", lines=lines, file=path)\n'
    assert list(key_sets({"a.py": first, "b.py": second})) == []
    (found,) = key_sets({"a.py": first, "b.py": '\nlog.warning("file_read", file=file)'})
    assert "a.py:1 (file, lines); b.py:2 (file): expected one" in found
    (found,) = key_sets({"a.py": 'log.info("file_read", **facts)'})
    assert found.startswith("a.py:1: log event 'file_read': expected each key in the call")


def test_summary_and_description_of_an_alert_are_checked() -> None:
    rule = """\
groups:
- rules:
  - record: node:told
    expr: told
  - alert: NodeStale
    expr: told
    annotations: {summary: %s, description: %s, runbook_url: told}
"""
    assert list(problems(alerts("a.yml", rule % ("A stale node.", "No frame.")))) == []
    first, second = problems(alerts("a.yml", rule % ("A silent node.", "The agent tells it.")))
    assert first.startswith("a.yml: NodeStale: summary: alert contains 'silent node'")
    assert second.startswith("a.yml: NodeStale: description: alert contains 'tells'")


def test_only_comments_of_a_sample_file_are_checked() -> None:
    text = "#!/bin/said\ntold = 1\n# Limits of `told`.\n  # The file says it.\n"
    (found,) = problems(comments("deploy/x.toml", text))
    assert found.startswith("deploy/x.toml:4: comment contains 'says'")
    (found,) = problems(comments("deploy/x.toml", 'url = "x#told"\nperiod = 1  # tells\n'))
    assert found.startswith("deploy/x.toml:2: comment contains 'tells'")


def test_the_pronoun_of_people_follows_a_noun_for_people() -> None:
    plain = "The tenant who pays, an auditor\nwho reads, people who run it and anyone who can.\n"
    assert list(problems(document("docs/x.md", plain))) == []
    for text in ("A proxy who reads.", "| Who pays? |", "Reads, and who does?", "Who reads?"):
        (found,) = problems(document("docs/x.md", text))
        assert "write the name of the component" in found


def test_lane_is_electrical() -> None:
    assert list(problems(lanes("x.py", "LANES = 2  # of a PCIe link"))) == []
    assert list(problems(lanes("x.py", "plane = planes = 1"))) == []
    for text in ("LANES = 2", "nic_lane = 1", '"""Node of a lane."""'):
        (found,) = problems(lanes("x.py", f"\n{text}"))
        assert found.startswith("x.py:2: file without electrical links contains")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"""What it does."""', "docstring of a test starts with 'What'"),
        ('def test_x():\n    """The NIC says so."""', "docstring of a test contains 'says'"),
        ("def test_a_word_is_read(): ...", "name in a test contains 'word'"),
        ("class ToldWords: ...", "'Words'"),
        ("x = 1  # as it says", "comment in a test contains 'says'"),
        ("x = 1  # noqa: SLF001 - a word of it", "'word'"),
        ("looks = 1", "'looks'"),
        ("def test_a_gpu_is_no_nic(): ...", "'is no nic'"),
        ("def test_a_node_knows_it(): ...", "'knows'"),
        ("self.cards = 1", "'cards'"),
        ("def f(who): ...", "'who'"),
    ],
)
def test_docstrings_and_names_of_tests_are_checked(text: str, problem: str) -> None:
    assert problem in "\n".join(problems(source_of_test("tests/test_x.py", text)))
    assert list(problems(source_of_test("tests/test_told.py", ""))) != []


def test_plain_names_of_tests_have_no_problem() -> None:
    text = 'def test_keyword_of_a_dashboard(password):\n    """Report of `told`."""\n    whole = x.word'
    assert list(problems(source_of_test("tests/test_x.py", text))) == []


Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """A repository with one commit; the settings of the user are not read."""
    roles, keys = ("AUTHOR", "COMMITTER"), ("NAME", "EMAIL")
    person = {f"GIT_{role}_{key}": "a@example" for role in roles for key in keys}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def run(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(tmp_path), *arguments],
            env=os.environ | person | alone,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    run("init", "--initial-branch", "main")
    run("commit", "--allow-empty", "-m", "Anything goes before the first checked commit")
    return run


def test_a_commit_subject_has_an_area_72_characters_and_plain_text(
    git: Git, tmp_path: Path
) -> None:
    since = git("rev-parse", "HEAD")
    longest = "agent: " + "x" * 65
    for subject in ("agent, docs: read a file", longest):
        git("commit", "--allow-empty", "-m", subject, "-m", "A body says anything.")
    assert list(problems(commits(tmp_path, since))) == []
    for subject in ("Read a file", longest + "x", "agent: report what is told"):
        git("commit", "--allow-empty", "-m", subject)
    dialect, length, area = problems(commits(tmp_path, since))
    assert "contains 'told'" in dialect
    assert "more than 72 characters" in length
    assert "expected `area: change`" in area
    assert area.startswith(git("rev-parse", "--short", "HEAD~2"))


def test_a_merge_commit_is_an_error(git: Git, tmp_path: Path) -> None:
    since = git("rev-parse", "HEAD")
    git("checkout", "-b", "side")
    git("commit", "--allow-empty", "-m", "agent: side")
    git("checkout", "main")
    git("merge", "--no-ff", "-m", "agent: merge the side", "side")
    (found,) = problems(commits(tmp_path, since))
    assert "merge commit 'agent: merge the side': expected a linear history" in found


def test_an_unknown_first_commit_is_an_error(git: Git, tmp_path: Path) -> None:
    git("commit", "--allow-empty", "-m", "Read a file")
    (found,), notes = wording.check(tmp_path, "0" * 40)
    assert found.startswith("commit subjects were not checked: unknown range: no commit 000")
    assert notes == []


def test_a_shallow_clone_is_not_an_error(git: Git, tmp_path: Path) -> None:
    since = git("rev-parse", "HEAD")
    git("commit", "--allow-empty", "-m", "agent: read a file")
    clone = tmp_path / "clone"
    git("clone", "--depth", "1", f"file://{tmp_path}", str(clone))
    assert wording.check(tmp_path, since) == ([], [])
    found, (note,) = wording.check(clone, since)
    assert found == []
    assert note.startswith("commit subjects were not checked: shallow clone: no commit")


def test_files_without_a_repository_are_checked_without_commits(tmp_path: Path) -> None:
    found, (note,) = wording.check(tmp_path, "0" * 40)
    assert found == []
    assert note == "commit subjects were not checked: no Git repository"


def test_compiled_modules_are_not_read(tmp_path: Path) -> None:
    compiled = tmp_path / "deploy/packages/__pycache__/build.cpython-311.pyc"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"\xa7\r\r\n")
    assert list(wording.every_passage(tmp_path)) == []
