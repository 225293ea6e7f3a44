"""Requirements of the archive: PyArrow, and the pattern of pods in names of nodes."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from railscope import extras, settings
from railscope_collector.archive_stores import ArchiveError


def import_pyarrow() -> tuple[Any, Any]:
    """Return PyArrow and its module for Parquet. Raises ArchiveError without them."""
    with extras.importing("archive", "the archive", "PyArrow", ArchiveError):
        # An import on use: PyArrow takes memory that collectors without an archive need not have.
        return import_module("pyarrow"), import_module("pyarrow.parquet")


def compile_pod_pattern(text: str) -> re.Pattern[str] | None:
    """Compile `archive.pod_pattern`; None for an empty one. Raises SettingsError."""
    try:
        pattern = re.compile(text) if text else None
    except re.error as error:
        message = f"invalid archive.pod_pattern: expected a regular expression: {error}"
        raise settings.SettingsError(message) from error
    if pattern and "pod" not in pattern.groupindex:
        message = "invalid archive.pod_pattern: expected a group (?P<pod>...)"
        raise settings.SettingsError(message)
    return pattern
