"""The simulator: a GPU node with its rails, job and faults, from one physical model.

  spec, data, device_models     specification, names of hardware and drivers, GPU and NIC models
  node_model                    job, GPUs (gpu, silicon), ports (fabric, port) and host advance together
  scenarios, conditions         the faults, with the driver messages about them in kernel_log
  node_hardware                 components of the node, and its PCI topology
  nvml, host_files, rdma_devices, network_interfaces, interface_settings, driver_counters, owners,
  kernel_log                    state as shown by each interface of the node
  fault_schedule                faults that begin and end
  simulation, live              captures, a simulation in real time
  cluster                       many nodes with jobs and a fabric

All output follows from the spec and its seed: no clock is read.
"""

from railscope_simulator.device_models import MODELS, SHORT_NAMES, find_model
from railscope_simulator.simulation import capture_metadata, moments, simulate
from railscope_simulator.spec import MODES, NICS, SCENARIOS, SCHEDULERS, NodeSpec, SimulatorError

__all__ = [
    "MODELS",
    "MODES",
    "NICS",
    "SCENARIOS",
    "SCHEDULERS",
    "SHORT_NAMES",
    "NodeSpec",
    "SimulatorError",
    "capture_metadata",
    "find_model",
    "moments",
    "simulate",
]
