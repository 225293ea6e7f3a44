"""`python -m railscope.child_process PARENT ...`: `railscope ...` that ends with its parent.

The kernel sends SIGTERM when the parent ends, for any reason (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from railscope.cli import main

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Make the kernel end this process with its parent; end it now if the parent has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have ended before the call, which then has no effect.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    sys.argv[0] = "railscope"
    main()
