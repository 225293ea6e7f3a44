"""Detector of devices that report a fault by one quantity above its limit, for all rows of `quantities.LIMITS`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.quantities import LIMITS, DeviceKind


def exceeded_limits(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the NICs and GPUs with a quantity above its limit."""
    for limit in LIMITS:
        signal, kind = limit.quantity.name, limit.quantity.device
        values = view.signals.table(kind, view.signals.window)[signal]
        name_of = view.gpu_name if kind is DeviceKind.GPU else view.nic_name
        for position in np.flatnonzero(findings.above(values, limit.above)).tolist():
            value, device = float(values[position]), name_of(position)
            evidence = findings.FindingEvidence(signal, value, limit.above, "limit", device)
            yield findings.Finding(
                limit.incident,
                findings.Cause(kind.value, position),
                (evidence,),
                limit.strength,
                limit.severity,
            )
