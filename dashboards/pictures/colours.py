"""Grafana's dark theme: the colours that dashboards name, and those of curves in their order.

grafana: packages/grafana-data/src/themes/createVisualizationColors.ts, createColors.ts.
"""

from __future__ import annotations

PAGE = "#111217"
PANEL = "#181b1f"
BORDER = "#2c2e33"
GRID = "#26292e"
TEXT = "#ccccdc"
FAINT = "#8f919d"
LINK = "#6e9fff"

_HUES = {
    "red": "#F2495C",
    "orange": "#FF9830",
    "yellow": "#FADE2A",
    "green": "#73BF69",
    "blue": "#5794F2",
    "purple": "#B877D9",
    "light-red": "#FF7383",
    "light-orange": "#FFB357",
    "light-yellow": "#FFEE52",
    "light-green": "#96D98D",
    "light-blue": "#8AB8FF",
    "light-purple": "#CA95E5",
    "dark-red": "#C4162A",
    "dark-orange": "#FA6400",
    "dark-yellow": "#E0B400",
    "dark-green": "#37872D",
    "dark-blue": "#1F60C4",
    "dark-purple": "#8F3BB8",
    "text": TEXT,
    "transparent": PANEL,
}
_CURVES = (
    "#73BF69", "#FADE2A", "#5794F2", "#FF9830", "#F2495C", "#B877D9", "#37872D", "#E0B400",
    "#1F60C4", "#FA6400", "#C4162A", "#8F3BB8", "#C8F2C2", "#FFF899", "#C0D8FF", "#FFCB7D",
    "#FFA6B0", "#DEB6F2", "#447EBC", "#C15C17", "#890F02", "#0A437C", "#6D1F62", "#584477",
)  # fmt: skip


def named(colour: str) -> str:
    """Return a colour as #rrggbb. Raises KeyError for an unknown name."""
    return colour if colour.startswith("#") else _HUES[colour]


def of_curve(position: int) -> str:
    """Return the colour of the curve at a position in its panel, from 0."""
    return _CURVES[position % len(_CURVES)]


def mixed(colour: str, ground: str, share: float) -> str:
    """Return a colour mixed with a background, by a share from 0 to 1."""
    parts = zip(_parts(colour), _parts(ground), strict=True)
    return "#" + "".join(f"{round(top * share + below * (1 - share)):02x}" for top, below in parts)


def ink_on(ground: str) -> str:
    """Return white or nearly black, whichever is easier to read on a background."""
    red, green, blue = _parts(ground)
    light = 0.299 * red + 0.587 * green + 0.114 * blue  # luma of ITU-R BT.601
    return "#111217" if light > 145 else "#ffffff"  # noqa: PLR2004 - a little above the middle


def _parts(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
