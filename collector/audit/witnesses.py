"""Who vouches for the log: the newest checkpoint that each agent has cosigned, beside the log.

The file is written now and then. What is lost of it agents say again; what they say is believed for
its signatures alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from collector.segments import write_durably
from railscope.audit.cosignature import key_name, parse_witness_key, witnessed

FILE = "witnesses"


class Vouched(msgspec.Struct, frozen=True):
    """A checkpoint with a witness's cosignature, and the key that it is of."""

    note: str
    key: str

    def seconds(self) -> int:
        """When the witness saw it. Raises NoteError."""
        return witnessed(self.note, parse_witness_key(self.key))

    def is_of(self, node: str) -> bool:
        """Whether the key is in the node's own name. Raises NoteError where it is none."""
        return parse_witness_key(self.key).name == key_name(node)


class WitnessError(ValueError):
    """The file does not read back; the message names it."""


@dataclass(slots=True)
class Witnesses:
    """The agents' cosignatures, by node."""

    folder: Path
    nodes: dict[str, Vouched] = field(default_factory=dict)
    changed: bool = False

    def put(self, node: str, vouched: Vouched) -> None:
        """Keep what a node says, once it is checked."""
        self.nodes[node] = vouched
        self.changed = True

    def save(self) -> None:
        """Make it durable, if something is new. Blocking; raises OSError."""
        if self.changed:
            self.changed = False
            write_durably(self.folder / FILE, msgspec.json.encode(self.nodes, order="sorted"))


def read_witnesses(folder: Path) -> dict[str, Vouched]:
    """What lies beside a log, unchecked. Raises WitnessError, OSError."""
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Vouched])
    except FileNotFoundError:
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"{path}: {error}"
        raise WitnessError(message) from error
