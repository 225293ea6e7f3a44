"""What a pod of Kubernetes says of GPUs: annotations and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

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


def pod_entry(
    name: tuple[str, str],
    phase: str,
    annotations: Mapping[str, str],
    containers: Iterable[tuple[str, Mapping[str, str]]],
) -> PodEntry:
    """The entry of a pod by namespace and name, with what concerns GPUs of its texts."""
    return PodEntry(
        *name, phase, _of_gpus(annotations, _PREFIXES),
        tuple(ContainerLimits(own, _of_gpus(limits, _LIMITS)) for own, limits in containers),
    )  # fmt: skip


def _of_gpus(texts: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: text
        for name, text in texts.items()
        if name.startswith(prefixes) and len(text) <= MAX_TEXT
    }
