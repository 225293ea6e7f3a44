"""Results of a capture by name, for tests that read at any offset."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from railscope.capture import SECTIONS, Capture, Json


class CaptureIndex:
    """Results of a capture by section and name, for reads in any order of time."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._results: dict[tuple[str, str], tuple[list[int], list[Json]]] = {}
        for moment in capture.moments:
            for section in SECTIONS:
                for key, value in getattr(moment, section).items():
                    offsets, values = self._results.setdefault((section, key), ([], []))
                    offsets.append(moment.offset_ns)
                    values.append(value)

    def result_at(self, section: str, key: str, offset_ns: int) -> Json:
        """Return the latest result at or before this offset; raises KeyError if there is none."""
        offsets, values = self._results[section, key]
        count = bisect_right(offsets, offset_ns)
        if not count:
            raise KeyError(key)
        return values[count - 1]


_indexes: deque[CaptureIndex] = deque(maxlen=4)


def index_of(capture: Capture) -> CaptureIndex:
    """Return the index of a capture; those of the last few captures are kept."""
    for index in _indexes:
        if index.capture is capture:
            return index
    _indexes.append(CaptureIndex(capture))
    return _indexes[-1]
