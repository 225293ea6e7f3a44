"""The tokens file, certificates, and the credential of each."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support import examples
from support.certificates import ClientAuthority

from railscope.settings import SettingsError
from railscope_collector.access import client_certificates
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
from railscope_collector.access.tokens_file import RecordedCredentials, find_changes
from railscope_collector.access.tokens_format import (
    TokensFileError,
    load_credentials,
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


@pytest.mark.parametrize(("line", "problem"), [
    (f'x = {{ token = "{A}", max_authority = 0 }}', "invalid max_authority 0: expected 1 to 3"),
    (f'x = {{ token = "{A}", max_authority = 2, max_rank = 1 }}', "as the only other keys"),
    (f'x = {{ token = "{A}", max_authority = 4 }}', "invalid max_authority 4: expected 1 to 3"),
    (f'x = {{ token = "{A}", max_authority = true }}', "invalid max_authority True: expected 1 to 3"),
    (f'x = {{ token = "{A}", max_authority = "2" }}', "invalid max_authority '2': expected 1 to 3"),
    (f'x = [{{ token = "{A}", max_authority = 2 }}, "{A}"]', "expected one end and one authority"),
])  # fmt: skip
def test_a_wrong_limit_of_authority_is_named(line: str, problem: str) -> None:
    with pytest.raises(TokensFileError) as caught:
        parse_credentials(f"[nodes]\n{line}\n")
    assert problem in str(caught.value)


@pytest.mark.parametrize("key", ["max_authority", "max_rank"])
def test_a_limit_of_authority_is_of_each_token_of_a_node(key: str) -> None:
    text = f'[nodes]\nx = ["{A}", {{ token = "{B}", {key} = 1 }}]\n'
    found = {
        token.value: entry.credential.max_authority
        for token, entry in parse_credentials(text).entries.items()
    }
    assert found == {A: 3, B: 1}
    with pytest.raises(TokensFileError, match=r"expected in section \[nodes\] only"):
        parse_credentials(f'[finance]\nx = {{ token = "{A}", max_authority = 1 }}\n')


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[readers]\n", "unknown section 'readers': expected one of nodes, operators"),
        ("nodes = 1\n", r"invalid \[nodes\]: expected a section"),
        ("[tenants]\nvision = 1\n", r"invalid \[tenants.vision\]: expected a section"),
        (f'[tenants.""]\na = "{A}"\n', r"\[tenants.\]: invalid name ''"),
        ('[nodes]\n"" = "x"\n', "invalid name ''"),
        ('[nodes]\n"e\u0301" = "x"\n', "expected printable text in Unicode NFC"),
        (
            '[nodes]\nn1 = "secret"\n',
            r"\[nodes\] n1: invalid digest: expected sha256:<64 hex digits>",
        ),
        (f'[nodes]\nn1 = "{A[:-1]}"\n', "expected sha256:<64 hex digits>"),
        (f'[nodes]\nn1 = "{A}"\nn2 = "{A}"\n', "duplicate token: node/n1 and node/n2"),
        (
            f'[nodes]\nn1 = "{A}"\n[operators]\nn1 = "{A}"\n',
            "duplicate token: node/n1 and operator/n1",
        ),
        (
            f'[nodes]\nn1 = ["{A}", {{ token = "{A}", until = 2027-01-01T00:00:00Z }}]\n',
            "expected one end",
        ),
        (f'[nodes]\nn1 = {{ token = "{A}", unti = 1 }}\n', "expected one of token, certificate"),
        (
            f'[nodes]\nn1 = {{ token = "{A}", certificate = "{B}" }}\n',
            "expected one of token, cert",
        ),
        ("[nodes]\nn1 = { until = 2027-01-01T00:00:00Z }\n", "expected one of token"),
        (f'[nodes]\nn1 = {{ token = "{A}", until = 2027-01-01 }}\n', "with an offset"),
        (f'[nodes]\nn1 = {{ token = "{A}", until = 2027-01-01T00:00:00 }}\n', "with an offset"),
        ('[nodes]\nn1 = { common_name = "" }\n', "invalid common_name: expected printable text"),
        (f'[revoked]\nn1 = "{A}"\n', "expected certificates"),
        ('[revoked]\ncertificates = ["x"]\n', "certificates: invalid digest: expected sha256"),
        ("a = " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(TokensFileError, match=problem):
        parse_credentials(text)
    file = tmp_path / "tokens.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=f"tokens_file {file}: .*{problem}"):
        load_credentials(file)


@pytest.mark.parametrize("until", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_any_time_of_the_calendar_is_an_end(until: str) -> None:
    text = f'[nodes]\nn1 = {{ token = "{A}", until = {until} }}\n'
    (entry,) = parse_credentials(text).entries.values()
    assert entry.is_expired(NOON_NS) is until.startswith("0")


def test_a_file_that_is_not_there_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"missing tokens_file .*; fix: create it with `railscope collector"
    ):
        load_credentials(tmp_path / "none")
    (tmp_path / "bad").write_text("[")
    with pytest.raises(SettingsError, match="invalid TOML"):
        load_credentials(tmp_path / "bad")


FILE = f"""
[nodes]
n1 = ["{A}", {{ token = "{B}", until = 2026-01-01T00:00:00Z }}]
[tenants.vision]
board = {{ token = "{C}", until = 2030-01-01T00:00:00Z }}
"""


@pytest.mark.parametrize(
    ("shown", "label", "reason"),
    [
        ([], None, "no credential"),
        (["Bearer a"], "node/n1", ""),
        (["bearer a"], "node/n1", ""),
        (["Bearer b"], None, "expired"),
        (["Bearer c"], "tenant/vision/board", ""),
        (["Bearer d"], None, "unknown token"),
        (["Bearer"], None, "unknown token"),
        (["Bearer  a"], None, "unknown token"),
        (["Bearer a "], None, "unknown token"),
        (["Basic a"], None, "unknown token"),
        (["a"], None, "unknown token"),
        ([""], None, "unknown token"),
        (["Bearer a", "Bearer a"], None, "unknown token"),
        ([f"Bearer {A}"], None, "unknown token"),
        (["Bearer \udcff"], None, "unknown token"),
    ],
)
def test_a_token_is_good_as_it_is_or_not_at_all(
    shown: list[str], label: str | None, reason: str
) -> None:
    found = authenticate(parse_credentials(FILE), shown, b"", NOON_NS)
    assert (found.credential and found.credential.label, found.reason) == (label, reason)


@given(holders)
def test_a_label_is_one_holders_and_a_certificate_may_carry_it(holder: Credential) -> None:
    assert credential_of_uri(SCHEME + holder.label) == holder


@given(st.text(max_size=30) | st.from_regex(r"(node|tenant|finance)(/[a-z%2F]{0,4}){0,3}"))
def test_a_uri_names_a_credential_in_one_spelling_only(text: str) -> None:
    found = credential_of_uri(SCHEME + text)
    assert found is None or found.label == text


@pytest.mark.parametrize(
    ("uris", "label"),
    [
        ((), None),
        (("railscope:node/n1",), "node/n1"),
        (("spiffe://cluster/n1", "railscope:node/n1"), "node/n1"),
        (("railscope:tenant/vision/board",), "tenant/vision/board"),
        (("railscope:node/n1", "railscope:node/n2"), None),
        (("railscope:node/n1", "RAILSCOPE:node/n2"), None),
        (("RAILSCOPE:node/n1",), None),
        (("railscope:root/n1",), None),
        (("railscope:node/",), None),
        (("railscope:node/n1/n2",), None),
        (("railscope:tenant/vision",), None),
        (("railscope:tenant//board",), None),
        (("railscope:node/%6E1",), None),
    ],
)
def test_a_certificate_names_one_holder_or_none(
    uris: tuple[str, ...], label: str | None, tmp_path: Path
) -> None:
    shown = ClientAuthority(tmp_path).client("n9", *uris)
    found = authenticate(Credentials(), [], shown.der, NOON_NS - 10**18)
    assert (found.credential and found.credential.label) == label
    assert found.reason == ("" if label else "unknown certificate")


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


def test_a_certificate_does_not_make_a_wrong_token_good(tmp_path: Path) -> None:
    der = ClientAuthority(tmp_path).client("n1", "railscope:node/n1").der
    assert authenticate(Credentials(), ["Bearer x"], der, 0).reason == "unknown token"
    assert client_certificates.read_certificate(der).fingerprint == digest_bytes(der)


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


@pytest.mark.parametrize(("count", "more"), [(20, ()), (21, ("and 1 more",))])
def test_a_record_names_twenty_credentials_of_a_holder(count: int, more: tuple[str, ...]) -> None:
    digests = [f"{number:064x}" for number in range(count)]
    listed = ", ".join(f'"sha256:{digest}"' for digest in digests)
    named = tuple(f"token {digest[:16]}" for digest in digests[:20])
    assert recorded("", f"[nodes]\nn1 = [{listed}]\n") == [
        ("identity.enrol_approve", "node/n1", named + more, ())
    ]


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


def test_no_two_names_of_a_section_are_mixed_up() -> None:
    text = f'[tenants."a/b"]\nc = "{A}"\n[tenants.a]\n"b/c" = "{B}"\n'
    labels = {entry.credential.label for entry in parse_credentials(text).entries.values()}
    assert labels == {"tenant/a%2Fb/c", "tenant/a/b%2Fc"}
    assert tomllib.loads(text)


def test_a_changed_limit_of_authority_is_recorded_once(tmp_path: Path) -> None:
    before = parse_credentials(f'[nodes]\nx = "{A}"\n')
    after = parse_credentials(f'[nodes]\nx = {{ token = "{A}", max_authority = 1 }}\n')
    (change,) = find_changes(before, after)
    assert (change.type, change.holder) == ("identity.rotate", Credential("x", Role.NODE))
    assert change.added == (f"token {A[7:23]} max_rank 1",)
    recorded = RecordedCredentials(tmp_path / "identities")
    recorded.store(after)
    recorded.read()
    assert not find_changes(recorded.credentials, after)
