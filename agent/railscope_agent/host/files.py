"""Files under a root: of the live node, or of a copied tree."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from railscope_agent.host import FileGroup
from railscope_agent.host.file_groups import OpenFiles

_OUTSIDE = "/.outside"


class RootedFiles:
    """Files of a live node (root "/") or of a copied tree."""

    def __init__(self, root: Path) -> None:
        resolved = os.path.realpath(root)
        # Empty on a live node, so that paths are used as they are, without a check or a copy.
        self._root = "" if resolved == "/" else resolved

    def real(self, path: str) -> str:
        """Path of a host file on this node.

        A link of a copied tree that leads out of the tree resolves to a missing file: its target
        belongs to the node that holds the copy.
        """
        path_below_root = self._root + path
        if self._root and not self._is_inside(path_below_root):
            return self._root + _OUTSIDE
        return path_below_root

    def _is_inside(self, path: str) -> bool:
        """True unless the file exists outside the root; its open has no effect on a device or pipe."""
        try:
            descriptor = os.open(path, os.O_PATH)
        except OSError:  # the read of the file reports the reason
            return True
        try:
            # The kernel's own name of the opened file, with all links followed.
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - on the hot path
            return f"{target}/".startswith(f"{self._root}/")
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        """Content of a small file."""
        with open(self.real(path), "rb") as file:  # noqa: PTH123 - on the hot path
            return file.read()

    def names(self, path: str) -> list[str]:
        """Entries of a directory, sorted. Ports and devices have the same names: each is stored once."""
        return sorted(map(sys.intern, os.listdir(self.real(path))))  # noqa: PTH208 - plain text paths

    def resolve(self, path: str) -> str:
        """Path with all links followed; raises FileNotFoundError for a link out of the root."""
        target = os.path.realpath(self._root + path, strict=True)
        if not f"{target}/".startswith(f"{self._root}/"):
            message = f"{path} leads outside the root directory"
            raise FileNotFoundError(message)
        return target[len(self._root) :]

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Open a group of files with persistent descriptors."""
        return OpenFiles([self.real(path) for path in paths])
