"""A Kubernetes pod, reduced to the annotations and limits that concern GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

MAX_TEXT = 16_384
"""Maximum characters of one annotation; longer ones are omitted."""
_PREFIXES = (
    "hami.io/vgpu-", "volcano.sh/vgpu-", "volcano.sh/gpu-", "aliyun.com/gpu-", "alibabacloud.com/gpu-",
    "ALIYUN_COM_GPU_MEM_", "scheduler.framework.gpushare.", "tencent.com/predicate-gpu-idx-",
    "gpu-fraction", "gpu-memory", "runai-gpu-group", "run.ai/reserve_for_gpu_index",
)  # fmt: skip
_LABELS = ("runai-gpu-group",)
_LIMITS = (
    "nvidia.com/gpu", "volcano.sh/vgpu-", "volcano.sh/gpu-", "aliyun.com/gpu-",
    "alibabacloud.com/gpu-", "tke.cloud.tencent.com/qgpu-", "tencent.com/vcuda-",
)  # fmt: skip


class ContainerLimits(msgspec.Struct, frozen=True):
    """Limits of a container that concern GPUs, by resource name."""

    name: str
    limits: dict[str, str] = {}


class PodEntry(msgspec.Struct, frozen=True):
    """A pod with its GPU-related annotations, labels (among the annotations) and limits."""

    namespace: str
    name: str
    phase: str = ""
    annotations: dict[str, str] = {}
    containers: tuple[ContainerLimits, ...] = ()
    sidecars: tuple[bool, ...] | None = None
    """For each init container, true if it is a sidecar; None if their number is unknown."""

    @property
    def concerns_gpus(self) -> bool:
        """True if the pod has GPU-related content, or has ended."""
        return self.has_ended or bool(self.annotations) or any(c.limits for c in self.containers)

    @property
    def has_ended(self) -> bool:
        """True for a pod that has ended and holds no resources."""
        return self.phase in {"Succeeded", "Failed"}


def pod_entry(
    name: tuple[str, str],
    phase: str,
    annotations: Mapping[str, str],
    containers: Iterable[tuple[str, Mapping[str, str]]],
    init_restart_policies: Iterable[str | None] | None = None,
) -> PodEntry:
    """Return the entry of a pod by namespace and name, with its GPU-related texts."""
    return PodEntry(
        *name,
        phase,
        _of_gpus(annotations, _PREFIXES),
        tuple(ContainerLimits(name, _of_gpus(limits, _LIMITS)) for name, limits in containers),
        None
        if init_restart_policies is None
        else tuple(policy == "Always" for policy in init_restart_policies),
    )


def gpu_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a pod that concern GPUs, which are entered among its annotations."""
    return _of_gpus(labels, _LABELS)


def _of_gpus(texts: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: text
        for name, text in texts.items()
        if name.startswith(prefixes) and len(text) <= MAX_TEXT
    }
