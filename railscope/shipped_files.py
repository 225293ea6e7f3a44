"""Files that accompany the programs: dashboards, alert rules, runbooks, units, manifests, samples, scripts, shell completion.

An installed package has them in its directory `files`, a checkout below its root, at the same paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from railscope import RailscopeError
from railscope.durable_files import partial_file

_PACKAGE = Path(__file__).parent
PATTERNS = (
    "alerts/rules/*.yml",
    "alerts/runbooks/*.md",
    "dashboards/generated/*.json",
    "dashboards/generated/*.yaml",
    "dashboards/provisioning/*/*.yml",
    "deploy/*.toml",
    "deploy/*.csv",
    "deploy/*.yml",
    "deploy/ansible/*.yml",
    "deploy/ansible/roles/*/*/*.yml",
    "deploy/completions/*",
    "deploy/kubernetes/*.*",
    "deploy/kubernetes/monitoring/*.yaml",
    "deploy/nagios/*.cfg",
    "deploy/node-problem-detector/*.*",
    "deploy/prometheus/*.yml",
    "deploy/prometheus/targets/*.yml",
    "deploy/slurm/*.sh",
    "deploy/systemd/*.*",
)


class DifferingFilesError(RailscopeError, ValueError):
    """Files of the destination that differ; nothing was copied."""


def shipped_files() -> Mapping[str, Path]:
    """Return the files of this installation by their relative paths, sorted."""
    root = installed if (installed := _PACKAGE / "files").is_dir() else _PACKAGE.parent
    found = {
        str(path.relative_to(root)): path for pattern in PATTERNS for path in root.glob(pattern)
    }
    return dict(sorted(found.items()))


def copy_shipped_files(directory: Path, *, replace: bool = False) -> list[str]:
    """Copy the files that are missing or differ, each atomically, and return their relative paths.

    Raises DifferingFilesError, before any change, if a file differs and is not to be replaced, and OSError.
    """
    contents = {name: path.read_bytes() for name, path in shipped_files().items()}
    present = {name: path.read_bytes() for name in contents if (path := directory / name).exists()}
    differing = [name for name in present if present[name] != contents[name]]
    if differing and not replace:
        message = f"{directory}: files that differ: {len(differing)}, such as {differing[0]}; fix: another directory, or --force"
        raise DifferingFilesError(message)
    copied = [name for name in contents if present.get(name) != contents[name]]
    for name in copied:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o777 if name.endswith(".sh") else 0o666
        with partial_file(target, contents[name], mode, synced=False) as partial:
            partial.rename(target)
    return copied
