"""`railscope collector token --nodes`: tokens of many nodes, and their entries in the tokens file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import given, settings as hypothesis_settings, strategies as st
from support.command_line import run

from railscope import timestamps
from railscope.settings import read_named_file
from railscope_collector.access import credentials, tokens_format
from railscope_collector.access.node_tokens import (
    NodeTokenOptions,
    create_node_tokens,
    parse_node_names,
)

SAMPLE = Path(__file__).parents[3] / "deploy/tokens.toml"
OTHERS = '[operators]\nprometheus = "sha256:' + "1" * 64 + '"\n'


class Site:
    """List of nodes, directory and tokens file of an administrator."""

    def __init__(self, directory: Path) -> None:
        self.nodes, self.output = directory / "nodes.txt", directory / "tokens"
        self.file = directory / "tokens.toml"

    def create(self, *nodes: str, options: tuple[str, ...] = ()) -> Result:
        self.nodes.write_text("# nodes\n\n" + "".join(f"{name}\n" for name in nodes))
        places = ("--output", str(self.output), "--tokens-file", str(self.file))
        return run("collector", "token", "--nodes", str(self.nodes), *places, *options)

    def contents(self) -> dict[str, tuple[bytes, int]]:
        paths = [*self.output.glob("*"), self.file]
        return {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in paths
            if path.exists()
        }

    def holders(self) -> dict[str, str]:
        """Node of each token file, as the collector authenticates it."""
        entries = tokens_format.load_credentials(self.file).entries
        found = {}
        for path in self.output.glob("*"):
            digest = credentials.digest_token(read_named_file("token_file", str(path)))
            found[path.name] = entries[credentials.CredentialKey("token", digest)].credential.name
        return found


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_every_node_gets_a_token_that_the_collector_accepts(site: Site):
    site.file.write_bytes(SAMPLE.read_bytes())
    site.file.chmod(0o640)
    outcome = site.create("gpu-001", "gpu-002", "Zoë 3")
    assert outcome.stdout == f"created: 3 tokens in {site.output}; kept: 0\n"
    assert site.holders() == {f"{name}.token": name for name in ("gpu-001", "gpu-002", "Zoë 3")}
    assert {path.stat().st_mode & 0o777 for path in site.output.iterdir()} == {0o600}
    assert site.output.stat().st_mode & 0o777 == 0o700
    assert site.file.stat().st_mode & 0o777 == 0o640
    before, after = SAMPLE.read_text().splitlines(), site.file.read_text().splitlines()
    assert [line for line in after if line in before] == before, "comments and order are kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the owner of a file")
def test_the_tokens_file_still_belongs_to_the_user_of_the_collector(site: Site):
    site.create("a")
    os.chown(site.file, 1234, 2345)
    site.create("a", "b")
    status = site.file.stat()
    assert (status.st_uid, status.st_gid) == (1234, 2345)


def test_a_second_run_changes_nothing(site: Site):
    site.create("a", "b")
    before = site.contents()
    outcome = site.create("a", "b")
    assert outcome.stdout == f"created: 0 tokens in {site.output}; kept: 2\n"
    assert site.contents() == before


def test_a_node_is_added_and_the_others_keep_their_tokens(site: Site):
    site.file.write_text(OTHERS)
    site.create("a", "b")
    before = site.contents()
    assert "created: 1" in site.create("a", "c", "b").stdout
    after = site.contents()
    assert {name: after[name] for name in ("a.token", "b.token")} == {
        name: before[name] for name in ("a.token", "b.token")
    }
    assert set(site.holders().values()) == {"a", "b", "c"}
    assert len(tokens_format.load_credentials(site.file).entries) == 4


def test_a_node_that_left_is_reported_and_removed_on_request_only(site: Site):
    site.file.write_text(OTHERS)
    site.create("a", "b")
    before = site.contents()
    outcome = site.create("a")
    assert f"b: not in {site.nodes}: kept; fix: --revoke-unlisted removes it\n" in outcome.stdout
    assert site.contents() == before
    outcome = site.create("a", options=("--revoke-unlisted",))
    assert f"b: not in {site.nodes}: removed\n" in outcome.stdout
    assert site.holders() == {"a.token": "a"}
    assert len(tokens_format.load_credentials(site.file).entries) == 2


def test_an_interrupted_run_is_completed(site: Site):
    """Each state that an end of the program may leave: new token files are published last."""
    site.create("a", "b")
    tokens = {path.name: path.read_text() for path in site.output.iterdir()}
    (site.output / "a.token").rename(site.output / "a.new")
    outcome = site.create("a", "b")
    assert "created: 0" in outcome.stdout
    assert {path.name: path.read_text() for path in site.output.iterdir()} == tokens
    (site.output / "c.new").write_text("without-an-entry\n")
    assert "created: 1" in site.create("a", "b", "c").stdout
    assert site.holders() == {"a.token": "a", "b.token": "b", "c.token": "c"}


def test_a_revoked_token_never_comes_back(site: Site):
    site.create("a", "b", "c")
    lines = site.file.read_text().splitlines(keepends=True)
    site.file.write_text("".join(line for line in lines if not line.startswith('"b"')))
    before = site.contents()
    outcome = site.create("a", "b", "c")
    assert outcome.exit_code == 1
    assert outcome.stdout == f"created: 0 tokens in {site.output}; kept: 2\n"
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"b: revoked: the token in {site.output / 'b.token'} has no entry")
    assert f"fix: remove the node from {site.nodes}, or delete the file for a new token" in line
    assert site.create("a", "b", "c", options=("--renew", "--days", "90")).exit_code == 1
    assert site.contents() == before
    (site.output / "b.token").unlink()
    assert site.create("a", "b", "c").exit_code == 0
    assert site.contents()["b.token"] != before["b.token"]
    assert set(site.holders().values()) == {"a", "b", "c"}


def expiring(name: str, days: float, options: str = "") -> tuple[str, str]:
    """A token that expires some days from now, and its line."""
    token = f"token-of-{name}"
    end = timestamps.format_timestamp(time.time_ns() + int(days * timestamps.DAY_NS))
    digest = credentials.digest_token(token)
    return token, f'{name} = {{ token = "{digest}", until = {end}{options} }}\n'


def test_tokens_that_expire_are_reported_and_renewed(site: Site):
    site.output.mkdir()
    text = ""
    for name, days in {"a": -1, "b": 29, "c": 31, "d": -1}.items():
        token, line = expiring(name, days, ", max_authority = 2")
        text += line
        if name != "d":
            (site.output / f"{name}.token").write_text(token)
    site.file.write_text(f"{OTHERS}[nodes]\n{text}")
    before = site.contents()
    outcome = site.create(*"abcd")
    assert outcome.exit_code == 1
    assert site.contents() == before
    expired = [line.partition(" at ")[0] for line in outcome.stderr.splitlines()]
    assert expired == ["a: its token expired", "d: its token expired"]
    assert "b: its token expires at" in outcome.stdout
    assert "c: its token" not in outcome.output

    outcome = site.create(*"abcd", options=("--renew", "--days", "90"))
    assert outcome.exit_code == 0
    assert f"created: 0 tokens in {site.output}; renewed: 3; kept: 1\n" in outcome.stdout
    assert "b: renewed; its former token expires at" in outcome.stdout
    entries = tokens_format.load_credentials(site.file).entries
    count = dict.fromkeys("abcd", 0)
    for entry in entries.values():
        if entry.credential.role is credentials.Role.NODE:
            count[entry.credential.name] += 1
            assert entry.credential.max_authority == 2
            assert not entry.is_expired(time.time_ns())
    assert count == {"a": 1, "b": 2, "c": 1, "d": 1}
    assert len(site.holders()) == 4
    before = site.contents()
    assert site.create(*"abcd", options=("--renew", "--days", "31")).exit_code == 0
    assert site.contents() == before


def test_a_token_made_by_hand_is_kept(site: Site):
    site.file.write_text(f"[nodes]\na = '{credentials.digest_token('secret')}'\n")
    outcome = site.create("a", "b")
    assert (
        f"a: kept its entry in {site.file}, whose token is not in {site.output}\n" in outcome.stdout
    )
    assert site.holders() == {"b.token": "b"}


def test_a_token_file_that_others_may_read_is_restricted(site: Site):
    site.create("a")
    (site.output / "a.token").chmod(0o644)
    site.create("a")
    assert (site.output / "a.token").stat().st_mode & 0o777 == 0o600


def test_options_of_one_token_apply_to_all(site: Site):
    site.create("a", "b", options=("--max-authority", "2", "--days", "30"))
    entries = tokens_format.load_credentials(site.file).entries.values()
    assert [(entry.credential.max_authority, bool(entry.until_ns)) for entry in entries] == [
        (2, True)
    ] * 2


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        (("a", "b/c"), "line 4: invalid node name 'b/c'"),
        (("..",), "line 3: invalid node name '..'"),
        (("a", "e\u0301"), "line 4: invalid node name"),
        (("a\x1b",), "line 3: invalid node name"),
        (("x" * 201,), "line 3: invalid node name"),
        (("a", "b", "a"), "line 5: node a is also in line 3"),
        ((), "no node: expected one name per line"),
    ],
)
def test_invalid_names_change_nothing(site: Site, nodes: tuple[str, ...], problem: str):
    outcome = site.create(*nodes)
    assert outcome.exit_code == 1
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"Error: {site.nodes}: {problem}")
    assert site.contents() == {}
    assert not site.output.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[nodes\n", "invalid TOML"),
        ("nodes = {}\n", "the section [nodes] cannot be changed"),
        ("[nodes]\na = 1\n", "[nodes] a: invalid digest"),
        ("[nodes]\nc = [\n]\nc = 1\n", "invalid TOML"),
    ],
)
def test_a_tokens_file_that_does_not_fit_is_not_changed(site: Site, text: str, problem: str):
    site.output.mkdir()
    (site.output / "a.token").write_text("secret\n")
    site.file.write_text(text)
    before = site.contents()
    outcome = site.create("a", "b")
    assert outcome.exit_code == 1
    assert problem in outcome.stderr
    assert site.contents() == before


def test_a_tokens_file_in_no_directory_changes_nothing(site: Site):
    site.file = site.file.with_name("missing") / site.file.name
    outcome = site.create("a")
    assert outcome.exit_code == 1
    assert f"tokens file: {site.file}: expected an existing directory; fix: " in outcome.stderr
    assert not site.output.exists()


def test_the_token_of_a_person_is_written_with_its_entry(site: Site):
    site.file.write_text("# of the site\n[tenants.vision] # own\nold = '" + DIGEST + "'\n[nodes]\n")
    places = ("--tokens-file", str(site.file), "--output")
    people = (("operator", "anna", ()), ("tenant", "dashboard", ("--tenant", "vision")))
    for role, name, more in people:
        outcome = run(
            "collector", "token", "--role", role, *more, *places, str(site.output / name), name
        )
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert (site.output / name).read_text().strip() not in outcome.stdout
        assert (site.output / name).stat().st_mode & 0o777 == 0o600
    assert site.holders() == {"anna": "anna", "dashboard": "dashboard"}
    found = tokens_format.load_credentials(site.file).entries.values()
    assert {str(entry.credential.role) for entry in found} == {"operator", "tenant"}
    assert site.file.read_text().startswith('# of the site\n[tenants.vision] # own\n"dashboard')
    before = site.contents()
    for file, name, error in (
        ("new", "anna", "has an entry; fix: remove it, or choose another NAME"),
        ("anna", "ben", "anna exists; fix: remove it, or choose another file"),
    ):
        outcome = run("collector", "token", "--role", "operator", *places, str(site.output / file), name)  # fmt: skip
        assert outcome.exit_code == 1
        assert error in outcome.stderr
    assert site.contents() == before


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nodes", "x"),
        ("--output", "x"),
        ("--tokens-file", "x", "gpu-1"),
        ("--nodes", "x", "--output", "y", "--role", "operator"),
        ("--nodes", "x", "--output", "y", "gpu-1"),
        ("--revoke-unlisted", "gpu-1"),
        ("--renew", "--days", "90", "gpu-1"),
        ("--renew", "--nodes", "x", "--output", "y"),
        ("--renew", "--days", "30", "--nodes", "x", "--output", "y"),
        (),
    ],
    ids=" ".join,
)
def test_other_combinations_of_options_are_rejected(arguments: tuple[str, ...]):
    outcome = run("collector", "token", *arguments)
    assert outcome.exit_code == 2
    assert "expected" in outcome.stderr


def test_a_token_that_was_replaced_by_hand_is_reported_for_its_node_only(site: Site):
    site.create("a")
    site.file.write_text(f"[nodes]\na = '{credentials.digest_token('another')}'\n")
    outcome = site.create("a", "b")
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("a: revoked: ")
    (site.output / "a.token").unlink()
    assert site.holders() == {"b.token": "b"}
    assert site.create("a", "b").exit_code == 0


NAMES = st.lists(
    st.text("ab-é.#'\"\\= ", min_size=1, max_size=4).map(str.strip), unique=True, max_size=6
)


@hypothesis_settings(deadline=None)
@given(runs=st.lists(st.tuples(NAMES, st.booleans()), min_size=1, max_size=4))
def test_after_any_runs_the_listed_nodes_have_their_tokens(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[list[str], bool]]
):
    site = Site(tmp_path_factory.mktemp("site"))
    site.file.write_text(OTHERS)
    for listed, is_revoking in runs:
        try:
            names = parse_node_names("\n".join(listed))
        except tokens_format.TokensFileError:
            continue
        had = {} if not site.output.exists() else site.holders()
        options = NodeTokenOptions(is_revoking=is_revoking)
        outcome = create_node_tokens(names, site.output, site.file, options, time.time_ns())
        has = site.holders()
        assert {*names} <= {*has.values()} <= {*names, *had.values()}
        assert not is_revoking or {*names} == {*has.values()}
        assert set(outcome.created) == {*names} - {*had.values()}


STEPS = st.one_of(
    st.tuples(st.just("run"), st.sets(st.sampled_from("abc"), min_size=1)),
    st.tuples(st.just("interrupt"), st.sets(st.sampled_from("abc"), min_size=1)),
    st.tuples(st.just("revoke"), st.sets(st.sampled_from("abc"))),
    st.tuples(st.just("delete"), st.sets(st.sampled_from("abc"))),
)


def accepted_digests(site: Site) -> dict[str, str]:
    entries = tokens_format.parse_credentials(site.file.read_text()).entries
    return {key.value: entry.credential.name for key, entry in entries.items()}


@hypothesis_settings(deadline=None)
@given(steps=st.lists(STEPS, max_size=8), is_stored=st.booleans())
def test_no_sequence_of_runs_and_interruptions_restores_a_revoked_token(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, set[str]]],
    is_stored: bool,  # noqa: FBT001
):
    """An interruption leaves new files before or after the tokens file was written."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.file.touch()
    revoked: set[str] = set()
    for step, nodes in steps:
        before = site.file.read_text()
        if step == "revoke":
            former, lines = accepted_digests(site), before.splitlines(keepends=True)
            removed = tuple(f'"{name}"' for name in nodes)
            site.file.write_text("".join(line for line in lines if not line.startswith(removed)))
            revoked |= {digest for digest in former if digest not in accepted_digests(site)}
        elif step == "delete":
            for name in nodes:
                (site.output / f"{name}.token").unlink(missing_ok=True)
        else:
            names = sorted(nodes)
            outcome = create_node_tokens(names, site.output, site.file, NodeTokenOptions(), time.time_ns())  # fmt: skip
            present = accepted_digests(site)
            for name in {*outcome.created, *outcome.existing}:
                token = (site.output / f"{name}.token").read_text().strip()
                assert present[credentials.digest_token(token)] == name
            assert {*names} == {*outcome.created, *outcome.existing, *outcome.without_file, *outcome.without_entry}  # fmt: skip
            if step == "interrupt":
                for name in outcome.created:
                    (site.output / f"{name}.token").rename(site.output / f"{name}.new")
                if not is_stored:
                    site.file.write_text(before)
        assert not revoked & accepted_digests(site).keys()
