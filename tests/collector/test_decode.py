import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from makers import FrameSender, gpu_schema

from railscope.batch_encoding import encode_batch
from railscope.frame import Frame
from railscope.wire import Batch, WireEntity, WireError, WireEvent
from railscope_collector.fleet import sheets

COLUMNS = 6
numbers = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(st.lists(numbers, min_size=COLUMNS, max_size=COLUMNS), min_size=1, max_size=6)


def batch_of(values: list[list[int]]) -> tuple[Batch, list[Frame]]:
    frames = FrameSender().frames(gpu_schema("n1"), values, at=0)
    return encode_batch(frames), frames


@given(rows)
def test_all_rows_are_decoded_as_they_were_sent(values: list[list[int]]):
    batch, frames = batch_of(values)
    sheets.check_batch(batch, COLUMNS, 100)
    found = sheets.rows_at(batch, range(batch.rows), np.arange(COLUMNS), COLUMNS)
    assert found.tolist() == [list(frame.values) for frame in frames]


@given(st.lists(rows, min_size=1, max_size=4))
def test_many_batches_are_decoded_at_once(tables: list[list[list[int]]]):
    batches = [batch_of(values)[0] for values in tables]
    first = sheets.first_rows(batches, COLUMNS)
    assert first.tolist() == [values[0] for values in tables]
    last = first.copy()
    for changed in sheets.changes(batches, COLUMNS):
        changed.add_steps(last)
    assert last.tolist() == [values[-1] for values in tables]


@given(rows, st.data())
def test_some_rows_and_columns_are_decoded_alone(values: list[list[int]], data: st.DataObject):
    batch, _ = batch_of(values)
    wanted = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=4))
    columns = sorted(data.draw(st.sets(st.integers(0, COLUMNS - 1))))
    found = sheets.rows_at(batch, wanted, np.array(columns, np.intp), COLUMNS)
    assert found.tolist() == [[values[row][column] for column in columns] for row in wanted]


@given(rows, st.data())
def test_parts_that_do_not_fit_are_rejected(values: list[list[int]], data: st.DataObject):
    batch, _ = batch_of(values)
    part = data.draw(st.sampled_from(["base", "changed", "steps", "reasons"]))
    content: bytes = getattr(batch, part)
    longer = content + b"\1" * data.draw(st.integers(1, 5))
    fields = {name: getattr(batch, name) for name in Batch.__struct_fields__}
    with pytest.raises(WireError):
        sheets.check_batch(Batch(**fields | {part: longer}), COLUMNS, 100)


def test_rows_beyond_the_bound_are_rejected():
    batch, _ = batch_of([[0] * COLUMNS] * 4)
    with pytest.raises(WireError):
        sheets.check_batch(batch, COLUMNS, 3)


def test_reasons_are_one_code_a_row_and_column():
    schema = gpu_schema("n1")
    sender = FrameSender()
    good = sender.frames(schema, [[1] * COLUMNS], at=0)
    bad = sender.frames(schema, [[0] * COLUMNS], at=1, reasons=bytes([4] * COLUMNS))
    codes = sheets.reasons(encode_batch(good + bad), COLUMNS)
    assert codes.tolist() == [[0] * COLUMNS, [4] * COLUMNS]
    assert sheets.reasons(encode_batch(good), COLUMNS).tolist() == [[0] * COLUMNS]
    assert np.asarray(sheets.reasons(encode_batch(bad), COLUMNS)).tolist() == [[4] * COLUMNS]


@pytest.mark.parametrize(
    "changed",
    [
        {"number": -1}, {"number": (1 << 53) + 1}, {"wall_ns": -1}, {"wall_ns": 1 << 63},
        {"boot_ns": -1}, {"boot_ns": 1 << 63}, {"row": 1},
    ],
)  # fmt: skip
def test_events_beyond_what_logs_and_databases_hold_are_rejected(changed: dict[str, int]):
    batch, _ = batch_of([[0] * COLUMNS])
    event = WireEvent("claim_start", 0, WireEntity("claim", ("GPU-1", "a")), 1, 1, {}, 1 << 53)
    sheets.check_batch(msgspec.structs.replace(batch, events=(event,)), COLUMNS, 1)
    wrong = msgspec.structs.replace(event, **changed)
    with pytest.raises(WireError):
        sheets.check_batch(msgspec.structs.replace(batch, events=(wrong,)), COLUMNS, 1)
