"""Claims by Kubernetes: devices that the kubelet has allocated to pods.

The kubelet lists pods without uid: a pod that ends and is created again under the same name between two
polls appears as one. Sources: kubernetes/kubelet:pkg/apis/podresources/v1/api.proto; NVIDIA/
k8s-device-plugin:README.md (shared GPUs); NVIDIA/k8s-dra-driver-gpu:cmd/gpu-kubelet-plugin (names of
devices of resource claims).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias, TypeVar

import msgspec

from railscope.claim_terms import ClaimAuthority, share_text
from railscope.pod_shares import RESERVATION_NAMESPACES, PodShareRequests, RequestedShare
from railscope_agent.config import TenancySettings
from railscope_agent.host import Host
from railscope_agent.host.owners import ALLOCATABLE, KUBELET, LIST
from railscope_agent.owners import kubernetes_devices, pod_resources
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict, format_count
from railscope_agent.tenancy import claim_provider, devices as naming, passed_through_gpus
from railscope_agent.tenancy.claim_provider import ClaimReport, absent_report, failed_report
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope_agent.tenancy.pod_directories import NodePods, scan_pods
from railscope_agent.tenancy.pod_requests import PodRequests
from railscope_agent.topology.pci import is_address

SUBJECT = "claims by Kubernetes"
DRIVER = "gpu.nvidia.com"
# The devices of a resource change with the configuration of its plugin only.
ALLOCATABLE_VALID_NS = 60_000_000_000
_VENDOR = "nvidia.com/"
_OTHER_VENDOR = re.compile(
    r"(?:[^/]+\.)?(?:amd\.com|intel\.com|metax-tech\.com|mthreads\.com|iluvatar\.(?:ai|com)|birentech\.com)/"
)
"""Domains of the plugins of other GPU vendors: their `gpu` is no GPU of NVIDIA."""
_GPU_RESOURCE = re.compile(r"(?:^|[./_-])(?:[pv]?gpus?|mig)(?:$|[./_-])")
_NETWORK = re.compile(
    r"(?:^|[._-])(?:rdma|infiniband|ipoib|sriov|hostdev|mln?x|connectx|bluefield|(?:cx|bf)[0-9](?![0-9]))"
    r"|(?:rdma|hca|roce(?:v[0-9])?|nic|dpu)s?[0-9]*(?:$|[._-])"
)
"""Begin or end of a word in the names of network resources, and of their devices (supernic, mlxnics, hca_shared)."""
_NETWORK_DOMAIN = "rdma"
"""Domain of k8s-rdma-shared-dev-plugin, whatever the name of its resource."""
_UUIDS = ("GPU-", "MIG-")
_CLAIMED = re.compile(r"gpu-(?P<minor>\d+)(?:-mig-(?P<mig>.+))?")
_PLACED = re.compile(r"\d+-(?P<start>\d+)-\d+")
_PROFILED = re.compile(r"\d+g\d+gb(?:-[a-z-]+)?-\d+-(?P<start>\d+)")
_MAX_QUOTED, _SEVERAL = 5, 2
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _PodDevice:
    """A device of a pod by the kubelet's name for it; `share` distinguishes shares of the same device."""

    pod: pod_resources.KubeletPod
    text: str
    device: ClaimableDevice
    replica: int | None = None
    share: str = ""
    is_slot: bool = False
    """True for one of several parts of the GPU, such as a slot (HAMi), that does not specify its size."""
    claim: str = ""
    """Namespace and name of the resource claim of the device, which several pods may share.

    A device of a plugin belongs to one pod: if two are listed, one of them has ended.
    """

    @property
    def grant(self) -> tuple[str, ...]:
        """Identity of what was allocated: a resource claim, or the devices of a pod."""
        return (self.claim,) if self.claim else (self.pod.namespace, self.pod.name)

    def overlaps(self, other: _PodDevice) -> bool:
        """True if both have a slot of the same GPU."""
        devices = self.device, other.device
        return devices[0].gpu == devices[1].gpu and devices[0].compute.overlaps(devices[1].compute)


