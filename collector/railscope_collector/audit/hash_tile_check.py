"""Check of the hash tiles of an audit log against the hashes of its records."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.audit import merkle
from railscope_collector.audit import tiles as tile_files
from railscope_collector.audit.verify_outcome import (
    LogVerificationError,
    VerifyOutcome,
    raise_tile_verify_error,
)


@dataclass(slots=True)
class HashTileCheck:
    """The hash tiles, each compared with the hashes of the records."""

    tiles: tile_files.Tiles
    rows: list[list[merkle.Hash]] = field(
        default_factory=lambda: [[] for _ in range(tile_files.LEVELS)]
    )
    full: list[int] = field(default_factory=lambda: [0] * tile_files.LEVELS)

    def add(self, leaves: list[merkle.Hash]) -> merkle.Hash | None:
        """Add the leaves of the next tile; return its root if it is full."""
        self._compare(0, leaves)
        if len(leaves) < tile_files.WIDTH:
            return None
        self.full[0] += 1
        first = carried = tile_files.complete_root(leaves)
        for level in range(1, tile_files.LEVELS):
            row = self.rows[level]
            row.append(carried)
            if len(row) < tile_files.WIDTH:
                break
            self._compare(level, row)
            self.full[level] += 1
            self.rows[level] = []
            carried = tile_files.complete_root(row)
        return first

    def finish(self) -> None:
        """Compare the tiles that are not full."""
        for level in range(1, tile_files.LEVELS):
            if self.rows[level]:
                self._compare(level, self.rows[level])

    def _compare(self, level: int, hashes: list[merkle.Hash]) -> None:
        name = tile_files.tile_name(level, self.full[level], len(hashes))
        with raise_tile_verify_error():
            content = self.tiles.row(level, self.full[level])
        if content != b"".join(hashes):
            stored = [
                content[at : at + merkle.HASH_BYTES]
                for at in range(0, len(content), merkle.HASH_BYTES)
            ]
            at = next(
                (i for i, hashed in enumerate(hashes) if stored[i : i + 1] != [hashed]),
                tile_files.WIDTH,
            )
            record = (self.full[level] * tile_files.WIDTH + at) << (tile_files.LEVELS * level)
            message = f"altered tile {name}: hash {at} does not match the stored data from record {record} on"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)
