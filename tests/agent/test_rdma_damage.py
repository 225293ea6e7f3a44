"""Counter files that shrink, contain garbage, lose their permission, or appear and vanish between probes."""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given, strategies as st
from support.machine import FakeHost
from support.reading import ORIGIN, readings

from railscope.catalog.rdma import meaning
from railscope.reading import Absent, Reading
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.rdma import RdmaSource

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
KEY = ("mlx5_0", "1")
WIDE = ("counters/port_xmit_packets", "hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled")
NARROW = (
    "hw_counters/rx_write_requests",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
)
FILES = WIDE + NARROW
ERRORS = {
    errno.EACCES: Absent.DENIED, errno.ENODEV: Absent.GONE, errno.ENOENT: Absent.GONE,
    errno.EINVAL: Absent.UNSUPPORTED, errno.EIO: Absent.ERROR, errno.ETIMEDOUT: Absent.TIMEOUT,
}  # fmt: skip

number = st.integers(0, 2**64 - 1) | st.integers(0, 2**33)
nonsense = st.sampled_from(
    [
        "",
        "\n",
        "-5\n",
        "-9223372036854775808",
        "N/A (no PMA)\n",
        "12 34",
        "0x1f",
        "7.5",
        "9" * 30,
        "\x00\x00",
        "12\n34\n",
        "-",
    ]
)
content = st.one_of(
    number.map(str), number.map(lambda n: f"{n}\n"), nonsense, st.sampled_from(list(ERRORS))
)
rounds = st.lists(st.dictionaries(st.sampled_from(FILES), content), min_size=1, max_size=6)


def expected(text: str | int | None) -> Reading:
    """Return the reading expected of a file's content."""
    if text is None:
        return Absent.GONE
    if isinstance(text, int):
        return ERRORS[text]
    if re.fullmatch(r"\s*\d+\s*", text) and int(text) < 2**64:
        return int(text)
    return Absent.UNSUPPORTED if not text.strip() or text.startswith("N/A") else Absent.ERROR


def found(reader: SourceReader) -> dict[str, Reading]:
    """The readings of the files by path; of those without a column, nothing."""
    frame = reader.run()
    assert frame.problem == ""
    values = readings(frame.frame)
    by_file = {}
    for file in FILES:
        metric = meaning("mlx5", file.rpartition("/")[2])
        assert metric
        if (metric.name, KEY) in values:
            by_file[file] = values[metric.name, KEY]
    return by_file


def check(by_file: Mapping[str, Reading], contents: Mapping[str, str | int]) -> None:
    for file, reading in by_file.items():
        want = expected(contents.get(file))
        if isinstance(want, Absent) or isinstance(reading, Absent):
            assert reading is want, file
        elif file in WIDE or want >= 2**32:
            assert reading == want, file
        else:
            assert reading % 2**32 == want, "the low bits are those of the driver"
            assert reading >= want


@given(st.dictionaries(st.sampled_from(FILES), content, min_size=1), rounds)
def test_each_file_is_read_independently_of_the_others(
    first: dict[str, str | int], later: list[dict[str, str | int]]
) -> None:
    host = FakeHost()

    def show(contents: Mapping[str, str | int]) -> None:
        host.files = {
            f"{PORT}/{file}": OSError(held, "") if isinstance(held, int) else held
            for file, held in contents.items()
        }

    show(first)
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    columns = found(reader)
    assert set(columns) == set(first)
    check(columns, first)
    for contents in later:
        show(contents)
        by_file = found(reader)
        assert set(by_file) == set(first), "a new file waits for the next probe"
        check(by_file, contents)


texts = st.one_of(number.map(str), number.map(lambda n: f"{n}\n"), nonsense)
real_rounds = st.lists(st.dictionaries(st.sampled_from(FILES), texts), min_size=1, max_size=4)


@given(st.dictionaries(st.sampled_from(FILES), texts, min_size=1), real_rounds)
def test_kept_files_that_shrink_grow_and_vanish(
    first: dict[str, str], later: list[dict[str, str]]
) -> None:
    """On a real tree: the rest of a longer number is never read with a shorter one."""
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root + PORT)
        for file in FILES:
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
        source = RdmaSource()
        reader = SourceReader(source, LiveHost(Path(root)), ORIGIN)
        for contents in (first, *later):
            for file in first:
                path = directory / file
                if file in contents:
                    path.write_text(contents[file])
                elif path.exists():
                    path.write_text("")  # reads of a removed device fail
                    path.unlink()
            by_file = found(reader)
            assert set(by_file) == set(first)
            check(by_file, contents)
        source.close()
