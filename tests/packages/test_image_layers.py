"""Layers and names of the container image, written without a build."""

from __future__ import annotations

import json
import os
import tarfile
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


def test_kubernetes_finds_an_image_that_was_loaded_without_a_registry(tmp_path: Path):
    """containerd stores the name in index.json unchanged, Docker completes that in manifest.json; Kubernetes requests full names."""
    blobs, target = tmp_path / "blobs", tmp_path / "image.tar"
    blobs.mkdir()
    oci_image.OciArchive(blobs, 0).write(target, "railscope:1.2.3", "amd64", {})
    with tarfile.open(target) as archive:
        index, docker = (json.load(archive.extractfile(f"{n}.json")) for n in ("index", "manifest"))
    (manifest,) = index["manifests"]
    assert (
        manifest["annotations"]["io.containerd.image.name"] == "docker.io/library/railscope:1.2.3"
    )
    assert docker[0]["RepoTags"] == ["railscope:1.2.3"]
