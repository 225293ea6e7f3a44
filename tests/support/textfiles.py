"""Textfiles: a directory with files, the source that reads it, and its page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from support.clock import ManualClock
from support.reading import ORIGIN, Label, readings

from railscope.catalog.textfile import TEXTFILE_STATES
from railscope.exposition import Exposition, TextFormat
from railscope.frame import Frame
from railscope.reading import Reading
from railscope_agent.config import TextfileSettings
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.source_reader import ReadOutcome, SourceReader
from railscope_agent.sources.textfile import TextfileSource

_OF_AGENT = re.compile(r"(?:# (?:HELP|TYPE|UNIT) )?railscope_|# EOF")
Value = Decimal | str
SPECIAL = {"nan": "NaN", "inf": "+Inf", "infinity": "+Inf", "-inf": "-Inf", "-infinity": "-Inf"}


class TextfileDirectory:
    """A directory of textfiles, and a source that reads it."""

    def __init__(self, directory: Path, **settings: int) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.settings = TextfileSettings(directory=str(directory), **settings)  # type: ignore[arg-type]  # numbers
        self.host = LiveHost(Path("/"), self.clock)
        self.reader = SourceReader(TextfileSource(self.settings), self.host, ORIGIN)

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files, and remove all others."""
        for path in self.directory.iterdir():
            if path.name not in files:
                path.unlink()
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            (self.directory / name).write_bytes(data)

    def read(self) -> Frame:
        """Return the frame of one read, without a failure."""
        outcome = self.run()
        assert not outcome.problem
        assert outcome.frame
        return outcome.frame

    def run(self) -> ReadOutcome:
        """Return the outcome of one read."""
        return self.reader.run()

    def page(self) -> str:
        """Return the series of the files on the metrics endpoint, after one read."""
        return own_series(page_of(self.read()))

    def states(self) -> dict[str, str]:
        """Return the state of each file, after one read."""
        return states_of(readings(self.read()))


def states_of(found: Mapping[Label, Reading]) -> dict[str, str]:
    """Return the state of each file of a frame."""
    return {
        key[0]: TEXTFILE_STATES[state]
        for (metric, key), state in found.items()
        if metric == "railscope_textfile_state" and isinstance(state, int)
    }


def page_of(frame: Frame, text_format: TextFormat = TextFormat.PROMETHEUS) -> str:
    """Return the metrics endpoint of one frame."""
    return Exposition().render([frame], text_format)


def own_series(page: str) -> str:
    """Return the part of a page that is not about the agent."""
    lines = page.splitlines(keepends=True)
    return "".join(line for line in lines if not _OF_AGENT.match(line))


def values_of(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], Value]:
    """Return the values that a text states, by name and labels without empty ones."""
    stated: dict[tuple[str, frozenset[tuple[str, str]]], Value] = {}
    for line in page.splitlines():
        if line.strip() and not line.startswith("#"):
            (family,) = text_string_to_metric_families(line + "\n")
            (sample,) = family.samples
            labels = frozenset((name, text) for name, text in sample.labels.items() if text)
            stated[sample.name, labels] = exact_value(line.split()[-1])
    return stated


def exact_value(text: str) -> Value:
    """Return a value as a decimal number, or as the name of one that is not finite."""
    return SPECIAL.get(text.lower().removeprefix("+")) or Decimal(text)
