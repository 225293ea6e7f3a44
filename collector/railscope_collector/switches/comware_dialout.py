"""Telemetry that H3C switches push by gRPC dial-out: messages with rows as JSON text, and the values that they become.

Every number is a value of one field of a row, a list of eight by priority or queue as text, or such a list for each
slice, a part of the chip's buffer. What the table of facts does not name is not stored. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Entity
from railscope.otlp_metrics import OtlpRejectedError
from railscope.reading import Absent, Reading
from railscope.timestamps import MILLISECOND_NS
from railscope_collector.switches import switch_facts as facts, switch_reading as base
from railscope_collector.switches.cumulus_metrics import MAX_PORT_NAME, PointResult
from railscope_collector.switches.snmp_values import LANES, as_signed
from railscope_collector.switches.switch_pushes import PushedColumn, PushedValues

MAX_TEXT_BYTES = 8 << 20
"""Size of a text of one or several messages: 512 ports with lists of 16 slices are 4 MiB."""
MAX_PARTS, MAX_INCOMPLETE = 256, 4
"""Parts of a text, and texts of a connection that are not complete."""
MAX_OBJECTS, MAX_VALUES = 20_000, 400_000
"""Opening brackets and commas of a text: 512 ports with 16 slices have 17,000 lists and 80,000 values."""
MAX_PATH = 128
FORMAT = "format"
_UP = 1
_STATES = {catalog.PORT_UP, catalog.PORT_ENABLED}
_UNITS = facts.UNITS[facts.DIALOUT]


def malformed(problem: str) -> OtlpRejectedError:
    """Return the error of a message that is malformed."""
    return OtlpRejectedError(problem, HTTPStatus.BAD_REQUEST, FORMAT)


def _stored(metric: declare.Metric, value: object) -> Reading:
    """Return a value in the steps of the metric; those of transceivers are as in the MIB."""
    is_of_mib = metric in facts.UNITS[facts.COMWARE]
    number = as_signed(value) if is_of_mib else base.as_number(value)
    if metric in _STATES and isinstance(number, int):
        return int(number == _UP)
    return facts.as_stored(metric, number, _UNITS.get(metric))


class DialoutTable(NamedTuple):
    """The rows of a sensor path: a stream of its own, as each message has one table."""

    stream: str
    fields: Mapping[str, declare.Metric]


_STREAMS = {
    "ifmgr/interfaces": base.PORTS, "ifmgr/statistics": "switch_port_counters",
    "ifmgr/ethportstatistics": "switch_port_pauses", "ifmgr/iffecdata": "switch_port_fec",
    "buffermonitor/pfcstatistics": base.PRIORITY, "buffermonitor/pfcspeeds": "switch_priority_rates",
    "buffermonitor/ecnandwredstatistics": "switch_port_marks", "buffermonitor/ingressdrops": "switch_port_drops",
    "buffermonitor/egressdrops": base.QUEUES, "buffermonitor/commbufferusages": base.QUEUE_MARKS,
    "buffermonitor/commheadroomusages": base.WATERMARKS, "device/transceivers": "switch_transceivers",
    "device/transceiverschannels": base.LANES,
}  # fmt: skip
_FACTS = {
    name: metric
    for names_of in facts.select(lambda fact: fact.dialout).values()
    for metric, ((name,),) in names_of.items()
}
TABLES: Mapping[str, DialoutTable] = {
    path: DialoutTable(
        stream,
        {
            name.rpartition("/")[2]: metric
            for name, metric in _FACTS.items()
            if name.rpartition("/")[0] == path
        },
    )
    for path, stream in _STREAMS.items()
}
"""Tables by sensor path in lower case.