_DoubleAllocations: TypeAlias = Mapping[str, tuple[_PodDevice, _PodDevice]]
"""Two grants of each device that is allocated twice, by device."""


@dataclass(slots=True)
class KubernetesProvider:
    """Pods of this node."""

    settings: TenancySettings
    system: frozenset[str] = frozenset()
    """Namespaces of health checks and the administrator's own use."""
    requests: PodRequests = field(init=False)
    name: str = "kubernetes"
    pods: NodePods = field(default_factory=NodePods)
    """Pods as of the last poll."""
    _passed: passed_through_gpus.PassedThroughGpus = field(
        default_factory=passed_through_gpus.PassedThroughGpus
    )
    _allocatable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of all devices of each resource, as of the last answer."""
    _replicas: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _allocatable_valid_until_ns: int = 0

    def __post_init__(self) -> None:
        """Create the reader of the pod list."""
        self.requests = PodRequests(self.settings)

    def poll(
        self, host: Host, devices: NodeDevices, in_force: tuple[NodeClaim, ...]
    ) -> ClaimReport:
        """Return the devices of all pods that have not ended."""
        socket = self.settings.kubelet_socket
        if not socket:
            return absent_report(SUBJECT, "tenancy.kubelet_socket is not set")
        self.pods = scan_pods(host)
        try:
            answer = host.call(KUBELET, LIST, socket)
            pods = msgspec.convert(answer, tuple[pod_resources.KubeletPod, ...])
        # A kubelet that restarts removes its socket: with claims in force that is a failure, else there is no
        # Kubernetes.
        except FileNotFoundError as error:
            if in_force or self.pods.names:
                return failed_report(
                    SUBJECT, error, "start the kubelet, or set tenancy.kubelet_socket"
                )
            detail = f"the kubelet is not installed: {socket} does not exist"
            return absent_report(SUBJECT, detail)
        except (OSError, msgspec.ValidationError) as error:
            return failed_report(
                SUBJECT, error, "run the agent as root, or read the log of the kubelet"
            )
        return self._report(host, devices, pods, in_force)

    def _report(
        self,
        host: Host,
        devices: NodeDevices,
        pods: tuple[pod_resources.KubeletPod, ...],
        in_force: tuple[NodeClaim, ...],
    ) -> ClaimReport:
        """Return the devices of the listed pods, and those of pods that run and are not listed."""
        reserved = _reserved_gpus(pods, devices)
        requests = self.requests.poll(host, devices, reserved)
        unlisted = self._running_unlisted_pods(pods, in_force)
        requests = {pod: request for pod, request in requests.items() if pod not in unlisted}
        # A kubelet may keep listing pods that have ended, whose devices are free. A reservation holds nothing: the
        # pods of its group do.
        active_pods = [
            pod
            for pod in pods
            if not self._has_ended(pod.namespace, pod.name)
            and pod.namespace not in RESERVATION_NAMESPACES
        ]
        self._read_allocatable(host, active_pods)
        unknown: list[str] = []
        holdings = [
            holding
            for pod in active_pods
            for holding in (
                *self._list_plugin_devices(host, pod, requests, devices, unknown),
                *_list_claimed_devices(pod, devices, unknown),
            )
        ]
        holdings = [holding for holding in holdings if not self._has_admin_access(holding)]
        doubles = _double_allocations(holdings)
        claimed = Counter(holding.text + holding.share for holding in holdings if holding.claim)
        node_claims = tuple(
            self._claim_of_holding(
                holding,
                doubles,
                alone=claimed[holding.text + holding.share] < _SEVERAL,
            )
            for holding in holdings
            if holding.replica is None
        )
        node_claims += tuple(self._replica_claims(holdings, doubles))
        node_claims = self._apply_requests(node_claims, requests, devices, unknown)
        unlisted_claims = (claim for claim in in_force if _pod_of(claim) in unlisted)
        node_claims += tuple(claim_provider.unread_claims(unlisted_claims, node_claims))
        findings = (
            *self._findings(node_claims, holdings, unknown),
            *_unlisted_findings(unlisted),
            *_double_findings(doubles),
            *self._reservation_findings(reserved),
            *self.requests.findings,
        )
        return ClaimReport(node_claims, findings)

    def _running_unlisted_pods(
        self, listed: tuple[pod_resources.KubeletPod, ...], in_force: tuple[NodeClaim, ...]
    ) -> set[tuple[str, str]]:
        """Return the pods with a claim in force that run and are not listed.

        A kubelet answers before it has received the pods of the API server, also in its other list of pods
        (kubernetes issue 112119). A pod whose containers have ended is no longer listed either; it holds its
        devices until its volumes are unmounted and its control group is removed.
        """
        names = {(pod.namespace, pod.name) for pod in listed}
        return {
            pod
            for pod in map(_pod_of, in_force)
            if pod not in names and self.pods.is_running(*pod) and not self._has_ended(*pod)
        }

    def _reservation_findings(
        self, reserved: Mapping[tuple[str, str], str]
    ) -> Iterator[ProbeFinding]:
        """Yield a finding if GPUs are reserved for fractions, which only the list of pods contains."""
        if reserved and not self.settings.kubelet_url:
            examples = ", ".join(sorted(set(reserved.values()))[:_MAX_QUOTED])
            detail = (
                f"{format_count(len(reserved), 'GPU')} shared by pods that are unknown: {examples}"
            )
            yield ProbeFinding(SUBJECT, ProbeVerdict.BROKEN, detail, "set tenancy.kubelet_url")

    def _has_ended(self, namespace: str, name: str) -> bool:
        return self.pods.has_ended(namespace, name) or (namespace, name) in self.requests.ended

    def _has_admin_access(self, holding: _PodDevice) -> bool:
        """True if a device is that of a resource claim with admin access, which holds nothing.

        The kubelet does not report the access (KEP-5018): the configured namespaces decide.
        """
        return holding.claim.partition("/")[0] in self.system

    def _apply_requests(
        self,
        node_claims: tuple[NodeClaim, ...],
        requests: Mapping[tuple[str, str], PodShareRequests],
        devices: NodeDevices,
        unknown: list[str],
    ) -> tuple[NodeClaim, ...]:
        """Return the claims, with those of pods with shares as requested instead of as listed.

        A pod with an exclusive device, or one allocated twice, keeps it: an annotation, which a user may write, does not reduce it.
        """
        exclusive_pods = {
            _pod_of(claim) for claim in node_claims if claim.exclusive or claim.allocated_twice
        }
        requests = {
            pod: request
            for pod, request in requests.items()
            if pod not in exclusive_pods and not self._has_ended(*pod)
        }
        limited = [claim for claim in node_claims if _pod_of(claim) not in requests]
        for pod, request in requests.items():
            of_pod = self._pod_claim(*pod)
            listed = [claim for claim in node_claims if _pod_of(claim) == pod]
            for part in request.shares:
                device = (
                    None if part.place is None else naming.find_device(str(part.place), devices)
                )
                gpus = [
                    gpu
                    for gpu in devices.present
                    if part.place is None or (device is not None and gpu.uuid == device.gpu)
                ]
                is_partitioned = bool(gpus) and all(gpu.is_partitioned for gpu in gpus)
                if part.share == 0:
                    continue
                if part.is_mig_device != is_partitioned:  # no share of the whole in MIG mode
                    unknown.append(f"{part.place or 'a share'} of {'/'.join(pod)}")
                    continue
                if device is not None:
                    limited.append(_limit_to_share(of_pod.claim_on_device(device), part))
                    continue
                count = part.count if part.place is None else 1
                chosen, listed = listed[:count], listed[count:]
                limited += [_limit_to_share(claim, part) for claim in chosen]
                if missing_count := count - len(chosen):
                    share = share_text(part.share) if part.share else ""
                    limited.append(
                        msgspec.structs.replace(
                            of_pod,
                            count=missing_count,
                            share=share,
                            exclusive=not share,
                            reference=share,
                        )
                    )
        return tuple(limited)

    def _claim_of_holding(
        self, holding: _PodDevice, doubles: _DoubleAllocations, *, alone: bool
    ) -> NodeClaim:
        pod, device = holding.pod, holding.device
        is_double = device.id in doubles
        if holding.share:
            device = msgspec.structs.replace(device, id=f"{device.id}::{holding.share}")
        exclusive = alone and not (holding.share or holding.is_slot or is_double)
        of_pod = self._pod_claim(pod.namespace, pod.name)
        return msgspec.structs.replace(
            of_pod, exclusive=exclusive, allocated_twice=is_double
        ).claim_on_device(device)

    def _pod_claim(self, namespace: str, name: str) -> NodeClaim:
        """Return a claim of a pod without a device."""
        return NodeClaim(
            source=self.name,
            authority=ClaimAuthority.NODE_PLUGIN,
            workload=f"{namespace}/{name}",
            owner=namespace,
            gpu="",
            system=namespace in self.system,
        )

    def _replica_claims(
        self, holdings: list[_PodDevice], doubles: _DoubleAllocations
    ) -> Iterator[NodeClaim]:
        """Yield claims on replicas (time slicing or MPS): a pod's share of all replicas of a device."""
        groups: dict[tuple[str, str, str], list[_PodDevice]] = {}
        for holding in holdings:
            if holding.replica is not None:
                groups.setdefault(
                    (holding.pod.namespace, holding.pod.name, holding.device.id), []
                ).append(holding)
        for group in groups.values():
            are_known = all(_has_known_replicas(holding, self._replicas) for holding in group)
            of = len(self._replicas.get(_without_replica(group[0].text), ()))
            share = (
                # An exact fraction: three of ten replicas have no finite binary form, and shares are billed.
                share_text(Fraction(len({holding.replica for holding in group}), of))
                if are_known
                else ""
            )
            claim = self._claim_of_holding(group[0], doubles, alone=False)
            yield msgspec.structs.replace(claim, share=share)

    def _list_plugin_devices(
        self,
        host: Host,
        pod: pod_resources.KubeletPod,
        requests: Mapping[tuple[str, str], PodShareRequests],
        devices: NodeDevices,
        unknown: list[str],
    ) -> Iterator[_PodDevice]:
        """Yield each device of a pod once, even if several containers and entries list it.

        The id decides, as sites rename resources (NVIDIA/k8s-device-plugin#424). A number is the id of other
        plugins, too: see `_has_gpu_numbers`. A slot of a GPU in MIG mode is the MIG device that the annotation
        of the pod names.
        """
        resources = {
            text: entry.resource
            for container in pod.containers
            for entry in container.devices
            for text in entry.ids
        }
        for text, resource in resources.items():
            is_of_vendor = resource.startswith(_VENDOR) and not _is_of_network(resource, text)
            virtual = is_of_vendor and self._passed_through_gpus(host, text, resource, devices)
            if virtual:
                # The id of a virtual function is not that of its GPU, of which it is a share.
                yield from (
                    _PodDevice(pod, text, device, is_slot=device.id != device.gpu)
                    for device in virtual
                )
                continue
            name = kubernetes_devices.parse_device_id(text)
            device = naming.device_with_id(name, devices) if name else None
            is_number = isinstance(name, kubernetes_devices.GpuIndexId)
            if is_number and not self._has_gpu_numbers(resource, devices):
                continue
            is_slot = name is not None and naming.is_part(name)
            is_of_part = (
                is_slot
                and device is not None
                and device.id == device.gpu
                and devices.is_partitioned(device.gpu)
            )
            # The annotation names the MIG device; the slot would claim the whole GPU as well.
            if is_of_part and (pod.namespace, pod.name) in requests:
                continue
            # Without any known GPU the driver is down: the ids of the kubelet are believed.
            is_found = device is not None and (device.gpu in devices.all or not devices.all)
            if name and device and is_found and not is_of_part:
                yield _PodDevice(pod, text, device, name.replica, is_slot=is_slot)
            # A PCI address is that of a passed-through device, which NVML does not list.
            elif (is_of_vendor and not is_address(text.lower())) or any(
                devices.has(uuid) for uuid in kubernetes_devices.uuids_in(text)
            ):
                unknown.append(text)

    def _passed_through_gpus(
        self, host: Host, text: str, resource: str, devices: NodeDevices
    ) -> list[ClaimableDevice]:
        """Return the GPUs that a virtual machine in a pod has (KubeVirt), by an id of its plugin."""
        if _GPU_RESOURCE.search(resource) or text.startswith(_UUIDS):
            return []
        self._passed.scan(host)
        return self._passed.find_by_plugin_id(host, text, devices)

    def _has_gpu_numbers(self, resource: str, devices: NodeDevices) -> bool:
        """True if the numbers of a resource are those of GPUs: all of its devices are GPUs of the node.

        No resource in the domain of another GPU vendor names a GPU of NVIDIA by a number. A resource that is not
        named after GPUs has all of them. If the kubelet does not list its devices, the
        name decides: that of a resource of NVIDIA, or one with `gpu` or `mig`.
        """
        if _is_of_network(resource) or _OTHER_VENDOR.match(resource):
            return False
        # The number of a GPU that NVML does not list is no reason against a name that contains `gpu`.
        if _GPU_RESOURCE.search(resource):
            return True
        texts = self._allocatable.get(resource, ())
        names = [kubernetes_devices.parse_device_id(text) for text in texts]
        found = [naming.device_with_id(name, devices) if name else None for name in names]
        gpus = {device.gpu for device in found if device is not None}
        if resource.startswith(_VENDOR):
            return None not in found
        return None not in found and bool(gpus) and gpus == {gpu.uuid for gpu in devices.present}

    def _read_allocatable(self, host: Host, pods: list[pod_resources.KubeletPod]) -> None:
        """Read the devices of each resource if a pod has a number or a replica; periodically once they are known."""
        unclear, shared = set[str](), set[str]()
        for entry in (entry for pod in pods for each in pod.containers for entry in each.devices):
            for text in entry.ids:
                name = kubernetes_devices.parse_device_id(text)
                if isinstance(name, kubernetes_devices.GpuIndexId) and not (
                    _is_of_network(entry.resource) or _GPU_RESOURCE.search(entry.resource)
                ):
                    unclear.add(entry.resource)
                if name is not None and name.replica is not None:
                    shared.add(_without_replica(text))
        now_ns = host.clock.now().boot_ns
        is_known = unclear <= self._allocatable.keys() and shared <= self._replicas.keys()
        if not (unclear or shared) or (is_known and now_ns < self._allocatable_valid_until_ns):
            return
        try:
            answer = host.call(KUBELET, ALLOCATABLE, self.settings.kubelet_socket)
            allocatable = msgspec.convert(answer, tuple[pod_resources.PodDevices, ...])
        except (OSError, msgspec.ValidationError):
            # Earlier answers stay. Without them a replica is not exclusive and has no share, and the names of
            # resources decide.
            return
        listed: dict[str, tuple[str, ...]] = {}
        for entry in allocatable:
            listed[entry.resource] = (*listed.get(entry.resource, ()), *entry.ids)
        # A plugin that starts again lacks a GPU that was lost; the pods on it hold the same shares as before.
        self._allocatable = _kept(self._allocatable, unclear) | listed
        numbers: dict[str, set[int]] = {}
        for text in (name for entry in allocatable for name in entry.ids):
            name = kubernetes_devices.parse_device_id(text)
            if name is not None and name.replica is not None:
                numbers.setdefault(_without_replica(text), set()).add(name.replica)
        self._replicas = _kept(self._replicas, shared) | {
            base: tuple(sorted(replicas)) for base, replicas in numbers.items()
        }
        self._allocatable_valid_until_ns = now_ns + ALLOCATABLE_VALID_NS

    def _findings(
        self, node_claims: tuple[NodeClaim, ...], holdings: list[_PodDevice], unknown: list[str]
    ) -> Iterator[ProbeFinding]:
        pods = len({claim.workload for claim in node_claims})
        detail = (
            f"{format_count(len(set(node_claims)), 'device')} held by "
            f"{format_count(pods, 'pod')}, reported by {self.settings.kubelet_socket}"
        )
        yield ProbeFinding.supported(SUBJECT, detail)
        if unknown:
            examples = ", ".join(sorted(set(unknown))[:_MAX_QUOTED])
            detail = (
                f"{format_count(len(set(unknown)), 'device')} of pods not found "
                f"on this node: {examples}"
            )
            yield ProbeFinding(
                SUBJECT, ProbeVerdict.BROKEN, detail, "check that NVML lists all GPUs of the node"
            )
        lost = {
            holding.text for holding in holdings if not _has_known_replicas(holding, self._replicas)
        }
        if lost:
            detail = f"number of shares not reported: {', '.join(sorted(lost)[:_MAX_QUOTED])}"
            yield ProbeFinding.absent(
                SUBJECT, detail, "enable GetAllocatableResources of the kubelet"
            )


