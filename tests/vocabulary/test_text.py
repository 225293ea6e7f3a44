"""Untrusted text: it is escaped, and it never ends a process."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array

import msgspec
import pytest
from hypothesis import given, strategies as st
from support.schemas import parts_of

from railscope.batch_encoding import encode_batches
from railscope.catalog import gpu
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP, GPU
from railscope.envelopes import unpack
from railscope.exposition import labelled
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.untrusted_text import printable
from railscope.wire import SentParts, WireEntity, WireError, encode_part, envelope, pack

ANY = st.text(st.characters(), max_size=30)  # surrogates among them
HOSTILE = (
    "caf\udce9",
    "a\nlevel=error forged",
    "\x1b]0;owned\x07",
    "abc\u202egpj.exe",
    "\u2066x",
    "",
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Überbank 数", "plain Überbank 数"),
        ("caf\udce9", "caf\\xe9"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("abc\u202egpj", "abc\\u202egpj"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str):
    assert printable(text) == shown


@given(ANY)
def test_the_result_prints_and_stays(text: str):
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert shown.encode().decode() == shown
    if text.isprintable():
        assert shown is text


@given(ANY, ANY)
def test_any_name_travels_and_is_exposed(name: str, fact: str):
    entity = Entity(GPU, (name or "g",), {"model": fact})
    schema = Schema("gpu", ((gpu.GPU_POWER, entity),))
    event = Event(GAP_EVENT, Entity(DROP, ("disk",)), 1, 1, {"frames": fact})
    origin = FrameOrigin("n", "r", "b")
    frame = Frame(origin, schema, 1, NodeTimestamp(1, 1), array("q", [1]), b"", (event,))
    sealed = envelope(origin, encode_batches([frame]), parts_of([frame]), agent_version="t")
    assert unpack(pack(sealed), 1 << 20) == sealed
    line = labelled("m", zip(GPU.labels, entity.key, strict=True))
    assert line.encode().count(b"\n") == 0


@pytest.mark.parametrize("text", [text for text in HOSTILE if text and "\udce9" not in text])
def test_an_envelope_with_text_that_does_not_print_is_rejected(text: str):
    entity = WireEntity("gpu", ("g",))
    forged = SentParts(names=[encode_part((msgspec.structs.replace(entity, key=(text,)),))])
    for sealed in (
        envelope(FrameOrigin("n", "r", "b"), (), forged, agent_version="t"),
        envelope(FrameOrigin("n", text, "b"), (), agent_version="t"),
        envelope(FrameOrigin("n", "r", "b"), (), agent_version=text),
    ):
        with pytest.raises(WireError, match="expected printable characters") as raised:
            unpack(pack(sealed), 1 << 20)
        assert str(raised.value).isprintable()


def test_a_label_is_one_line_of_the_exposition():
    assert labelled("m", [("a", 'x"\\\n')]) == 'm{a="x\\"\\\\\\n"} '


LOGGING = """
import structlog
from railscope.log_output import LOG_STREAM, configure_logs
configure_logs("info")
log = structlog.get_logger()
for text in {texts!r}:
    log.info("read", node=text)
print(LOG_STREAM.lost)
"""


def logged(texts: tuple[str, ...], stderr: int) -> subprocess.CompletedProcess[str]:
    program = LOGGING.format(texts=texts)
    environment = {name: text for name, text in os.environ.items() if name != "JOURNAL_STREAM"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stderr=stderr,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )


def test_a_text_is_one_line_of_the_log_without_escape_sequences():
    outcome = logged(HOSTILE, subprocess.PIPE)
    lines = outcome.stderr.split("\n")
    assert len(lines) == len(HOSTILE) + 1
    assert all(line.isprintable() for line in lines)
    assert lines[1].endswith(' read node="a\\nlevel=error forged"')
    assert lines[3].endswith(" read node=abc\\u202egpj.exe")
    assert outcome.stdout == "0\n"


def test_a_full_disk_ends_nothing_and_is_counted():
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        assert logged(("a", "b"), full.fileno()).stdout == "2\n"
