"""The command that installs an extra fits the way in which the program was installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from railscope.extras import install_command


@pytest.mark.parametrize(
    ("files", "extra", "command"),
    [
        (("pyproject.toml",), "otlp", "{prefix}/bin/python -m pip install --editable '{prefix}[otlp]'"),
        ((), "otlp", "{prefix}/bin/python -m pip install 'railscope[otlp]'"),
        (("share/railscope/x", "bin/pip"), "collector", "make install, as root in the checkout"),
        (("share/railscope/x", "bin/pip"), "otlp", "make install EXTRAS=yes, as root in the checkout"),
        (("share/railscope/x",), "collector", "install the package railscope-collector: "),
    ],
)  # fmt: skip
def test_the_command_is_that_of_checkout_pip_make_install_or_package(
    tmp_path: Path, files: tuple[str, ...], extra: str, command: str
):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = install_command(extra, prefix=tmp_path, sources=tmp_path)
    assert found.startswith(command.format(prefix=tmp_path))
