from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs

from railscope.timestamps import FOREVER_NS, parse_timestamp
from railscope_collector.files.claims_file import (
    FileClaim,
    FileClaims,
    parse_claims,
    watch,
)
from railscope_collector.files.tenants_file import parse_tenants
from railscope_collector.files.watched_file import FileError
from railscope_collector.metering.evidence import Evidence, NodeStay
from railscope_collector.metering.holders import claims_in_force

GOOD = "tenant,holds,from,to\nvision,gpu-node-1,2026-01-01T00:00:00Z,2026-01-01T01:00:00+00:00\n"


def test_a_file_of_claims():
    claims = parse_claims(
        "# who holds what\n" + GOOD + "speech,GPU-1,2026-01-01T02:00:00.000001+02:00,\n"
    )
    start = 1_767_225_600 * 1_000_000_000
    hour = 3600 * 1_000_000_000
    assert claims.by_target["gpu-node-1"] == (
        FileClaim(start, start + hour, "vision", "gpu-node-1"),
    )
    assert claims.by_target["GPU-1"] == (FileClaim(start + 1000, FOREVER_NS, "speech", "GPU-1"),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: invalid header: missing column from, gpu, tenant, to: expected"),
        ("who,what\n", "invalid header: unknown column what, who: expected"),
        ("tenant,holds,from,to\na,b,2026-01-01T00:00:00Z\n", "line 2: .*expected"),
        ("tenant,holds,from,to\n,b,2026-01-01T00:00:00Z,\n", "line 2: .*expected"),
        (
            "tenant,holds,from,to\na,b,yesterday,\n",
            "line 2: invalid from: invalid time 'yesterday'",
        ),
        ("tenant,holds,from,to\na,b,2026-01-01T00:00:00,\n", "expected RFC 3339 with an offset"),
        ("tenant,holds,from,to\na\0,b,2026-01-01T00:00:00Z,\n", "NUL"),
        (
            "tenant,holds,from,to\na,b,2026-01-02T00:00:00Z,2026-01-01T00:00:00Z\n",
            "expected an end after",
        ),
        (
            "# one\ntenant,holds,from,to\n\n# two\na,b,yesterday,\n",
            "line 5: invalid from: invalid time 'yesterday'",
        ),
        (
            "# one\r\ntenant,holds,from,to\r\na,b,yesterday,\r\n",
            "line 3: invalid from: invalid time 'yesterday'",
        ),
        ("# one\nwho,what\n", "line 2: invalid header"),
        ('tenant,holds,from,to\na,"b,2026-01-01T00:00:00Z,\n', "line 2: unexpected end"),
        ('tenant,holds,from,to\n#\na,"' + "b" * 140_000 + "\n", "line 3: field larger than"),
    ],
)
def test_a_wrong_line_is_named(text: str, problem: str):
    with pytest.raises(FileError, match=problem):
        parse_claims(text)


def test_a_broken_file_leaves_the_last_good_claims_in_force(tmp_path: Path):
    path = tmp_path / "claims.csv"
    path.write_text(GOOD)
    watched = watch(path)
    watched.refresh()
    assert watched.is_valid
    path.write_text(GOOD + "broken\n")
    with capture_logs() as logs:
        watched.refresh()
        watched.refresh()
    assert not watched.is_valid
    assert "gpu-node-1" in watched.content.by_target
    assert [line["event"] for line in logs] == ["claims_file_rejected"], "logged once"
    assert "line 3" in logs[0]["problem"]
    path.write_text(GOOD.replace("vision", "speech"))
    watched.refresh()
    assert watched.is_valid
    assert watched.content.by_target["gpu-node-1"][0].tenant == "speech"
    path.unlink()
    watched.refresh()
    assert not watched.is_valid
    path.write_text(GOOD.replace("vision", "speech"))
    watched.refresh()
    assert watched.is_valid, "the same words as before it went away"


