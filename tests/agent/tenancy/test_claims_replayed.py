"""A replayed recording of a node reports the same claim events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.clock import NS
from support.machine import FakeHost
from support.tenancy import (
    LISTED,
    PolledTenancy,
    cut,
    end_process,
    keeps_pod,
    mig_uuid,
    node,
    pod,
    start_process,
    uuid,
)

from railscope.capture import Capture, CaptureMetadata
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost

SCOPE = "/sys/fs/cgroup/system.slice/slurmstepd.scope"
POLLS = 6


def change_node(host: FakeHost, poll: int) -> None:
    """Change the node before a poll."""
    if poll == 0:
        cut(host, 1, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
        group = keeps_pod(host, 1, "train")
        start_process(host, 0, 11, group)
        host.calls[LISTED] = [pod("train", uuid(0))]
    elif poll == 1:
        host.files[f"{SCOPE}/job_9/step_0/user/task_0/cgroup.procs"] = "50\n"
        host.calls["owner.environ(50)"] = {
            "SLURM_JOB_ID": "9",
            "SLURM_JOB_ACCOUNT": "astro",
            "CUDA_VISIBLE_DEVICES": mig_uuid(1, 1),
        }
        start_process(host, 0, 12, "/user.slice/user-1000.slice/session-3.scope")
    elif poll == 3:
        host.calls[LISTED] = []
        end_process(host, 0, 11)
        for path in [p for p in host.files if p.startswith("/sys/fs/cgroup/kubepods.slice")]:
            del host.files[path]
    elif poll == 4:
        del host.files[f"{SCOPE}/job_9/step_0/user/task_0/cgroup.procs"]
        host.files[f"{SCOPE}/cgroup.procs"] = ""


def poll_events(looked: PolledTenancy, before: Callable[[int], None] = lambda _: None) -> list[Any]:
    """Return the class, key and facts of every event of all polls."""
    found = []
    for poll in range(POLLS):
        before(poll)
        found += [(e.event_class.name, e.entity.key, e.facts) for e in looked.poll()]
    return found


def test_a_replayed_recording_gives_the_same_claims():
    host = node()
    started = host.clock.now()
    recording = RecordingHost(host)
    live = poll_events(PolledTenancy(recording), lambda poll: change_node(host, poll))
    assert [name for name, _, _ in live] == [
        "claim_start",
        "claim_start",
        "unclaimed_use_start",
        "claim_end",
        "claim_end",
    ]
    about = CaptureMetadata(
        "gpu-1", "boot-1", started.wall_ns, started.boot_ns, POLLS * 5 * NS, "recorded"
    )
    again = node().clock

    def offset_ns() -> int:
        return again.now().boot_ns - started.boot_ns

    replayed = RecordedHost(Capture(about, tuple(recording.moments)), again, offset_ns)
    assert poll_events(PolledTenancy(replayed)) == live
