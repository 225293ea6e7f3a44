"""Lines of administrators' files: each command is the content of a file, with `|` between its lines, and prints its problem.

A file that is read prints the number of its entries. Files with a header have it where the content does not begin with `!`.
"""

from __future__ import annotations

from pathlib import Path

from support.stories import Story

from railscope_collector.files import (
    calendar_file,
    claims_file,
    quotas_file,
    retirements_file,
    seller_file,
    tenants_file,
)
from railscope_collector.files.watched_file import FileError

KINDS = {
    "claims": (claims_file.parse_claims, "tenant,holds,from,to\n"),
    "shares": (claims_file.parse_claims, "tenant,holds,from,to,share\n"),
    "tenants": (tenants_file.parse_tenants, "tenant,source,owner,from,to\n"),
    "retired": (retirements_file.parse_retirements, "gpu,from,to,reason\n"),
    "quotas": (
        lambda text: quotas_file.parse_quotas(text).quotas,
        "tenant,gpu_hours,period,gpus,from,to\n",
    ),
    "budgets": (
        lambda text: quotas_file.parse_quotas(text).quotas,
        "tenant,gpu_hours,period,gpus,from,to,budget\n",
    ),
    "seller": (lambda text: seller_file.parse_seller(text).accounts, ""),
    "calendar": (lambda text: calendar_file.parse_calendar(text).entries, ""),
}


def parse(command: str) -> list[str]:
    kind, _, content = command.partition(" ")
    read, header = KINDS[kind]
    text = content.removeprefix("!") if content.startswith("!") else header + content
    try:
        return [f"{len(list(read(text.replace('|', chr(10)) + chr(10))))}"]
    except FileError as error:
        return [str(error)]


def test_file(story: Story) -> None:
    story.play(parse)


def test_a_broken_file_leaves_the_last_good_claims_in_force(tmp_path: Path) -> None:
    path = tmp_path / "claims.csv"
    good = "tenant,holds,from,to\nvision,n1,2026-01-01T00:00:00Z,\n"
    watched = claims_file.watch(path)
    watched.refresh()
    assert (watched.is_known, watched.is_valid) == (False, False)
    states = []
    for content in (good, good + "broken\n", good.replace("vision", "speech"), None, good):
        path.unlink(missing_ok=True) if content is None else path.write_text(content)
        watched.refresh()
        assert watched.is_known
        (claim,) = watched.content.by_target["n1"]
        states.append((claim.tenant, watched.is_valid))
    assert states == [
        ("vision", True), ("vision", False), ("speech", True), ("speech", False), ("vision", True),
    ]  # fmt: skip
