"""Claims by Kubernetes, from the kubelet's answer to events."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from support.machine import DENIED
from support.tenancy import (
    ALLOCATABLE,
    LISTED,
    NODE,
    PolledTenancy,
    cut,
    event_summaries,
    keeps_pod,
    mig_uuid,
    node,
    pod,
    pod_group,
    uuid,
)

from railscope_agent.config import TenancySettings

START, END = "claim_start", "claim_end"


def facts(events, workload="research/train"):
    return next(event.facts for event in events if event.facts["workload"] == workload)


def test_a_pod_begins_and_ends():
    host = node()
    host.calls[LISTED] = []
    looked = PolledTenancy(host)
    assert looked.poll() == []
    host.calls[LISTED] = [pod("train", uuid(0), uuid(1))]
    began = looked.poll()
    assert event_summaries(began) == [
        (START, "kubernetes", "research/train", uuid(0)),
        (START, "kubernetes", "research/train", uuid(1)),
    ]
    now = host.clock.now()
    assert began[0].facts == {
        "source": "kubernetes", "level": "node_plugin", "workload": "research/train",
        "owner": "research", "start_ns": str(now.wall_ns),
        "start_boot_ns": str(now.boot_ns), "uncertainty_ns": str(5 * 10**9),
        "compute": "0-840", "memory": "0-840", "exclusive": "true", "system": "false",
        "device": uuid(0),
    }  # fmt: skip
    assert began[0].entity.key == (
        uuid(0),
        f"kubernetes/{NODE}/research/train/{uuid(0)}/{now.wall_ns}",
    )
    assert looked.value("gpu_claims", uuid(0)) == 1
    assert looked.value("gpu_claimed_ratio", uuid(0)) == 840
    host.calls[LISTED] = [pod("train", uuid(0))]
    ended = looked.poll()
    assert event_summaries(ended) == [(END, "kubernetes", "research/train", uuid(1))]
    assert ended[0].entity == began[1].entity
    assert ended[0].facts["end_ns"] == str(host.clock.now().wall_ns)
    assert ended[0].facts["uncertainty_ns"] == str(5 * 10**9)
    assert ended[0].facts["why"] == "gone"


def test_devices_by_each_of_their_names():
    host = node(4)
    cut(host, 3, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    host.calls["nvml.nvmlDeviceGetMinorNumber(1)"] = 7
    host.calls[LISTED] = [
        pod("index", "0"),
        pod("google", "nvidia7"),
        pod("mig", mig_uuid(3, 1), resource="nvidia.com/mig-3g.40gb"),
        pod("google-mig", "nvidia3/gi1"),
        pod("rail", "0000:3b:00.2", resource="nvidia.com/hostdev"),
    ]
    events = PolledTenancy(host).poll()
    assert event_summaries(events) == [
        (START, "kubernetes", "research/index", uuid(0)),
        (START, "kubernetes", "research/google", uuid(1)),
        (START, "kubernetes", "research/mig", uuid(3)),
        (START, "kubernetes", "research/google-mig", uuid(3)),
    ]
    parts = [(e.facts["device"], e.facts["compute"], e.facts["memory"]) for e in events[2:]]
    assert parts == [(mig_uuid(3, 1), "480-840", "420-840"), (mig_uuid(3, 0), "0-360", "0-420")]
    assert events[2].facts["profile"] == "3g.40gb"


def test_an_entry_for_each_device_and_container_is_one_claim_each():
    host = node()
    several = pod("train", uuid(0))
    several["containers"][0]["devices"] += [
        {"resource": "nvidia.com/gpu", "ids": [uuid(1)], "numa_nodes": [1]},
        {"resource": "cpu", "ids": ["3"], "numa_nodes": []},
    ]
    several["containers"].append(pod("train", uuid(0))["containers"][0] | {"name": "side"})
    host.calls[LISTED] = [several]
    looked = PolledTenancy(host)
    assert [event.entity.key[0] for event in looked.poll()] == [uuid(0), uuid(1)]
    assert looked.poll() == []


def test_shares_of_a_gpu():
    host = node(1)
    shares = [f"{uuid(0)}::{place}" for place in range(4)]
    host.calls[ALLOCATABLE] = [
        {"resource": "nvidia.com/gpu.shared", "ids": shares, "numa_nodes": []}
    ]
    one = pod("one", shares[1], shares[3], resource="nvidia.com/gpu.shared")
    host.calls[LISTED] = [one, pod("two", shares[0], resource="nvidia.com/gpu.shared")]
    looked = PolledTenancy(host)
    events = looked.poll()
    shown = [(e.facts["workload"], e.facts["share"], e.facts["exclusive"]) for e in events]
    assert shown == [("research/one", "1/2", "false"), ("research/two", "1/4", "false")]
    assert {(e.facts["device"], e.facts["compute"]) for e in events} == {(uuid(0), "0-840")}
    assert looked.value("gpu_claims", uuid(0)) == 2
    assert looked.value("gpu_claimed_ratio", uuid(0)) == 630
    looked.poll()
    assert host.asked[ALLOCATABLE] == 1, "the number of devices is not requested at each poll"


@pytest.mark.parametrize(
    ("resource", "is_gpu"),
    [
        ("munich.example/gpu", True),
        ("processing.example/gpu", True),
        ("clinic.example/a100-gpus", True),
        ("nic.example/gpu", True),
        ("rdma-cluster.example/gpu", True),
        ("example.com/bf16-gpu", True),
        ("nvidia.com/supernic", False),
        ("nvidia.com/smartnics", False),
        ("nvidia.com/rocev2", False),
        ("nvidia.com/eastwestnics", False),
        ("nvidia.com/sharedhca", False),
        ("example.com/roce", False),
        ("rdma/hca_shared_devices_a", False),
        ("openshift.io/mlxnics", False),
        ("nvidia.com/mlnxnics", False),
        ("nvidia.com/cx7_gpu_rail", False),
        ("intel.com/gpu-nic", False),
    ],
)
def test_words_of_networks_begin_or_end_a_word(resource, is_gpu):
    host = node()
    host.calls[LISTED] = [pod("train", "0", resource=resource)]
    host.calls[ALLOCATABLE] = DENIED
    began = event_summaries(PolledTenancy(host).poll())
    assert began == ([("claim_start", "kubernetes", "research/train", uuid(0))] if is_gpu else [])


def test_the_digits_of_a_uuid_are_no_word():
    host = node()
    host.calls[LISTED] = [pod("train", "GPU-00000000-bf31-4000-8000-000000000009")]
    looked = PolledTenancy(host)
    looked.poll()
    assert "broken" in {verdict for verdict, _, _ in looked.findings_about("Kubernetes")}


def test_a_gpu_that_its_plugin_lost_keeps_the_shares_of_its_pods():
    """The plugin starts again after the loss, and registers the other devices only."""
    host = node(2)
    ids = {gpu: [f"{uuid(gpu)}::{place}" for place in range(4)] for gpu in (0, 1)}
    listed = {"resource": "nvidia.com/gpu", "ids": [*ids[0], *ids[1]], "numa_nodes": []}
    host.calls[ALLOCATABLE] = [listed]
    host.calls[LISTED] = [pod("one", ids[0][1]), pod("two", ids[1][0])]
    looked = PolledTenancy(host)
    assert [event.facts["share"] for event in looked.poll()] == ["1/4", "1/4"]
    listed["ids"] = ids[1]
    assert looked.poll(120) == []
    assert looked.poll(120) == []
    listed["ids"] = [*ids[0], f"{uuid(0)}::4", *ids[1]]
    ended, began = looked.poll(120)
    assert (ended.facts["why"], began.facts["share"]) == ("changed", "1/5")


def test_a_share_of_an_unknown_number_is_not_exclusive():
    host = node(1)
    host.calls[LISTED] = [pod("one", f"{uuid(0)}::1")]
    host.calls[ALLOCATABLE] = OSError(errno.EOPNOTSUPP, "gRPC status 12")
    looked = PolledTenancy(host)
    (event,) = looked.poll()
    assert (event.facts["compute"], event.facts["exclusive"]) == ("0-840", "false")
    assert "share" not in event.facts
    assert any(
        "GetAllocatableResources" in remedy for _, _, remedy in looked.findings_about("Kubernetes")
    )


def resource_claim(
    name: str, device: str, *cdi: str, driver: str = "gpu.nvidia.com", share: str = ""
) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "research",
        "cdi_names": list(cdi),
        "devices": [{"driver": driver, "pool": NODE, "device": device, "share": share}],
    }


def test_resource_claims():
    host = node(4)
    cut(host, 2, [("1g.10gb", 0, 1), ("3g.40gb", 4, 4)])

    host.calls[LISTED] = [
        pod("whole", claims=[resource_claim("a", "gpu-1", "k8s.gpu.nvidia.com/device=gpu-1")]),
        pod("named", claims=[resource_claim("b", "gpu-9", f"nvidia.com/gpu={uuid(0)}")]),
        pod("part", claims=[resource_claim("c", "gpu-2-mig-9-4-4")]),
        pod("dynamic", claims=[resource_claim("d", "gpu-2-mig-1g10gb-19-0")]),
        pod(
            "channel", claims=[resource_claim("e", "channel-0", driver="compute-domain.nvidia.com")]
        ),
        pod("odd", claims=[resource_claim("f", "gpu-77")]),
        pod("both-1", claims=[resource_claim("g", "gpu-3", share="s1")]),
    ]
    looked = PolledTenancy(host)
    devices = {e.facts["workload"]: e.facts["device"] for e in looked.poll()}
    assert devices == {
        "research/whole": uuid(1),
        "research/named": uuid(0),
        "research/part": mig_uuid(2, 1),
        "research/dynamic": mig_uuid(2, 0),
        "research/both-1": f"{uuid(3)}::s1",
    }
    (broken,) = [
        finding for finding in looked.findings_about("Kubernetes") if finding[0] == "broken"
    ]
    assert "gpu-77 of claim research/f" in broken[1]


@pytest.mark.parametrize(
    ("cdi", "share", "expected"),
    [
        (f"k8s.lab.example/claim={uuid(1)}", "", {(uuid(1), "true")}),
        (f"k8s.lab.example/claim={uuid(1)}", "s1", {(f"{uuid(1)}::s1", "false")}),
        (f"k8s.lab.example/claim={mig_uuid(0, 1)}", "", {(mig_uuid(0, 1), "true")}),
        (f"k8s.lab.example/claim={uuid(1)}-part-3", "", {(uuid(1), "false")}),
        (f"k8s.lab.example/claim={uuid(5)}", "", set()),
        ("k8s.lab.example/claim=gpu-1", "", set()),
    ],
)
def test_a_resource_claim_of_another_driver_has_the_gpus_that_its_cdi_names_contain(
    cdi, share, expected
):
    host = node(2)
    cut(host, 0, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    claim = resource_claim("a", "card-7", cdi, driver="gpu.lab.example", share=share)
    host.calls[LISTED] = [pod("train", claims=[claim])]
    events = PolledTenancy(host).poll()
    assert {(event.facts["device"], event.facts["exclusive"]) for event in events} == expected


def test_two_pods_of_one_resource_claim_do_not_have_it_to_themselves():
    host = node(1)
    both = resource_claim("a", "gpu-0")
    host.calls[LISTED] = [pod("one", claims=[both]), pod("two", claims=[both])]
    assert [event.facts["exclusive"] for event in PolledTenancy(host).poll()] == ["false", "false"]


def monitor(name: str, namespace: str, gpus: int = 3) -> dict[str, Any]:
    claim = resource_claim(name, "") | {"namespace": namespace}
    device = {"driver": "gpu.nvidia.com", "pool": NODE, "share": ""}
    claim["devices"] = [device | {"device": f"gpu-{number}"} for number in range(gpus)]
    return pod(name, namespace=namespace, claims=[claim])


TRAIN = pod("train", claims=[resource_claim("c", "gpu-0")])
TRAIN_HOLDS = {("research/train", 0, True, False)}


def held(looked):
    numbers = {uuid(n): n for n in range(8)}
    claims = [active.claim for active in looked.tenancy.active_claims if active.is_claim]
    return {(c.workload, numbers[c.gpu], c.exclusive, c.allocated_twice) for c in claims}


@pytest.mark.parametrize("others", [[], [TRAIN], [pod("train", uuid(0))]])
def test_claims_of_the_configured_namespaces_have_admin_access_and_hold_nothing(others):
    host = node(3)
    host.calls[LISTED] = [
        *others,
        monitor("dcgm", "gpu-operator"),
        monitor("one", "kube-system", 1),
    ]
    looked = PolledTenancy(host)
    looked.poll()
    assert held(looked) == (TRAIN_HOLDS if others else set())
    assert {verdict for verdict, _, _ in looked.findings_about("Kubernetes")} == {"supported"}


@pytest.mark.parametrize(
    "pods",
    [
        [monitor("all", "watch"), TRAIN],
        [monitor("all", "watch"), pod("train", uuid(0))],
        [monitor("all", "watch"), pod("train", claims=[resource_claim("c", "gpu-0", share="s")])],
        [monitor("all", "watch"), TRAIN, monitor("dcgm", "gpu-operator")],
    ],
)
def test_a_device_allocated_twice_is_reported_and_both_claims_stay(pods):
    host = node(3)
    host.calls[LISTED] = pods
    looked = PolledTenancy(host)
    looked.poll()
    assert held(looked) == {
        ("watch/all", 0, False, True),
        ("research/train", 0, False, True),
        ("watch/all", 1, True, False),
        ("watch/all", 2, True, False),
    }
    (broken,) = [each for each in looked.findings_about("Kubernetes") if each[0] == "broken"]
    assert uuid(0) in broken[1]
    host.calls[LISTED] = [monitor("all", "watch")]
    looked.poll()
    assert held(looked) == {("watch/all", number, True, False) for number in range(3)}


def test_a_mig_device_and_its_gpu_given_to_two_claims_are_both_reported():
    host = node(2)
    cut(host, 1, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    host.calls[LISTED] = [
        pod("whole", claims=[resource_claim("a", "gpu-1")]),
        pod("part", claims=[resource_claim("b", "gpu-1-mig-9-4-4")]),
    ]
    events = PolledTenancy(host).poll()
    assert {(e.facts["workload"], e.facts["allocated_twice"]) for e in events} == {
        ("research/whole", "true"),
        ("research/part", "true"),
    }


def test_two_pods_share_a_device_by_its_share_ids():
    host = node(3)
    host.calls[LISTED] = [
        pod(name, claims=[resource_claim(name, "gpu-0", share=name)]) for name in "ab"
    ]
    looked = PolledTenancy(host)
    looked.poll()
    assert held(looked) == {
        ("research/a", 0, False, False),
        ("research/b", 0, False, False),
    }


@pytest.mark.parametrize(
    ("resource", "text", "device"),
    [
        ("nvidia.com/a100", uuid(1), uuid(1)),
        ("lab.example/big", uuid(1), uuid(1)),
        ("lab.example/small", mig_uuid(0, 1), mig_uuid(0, 1)),
        ("lab.example/big", uuid(1) + "::2", uuid(1)),
        ("nvidia.com/vgpu", uuid(1) + "-3", uuid(1)),
        ("lab.example/mem", uuid(1) + "-_-3", uuid(1)),
        ("lab.example/mem", mig_uuid(0, 1) + "-_-3", mig_uuid(0, 1)),
        ("lab.example/mem", "part-3-of-" + uuid(1), "broken"),
        ("lab.example/mem", uuid(0) + "-_-3", "broken"),
        ("lab.example/mem", uuid(5) + "-_-3", None),
        ("nvidia.com/a100", "1", uuid(1)),
        ("nvidia.com/slice", "0:1", mig_uuid(0, 1)),
        ("lab.example/gpu", "1", uuid(1)),
        ("rdma/hca", "1", None),
        ("nvidia.com/rdma_shared", "1", None),
        ("nvidia.com/hostdev", "0000:3b:00.2", None),
        ("nvidia.com/a100", "7", "broken"),
        ("nvidia.com/a100", "A100", "broken"),
        ("nvidia.com/gpu", uuid(5), "broken"),
        ("nvidia.com/gpu", uuid(0) + "-3", "broken"),
    ],
)
def test_the_id_decides_whatever_the_resource_is_called(resource, text, device):
    host = node(2)
    cut(host, 0, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    host.calls[LISTED] = [pod("train", text, resource=resource)]
    looked = PolledTenancy(host)
    found = [event.facts["device"] for event in looked.poll()]
    verdicts = {verdict for verdict, _, _ in looked.findings_about("Kubernetes")}
    assert (found or ["broken" if "broken" in verdicts else None]) == [device]


@pytest.mark.parametrize(
    ("resource", "ids", "device"),
    [
        ("nvidia.com/a100", ("0", "1"), uuid(1)),
        ("nvidia.com/a100", ("1",), uuid(1)),
        ("nvidia.com/shared", ("0", "1", "2", "3"), None),
        ("nvidia.com/shared", ("0", "1", "fuse"), None),
        ("lab.example/big", ("0", "1"), uuid(1)),
        ("lab.example/big", ("0::0", "0::1", "1", "1::1"), uuid(1)),
        ("lab.example/fuse", ("1",), None),
        ("lab.example/fuse", tuple(map(str, range(100))), None),
        ("rdma/hca", ("0", "1"), None),
        ("nvidia.com/bf3_shared", ("0", "1"), None),
        ("lab.example/gpu", ("1", "5"), uuid(1)),
        ("amd.com/gpu", ("0", "1"), None),
        ("gpu.intel.com/i915-gpu", ("0", "1"), None),
        ("amd.com/mi300", ("0", "1"), None),
        ("notamd.com/gpu", ("0", "1"), uuid(1)),
    ],
)
def test_a_number_is_that_of_a_gpu_if_all_devices_of_the_resource_are_gpus(resource, ids, device):
    host = node(2)
    host.calls[LISTED] = [pod("train", "1", resource=resource)]
    host.calls[ALLOCATABLE] = [
        {"resource": resource, "ids": [each], "numa_nodes": []} for each in ids
    ]
    looked = PolledTenancy(host)
    assert [event.facts["device"] for event in looked.poll()] == ([device] if device else [])
    looked.poll()
    assert host.asked[ALLOCATABLE] <= 1
    host.calls[ALLOCATABLE] = DENIED
    assert looked.poll(100.0) == [], "the last answer stays"


def test_several_parts_of_a_gpu_are_one_share_of_unknown_size():
    host = node(2)
    ids = [f"{uuid(1)}-_-{place}" for place in range(8)]
    host.calls[LISTED] = [pod("train", *ids, resource="lab.example/mem")]
    (event,) = PolledTenancy(host).poll()
    assert (event.facts["device"], event.facts["exclusive"]) == (uuid(1), "false")
    assert "share" not in event.facts


def test_a_pod_that_has_ended_and_is_still_listed():
    host = node()
    keeps_pod(host, 1, "done")
    keeps_pod(host, 2, "going")
    host.calls[LISTED] = [pod("done", uuid(0)), pod("going", uuid(1)), pod("new", uuid(0))]
    looked = PolledTenancy(host)
    assert len(looked.poll()) == 3
    remove_group(host, 1)
    assert event_summaries(looked.poll()) == [(END, "kubernetes", "research/done", uuid(0))]


def remove_group(host, number):
    """Remove the control group of a pod; its log directory stays."""
    group = f"pod{pod_group(number)[0].replace('-', '_')}"
    for path in [p for p in host.files if p.startswith("/sys/fs/cgroup") and group in p]:
        del host.files[path]


def test_a_kubelet_that_has_not_synchronized_ends_nothing():
    """Until it has the pods of the API server, its lists lack them (kubernetes issue 112119)."""
    host = node(3)
    url = "https://gpu-1:10250/pods"
    shares = f"kubelet.Pods({url},,)"
    keeps_pod(host, 1, "train")
    keeps_pod(host, 2, "part")
    keeps_pod(host, 3, "done")
    part = pod("part", f"{uuid(1)}-_-0")
    host.calls[LISTED] = listed = [pod("train", uuid(0)), part, pod("done", uuid(2))]
    host.calls[shares] = entries = [
        {"name": "part", "namespace": "research", "annotations": {"gpu-fraction": "0.25"}}
    ]
    looked = PolledTenancy(host, TenancySettings(kubelet_url=url))
    assert [event.facts.get("share") for event in looked.poll()] == [None, None, "1/4"]
    host.calls[LISTED] = host.calls[shares] = []
    for _ in range(3):
        assert looked.poll() == []
    assert [text for _, text, _ in looked.findings_about("Kubernetes") if "not list" in text]
    remove_group(host, 3)
    assert event_summaries(looked.poll()) == [(END, "kubernetes", "research/done", uuid(2))]
    host.calls[LISTED], host.calls[shares] = listed, entries
    assert looked.poll() == []


def test_other_pods_begin_and_end_while_an_ended_one_is_removed():
    """The kubelet no longer lists a pod whose volumes cannot be unmounted; it has its control group."""
    host = node()
    keeps_pod(host, 1, "stuck")
    host.calls[LISTED] = [pod("stuck", uuid(0)), pod("other", uuid(1))]
    looked = PolledTenancy(host)
    assert len(looked.poll()) == 2
    host.calls[LISTED] = [pod("new", uuid(1))]
    assert event_summaries(looked.poll()) == [
        (END, "kubernetes", "research/other", uuid(1)),
        (START, "kubernetes", "research/new", uuid(1)),
    ]
    # Its device is free for the kubelet, which may allocate it to another pod.
    host.calls[LISTED] = [pod("next", uuid(0)), pod("new", uuid(1))]
    assert event_summaries(looked.poll()) == [
        (END, "kubernetes", "research/stuck", uuid(0)),
        (START, "kubernetes", "research/next", uuid(0)),
    ]


@pytest.mark.parametrize(
    "former", ["kubepods/burstable", "kubepods.slice/kubepods-burstable.slice"]
)
def test_the_cgroup_driver_of_the_kubelet_changes(former):
    """The kubelet leaves the control groups of its former driver, at first with the pods in them."""
    host = node(3)
    names = {
        "kubepods/burstable": "pod{}",
        "kubepods.slice/kubepods-burstable.slice": "kubepods-burstable-pod{}.slice",
    }
    pods = {
        name: f"0000000{number}-0000-4000-8000-000000000000"
        for number, name in enumerate(("old", "new", "done"))
    }
    for name, uid in pods.items():
        host.files[f"/var/log/pods/research_{name}_{uid}/main/0.log"] = ""
    groups = {
        name: f"/sys/fs/cgroup/{root}/{pattern.format(pods[name])}/cgroup.procs"
        for name in ("old", "new")
        for root, pattern in names.items()
        if (root == former) == (name == "old")
    }
    host.files[groups["old"]] = ""
    host.calls[LISTED] = [pod("old", uuid(0)), pod("done", uuid(2))]
    looked = PolledTenancy(host)
    assert event_summaries(looked.poll()) == [(START, "kubernetes", "research/old", uuid(0))]
    host.files[groups["new"]] = ""
    host.calls[LISTED] = [pod(name, uuid(number)) for number, name in enumerate(pods)]
    assert event_summaries(looked.poll()) == [(START, "kubernetes", "research/new", uuid(1))]
    del host.files[groups["old"]]
    host.files[f"/sys/fs/cgroup/{former}/cgroup.procs"] = ""
    assert event_summaries(looked.poll()) == [(END, "kubernetes", "research/old", uuid(0))]


def test_without_control_groups_all_that_are_listed_count():
    host = node()
    keeps_pod(host, 1, "done")
    for path in [path for path in host.files if path.startswith("/sys/fs/cgroup")]:
        del host.files[path]
    host.calls[LISTED] = [pod("done", uuid(0))]
    assert len(PolledTenancy(host).poll()) == 1


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no socket"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        TimeoutError(errno.ETIMEDOUT, "late"),
        OSError(errno.EPROTO, "no answer of gRPC"),
        DENIED,
    ],
)
def test_an_unreachable_kubelet_ends_nothing(error):
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = PolledTenancy(host)
    assert len(looked.poll()) == 1
    host.calls[LISTED] = error
    for _ in range(3):
        assert looked.poll() == []
    assert looked.value("gpu_claims", uuid(0)) in {"gone", "error", "timeout", "denied"}
    assert looked.findings_about("Kubernetes")[0][0] in {"broken", "denied"}
    host.calls[LISTED] = []
    (ended,) = looked.poll()
    assert ended.facts["uncertainty_ns"] == str(20 * 10**9), "since it was asked last"


def test_a_node_without_kubelet():
    host = node()
    looked = PolledTenancy(host)
    assert looked.poll() == []
    assert looked.value("gpu_claims", uuid(0)) == 0
    (finding,) = looked.findings_about("Kubernetes")
    assert finding[0] == "absent"
    assert "kubelet.sock does not exist" in finding[1]


def test_a_kubelet_that_is_away_when_the_agent_comes():
    """The pods still exist: a missing report does not mean that their devices are free."""
    host = node()
    keeps_pod(host, 1, "train")
    looked = PolledTenancy(host)
    looked.poll()
    assert looked.value("gpu_claims", uuid(0)) == "gone"


def test_a_gpu_that_is_lost_ends_nothing():
    host = node()
    host.calls[LISTED] = [pod("train", "1")]
    looked = PolledTenancy(host)
    assert event_summaries(looked.poll()) == [(START, "kubernetes", "research/train", uuid(1))]
    host.calls["nvml.nvmlDeviceGetCount()"] = 1
    for _ in range(3):
        assert looked.poll() == []
    assert looked.value("gpu_claims", uuid(1)) == 1


def test_changed_facts_of_the_same_pod_make_another_claim():
    """After sharing is configured differently, the pod holds another share."""
    host = node(1)
    host.calls[LISTED] = [pod("one", f"{uuid(0)}::0")]
    host.calls[ALLOCATABLE] = [
        {"resource": "nvidia.com/gpu", "ids": [f"{uuid(0)}::0", f"{uuid(0)}::1"], "numa_nodes": []}
    ]
    looked = PolledTenancy(host)
    (began,) = looked.poll()
    assert began.facts["share"] == "1/2"
    host.calls[ALLOCATABLE][0]["ids"] += [f"{uuid(0)}::2", f"{uuid(0)}::3"]
    ended, again = looked.poll(61.0)
    assert (ended.entity, ended.facts["why"]) == (began.entity, "changed")
    assert (again.facts["share"], again.facts["start_ns"]) == ("1/4", ended.facts["end_ns"])
