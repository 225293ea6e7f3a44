"""Agents with client certificates instead of tokens, as programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from chain_support import ProgramDirectory
from click.testing import CliRunner
from support.certificates import ClientAuthority, self_signed

from railscope.cli import root as railscope


@pytest.mark.thorough
async def test_an_agent_with_a_certificate_needs_no_token(site: ProgramDirectory, tmp_path: Path):
    site.prepare({"n1": "training", "n2": "training"})
    (tmp_path / "tokens.toml").write_text("[nodes]\n")
    certificate, key = self_signed(tmp_path / "server")
    authority = ClientAuthority(tmp_path / "authority")
    collector = await site.collector(
        RAILSCOPE_COLLECTOR_TLS__CERTIFICATE_FILE=str(certificate),
        RAILSCOPE_COLLECTOR_TLS__KEY_FILE=str(key),
        RAILSCOPE_COLLECTOR_TLS__CLIENT_CA_FILE=str(authority.file),
    )
    site.scheme = "https"

    def showing(*uris: str, of: ClientAuthority = authority, days: float = 1) -> dict[str, str]:
        client = of.client("-".join(uris).replace("/", "-") or "none", *uris, days=days)
        link = {"TOKEN": "", "CA_FILE": str(certificate), "CERTIFICATE_FILE": str(client.file),
                "KEY_FILE": str(client.key_file)}  # fmt: skip
        return {f"RAILSCOPE_AGENT_COLLECTOR__{name}": value for name, value in link.items()}

    good = await site.agent("n1", **showing("railscope:node/n1"))
    await good.find_logged("collector_connected")
    wrong = (
        (
            showing("railscope:node/n1"),
            "envelope of node 'n2': expected 'n1', as in the credential",
        ),
        (showing(), "status 401"),
        (showing("railscope:operator/n2"), "access denied: not for credentials of role operator"),
    )
    for shown, output in wrong:
        agent = await site.agent("n2", **shown)
        line = await agent.find_logged("collector_unreachable")
        assert output in line.string
        await agent.stop()
    for shown in (
        showing("railscope:node/n2", days=-1),
        showing("railscope:node/n2", of=ClientAuthority(tmp_path / "other")),
    ):
        agent = await site.agent("n2", **shown)
        await agent.find_logged("collector_unreachable")
        await agent.stop()
    await good.stop()
    await collector.stop()
    audit = tmp_path / "collector" / "audit"
    verified = CliRunner().invoke(
        railscope, ["audit", "verify", str(audit), "--key", str(audit / "key.pub")]
    )
    assert verified.exit_code == 0, verified.output
    shown = CliRunner().invoke(railscope, ["audit", "show", str(audit)]).output
    assert re.search("Sign-in, by credential node/n1 .*done", shown)
    assert re.search("Access denied, by credential operator/n2 .*denied", shown)
