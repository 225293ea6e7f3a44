"""Documents of newer collectors: a client reads what it knows, whatever else they contain."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec import inspect
from railscope.api.newer_documents import MAX_NAME_LENGTH, decode_document
from railscope.client.cluster_reading import ClusterReading
from railscope.client.cluster_tables import incident_row, node_table

from railscope import api

MODULES = ("", ".audit", ".billing", ".inventory", ".switches", ".tenants")
RESOURCES = sorted(
    {
        shape
        for module in MODULES
        for shape in vars(import_module(f"railscope.api{module}")).values()
        if isinstance(shape, type) and issubclass(shape, msgspec.Struct)
    },
    key=lambda shape: f"{shape.__module__}.{shape.__name__}",
)
TEXTS = st.text(max_size=8)
ADDED: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
SCALARS: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.IntType: st.integers(0, 1 << 40), inspect.FloatType: st.floats(0, 1), inspect.BoolType: st.booleans(),
    inspect.StrType: TEXTS, inspect.NoneType: st.none(), inspect.AnyType: ADDED, inspect.RawType: ADDED,
}  # fmt: skip
UNKNOWN = {"kind": "power_supply", "rack": "r1", "slot": "b2", "watts": 5.0}


def contents(of: inspect.Type, depth: int = 3) -> st.SearchStrategy[Any]:
    """Decoded JSON of a type as a newer collector sends it: with added fields, and with added kinds in unions."""
    found = SCALARS.get(type(of))
    match of:
        case inspect.Metadata():
            found = contents(of.type, depth)
        case inspect.StructType():
            found = st.builds(
                newer_struct, fields(of, depth), st.dictionaries(TEXTS, ADDED, max_size=2)
            )
        case inspect.UnionType():
            members = [contents(each, depth) for each in of.types]
            tags = [
                each.tag for each in of.types if isinstance(each, inspect.StructType) and each.tag
            ]
            found = st.one_of(*members, *([st.just(UNKNOWN)] if tags else []))
        case inspect.TupleType():
            found = st.tuples(*(contents(each, depth) for each in of.item_types)).map(list)
        case inspect.CollectionType():
            found = st.lists(contents(of.item_type, depth - 1), max_size=2 if depth else 0)
        case inspect.DictType():
            values = contents(of.value_type, depth - 1)
            found = st.dictionaries(TEXTS, values, max_size=2 if depth else 0)
    assert found is not None, (
        f"{of}: a text has any value, so that no release rejects those of another"
    )
    return found


def fields(of: inspect.StructType, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    known = {
        each.encode_name: st.deferred(lambda each=each: contents(each.type, depth - 1))
        for each in of.fields
    }
    tag = {of.tag_field: st.just(of.tag)} if of.tag_field else {}
    required = {each.encode_name for each in of.fields if each.required}
    optional = {name: each for name, each in known.items() if name not in required and depth > 0}
    return st.fixed_dictionaries(tag | {name: known[name] for name in required}, optional=optional)


def newer_struct(known: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    return {f"new {name}": each for name, each in added.items()} | known


@given(shape=st.sampled_from(RESOURCES), data=st.data())
def test_a_document_of_a_newer_collector_is_read(
    shape: type[msgspec.Struct], data: st.DataObject
) -> None:
    content = data.draw(contents(inspect.type_info(shape)))
    decoded = decode_document(msgspec.json.encode(content), shape)
    # Through JSON, as builtins have no form of a document in a document.
    found = msgspec.json.decode(msgspec.json.encode(decoded))
    for field in msgspec.structs.fields(shape):
        sent = content.get(field.encode_name, msgspec.UNSET)
        if isinstance(sent, str | float):
            assert found.get(field.encode_name, field.default) == sent


INCIDENT = {
    "id": "i1", "class": "power_fault", "text": "t", "title": "Power fault: supply b2 of r1", "cause": UNKNOWN,
    "onset": "2026-01-01T00:00:00Z", "onset_uncertainty_seconds": 10, "detected": "2026-01-01T00:00:10Z", "ended": None,
    "severity": "alarming", "confidence": 0.9, "victims": [UNKNOWN, {"kind": "node", "node": "n1", "chassis": 4}],
    "victim_count": 2, "jobs": [], "evidence": [], "symptoms": [], "lost_gpu_seconds": 0, "action": "a", "runbook": "/r",
    "detail": "", "limits": "", "explained_by": None,
}  # fmt: skip


def test_an_entity_of_an_unknown_kind_is_shown_by_its_name() -> None:
    body = msgspec.json.encode({"timestamp_ns": 1, "rows": [INCIDENT]})
    document = decode_document(body, api.IncidentList)
    (incident,) = document.rows
    assert incident.cause == api.OtherDocument("power_supply r1 b2")
    assert incident.victims == (incident.cause, api.NodeDocument("n1"))
    row = incident_row(ClusterReading(1, {"incidents": document}, {}), incident)
    assert (row["severity"], row["names"], row["nodes"]) == (
        "alarming",
        ["power_supply r1 b2"],
        ["n1"],
    )


def test_the_name_of_an_unknown_entity_fits_a_line() -> None:
    cause = {"kind": "power_supply", "rack": "r" * 1000}
    body = msgspec.json.encode(INCIDENT | {"cause": cause})
    found = decode_document(body, api.IncidentDocument).cause
    assert isinstance(found, api.OtherDocument)
    assert found.name == f"power_supply {'r' * 1000}"[:MAX_NAME_LENGTH]


def test_an_unknown_state_is_shown_by_its_name() -> None:
    sent = {
        "timestamp_ns": 1,
        "rows": [{"node": "n1", "state": "draining", "reason": "two jobs are left"}],
    }
    document = decode_document(msgspec.json.encode(sent), api.NodeList)
    (row,) = node_table(ClusterReading(1, {"nodes": document}, {})).rows
    assert (row["state"], row["reason"]) == ("unknown", "draining: two jobs are left")


@pytest.mark.parametrize("cause", [None, [], "n1", {"kind": "node", "node": 5}])
def test_what_is_no_entity_is_rejected(cause: object) -> None:
    body = msgspec.json.encode(INCIDENT | {"cause": cause})
    with pytest.raises(msgspec.ValidationError, match=r"cause"):
        decode_document(body, api.IncidentDocument)
