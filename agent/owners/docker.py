"""Docker's container file: /var/lib/docker/containers/ID/config.v2.json.

The file contains the container's environment, which may hold secrets: only the name and the requested label
are returned. Source: moby/moby:daemon/container/container.go, api/types/container/config.go.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from agent.owners import FormatError


class _Config(msgspec.Struct):
    Labels: dict[str, str] | None = None


class _Container(msgspec.Struct):
    Name: str = ""
    Config: _Config | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """Name of a container, and the value of one of its labels; empty if it has none."""

    name: str
    label: str


def container(content: bytes, label: str) -> Container:
    """Parse the file of a container. Raises FormatError."""
    try:
        found = msgspec.json.decode(content, type=_Container)
    except msgspec.MsgspecError as error:
        message = f"no container as Docker keeps it: {error}"
        raise FormatError(message) from error
    labels = (found.Config.Labels if found.Config else None) or {}
    return Container(found.Name.removeprefix("/"), labels.get(label, "") if label else "")
