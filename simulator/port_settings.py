"""Settings of a RoCE port: MTU, priority flow control, congestion notification and trust.

RDMA traffic carries DSCP 26 and congestion notifications DSCP 48. A port that trusts DSCP maps them to
priorities 3 and 6; one that trusts the priority code point of a VLAN tag, which is absent, maps all
traffic to priority 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LOSSLESS, NOTIFICATION, BEST_EFFORT = 3, 6, 0
PRIORITIES = range(8)
DSCP_OF_DATA, DSCP_OF_NOTIFICATIONS = 26, 48
USUAL_MTU_BYTES, SMALL_MTU_BYTES = 4200, 1500


@dataclass(frozen=True, slots=True)
class PortSettings:
    """Settings of a port; defaults are those of the whole cluster."""

    mtu_bytes: int = USUAL_MTU_BYTES
    pausing: bool = True
    notifying: bool = True
    trust: Literal["dscp", "pcp"] = "dscp"

    @property
    def protected(self) -> bool:
        """True if pause protects RDMA traffic from loss."""
        return self.pausing and self.trust == "dscp"


USUAL = PortSettings()
