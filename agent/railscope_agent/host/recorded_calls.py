"""Keys of the calls in a capture, and the answer to a batch from the recorded answers to its entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from railscope_agent.host import Json

KERNEL_LOG = "kernel_log.open()"
"""Key under which a capture records if the log was readable; a capture without it had a readable log."""

BATCH_FUNCTIONS = frozenset({"nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"})
"""Calls with arguments that, after the first, are separate queries.

A capture records an answer to each, so that any batch of them can be answered.
"""
_NOT_RECORDED = [3, 0]  # code NVML_ERROR_NOT_SUPPORTED (nvml.h), no value


def call_key(host_interface: str, function: str, arguments: Sequence[int | str]) -> str:
    """Key under which a capture records the result of a call."""
    return f"{host_interface}.{function}({','.join(map(str, arguments))})"


def assemble_batch(answer: Callable[[int | str], Json], entries: Sequence[int | str]) -> Json:
    """Answer to a batch, assembled from the answers to its entries: their values, and their codes.

    An entry that was never queried while recording is unsupported; if that is true of all entries,
    so is the call. A failure of the call as a whole is recorded for every entry, and is raised.
    """
    answers: list[Json] = []
    missing: FileNotFoundError | None = None
    for entry in entries:
        try:
            answers.append(answer(entry))
        except FileNotFoundError as error:
            answers.append(_NOT_RECORDED)
            missing = error
    if missing and all(pair is _NOT_RECORDED for pair in answers):
        raise missing
    return [[value for _, value in answers], [code for code, _ in answers]]
