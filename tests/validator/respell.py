"""Makes focus-validator 2.2.1 readable for Python 3.11: `respell.py SITE_PACKAGES`.

It requires Python 3.12 because of one line: a quote in the expression of an f-string with the same
quotes. Here that line is written in a way that both can read and that means the same. Exit status
1: the line is not there once, as with another release; then nothing is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

MODULE = "focus_validator/config_objects/focus_to_duckdb_converter.py"
WRITTEN = r"""", ".join(f"'{k.replace('\"', '\"\"')}'" for k in ignore_keys)"""
RESPELLED = r"""", ".join("'" + k.replace('"', '""') + "'" for k in ignore_keys)"""


def main(site_packages: Path) -> int:
    """Respell the line. The exit status."""
    path = site_packages / MODULE
    text = path.read_text(encoding="utf-8")
    if text.count(WRITTEN) + text.count(RESPELLED) != 1:
        sys.stderr.write(f"respell.py: {path}: the line to respell is not there once\n")
        return 1
    path.write_text(text.replace(WRITTEN, RESPELLED), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
