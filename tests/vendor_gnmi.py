"""Descriptors of gNMI out of a package of generated code, which has no other form of the definition.

    python tests/vendor_gnmi.py PACKAGE/gnmi_pb OUTPUT

The code itself is not imported: it requires one range of versions of protobuf.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2


def serialized_file(code: Path) -> bytes:
    """Return the argument of AddSerializedFile in a module of generated code."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(code.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".AddSerializedFile")
    ]
    return bytes(ast.literal_eval(call.args[0]))


def main() -> None:
    package, output = map(Path, sys.argv[1:])
    files = descriptor_pb2.FileDescriptorSet()
    for name in ("gnmi_ext", "gnmi"):
        files.file.add().MergeFromString(serialized_file(package / f"{name}_pb2.py"))
    output.write_bytes(files.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
