"""Names of the reasons for a down link: the extended link states of linux UAPI ethtool.h.

`enum ethtool_link_ext_state` and the substates of each state that has them. The names are those
that the command ethtool prints.
"""

from __future__ import annotations

EXTENDED_STATES = {
    0: "Autoneg",
    1: "Link training failure",
    2: "Logical mismatch",
    3: "Bad signal integrity",
    4: "No cable",
    5: "Cable issue",
    6: "EEPROM issue",
    7: "Calibration failure",
    8: "Power budget exceeded",
    9: "Overheat",
    10: "Module",
}
EXTENDED_SUBSTATES = {
    0: {
        1: "No partner detected",
        2: "Ack not received",
        3: "Next page exchange failed",
        4: "No partner detected during force mode",
        5: "FEC mismatch during override",
        6: "No HCD",
    },
    1: {
        1: "KR frame lock not acquired",
        2: "KR link inhibit timeout",
        3: "KR Link partner did not set receiver ready",
        4: "Remote side is not ready yet",
    },
    2: {
        1: "PCS did not acquire block lock",
        2: "PCS did not acquire AM lock",
        3: "PCS did not get align_status",
        4: "FC FEC is not locked",
        5: "RS FEC is not locked",
    },
    3: {
        1: "Large number of physical errors",
        2: "Unsupported rate",
        3: "Serdes reference clock lost",
        4: "Serdes ALOS",
    },
    5: {
        1: "Unsupported cable",
        2: "Cable test failure",
    },
    10: {
        1: "CMIS module is not in ModuleReady state",
    },
}
