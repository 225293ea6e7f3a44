"""Textfiles: each directory of tests/agent/textfiles, and what other programs and users do to the files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.clock import NS, ManualClock
from support.reading import readings
from support.textfiles import (
    TextfileDirectory,
    exact_value,
    page_of,
    states_of,
    values_of,
)

from railscope.catalog.textfile import DIRECTORY_STATES, TextfileState
from railscope.frame import Frame
from railscope.untrusted_text import parse_toml
from railscope_agent.host.textfiles import TextfileCalls
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sources.textfile_parser import (
    MAX_LINE_CHARACTERS,
    TextfileError,
    parse_textfile,
)

CASES = sorted(path for path in Path(__file__).with_name("textfiles").iterdir() if path.is_dir())
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
TENANT = 65534


@pytest.fixture
def files(tmp_path: Path) -> TextfileDirectory:
    return TextfileDirectory(tmp_path)


def directory_state(frame: Frame) -> str:
    state = readings(frame)["railscope_textfile_directory_state", ()]
    assert isinstance(state, int)
    return DIRECTORY_STATES[state]


@EACH_CASE
def test_every_file_of_a_case_has_the_expected_state(case: Path) -> None:
    expected = parse_toml((case / "states.toml").read_text())
    assert TextfileDirectory(case).states() == expected


@EACH_CASE
def test_the_page_of_a_case_is_as_expected(case: Path) -> None:
    assert TextfileDirectory(case).page() == (case / "expected.prom.txt").read_text()


@EACH_CASE
def test_promtool_accepts_the_page(case: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    page = page_of(TextfileDirectory(case).read())
    outcome = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert outcome.returncode != 1, outcome.stderr  # 3 means advice on names and help texts


floats = st.floats().map(repr)
integers = st.integers(-(1 << 63), (1 << 64) - 1).map(str)


names = st.from_regex(r"site_[a-z_:]{1,8}", fullmatch=True)
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True)
label_values = st.text(st.characters(codec="utf-8"), max_size=8).map(
    lambda text: "".join(c for c in text if c.isprintable() or c == "\n")
)
series = st.tuples(names, st.dictionaries(label_names, label_values, max_size=4))


def line(name: str, labels: dict[str, str], value: str) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    inner = ",".join(f'{label}="{text.translate(escapes)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {value}\n"


@given(st.lists(st.tuples(series, floats | integers), max_size=12))
def test_a_written_file_is_read_as_it_was_meant(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Any]
) -> None:
    meant = {}
    for (name, labels), value in entries:
        present = frozenset((label, text) for label, text in labels.items() if text)
        meant.setdefault((name, present), (labels, value))
    content = "".join(line(n, labels, v) for (n, _), (labels, v) in meant.items())
    directory = TextfileDirectory(tmp_path_factory.mktemp("textfiles"))
    directory.write({"a.prom": content})
    assert directory.states() == {"a.prom": "ok"}
    expected = {key: exact_value(value) for key, (_, value) in meant.items()}
    assert values_of(directory.page()) == expected


def count_or_problem(content: bytes) -> int:
    """Return the number of series of a content, -1 if it is rejected for a printable reason."""
    try:
        return sum(len(family.series) for family in parse_textfile(content, 10))
    except TextfileError as error:
        return -1 if error.state is not TextfileState.OK and str(error).isprintable() else 11


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_content_is_accepted_or_rejected(content: bytes) -> None:
    assert count_or_problem(content + b"\n") <= 10


fragments = st.sampled_from(
    ["a", "b_bucket", "b_sum", "b_count", "# TYPE b histogram", "# HELP b ", "# TYPE a counter", "{",
     "}", 'le="', "+Inf", '"', ",", "=", " ", "\n", "1", "\\", "# ", "quantile", "NaN", "__name__"]
)  # fmt: skip


@given(st.lists(fragments, max_size=40).map("".join))
def test_any_mixture_of_the_format_is_accepted_or_rejected(text: str) -> None:
    assert count_or_problem(text.encode() + b"\n") <= 10


def hostile() -> Iterator[tuple[str, str | bytes, str]]:
    yield (
        "a file of series",
        "".join(f"s{n} 1\n" for n in range(150_000))[: 1 << 20],
        "incomplete",
    )
    yield "too many series", "".join(f's{{n="{n}"}} 1\n' for n in range(1001)), "limit"
    yield "a large file", "s 1\n" + "#" * (1 << 20) + "\n", "too_large"
    yield "a long line", "s 1\n#" + "x" * MAX_LINE_CHARACTERS + "\n", "limit"
    yield "a long name", "s" * 3000 + " 1\n", "limit"
    yield "many labels", "s{" + ",".join(f'a{n}="{n}"' for n in range(500)) + "} 1\n", "limit"
    yield "backslashes", 's{a="' + "\\\\" * 4000 + '"} 1\n', "limit"
    yield "quotes", "s{" + '"' * 8000 + "} 1\n", "malformed"
    yield "long digits", "s 0." + "0" * 8000 + "1\n", "ok"
    yield "large exponent", "s 1e999999999999999999\n", "malformed"
    yield "nothing but line breaks", "\n" * (1 << 19), "ok"
    yield "zeros", b"\0" * 1000, "incomplete"


@pytest.mark.parametrize(
    ("content", "state"), [pytest.param(content, state, id=name) for name, content, state in hostile()]
)  # fmt: skip
def test_a_hostile_file_affects_no_other(
    files: TextfileDirectory, content: str | bytes, state: str
) -> None:
    files.write({"a.prom": content, "good.prom": "good 1\n"})
    assert files.states() == {"a.prom": state, "good.prom": "ok"}
    assert "good 1\n" in files.page()


def test_files_share_the_limits_of_size_and_series(tmp_path: Path) -> None:
    files = TextfileDirectory(tmp_path, max_series=3, max_total_bytes=30)
    files.write({"a.prom": "a 1\nb 1\n", "b.prom": "c 1\nd 1\n", "c.prom": "e 1\n"})
    assert files.states() == {"a.prom": "ok", "b.prom": "limit", "c.prom": "ok"}
    files.write({"a.prom": "#" * 25 + "\n", "b.prom": "a 1\nb 1\n"})
    assert files.states() == {"a.prom": "ok", "b.prom": "limit"}


def test_a_link_a_pipe_and_a_directory_are_not_read(
    files: TextfileDirectory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret.prom"
    elsewhere.write_text("secret 1\n")
    files.write({"good.prom": "good 1\n"})
    (files.directory / "link.prom").symlink_to(elsewhere)
    (files.directory / "dangling.prom").symlink_to("nothing")
    (files.directory / "directory.prom").mkdir()
    os.mkfifo(files.directory / "pipe.prom")
    rejected = dict.fromkeys(("link", "dangling", "directory", "pipe"), "not_regular")
    expected = {f"{name}.prom": state for name, state in rejected.items()} | {"good.prom": "ok"}
    assert files.states() == expected
    assert "secret" not in files.page()


def test_a_directory_that_others_can_write_to_is_reported(files: TextfileDirectory) -> None:
    files.write({"a.prom": "a 1\n"})
    assert directory_state(files.read()) == "ok"
    files.directory.chmod(0o1777)
    outcome = files.run()
    assert outcome.frame
    assert directory_state(outcome.frame) == "writable_by_others"
    assert ProbeVerdict.BROKEN in {finding.verdict for finding in outcome.findings}
    assert files.states() == {"a.prom": "ok"}


class OtherWriter:
    """Reads a file and has another program change it meanwhile."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._change = change
        self.reads = 0

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self.reads += 1
        content = os.pread(descriptor, size, offset)
        if self.reads == 1:
            self._change()
        return content


