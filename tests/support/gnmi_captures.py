"""Answers of switches by gNMI: messages in protobuf's JSON form, as captures and tests hold them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format

from railscope_collector.switches import gnmi_messages, gnmi_updates, openconfig_reader

from .shared import capture_path

DIRECTORY = "switch/openconfig"


def encode_response(content: Mapping[str, Any]) -> bytes:
    """Return the message of a subscription with this content."""
    response = gnmi_messages.message_class("SubscribeResponse")()
    return bytes(json_format.ParseDict(content, response).SerializeToString())


def capture_messages(name: str) -> list[bytes]:
    """Return the messages of a capture; skips the test if it is missing."""
    text = capture_path(f"{DIRECTORY}/{name}.json").read_text()
    return [encode_response(content) for content in json.loads(text)]


def until_sync(messages: Iterable[bytes]) -> list[bytes]:
    """Return the messages of the state of a switch, without the changes that follow it."""
    found = []
    for body in messages:
        found.append(body)
        if gnmi_messages.decode("SubscribeResponse", body).sync_response:
            break
    return found


def leaves_of(messages: Iterable[bytes], tree: gnmi_updates.PathNode) -> gnmi_updates.Leaves:
    """Return the leaves of messages at the paths of a tree."""
    leaves = gnmi_updates.Leaves(tree)
    openconfig_reader.apply_messages(list(messages), leaves)
    return leaves
