"""Audit records of credentials: issued, changed, revoked, used, misused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from running_collector import RunningCollector, run_collector, settings_in
from support.audit import NOON_NS, audit_log, verified_records
from support.waiting import wait_until

from railscope.audit.record import AuditRecord
from railscope_collector.access.access_trail import (
    MAX_EVENTS_PER_DAY,
    AccessTrail,
)
from railscope_collector.access.credentials import (
    Credential,
    CredentialKey,
    Role,
    digest_token,
)
from railscope_collector.access.recorded_credentials import RecordedCredentials
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.http.failure_throttle import (
    MAX_FAILURES,
    FailureThrottle,
)

DAY_NS = 86_400_000_000_000
READER = Credential("board", Role.TENANT, "vision")
KEY = CredentialKey("token", digest_token("board"))


class TrailClock:
    def __init__(self) -> None:
        self.now_ns = NOON_NS

    def __call__(self) -> int:
        return self.now_ns


async def recorded_of(
    directory: Path,
    note: Callable[[AccessTrail, TrailClock], None],
    max_events_per_day: int = MAX_EVENTS_PER_DAY,
) -> list[AuditRecord]:
    """Records of the noted events, by a trail that is stopped afterwards."""
    clock = TrailClock()
    trail = AuditTrail(audit_log(directory), "1.0", clock)
    access = AccessTrail(
        trail, RecordedCredentials(directory.parent / "identities"), clock, max_events_per_day
    )
    trail.log.store.open()
    trail.open()
    access.open()
    tasks = [asyncio.create_task(trail.run()), asyncio.create_task(access.run())]
    await asyncio.sleep(0)
    note(access, clock)
    for task in reversed(tasks):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    trail.log.store.close()
    assert trail.lost_records == 0
    found = verified_records(directory)
    return [one for one in found if one.type.startswith(("access.", "identity.", "billing."))]


async def test_use_is_recorded_once_a_day_for_each_address(tmp_path: Path) -> None:
    def note(access: AccessTrail, clock: TrailClock) -> None:
        for _ in range(3):
            access.record_use(READER, KEY, "10.0.0.1")
            access.record_use(READER, CredentialKey("certificate", digest_token("c")), "10.0.0.2")
        clock.now_ns += DAY_NS
        access.record_use(READER, KEY, "10.0.0.1")

    found = await recorded_of(tmp_path / "audit", note)
    assert [(r.type, r.actor.id, r.actor.auth, r.actor.ip, r.data["tenant"]) for r in found] == [
        ("access.token", "tenant/vision/board", "token", "10.0.0.1", "vision"),
        ("access.login", "tenant/vision/board", "certificate", "10.0.0.2", "vision"),
        ("access.token", "tenant/vision/board", "token", "10.0.0.1", "vision"),
    ]
    assert "board" not in str([record.data for record in found]), "no token, and not its digest"
    assert digest_token("board").removeprefix("sha256:") not in str(found)


async def test_misuse_is_recorded_at_once_and_then_counted(tmp_path: Path) -> None:
    def note(access: AccessTrail, _: TrailClock) -> None:
        for _ in range(4):
            access.record_expired_use(READER, KEY, "10.0.0.1")
        access.record_cross_tenant_request(READER, "/api/v1/statements/speech/2026-01", "10.0.0.1")

    found = await recorded_of(tmp_path / "audit", note)
    assert [(r.type, r.data["count"], r.out) for r in found] == [
        ("identity.expired", 1, "denied"),
        ("access.cross_tenant", 1, "denied"),
        ("identity.expired", 3, "denied"),
    ]
    assert all(record.data["tenant"] == "vision" for record in found)


# The running collector ----------------------------------------------------------------------------


def loaded(one: RunningCollector, name: str) -> Callable[[], bool]:
    return lambda: any(
        entry.credential.name == name for entry in one.collector.tokens.credentials.entries.values()
    )


async def test_a_change_of_the_file_takes_effect_and_is_recorded(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    file = tmp_path / "tokens.toml"
    kept = file.read_text()
    async with run_collector(settings) as running:
        assert (await running.get("/metrics"))[0] == 200
        added = f'[tenants.vision]\nboard = "{digest_token("token-board")}"\n'
        file.write_text(
            kept.replace(digest_token("token-reader"), digest_token("token-new")) + added
        )
        await wait_until(loaded(running, "board"), "the token is loaded")
        assert (await running.get("/metrics"))[0] == 401
        assert (await running.get("/metrics", token="token-new"))[0] == 200  # noqa: S106 - a test's token
        assert (await running.get("/metrics", token="token-board"))[0] == 200  # noqa: S106 - as above
        assert (await running.get("/api/v1/nodes", token="token-board"))[0] == 403  # noqa: S106 - as above
        file.write_text("[nodes\n")
        await wait_until(lambda: not running.collector.tokens.is_valid, "the file is invalid")
        assert (await running.get("/metrics", token="token-new"))[0] == 200  # noqa: S106 - as above
        page = (await running.get("/metrics", token="token-new"))[1]  # noqa: S106 - as above
        assert 'railscope_collector_file_valid{file="tokens"} 0' in page.splitlines()
    ended = f'[tenants.vision]\nboard = {{ token = "{digest_token("token-board")}", until = 2026-01-01T00:00:00Z }}\n'
    file.write_text(ended)
    async with run_collector(settings) as running:
        for _ in range(3):
            assert (await running.get("/metrics", token="token-board"))[0] == 401  # noqa: S106 - as above
    found = list(verified_records(tmp_path / "state"))
    identities = [
        (r.type.removeprefix("identity."), r.data["holder"])
        for r in found
        if r.type.startswith("identity.") and "holder" in r.data
    ]
    nodes = [f"node/n{n}" for n in (1, 2, 3)]
    assert identities[:4] == [("enrol_approve", holder) for holder in (*nodes, "operator/reader")]
    assert identities[4:6] == [
        ("rotate", "operator/reader"),
        ("enrol_approve", "tenant/vision/board"),
    ]
    assert sorted(identities[6:]) == sorted(
        [
            *(("revoke", holder) for holder in (*nodes, "operator/reader")),
            ("rotate", "tenant/vision/board"),
        ]
    )
    expired = [record for record in found if record.type == "identity.expired"]
    assert [(r.actor.id, r.data["count"]) for r in expired] == [
        ("tenant/vision/board", 1),
        ("tenant/vision/board", 2),
    ]
    denied = [record for record in found if record.type == "access.denied"]
    assert ("expired", "tenant/vision/board") in [(r.data["reason"], r.actor.id) for r in denied]
    kinds = {(r.actor.kind, bool(r.actor.id)) for r in denied}
    assert kinds <= {("credential", True), ("unknown", False)}


# Failures -----------------------------------------------------------------------------------------


async def test_an_address_with_many_failures_is_throttled_and_others_are_not(
    tmp_path: Path,
) -> None:
    async with run_collector(settings_in(tmp_path)) as running:
        found = [(await running.get("/metrics", token="wrong"))[0] for _ in range(MAX_FAILURES + 9)]  # noqa: S106 - a test's
        assert found[:MAX_FAILURES] == [401] * MAX_FAILURES
        assert set(found[MAX_FAILURES:]) <= {401, 429}
        assert found[-1] == 429
        assert (await running.get("/metrics"))[0] == 200, "from the same address"
        assert running.collector.trail.denials == len(found), "none is left out of the counts"


def test_a_network_of_version_six_is_one_source() -> None:
    throttle = FailureThrottle()
    flood = [throttle.count_failure(f"2001:db8::{n:x}", 0.0) for n in range(MAX_FAILURES + 1)]
    assert flood[-1]
    assert not throttle.count_failure("2001:db8:0:1::1", 0.0)
    assert [throttle.count_failure("::ffff:10.0.0.1", 0.0) for _ in range(MAX_FAILURES)][
        -1
    ] is False
    assert throttle.count_failure("10.0.0.1", 0.0), "the same address, spelled as IPv6"
    assert not throttle.count_failure("fe80::1%eth0", 0.0)
    assert not throttle.count_failure("", 0.0)
