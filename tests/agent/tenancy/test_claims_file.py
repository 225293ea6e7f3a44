"""Claims from the administrator's claims file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.clock import NS, START
from support.tenancy import LISTED, PolledTenancy, cut, event_summaries, node, pod, uuid

from railscope.claim_terms import share_text
from railscope.claims_file import ClaimsFileError, ClaimsFileLine, parse_claims_file
from railscope_agent.config import TenancySettings
from railscope_collector.files.claims_file import parse_claims

PATH = "/etc/railscope/gpus.csv"


def seconds_after_start(seconds: float) -> str:
    """Return the time `seconds` after the first poll, in RFC 3339."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (epoch + timedelta(seconds=START.wall_ns // NS + 5 + seconds)).isoformat()


def claim(**fields: str) -> str:
    return f"{','.join(fields)}\n{','.join(fields.values())}\n"


def host_with_claims_file(text, path=PATH):
    host = node()
    host.files[path] = text
    return host, PolledTenancy(host, TenancySettings(claims_file=path))


def test_a_line_is_a_claim():
    table = (
        "# holders\nholds,tenant,from,to,workload\n0,red,,,batch\n\n"
        "*,blue,2026-01-01T00:00:00Z,2026-02-01T01:00:00+01:00,\n"
    )
    assert parse_claims_file(table) == (
        ClaimsFileLine("0", "red", workload="batch"),
        ClaimsFileLine("*", "blue", 1_767_225_600 * NS, 1_769_904_000 * NS),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,tenant\n0", "line 2: 0: 1 values: expected 2"),
        ("gpu,tenant\n,red", "line 2: missing gpu"),
        ("gpu,tenant,until\n0,red,", "line 1: invalid header: unknown column until"),
        ("gpu,tenant,from\n0,red,2026-01-01T00:00:00", "with an offset"),
        ("gpu,tenant,from\n0,red,tomorrow", "from: invalid time 'tomorrow'"),
        (
            "gpu,tenant,from,to\n0,red,2026-01-02T00:00:00Z,2026-01-01T00:00:00Z",
            "invalid to: expected an end after the start",
        ),
        ("gpu,tenant,system\n0,red,perhaps", "invalid system 'perhaps': expected true or false"),
        ('gpu,tenant\n"0,red', "line 2: unexpected end"),
        (
            "[[claim]]\ngpu = '0'\ntenant = 'red'",
            "line 1: invalid header: unknown column [[claim]]: expected CSV with tenant, gpu",
        ),
        ("gpu,tenant\n0,\0", "NUL"),
        ("\ufffe".encode("utf-16").decode("latin-1"), "unknown column"),
    ],
)
def test_an_invalid_claims_file_is_reported(text, message):
    with pytest.raises(ClaimsFileError) as wrong:
        parse_claims_file(text)
    assert message in str(wrong.value)


@pytest.mark.parametrize("header", ["tenant,holds,from,to,share", "gpu,from,to,tenant,system"])
def test_the_agent_and_the_collector_read_one_format(header):
    """Also the node's name, and further columns in any order."""
    values = {
        "tenant": "red", "from": seconds_after_start(-600), "to": seconds_after_start(600),
        "share": "37.5%", "workload": "slurm:7", "owner": "vision", "exclusive": "true", "system": "yes",
    }  # fmt: skip
    names = [*header.split(","), "workload", "owner", "exclusive"]
    rows = [
        ",".join(values.get(name, gpu) for name in names) for gpu in (uuid(0), "gpu-1", uuid(999))
    ]
    text = "\n".join([",".join(names), *rows, ""])
    _, looked = host_with_claims_file(text)
    looked.poll()
    by_agent = {
        (claim.gpu, claim.tenant, claim.start_ns, claim.end_ns, claim.workload, claim.share,
         claim.exclusive, claim.system)
        for claim in (active.claim for active in looked.tenancy.active_claims)
    }  # fmt: skip
    claims = parse_claims(text)
    by_collector = {
        (gpu, claim.tenant, claim.start_ns, claim.end_ns, claim.workload,
         share_text(claim.share) if claim.share else "", claim.exclusive, claim.system)
        for gpu in (uuid(0), uuid(1))
        for claim in claims.claims_on_gpu(gpu, ["gpu-1"])
    }  # fmt: skip
    assert by_agent == by_collector
    assert len(by_agent) == 2


