"""Describes the machine of a measurement."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("xgboost-cpu", "scikit-learn", "numpy", "kserve", "pillow", "scipy")


def described() -> dict[str, str | int | float]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cores": os.cpu_count() or 0,
        "cpu": model,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
        "load_at_start": round(os.getloadavg()[0], 2),
    }
