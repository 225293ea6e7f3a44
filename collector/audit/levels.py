"""Comparison of the hash tiles of a log with the hashes computed from its records."""

from __future__ import annotations

from dataclasses import dataclass, field

from collector.audit.outcome import Outcome, VerifyError, missing_or_altered
from collector.audit.tiles import LEVELS, WIDTH, TileError, Tiles, complete_root, tile_name
from railscope.audit.merkle import HASH_BYTES, Hash


@dataclass(slots=True)
class Levels:
    """The hash tiles, each compared with the hashes of the records."""

    tiles: Tiles
    rows: list[list[Hash]] = field(default_factory=lambda: [[] for _ in range(LEVELS)])
    full: list[int] = field(default_factory=lambda: [0] * LEVELS)

    def add(self, leaves: list[Hash]) -> Hash | None:
        """Add the leaves of the next tile; return its root if it is full."""
        self._compare(0, leaves)
        if len(leaves) < WIDTH:
            return None
        self.full[0] += 1
        first = carried = complete_root(leaves)
        for level in range(1, LEVELS):
            row = self.rows[level]
            row.append(carried)
            if len(row) < WIDTH:
                break
            self._compare(level, row)
            self.full[level] += 1
            self.rows[level] = []
            carried = complete_root(row)
        return first

    def finish(self) -> None:
        """Compare the tiles that are not full."""
        for level in range(1, LEVELS):
            if self.rows[level]:
                self._compare(level, self.rows[level])

    def _compare(self, level: int, hashes: list[Hash]) -> None:
        name = tile_name(level, self.full[level], len(hashes))
        try:
            content = self.tiles.row(level, self.full[level])
        except TileError as error:
            raise VerifyError(missing_or_altered(error.__cause__), str(error)) from error
        if content != b"".join(hashes):
            wanted = [content[at : at + HASH_BYTES] for at in range(0, len(content), HASH_BYTES)]
            at = next((i for i, one in enumerate(hashes) if wanted[i : i + 1] != [one]), WIDTH)
            record = (self.full[level] * WIDTH + at) << (LEVELS * level)
            message = f"{name}: hash {at} is not that of what is stored, from record {record} on"
            raise VerifyError(Outcome.ALTERED, message)
