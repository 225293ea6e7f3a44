"""Claims reported over the agent's socket, and their storage."""

from __future__ import annotations

import asyncio
import http.client
import socket

import pytest
from click.testing import CliRunner
from support.claim_requests import BATCH, ServedEndpoint, ask, serving
from support.tenancy import event_summaries, mig_uuid, uuid

from railscope.cli import root
from railscope.settings import SettingsError
from railscope_agent.config import TenancySettings
from railscope_agent.endpoint.claims_endpoint import MAX_BODY_BYTES
from railscope_agent.tenancy.command_claims import CLAIMS_FILE


def test_a_reported_claim_begins_and_ends(served):
    path = served.path
    status, answer = ask(path, "POST", "/v1/claims", BATCH)
    start_ns = served.host.clock.now().wall_ns
    assert (status, answer["claim"]["devices"]) == (200, [uuid(0), uuid(1)])
    served.host.clock.advance(2)
    assert ask(path, "POST", "/v1/claims", BATCH)[0] == 200, "a repeated report changes nothing"
    began = served.looked.poll()
    assert event_summaries(began) == [
        ("claim_start", "command", "batch", uuid(0)),
        ("claim_start", "command", "batch", uuid(1)),
    ]
    facts = began[0].facts
    assert (facts["start_ns"], facts["uncertainty_ns"]) == (str(start_ns), "0")
    assert (facts["tenant"], facts["level"]) == ("red", "scheduler")
    end_ns = served.host.clock.now().wall_ns
    assert ask(path, "POST", "/v1/claims/b-1/end")[0] == 200
    served.host.clock.advance(1)
    assert ask(path, "POST", "/v1/claims/b-1/end", {})[0] == 200
    ended = served.looked.poll()
    assert {event.facts["end_ns"] for event in ended} == {str(end_ns)}
    assert {event.entity for event in ended} == {event.entity for event in began}
    assert served.looked.poll() == []


def test_a_claim_that_begins_and_ends_between_two_polls(served):
    path = served.path
    ask(path, "POST", "/v1/claims", {**BATCH, "gpus": [mig_uuid(2, 1)], "system": True})
    served.host.clock.advance(1)
    ask(path, "POST", "/v1/claims/b-1/end")
    began, ended = served.looked.poll()
    assert began.facts["compute"] == "480-840"
    assert began.facts["system"] == "true"
    assert int(ended.facts["end_ns"]) - int(began.facts["start_ns"]) == 10**9


def test_an_id_starts_again_only_if_requested(served):
    path = served.path
    ask(path, "POST", "/v1/claims", BATCH)
    served.looked.poll()
    served.host.clock.advance(1)
    ask(path, "POST", "/v1/claims/b-1/end")
    assert ask(path, "POST", "/v1/claims", BATCH)[0] == 409
    served.host.clock.advance(1)
    again = {**BATCH, "allow_restart": True}
    assert ask(path, "POST", "/v1/claims", again)[0] == 200
    assert ask(path, "POST", "/v1/claims", again)[0] == 200
    events = served.looked.poll()
    assert (
        sorted(event.event_class.name for event in events)
        == ["claim_end"] * 2 + ["claim_start"] * 2
    )
    ends = {e.facts["end_ns"] for e in events if e.event_class.name == "claim_end"}
    starts = {e.facts["start_ns"] for e in events if e.event_class.name == "claim_start"}
    assert int(*starts) - int(*ends) == 10**9


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (("POST", "/v1/claims", b"{"), 400, "truncated"),
        (("POST", "/v1/claims", b'{"\xff": 1}'), 400, "utf-8"),
        (("POST", "/v1/claims", []), 422, "Expected `object`"),
        (("POST", "/v1/claims", {**BATCH, "gpu": "0"}), 422, "unknown field `gpu`"),
        (("POST", "/v1/claims", {**BATCH, "id": "../a"}), 422, "$.id"),
        (("POST", "/v1/claims", {**BATCH, "gpus": []}), 422, "$.gpus"),
        (("POST", "/v1/claims", {**BATCH, "tenant": "a\nb"}), 422, "$.tenant"),
        (("POST", "/v1/claims", {**BATCH, "tenant": ""}), 422, "missing owner of the claim"),
        (("POST", "/v1/claims", {**BATCH, "gpus": ["7"]}), 422, "unknown GPU '7': expected"),
        (("POST", "/v1/claims", {**BATCH, "gpus": ["0000:ff:00.0"]}), 422, "unknown GPU"),
        (("POST", "/v1/claims", {**BATCH, "start": "2026-01-01T00:00:00"}), 422, "with an offset"),
        (
            ("POST", "/v1/claims", {**BATCH, "start": "2999-01-01T00:00:00Z"}),
            422,
            "not in the future",
        ),
        (("POST", "/v1/claims", b"x" * (MAX_BODY_BYTES + 1)), 413, "at most"),
        (("POST", "/v1/claims/none/end", {}), 404, "unknown claim 'none'"),
        (("PUT", "/v1/claims", {}), 405, "unknown request PUT"),
        (("GET", "/", None), 404, "unknown request GET /"),
    ],
)
def test_rejected_requests(served, request_, status, message):
    actual, content = ask(served.path, *request_)
    # Releases of msgspec write the name of an encoding differently.
    assert (actual, message.lower() in str(content).lower()) == (status, True), content
    assert ask(served.path, "GET", "/v1/claims") == (200, {"claims": []})


