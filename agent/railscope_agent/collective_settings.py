"""Settings of the agent about collectives."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class CollectiveSettings(Struct, frozen=True, kw_only=True):
    """Collectives of jobs, from files that jobs write and, if it is switched on, from the processes of jobs."""

    flight_recorder_directory: str = "/run/railscope/flight-recorder"
    """Directory of the dumps of PyTorch's flight recorders (TORCH_FR_DUMP_TEMP_FILE), in it or in one directory per job.
    Nothing is read if it does not exist. Empty: switched off.
    """
    late_seconds: Annotated[float, Meta(gt=0, le=86_400.0)] = 60.0
    """Seconds for which other ranks must have waited before a rank counts as late, or a collective as stuck."""
    max_age_seconds: Annotated[float, Meta(gt=0, le=86_400.0)] = 3600.0
    """Maximum age of a dump; older ones are ignored."""
    nccl_inspector_directory: str = ""
    """Directory of the files of NCCL Inspector (NCCL_INSPECTOR_DUMP_DIR), in it or in one directory per job. Empty:
    switched off.
    """
    ras: Literal["off", "monitor", "query"] = "off"
    """NCCL's RAS subsystem: off, monitor (follow the processes that die; NCCL 2.29.2 and later) or query (in addition, one
    query per job and period, for which the job gathers data from all of its ranks).
    """
    ras_versions: str = "2.28 2.29"
    """Space-separated versions of NCCL that are connected to: 2.28 includes 2.28.9. A version in which a query has crashed jobs must be listed
    in full, such as 2.29.7.
    """
    ras_port: Annotated[int, Meta(ge=1, le=65535)] = 28028
    """Loopback port of RAS (NCCL_RAS_ADDR)."""
    ras_timeout_seconds: Annotated[float, Meta(ge=2, le=5)] = 5.0
    """Timeout of a query, from the connection to the end of the answer."""
