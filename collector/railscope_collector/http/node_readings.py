"""Latest readings of one source of a node, for JSON."""

from __future__ import annotations

from railscope import api, reading, textfile_series, timestamps
from railscope.catalog import METRICS, declare, entities
from railscope_collector.fleet import schema_columns
from railscope_collector.fleet.fleet import StreamRow
from railscope_collector.state.collector_state import CollectorState


def stream_document(core: CollectorState, node: str, row: StreamRow, now_ns: int) -> api.Stream:
    """Return the latest frame of a source, reading by reading, converted to units."""
    schema = core.schemas.read(row.schema)
    values = row.block.values_of(row.index).tolist()
    codes = row.block.reasons_of(row.index).tolist()
    readings = []
    devices = [core.names_of(node, entity) for entity in schema.entities]
    for column, group, member in schema_columns.columns_of(schema):
        metric, entity = METRICS.get(group.metric), schema.entities[member]
        # These have names and exact values of their own, which `json_entries` joins from several columns.
        if metric and metric.about is entities.TEXTFILE_SERIES:
            continue
        numerator, denominator = group.scale
        if metric and metric.kind is declare.MetricKind.HISTOGRAM:
            numerator, denominator = metric.scale_of(entity.key).as_integer_ratio()
        value: int | float | None = None
        absent = ""
        if codes[column] != reading.PRESENT:
            absent = reading.REASONS.get(codes[column], reading.Absent.ERROR).label
        # A schema of another version may have any scale: a division by zero must not fail the whole document.
        elif not denominator:
            absent = reading.Absent.ERROR.label
        else:
            counter = metric is not None and metric.kind is declare.MetricKind.COUNTER
            value = reading.from_stored(values[column], counter=counter) * numerator
            # An integer stays exact; a division makes it a float.
            value = value if denominator == 1 else value / denominator
        readings.append(
            api.Reading(group.metric, tuple(entity.key), value, absent, devices[member] or {})
        )
    age_seconds = (now_ns - row.timestamp_ns) / timestamps.SECOND_NS if row.timestamp_ns else None
    columns = (
        (group.metric, "".join(schema.entities[member].key[:1]))
        for _, group, member in schema_columns.columns_of(schema)
    )

    def read_column(column: int) -> reading.Reading:
        if codes[column] == reading.PRESENT:
            return values[column]  # type: ignore[no-any-return]  # numpy's types
        return reading.REASONS.get(codes[column], reading.Absent.ERROR)

    series = textfile_series.json_entries(columns, read_column)
    return api.Stream(row.timestamp_ns, tuple(readings), age_seconds, series)
