"""Tables of answers, and the results of transformations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from railscope_dashboards.pictures.fields import UnsupportedFeatureError
from railscope_dashboards.pictures.tables import (
    TableFrame,
    frames_of,
    merge,
    organize,
    sort_by,
    table_order,
    to_matrix,
    transform,
)
from railscope_dashboards.prometheus_api import QueryResult, ResultSeries

NAMES = st.text("abc", min_size=1, max_size=2)
PAIRS = st.dictionaries(st.tuples(NAMES, NAMES), st.floats(-1e6, 1e6), min_size=1)
MATRIX = {"rowField": "node", "columnField": "rail", "valueField": "Value", "emptyValue": "null"}


def answer(*found: tuple[dict[str, str], float]) -> QueryResult:
    series = tuple(ResultSeries(labels, np.array([value])) for labels, value in found)
    return QueryResult(np.array([100.0]), series)


def of_pairs(pairs: dict[tuple[str, str], float]) -> TableFrame:
    ((frame),) = frames_of(
        [("A", answer(*(({"node": n, "rail": r}, v) for (n, r), v in pairs.items())))]
    )
    return frame


def test_a_query_that_answers_alone_calls_its_values_value():
    (frame,) = frames_of([("A", answer(({"node": "n1"}, 3.0)))])
    assert frame.columns == ("Time", "node", "Value")
    assert frame.rows == ({"Time": 100.0, "node": "n1", "Value": 3.0},)


def test_queries_that_answer_together_call_their_values_by_letter():
    frames = frames_of([("A", answer(({}, 1.0))), ("B", answer())])
    assert [frame.columns for frame in frames] == [("Time", "Value #A"), ()]


def test_merging_joins_rows_of_the_same_labels():
    frames = frames_of(
        [
            ("A", answer(({"rail": "0"}, 1.0), ({"rail": "1"}, 2.0))),
            ("B", answer(({"rail": "1"}, 20.0), ({"rail": "2"}, 30.0))),
        ]
    )
    (merged,) = merge(frames)
    assert merged.columns == ("Time", "rail", "Value #A", "Value #B")
    values = [(row["rail"], row.get("Value #A"), row.get("Value #B")) for row in merged.rows]
    assert values == [("0", 1.0, None), ("1", 2.0, 20.0), ("2", None, 30.0)]


def test_merging_leaves_out_what_answers_nothing():
    frames = frames_of([("A", answer()), ("B", answer(({"rail": "0"}, 1.0)))])
    (merged,) = merge(frames)
    assert [row["Value #B"] for row in merged.rows] == [1.0]


def test_rows_that_differ_elsewhere_are_not_joined():
    frames = [
        TableFrame(("key", "x"), ({"key": "k", "x": 1.0},)),
        TableFrame(("key", "x"), ({"key": "k", "x": 2.0},)),
    ]
    (merged,) = merge(frames)
    assert len(merged.rows) == 2


@given(st.dictionaries(NAMES, st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_merging_puts_together_what_was_taken_apart(table: dict[str, tuple[float, float]]):
    parts = [
        ("AB"[part], answer(*(({"key": key}, both[part]) for key, both in table.items())))
        for part in (0, 1)
    ]
    (merged,) = merge(frames_of(parts))
    found = {row["key"]: (row["Value #A"], row["Value #B"]) for row in merged.rows}
    assert found == table
    assert len(merged.rows) == len(table)


def test_organizing_leaves_out_orders_and_renames():
    frame = TableFrame(("Time", "a", "b"), ({"Time": 1.0, "a": "x", "b": 2.0},))
    options = {
        "excludeByName": {"Time": True},
        "indexByName": {"b": 0, "a": 1},
        "renameByName": {"b": "Bytes"},
    }
    (made,) = organize([frame], options)
    assert made.columns == ("Bytes", "a")
    assert made.rows == ({"Bytes": 2.0, "a": "x"},)


def test_sorting_keeps_the_order_of_rows_alike_and_puts_empty_cells_last():
    rows = [("b", "1"), ("a", "2"), ("", "3"), ("a", "1")]
    frame = TableFrame(("node", "rail"), tuple({"node": n, "rail": r} for n, r in rows))
    (made,) = sort_by([frame], {"sort": [{"field": "node"}]})
    assert [(row["node"], row["rail"]) for row in made.rows] == [
        ("a", "2"),
        ("a", "1"),
        ("b", "1"),
        ("", "3"),
    ]
    assert sort_by([frame], {"sort": [{"field": "gpu"}]}) == [frame]


@given(PAIRS)
def test_a_matrix_has_each_value_in_its_place(pairs: dict[tuple[str, str], float]):
    (matrix,) = to_matrix([of_pairs(pairs)], MATRIX)
    assert matrix.columns[0] == "node\\rail"
    assert set(matrix.columns[1:]) == {rail for _, rail in pairs}
    found = {
        (row["node\\rail"], rail): row[rail]
        for row in matrix.rows
        for rail in matrix.columns[1:]
        if row.get(rail) is not None
    }
    assert found == pairs


@given(PAIRS)
def test_a_matrix_of_sorted_rows_has_sorted_columns(pairs: dict[tuple[str, str], float]):
    steps = [
        {"id": "sortBy", "options": {"sort": [{"field": name}]}} for name in ("node", "rail")
    ] + [{"id": "groupingToMatrix", "options": MATRIX}]
    (matrix,) = transform([of_pairs(pairs)], steps)
    assert list(matrix.columns[1:]) == sorted(matrix.columns[1:])


@given(PAIRS, st.sampled_from(["max", "min"]))
def test_rows_of_a_grid_come_in_order_of_their_worst_value(
    pairs: dict[tuple[str, str], float], reducer: str
):
    steps = [
        {"id": "groupingToMatrix", "options": MATRIX},
        {"id": "calculateField", "options": {
            "mode": "reduceRow", "reduce": {"reducer": reducer},
            "alias": "Worst", "replaceFields": False,
        }},
    ]  # fmt: skip
    (matrix,) = transform([of_pairs(pairs)], steps)
    pick, highest = (max, True) if reducer == "max" else (min, False)
    for row in matrix.rows:
        assert row["Worst"] == pick(
            v for (node, _), v in pairs.items() if node == row["node\\rail"]
        )
    ordered = table_order(matrix, [{"displayName": "Worst", "desc": highest}])
    worst = [row["Worst"] for row in ordered.rows]
    assert worst == sorted(worst, reverse=highest)


def test_a_table_sorts_by_its_first_column_then_by_the_next_and_keeps_rows_alike():
    rows = [{"n": "a", "x": 1.0, "y": 2.0}, {"n": "b", "x": None, "y": 9.0},
            {"n": "c", "x": 1.0, "y": 5.0}, {"n": "d", "x": 3.0, "y": 0.0},
            {"n": "e", "x": 1.0, "y": 2.0}]  # fmt: skip
    frame = TableFrame(("n", "x", "y"), tuple(rows))
    by = [{"displayName": "x", "desc": True}, {"displayName": "y", "desc": False}]
    assert [row["n"] for row in table_order(frame, by).rows] == ["d", "a", "e", "c", "b"]
    assert table_order(frame, ()) == frame


@pytest.mark.parametrize(
    "step",
    [
        {"id": "joinByField", "options": {}},
        {"id": "sortBy", "options": {"sort": [{"field": "node", "desc": True}]}},
        {"id": "groupingToMatrix", "options": MATRIX | {"emptyValue": "zero"}},
        {"id": "calculateField", "options": {"mode": "binary", "alias": "Worst"}},
    ],
)
def test_an_unknown_transformation_is_an_error(step: dict[str, object]):
    with pytest.raises(UnsupportedFeatureError):
        transform([of_pairs({("n", "r"): 1.0})], [step])
