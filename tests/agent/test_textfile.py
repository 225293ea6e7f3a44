"""Textfiles: each directory of tests/agent/textfiles, and what other programs and users do to the files."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.clock import NS, ManualClock
from support.machine import FakeHost
from support.reading import ORIGIN, read_once, readings
from support.textfiles import (
    TextfileDirectory,
    exact_value,
    own_series,
    page_of,
    states_of,
    values_of,
)

from railscope.catalog.textfile import DIRECTORY_STATES, TextfileState
from railscope.exposition import Exposition, MetricSelection, TextFormat
from railscope.frame import Frame
from railscope.reading import Absent
from railscope.textfile_series import decode_value, encode_value
from railscope.untrusted_text import parse_toml
from railscope_agent.config import TextfileSettings
from railscope_agent.host.recorded_calls import call_key
from railscope_agent.host.textfiles import MAX_FILES, TextfileCalls
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources import textfile
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


# Cases --------------------------------------------------------------------------------------------


@EACH_CASE
def test_every_file_of_a_case_has_the_expected_state(case: Path) -> None:
    expected = parse_toml((case / "states.toml").read_text())
    assert TextfileDirectory(case).states() == expected


@EACH_CASE
def test_the_page_of_a_case_is_as_expected(case: Path) -> None:
    assert TextfileDirectory(case).page() == (case / "expected.prom.txt").read_text()


@EACH_CASE
def test_the_page_has_every_value_that_the_accepted_files_state(case: Path) -> None:
    directory = TextfileDirectory(case)
    accepted = [name for name, state in directory.states().items() if state == "ok"]
    stated = {}
    for name in accepted:
        stated |= values_of((case / name).read_text())
    assert values_of(directory.page()) == stated


@EACH_CASE
def test_promtool_accepts_the_page(case: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    page = page_of(TextfileDirectory(case).read())
    outcome = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert outcome.returncode != 1, outcome.stderr  # 3 means advice on names and help texts


@EACH_CASE
def test_openmetrics_has_the_same_series(case: Path) -> None:
    frame = TextfileDirectory(case).read()
    page = page_of(frame, TextFormat.OPENMETRICS)
    families = {f.name: f for f in text_string_to_metric_families(page)}
    assert values_of(own_series(page)) == values_of(own_series(page_of(frame)))
    if case.name == "two_files":
        assert families["site_errors"].type == "gauge"
        assert families["site_errors_total"].type == "unknown", "OpenMetrics: both are site_errors"


# Values -------------------------------------------------------------------------------------------

numbers = st.decimals(allow_nan=False, allow_infinity=False, places=None).map(str)
floats = st.floats().map(repr)
integers = st.integers(-(1 << 63), (1 << 64) - 1).map(str)


@given(integers | st.floats(allow_nan=False).map(repr))
def test_a_value_is_exact(text: str) -> None:
    assert exact_value(decode_value(*encode_value(text))) == exact_value(text)


@given(numbers)
def test_a_value_of_more_digits_is_the_same_float64(text: str) -> None:
    try:
        encoded = encode_value(text)
    except ValueError:
        assert abs(Decimal(text)) > Decimal("1.79e308")
        return
    assert all(-(1 << 63) <= part < 1 << 63 for part in encoded)
    assert float(decode_value(*encoded)) == float(text)


@given(st.text(max_size=30))
def test_a_value_is_a_number_or_rejected(text: str) -> None:
    try:
        encoded = encode_value(text)
    except ValueError:
        return
    assert exact_value(decode_value(*encoded)) == exact_value(text)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_columns_of_a_hostile_node_are_a_short_text(mantissa: int, exponent: int) -> None:
    assert len(decode_value(mantissa, exponent)) < 100


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


# Limits and hostile files -------------------------------------------------------------------------


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


def test_names_of_all_files_are_bounded(files: TextfileDirectory) -> None:
    label = "x" * 1800
    files.write(
        {
            f"{n:02}.prom": "".join(f's{n}{{a="{label}{k}"}} 1\n' for k in range(50))
            for n in range(8)
        }
    )
    assert list(files.states().values()) == ["ok"] * 5 + ["limit"] * 3


def test_files_share_the_limits_of_size_and_series(tmp_path: Path) -> None:
    files = TextfileDirectory(tmp_path, max_series=3, max_total_bytes=30)
    files.write({"a.prom": "a 1\nb 1\n", "b.prom": "c 1\nd 1\n", "c.prom": "e 1\n"})
    assert files.states() == {"a.prom": "ok", "b.prom": "limit", "c.prom": "ok"}
    files.write({"a.prom": "#" * 25 + "\n", "b.prom": "a 1\nb 1\n"})
    assert files.states() == {"a.prom": "ok", "b.prom": "limit"}


def test_too_many_files_are_reported(files: TextfileDirectory) -> None:
    files.write({f"{n:03}.prom": f"s{n} 1\n" for n in range(MAX_FILES + 1)})
    frame = files.read()
    assert directory_state(frame) == "too_many_files"
    assert len(states_of(readings(frame))) == MAX_FILES


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


def test_a_missing_directory_is_a_failure_of_the_source(files: TextfileDirectory) -> None:
    files.directory.rmdir()
    outcome = files.run()
    assert outcome.frame is None
    assert "No such file" in outcome.problem
    files.directory.mkdir()
    files.write({"a.prom": "a 1\n"})
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


def test_a_renamed_file_is_read_whole(tmp_path: Path) -> None:
    file, other = tmp_path / "a.prom", tmp_path / "a.prom.new"
    file.write_text("a 1\n")
    other.write_text("a 2\n")
    writer = OtherWriter(lambda: other.rename(file))
    calls = TextfileCalls(str, ManualClock(), writer.pread)
    for text in ("a 1\n", "a 2\n"):
        assert calls.call("read", str(tmp_path), "a.prom", 20, 0)[::3] == [TextfileState.OK, text]


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
def test_a_file_of_another_user_displaces_none_of_root(files: TextfileDirectory) -> None:
    files.write({"a.prom": "site 1\n", "b.prom": "site 2\n"})
    os.chown(files.directory / "a.prom", TENANT, TENANT)
    assert files.states() == {"a.prom": "duplicate", "b.prom": "ok"}
    files.write({f"{n:03}.prom": "" for n in range(MAX_FILES)} | {"root.prom": "root 1\n"})
    for n in range(MAX_FILES):
        os.chown(files.directory / f"{n:03}.prom", TENANT, TENANT)
    assert files.states()["root.prom"] == "ok"


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


def test_a_new_file_displaces_none_that_is_accepted(files: TextfileDirectory) -> None:
    files.write({"b.prom": "site 1\n"})
    assert files.states() == {"b.prom": "ok"}
    files.write({"a.prom": "site 2\n", "b.prom": "site 1\n"})
    assert files.states() == {"a.prom": "duplicate", "b.prom": "ok"}
    files.write({"a.prom": "site 2\n"})
    assert files.states() == {"a.prom": "ok"}


# Changes ------------------------------------------------------------------------------------------


def test_a_changed_file_has_its_new_values_at_the_next_read(files: TextfileDirectory) -> None:
    for text in ("a 1\n", "a 2.5\n", "a 2.5\nb 1\n", "", "b 1e3\n"):
        files.write({"a.prom": text})
        assert values_of(files.page()) == values_of(text)
    files.write({})
    assert files.page() == ""


def test_a_changed_state_is_an_event_once(files: TextfileDirectory) -> None:
    events = []
    for text in ("a 1\n", "a one\n", "a one\n", "a two\n", "a 1\n"):
        files.write({"a.prom": text})
        events.append([event.facts for event in files.read().events])
    malformed = {
        "before": "ok",
        "after": "malformed",
        "problem": "line 1: not in the Prometheus text format",
    }
    assert events == [[], [malformed], [], [], [{"before": "malformed", "after": "ok"}]]


def test_very_many_changes_at_once_are_not_all_events(files: TextfileDirectory) -> None:
    for text in ("a one\n", "a_{n} 1\n", "a one\n"):
        files.write({f"{n:03}.prom": text.format(n=n) for n in range(textfile.MAX_CHANGES + 5)})
        assert len(files.read().events) == textfile.MAX_CHANGES


def test_a_problem_does_not_quote_the_file(files: TextfileDirectory) -> None:
    files.write({"a.prom": "root:secret:19000:0:99999:7:::\n"})
    (event,) = files.read().events
    assert "secret" not in str(event.facts)


def test_labels_that_change_in_every_read_do_not_make_schemas_without_limit(
    files: TextfileDirectory,
) -> None:
    schemas = set()
    for second in range(3600 // 15):
        files.write({"a.prom": f's{{pid="{second}"}} 1\n', "good.prom": f"good {second}\n"})
        frame = files.read()
        schemas.add(frame.schema)
        assert f"good {second}\n" in page_of(frame)
        files.clock.advance(15)
    assert directory_state(frame) == "changing"
    assert 50 < len(schemas) <= textfile.MAX_WAITING_SCHEMAS + 30
    files.clock.advance(textfile.SCHEMA_NS / NS)
    files.write({"good.prom": "good 1\n"})
    frame = files.read()
    assert directory_state(frame) == "ok"
    assert own_series(page_of(frame)) == "# TYPE good untyped\ngood 1\n"


def test_suppressed_series_are_not_counted_as_exposed(files: TextfileDirectory) -> None:
    for number in range(textfile.MAX_WAITING_SCHEMAS + 1):
        files.write({"a.prom": f's{{pid="{number}"}} 1\n'})
        found = readings(files.read())
    assert found["railscope_textfile_exposed_series", ("a.prom",)] == 0
    assert Absent.GONE in found.values()


def test_the_group_can_be_switched_off(files: TextfileDirectory) -> None:
    files.write({"a.prom": "a 1\n"})
    selection = MetricSelection(group_details=(("textfile", None),))
    assert Exposition(selection).render([files.read()], TextFormat.PROMETHEUS) == ""


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (OSError(errno.EIO, "Input/output error"), TextfileState.UNREADABLE),
        (OSError(errno.ELOOP, "Too many levels of symbolic links"), TextfileState.NOT_REGULAR),
    ],
)
def test_a_failed_read_is_an_answer(tmp_path: Path, error: OSError, state: TextfileState) -> None:
    def pread(descriptor: int, size: int, offset: int) -> bytes:
        del descriptor, size, offset
        raise error

    (tmp_path / "a.prom").write_text("a 1\n")
    calls = TextfileCalls(str, ManualClock(), pread)
    answer = calls.call("read", str(tmp_path), "a.prom", 20, 0)
    assert answer[::3] == [state, error.strerror]
    with pytest.raises(FileNotFoundError):
        calls.call("read", str(tmp_path), "b.prom", 20, 0)


def test_an_unreadable_file_does_not_keep_the_columns_of_one_that_was_removed() -> None:
    settings, host = TextfileSettings(directory="/site"), FakeHost()
    for name, answer in {"a.prom": [1, 0, 0, "denied"], "b.prom": [0, 0, 0, "b 1\n"]}.items():
        arguments = "/site", name, settings.max_file_bytes, settings.max_age_seconds
        host.calls[call_key("textfile", "read", arguments)] = answer
    reader = SourceReader(textfile.TextfileSource(settings), host, ORIGIN)
    for names in (["a.prom", "b.prom"], ["a.prom"]):
        host.calls["textfile.list(/site)"] = [0, names]
        frame = reader.run().frame
        assert frame
        assert list(states_of(readings(frame))) == names
        assert ("b 1\n" in page_of(frame)) == ("b.prom" in names)
        assert "b.prom" in names or not any("b" in entity.key for _, entity in frame.schema.columns)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "unreadable"),
        (OSError(errno.EIO, "Input/output error"), "unreadable"),
        (TimeoutError(errno.ETIMEDOUT, "textfile.read has not returned"), "unreadable"),
        (FileNotFoundError(errno.ENOENT, "removed meanwhile"), None),
    ],
)
def test_a_file_that_cannot_be_opened_affects_no_other(error: OSError, state: str | None) -> None:
    settings, host = TextfileSettings(directory="/site"), FakeHost()
    host.calls["textfile.list(/site)"] = [0, ["a.prom", "b.prom"]]
    for name, answer in {"a.prom": error, "b.prom": [0, 0, 0, "b 1\n"]}.items():
        arguments = "/site", name, settings.max_file_bytes, settings.max_age_seconds
        host.calls[call_key("textfile", "read", arguments)] = answer
    frame = read_once(textfile.TextfileSource(settings), host).frame
    expected = {"b.prom": "ok"} | ({"a.prom": state} if state else {})
    assert states_of(readings(frame)) == expected
