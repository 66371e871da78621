"""Clocks, power, temperature and throttling through NVML, where nvidia-ml-py is installed and the driver answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Nvml:
    """One GPU's sensors. Every reading that the machine does not give is left out."""

    def __init__(self, pynvml: Any, handle: Any):
        self._nvml, self._handle = pynvml, handle

    @classmethod
    def open(cls, pci_bus_id: str) -> Nvml | None:
        """None without the library or the driver. The bus address finds the GPU whatever CUDA_VISIBLE_DEVICES hides."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id))
        except pynvml.NVMLError:
            return None

    def _read(self, readings: dict[str, Callable[[], float]]) -> dict[str, float]:
        found = {}
        for name, read in readings.items():
            try:
                found[name] = float(read())
            except self._nvml.NVMLError:
                continue
        return found

    def sensors(self) -> dict[str, float]:
        """Now: `SM MHz`, `memory MHz`, `power W`, `temperature C`, `utilization %`; `thermal throttle` and `power throttle` are 0 or 1."""
        n, h = self._nvml, self._handle
        found = self._read(
            {
                "SM MHz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
                "memory MHz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
                "power W": lambda: n.nvmlDeviceGetPowerUsage(h) / 1000,
                "temperature C": lambda: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
                "utilization %": lambda: n.nvmlDeviceGetUtilizationRates(h).gpu,
                "reasons": lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
            }
        )
        if "reasons" in found:
            reasons = int(found.pop("reasons"))
            thermal = n.nvmlClocksThrottleReasonSwThermalSlowdown | n.nvmlClocksThrottleReasonHwThermalSlowdown
            power = n.nvmlClocksThrottleReasonSwPowerCap | n.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
            found["thermal throttle"] = float(bool(reasons & thermal))
            found["power throttle"] = float(bool(reasons & power))
        return found

    def limits(self) -> dict[str, float]:
        """What the card may do at most: `max SM MHz`, `max memory MHz`, `power limit W`, `memory bus bits`."""
        n, h = self._nvml, self._handle
        return self._read(
            {
                "max SM MHz": lambda: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
                "max memory MHz": lambda: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM),
                "power limit W": lambda: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
                "memory bus bits": lambda: n.nvmlDeviceGetMemoryBusWidth(h),
            }
        )

    def driver_version(self) -> str:
        try:
            text = self._nvml.nvmlSystemGetDriverVersion()
        except self._nvml.NVMLError:
            return ""
        return text.decode() if isinstance(text, bytes) else str(text)
