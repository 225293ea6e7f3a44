"""A schema that differs from another one in the names of its GPUs only is derived from it, not decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railscope.catalog import METRICS
from railscope.wire import WireEntity, WireGroup, WireSchema
from railscope_collector.fleet.schema_files import encode_schema
from railscope_collector.fleet.schema_templates import (
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
