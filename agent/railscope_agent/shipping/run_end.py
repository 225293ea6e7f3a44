"""End of a run: the last packed sequence of each stream, for the next run of the agent to report."""

from __future__ import annotations

from pathlib import Path

import structlog

from railscope import durable_files
from railscope.wire import RunEnd

log = structlog.get_logger(__name__)

RUN_END_FILE = "run_end.json"
"""File in the state directory with the last packed sequence of each stream, written at each push; durable at
once only with a spooled envelope."""


def write_run_end(directory: Path, ended: RunEnd, *, is_synced: bool = True) -> None:
    """Write the last packed sequences of a run. Blocking."""
    # With envelopes sent from memory, waiting for the disk at each push would cost what sending from memory
    # saves.
    write = durable_files.write_json if is_synced else durable_files.replace_json
    try:
        write(directory / RUN_END_FILE, ended)
    except OSError as error:
        # Only the end of the run is missing; the file is written again at the next push.
        log.warning("run_end_write_failed", directory=str(directory), problem=str(error))


def read_run_end(directory: Path) -> RunEnd | None:
    """Return the last sequences of the previous run. Blocking; raises OSError for the state directory."""
    try:
        return durable_files.read_json(directory / RUN_END_FILE, RunEnd)
    except durable_files.DamagedFileError as error:
        log.warning("run_end_lost", problem=str(error))
        return None