def test_a_file_that_was_never_valid_has_no_claims(tmp_path: Path):
    assert watch(None).is_known, "no file: no one holds anything"
    path = tmp_path / "claims.csv"
    watched = watch(path)
    watched.refresh()
    assert not watched.is_known
    path.write_text("broken\n")
    watched.refresh()
    assert not watched.is_known
    path.write_text("tenant,holds,from,to\n")
    watched.refresh()
    assert watched.is_known, "no claims, and that for sure"
    path.write_text("broken\n")
    watched.refresh()
    assert (watched.is_known, watched.is_valid) == (True, False)


instant = st.integers(0, 20)
claim = st.builds(
    lambda start, length, tenant, target: FileClaim(start, start + length, tenant, target),
    instant,
    st.integers(1, 9),
    st.sampled_from("abc"),
    st.sampled_from(["GPU-1", "n1", "n2"]),
)


@given(st.lists(claim, max_size=8), instant)
def test_the_holder_of_a_node_is_the_tenant_that_is_billed(found: list[FileClaim], now: int):
    claims = FileClaims.from_claims({claim.id: claim for claim in found}.values())
    billed = claims_in_force(
        Evidence("GPU-0", (NodeStay(0, "n1"),), tuple(claims.claims_on_gpu("GPU-0", ["n1"])))
    )
    expected = [piece.value.tenant for piece in billed if piece.start_ns <= now < piece.end_ns]
    assert claims.node_holder("n1", now) == (expected[-1] if expected else "")


def test_an_earlier_claim_on_a_node_resumes_when_a_later_one_ends(tmp_path: Path):
    path = tmp_path / "claims.csv"
    path.write_text(
        "tenant,gpu,from,to\n"
        "a,n1,2026-01-01T00:00:00Z,\n"
        "b,n1,2026-02-01T00:00:00Z,2026-02-02T00:00:00Z\n"
        "d,n2,2026-01-01T00:00:00Z,2026-03-01T00:00:00Z\n"
        "e,n2,2026-01-01T00:00:00Z,2026-02-01T00:00:00Z\n"
    )
    with capture_logs() as logs:
        watched = watch(path)
        watched.refresh()
    days = ("2026-01-15", "2026-02-01", "2026-02-15")
    for node, tenants in {"n1": "aba", "n2": "edd"}.items():
        for day, tenant in zip(days, tenants, strict=True):
            instant_ns = parse_timestamp(f"{day}T12:00:00Z")
            assert watched.content.node_holder(node, instant_ns) == tenant
    overlaps = [line for line in logs if line["event"] == "claims_overlapped"]
    assert [(line["earlier_tenant"], line["later_tenant"]) for line in overlaps] == [
        ("a", "b"),
        ("d", "e"),
    ]


@given(st.lists(claim, max_size=8))
def test_tenants_that_overlap_are_found(found: list[FileClaim]):
    pairs = {
        (one.target, *sorted((one.tenant, other.tenant)))
        for one in found
        for other in found
        if one.target == other.target
        and one.tenant != other.tenant
        and max(one.start_ns, other.start_ns) < min(one.end_ns, other.end_ns)
    }
    named = {
        (b.target, *sorted((a.tenant, b.tenant)))
        for a, b in FileClaims.from_claims(found).find_overlaps()
    }
    assert named == pairs


def test_tenants_that_overlap_are_named_when_a_file_is_read(tmp_path: Path):
    path = tmp_path / "claims.csv"
    rows = [f"{tenant},n{i},2026-01-01T00:00:00Z,\n" for i in range(20) for tenant in ("a", "b")]
    path.write_text("tenant,holds,from,to\n" + "".join(rows))
    watched = watch(path)
    with capture_logs() as logs:
        watched.refresh()
        watched.refresh()
    reported = [line for line in logs if line["event"] == "claims_overlapped"]
    assert [
        (line["subject"], line["earlier_tenant"], line["later_tenant"]) for line in reported
    ] == [(f"n{i}", "a", "b") for i in range(10)]


