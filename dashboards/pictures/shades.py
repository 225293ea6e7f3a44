"""Small files: a picture with few colours, including exactly those with a meaning."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_BYTES = 250_000
_SHADES = (192, 128, 96, 64)
"""Numbers of colours of a picture, tried in order until its file is small enough."""

Colours = NDArray[np.uint8]
"""Red, green and blue in the last dimension."""


def png(drawn: Colours, kept: Sequence[str]) -> bytes:
    """Return a picture as PNG bytes; colours of `kept`, as #rrggbb, remain unchanged."""
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
    """Return colours that represent all colours of a picture."""
    found = Image.fromarray(drawn).quantize(
        shades, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
    )
    palette: Colours = np.array(found.getpalette(), np.uint8).reshape(-1, 3)
    return palette[:shades]


def _split(numbers: NDArray[np.intp]) -> NDArray[np.float32]:
    parts = [numbers >> 16 & 255, numbers >> 8 & 255, numbers & 255]
    return np.stack(parts, axis=-1).astype(np.float32)


def _nearest(colours: NDArray[np.float32], palette: Colours) -> NDArray[np.uint8]:
    """Return the position in the palette of the colour nearest to each."""
    known = palette.astype(np.float32)
    distance = (known**2).sum(axis=1) - 2 * colours @ known.T  # less the term common to all
    places: NDArray[np.uint8] = distance.argmin(axis=1).astype(np.uint8)
    return places
