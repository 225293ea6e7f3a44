"""Rules about settings of NICs and GPUs that differ from those of most peers on the node.

A setting differs if at least `MIN_PEERS` peers have one value, and more than twice as many as have that of the
device. Peers have the same role and model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from railscope.catalog import declare, gpu, gpu_sharing, host, nic, nic_settings, pcie, rdma
from railscope.reading import Absent
from railscope_agent.health import health_facts, rule
from railscope_agent.health.nic_signals import MIN_PEERS, is_up, known_signal, require_readings
from railscope_agent.topology.pci_distance import PciDistance

GPU_PATH = "gpu_path"
"""Label of a NIC: its distance from the GPU of its rail."""
_NOT_COMPARED = {"firmware", "hash"}
_GPU_MODES = ("persistence", "compute_mode", "ecc", "gsp_firmware")
_PENDING = {"ecc": "ecc_pending", "mig": "mig_pending"}


def _nic_settings(facts: health_facts.HealthFacts) -> dict[str, str]:
    """Settings of a NIC with a carrier: without one, drivers report negotiated values as unset."""
    if not known_signal(facts, is_up):
        return {}
    settings = {name: text for name, text in facts.settings.items() if name not in _NOT_COMPARED}
    for (direction,), reading in facts.parts(nic_settings.RING).items():
        if not isinstance(reading, Absent):
            settings[f"{direction} ring"] = str(reading)
    return settings


def _firmware(facts: health_facts.HealthFacts) -> dict[str, str]:
    firmware = facts.labels.get("firmware")
    return {"firmware": firmware} if firmware else {}


def _gpu_path(facts: health_facts.HealthFacts) -> dict[str, str]:
    path = facts.labels.get(GPU_PATH)
    return {"path": path} if path else {}


def _gpu_modes(facts: health_facts.HealthFacts) -> dict[str, str]:
    return {name: facts.settings[name] for name in _GPU_MODES if facts.settings.get(name)}


def _gpu_software(facts: health_facts.HealthFacts) -> dict[str, str]:
    names = ("vbios", "inforom", "driver")
    return {name: facts.labels[name] for name in names if facts.labels.get(name)}


def _power_limit(facts: health_facts.HealthFacts) -> dict[str, str]:
    limit = facts.reading(gpu.GPU_POWER_LIMIT)
    if isinstance(limit, Absent):
        return {}
    # Whole watts: fractions of one are no difference in configuration.
    return {"power limit": f"{round(float(limit * gpu.GPU_POWER_LIMIT.scale))} W"}


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Settings of a device that are compared with those of its peers."""

    read: Callable[[health_facts.HealthFacts], dict[str, str]]
    metrics: tuple[declare.Metric, ...] = ()
    """Metrics of the settings: while one cannot be read, the comparison is incomplete."""

    def differences(self, facts: health_facts.HealthFacts) -> dict[str, tuple[str, str]]:
        """Return the value of the device and that of most peers, for each setting that differs."""
        settings, peers = self.read(facts), [self.read(peer) for peer in facts.peers]
        compared = {
            name: Counter(each[name] for each in peers if name in each) for name in settings
        }
        usable = {name: values for name, values in compared.items() if values.total() >= MIN_PEERS}
        if not usable:
            raise health_facts.AbsentFact(Absent.UNSUPPORTED)
        found = {}
        for name, values in usable.items():
            (usual, number), *_ = values.most_common(1)
            if (
                usual != settings[name]
                and number >= MIN_PEERS
                # The device counts as one of those with its value.
                and number > 2 * (values[settings[name]] + 1)
            ):
                found[name] = settings[name], usual
        return found

    def differ(self, facts: health_facts.HealthFacts) -> bool:
        """True if a setting differs."""
        # A difference that was found counts, whatever else cannot be read. No difference requires all
        # settings.
        if self.differences(facts):
            return True
        return bool(self.metrics) and require_readings(facts, *self.metrics)

    def describe(self, facts: health_facts.HealthFacts) -> str:
        """Describe the differences."""
        return ", ".join(
            f"{name} {setting}, peers {usual}"
            for name, (setting, usual) in self.differences(facts).items()
        )


def _pending(facts: health_facts.HealthFacts) -> list[str]:
    """Return a text for each mode that a reset of the GPU changes. Raises AbsentFact if none is known."""
    modes = {
        name: (facts.settings[name], facts.settings[pending])
        for name, pending in _PENDING.items()
        if facts.settings.get(name) and facts.settings.get(pending)
    }
    if not modes:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return [
        f"{name} is {now}, {then} after a reset"
        for name, (now, then) in modes.items()
        if now != then
    ]


