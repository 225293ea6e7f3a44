"""Archive of the Helm chart. `helm package` writes the time of the build into it."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path

CHART = "deploy/helm/railscope"
FILES = (
    ("", f"{CHART}/*.*"),
    ("templates/", f"{CHART}/templates/*.*"),
    ("rules/", "alerts/rules/*.yml"),
    ("dashboards/", "dashboards/generated/*.json"),
)
"""Directories of the chart and their files. The last two are links, which source distributions do not contain."""


def chart_version(version: str) -> str:
    """Return a version of Python as one of Helm: 1.0.0rc1 as 1.0.0-rc.1."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def write_chart(source: Path, target: Path, epoch: int) -> None:
    """Write the archive of the chart of a source tree to a directory."""
    about = (source / CHART / "Chart.yaml").read_text()
    (version,) = re.findall(r"^version: (.*)$", about, re.MULTILINE)
    files = {f"{above}{path.name}": path for above, form in FILES for path in source.glob(form)}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            member = tarfile.TarInfo(f"railscope/{name}")
            member.mtime, member.size = epoch, len(content)
            archive.addfile(member, io.BytesIO(content))
    packed = gzip.compress(stream.getvalue(), mtime=0)
    (target / f"railscope-{version}.tgz").write_bytes(packed)
