from pathlib import Path

import pytest
from structlog.testing import capture_logs

from collector.claims import FOREVER_NS, Claim, ClaimsError, ClaimsFile, parse

GOOD = "tenant,holds,from,to\nvision,gpu-node-1,2026-01-01T00:00:00Z,2026-01-01T01:00:00+00:00\n"


def test_a_file_of_claims():
    claims = parse("# who holds what\n" + GOOD + "speech,GPU-1,2026-01-01T02:00:00.000001+02:00,\n")
    start = 1_767_225_600 * 1_000_000_000
    hour = 3600 * 1_000_000_000
    assert claims.by_target["gpu-node-1"] == (Claim(start, start + hour, "vision", "gpu-node-1"),)
    assert claims.by_target["GPU-1"] == (Claim(start + 1000, FOREVER_NS, "speech", "GPU-1"),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "header must be tenant,holds,from,to"),
        ("who,what\n", "header must be"),
        ("tenant,holds,from,to\na,b,2026-01-01T00:00:00Z\n", "line 2: needs"),
        ("tenant,holds,from,to\n,b,2026-01-01T00:00:00Z,\n", "line 2: needs"),
        ("tenant,holds,from,to\na,b,yesterday,\n", "line 2: 'yesterday' is no time"),
        ("tenant,holds,from,to\na,b,2026-01-01T00:00:00,\n", "has no offset; write Z"),
        ("tenant,holds,from,to\na,b,2026-01-02T00:00:00Z,2026-01-01T00:00:00Z\n", "ends before"),
    ],
)
def test_a_wrong_line_is_named(text: str, problem: str):
    with pytest.raises(ClaimsError, match=problem):
        parse(text)


def test_a_broken_file_leaves_the_last_good_claims_in_force(tmp_path: Path):
    path = tmp_path / "claims.csv"
    path.write_text(GOOD)
    watched = ClaimsFile(path)
    watched.refresh()
    assert watched.valid
    path.write_text(GOOD + "broken\n")
    with capture_logs() as logs:
        watched.refresh()
        watched.refresh()
    assert not watched.valid
    assert "gpu-node-1" in watched.claims.by_target
    assert [line["event"] for line in logs] == ["claims_refused"], "said once"
    assert "line 3" in logs[0]["problem"]
    path.write_text(GOOD.replace("vision", "speech"))
    watched.refresh()
    assert watched.valid
    assert watched.claims.by_target["gpu-node-1"][0].tenant == "speech"
    path.unlink()
    watched.refresh()
    assert not watched.valid
