"""Ask the stand-in as the agent would, and print the answers. Run in a process of its own."""

from __future__ import annotations

import ctypes
import json
import sys

standin = ctypes.CDLL(sys.argv[1])  # loaded first, so that nvidia-ml-py finds it by its name

from agent.host import NvmlError  # noqa: E402 - after the library
from agent.host.real import RealHost  # noqa: E402
from agent.reader import Reader  # noqa: E402
from agent.sources.gpu import Gpu  # noqa: E402
from railscope.frame import Origin  # noqa: E402
from railscope.reading import Absent  # noqa: E402

DRIVER, SECOND = -1, 1
host = RealHost()
reader = Reader(Gpu.load(), host, Origin("node", "run", "boot"))


def ask(function: str, *arguments: int) -> object:
    """An answer, or the code of a failure."""
    try:
        return host.call("nvml", function, *arguments)
    except NvmlError as error:
        return {"code": error.code}


def read() -> dict[str, object]:
    """A read of the GPU source: readings by metric and entity, or the problem."""
    outcome = reader.run()
    if outcome.frame is None:
        return {"problem": outcome.problem}
    return {
        f"{metric.name} {' '.join(entity.key)}": r.word if isinstance(r, Absent) else r
        for metric, entity, r in outcome.frame.readings()
    }


said: dict[str, object] = {"healthy": read()}
said["pci"] = ask("nvmlDeviceGetPciInfo", 0)
said["fields"] = ask("nvmlDeviceGetFieldValues", 0, 82, 74, 75)
said["no such function"] = ask("nvmlDeviceGetMagic", 0)
said["no such symbol"] = ask("nvmlDeviceGetEccMode", 0)
said["no such gpu"] = ask("nvmlDeviceGetName", 7)
handles = standin.standin_handles()
read()
said["handles of a second read"] = standin.standin_handles() - handles
standin.standin_fail(SECOND, 15)
said["lost"] = read()
standin.standin_fail(SECOND, 0)
said["found"] = read()
standin.standin_fail(DRIVER, 9)
said["unloaded"] = read()
starts = standin.standin_starts()
said["still unloaded"] = read()
standin.standin_fail(DRIVER, 0)
said["loaded"] = read()
said["started again"] = standin.standin_starts() > starts
host.close()
sys.stdout.write(json.dumps(said))
