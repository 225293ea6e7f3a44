"""Textfiles: series of the site, from files that its own programs write.

A series has the name, labels and type that its file states. Frames carry its value as a decimal number: digits
and a power of ten (`railscope.textfile_series`).
"""

# fmt: off
from enum import IntEnum

from railscope.catalog import entities
from railscope.catalog.declare import BASIC, NANO, WHOLE, EventClass, MetricTable


class TextfileState(IntEnum):
    """State of a textfile: accepted, or the reason why it is rejected."""

    OK = 0
    UNREADABLE = 1
    NOT_REGULAR = 2
    TOO_LARGE = 3
    INCOMPLETE = 4
    TOO_OLD = 5
    MALFORMED = 6
    RESERVED_NAME = 7
    TYPE_CONFLICT = 8
    DUPLICATE = 9
    LIMIT = 10

    @property
    def label(self) -> str:
        """Name of the state in metrics and messages."""
        return self.name.lower()


class DirectoryState(IntEnum):
    """State of the directory of textfiles."""

    OK = 0
    WRITABLE_BY_OTHERS = 1
    TOO_MANY_FILES = 2
    CHANGING = 3

    @property
    def label(self) -> str:
        """Name of the state in metrics and messages."""
        return self.name.lower()


TEXTFILE_STATES = {state.value: state.label for state in TextfileState}
DIRECTORY_STATES = {state.value: state.label for state in DirectoryState}
_FILE = MetricTable(entities.TEXTFILE, detail=BASIC)
_SERIES = MetricTable(entities.TEXTFILE_SERIES, "textfile", detail=BASIC)

TEXTFILE_STATE = _FILE.state("railscope_textfile_state", "State of a textfile: ok, or the reason why none of its series are exposed.", "agent", states=TEXTFILE_STATES)
TEXTFILE_MODIFIED = _FILE.gauge("railscope_textfile_modified_timestamp_seconds", "Time at which a textfile was last written.", "fstat(2): st_mtim", scale=NANO, node_exporter="node_textfile_mtime_seconds")
TEXTFILE_EXPOSED = _FILE.gauge("railscope_textfile_exposed_series", "Series of a textfile that are exposed; 0 if the file is rejected.", "agent")
DIRECTORY_STATE = MetricTable(entities.NODE, detail=BASIC).state("railscope_textfile_directory_state", "State of the directory of textfiles: ok, writable_by_others (every user of the node can add series), too_many_files (the files beyond the limit are not read), or changing (names or labels change too often: new series are not exposed).", "fstat(2): st_mode", states=DIRECTORY_STATES, node_exporter="node_textfile_scrape_error")
VALUE_MANTISSA = _SERIES.gauge("railscope_textfile_value_mantissa", "Digits of the value of a series of a textfile, as an integer. In frames only: the metrics endpoint exposes the series under its own name.", valid=WHOLE)
VALUE_EXPONENT = _SERIES.gauge("railscope_textfile_value_exponent", "Power of ten of the value of a series of a textfile; 100000 for values that are not finite. In frames only: the metrics endpoint exposes the series under its own name.", valid=WHOLE)
TEXTFILE_EVENT = EventClass("textfile_state", entities.TEXTFILE, "warning", "A textfile was rejected, or is accepted again.", "agent", ("before", "after", "problem"), judged_by="RailscopeTextfileRejected")
