"""The simulator: a GPU node with its rails, job and faults, from one physical model.

    spec       what to simulate
    model      job, GPUs, ports and server advance together  (job, silicon, fabric, server)
    scenarios  the faults
    views      what each interface of the machine shows of it  (gpu, rdma, nic, pcie, host, kernel)
    run        the captures that come of it
    tree       a capture as a tree of files and links

Everything follows from the spec and its seed: no clock is read.
"""

from railscope.simulator.run import about, moments, simulate
from railscope.simulator.spec import SCENARIOS, NodeSpec
from railscope.simulator.tree import write_tree

__all__ = ["SCENARIOS", "NodeSpec", "about", "moments", "simulate", "write_tree"]
