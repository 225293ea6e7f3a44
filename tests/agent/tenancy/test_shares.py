"""Every way to share a GPU, and counts of GPUs without their names: a directory for each case.

`tree` has the files of the node, `calls.json` answers of the kubelet and of processes, `case.json` the
number of GPUs, the settings, what is expected as [workload, GPU, share, count], and the findings.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.tenancy import ALLOCATABLE, LISTED, PolledTenancy, cut, mig_uuid, node, pod, uuid

from railscope_agent.config import TenancySettings
from railscope_agent.sampling.probe_result import ProbeVerdict

CASES = Path(__file__).parent / "shares"


def load_case(case: Path) -> tuple[PolledTenancy, dict[str, object]]:
    expected = json.loads((case / "case.json").read_text())
    host = node(expected["gpus"])
    for path in sorted((case / "tree").rglob("*")):
        if path.is_file():
            host.files["/" + str(path.relative_to(case / "tree"))] = path.read_text()
    calls = case / "calls.json"
    host.calls.update(json.loads(calls.read_text()) if calls.exists() else {})
    looked = PolledTenancy(host, msgspec.convert(expected["settings"], TenancySettings))
    looked.poll()
    return looked, expected


@pytest.mark.parametrize("case", sorted(CASES.iterdir()), ids=lambda case: case.name)
def test_each_claim_holds_its_share(case: Path):
    looked, expected = load_case(case)
    claims = [claim.claim for claim in looked.tenancy.active_claims if claim.is_claim]
    numbers = {uuid(n): n for n in range(expected["gpus"])}
    found = [
        [claim.workload, numbers.get(claim.gpu, ""), claim.share, claim.count] for claim in claims
    ]
    assert sorted(found, key=str) == sorted(expected["expected"], key=str)
    assert all(claim.exclusive == (not claim.share) for claim in claims)
    bad = {
        f.subject for f in looked.findings if f.remedy and f.verdict is not ProbeVerdict.SUPPORTED
    }
    assert bad >= set(expected["findings"])
    assert not [f for f in looked.findings if f.detail.startswith("0 devices") and claims]


def test_gpus_reserved_for_fractions_are_a_finding_without_the_list_of_pods():
    host = node(2)
    host.calls[LISTED] = [pod("gpu-reservation-a", uuid(1), namespace="kai-resource-reservation")]
    looked = PolledTenancy(host)
    assert looked.poll() == []
    (_, (verdict, detail, remedy)) = looked.findings_about("claims by Kubernetes")
    assert verdict == "broken"
    assert detail == f"1 GPU shared by pods that are unknown: {uuid(1)}"
    assert "kubelet_url" in remedy


A, B = uuid(0), uuid(1)
INIT, APP = f"{A},NVIDIA,1,60:;", f"{A},NVIDIA,1,30:;"


@pytest.mark.parametrize(
    ("text", "containers", "phase", "sidecars", "shares"),
    [
        (INIT + APP, 1, "Running", (False,), {A: "3/10"}),
        (INIT + APP, 1, "Pending", (False,), {A: "3/5"}),
        (INIT + APP, 1, "Running", None, {A: "3/10"}),
        (INIT + APP, 1, "Running", (True,), {A: "9/10"}),
        (INIT + INIT + APP, 1, "Pending", (False, False), {A: "3/5"}),
        (APP + INIT + APP, 1, "Pending", (True, False), {A: "9/10"}),
        (APP + INIT + APP, 1, "Running", (True, False), {A: "3/5"}),
        (APP + APP, 2, "Running", (False,), {A: "3/5"}),
        (APP + ";", 2, "Running", (), {A: "3/10"}),
        (";" + APP, 1, "Running", (False,), {A: "3/10"}),
        (f"{B},NVIDIA,1,60:;" + APP, 1, "Running", (False,), {A: "3/10"}),
        (f"{B},NVIDIA,1,60:;" + APP, 1, "Pending", (False,), {A: "3/10", B: "3/5"}),
        (INIT + ";;", 1, "Running", None, {A: "3/5"}),
        (INIT + ";", 1, "Running", (False,), {}),
    ],
)
def test_init_containers_hold_nothing_once_they_have_ended(
    text, containers, phase, sidecars, shares
):
    host = node(2)
    host.calls[LISTED] = [pod("p", f"{A}-3")]
    listed = {
        "namespace": "research", "name": "p", "phase": phase, "sidecars": sidecars,
        "annotations": {"hami.io/vgpu-devices-allocated": text},
        "containers": [{"name": f"c{n}"} for n in range(containers)],
    }  # fmt: skip
    url = "https://gpu-1:10250/pods"
    host.calls[f"kubelet.Pods({url},,)"] = [listed]
    looked = PolledTenancy(host, TenancySettings(kubelet_url=url))
    assert {event.facts["device"]: event.facts["share"] for event in looked.poll()} == shares


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (f"{A}[0-1],NVIDIA,20000,30:;", [mig_uuid(0, 1)]),
        (f"{A}[0-0],NVIDIA,40000,50:{A}[0-1],NVIDIA,20000,30:;", [mig_uuid(0, 0), mig_uuid(0, 1)]),
        (f"{A}[0-2],NVIDIA,20000,30:;", []),
        (f"{A},NVIDIA,20000,30:;", []),
        ("", []),
    ],
)
def test_hami_names_mig_devices_by_their_nvml_index(text, devices):
    host = node(1)
    cut(host, 0, [("3g.40gb", 0, 4), ("1g.10gb", 4, 1)])
    host.calls[LISTED] = [pod("p", f"{A}-3")]
    listed = {
        "namespace": "research", "name": "p", "phase": "Running",
        "annotations": {"hami.io/vgpu-devices-allocated": text},
        "containers": [{"name": "main", "limits": {"nvidia.com/gpumem": "1000"}}],
    }  # fmt: skip
    url = "https://gpu-1:10250/pods"
    host.calls[f"kubelet.Pods({url},,)"] = [listed]
    looked = PolledTenancy(host, TenancySettings(kubelet_url=url))
    events = looked.poll()
    assert [event.facts["device"] for event in events] == devices
    assert all("share" not in event.facts for event in events)
    broken = [finding for finding in looked.findings_about("Kubernetes") if finding[0] == "broken"]
    assert bool(broken) == (not devices)


def test_a_replica_of_a_mig_device_is_a_fraction_of_the_instance():
    host = node(1)
    cut(host, 0, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    device = mig_uuid(0, 1)
    host.calls[LISTED] = [pod("one", f"{device}::0", f"{device}::2"), pod("two", f"{device}::1")]
    ids = [f"{device}::{replica}" for replica in range(7)]
    host.calls[ALLOCATABLE] = [{"resource": "nvidia.com/gpu", "ids": ids, "numa_nodes": []}]
    events = PolledTenancy(host).poll()
    assert [(e.facts["share"], e.facts["compute"], e.facts["device"]) for e in events] == [
        ("2/7", "480-840", device),
        ("1/7", "480-840", device),
    ]


def test_a_claim_without_a_device_names_no_gpu_and_its_count():
    looked, _ = load_case(CASES / "slurm-count-only")
    looked.host.files["/run/jobs/211"] = '{"jobs": []}'
    (ended,) = looked.poll()
    assert ended.entity.key[0] == ""
    looked, _ = load_case(CASES / "slurm-count-only")
    (one,) = looked.tenancy.active_claims
    facts = one.claim.facts(looked.host.boot_id)
    assert (facts["count"], "share" in facts, facts["exclusive"]) == ("2", False, "true")
    assert looked.value("gpu_claims", uuid(0)) == 0


def test_a_finding_names_the_job_and_how_to_place_it():
    looked, _ = load_case(CASES / "slurm-count-above-indices")
    ((verdict, detail, remedy),) = looked.findings_about("claims without a device")
    assert (verdict, "3 GPUs of 1 claim" in detail, "slurm 211 (3)" in detail) == (
        "absent",
        True,
        True,
    )
    assert "railscope claim" in remedy
    looked.host.files["/run/jobs/211"] = '{"jobs": []}'
    looked.poll()
    assert looked.findings_about("claims without a device") == []


def test_a_count_is_placed_when_a_prolog_names_devices_later():
    looked, _ = load_case(CASES / "slurm-count-only")
    from railscope_agent.tenancy.command_claims import CommandClaim  # noqa: PLC0415 - only here

    tenancy = looked.tenancy
    devices = tuple(tenancy.devices.gpu(uuid(n)) for n in (2, 3))
    now = looked.host.clock.now()
    expected = CommandClaim("slurm-211", devices, "", "slurm:211", "astro", now.wall_ns)
    tenancy.commands._claims = {expected.id: expected}  # noqa: SLF001 - no state directory here
    looked.poll()
    assert sorted(claim.claim.gpu for claim in tenancy.active_claims) == [uuid(2), uuid(3)]