def _is_of_network(resource: str, text: str = "") -> bool:
    """True for a device of a NIC, by its resource or its id; neither a site's domain nor the digits of a UUID count."""
    domain, _, name = resource.rpartition("/")
    words = (name,) if text.startswith(_UUIDS) else (name, text)
    return domain == _NETWORK_DOMAIN or any(_NETWORK.search(each) for each in words)


def _reserved_gpus(
    pods: tuple[pod_resources.KubeletPod, ...], devices: NodeDevices
) -> dict[tuple[str, str], str]:
    """Return the GPU that each reservation pod has, by namespace and name."""
    reserved = {}
    for pod in pods:
        if pod.namespace in RESERVATION_NAMESPACES:
            texts = (t for each in pod.containers for entry in each.devices for t in entry.ids)
            for name in map(kubernetes_devices.parse_device_id, texts):
                if device := naming.device_with_id(name, devices) if name else None:
                    reserved[pod.namespace, pod.name] = device.gpu
    return reserved


def _pod_of(claim: NodeClaim) -> tuple[str, str]:
    namespace, _, name = claim.workload.partition("/")
    return namespace, name


def _limit_to_share(claim: NodeClaim, part: RequestedShare) -> NodeClaim:
    """Return a device of a pod, limited to the share requested."""
    if part.share is None:
        return msgspec.structs.replace(claim, share="", exclusive=True)
    return msgspec.structs.replace(claim, share=share_text(part.share), exclusive=False)


