"""Claims by Slurm: cgroups, job environments and files written by a prolog."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from random import Random
from zoneinfo import TZPATH, ZoneInfo

import pytest
from support.clock import NS, START, ManualClock
from support.machine import DENIED, FakeHost
from support.shared import capture_path
from support.tenancy import (
    NODE,
    PolledTenancy,
    cut,
    end_process,
    event_summaries,
    mig_uuid,
    node,
    start_process,
    uuid,
)

from railscope.frame import NodeTimestamp
from railscope.timestamps import to_datetime
from railscope_agent.config import TenancySettings
from railscope_agent.tenancy.slurm_job_groups import JobControlGroups

YEAR_NS = 31_536_000 * NS
SCOPE = "/sys/fs/cgroup/system.slice/slurmstepd.scope"
JOBS = TenancySettings(slurm_job_directory="/run/jobs")
SLUID = "sEKNKTV3WPV500"


def job(host: FakeHost, directory: str, pid: int, *, daemon: int = 0, **environ: str) -> None:
    """Add the cgroup directory of a job with one task and its environment."""
    host.files[f"{directory}/step_0/user/task_0/cgroup.procs"] = f"{pid}\n"
    host.files[f"{directory}/step_0/slurm/cgroup.procs"] = f"{daemon}\n" if daemon else ""
    if environ:
        host.calls[f"owner.environ({pid})"] = {f"SLURM_{k}": v for k, v in environ.items()}


def remove_job(host, directory):
    for path in [path for path in host.files if path.startswith(directory + "/")]:
        del host.files[path]


def test_a_job_by_its_environment():
    host = node(4)
    host.calls["nvml.nvmlDeviceGetMinorNumber(1)"] = 5
    host.files[f"{SCOPE}/cgroup.procs"] = ""
    job(
        host,
        f"{SCOPE}/job_211",
        50,
        JOB_ID="211",
        JOB_GPUS="0,5",
        JOB_ACCOUNT="astro",
        JOB_USER="eva",
    )
    looked = PolledTenancy(host)
    began = looked.poll()
    assert event_summaries(began) == [
        ("claim_start", "slurm", "211", uuid(0)),
        ("claim_start", "slurm", "211", uuid(1)),
    ]
    assert {event.facts["owner"] for event in began} == {"astro"}
    assert {event.facts["level"] for event in began} == {"node_plugin"}
    host.calls["owner.environ(50)"] = {"SLURM_JOB_ID": "211", "SLURM_JOB_ACCOUNT": "else"}
    assert looked.poll() == [], "the first environment counts: a job may change it"
    assert host.asked["owner.environ(50)"] == 1
    remove_job(host, f"{SCOPE}/job_211")
    assert [event[0] for event in event_summaries(looked.poll())] == ["claim_end", "claim_end"]


def test_a_job_named_by_its_sluid():
    host = node()
    job(host, f"{SCOPE}/{SLUID}", 50, daemon=49)
    host.files["/proc/49/cmdline"] = "slurmstepd: [3385.0]\0"
    start_process(host, 1, 50, f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0")
    looked = PolledTenancy(host)
    looked.poll()
    assert looked.value("gpu_claims", uuid(1)) == 1
    assert looked.value("gpu_unclaimed_processes", uuid(1)) == 0
    assert [claim.claim.workload for claim in looked.tenancy.active_claims] == ["3385"]


def test_the_first_hierarchy_of_version_1_that_has_jobs():
    host = node()
    directory = "/sys/fs/cgroup/memory/slurm/uid_1000/job_7"
    host.files[f"{directory}/step_batch/task_0/cgroup.procs"] = "70\n"
    host.files["/sys/fs/cgroup/cpuset/slurm/uid_1000/job_7/cgroup.procs"] = ""
    host.calls["owner.environ(70)"] = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1"}
    assert event_summaries(PolledTenancy(host).poll()) == [("claim_start", "slurm", "7", uuid(1))]


@pytest.mark.parametrize(
    ("directory", "left"),
    [
        (f"{SCOPE}/job_7", {"cgroup.events": "populated 0\nfrozen 0\n", "step_batch/user/task_0/cgroup.procs": ""}),
        ("/sys/fs/cgroup/memory/slurm/uid_1000/job_7",
         {"cgroup.procs": "", "step_batch/cgroup.procs": "", "step_batch/task_0/cgroup.procs": ""}),
    ],
)  # fmt: skip
def test_a_group_that_stays_behind_without_a_process_holds_nothing(directory, left):
    """rackslab/FireHPC#6 (cgroup v2), ceems-dev/ceems#380."""
    host = node()
    task = next(name for name in left if "task_0" in name)
    host.files |= {
        f"{directory}/{name}": text.replace("ed 0", "ed 1", 1) for name, text in left.items()
    }
    host.files[f"{directory}/{task}"] = "70\n"
    host.calls["owner.environ(70)"] = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1"}
    looked = PolledTenancy(host)
    assert event_summaries(looked.poll()) == [("claim_start", "slurm", "7", uuid(1))]
    host.files |= {f"{directory}/{name}": text for name, text in left.items()}
    assert event_summaries(looked.poll()) == [("claim_end", "slurm", "7", uuid(1))]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENODEV, errno.EACCES])
