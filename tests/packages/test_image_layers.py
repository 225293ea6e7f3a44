"""Layers of the container image: equal content gives equal layers."""

from __future__ import annotations

import os
from pathlib import Path

import oci_image


def test_a_layer_does_not_depend_on_times_owners_and_order(tmp_path: Path):
    digests = set()
    for number, names in enumerate((["b", "a/c"], ["a/c", "b"])):
        tree = tmp_path / f"tree-{number}"
        for name in names:
            oci_image.write(tree / name, f"content of {name}\n")
            (tree / name).chmod(0o644)
        (tree / "link").symlink_to("b")
        os.utime(tree / "b", (number, number))
        if os.geteuid() == 0:
            os.chown(tree / "b", number, number)
        blobs = tmp_path / f"blobs-{number}"
        blobs.mkdir()
        oci_image.OciArchive(blobs, 1_700_000_000).add_layer([tree], "test")
        digests |= {path.name for path in blobs.iterdir()}
    assert len(digests) == 1