def _has_known_replicas(holding: _PodDevice, replicas: dict[str, tuple[int, ...]]) -> bool:
    return holding.replica is None or holding.replica in replicas.get(
        _without_replica(holding.text), ()
    )


def _list_claimed_devices(
    pod: pod_resources.KubeletPod, devices: NodeDevices, unknown: list[str]
) -> Iterator[_PodDevice]:
    """Yield the devices of the resource claims (DRA) of a pod.

    Names of devices are those of NVIDIA's driver. Of other drivers, the UUIDs in the CDI names decide.
    """
    claims = dict.fromkeys(claim for container in pod.containers for claim in container.claims)
    for claim in claims:
        yield from _list_devices_of_other_drivers(pod, claim, devices)
        allocations = [each for each in claim.devices if each.driver == DRIVER]
        for each in allocations:
            # CDI names are not divided by device: with several devices it is unknown which name belongs to
            # which.
            device = _find_claimed_device(
                each, claim.cdi_names if len(allocations) == 1 else (), devices
            )
            if device is None:
                unknown.append(f"{each.device} of claim {claim.namespace}/{claim.name}")
            else:
                name = f"{claim.namespace}/{claim.name}"
                yield _PodDevice(pod, device.id, device, share=each.share, claim=name)


def _list_devices_of_other_drivers(
    pod: pod_resources.KubeletPod, claim: pod_resources.PodResourceClaim, devices: NodeDevices
) -> Iterator[_PodDevice]:
    """Yield the GPUs of this node in the CDI names of a claim without a device of NVIDIA's driver."""
    if any(each.driver == DRIVER for each in claim.devices):
        return
    shares = {each.share for each in claim.devices}
    # CDI names are not divided by device: several devices with shares are parts of unknown size.
    share = shares.pop() if len(shares) == 1 else ""
    for text in claim.cdi_names:
        named = text.rpartition("=")[2]
        for uuid in filter(devices.has, kubernetes_devices.uuids_in(named)):
            name = kubernetes_devices.parse_device_id(uuid)
            if device := naming.device_with_id(name, devices) if name else None:
                yield _PodDevice(
                    pod,
                    device.id,
                    device,
                    share=share,
                    is_slot=named != uuid or bool(shares),
                    claim=f"{claim.namespace}/{claim.name}",
                )


