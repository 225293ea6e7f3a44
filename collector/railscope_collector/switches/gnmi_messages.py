"""Messages of gNMI, as descriptors of the official definition (`vendor/`).

Code generated from the definition would require one range of versions of protobuf.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message,
    message_factory,
)

from railscope_collector.switches.switch_reading import SwitchReadError

VERSION = "0.10.0"
"""Version of the definition."""
MAX_VALUES = 400_000
"""Colons in a text of JSON, which precede each of its values: 512 ports of 20 queues with 16 values have 174,000."""
MAX_DETAILS = 200
"""Characters of a message of others that an error quotes."""
ShapeT = TypeVar("ShapeT")


@functools.cache
def message_class(name: str) -> type[Any]:
    """Return the class of a message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"gnmi.{name}"))


@functools.cache
def enumeration(name: str) -> Mapping[int, str]:
    """Return the names of an enumeration by their numbers."""
    return {
        number: value.name
        for number, value in _pool().FindEnumTypeByName(f"gnmi.{name}").values_by_number.items()
    }


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    # A pool of its own: another library in this process may register the same files in the default one.
    pool = descriptor_pool.DescriptorPool()
    content = Path(__file__).with_name("vendor").joinpath("gnmi.binpb").read_bytes()
    for module in (any_pb2, descriptor_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def encode(name: str, **fields: object) -> bytes:
    """Return a message with these fields."""
    return bytes(message_class(name)(**fields).SerializeToString())


def decode(name: str, body: bytes) -> Any:
    """Return a message that a switch sent. Raises SwitchReadError."""
    try:
        return message_class(name).FromString(body)
    except message.DecodeError as error:
        text = f"malformed answer: {error}"
        raise SwitchReadError(text) from error


def decode_json(content: bytes, shape: type[ShapeT]) -> ShapeT:
    """Return the value in a text of JSON. Raises SwitchReadError."""
    # Before the text is decoded, which takes many times its size in memory.
    if content.count(b":") > MAX_VALUES:
        text = f"too many values in an answer: expected at most {MAX_VALUES}"
        raise SwitchReadError(text, "limit")
    try:
        # Fractions stay text: no value may be rounded.
        return msgspec.json.Decoder(shape, float_hook=str).decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        text = f"invalid JSON in an answer: {str(error)[:MAX_DETAILS]}"
        raise SwitchReadError(text) from error
