"""PCIe errors that the firmware receives in place of the kernel, and reports to it (firmware first, ACPI APEI).

The kernel prints no line `AER: ... error received` for them. It counts those with AER information in the aer_dev_* files
as well (drivers/acpi/apei/ghes.c, ghes_handle_aer; drivers/pci/pcie/aer.c, pci_print_aer), like any error that it prints.
A report has several lines of one number (ghes.c; drivers/firmware/efi/cper.c):

  {7}[Hardware Error]:  Error 0, type: corrected
  {7}[Hardware Error]:   section_type: PCIe error
  {7}[Hardware Error]:   device_id: 0000:3b:00.0

Reports without a number are of the previous boot (drivers/acpi/apei/bert.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from railscope.catalog import entities, kernel as c
from railscope.frame import Entity
from railscope_agent.streams.kernel_messages import KernelMessage

_LINE = re.compile(
    r"\{(?P<report>[0-9]{1,10})\}\[Hardware Error\]: +(?:Error [0-9]+, type: (?P<severity>\w+)"
    r"|section_type: (?P<section>.*)"
    r"|device_id: (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))"
)
_SEVERITIES = {"corrected": "correctable", "recoverable": "nonfatal", "fatal": "fatal"}
"""Severities of cper_severity_strs; the fourth, info, is no error."""
_PCIE = "PCIe error"


@dataclass(slots=True)
class FirmwareErrors:
    """Parser of the lines of reports; it keeps what the earlier lines of the present section state."""

    _report: str = ""
    _severity: str = ""
    _is_pcie: bool = False

    def parse(self, text: str) -> KernelMessage | None:
        """Parse a line of the kernel log; return the PCIe error that it completes."""
        match = _LINE.match(text)
        if match is None:
            return None
        if match["severity"] or match["report"] != self._report:
            self._report, self._is_pcie = match["report"], False
            self._severity = _SEVERITIES.get(match["severity"] or "", "")
        elif match["section"]:
            self._is_pcie = match["section"] == _PCIE
        elif self._is_pcie and self._severity:
            self._is_pcie = False
            about = Entity(entities.AER_MESSAGE, (match["pci"], self._severity))
            return KernelMessage(c.AER_EVENT, about, {"message": text})
        return None
