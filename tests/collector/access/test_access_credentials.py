"""The tokens file, certificates, and the credential of each."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support import examples
from support.certificates import ClientAuthority

from railscope_collector.access.authentication import authenticate
from railscope_collector.access.client_certificates import SCHEME, credential_of_uri
from railscope_collector.access.credentials import (
    Credential,
    CredentialEntry,
    CredentialKey,
    Credentials,
    Role,
    digest_bytes,
    digest_token,
)
from railscope_collector.access.recorded_credentials import RecordedCredentials, find_changes
from railscope_collector.access.tokens_file import (
    parse_credentials,
    quote_key,
    section_name,
)

NOON_NS = 1_790_000_000_000_000_000
A, B, C = (digest_token(name) for name in "abc")
names = examples.names(12)
holders = st.builds(Credential, names, st.sampled_from([r for r in Role if r is not Role.TENANT]))
holders |= st.builds(Credential, names, st.just(Role.TENANT), names)
untils = st.none() | st.integers(min_value=0, max_value=4_000_000_000)


@given(st.dictionaries(st.binary(min_size=4, max_size=4), st.tuples(holders, untils), max_size=6))
def test_what_is_written_as_a_file_is_read_as_it_was(
    keys: dict[bytes, tuple[Credential, int | None]],
) -> None:
    expected, lines = {}, {}
    for seed, (holder, until) in keys.items():
        value = digest_bytes(seed)
        expected[CredentialKey("token", value)] = CredentialEntry(
            holder, None if until is None else until * 10**9
        )
        end = f", until = {datetime.fromtimestamp(until, UTC).isoformat()}" if until else ""
        end = ", until = 1970-01-01T00:00:00Z" if until == 0 else end
        place = lines.setdefault(section_name(holder), {})
        place.setdefault(holder.name, []).append(f'{{ token = "{value}"{end} }}')
    text = "".join(
        f"[{place}]\n"
        + "".join(f"{quote_key(label)} = [{', '.join(all_)}]\n" for label, all_ in of.items())
        for place, of in lines.items()
    )
    assert parse_credentials(text).entries == expected


@given(holders)
def test_a_label_is_one_holders_and_a_certificate_may_carry_it(holder: Credential) -> None:
    assert credential_of_uri(SCHEME + holder.label) == holder


@given(st.text(max_size=30) | st.from_regex(r"(node|tenant|finance)(/[a-z%2F]{0,4}){0,3}"))
def test_a_uri_names_a_credential_in_one_spelling_only(text: str) -> None:
    found = credential_of_uri(SCHEME + text)
    assert found is None or found.label == text


def test_the_file_overrides_the_names_in_a_certificate(tmp_path: Path) -> None:
    authority = ClientAuthority(tmp_path)
    named, common = authority.client("n1", "railscope:node/n1"), authority.client("board.example")
    listed = f'certificate = "{digest_bytes(named.der)}"'

    def label(text: str, der: bytes, now_ns: int = NOON_NS - 10**18) -> str:
        found = authenticate(parse_credentials(text), [], der, now_ns)
        return found.credential.label if found.credential else found.reason

    assert label("", named.der) == "node/n1"
    assert label(f"[operators]\nboard = {{ {listed} }}\n", named.der) == "operator/board"
    ended = f"[nodes]\nn1 = {{ {listed}, until = 1970-01-01T00:00:00Z }}\n"
    assert label(ended, named.der) == "expired"
    assert label('[operators]\nboard = { common_name = "n1" }\n', named.der) == "node/n1"
    assert label('[operators]\nboard = { common_name = "board.example" }\n', common.der) == (
        "operator/board"
    )
    revoked = f'[revoked]\ncertificates = ["{digest_bytes(named.der)}"]\n'
    assert label(revoked, named.der) == "revoked"
    assert label(f"[operators]\nboard = {{ {listed} }}\n{revoked}", named.der) == "revoked"
    assert label("", named.der, NOON_NS + 10**18) == "expired"
    assert label("", b"no certificate") == "unknown certificate"


# Changes ------------------------------------------------------------------------------------------


def recorded(old: str, new: str) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [
        (found.type, found.holder.label if found.holder else "", found.added, found.removed)
        for found in find_changes(parse_credentials(old), parse_credentials(new))
    ]


def test_every_change_of_the_file_has_its_name() -> None:
    a, b = (f"token {value.removeprefix('sha256:')[:16]}" for value in (A, B))
    one, both = f'[nodes]\nn1 = "{A}"\n', f'[nodes]\nn1 = ["{A}", "{B}"]\n'
    assert recorded("", one) == [("identity.enrol_approve", "node/n1", (a,), ())]
    assert recorded(one, both) == [("identity.rotate", "node/n1", (b,), ())]
    assert recorded(both, one) == [("identity.rotate", "node/n1", (), (b,))]
    assert recorded(one, "") == [("identity.revoke", "node/n1", (), (a,))]
    assert recorded(one, one) == []
    moved = f'[tenants.vision]\nboard = "{A}"\n'
    assert recorded(one, moved) == [
        ("identity.revoke", "node/n1", (), (a,)),
        ("identity.enrol_approve", "tenant/vision/board", (a,), ()),
    ]
    ends = f'[nodes]\nn1 = {{ token = "{A}", until = 2027-01-01T00:00:00Z }}\n'
    assert recorded(one, ends) == [("identity.rotate", "node/n1", (f"{a} until 1798761600",), (a,))]
    revoked = f'[revoked]\ncertificates = ["{A}"]\n'
    shown = f"certificate {A.removeprefix('sha256:')[:16]}"
    assert recorded("", revoked) == [("identity.revoke", "", (), (shown,))]
    assert recorded(revoked, "") == [("identity.enrol_approve", "", (shown,), ())]


@given(
    st.dictionaries(
        st.builds(CredentialKey, st.sampled_from(["token", "certificate"]), names),
        st.builds(CredentialEntry, holders, st.none() | st.integers()),
        max_size=5,
    ),
    st.frozensets(names, max_size=3),
)
def test_recorded_credentials_are_stored_unchanged(
    tmp_path_factory: pytest.TempPathFactory,
    entries: dict[CredentialKey, CredentialEntry],
    revoked: frozenset[str],
) -> None:
    path, credentials = (
        tmp_path_factory.mktemp("recorded") / "identities",
        Credentials(entries, revoked),
    )
    RecordedCredentials(path).store(credentials)
    again = RecordedCredentials(path)
    again.read()
    assert again.credentials == credentials
    assert find_changes(again.credentials, credentials) == []
