"""Small files: a picture with few colours, among them exactly those that mean something."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_BYTES = 250_000
_SHADES = (192, 128, 96, 64)
"""How many colours a picture has: as many as keep its file small, if any do."""

Colours = NDArray[np.uint8]
"""Red, green and blue in the last dimension."""


def png(drawn: Colours, kept: Sequence[str]) -> bytes:
    """A picture as a file of PNG; colours of `kept`, as #rrggbb, stay what they are."""
    fixed = np.array([list(bytes.fromhex(colour[1:])) for colour in kept], np.uint8).reshape(-1, 3)
    red, green, blue = (drawn[:, :, part].astype(np.int32) for part in range(3))
    numbers = red << 16 | green << 8 | blue
    present = np.flatnonzero(np.bincount(numbers.ravel(), minlength=1 << 24))
    places = np.zeros(1 << 24, np.uint8)
    for shades in _SHADES:
        palette = np.concatenate([fixed, _cut(drawn, max(shades - len(fixed), 1))])[:256]
        places[present] = _nearest(_split(present), palette)
        reduced = Image.fromarray(places[numbers])
        reduced.putpalette(palette.tobytes())
        file = io.BytesIO()
        reduced.save(file, "PNG", optimize=True)
        if file.tell() <= MAX_BYTES:
            break
    return file.getvalue()


def _cut(drawn: Colours, shades: int) -> Colours:
    """Colours that stand for all there are."""
    found = Image.fromarray(drawn).quantize(
        shades, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
    )
    palette: Colours = np.array(found.getpalette(), np.uint8).reshape(-1, 3)
    return palette[:shades]


def _split(numbers: NDArray[np.intp]) -> NDArray[np.float32]:
    parts = [numbers >> 16 & 255, numbers >> 8 & 255, numbers & 255]
    return np.stack(parts, axis=-1).astype(np.float32)


def _nearest(colours: NDArray[np.float32], palette: Colours) -> NDArray[np.uint8]:
    """The place in the palette of the colour that is nearest to each."""
    known = palette.astype(np.float32)
    distance = (known**2).sum(axis=1) - 2 * colours @ known.T  # less what all have in common
    places: NDArray[np.uint8] = distance.argmin(axis=1).astype(np.uint8)
    return places