def test_another_claim_with_the_same_id_is_rejected(served):
    path = served.path
    ask(path, "POST", "/v1/claims", BATCH)
    status, answer = ask(path, "POST", "/v1/claims", {**BATCH, "tenant": "blue"})
    assert (status, answer["error"]) == (
        409,
        "claim 'b-1' exists and differs: expected an unused id",
    )


def test_the_socket_is_roots(served):
    assert served.path.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_an_agent_serves_is_left_to_it(served, directory):
    with pytest.raises(SettingsError, match="in use by another agent"):
        asyncio.run(ServedEndpoint(directory).endpoint.start())
    assert ask(served.path, "GET", "/v1/claims")[0] == 200, "it goes on serving"


def test_a_socket_without_a_listener_is_taken_over(directory):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "claims.sock"))
    with serving(ServedEndpoint(directory)) as made:
        assert ask(made.path, "GET", "/v1/claims")[0] == 200
    assert not made.path.exists()


def test_before_gpus_are_known_it_may_be_tried_again(directory):
    with serving(ServedEndpoint(directory)) as made:
        status, answer = ask(made.path, "POST", "/v1/claims", BATCH)
        assert (status, "retry in" in answer["error"]) == (503, True)


def test_a_claim_that_cannot_be_stored_is_not_reported(served, directory):
    (directory / CLAIMS_FILE).mkdir()
    path = served.path
    status, answer = ask(path, "POST", "/v1/claims", BATCH)
    assert (status, "Is a directory" in answer["error"]) == (503, True)
    assert served.looked.poll() == []
    (directory / CLAIMS_FILE).rmdir()
    assert ask(path, "POST", "/v1/claims", BATCH)[0] == 200


def test_a_damaged_file_is_put_aside(directory):
    (directory / CLAIMS_FILE).write_text("[{")
    made = ServedEndpoint(directory)
    made.looked.poll()
    assert "renamed to" in made.looked.findings_about("command")[0][1]
    assert (directory / f"{CLAIMS_FILE}.damaged").exists()


def test_over_loopback_with_a_token(directory):
    (directory / "token").write_text("secret\n")
    settings = TenancySettings(listen="127.0.0.1:0", token_file=str(directory / "token"))
    made = ServedEndpoint(directory, settings)
    made.looked.poll()
    with serving(made):
        (_, tcp) = made.endpoint._servers  # noqa: SLF001 - where it listens
        port = tcp.port
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        assert ask(plain, "GET", "/v1/claims")[0] == 401
        url = ["--url", f"http://127.0.0.1:{port}", "--token-file", str(directory / "token")]
        outcome = CliRunner().invoke(root, ["claim", "list", "--format", "json", *url])
        assert (outcome.exit_code, outcome.stdout) == (0, "[]\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": "0.0.0.0:9470", "token": "t"}, "loopback"),
        ({"listen": "127.0.0.1:9470"}, "expected tenancy.token"),
        ({"listen": "127.0.0.1:9470", "token_file": "/nowhere"}, "cannot read tenancy.token_file"),
    ],
)
def test_an_address_that_is_not_safe(directory, settings, message):
    with pytest.raises(SettingsError, match=message):
        ServedEndpoint(directory, TenancySettings(**settings))


@pytest.mark.parametrize("key", ["id", "tenant", "owner", "workload"])
@pytest.mark.parametrize("text", ["red\n", "red\r\n", "\x1b[2J", "red\x7f"])
def test_a_name_has_no_control_characters(served, key, text):
    status, _ = ask(served.path, "POST", "/v1/claims", {**BATCH, key: text})
    assert status == 422
    assert ask(served.path, "GET", "/v1/claims")[1] == {"claims": []}
