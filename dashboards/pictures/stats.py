"""Single numbers, as large as they fit."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.asking import Answer
from dashboards.pictures import plot
from dashboards.pictures.canvas import Box, width_of
from dashboards.pictures.curves import name_of
from dashboards.pictures.fields import CannotDraw, Json, look_of

_LARGEST, _SMALLEST = 34.0, 14.0
_WIDTH_SHARE = 0.88


def draw(scene: plot.Scene, box: Box, panel: Json, answers: Sequence[Answer]) -> bool:
    """Draw a panel of numbers, side by side if there are several; return True if there is any."""
    look = look_of(panel["fieldConfig"], "Value", numeric=True)
    options = panel["options"]
    wanted = (options["reduceOptions"]["calcs"], options["colorMode"], options["graphMode"])
    if wanted != (["lastNotNull"], "value", "none"):
        message = f"no numbers reduced, coloured and drawn as {wanted}"
        raise CannotDraw(message)
    found = [
        (name_of({"legendFormat": "__auto", **target}, dict(one.labels)), float(one.values[-1]))
        for target, answer in zip(panel["targets"], answers, strict=True)
        for one in answer.series
    ]
    if not found:
        plot.nothing(scene.canvas, box, look.nothing or "No data")
        return False
    share = box.width / len(found)
    for position, (name, value) in enumerate(found):
        cell = Box(box.left + position * share, box.top, share, box.height)
        text, room = look.text(value), cell.width * _WIDTH_SHARE
        fitting = _LARGEST * 0.97 * room / max(width_of(text, _LARGEST, "bold"), 1)
        size = min(max(fitting, _SMALLEST), _LARGEST)
        across, down = cell.middle
        scene.canvas.text(
            (across, down), text, size=size, colour=look.colour(value), side="center", room=room,
            weight="bold",
        )  # fmt: skip
        if len(found) > 1:
            below = (across, cell.bottom - 8)
            scene.canvas.text(below, name, size=11, side="center", room=room)
    return True
