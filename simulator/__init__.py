"""The simulator: a GPU node with its rails, job and faults, from one physical model.

  spec             specification of a simulation; spans of time, noise
  data             names and numbers of hardware, drivers and the demo, as data files
  device_models    available GPU and NIC models
  node_model       job, GPUs, ports and host advance together  (workload, gpu, fabric)
  gpu              components of a GPU  (silicon)
  fabric           traffic of a port and its cable  (port)
  scenarios        the faults  (conditions; kernel_log: driver messages about them)
  node_hardware    components of the node, and its PCI topology
  nvml, host_files, rdma_devices, network_interfaces, interface_settings, driver_counters, owners,
  kernel_log       state as shown by each interface of the node
  simulation       the resulting captures
  tree             a capture as a tree of files and links
  live             a simulation in real time, without end

All output follows from the spec and its seed: no clock is read.
"""

from simulator.device_models import MODELS, SHORT_NAMES, find_model
from simulator.simulation import about, moments, simulate
from simulator.spec import MODES, NICS, SCENARIOS, SCHEDULERS, NodeSpec
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
