"""Stored state of claims: active claims, their ids and the names of GPUs."""

from __future__ import annotations

import errno
import os

from support.tenancy import (
    LISTED,
    NODE,
    PolledTenancy,
    end_process,
    event_summaries,
    node,
    pod,
    start_process,
    uuid,
)

from railscope_agent.tenancy.tenancy_state_file import STATE_FILE


def after_restart(looked, directory):
    """Another agent on the same machine, with the same state directory."""
    fresh = PolledTenancy(looked.host)
    fresh.tenancy.remember(directory, NODE)
    return fresh


def remembering(host, directory):
    looked = PolledTenancy(host)
    looked.tenancy.remember(directory, NODE)
    return looked


def test_a_restarted_agent_reports_the_same_claims_again(tmp_path):
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = remembering(host, tmp_path)
    (began,) = looked.poll()
    host.clock.advance(600)
    fresh = after_restart(looked, tmp_path)
    (again,) = fresh.poll()
    assert (again.event_class, again.entity, again.facts) == (
        began.event_class,
        began.entity,
        began.facts,
    )
    host.calls[LISTED] = []
    (ended,) = fresh.poll()
    assert ended.entity == began.entity


def test_claims_that_ended_while_the_agent_was_stopped(tmp_path):
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = remembering(host, tmp_path)
    looked.poll()
    host.clock.advance(600)
    host.calls[LISTED] = [pod("next", uuid(0))]
    again, ended, began = after_restart(looked, tmp_path).poll()
    assert event_summaries([again, ended, began]) == [
        ("claim_start", "kubernetes", "research/train", uuid(0)),
        ("claim_end", "kubernetes", "research/train", uuid(0)),
        ("claim_start", "kubernetes", "research/next", uuid(0)),
    ]
    assert ended.facts["uncertainty_ns"] == began.facts["uncertainty_ns"] == str(605 * 10**9)


def test_a_lost_end_is_reported_again(tmp_path):
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = remembering(host, tmp_path)
    looked.poll()
    host.calls[LISTED] = []
    (ended,) = looked.poll()
    fresh = after_restart(looked, tmp_path)
    assert [(e.event_class.name, e.entity) for e in fresh.poll()] == [
        ("claim_start", ended.entity),
        ("claim_end", ended.entity),
    ]
    assert len(after_restart(fresh, tmp_path).poll()) == 2, "this one may have been lost, too"
    assert len(fresh.poll(3600)) == 2
    assert fresh.poll(3600) == [], "for an hour"


def test_all_claims_are_reported_again_every_hour():
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = PolledTenancy(host)
    (began,) = looked.poll()
    assert sum(len(looked.poll(600)) for _ in range(5)) == 0
    (again,) = looked.poll(600)
    assert (again.entity, again.facts) == (began.entity, began.facts)


def test_unclaimed_use_goes_on_over_a_restart(tmp_path):
    host = node()
    start_process(host, 0, 11, "/system.slice/miner.service")
    looked = remembering(host, tmp_path)
    looked.poll()
    (began,) = looked.poll()
    fresh = after_restart(looked, tmp_path)
    (again,) = fresh.poll()
    assert again.entity == began.entity
    assert fresh.poll() == []
    end_process(host, 0, 11)
    (ended,) = fresh.poll()
    assert ended.entity == began.entity


def test_a_damaged_file_is_renamed_and_reported(tmp_path):
    (tmp_path / STATE_FILE).write_text('{"format": 1, "book"')
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = remembering(host, tmp_path)
    assert len(looked.poll()) == 1
    ((verdict, detail, _),) = looked.findings_about("stored claims")
    assert verdict == "broken"
    assert "damaged" in detail
    assert (tmp_path / f"{STATE_FILE}.damaged").read_text() == '{"format": 1, "book"'
    assert len(after_restart(looked, tmp_path).poll()) == 1, "and it is kept again"


def test_a_file_of_another_format_is_damaged_to_this_program(tmp_path):
    (tmp_path / STATE_FILE).write_text('{"format": 9, "book": {}, "gpus": []}')
    looked = remembering(node(), tmp_path)
    looked.poll()
    assert looked.findings_about("stored claims")[0][0] == "broken"


def test_a_disk_that_cannot_be_written_is_reported(tmp_path):
    host = node()
    looked = remembering(host, tmp_path)
    looked.poll()
    (tmp_path / STATE_FILE).unlink()
    (tmp_path / STATE_FILE).mkdir()
    host.calls[LISTED] = [pod("train", uuid(0))]
    assert len(looked.poll()) == 1
    ((verdict, detail, _),) = looked.findings_about("stored claims")
    assert verdict == "broken"
    assert os.strerror(errno.EISDIR) in detail
    (tmp_path / STATE_FILE).rmdir()
    looked.poll(61)
    looked.poll(61)
    assert not looked.findings_about("stored claims")


def test_names_of_gpus_outlive_the_driver(tmp_path):
    host = node()
    looked = remembering(host, tmp_path)
    looked.poll()
    host.calls["nvml.nvmlDeviceGetCount()"] = 0
    host.calls[LISTED] = [pod("train", "1")]
    (began,) = after_restart(looked, tmp_path).poll()
    assert began.entity.key[0] == uuid(1)


def test_another_boot_is_another_clock(tmp_path):
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = remembering(host, tmp_path)
    looked.poll()
    host.boot_id = "boot-2"
    host.clock.advance(100)
    host.calls[LISTED] = []
    ended = after_restart(looked, tmp_path).poll()[-1]
    assert ended.facts["uncertainty_ns"] == str(105 * 10**9), "by the wall clock"
