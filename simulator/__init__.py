"""The simulator: a GPU node with its rails, job and faults, from one physical model.

  spec       specification of a simulation
  gpu_models, nic_models  available GPU and NIC models
  model      job, GPUs, ports and host advance together  (job, gpu, fabric, server)
  gpu        components of a GPU  (silicon, activity, memory, nvlink, bus, sharing)
  fabric     components of a port  (port_counters, port_settings, port_signal, optics)
  scenarios  the faults  (conditions, gpu_scenarios, port_scenarios; reports, card_reports: driver
             messages about them)
  views      state as shown by each interface of the node  (nvml, driver_files, rdma, nic, links,
             ethernet_settings, transceivers, neighbours, ofed_files, pcie, host, owners,
             kernel)
  run        the resulting captures
  tree       a capture as a tree of files and links

All output follows from the spec and its seed: no clock is read.
"""

from simulator.device_models import MODELS, NICS, SHORT_NAMES, find_model
from simulator.simulation import about, moments, simulate
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