def test_a_device_file_is_a_minor_number_also_beside_a_gpu_in_mig_mode():
    """Only Slurm's numbers count MIG devices."""
    text = "gpu,tenant\n/dev/nvidia7,red\n/dev/nvidia0,blue\n/dev/nvidia1,none\n"
    host, looked = host_with_claims_file(text)
    cut(host, 0, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    host.calls["nvml.nvmlDeviceGetMinorNumber(1)"] = 7
    looked.poll()
    claimed = {(active.claim.tenant, active.claim.part) for active in looked.tenancy.active_claims}
    assert claimed == {("red", uuid(1)), ("blue", uuid(0))}


def test_dates_are_kept_to_the_nanosecond():
    text = claim(
        gpu="0", tenant="red", **{"from": seconds_after_start(7), "to": seconds_after_start(33)}
    )
    host, looked = host_with_claims_file(text)
    assert looked.poll() == []
    assert looked.poll() == []
    (began,) = looked.poll()
    assert began.facts["start_ns"] == str(START.wall_ns + 12 * NS)
    assert (began.facts["uncertainty_ns"], began.facts["level"]) == ("0", "scheduler")
    assert began.facts["tenant"] == "red"
    for _ in range(4):
        assert looked.poll() == []
    (ended,) = looked.poll()
    assert ended.entity == began.entity
    assert ended.facts["end_ns"] == str(START.wall_ns + 38 * NS)
    assert (ended.facts["uncertainty_ns"], ended.facts["why"]) == ("0", "ended")
    for _ in range(3):
        assert looked.poll() == []
    host.files[PATH] = text.replace(seconds_after_start(33), seconds_after_start(333))
    (again,) = looked.poll()
    assert again.facts["start_ns"] == str(host.clock.now().wall_ns), "it had ended: from now on"
    assert again.entity != began.entity


def test_a_claim_that_is_already_over_begins_and_ends():
    _, looked = host_with_claims_file(
        claim(
            gpu=uuid(1),
            tenant="red",
            **{"from": seconds_after_start(-500), "to": seconds_after_start(-100)},
        )
    )
    assert [event.event_class.name for event in looked.poll()] == ["claim_start", "claim_end"]


def test_a_node_and_all_its_gpus():
    host, looked = host_with_claims_file("holds,tenant\ngpu-1,red\ngpu-2,blue\n", "/etc/claims.csv")
    assert {event.facts["tenant"] for event in looked.poll()} == {"red"}
    assert len(looked.tenancy.active_claims) == 2
    host.files["/etc/claims.csv"] = "holds,tenant\ngpu-2,blue\n"
    assert [event.event_class.name for event in looked.poll()] == ["claim_end"] * 2


def test_a_gpu_of_the_node_that_is_lost_is_still_held():
    host, looked = host_with_claims_file("holds,tenant\n*,red\n", "/etc/claims.csv")
    assert {event.facts["node"] for event in looked.poll()} == {"gpu-1"}
    host.calls["nvml.nvmlDeviceGetCount()"] = 1
    for _ in range(3):
        assert looked.poll() == []
    host.files["/etc/claims.csv"] = "holds,tenant\n"
    assert [event.event_class.name for event in looked.poll()] == ["claim_end"] * 2


def test_a_file_that_is_wrong_or_gone_changes_nothing():
    host, looked = host_with_claims_file(claim(gpu="0", tenant="red"))
    assert len(looked.poll()) == 1
    for content in ("[[claim]]", b"\xff", FileNotFoundError(2, "gone")):
        host.files[PATH] = content
        assert looked.poll() == []
        assert looked.findings_about("file")[0][0] == "broken"
        assert looked.value("gpu_claims", uuid(0)) in {"error", "gone"}
    host.files[PATH] = ""
    assert [event.event_class.name for event in looked.poll()] == ["claim_end"]


def test_another_tenant_is_another_claim():
    host, looked = host_with_claims_file(claim(gpu="0", tenant="red"))
    looked.poll()
    host.files[PATH] = claim(gpu="0", tenant="blue")
    ended, began = looked.poll()
    assert (ended.facts["tenant"], ended.facts["why"]) == ("red", "changed")
    assert (began.facts["tenant"], began.facts["start_ns"]) == ("blue", ended.facts["end_ns"])


def test_a_claims_file_overrides_the_claim_of_a_pod():
    host, looked = host_with_claims_file(
        claim(
            gpu="0",
            tenant="red",
            workload="kubernetes:research/train",
            **{"from": seconds_after_start(20)},
        )
    )
    host.calls[LISTED] = [pod("train", uuid(0), uuid(1))]
    began = looked.poll()
    assert len(began) == 2
    later = [event for _ in range(4) for event in looked.poll()]
    assert event_summaries(later) == [
        ("claim_end", "kubernetes", "research/train", uuid(0)),
        ("claim_start", "file", "kubernetes:research/train", uuid(0)),
    ]
    assert later[0].facts["end_ns"] == later[1].facts["start_ns"]
    host.files[PATH] = ""
    assert event_summaries(looked.poll()) == [
        ("claim_end", "file", "kubernetes:research/train", uuid(0))
    ]
    assert looked.poll() == [], "it may be about to go away"
    assert event_summaries(looked.poll(301)) == [
        ("claim_start", "kubernetes", "research/train", uuid(0))
    ]