@pytest.mark.parametrize(
    "unreadable", ["cgroup.events", "cgroup.procs", "step_0/task_0/cgroup.procs"]
)
def test_a_group_that_cannot_be_read_is_no_end_of_its_job(unreadable, number):
    host = node()
    directory = (
        f"{SCOPE}/job_7"
        if unreadable == "cgroup.events"
        else "/sys/fs/cgroup/memory/slurm/uid_1000/job_7"
    )
    host.files |= {
        f"{directory}/step_0/{name}cgroup.procs": "70\n" for name in ("task_0/", "user/task_0/")
    }
    host.files |= {f"{directory}/{name}": "" for name in ("cgroup.procs", "step_0/cgroup.procs")}
    if unreadable == "cgroup.events":
        host.files[f"{directory}/{unreadable}"] = "populated 1\n"
    host.calls["owner.environ(70)"] = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1"}
    looked = PolledTenancy(host)
    assert event_summaries(looked.poll()) == [("claim_start", "slurm", "7", uuid(1))]
    if unreadable == "cgroup.events":
        host.files[f"{directory}/step_0/task_0/cgroup.procs"] = ""  # v2 has its tasks below user
    host.files[f"{directory}/{unreadable}"] = OSError(number, "cannot read")
    assert looked.poll() == []


def test_mig_devices_by_their_uuid():
    host = node(1)
    cut(host, 0, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    job(host, f"{SCOPE}/job_8", 50, JOB_ID="8", JOB_GPUS="0")
    host.calls["owner.environ(50)"]["CUDA_VISIBLE_DEVICES"] = mig_uuid(0, 1)
    (began,) = PolledTenancy(host).poll()
    assert (began.facts["device"], began.facts["compute"]) == (mig_uuid(0, 1), "480-840")


def test_a_job_without_a_device_list_holds_the_gpus_of_its_processes_until_it_ends():
    host = node()
    directory = f"{SCOPE}/job_9"
    job(host, directory, 50)
    host.calls["owner.environ(50)"] = DENIED
    looked = PolledTenancy(host)
    assert looked.poll() == []
    assert looked.findings_about("Slurm")[-1][0] == "denied"
    start_process(host, 1, 50, "/system.slice/slurmstepd.scope/job_9/step_0/user/task_0")
    assert event_summaries(looked.poll()) == [("claim_start", "slurm", "9", uuid(1))]
    end_process(host, 1, 50)
    for _ in range(3):
        assert looked.poll() == []
    remove_job(host, directory)
    assert event_summaries(looked.poll()) == [("claim_end", "slurm", "9", uuid(1))]


def test_a_process_on_a_gpu_that_its_job_does_not_have():
    host = node()
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="9", JOB_GPUS="0")
    for gpu in (0, 1):
        start_process(host, gpu, 50, "/system.slice/slurmstepd.scope/job_9/step_0/user/task_0")
    looked = PolledTenancy(host)
    looked.poll()
    assert event_summaries(looked.poll()) == [("unclaimed_use_start", "slurm", "9", uuid(1))]


def test_a_job_that_claims_to_be_another_is_not_trusted():
    host = node()
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="8", JOB_GPUS="0", JOB_ACCOUNT="victim")
    assert PolledTenancy(host).poll() == []


