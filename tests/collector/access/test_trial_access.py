"""A trial: the nodes that one shared token admits, what it does not permit, and where it is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from makers import FrameSender
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in
from structlog.testing import capture_logs
from support.audit import verified_records

from railscope.settings import SettingsError
from railscope_collector.access.credentials import (
    Credential,
    CredentialEntry,
    CredentialKey,
    Credentials,
    Role,
    digest_token,
)
from railscope_collector.access.trial_access import (
    MAX_NODES,
    OUTSIDE,
    OWN_TOKEN,
    TrialAccess,
)
from railscope_collector.config import CollectorSettings, LedgerSettings

TOKEN = "0123456789abcdef" * 2
NODES = [f"gpu-{number:03}" for number in range(MAX_NODES)]


def trial_settings(directory: Path) -> CollectorSettings:
    """Settings with a trial, beside the tokens of the node n1, an operator and two tenants."""
    (directory / "trial.token").write_text(f"{TOKEN}\n")
    settings = settings_in(directory, trial_token_file=str(directory / "trial.token"))
    tenants = "".join(f'[tenants.{name}]\nboard = "{digest_token(name)}"\n' for name in ("vision", "speech"))  # fmt: skip
    tokens = Path(settings.tokens_file)
    tokens.write_text(tokens.read_text() + tenants)
    return settings


async def send(one: RunningCollector, node: str, bearer: str = "") -> tuple[int, dict[str, Any]]:
    sender = FrameSender(node)
    body = sender.body(gpu_frames(sender), schemas=True)
    headers = {"Authorization": f"Bearer {bearer or f'{TOKEN}/{node}'}"}
    return await one.post(body, node=node, headers=headers)


def opened(directory: Path) -> TrialAccess:
    file = directory / "trial.token"
    file.write_text(TOKEN)
    trial = TrialAccess.from_file(str(file), directory)
    assert trial
    trial.open()
    return trial


async def test_twenty_nodes_report_and_another_one_is_denied_also_after_a_restart(tmp_path: Path):
    settings = trial_settings(tmp_path)
    async with run_collector(settings) as one:
        for node in NODES:
            status, answer = await send(one, node)
            assert status == 200, answer
        with capture_logs() as logs:
            status, answer = await send(one, "gpu-020")
        assert status == 401
        assert answer["error"].startswith("node rejected: expected one of the first 20 nodes")
        assert "fix: create a token for each node" in answer["error"]
        (denied,) = [line for line in logs if line["event"] == "request_denied"]
        assert denied["reason"] == OUTSIDE
        assert (await send(one, "n1", "token-n1"))[0] == 200, (
            "nodes with a token of their own remain"
        )
        assert len(await one.json("/api/v1/nodes")) > 0
        metrics = (await one.get("/metrics"))[1]
        assert 'railscope_collector_rejected_envelopes_total{reason="token"} 1' in metrics
    async with run_collector(settings) as one:
        assert (await send(one, "gpu-020"))[0] == 401
        assert (await send(one, NODES[7]))[0] == 200
    records = list(verified_records(tmp_path / "state"))
    denials = [record for record in records if record.type == "access.denied"]
    assert {(r.actor.id, r.data["reason"]) for r in denials} == {("node/gpu-020", OUTSIDE)}
    uses = {record.actor.id for record in records if record.type == "access.token"}
    assert {f"node/{name}" for name in NODES} <= uses
    assert "node/gpu-020" not in uses


async def test_the_token_reads_nothing_and_reports_for_the_named_node_only(tmp_path: Path):
    async with run_collector(trial_settings(tmp_path)) as one:
        assert (await send(one, "n2", f"{TOKEN}/gpu-003"))[0] == 403
        for path in ("/metrics", "/api/v1/nodes", "/api/v1/account", "/api/v1/audit"):
            assert (await one.get(path, f"{TOKEN}/gpu-003"))[0] == 403
        for token in (TOKEN, f"{TOKEN}/", f"{TOKEN}x/gpu-003", f"/{TOKEN}"):
            assert (await one.get("/api/v1/nodes", token))[0] == 401


def test_a_node_with_a_token_of_its_own_is_not_bound_and_keeps_its_authority(tmp_path: Path):
    key = CredentialKey("token", digest_token("own"))
    limited = Credentials({key: CredentialEntry(Credential("n1", Role.NODE, max_authority=1))})
    trial = opened(tmp_path)
    assert trial.authenticate([f"Bearer {TOKEN}/n1"], limited).reason == OWN_TOKEN
    assert trial.nodes == []
    bound = trial.authenticate([f"Bearer {TOKEN}/n1"], Credentials()).credential
    assert bound
    assert bound.max_authority == 3
    later = trial.authenticate([f"Bearer {TOKEN}/n1"], limited).credential
    assert later
    assert later.max_authority == 1


@pytest.mark.parametrize(
    "content",
    ["{", "[1]", '["a","a"]', '[" "]', msgspec.json.encode([*NODES, "one-more"]).decode()],
)
def test_damaged_names_stop_the_start(tmp_path: Path, content: str):
    (tmp_path / "trial_nodes").write_text(content)
    with pytest.raises(SettingsError, match=r"damaged .*trial_nodes: .*; fix: delete it"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("ledger", "is_valid"),
    [
        (LedgerSettings(url="postgresql://railscope@db.example/ledger"), False),
        (LedgerSettings(url="sqlite:////var/lib/other/ledger.sqlite"), False),
        (LedgerSettings(url_file="url"), False),
        (LedgerSettings(url="own"), True),
        (LedgerSettings(), True),
    ],
)
def test_a_trial_writes_to_no_ledger_but_its_own(
    tmp_path: Path,
    ledger: LedgerSettings,
    is_valid: bool,  # noqa: FBT001 - a case
):
    """Its nodes may be simulated; a shared ledger is billed."""
    (tmp_path / "url").write_text("postgresql://railscope:secret@db.example/ledger")
    if ledger.url_file:
        ledger = LedgerSettings(url_file=str(tmp_path / "url"))
    if ledger.url == "own":
        ledger = LedgerSettings(url=f"sqlite:///{tmp_path}/ledger.sqlite")
    settings = msgspec.structs.replace(trial_settings(tmp_path), ledger=ledger)
    if is_valid:
        assert TrialAccess.from_settings(settings, tmp_path)
        return
    with pytest.raises(
        SettingsError, match=r"invalid trial_token_file with ledger\.url .*; fix: "
    ) as wrong:
        TrialAccess.from_settings(settings, tmp_path)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("token", ["", "short", "a" * 257, "a" * 31 + "/", "a" * 40 + " b"])
def test_an_invalid_token_is_an_error(tmp_path: Path, token: str):
    (tmp_path / "trial.token").write_text(token)
    with pytest.raises(SettingsError, match=r"invalid trial_token_file .*: expected 32 to 256"):
        TrialAccess.from_file(str(tmp_path / "trial.token"), tmp_path)
