"""Reader of switches by gNMI: the models that a switch supports (Capabilities) decide the dialect that it is read in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from railscope import service
from railscope_collector.switches import switch_reading as base
from railscope_collector.switches.gnmi_session import open_session
from railscope_collector.switches.openconfig_reader import Capabilities, OpenConfigReader
from railscope_collector.switches.sonic_reader import SonicReader
from railscope_collector.switches.switch_settings import ConfiguredSwitch


@dataclass(slots=True)
class GnmiReader:
    """Reads one switch by gNMI, in the dialect that the settings name or the switch has."""

    switch: ConfiguredSwitch
    monotonic: Callable[[], float]
    _reader: base.SwitchReader | None = None

    async def read(self) -> base.SwitchReading:
        """Return the current readings. Raises SwitchReadError."""
        self._reader = self._reader or await self._choose_reader()
        try:
            return await self._reader.read()
        except base.SwitchReadError:
            # Another system may have been installed since: the next poll asks again.
            self._reader = None
            raise

    async def _choose_reader(self) -> base.SwitchReader:
        if self.switch.dialect == "sonic":
            return SonicReader(self.switch, self.monotonic)
        async with open_session(self.switch) as session:
            body = await session.capabilities()
        found = await service.run_in_thread(Capabilities.decode, body) if body else None
        is_sonic = found is None or found.is_sonic  # older images of SONiC have no Capabilities
        if self.switch.dialect == "auto" and is_sonic:
            return SonicReader(self.switch, self.monotonic)
        if found is None or not found.ports:
            text = f"no model of ports in Capabilities: expected {Capabilities.EXPECTED}"
            raise base.SwitchReadError(text)
        return OpenConfigReader(self.switch, found, self.monotonic)