Not `qstat/queuestat`, whose codes of the direction of a queue are not documented, and no table of events.
"""


class DialoutMessage(NamedTuple):
    """A message as received: its table, its text or a part of it, and the name that the switch states."""

    path: str
    text: str
    name: str = ""
    part: int = 1
    parts: int = 1


@dataclass(slots=True)
class TextParts:
    """Texts of one connection that arrive in parts, with other messages between them."""

    _texts: dict[str, dict[int, str]] = field(default_factory=dict)

    def join(self, message: DialoutMessage) -> str | None:
        """Return the text of a message, or of its parts once they are complete. Raises OtlpRejectedError."""
        if message.parts == 1:
            return message.text
        if not 1 <= message.part <= message.parts <= MAX_PARTS:
            error = f"invalid part {message.part} of {message.parts}: expected at most {MAX_PARTS}"
            raise malformed(error)
        path = message.path.lower()
        # A part that begins again belongs to the next text: the rest of the last one was lost.
        found = {} if message.part == 1 else self._texts.pop(path, {})
        self._texts.pop(path, None)
        found[message.part] = message.text
        if sum(map(len, found.values())) > MAX_TEXT_BYTES:
            error = f"too many bytes in parts: expected at most {MAX_TEXT_BYTES}"
            raise malformed(error)
        if len(found) == message.parts:
            return "".join(found[part] for part in sorted(found))
        if len(self._texts) >= MAX_INCOMPLETE:
            del self._texts[next(iter(self._texts))]
        self._texts[path] = found
        return None


def decode_rows(switch: str, message: DialoutMessage, text: str, boot_ns: int) -> PushedValues:
    """Return the values of the rows of a message. Raises OtlpRejectedError."""
    results, path = Counter[PointResult](), message.path.lower()
    table = TABLES.get(path)
    names = frozenset({message.name} - {""})
    if table is None:
        shown = path if path.isprintable() and len(path) <= MAX_PATH else "(invalid)"
        results[PointResult.UNMAPPED] += 1
        return PushedValues((), results, Counter({shown: 1}), 0, names)
    timestamp_ns, rows = _unpack(path, text)
    columns: list[PushedColumn] = []
    for row in rows:
        port = row.get("IfName", row.get("Name"))
        if (
            not isinstance(port, str)
            or not port
            or len(port) > MAX_PORT_NAME
            or not port.isprintable()
        ):
            results[PointResult.INVALID] += 1
            continue
        for name, metric in table.fields.items():
            for number, reading in _values(name, metric, row):
                if reading is Absent.ERROR:
                    results[PointResult.INVALID] += 1
                    continue
                column = metric, Entity(metric.about, (switch, port, *number))
                columns.append(
                    PushedColumn(name, column, table.stream, reading, timestamp_ns, boot_ns)
                )
    return PushedValues(columns, results, Counter(), timestamp_ns, names)


def _unpack(path: str, text: str) -> tuple[int, list[Mapping[str, object]]]:
    """Return the time of a text and the rows of its table. Raises OtlpRejectedError."""
    if sum(map(text.count, "{[")) > MAX_OBJECTS or text.count(",") > MAX_VALUES:
        message = (
            f"too many values: expected at most {MAX_VALUES} in {MAX_OBJECTS} lists and objects"
        )
        raise malformed(message)
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"invalid JSON: {error}"
        raise malformed(message) from error
    content = _lower_names(document)
    notification = _lower_names(content.get("notification"))
    milliseconds = base.as_number(notification.get("timestamp", content.get("timestamp")))
    module, _, table = path.partition("/")
    rows = next(
        iter(_lower_names(_lower_names(notification.get(module)).get(table)).values()), None
    )
    # An object that is alone is one row.
    found = [rows] if isinstance(rows, dict) else rows
    if isinstance(milliseconds, Absent) or not isinstance(found, list):
        message = f"invalid text: expected a notification with rows of {path} and a timestamp"
        raise malformed(message)
    return milliseconds * MILLISECOND_NS, [row for row in found if isinstance(row, dict)]


def _lower_names(value: object) -> dict[str, object]:
    """Return an object with its names in lower case, as switches write them in either; empty if it is none."""
    return (
        {str(name).lower(): each for name, each in value.items()} if isinstance(value, dict) else {}
    )


def _values(
    name: str, metric: declare.Metric, row: Mapping[str, object]
) -> Iterator[tuple[tuple[str, ...], Reading]]:
    """Yield the values of a field with the number of their priority, queue or lane; nothing if the row lacks it."""
    value, about = row.get(name), metric.about
    if value is None:
        return
    if about is entities.SWITCH_LANE:
        lane = base.as_number(row.get("ChannelIndex"))
        is_lane = isinstance(lane, int) and lane in LANES
        yield (str(lane),), _stored(metric, value) if is_lane else Absent.ERROR
    elif about is entities.SWITCH_PORT:
        yield (), _stored(metric, value)
    else:
        slices = value.values() if isinstance(value, dict) else [value]
        lists = [_numbers(each) for each in slices]
        is_whole = bool(lists) and all(lists)
        for position in base.PRIORITIES if is_whole else ():
            parts = (_stored(metric, of[position]) for of in lists)
            yield (str(position),), base.sum_counters(parts)
        if not is_whole:
            yield (), Absent.ERROR


def _numbers(value: object) -> Sequence[object]:
    """Return a list of eight, which is text; empty if it is none."""
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError):
        return ()
    return found if isinstance(found, list) and len(found) == len(base.PRIORITIES) else ()
