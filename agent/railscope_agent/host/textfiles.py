"""Textfiles: files of a directory that programs of the site write, and perhaps tenants.

A file is opened only after it proved to be a regular one, and never through a link: opening a device or a pipe
can block or have an effect. A capture contains the answers, so that a replay has the files of the node.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from railscope.catalog.textfile import DirectoryState, TextfileState
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Clock, Json

HOST_INTERFACE = "textfile"
SUFFIX = ".prom"
MAX_FILES = 200
MAX_ENTRIES = 10_000
"""Entries of the directory that are listed; more would take long in each read."""
_WHOLE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_CHUNK_BYTES = 1 << 20


class TextfileCalls:
    """The host interface "textfile"."""

    def __init__(
        self,
        real: Callable[[str], str],
        clock: Clock,
        pread: Callable[[int, int, int], bytes] = os.pread,
    ) -> None:
        self._real = real
        self._clock = clock
        self._pread = pread

    def call(self, function: str, *arguments: int | str) -> Json:
        """Return the answer of a call. Raises OSError if the directory cannot be read, or a file is gone.

        textfile.list(directory)      state of the directory, and the names of the files
        textfile.read(directory, name, max_bytes, max_age_seconds)   state, owner, modification time, text

        Files of root come first, so that no other user can displace them. The state of a file is `ok` if its
        text is complete; the text of an unreadable file is the problem. A maximum age of 0 is none.
        """
        if function == "list":
            return self._list(str(arguments[0]))
        directory, name, max_bytes, max_age_seconds = arguments
        return self._read(str(directory), str(name), int(max_bytes), int(max_age_seconds))

    def _list(self, directory: str) -> Json:
        with self._opened(directory) as descriptor:
            state = DirectoryState.OK
            # Of the opened directory: its name may lead to another one by now.
            if os.fstat(descriptor).st_mode & stat.S_IWOTH:
                state = DirectoryState.WRITABLE_BY_OTHERS
            with os.scandir(descriptor) as entries:
                found = list(islice(entries, MAX_ENTRIES + 1))
            names = [entry.name for entry in found if _is_textfile(entry.name)]
            if len(names) > MAX_FILES or len(found) > MAX_ENTRIES:
                state = DirectoryState.TOO_MANY_FILES
            names.sort(key=lambda name: (_owner(descriptor, name) != 0, name))
            return [state, names[:MAX_FILES]]

    def _read(self, directory: str, name: str, max_bytes: int, max_age_seconds: int) -> Json:
        with self._opened(directory) as parent:
            details = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISREG(details.st_mode):
                return [TextfileState.NOT_REGULAR, details.st_uid, details.st_mtime_ns, ""]
            facts = details.st_uid, details.st_mtime_ns
            try:
                descriptor = os.open(name, _WHOLE, dir_fd=parent)
                try:
                    return self._read_opened(descriptor, max_bytes, max_age_seconds * SECOND_NS)
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                raise
            except (
                OSError
            ) as error:  # an answer: a failed call would keep the columns of other files
                is_link = error.errno == errno.ELOOP
                state = TextfileState.NOT_REGULAR if is_link else TextfileState.UNREADABLE
                return [state, *facts, error.strerror or ""]

    def _read_opened(self, descriptor: int, max_bytes: int, max_age_ns: int) -> Json:
        before = os.fstat(descriptor)
        facts = before.st_uid, before.st_mtime_ns
        age_ns = self._clock.now().wall_ns - before.st_mtime_ns
        if not stat.S_ISREG(before.st_mode):  # replaced since its name was looked up
            return [TextfileState.NOT_REGULAR, *facts, ""]
        if max_age_ns and age_ns > max_age_ns:
            return [TextfileState.TOO_OLD, *facts, ""]
        if before.st_size > max_bytes:
            return [TextfileState.TOO_LARGE, *facts, ""]
        content = bytearray()
        while len(content) <= max_bytes:
            chunk = self._pread(
                descriptor, min(_CHUNK_BYTES, max_bytes + 1 - len(content)), len(content)
            )
            if not chunk:
                break
            content += chunk
        after = os.fstat(descriptor)
        state = TextfileState.OK
        if len(content) > max_bytes:
            state = TextfileState.TOO_LARGE
        # Written while it was read: half of its series would look as if the others had ended.
        elif (before.st_size, before.st_mtime_ns) != (len(content), after.st_mtime_ns):
            state = TextfileState.INCOMPLETE
        text = content.decode(errors="surrogateescape") if state == TextfileState.OK else ""
        return [state, *facts, text]

    @contextmanager
    def _opened(self, directory: str) -> Iterator[int]:
        descriptor = os.open(self._real(directory), os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _is_textfile(name: str) -> bool:
    """True for a name that ends in .prom; one that begins with a dot is of a file that is being written."""
    return name.endswith(SUFFIX) and not name.startswith(".") and name.isprintable()


def _owner(directory: int, name: str) -> int:
    """Return the owner of a file; -1 if it is gone."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid
    except FileNotFoundError:
        return -1
