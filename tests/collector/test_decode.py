import numpy as np
import pytest
from hypothesis import given, strategies as st
from makers import FrameSender, gpu_schema

from railscope.batch_encoding import encode_batch
from railscope.frame import Frame
from railscope.wire import Batch, WireError
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