def test_names_that_only_an_agent_resolves_are_reported(tmp_path: Path):
    path = tmp_path / "claims.csv"
    names = ["*", "0", "/dev/nvidia3", "0000:1b:00.0", "1b:00.0", "gpu-001", "GPU-1"]
    rows = [f"{name},a,2026-01-01T00:00:00Z,\n" for name in names]
    path.write_text("gpu,tenant,from,to\n" + "".join(rows))
    with capture_logs() as logs:
        watch(path).refresh()
    (ignored,) = [line["subjects"] for line in logs if line["event"] == "claims_ignored"]
    assert sorted(ignored) == sorted(names[:5])


def test_claims_that_differ_in_their_workload_have_ids_of_their_own():
    text = "gpu,tenant,from,to,workload,system\n" + "".join(
        f"n1,a,2026-01-01T00:00:00Z,,{workload},{system}\n"
        for workload, system in [("", ""), ("w", "yes")]
    )
    plain, system = sorted(parse_claims(text), key=lambda claim: claim.workload)
    assert plain.id == "file/n1/a/1767225600000000000"
    assert plain.id != system.id
    metered = system.metered_claim("n1")
    assert (metered.workload, metered.system, plain.metered_claim("n1").system) == (
        "w",
        True,
        False,
    )


def test_a_file_with_shares():
    text = """tenant,holds,from,to,share
alice,GPU-0,2026-09-04T00:00:00Z,,3/8
bob,GPU-0,2026-09-04T00:00:00Z,,81%
carol,n1,2026-09-04T00:00:00Z,,
"""
    claims = parse_claims(text)
    (alice, bob) = claims.claims_on_gpu("GPU-0", [])
    assert (alice.share, bob.share) == (Fraction(3, 8), Fraction(81, 100))
    assert not alice.exclusive
    assert not bob.exclusive
    (carol,) = claims.claims_on_gpu("GPU-1", ["n1"])
    assert (carol.share, carol.exclusive) == (None, True)
    assert list(claims.find_overlaps()) == [], "shares are meant to lie beside each other"
    assert len({alice.id, bob.id, carol.id}) == 3


@pytest.mark.parametrize("share", ["0/8", "9/8", "half", "120%"])
def test_a_wrong_share_is_named(share: str):
    text = f"tenant,holds,from,to,share\nalice,GPU-0,2026-09-04T00:00:00Z,,{share}\n"
    with pytest.raises(FileError, match="line 2: invalid share"):
        parse_claims(text)


def test_a_claim_for_all_time_is_in_the_range_of_the_ledger():
    text = "tenant,holds,from,to\nvision,GPU-1,0001-01-01T00:00:00Z,9999-12-31T23:59:59Z\n"
    assert parse_claims(text).by_target["GPU-1"] == (FileClaim(0, FOREVER_NS, "vision", "GPU-1"),)
    before = "tenant,holds,from,to\nvision,GPU-1,1900-01-01T00:00:00Z,1950-01-01T00:00:00Z\n"
    with pytest.raises(FileError, match="expected an end after the start"):
        parse_claims(before)


@pytest.mark.parametrize(
    "times", ["9990-01-01T00:00:00Z,9999-12-31T00:00:00Z", "9999-12-31T00:00:00Z,"]
)
def test_a_start_after_the_range_of_the_ledger_is_no_claim(times):
    message = r"line 2: .*expected a start before the year 2262"
    with pytest.raises(FileError, match=message):
        parse_claims(f"tenant,holds,from,to\nvision,GPU-1,{times}\n")
    with pytest.raises(FileError, match=message):
        parse_tenants(f"tenant,source,owner,from,to\nred,slurm,ann,{times}\n")


def test_a_time_without_end_may_be_written_as_a_far_one():
    row = "red,slurm,ann,0001-01-01T00:00:00Z,9999-12-31T00:00:00Z"
    (mapping,) = parse_tenants(f"tenant,source,owner,from,to\n{row}\n")
    assert (mapping.start_ns, mapping.end_ns) == (0, FOREVER_NS)
