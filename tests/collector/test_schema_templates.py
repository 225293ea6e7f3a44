"""A schema that differs from another one in the names of its GPUs only is derived from it, not decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from railscope.catalog import METRICS
from railscope.wire import WireEntity, WireError, WireGroup, WireSchema
from railscope_collector.fleet.schema_files import encode_schema
from railscope_collector.fleet.schema_templates import (
    MAX_TEMPLATES,
    MAX_VARIANTS,
    SchemaTemplate,
    SchemaTemplates,
    TemplateMatch,
)
from railscope_collector.fleet.schemas import KnownSchema, StoredSchemas

SERIALS = ("1650000000001", "1650000000002", "1650000000003")
UUIDS = tuple(f"GPU-{number:08x}-aaaa" for number in range(3))
STREAMS = {
    "gpu": ("railscope_gpu_energy_joules_total", "gpu"),
    "gpu_activity": ("railscope_gpu_busy_seconds_total", "gpu"),
    "gpu_settings": ("railscope_gpu_clock_hertz", "gpu_clock"),
    "mig": ("railscope_mig_memory_used_bytes", "mig"),
}


def schema_of(
    stream: str,
    uuids: Sequence[str] = UUIDS,
    serials: Sequence[str] = SERIALS,
    model: str = "NVIDIA H100 80GB HBM3",
) -> WireSchema:
    """Return a schema with a column of the metric of the stream for each GPU."""
    metric, kind = STREAMS[stream]
    parts = {"gpu_clock": ("graphics",), "mig": ("MIG-0",)}.get(kind, ())
    entities = [
        WireEntity(
            "gpu",
            (uuid,),
            {
                "index": str(rail),
                "model": model,
                "pci_address": f"0000:0{rail}:00.0",
                "serial": serial,
                "rail": str(rail),
            },
        )
        for rail, (uuid, serial) in enumerate(zip(uuids, serials, strict=True))
    ]
    facts = {"profile": "1g.10gb", "gpu_instance": "7"} if kind == "mig" else {}
    entities += [WireEntity(kind, (uuid, *parts), facts) for uuid in uuids if parts]
    count = len(uuids)
    members = tuple(range(count, 2 * count) if parts else range(count))
    scale = METRICS[metric].scale.as_integer_ratio()
    return WireSchema(stream, (WireGroup(metric, scale, members),), tuple(entities))


def with_group(wire: WireSchema, **changes: Any) -> WireSchema:
    """Return a schema with another group of columns."""
    replace = msgspec.structs.replace
    return replace(wire, groups=(replace(wire.groups[0], **changes),))


def plain(value: Any) -> Any:
    """Return a derived value as plain data, which can be compared."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value


def opened(directory: Path) -> StoredSchemas:
    schemas = StoredSchemas(directory)
    assert schemas.open() == 0
    return schemas


def stored(schemas: StoredSchemas, wire: WireSchema) -> tuple[KnownSchema, bool]:
    """Store a schema as received; return it, and true if it matched a template."""
    encoded = schemas.recognize(encode_schema(wire))
    encoded.check(1000)
    (known,) = schemas.put_all([encoded])
    return known, isinstance(encoded.form, TemplateMatch)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_schema_with_other_names_of_gpus_has_the_same_content_as_if_it_were_decoded(
    stream: str, tmp_path: Path
):
    other = schema_of(stream, tuple(uuid[:-4] + "bbbb" for uuid in UUIDS), SERIALS[::-1])
    schemas = opened(tmp_path / "both")
    first, _ = stored(schemas, schema_of(stream))
    known, is_match = stored(schemas, other)
    alone, _ = stored(opened(tmp_path / "alone"), other)
    assert is_match
    assert known.layout is first.layout
    assert plain(known) == plain(alone)
    assert schemas.read(known.digest) == other
    again = opened(tmp_path / "both").get(known.digest)
    assert plain(again) == plain(alone)


printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=17, max_size=17)


@given(st.lists(st.one_of(printable, st.sampled_from(UUIDS)), min_size=3, max_size=3))
def test_any_names_of_equal_length_are_assigned_as_if_they_were_decoded(uuids: list[str]):
    first, other = schema_of("gpu_settings"), schema_of("gpu_settings", uuids)
    template = template_of(first)
    match = template.match(encode_schema(other))
    assert (match is None) == (len(set(uuids)) < len(uuids))
    if match:
        entities = [
            WireEntity(each.kind, (match.texts[each.key[0]], *each.key[1:]), each.facts)
            for each in first.entities
        ]
        assert tuple(entities) == other.entities
        assert [msgspec.msgpack.decode(each, type=WireEntity) for each in match.devices] == list(
            other.entities[:3]
        )


