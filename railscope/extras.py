"""Extras, which are optional packages: imports of their libraries, and how to install one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from railscope.settings import SettingsError


def install_command(
    extra: str,
    *,
    prefix: Path = Path(sys.prefix),
    sources: Path = Path(__file__).parents[1],
) -> str:
    """Return the command that installs an extra, by the way in which the program was installed."""
    python = prefix / "bin" / Path(sys.executable).name
    if (sources / "pyproject.toml").is_file():
        return f"{python} -m pip install --editable '{sources}[{extra}]'"
    # The directory is that of `make install` and of the packages; only the latter have no pip.
    if not (prefix / "share/railscope").is_dir():
        return f"{python} -m pip install 'railscope[{extra}]'"
    if (prefix / "bin/pip").exists():
        variable = "" if extra == "collector" else " EXTRAS=yes"
        return f"make install{variable}, as root in the checkout"
    command = (
        "apt install ./railscope-collector_*.deb"
        if shutil.which("apt")
        else "dnf install ./railscope-collector-*.rpm"
    )
    return f"install the package railscope-collector: {command}"


@contextmanager
def importing(
    extra: str, feature: str, library: str, error: type[Exception] = SettingsError
) -> Iterator[None]:
    """Import a library of an extra for a feature. Raises the error without it, with the command that installs the extra.

    `library` is the name of the package: its modules may have other names.
    """
    try:
        yield
    except ImportError as missing:
        message = f"missing {library}, which {feature} requires; fix: {install_command(extra)}"
        raise error(message) from missing
