"""GPUs, through NVML. All sources here run on the one thread of the NVIDIA driver.

call_plan       building blocks of the tables, plans of calls for one device, and unsupported calls
value_tables, health    tables: metric of each call or field
column_history  integrals of samples over time; changes of settings
gpu_settings    modes as facts with a hash
gpu_devices     sources that read those tables for GPUs and MIG devices; state of every GPU on the PCI bus
activity        SMs and pipes (GPM), burst sampling      nvlink  links
processes       processes and virtual GPUs of a GPU, sharing mode
pcie            PCIe paths and expected links            events  events of the driver

The identities of GPUs and MIG devices are in `railscope_agent.gpus.inventory`.
"""