@pytest.mark.parametrize(
    ("text", "state"), [("a 12\n", "incomplete"), ("", "incomplete"), ("a 1\n" * 9, "too_large")]
)
def test_a_file_that_is_written_while_it_is_read_is_incomplete(
    tmp_path: Path, text: str, state: str
) -> None:
    file = tmp_path / "a.prom"
    file.write_text("a 1\n")
    os.utime(file, ns=(0, 0))
    writer = OtherWriter(lambda: file.write_text(text))
    calls = TextfileCalls(str, ManualClock(), writer.pread)
    answer = calls.call("read", str(tmp_path), "a.prom", 20, 0)
    assert TextfileState(answer[0]).label == state
    assert answer[3] == ""


def test_a_file_that_is_not_written_again_becomes_too_old(tmp_path: Path) -> None:
    files = TextfileDirectory(tmp_path, max_age_seconds=60)
    files.write({"a.prom": "a 1\n"})
    wall_ns = files.clock.now().wall_ns
    for age_seconds, state in ((60, "ok"), (61, "too_old"), (-3600, "ok")):
        os.utime(tmp_path / "a.prom", ns=(0, wall_ns - age_seconds * NS))
        frame = files.read()
        assert states_of(readings(frame)) == {"a.prom": state}
        assert ("a 1\n" in page_of(frame)) == (state == "ok")
        modified = readings(frame)["railscope_textfile_modified_timestamp_seconds", ("a.prom",)]
        assert modified == wall_ns - age_seconds * NS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@given(st.lists(fragments, max_size=40).map("".join) | st.sampled_from(["root", "root_sum", "x"]))
def test_no_content_of_a_file_of_another_user_removes_a_series_of_root(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    directory = TextfileDirectory(tmp_path_factory.mktemp("textfiles"), max_series=6)
    stated = '# TYPE b summary\nb_sum 1\nb_count 2\n# TYPE a gauge\na{le="1"} 1.50\nroot 1\n'
    tenant = f'{content}\nx 1\n# TYPE root gauge\nroot 2\na{{le="1"}} 3\n'
    directory.write({"0.prom": tenant, "root.prom": stated, "1.prom": content + "\n"})
    for name in ("0.prom", "1.prom"):
        os.chown(directory.directory / name, TENANT, TENANT)
    assert directory.states()["root.prom"] == "ok"
    assert values_of(stated).items() <= values_of(directory.page()).items()


def test_a_problem_does_not_quote_the_file(files: TextfileDirectory) -> None:
    files.write({"a.prom": "root:secret:19000:0:99999:7:::\n"})
    (event,) = files.read().events
    assert "secret" not in str(event.facts)
