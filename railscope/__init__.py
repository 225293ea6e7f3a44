"""Railscope: GPU, PCIe, RoCE and tenant telemetry of a training cluster on one clock."""

__version__ = "0.2.0"