def test_the_batch_step_represents_the_job_or_else_all_steps_together():
    host = node(4)
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="9", STEP_GPUS="0")
    host.files[f"{SCOPE}/job_9/step_1/user/task_0/cgroup.procs"] = "51\n"
    host.calls["owner.environ(51)"] = {"SLURM_JOB_ID": "9", "SLURM_STEP_GPUS": "1"}
    assert len(PolledTenancy(host).poll()) == 2
    host.files[f"{SCOPE}/job_9/step_batch/user/task_0/cgroup.procs"] = "52\n"
    host.calls["owner.environ(52)"] = {"SLURM_JOB_ID": "9", "SLURM_JOB_GPUS": "0,1,2"}
    assert len(PolledTenancy(host).poll()) == 3


@pytest.mark.parametrize("seed", range(6))
def test_without_its_script_a_job_holds_the_gpus_of_all_its_steps_so_far(seed, tmp_path):
    """`srun --gpus=1 ... &` on the other nodes of a job: each step has its GPUs, and inherits those of the script's node."""
    random = Random(seed)  # noqa: S311 - a repeatable test
    host = node(4)
    begun: list[int] = []
    host.files[f"{SCOPE}/job_9/step_extern/user/task_special/cgroup.procs"] = "49\n"
    looked = remembering(host, tmp_path)
    for number in range(8):
        directory = f"{SCOPE}/job_9/step_{number}"
        host.files[f"{directory}/user/cgroup.procs"] = ""
        looked.poll()  # its first task has not started yet
        used = random.sample(range(4), random.randint(1, 2))
        begun += used
        job_gpus, step_gpus = "0,1,2,3", ",".join(map(str, used))
        host.files[f"{directory}/user/task_0/cgroup.procs"] = f"{50 + number}\n"
        host.calls[f"owner.environ({50 + number})"] = {
            "SLURM_JOB_ID": "9", "SLURM_JOB_GPUS": job_gpus, "SLURM_STEP_GPUS": step_gpus,
        }  # fmt: skip
        assert {kind for kind, *_ in event_summaries(looked.poll())} <= {"claim_start"}
        assert held(looked)[0] == {("9", uuid(gpu), "") for gpu in begun}
        if random.random() < 0.5:
            remove_job(host, f"{SCOPE}/job_9/step_{random.randint(0, number)}")
        if random.random() < 0.3:
            looked = remembering(host, tmp_path)
        looked.poll()
        assert held(looked)[0] == {("9", uuid(gpu), "") for gpu in begun}
    assert max(host.asked[f"owner.environ({50 + number})"] for number in range(8)) <= 8
    remove_job(host, f"{SCOPE}/job_9")
    looked.poll()
    assert held(looked)[0] == set()


def test_the_names_of_devices_that_a_job_writes_are_bounded():
    """A user writes them: each step may state others, and they are kept while the job runs."""
    host, groups = node(), JobControlGroups()
    for number in range(4):
        host.files[f"{SCOPE}/job_9/step_{number}/user/task_0/cgroup.procs"] = f"{50 + number}\n"
        names = ",".join(f"GPU-{number}-{name}" for name in range(100))
        host.calls[f"owner.environ({50 + number})"] = {
            "SLURM_JOB_ID": "9",
            "CUDA_VISIBLE_DEVICES": names,
        }
    ((_, environment),) = groups.scan(host)
    assert len(environment.gpus or ()) == 256


def remembering(host: FakeHost, directory: Path) -> PolledTenancy:
    """Return tenancy with the state that the last run stored in a directory."""
    looked = PolledTenancy(host)
    looked.tenancy.remember(directory, NODE)
    return looked


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        # The script has the GPUs of the first node: src/slurmd/slurmstepd/slurmstepd_job.c, gres_g_job_set_env.
        ({"JOB_GPUS": "0,1", "STEP_GPUS": "2,3"}, {2, 3}),
        ({"STEP_GPUS": "3"}, {3}),
        ({"JOB_GPUS": "0,1"}, {0, 1}),  # of an external launcher
        ({}, set()),
    ],
)
def test_a_step_on_another_node_inherits_the_gpus_of_the_script(environ, expected):
    host = node(4)
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="9")
    host.calls["owner.environ(50)"] |= {f"SLURM_{name}": text for name, text in environ.items()}
    looked = PolledTenancy(host)
    began = looked.poll()
    assert {event.entity.key[0] for event in began} == {uuid(number) for number in expected}
    assert looked.poll() == []


