"""A kubelet's pod resources API: a real gRPC server on a Unix socket."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

Handler = Callable[[bytes, grpc.ServicerContext], bytes]


@contextlib.contextmanager
def run_kubelet(path: Path, methods: dict[str, Handler]) -> Iterator[str]:
    """Run a server with these methods, whose requests and responses are encoded messages."""
    handlers = {name: grpc.unary_unary_rpc_method_handler(run) for name, run in methods.items()}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
    )
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield str(path)
    finally:
        server.stop(0).wait()
