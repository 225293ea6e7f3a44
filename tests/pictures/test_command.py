"""`python -m railscope_dashboards.pictures`, its wrong uses, and the pictures of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from railscope_dashboards.build import DASHBOARDS
from railscope_dashboards.pictures import site
from railscope_dashboards.pictures.__main__ import main
from railscope_dashboards.pictures.layout import WIDTH

PICTURES = Path(__file__).parent.parent.parent / "docs" / "pictures"
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--dashboard", "railz"], "unknown dashboard: railz: expected one of audit, "),
        (
            ["--range", "soon"],
            "invalid duration 'soon': expected a number and a unit such as 90s, 10m or 6h",
        ),
        (["--range", "0m"], "invalid duration"),
        (["--choose", "node"], "invalid choice 'node': expected VARIABLE=VALUE"),
        (["--choose", "nodes=n1"], "unknown variable: nodes: expected one of "),
        (["--dashboard", "audit"], f"no response from {NOWHERE}/api/v1/"),
    ],
)
def test_a_wrong_use_is_one_line(arguments: list[str], output: str, tmp_path: Path):
    outcome = CliRunner().invoke(
        main, ["--prometheus", NOWHERE, "--to", str(tmp_path / "new"), *arguments]
    )
    assert outcome.exit_code in {1, 2}
    assert output in outcome.output
    assert "Traceback" not in outcome.output


def test_there_is_a_picture_of_every_dashboard():
    wanted = {*DASHBOARDS, *(f"{name}-top" for name in site.TOPS), *site.CONSOLE_PAGES}
    assert {path.stem for path in PICTURES.iterdir()} == wanted
    for path in PICTURES.iterdir():
        with Image.open(path) as image:
            assert (image.format, image.width) == ("PNG", WIDTH)
        assert path.stat().st_size < 350_000, path


def test_what_is_drawn_of_a_cluster_names_dashboards_and_servers_that_are_there():
    assert site.TOPS.keys() | site.CHOSEN.keys() <= DASHBOARDS.keys()
    names = {server.spec.node for server in site.SITE_NODES}
    assert len(names) == len(site.SITE_NODES)
    assert {values["node"] for values in site.CHOSEN.values()} <= names