def test_a_component_of_a_heterogeneous_job_has_its_own_number():
    """Its processes have the number of the first one: src/slurmd/slurmstepd/task.c, het_job_id."""
    host = node()
    job(host, f"{SCOPE}/job_102", 50, JOB_ID="101", JOB_ACCOUNT="astro", STEP_GPUS="1")
    looked = PolledTenancy(host)
    assert looked.poll() == [], "this may be the environment of any other job"
    host.calls["owner.environ(50)"] |= {
        "SLURM_JOB_ID_HET_GROUP_0": "101",
        "SLURM_JOB_ID_HET_GROUP_1": "102",
        "SLURM_JOB_ACCOUNT_HET_GROUP_0": "astro",
        "SLURM_JOB_ACCOUNT_HET_GROUP_1": "bio",
    }
    (began,) = looked.poll()
    assert event_summaries([began]) == [("claim_start", "slurm", "102", uuid(1))]
    assert began.facts["owner"] == "bio"


def test_a_job_without_gpus_is_read_again_when_it_has_another_step():
    host = node()
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="9")
    looked = PolledTenancy(host)
    for _ in range(3):
        assert looked.poll() == []
    assert host.asked["owner.environ(50)"] == 1
    host.files[f"{SCOPE}/job_9/step_1/user/task_0/cgroup.procs"] = "51\n"
    host.calls["owner.environ(51)"] = {"SLURM_JOB_ID": "9", "SLURM_STEP_GPUS": "1"}
    assert event_summaries(looked.poll()) == [("claim_start", "slurm", "9", uuid(1))]


def test_shares_are_nobodys_own():
    host = node()
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="9", JOB_GPUS="0", SHARDS_ON_NODE="2")
    (began,) = PolledTenancy(host).poll()
    assert began.facts["exclusive"] == "false"


def test_control_groups_that_cannot_be_read_end_nothing():
    host = node()
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="9", JOB_GPUS="0")
    looked = PolledTenancy(host)
    assert len(looked.poll()) == 1
    readable = host.names

    def names(path: str) -> list[str]:
        if path.startswith("/sys/fs/cgroup/system.slice"):
            raise DENIED
        return readable(path)

    host.names = names
    assert looked.poll() == []
    assert looked.value("gpu_claims", uuid(0)) == "denied"
    host.names = readable
    assert looked.poll() == []


