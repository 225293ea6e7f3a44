"""`python -m railscope_dashboards.pictures`: draw dashboards from the current answers of a Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from railscope_dashboards import prometheus_api
from railscope_dashboards.pictures.fields import UnsupportedFeatureError
from railscope_dashboards.pictures.layout import WIDTH, draw_dashboard

DASHBOARDS = Path(__file__).parents[2] / "generated"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """Parse a duration such as 90s, 10m, 6h or 2d."""
    match = re.fullmatch(r"([1-9]\d*)([smhd])", value)
    if match is None:
        message = f"invalid duration {value!r}: expected a number and a unit such as 90s, 10m or 6h"
        raise click.BadParameter(message, context, parameter)
    return float(int(match[1]) * _SECONDS[match[2]])


@click.command()
@click.option("--prometheus", "url", required=True, help="Address, such as http://localhost:9090.")
@click.option(
    "--to",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory to write the pictures to.",
)
@click.option(
    "--dashboard", "names", multiple=True, help="Dashboard, by the name of its file; default: all."
)
@click.option(
    "--range",
    "shown",
    callback=_seconds,
    default="10m",
    show_default=True,
    help="Time range that dashboards show, up to now.",
)
@click.option(
    "--scrape-interval",
    "scrape",
    callback=_seconds,
    default="15s",
    show_default=True,
    help="Scrape interval of Prometheus.",
)
@click.option(
    "--choose",
    "choices",
    multiple=True,
    metavar="VARIABLE=VALUE",
    help="Value of a variable; default: its first value.",
)
@click.option(
    "--sections",
    type=click.IntRange(min=0),
    default=0,
    help="Maximum number of dashboard rows to draw; 0: all.",
)
def main(  # noqa: PLR0913 - options of a command
    *,
    url: str,
    directory: Path,
    names: tuple[str, ...],
    shown: float,
    scrape: float,
    choices: tuple[str, ...],
    sections: int,
) -> None:
    """Draw dashboards as pictures."""
    dashboards = _dashboards(names)
    requested = dict(_choice(choice, dashboards.values()) for choice in choices)
    now = time.time()
    window = prometheus_api.QueryWindow(now - shown, now, scrape)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(_draw_all(url, dashboards, window, requested, directory, sections))
    except (prometheus_api.PrometheusError, UnsupportedFeatureError) as error:
        raise click.ClickException(str(error)) from error


async def _draw_all(  # noqa: PLR0913, PLR0917 - values of the options
    url: str,
    dashboards: Mapping[str, Mapping[str, Any]],
    window: prometheus_api.QueryWindow,
    requested: prometheus_api.Values,
    directory: Path,
    sections: int,
) -> None:
    async with prometheus_api.Prometheus(url) as prometheus:
        for name, dashboard in dashboards.items():
            answers = await prometheus_api.query_dashboard(
                prometheus, dashboard, window, requested, WIDTH
            )
            picture = draw_dashboard(dashboard, answers, sections)
            path = directory / f"{name}.png"
            picture.canvas.save(path)
            empty = f"; no data in {', '.join(picture.empty.values())}" if picture.empty else ""
            click.echo(f"{path}: {len(picture.drawn)} panels drawn{empty}")


def _dashboards(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the dashboards of these names, all if there are none."""
    files = {path.stem: path for path in sorted(DASHBOARDS.glob("*.json"))}
    if unknown := [name for name in names if name not in files]:
        message = f"unknown dashboard: {', '.join(unknown)}: expected one of {', '.join(files)}"
        raise click.ClickException(message)
    return {name: json.loads(files[name].read_text()) for name in names or files}


def _choice(text: str, dashboards: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Return a variable's name, which at least one dashboard has, and its requested value."""
    name, equals, value = text.partition("=")
    if not equals:
        message = f"invalid choice {text!r}: expected VARIABLE=VALUE"
        raise click.ClickException(message)
    variables = {
        variable["name"] for dashboard in dashboards for variable in dashboard["templating"]["list"]
    }
    if name not in variables:
        message = f"unknown variable: {name}: expected one of {', '.join(sorted(variables))}"
        raise click.ClickException(message)
    return name, value


if __name__ == "__main__":
    main()
