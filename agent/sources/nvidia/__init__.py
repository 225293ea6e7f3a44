"""GPUs, through NVML. All sources here run on the one thread of the NVIDIA driver.

inventory  GPUs and MIG devices, with their identities
plan       calls for one device, and those found to be unsupported
calls      building blocks of the tables
load, health, settings     tables: metric of each call or field
integrals  counters of the agent itself: samples integrated over time
gpu        the source that reads those tables
activity   SMs and pipes (GPM)          nvlink     links
mig        MIG devices                  processes  processes of a GPU, virtual GPUs
events     events of the driver         devices    state of every GPU on the PCI bus
"""
