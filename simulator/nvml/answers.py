"""NVML results of one device, by call in the form of a capture."""

from __future__ import annotations

from railscope.capture import Json, NvmlError, failure

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST = (
    failure(NvmlError(code)) for code in (3, 4, 6, 10, 13, 15)
)

ALL_LINKS = 0xFFFF_FFFF
NO_INSTANCE = 0xFFFF_FFFF
FIELDS, GPM = "nvml.nvmlDeviceGetFieldValues", "nvml.nvmlGpmMetricsGet"


class Answers:
    """Results of a device: a GPU's index, or the UUID of a MIG device.

    A field or GPM metric that is not added is unsupported by the device.
    """

    def __init__(self, device: int | str) -> None:
        self.device = device
        self.found: dict[str, Json] = {}

    def call(self, name: str, answer: Json, *arguments: int) -> None:
        """Add the result of `nvmlDeviceGet` followed by a name."""
        listed = ",".join(map(str, (self.device, *arguments)))
        self.found[f"nvml.nvmlDeviceGet{name}({listed})"] = answer

    def calls(self, **answers: Json) -> None:
        """Add results of several calls without arguments other than the device."""
        for name, answer in answers.items():
            self.call(name, answer)

    def field(self, entry: int | str, value: int) -> None:
        """Add a field, or a field and its scope as "138:3"."""
        self.found[f"{FIELDS}({self.device},{entry})"] = [0, value]

    def metric(self, number: int, value: float) -> None:
        """Add a GPM metric."""
        self.found[f"{GPM}({self.device},{number})"] = [0, value]


def where(condition: object, answer: Json) -> Json:
    """Return the result if the condition holds, else "not supported"."""
    return answer if condition else NOT_SUPPORTED
