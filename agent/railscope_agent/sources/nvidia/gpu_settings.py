"""Modes of GPUs as facts with a hash.

Most of them are metrics of the detail `full` as well. They are read when the source searches for GPUs, once a
minute. Power limits are numbers and stay metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from railscope import frame, reading
from railscope.catalog import entities, gpu
from railscope_agent.gpus.inventory import GpuDevice
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling import answer_readings, fact_readers

_HASH_DIGITS = 16


_SWITCH = {0: "off", 1: "on"}
_CALLS: Mapping[str, tuple[tuple[str, ...], Mapping[int, str]]] = {
    "nvmlDeviceGetPersistenceMode": (("persistence",), _SWITCH),
    "nvmlDeviceGetComputeMode": (("compute_mode",), gpu.GPU_COMPUTE_MODE.states),
    "nvmlDeviceGetAccountingMode": (("accounting",), _SWITCH),
    "nvmlDeviceGetEccMode": (("ecc", "ecc_pending"), _SWITCH),
    "nvmlDeviceGetMigMode": (("mig", "mig_pending"), _SWITCH),
    "nvmlDeviceGetGspFirmwareMode": (("gsp_firmware",), _SWITCH),
}
"""Settings that each call returns, and the names of their values."""


def settings_entity(host: Host, device: GpuDevice) -> frame.Entity:
    """Return the settings of a GPU; without a hash while some of them cannot be read."""
    facts: dict[str, str] = {}
    is_complete = True
    for function, (settings, names) in _CALLS.items():
        values = _values(host, function, device.index)
        for setting, value in zip(settings, values, strict=False):
            if isinstance(value, int):
                facts[setting] = names.get(value, str(value))
            else:
                is_complete = False
    # A hash of a part would differ from those of equal GPUs.
    if facts and is_complete:
        text = repr(sorted(facts.items()))
        facts["hash"] = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return frame.Entity(entities.GPU_SETTINGS, device.entity.key, facts)


def _values(host: Host, function: str, index: int) -> list[Json]:
    """Return the values of a call: none if the GPU or a recording lacks it, None if it fails."""
    try:
        answer = host.call("nvml", function, index)
    except FileNotFoundError:
        return []
    except (NvmlError, OSError) as error:
        return [] if answer_readings.reason_for(error) is reading.Absent.UNSUPPORTED else [None]
    return [*map(fact_readers.without_mark, answer if isinstance(answer, list) else [answer])]
