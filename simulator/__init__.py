"""The simulator: a GPU node with its rails, job and faults, from one physical model.

    spec       what to simulate
    gpu_models, nic_models  the GPUs and the network cards there are
    model      job, GPUs, ports and server advance together  (job, gpu, fabric, server)
    gpu        what a GPU is made of  (silicon, activity, memory, nvlink, bus, sharing)
    fabric     what a port is made of  (port_counters, port_settings, port_signal, optics)
    scenarios  the faults  (conditions, gpu_scenarios, port_scenarios; reports, card_reports: what
               drivers say of them)
    views      what each interface of the machine shows of it  (nvml, driver_files, rdma, nic, links,
               ethernet_settings, transceivers, neighbours, ofed_files, pcie, host, owners,
               kernel)
    run        the captures that come of it
    tree       a capture as a tree of files and links

Everything follows from the spec and its seed: no clock is read.
"""

from simulator.gpu_models import MODELS, SHORT_NAMES
from simulator.gpu_models import find as find_model
from simulator.nic_models import NICS
from simulator.run import about, moments, simulate
from simulator.spec import MODES, SCENARIOS, SCHEDULERS, NodeSpec
from simulator.tree import write_tree

__all__ = [
    "MODELS",
    "MODES",
    "NICS",
    "SCENARIOS",
    "SCHEDULERS",
    "SHORT_NAMES",
    "NodeSpec",
    "about",
    "find_model",
    "moments",
    "simulate",
    "write_tree",
]
