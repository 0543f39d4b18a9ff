"""Accelerators by name: peak dense 16-bit FLOPs a second and memory. Facts, each with its source.

Peaks are for bf16 with fp32 accumulation and without sparsity; data sheets that print "with sparsity" are halved.
Memory is what the driver reports, not what the box says: an H200 of "141 GB" has 143,771 MiB.
Leaves to others: what share of a peak is reached (`cost.py`, MFU).
"""

import re
from dataclasses import dataclass

from taojin.core.errors import ConfigError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Device:
    name: str
    peak_flops: float
    """bf16 FLOPs a second, dense."""
    memory_bytes: int
    source: str


DEVICES: dict[str, Device] = {
    name: Device(name=name, peak_flops=teraflops * 1e12, memory_bytes=mebibytes * MIB, source=source)
    for name, teraflops, mebibytes, source in (
        ("A100", 312, 81_920, "NVIDIA A100 data sheet, SXM 80 GB"),
        ("A100-40GB", 312, 40_960, "NVIDIA A100 data sheet, SXM 40 GB"),
        ("A800", 312, 81_920, "NVIDIA A800 80 GB: the A100 with NVLink of 400 GB/s"),
        ("H100", 989.4, 81_559, "NVIDIA H100 data sheet, SXM: 1,979 with sparsity"),
        ("H100-PCIe", 756, 81_559, "NVIDIA H100 data sheet, PCIe: 1,513 with sparsity"),
        ("H800-PCIe", 756, 81_559, "NVIDIA H800 PCIe: the H100 PCIe with a slower link"),
        ("H800", 989.4, 81_559, "NVIDIA H800 SXM: the H100 with NVLink of 400 GB/s"),
        ("H200", 989.4, 143_771, "NVIDIA H200 data sheet, SXM: 1,979 with sparsity"),
        ("H20", 148, 97_871, "NVIDIA H20 data sheet, 96 GB: 148 dense"),
        ("B200", 2_250, 183_359, "NVIDIA B200 data sheet: 4.5 PFLOPs with sparsity"),
        ("L20", 119.5, 46_068, "NVIDIA L20 data sheet, 48 GB: 119.5 dense"),
        ("L40S", 362, 46_068, "NVIDIA L40S data sheet: 733 with sparsity, 362.05 dense"),
        ("4090", 165.2, 24_564, "NVIDIA Ada architecture paper 2.01: GeForce RTX 4090, fp32 accumulation"),
        ("3090", 71, 24_576, "NVIDIA Ampere GA102 architecture paper: GeForce RTX 3090, fp32 accumulation"),
        ("910B", 313, 65_536, "Huawei Ascend 910B3, 64 GB, of Atlas 800T A2; other steppings differ: 280 to 400"),
    )
}


# Words of a driver's name that make another, slower device of it: RTX 4090 D, RTX 4090 Laptop GPU, H100 NVL.
OTHERS = {"d", "laptop", "nvl", "ti", "super"}


def known_device(name: str) -> Device:
    """The device of this name: ours, or what a driver calls it (`NVIDIA H100 80GB HBM3`, `Ascend910B3`), in any case.

    Raises ConfigError that lists what is known.
    """
    plain = name.lower().replace("ascend", " ").replace("910b3", "910b")
    words = set(re.findall(r"[a-z0-9]+", plain))
    found = [device for device in DEVICES.values() if set(device.name.lower().split("-")) <= words]
    if not found or words & OTHERS:
        raise ConfigError(f"device {name!r} is not known; expected one of {', '.join(DEVICES)}")
    # H100-PCIe before H100: the name with more words says more.
    return max(found, key=lambda device: device.name.count("-"))