def _double_allocations(holdings: list[_PodDevice]) -> _DoubleAllocations:
    """Return the devices that are allocated twice, each with two of its grants.

    A device is allocated once, unless by share id. Either one of the claims has admin access, or the scheduler gave
    the device twice, as Kubernetes 1.32 to 1.35 may (kubernetes issue 136269). Nothing that an agent can read
    distinguishes the two: a pod that holds all GPUs of its node may train on them.
    """
    by_gpu: dict[str, list[_PodDevice]] = {}
    for holding in holdings:
        by_gpu.setdefault(holding.device.gpu, []).append(holding)
    return {
        each.device.id: (one, other)
        for same in by_gpu.values()
        for one in same
        if one.claim and not one.share
        for other in same
        if one.grant != other.grant and one.overlaps(other)
        for each in (one, other)
    }


def _unlisted_findings(pods: set[tuple[str, str]]) -> Iterator[ProbeFinding]:
    if pods:
        examples = ", ".join(sorted(map("/".join, pods))[:_MAX_QUOTED])
        detail = (
            f"claims kept of {format_count(len(pods), 'pod')} with a control group that the kubelet "
            f"does not list: {examples}"
        )
        remedy = "read the log of the kubelet if this lasts: it starts, or cannot remove the pods"
        yield ProbeFinding.absent(SUBJECT, detail, remedy)