def template_of(wire: WireSchema) -> SchemaTemplate:
    template = SchemaTemplate.from_schema(wire, encode_schema(wire), known_schema(wire))
    assert template is not None
    return template


def known_schema(wire: WireSchema) -> KnownSchema:
    """Derive a schema without storing it."""
    schemas = StoredSchemas(Path())
    return schemas._derive(schemas.recognize(encode_schema(wire)))  # noqa: SLF001 - nothing is written


@pytest.mark.parametrize(
    "other",
    {
        "model": schema_of("gpu", model="NVIDIA H200 80GB HBM3"),
        "length": schema_of("gpu", (*UUIDS[:2], "GPU-short")),
        "equal": schema_of("gpu", (UUIDS[0], UUIDS[0], UUIDS[2])),
        "serial": schema_of("gpu", serials=(SERIALS[0], UUIDS[0][:13], SERIALS[0])),
        "unprintable": schema_of("gpu", (*UUIDS[:2], UUIDS[2][:-1] + "\n")),
        "not ASCII": schema_of("gpu", (*UUIDS[:2], UUIDS[2][:-2] + "é")),
        "metric": with_group(schema_of("gpu"), metric="railscope_gpu_energy_joules_tota1"),
        "stream": schema_of("gpu_activity"),
    }.values(),
    ids=str,
)
def test_a_schema_with_any_other_difference_is_decoded(other: WireSchema):
    assert template_of(schema_of("gpu")).match(encode_schema(other)) is None


def test_the_checks_of_a_schema_hold_for_those_like_it(tmp_path: Path):
    schemas = opened(tmp_path)
    wrong = with_group(schema_of("gpu"), scale=(1, 10))
    schemas.put(wrong)
    other = schemas.recognize(encode_schema(replace_uuid(wrong)))
    with pytest.raises(WireError, match="declares another scale"):
        other.check(1000)
    stored(schemas, schema_of("gpu"))
    match = schemas.recognize(encode_schema(replace_uuid(schema_of("gpu"))))
    with pytest.raises(WireError, match="at most 2 columns"):
        match.check(2)


def replace_uuid(wire: WireSchema) -> WireSchema:
    entity, *others = wire.entities
    renamed = msgspec.structs.replace(entity, key=("GPU-ffffffff-ffff",))
    return msgspec.structs.replace(wire, entities=(renamed, *others))


def test_templates_are_limited_and_the_least_recently_used_are_dropped():
    known = known_schema(schema_of("gpu"))
    templates = SchemaTemplates()
    for number in range(2 * MAX_VARIANTS):
        wire = schema_of("gpu", model=f"model {number:02}")
        templates.add(wire, encode_schema(wire), known)
        assert templates.find(encode_schema(schema_of("gpu", model="model 00"))) is not None
    assert len(templates) == MAX_VARIANTS
    assert templates.find(encode_schema(schema_of("gpu", model="model 01"))) is None
    for number in range(MAX_TEMPLATES + 9):
        wire = schema_of("gpu", model="m" * (number + 20))
        templates.add(wire, encode_schema(wire), known)
    assert len(templates) == MAX_TEMPLATES
    assert templates.find(encode_schema(schema_of("gpu", model="model 00"))) is None
    templates.drop_unused({known.shape})
    assert len(templates) == MAX_TEMPLATES
    templates.drop_unused(())
    assert len(templates) == 0


def test_a_template_is_released_with_the_schemas_of_its_shape(tmp_path: Path):
    schemas = opened(tmp_path)
    first, _ = stored(schemas, schema_of("gpu"))
    other, is_match = stored(schemas, replace_uuid(schema_of("gpu")))
    assert is_match
    schemas.segment = 5
    schemas.release_unused(9, {other.digest})
    assert schemas.get(first.digest) is None
    assert stored(schemas, schema_of("gpu"))[1], "another schema has the shape"
    schemas.release_unused(9, set())
    assert not stored(schemas, schema_of("gpu"))[1]
