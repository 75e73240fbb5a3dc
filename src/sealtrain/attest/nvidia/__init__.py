"""NVIDIA accelerators: reports of GPUs and NVSwitches, their chains, sets and reference values."""
