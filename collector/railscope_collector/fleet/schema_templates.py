"""Checks of schemas, and templates of valid ones: the bytes that those of nodes of one build have in common.

Such schemas differ in the UUIDs and serial numbers of their GPUs only, which have equal lengths and are at
the same offsets. A schema that equals a template except for these texts is valid if the template is, and
everything derived from it has other UUIDs and is otherwise equal: it is not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from sys import intern
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from railscope.catalog import KINDS, METRICS
from railscope.catalog.entities import GPU
from railscope.device_names import devices_in
from railscope.wire import WireEntity, WireError, WireSchema
from railscope_collector.fleet.schema_files import encode_schema, schema_digest

if TYPE_CHECKING:
    from railscope_collector.fleet.schemas import KnownSchema

MAX_GPUS = 256
GPU_KIND = "gpu"
MAX_TEMPLATES, MAX_TEMPLATE_BYTES, MAX_VARIANTS = 256, 16 << 20, 8
"""Limits of all templates, and of those with equal beginnings and sizes. The least recently used are dropped."""
_SERIAL = "serial"
# Of MessagePack, a longer or shorter text has a head of another size; a very short one could be equal to another text
# by chance.
_MIN_TEXT, _MAX_TEXT = 8, 255
_BEGINNING = 64
_encode = msgspec.msgpack.encode


def check_schema(schema: WireSchema, limit: int) -> None:
    """Reject a schema that exceeds its bounds or contradicts this version's catalog. Raises WireError."""
    columns = sum(len(group.entities) for group in schema.groups)
    check_schema_size(schema.stream, max(columns, len(schema.entities), len(schema.groups)), limit)
    for problem in _find_problems(schema):
        raise WireError(problem)


def check_schema_size(stream: str, size: int, limit: int) -> None:
    """Reject a schema with too many columns, groups or entities. Raises WireError."""
    if size > limit:
        message = f"schema of stream {stream!r}: expected at most {limit} columns and entities"
        raise WireError(message)


def _find_problems(schema: WireSchema) -> Iterator[str]:
    stream, count = f"schema of stream {schema.stream!r}", len(schema.entities)
    if [entity.kind for entity in schema.entities].count(GPU_KIND) > MAX_GPUS:
        yield f"{stream}: expected at most {MAX_GPUS} GPUs"
    for group in schema.groups:
        metric = METRICS.get(group.metric)
        if group.entities and not 0 <= min(group.entities) <= max(group.entities) < count:
            yield f"{stream}: column without an entity"
        elif group.scale[1] <= 0:
            yield f"metric {group.metric}: invalid scale {group.scale}: expected positive integers"
        elif metric and metric.scale.as_integer_ratio() != tuple(group.scale):
            fix = "run the same version of agent and collector"
            yield f"metric {group.metric}: the sender declares another scale; fix: {fix}"
    for name, length in {(entity.kind, len(entity.key)) for entity in schema.entities}:
        kind = KINDS.get(name)
        if kind and length != len(kind.labels):
            labels = f"{length} labels: expected {', '.join(kind.labels)}"
            yield f"{stream}: entity {name} with {labels}"


class TemplateMatch(NamedTuple):
    """A schema that equals a template except for some texts."""

    like: KnownSchema
    """The schema from which the template was made."""
    size: int
    """Columns, groups or entities of the schema, whichever is most."""
    texts: Mapping[str, str]
    """Its texts, by those of the other schema."""
    devices: tuple[bytes, ...]
    """Its encoded entities that are devices with names."""


class EncodedSchema(NamedTuple):
    """A schema as stored, its hash, and its content: decoded, unless it need not be."""

    content: bytes
    digest: bytes
    form: WireSchema | TemplateMatch | KnownSchema

    @classmethod
    def from_wire(cls, wire: WireSchema) -> EncodedSchema:
        """Encode a schema."""
        content = encode_schema(wire)
        return cls(content, schema_digest(content), wire)

    def check(self, limit: int) -> None:
        """Reject a schema that exceeds its bounds or contradicts the catalog. Raises WireError."""
        if isinstance(self.form, WireSchema):
            check_schema(self.form, limit)
        elif isinstance(self.form, TemplateMatch):
            # Checked in all else with the schema of the template.
            check_schema_size(self.form.like.layout.stream, self.form.size, limit)


