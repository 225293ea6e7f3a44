"""`railscope collector token --nodes`: tokens of many nodes, and their entries in the tokens file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from railscope_collector.access import credentials, tokens_file
from railscope_collector.access.node_tokens import (
    NodeTokenOptions,
    create_node_tokens,
)


class Site:
    """List of nodes, directory and tokens file of an administrator."""

    def __init__(self, directory: Path) -> None:
        self.nodes, self.output = directory / "nodes.txt", directory / "tokens"
        self.file = directory / "tokens.toml"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the owner of a file")
def test_the_tokens_file_still_belongs_to_the_user_of_the_collector(tmp_path: Path):
    site = Site(tmp_path)
    site.file.touch()
    os.chown(site.file, 1234, 2345)
    create_node_tokens(["a"], site.output, site.file, NodeTokenOptions(), time.time_ns())
    status = site.file.stat()
    assert (status.st_uid, status.st_gid) == (1234, 2345)


STEPS = st.one_of(
    st.tuples(st.just("run"), st.sets(st.sampled_from("abc"), min_size=1)),
    st.tuples(st.just("interrupt"), st.sets(st.sampled_from("abc"), min_size=1)),
    st.tuples(st.just("revoke"), st.sets(st.sampled_from("abc"))),
    st.tuples(st.just("delete"), st.sets(st.sampled_from("abc"))),
)


def accepted_digests(site: Site) -> dict[str, str]:
    entries = tokens_file.parse_credentials(site.file.read_text()).entries
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