def _has_unused_mig(facts: health_facts.HealthFacts) -> bool:
    if facts.number(gpu_sharing.GPU_MIG_MODE) == 0 or facts.number(gpu_sharing.GPU_MIG_DEVICES) > 0:
        return False
    modes = [peer.reading(gpu_sharing.GPU_MIG_MODE) for peer in facts.peers]
    if len(modes) < MIN_PEERS:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return modes.count(0) > 2 * modes.count(1)


def _peer_rule(  # noqa: PLR0913 - columns of a table
    reason: str,
    settings: PeerSettings,
    condition: str,
    remedy: str,
    source: str,
    *metrics: declare.Metric,
    alert: str = "",
) -> rule.HealthRule:
    return rule.HealthRule(
        reason,
        rule.DEGRADED,
        settings.differ,
        condition,
        "Railscope: devices of one purpose have one configuration",
        sources=(source,),
        metrics=metrics,
        describe=settings.describe,
        remedy=remedy,
        alert=alert,
    )


_GPU_PATH = PeerSettings(_gpu_path)
_NIC_SETTINGS = PeerSettings(
    _nic_settings,
    (nic_settings.MTU, nic_settings.PFC_ENABLED, nic_settings.ECN_ENABLED, nic_settings.RING),
)


def _has_longer_path(facts: health_facts.HealthFacts) -> bool:
    return any(
        PciDistance[path] > PciDistance[usual]
        for path, usual in _GPU_PATH.differences(facts).values()
    )


_APPLY, _UPDATE = "apply the configuration of the peers", "update the firmware"
NIC_SETTING_RULES = (
    rule.HealthRule("gpu_path_longer", rule.DEGRADED, _has_longer_path,
        "the PCIe path between the NIC and the GPU of its rail is longer than that of most peers, in the terms of nvidia-smi topo -m",
        "Railscope: GPUDirect RDMA needs PIX or PXB, below one switch or several; PHB and longer paths cross the processor",
        sources=("pcie",), metrics=(pcie.PCIE_INFO,), is_needed=False,
        describe=_GPU_PATH.describe, remedy="move the NIC to a slot below the switch of its GPU; check the rails in the settings"),
    _peer_rule("settings_differ", _NIC_SETTINGS,
        "PFC, trust, priorities, ECN, MTU, rings or another setting differs from that of most NICs of the same role and model",
        _APPLY, "nic_settings", nic_settings.SETTINGS_INFO, *_NIC_SETTINGS.metrics, host.LINK_UP, rdma.RDMA_UP, alert="RailscopeRailSettingsDiffer"),
    _peer_rule("firmware_differs", PeerSettings(_firmware),
        "the firmware differs from that of most NICs of the same role and model", _UPDATE, "nic", nic.NIC_INFO),
)  # fmt: skip
GPU_SETTING_RULES = (
    _peer_rule("power_limit_differs", PeerSettings(_power_limit),
        "the enforced power limit differs from that of most GPUs of the same model", _APPLY, rule.LOAD, gpu.GPU_POWER_LIMIT, alert="RailscopeGpuPowerLimitLowered"),
    _peer_rule("modes_differ", PeerSettings(_gpu_modes),
        "persistence, compute mode, ECC or GSP firmware differs from that of most GPUs of the same model",
        _APPLY, rule.SETTINGS, gpu.GPU_SETTINGS_INFO),
    _peer_rule("software_differs", PeerSettings(_gpu_software),
        "VBIOS, InfoROM or driver differs from that of most GPUs of the same model", _UPDATE, rule.LOAD, gpu.GPU_INFO),
    rule.HealthRule("mig_unused", rule.DEGRADED, _has_unused_mig,
        "the GPU is in MIG mode without a MIG device, and most GPUs of the same model are not in MIG mode",
        "Railscope: no job can use such a GPU", sources=("mig",), metrics=(gpu_sharing.GPU_MIG_MODE, gpu_sharing.GPU_MIG_DEVICES),
        is_needed=False, remedy="create MIG devices, or leave the MIG mode"),
    rule.HealthRule("mode_pending", rule.DEGRADED, lambda facts: bool(_pending(facts)),
        "ECC or MIG mode was changed, and takes effect at a reset of the GPU",
        "nvml.h, nvmlDeviceGetEccMode, nvmlDeviceGetMigMode: current and pending mode",
        actions=rule.RequiredActions(("drain", "reset_gpu")), sources=(rule.SETTINGS,), metrics=(gpu.GPU_SETTINGS_INFO,),
        describe=lambda facts: "; ".join(_pending(facts)), remedy="reset the GPU, or restore the former mode"),
)  # fmt: skip