@dataclass(slots=True, eq=False)
class SchemaTemplate:
    """The pieces between the variable texts of an encoded schema, and the number of the text in each gap."""

    like: KnownSchema
    size: int
    pieces: list[bytes]
    gaps: tuple[int, ...]
    places: tuple[slice, ...]
    """The first place of each text."""
    texts: tuple[str, ...]
    devices: tuple[slice, ...]
    content_bytes: int
    used: int = 0
    """Number of the last use, among those of all templates."""

    @classmethod
    def from_schema(
        cls, wire: WireSchema, content: bytes, like: KnownSchema
    ) -> SchemaTemplate | None:
        """Return the template of a valid schema; None if it has no variable texts."""
        starts = _entity_starts(wire, content)
        found = [
            place
            for entity, start in zip(wire.entities, starts, strict=False)
            for place in _variable_texts(entity, start)
        ]
        # The beginning is the key of the template, so no variable text may be in it.
        if not found or found[0][0] < _BEGINNING:
            return None
        numbers: dict[str, int] = {}
        places: list[slice] = []
        pieces, gaps, position = [], [], 0
        for start, text in found:
            number = numbers.setdefault(text, len(numbers))
            if number == len(places):
                places.append(slice(start, start + len(text)))
            pieces += [content[position:start], b""]
            gaps.append(number)
            position = start + len(text)
        pieces.append(content[position:])
        devices = {id(entity) for entity in devices_in(wire.entities)}
        spans = tuple(
            slice(starts[n], starts[n + 1])
            for n, entity in enumerate(wire.entities)
            if id(entity) in devices
        )
        size = max(like.layout.columns, len(wire.groups), len(wire.entities))
        return cls(
            like, size, pieces, tuple(gaps), tuple(places), tuple(numbers), spans, len(content)
        )

    def match(self, content: bytes) -> TemplateMatch | None:
        """Return the variable texts of another encoded schema; None if it is different otherwise."""
        found = [content[place] for place in self.places]
        parts = self.pieces.copy()
        parts[1::2] = [found[number] for number in self.gaps]
        joined = b"".join(found)
        if (
            b"".join(parts) != content
            # Two GPUs of one UUID are invalid, which only the full check would find.
            or len(set(found)) < len(found)
            or not (joined.isascii() and joined.decode("ascii").isprintable())
        ):
            return None
        texts = dict(zip(self.texts, [intern(text.decode("ascii")) for text in found], strict=True))
        return TemplateMatch(
            self.like, self.size, texts, tuple(content[span] for span in self.devices)
        )


def _entity_starts(wire: WireSchema, content: bytes) -> list[int]:
    """Return the offset of each entity in an encoded schema, and last the end of all: they are its end."""
    starts = [len(content)]
    # From the end, as the entities are last: what precedes them needs no parsing.
    for entity in reversed(wire.entities):
        starts.append(starts[-1] - len(_encode(entity)))
    return starts[::-1]


def _variable_texts(entity: WireEntity, start: int) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each variable text of an entity."""
    kind = KINDS.get(entity.kind)
    position = start + 1 + len(_encode(entity.kind)) + _head_bytes(len(entity.key))
    if kind and kind.outermost is GPU and entity.key and _is_variable(entity.key[0]):
        yield position + _text_head_bytes(entity.key[0]), entity.key[0]
    position += sum(len(_encode(word)) for word in entity.key) + _head_bytes(len(entity.facts))
    for name, text in entity.facts.items():
        position += len(_encode(name))
        if name == _SERIAL and _is_variable(text):
            yield position + _text_head_bytes(text), text
        position += len(_encode(text))


def _is_variable(text: str) -> bool:
    return _MIN_TEXT <= len(text) <= _MAX_TEXT and text.isascii()


def _head_bytes(items: int) -> int:
    """Return the bytes before the items of an encoded array or map."""
    return len(_encode([0] * items)) - items


def _text_head_bytes(text: str) -> int:
    """Return the bytes before an encoded text of ASCII."""
    return len(_encode(text)) - len(text)


class SchemaTemplates:
    """Templates by size and beginning of the content."""

    def __init__(self) -> None:
        self._variants: dict[tuple[int, bytes], tuple[SchemaTemplate, ...]] = {}
        self._uses = 0
        self._lock = Lock()

    def find(self, content: bytes) -> TemplateMatch | None:
        """Return how an encoded schema matches a template; None if it matches none."""
        for template in self._variants.get(_key_of(content), ()):
            if match := template.match(content):
                self._uses += 1
                template.used = self._uses
                return match
        return None

    def add(self, wire: WireSchema, content: bytes, schema: KnownSchema) -> None:
        """Add the template of a valid schema that matches none; drop others above the limits."""
        template = SchemaTemplate.from_schema(wire, content, schema)
        if template is None:
            return
        with self._lock:
            self._uses += 1
            template.used = self._uses
            key = _key_of(content)
            variants = (*self._variants.get(key, ()), template)
            excess = len(variants) - MAX_VARIANTS
            self._variants[key] = tuple(sorted(variants, key=_last_use)[max(excess, 0) :])
            templates = sorted(self._all(), key=_last_use, reverse=True)
            sizes = accumulate(each.content_bytes for each in templates)
            retained = {
                id(each)
                for number, (each, size) in enumerate(zip(templates, sizes, strict=True))
                if number < MAX_TEMPLATES and size <= MAX_TEMPLATE_BYTES
            }
            if len(retained) < len(templates):
                self._retain(lambda each: id(each) in retained)

    def drop_unused(self, shapes: Container[bytes]) -> None:
        """Drop templates of shapes that no stored schema has."""
        with self._lock:
            self._retain(lambda template: template.like.shape in shapes)

    def _retain(self, is_retained: Callable[[SchemaTemplate], bool]) -> None:
        groups = {key: tuple(filter(is_retained, group)) for key, group in self._variants.items()}
        self._variants = {key: variants for key, variants in groups.items() if variants}

    def _all(self) -> list[SchemaTemplate]:
        return [template for variants in self._variants.values() for template in variants]

    def __len__(self) -> int:
        """Return the number of templates."""
        return len(self._all())


def _last_use(template: SchemaTemplate) -> int:
    return template.used


def _key_of(content: bytes) -> tuple[int, bytes]:
    return len(content), content[:_BEGINNING]
