"""Topology of GPUs, NICs and drives: PCI tree, distances and rails.

pci              PCI tree of sysfs, names of devices, distances in the terms of `nvidia-smi topo -m`
nccl_xml         tree of an NCCL topology file, for virtual machines without a PCI tree
pcie_links       capability and present state of PCIe links
rails            assignment of NICs to GPUs by distance, NUMA node and order; rails and roles in the settings
network          network devices with role and rail
node_topology    the whole node, with NVLinks
topology_report  a node as text and as JSON, with the table of `nvidia-smi topo -m`
"""
