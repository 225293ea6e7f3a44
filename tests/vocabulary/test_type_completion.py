"""Types of messages are completed before several threads decode them for the first time."""

from __future__ import annotations

import subprocess
import sys

DECODING = """
import sys, threading
import msgspec
from railscope import untrusted_text

def decode_in_threads(number):
    inner = msgspec.defstruct(f"Inner{number}", [("a", dict[str, tuple[int, ...]]), ("b", list[int], [])])
    outer = msgspec.defstruct(f"Outer{number}", [("x", inner), ("y", list[inner]), ("z", inner | None, None)])
    untrusted_text.complete_types()
    start = threading.Barrier(8)

    def decode():
        start.wait()
        msgspec.json.decode(b'{"x": {"a": {"k": [1]}}, "y": [{"a": {}}]}', type=outer)

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

sys.setswitchinterval(1e-6)
for number in range(300):
    decode_in_threads(number)
print("decoded")
"""


def test_threads_decode_completed_types_at_the_same_time() -> None:
    """Without the completion the process crashes, so it is a process of its own."""
    process = subprocess.run(
        [sys.executable, "-c", DECODING], capture_output=True, text=True, check=False, timeout=300
    )
    assert (process.returncode, process.stdout) == (0, "decoded\n"), process.stderr
