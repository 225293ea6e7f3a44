"""Pods of a node as the kubelet's `/pods` endpoint lists them: annotations and limits that concern GPUs.

Everything else of a pod (environment, volumes, images) is left out of the answer. Source: kubernetes/api:
core/v1/types.go.
"""

from __future__ import annotations

import msgspec

from agent.owners import FormatError

MAX_TEXT = 16_384
"""Characters of one annotation that is read; a longer one is left out."""
_PREFIXES = (
    "hami.io/vgpu-", "volcano.sh/vgpu-", "volcano.sh/gpu-", "aliyun.com/gpu-", "alibabacloud.com/gpu-",
    "ALIYUN_COM_GPU_MEM_", "scheduler.framework.gpushare.", "tencent.com/predicate-gpu-idx-",
)  # fmt: skip
_LIMITS = (
    "nvidia.com/gpu", "volcano.sh/vgpu-", "volcano.sh/gpu-", "aliyun.com/gpu-",
    "alibabacloud.com/gpu-", "tke.cloud.tencent.com/qgpu-", "tencent.com/vcuda-",
)  # fmt: skip


class _Resources(msgspec.Struct):
    limits: dict[str, str] = {}


class _Container(msgspec.Struct):
    name: str = ""
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _PodList(msgspec.Struct):
    items: list[_Pod] | None = None


class ContainerLimits(msgspec.Struct, frozen=True):
    """Limits of a container that concern GPUs, by name of the resource."""

    name: str
    limits: dict[str, str] = {}


class PodEntry(msgspec.Struct, frozen=True):
    """A pod with what it says of GPUs."""

    namespace: str
    name: str
    phase: str = ""
    annotations: dict[str, str] = {}
    containers: tuple[ContainerLimits, ...] = ()

    @property
    def concerns_gpus(self) -> bool:
        """True if there is anything about GPUs in it, or it has ended."""
        return self.has_ended or bool(self.annotations) or any(c.limits for c in self.containers)

    @property
    def has_ended(self) -> bool:
        """True for a pod that holds nothing any more."""
        return self.phase in {"Succeeded", "Failed"}


def pod_entries(content: bytes) -> tuple[PodEntry, ...]:
    """The pods of a PodList, in JSON. Raises FormatError."""
    try:
        listed = msgspec.json.decode(content, type=_PodList).items or []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"invalid list of pods: {error}"
        raise FormatError(message) from error
    return tuple(
        PodEntry(
            pod.metadata.namespace, pod.metadata.name, pod.status.phase,
            _of_gpus(pod.metadata.annotations or {}, _PREFIXES),
            tuple(
                ContainerLimits(one.name, _of_gpus(one.resources.limits, _LIMITS))
                for one in pod.spec.containers
            ),
        )
        for pod in listed
    )  # fmt: skip


def _of_gpus(texts: dict[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: text
        for name, text in texts.items()
        if name.startswith(prefixes) and len(text) <= MAX_TEXT
    }
