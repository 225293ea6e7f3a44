"""GPUs, through NVML. All sources here run on the one thread of the NVIDIA driver.

inventory  which GPUs and MIG devices there are, and what identifies them
plan       what is asked of one device, and what it turned out not to support
calls      the words that the tables are made of
load, health, settings     tables: which call or field tells which metric
integrals  counters of the agent's own: samples summed over time
gpu        the source that asks by those tables
activity   SMs and pipes (GPM)          nvlink     links
mig        MIG devices                  processes  who uses a GPU, virtual GPUs
events     what the driver reports      devices    GPUs the driver does not have
"""