def _double_findings(doubles: _DoubleAllocations) -> Iterator[ProbeFinding]:
    if doubles:
        examples = ", ".join(
            f"{device} by {' and '.join('/'.join(one.grant) for one in both)}"
            for device, both in list(doubles.items())[:_MAX_QUOTED]
        )
        detail = (
            f"{format_count(len(doubles), 'device')} allocated twice without a share: {examples}; "
            "the claims share it equally"
        )
        remedy = (
            "add the namespace of the claim with admin access to tenancy.system_owners, or, if none has it, "
            "end one of the pods"
        )
        yield ProbeFinding(SUBJECT, ProbeVerdict.BROKEN, detail, remedy)


def _find_claimed_device(
    claimed: kubernetes_devices.ClaimedDevice, cdi_names: tuple[str, ...], devices: NodeDevices
) -> ClaimableDevice | None:
    """Return a device of a resource claim: by a UUID in its CDI names, else by its name.

    The name contains the minor number of the device file, and the placement of a MIG device.
    """
    for name in cdi_names:
        uuids = kubernetes_devices.uuids_in(name)
        parsed = kubernetes_devices.parse_device_id(uuids[0]) if uuids else None
        if parsed is not None:
            return naming.device_with_id(parsed, devices)
    match = _CLAIMED.fullmatch(claimed.device)
    gpu = devices.gpu_with_minor(int(match["minor"])) if match else None
    if match is None or gpu is None or not match["mig"]:
        return gpu
    placement = _PLACED.fullmatch(match["mig"]) or _PROFILED.fullmatch(match["mig"])
    start = int(placement["start"]) if placement else None
    return devices.find_mig(gpu.gpu, lambda part: part.start == start) if placement else None


def _kept(known: Mapping[str, _Value], names: set[str]) -> dict[str, _Value]:
    return {name: known[name] for name in names & known.keys()}


def _without_replica(text: str) -> str:
    """Return the device id without its replica."""
    return re.sub(r"(?:::\d+|/vgpu\d+)$", "", text)
