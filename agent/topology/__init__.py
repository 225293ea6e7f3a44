"""Topology of GPUs, NICs and drives: PCI tree, distances and rails.

pci        PCI tree of sysfs
nccl_xml   tree of an NCCL topology file, for virtual machines without a PCI tree
distance   distance of two devices, in the terms of `nvidia-smi topo -m`
rails      assignment of NICs to GPUs by distance, NUMA node and order
rules      rails and roles in the settings
network    network devices with role and rail
node       the whole node, with NVLinks
matrix     table of `nvidia-smi topo -m`
render     a node as text and as JSON
"""
