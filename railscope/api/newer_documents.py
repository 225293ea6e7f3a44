"""Decoding of documents of newer collectors.

msgspec ignores unknown fields, and states and other words are texts of any value. An entity of an unknown kind, which a
tagged union would reject, becomes an `OtherDocument`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from railscope.api import OtherDocument

_Document = TypeVar("_Document")
MAX_NAME_LENGTH = 200


def decode_document(body: bytes, shape: type[_Document]) -> _Document:
    """Decode a document of a collector of this release, or of a newer one. Raises MsgspecError."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError:
        # Only then: the types of a document are inspected much slower than it is decoded.
        content = _name_unknown_kinds(msgspec.json.decode(body), inspect.type_info(shape))
        return msgspec.convert(content, shape)


def _name_unknown_kinds(content: Any, of: inspect.Type) -> Any:
    """Return content in which each struct of an unknown kind is an `OtherDocument`."""
    match of:
        case inspect.Metadata():
            return _name_unknown_kinds(content, of.type)
        case inspect.UnionType():
            return _name_in_union(content, of.types)
        case inspect.StructType() if isinstance(content, dict):
            fields = {each.encode_name: each.type for each in of.fields}
            known = {
                name: _name_unknown_kinds(content[name], fields[name])
                for name in fields.keys() & content.keys()
            }
            return content | known
        case inspect.DictType() if isinstance(content, dict):
            return {
                name: _name_unknown_kinds(each, of.value_type) for name, each in content.items()
            }
        case inspect.CollectionType() if isinstance(content, list):
            return [_name_unknown_kinds(each, of.item_type) for each in content]
    return content


def _name_in_union(content: Any, types: Sequence[inspect.Type]) -> Any:
    structs = [each for each in types if isinstance(each, inspect.StructType)]
    kinds = {each.tag: each for each in structs if each.tag is not None}
    if not kinds or not isinstance(content, dict):
        # Beside null, a member of a union in a document is the only one that contains others.
        for each in types if content is not None else ():
            content = _name_unknown_kinds(content, each)
        return content
    kind = content.get(structs[0].tag_field)
    known = kinds.get(kind) if isinstance(kind, str) else None
    return _name_unknown_kinds(content, known) if known else _other(content)


def _other(content: Mapping[str, Any]) -> Any:
    """Return an entity of an unknown kind by its kind and its names."""
    texts = [value for value in content.values() if isinstance(value, str) and value]
    return msgspec.to_builtins(OtherDocument(" ".join(texts)[:MAX_NAME_LENGTH]))
