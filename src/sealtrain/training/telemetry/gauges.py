"""Use of the machine while a run trains: processor, memory, accelerator, disk, network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SYSTEM_METRICS = (
    "cpu_percent",
    "memory_bytes",
    "memory_percent",
    "disk_read_bytes",
    "disk_write_bytes",
    "network_received_bytes",
    "network_sent_bytes",
    "gpu_utilization_percent",
    "gpu_memory_bytes",
)
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class SystemGauges:
    """Reads the gauges of the machine. Not thread-safe."""

    def __init__(self) -> None:
        import psutil

        self._psutil: Any = psutil
        self._self = psutil.Process()
        self._limit = _memory_limit(psutil.virtual_memory().total)
        self._self.cpu_percent()
        self._counted = self._totals()
        self._devices = _Devices()

    def read(self) -> dict[str, float]:
        """Values by name (``SYSTEM_METRICS``); unreadable ones are left out.

        ``cpu_percent`` is of one processor and since the last reading; memory is that of this
        program and its children; bytes on disk and network are the machine's since the start.
        """
        memory = self.memory()
        counted = self._totals()
        return {
            "cpu_percent": float(self._self.cpu_percent()),
            "memory_bytes": float(memory),
            "memory_percent": 100.0 * memory / self._limit,
            **{name: counted[name] - self._counted.get(name, 0.0) for name in counted},
            **self._devices.read(),
        }

    def memory(self) -> int:
        """Resident memory of this program and its children, in bytes."""
        total = 0
        try:
            family = (self._self, *self._self.children(recursive=True))
        except self._psutil.Error:  # a child ended during the listing
            family = (self._self,)
        for process in family:
            try:
                total += int(process.memory_info().rss)
            except self._psutil.Error:  # it has ended meanwhile
                continue
        return total

    @property
    def memory_percent(self) -> float:
        """Share of the memory that may be used, in percent."""
        return 100.0 * self.memory() / self._limit

    def _totals(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        disk = self._psutil.disk_io_counters()
        if disk is not None:
            totals["disk_read_bytes"] = float(disk.read_bytes)
            totals["disk_write_bytes"] = float(disk.write_bytes)
        network = self._psutil.net_io_counters()
        if network is not None:
            totals["network_received_bytes"] = float(network.bytes_recv)
            totals["network_sent_bytes"] = float(network.bytes_sent)
        return totals


class _Devices:
    """NVIDIA accelerators of the machine, through NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._found: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # without library, driver or permission there is nothing to read
            return
        self._nvml = pynvml
        self._found = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]

    def read(self) -> dict[str, float]:
        """Mean utilisation and the sum of memory in use."""
        if not self._found:
            return {}
        try:
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(device).gpu for device in self._found]
            used = [self._nvml.nvmlDeviceGetMemoryInfo(device).used for device in self._found]
        except self._nvml.NVMLError:
            return {}
        return {
            "gpu_utilization_percent": sum(rates) / len(rates),
            "gpu_memory_bytes": float(sum(used)),
        }


def _memory_limit(total: int) -> int:
    """The machine's memory, or less where a control group grants less."""
    try:
        granted = int(_CGROUP_LIMIT.read_text())
    except (OSError, ValueError):  # no control group, or "max"
        return total
    return min(total, granted)
