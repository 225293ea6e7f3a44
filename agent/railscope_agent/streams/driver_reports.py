"""Faults of PCIe devices that their drivers report, each until the driver reports the opposite.

Link and counters of a device may be good while its driver reports a fault. A reset ends a fault only if the fault does
not return within a minute: some drivers reset their device repeatedly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from railscope.catalog import kernel as c
from railscope.timestamps import SECOND_NS

RELAPSE_NS = 60 * SECOND_NS
HOT_NS = 600 * SECOND_NS
"""Time for which a report of heat counts: no driver reports that its device has cooled down."""
MAX_DEVICES = 1000
NONE, TOO_HOT, MODULE_ERROR, SEND_QUEUE_STUCK, FAILED = c.DRIVER_REPORT.states
_FAULTS = {
    (c.DEVICE_HOT_EVENT.name, ""): TOO_HOT,
    (c.PORT_MODULE_EVENT.name, "error"): MODULE_ERROR,
    (c.TRANSMIT_TIMEOUT_EVENT.name, ""): SEND_QUEUE_STUCK,
    (c.DEVICE_FAILED_EVENT.name, ""): FAILED,
}
_ENDS = {
    c.PORT_MODULE_EVENT.name: (MODULE_ERROR,),
    c.DEVICE_RESET_EVENT.name: (TOO_HOT, SEND_QUEUE_STUCK, FAILED),
    c.DEVICE_RECOVERED_EVENT.name: (TOO_HOT, SEND_QUEUE_STUCK, FAILED),
}
"""Faults that an event ends, unless it states one."""


class DriverReports:
    """Faults that drivers report now, by PCI address."""

    def __init__(self) -> None:
        self._faults: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """Time of the last report of each fault."""
        self._reset_ns: dict[str, int] = {}
        self._relapsed: set[str] = set()
        """Devices whose fault returned after a reset."""

    @property
    def addresses(self) -> Iterable[str]:
        """Devices about which there was a report."""
        return self._faults.keys()

    def record(self, event: str, state: str, address: str, boot_ns: int) -> bool:
        """Record an event about a device; return False for a recovery from nothing, as when a driver starts its device."""
        fault = _FAULTS.get((event, state))
        if fault is None:
            return self._end(event, address, boot_ns)
        if address in self._faults or len(self._faults) < MAX_DEVICES:
            self._faults[address][fault] = boot_ns
            if boot_ns - self._reset_ns.get(address, -RELAPSE_NS) < RELAPSE_NS:
                self._relapsed.add(address)
        return True

    def _end(self, event: str, address: str, boot_ns: int) -> bool:
        is_recovery = event == c.DEVICE_RECOVERED_EVENT.name
        faults = self._faults.get(address, {})
        ended = [fault for fault in _ENDS.get(event, ()) if fault in faults]
        if is_recovery:
            self._relapsed.discard(address)
        elif event == c.DEVICE_RESET_EVENT.name and ended:
            self._reset_ns[address] = boot_ns
            if address in self._relapsed:
                return True
        for fault in ended:
            del faults[fault]
        return bool(ended) or not is_recovery

    def reading(self, address: str, now_ns: int) -> int:
        """Return the worst fault of a device as a state of railscope_pcie_driver_report."""
        faults = self._faults[address].items()
        lasting = (f for f, at_ns in faults if f != TOO_HOT or now_ns - at_ns < HOT_NS)
        return max(lasting, default=NONE)