def test_files_by_gpu():
    host = node(3)
    cut(host, 2, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    directory = "/run/jobs"
    host.files |= {
        f"{directory}/0": "123\n", f"{directory}/1": "", f"{directory}/2.2": "124\n125\n",
        f"{directory}/notes": "hello",
    }  # fmt: skip
    looked = PolledTenancy(host, TenancySettings(slurm_gpu_directory=directory))
    began = looked.poll()
    assert event_summaries(began) == [
        ("claim_start", "slurm", "123", uuid(0)),
        ("claim_start", "slurm", "124", uuid(2)),
        ("claim_start", "slurm", "125", uuid(2)),
    ]
    assert [event.facts["exclusive"] for event in began] == ["true", "false", "false"]
    assert {event.facts["level"] for event in began} == {"scheduler"}
    assert began[1].facts["device"] == mig_uuid(2, 1)
    assert any("notes" in detail for _, detail, _ in looked.findings_about("claims by Slurm"))
    remove_job(host, directory)
    assert looked.poll() == [], "the directory is gone: nothing is known"
    host.files[f"{directory}/1"] = "123"
    assert sorted(event[0] for event in event_summaries(looked.poll())) == ["claim_end"] * 3 + [
        "claim_start"
    ]


GRES_CONF = f"NodeName={NODE} Name=gpu File=/dev/nvidia[1,0]\n"


def as_json(number: int, gres: str, start: int = 1_789_999_000) -> str:
    return json.dumps(
        {
            "jobs": [
                {
                    "job_id": number,
                    "job_state": ["RUNNING"],
                    "start_time": start,
                    "end_time": 0,
                    "account": "astro",
                    "nodes": NODE,
                    "gres_detail": [gres],
                }
            ]
        }
    )


def test_files_of_jobs():
    host = node()
    host.files["/etc/slurm/gres.conf"] = GRES_CONF
    host.files["/run/jobs/211.json"] = as_json(211, "gpu:h100:1(IDX:0)")
    settings = TenancySettings(slurm_job_directory="/run/jobs")
    looked = PolledTenancy(host, settings)
    (began,) = looked.poll()
    assert event_summaries([began]) == [("claim_start", "slurm", "211", uuid(1))]
    assert began.facts["start_ns"] == str(1_789_999_000 * 10**9)
    assert began.facts["uncertainty_ns"] == str(10**9)
    assert began.facts["owner"] == "astro"
    host.files["/run/jobs/211.json"] = "{"
    assert looked.poll() == [], "an invalid file is no end of its job"
    assert any("211.json" in detail for _, detail, _ in looked.findings_about("claims by Slurm"))
    del host.files["/run/jobs/211.json"]
    host.files["/run/jobs/212.json"] = as_json(212, "gpu:h100:1(IDX:1)")
    ended, other = looked.poll()
    assert event_summaries([ended, other]) == [
        ("claim_end", "slurm", "211", uuid(1)),
        ("claim_start", "slurm", "212", uuid(0)),
    ]


STALE = OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize(
    "content", [DENIED, STALE, OSError(errno.EIO, "Input/output error"), "", "{"]
)
def test_a_file_of_a_job_that_cannot_be_read_ends_nothing(content, tmp_path):
    """Its directory is shared, or the disk was full when it was written. Other jobs begin and end meanwhile."""
    host = node(4)
    directory = "/run/jobs"
    host.files |= {f"{directory}/{n}.json": as_json(n, f"gpu:1(IDX:{n})") for n in (1, 2)}
    looked = PolledTenancy(host, JOBS)
    looked.tenancy.remember(tmp_path, NODE)
    assert len(looked.poll()) == 2
    host.files[f"{directory}/1.json"] = content
    del host.files[f"{directory}/2.json"]
    host.files[f"{directory}/3.json"] = as_json(3, "gpu:1(IDX:2)")
    assert event_summaries(looked.poll()) == [
        ("claim_end", "slurm", "2", uuid(2)),
        ("claim_start", "slurm", "3", uuid(2)),
    ]
    assert any("1.json (" in detail for _, detail, _ in looked.findings_about("claims by Slurm"))
    looked = PolledTenancy(host, JOBS)
    looked.tenancy.remember(tmp_path, NODE)
    assert {event.event_class.name for event in looked.poll()} == {"claim_start", "claim_end"}
    assert {active.claim.workload for active in looked.tenancy.active_claims} == {"1", "3"}
    host.files[f"{directory}/3.json"] = as_json(3, "gpu:2(IDX:1-2)")
    assert event_summaries(looked.poll()) == [
        ("claim_end", "slurm", "1", uuid(1)),
        ("claim_start", "slurm", "3", uuid(1)),
    ], "Slurm has granted the GPU again"


@pytest.mark.parametrize("content", [DENIED, STALE, "12a"])
def test_a_file_of_a_gpu_that_cannot_be_read_ends_nothing(content):
    host = node(3)
    directory = "/run/gpus"
    host.files |= {f"{directory}/{gpu}": f"{gpu}\n" for gpu in range(3)}
    looked = PolledTenancy(host, TenancySettings(slurm_gpu_directory=directory))
    assert len(looked.poll()) == 3
    host.files[f"{directory}/0"] = content
    host.files[f"{directory}/1"] = ""
    assert event_summaries(looked.poll()) == [("claim_end", "slurm", "1", uuid(1))]
    findings = looked.findings_about("claims by Slurm")
    assert [verdict for verdict, _, _ in findings] == ["broken", "supported"]
    del host.files[f"{directory}/0"]
    assert event_summaries(looked.poll()) == [("claim_end", "slurm", "0", uuid(0))]


def test_the_order_of_the_gpus_stays_while_gres_conf_cannot_be_read():
    host = node()
    host.files["/etc/slurm/gres.conf"] = GRES_CONF
    host.files["/run/jobs/211.json"] = as_json(211, "gpu:1(IDX:0)")
    looked = PolledTenancy(host, JOBS)
    assert event_summaries(looked.poll()) == [("claim_start", "slurm", "211", uuid(1))]
    host.files["/etc/slurm/gres.conf"] = STALE
    assert looked.poll() == []
    assert [verdict for verdict, _, _ in looked.findings_about("gres.conf")] == ["broken"]


WRITTEN = "owner.modified(/run/jobs/211.json)"


def test_a_file_that_a_crash_left_behind_is_about_no_running_job():
    """The epilog did not run: the file is from before the boot. A requeued job keeps its number and writes it again."""
    host = node()
    host.clock = ManualClock(NodeTimestamp(START.wall_ns, 900 * NS))
    host.files["/run/jobs/211.json"] = as_json(211, "gpu:1(IDX:0)")
    host.calls[WRITTEN] = START.wall_ns - 901 * NS
    looked = PolledTenancy(host, JOBS)
    assert looked.poll() == []
    details = [detail for _, detail, _ in looked.findings_about("claims by Slurm")]
    assert "ignored in /run/jobs: 211.json from before this boot" in details
    job(host, f"{SCOPE}/job_211", 50, JOB_ID="211")
    assert event_summaries(looked.poll()) == [("claim_start", "slurm", "211", uuid(0))]
    remove_job(host, f"{SCOPE}/job_211")
    assert event_summaries(looked.poll()) == [("claim_end", "slurm", "211", uuid(0))]
    host.calls[WRITTEN] = host.clock.now().wall_ns
    assert event_summaries(looked.poll()) == [("claim_start", "slurm", "211", uuid(0))]
    for step in range(300):
        host.clock.step_wall(1 if step % 2 else -1)
        assert looked.poll() == [], (
            "the first offsets of the boot are forgotten: it may be of this one"
        )


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("allocated_before_boot", [1, 600, 3_600, 90_000])
def test_a_job_may_be_allocated_before_its_node_is_started_for_it(allocated_before_boot, is_known):
    """sbatch --reboot, nodes in the cloud. Without its first step it has no control group."""
    host = node()
    host.clock = ManualClock(NodeTimestamp(START.wall_ns, 60 * NS))
    start = START.wall_ns // NS - 60 - allocated_before_boot
    host.files["/run/jobs/211.json"] = as_json(211, "gpu:1(IDX:0)", start=start)
    if is_known:
        host.calls[WRITTEN] = START.wall_ns - 30 * NS
    assert event_summaries(PolledTenancy(host, JOBS).poll()) == [
        ("claim_start", "slurm", "211", uuid(0))
    ]


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo", "Europe/Berlin"])
@pytest.mark.parametrize("form", ["link", "copy", "cut", "empty", "text"])
def test_text_of_scontrol_is_in_the_zone_of_the_node(form, zone):
    """Without a zone its start is wrong, but the job is not taken for one of an earlier boot."""
    host = node(8)
    (file,) = (Path(root, zone) for root in TZPATH if Path(root, zone).is_file())
    content = file.read_bytes()
    if form == "link":
        host.links["/etc/localtime"] = f"/usr/share/zoneinfo/{zone}"
        host.files[f"/usr/share/zoneinfo/{zone}"] = content
    else:
        damaged = {"copy": content, "cut": content[:-10], "empty": b"", "text": b"UTC\n"}
        host.files["/etc/localtime"] = damaged[form]
    local = to_datetime(START.wall_ns - 100 * NS).astimezone(ZoneInfo(zone))
    text = capture_path("jobs/slurm/scontrol_out_all_gpus.txt").read_text()
    text = re.sub(r"StartTime=\S+", f"StartTime={local:%Y-%m-%dT%H:%M:%S}", text)
    host.files["/proc/sys/kernel/hostname"] = "node1751"
    host.files["/run/jobs/211.json"] = text
    host.calls[WRITTEN] = START.wall_ns
    looked = PolledTenancy(host, JOBS)
    starts = {event.facts["start_ns"] for event in looked.poll()}
    if form in {"link", "copy"}:
        assert starts == {str(START.wall_ns - 100 * NS)}
    else:
        assert bool(starts) == (zone == "America/Los_Angeles"), "others begin in the future"


def test_scontrol_takes_precedence_over_the_job():
    host = node()
    host.files["/run/jobs/9"] = as_json(9, "gpu:1(IDX:0)")
    job(host, f"{SCOPE}/job_9", 50, JOB_ID="9", JOB_GPUS="1", JOB_ACCOUNT="else")
    (began,) = PolledTenancy(host, TenancySettings(slurm_job_directory="/run/jobs")).poll()
    assert (began.entity.key[0], began.facts["owner"]) == (uuid(0), "astro")


@pytest.mark.parametrize(
    "name",
    ["scontrol_out_all_gpus.txt", "scontrol_out_main_array_job.txt", "scontrol_out_multi_node.txt"],
)
def test_jobs_of_a_real_cluster(name):
    text = capture_path(f"jobs/slurm/{name}").read_text()
    lines = [line.split() for line in text.splitlines() if "IDX:" in line]
    first = lines[0][0].removeprefix("Nodes=")
    name = re.sub(r"\[(\d+).*", r"\1", first)  # of several nodes, the first
    host = node(8)
    host.clock = ManualClock(NodeTimestamp(START.wall_ns, 10 * YEAR_NS))
    host.files["/proc/sys/kernel/hostname"] = name
    host.files["/run/jobs/1"] = text
    looked = PolledTenancy(host, TenancySettings(slurm_job_directory="/run/jobs"))
    looked.poll()
    assert {verdict for verdict, _, _ in looked.findings_about("claims by Slurm")} == {"supported"}
    indices = set()
    for fields in lines:
        if fields[0] != f"Nodes={first}":
            continue
        for piece in fields[-1].partition("IDX:")[2].rstrip(")").split(","):
            low, _, high = piece.partition("-")
            indices |= set(range(int(low), int(high or low) + 1))
    assert "JobState=RUNNING" in text
    named = {claim.claim.gpu for claim in looked.tenancy.active_claims if claim.claim.gpu}
    assert named == {uuid(index) for index in indices}


LISTED = "".join(
    f"Name=gpu Type={profile} MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[{9 * n}-{9 * n + 1}]\n"
    for n, profile in enumerate(("3g.40gb", "1g.10gb", "1g.10gb"), 1)
)
PARTS = [mig_uuid(0, n) for n in range(3)]


def partitioned(gpus: int = 1) -> FakeHost:
    """A node whose first GPU has a MIG device of three slices and two of one."""
    host = node(gpus)
    cut(host, 0, [("3g.40gb", 0, 4), ("1g.10gb", 4, 1), ("1g.10gb", 5, 1)])
    for part in range(1, 4):
        directory = f"/proc/driver/nvidia/capabilities/gpu0/mig/gi{part}"
        host.files[f"{directory}/access"] = f"DeviceFileMinor: {9 * part}\nDeviceFileMode: 292\n"
        host.files[f"{directory}/ci0/access"] = f"DeviceFileMinor: {9 * part + 1}\n"
    return host


def held(looked):
    claims = [active.claim for active in looked.tenancy.active_claims if active.is_claim]
    broken = [v for v, _, _ in looked.findings_about("claims by Slurm") if v == "broken"]
    return {(c.workload, c.part or c.count, c.share) for c in claims}, bool(broken)


def test_the_capability_files_of_mig_devices_have_static_numbers():
    host = partitioned()
    for path in [path for path in host.files if path.endswith("/access")]:
        del host.files[path]
    host.files["/etc/slurm/gres.conf"] = "".join(
        f"Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[{3 + 9 * n}-{4 + 9 * n}]\n"
        for n in (1, 2, 3)
    )
    host.files["/run/jobs/211"] = as_json(211, "gpu:1g.10gb:1(IDX:2)")
    looked = PolledTenancy(host, JOBS)
    looked.poll()
    assert held(looked) == ({("211", PARTS[2], "")}, False)


@pytest.mark.parametrize(
    ("gres", "conf", "visible", "expected", "is_broken"),
    [
        ("gpu:1g.10gb:1(IDX:2)", LISTED, "", {(PARTS[2], "")}, False),
        ("gpu:1g.10gb:2(IDX:1-2)", LISTED, "", {(PARTS[1], ""), (PARTS[2], "")}, False),
        ("gpu:1(IDX:0)", LISTED, "", {(PARTS[0], "")}, False),
        ("gpu:1g.10gb:1(IDX:2)", LISTED, PARTS[1], {(PARTS[2], "")}, True),
        ("gpu:1g.10gb:1(IDX:2)", "", PARTS[1], {(PARTS[1], "")}, False),
        ("gpu:1g.10gb:1(IDX:2)", "", PARTS[0], {(1, "1/7")}, True),
        ("gpu:1g.10gb:1(IDX:2)", "", f"{PARTS[1]},{PARTS[2]}", {(PARTS[1], "")}, True),
        ("gpu:1g.10gb:2(IDX:1-2)", "", "", {(2, "1/7")}, True),
        ("gpu:3g.40gb:1(IDX:0),gpu:1g.10gb:1(IDX:1)", "", f"{PARTS[0]},{PARTS[2]}", {(PARTS[0], ""), (PARTS[2], "")}, False),
        ("gpu:3g.40gb:1(IDX:0),gpu:1g.10gb:1(IDX:1)", "", PARTS[2], {(1, "3/7"), (PARTS[2], "")}, True),
        ("gpu:1(IDX:0)", "", "", set(), True),
        ("gpu:1(IDX:0)", "", PARTS[0], {(PARTS[0], "")}, False),
        ("gpu:7g.80gb:1(IDX:0)", "", "", set(), True),
        ("gpu:1(IDX:0)", "Name=gpu File=/dev/nvidia0", "", set(), True),
    ],
)  # fmt: skip
def test_an_index_of_a_mig_device_is_never_the_whole_gpu(gres, conf, visible, expected, is_broken):
    host = partitioned()
    host.files["/etc/slurm/gres.conf"] = conf or "AutoDetect=nvml"
    host.files["/run/jobs/211"] = as_json(211, gres)
    if visible:
        job(host, f"{SCOPE}/job_211", 50, JOB_ID="211", JOB_GPUS="0")
        host.calls["owner.environ(50)"]["CUDA_VISIBLE_DEVICES"] = visible
    looked = PolledTenancy(host, JOBS)
    looked.poll()
    found, broken = held(looked)
    assert {claim[1:] for claim in found} == expected
    assert broken == is_broken


@pytest.mark.parametrize(
    ("cut_gpu", "gres", "expected"),
    [
        (1, "gpu:h100:1(IDX:0)", {("211", uuid(0), "")}),
        (0, "gpu:h100:1(IDX:3)", {("211", uuid(1), "")}),
        (0, "gpu:3g.40gb:1(IDX:1)", {("211", 1, "3/7")}),
    ],
)
def test_a_node_with_one_gpu_in_mig_mode(cut_gpu, gres, expected):
    host = node(2)
    cut(host, cut_gpu, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    host.files["/run/jobs/211"] = as_json(211, gres)
    looked = PolledTenancy(host, JOBS)
    looked.poll()
    assert held(looked)[0] == expected


def test_numbers_of_a_jobs_environment_are_no_device_files_in_mig_mode():
    host = partitioned()
    job(host, f"{SCOPE}/job_211", 50, JOB_ID="211", JOB_GPUS="0")
    looked = PolledTenancy(host)
    looked.poll()
    assert held(looked) == (set(), True)
    group = "/system.slice/slurmstepd.scope/job_211/step_0/user/task_0"
    listed = {"gpuInstanceId": 2, "computeInstanceId": 0}
    start_process(host, PARTS[1], 60, group, listed=listed)
    looked.poll()
    assert held(looked) == ({("211", PARTS[1], "")}, False)


@pytest.mark.parametrize(
    ("name", "groups", "listed", "is_broken"),
    [
        (NODE, [], NODE, False),
        (f"{NODE}.example.org", [], NODE, False),
        (NODE, [], f"{NODE}.example.org", False),
        ("a.example.org", [], "a.example.com", True),
        ("ip-10-0-0-7", [], NODE, True),
        ("ip-10-0-0-7", [f"{NODE}_slurmstepd.scope"], NODE, False),
    ],
)
def test_nodes_are_named_as_slurm_names_them(name, groups, listed, is_broken):
    host = node(2)
    host.files["/proc/sys/kernel/hostname"] = name
    for group in groups:
        host.files[f"/sys/fs/cgroup/system.slice/{group}/cgroup.procs"] = ""
    host.files["/run/jobs/211"] = as_json(211, "gpu:h100:1(IDX:0)").replace(NODE, listed)
    looked = PolledTenancy(host, JOBS)
    looked.poll()
    assert held(looked) == (set() if is_broken else {("211", uuid(0), "")}, is_broken)
