"""How long products with compressed weights take, about: what the seeds are put in order by before anything is measured.

A multiprocessor reads its records and decodes them at the same time; the slower of the two counts, and a part of the other, as warps
cannot always do the one while they wait for the other. Constants are an H200's (reads and rates of the scratch kernels that this folder
began with) or counted in compiled code.
"""

from __future__ import annotations

from kernelwright.families.family import DeviceFacts

BANDWIDTH = 4.2e6 / 132
"""Bytes a microsecond, of one multiprocessor while all read."""
IN_FLIGHT = 40e3
"""Bytes that a multiprocessor must have asked for to read so fast."""
CLOCK = 1700.0
"""Cycles a microsecond."""
ISSUE = 3.0
"""Instructions a cycle that its four schedulers reach, of 4; and a warp by itself:"""
ISSUE_OF_A_WARP = 0.17
L2_BYTES = 64.0
"""Bytes a cycle that a multiprocessor gets of what all read, X."""
OVERLAP = 0.3
"""Of the shorter of reading and decoding that is seen."""
START, CLUSTER, KERNEL = 3.0, 1.0, 1.5
"""Microseconds: until the first records are there; meeting in a cluster; another kernel behind, launched dependently."""


def streamed(records: float, record_bytes: float, instructions: float, warps: int, slots: int) -> float:
    """Microseconds of one multiprocessor for so many records; its warps have rings of `slots`, `instructions` are a warp's for a record."""
    reading = records * record_bytes / (BANDWIDTH * min(1.0, warps * slots * record_bytes / IN_FLIGHT))
    decoding = records * instructions / (CLOCK * min(ISSUE, warps * ISSUE_OF_A_WARP))
    return max(reading, decoding) + OVERLAP * min(reading, decoding)


def shared(bytes_: float) -> float:
    """Microseconds until a multiprocessor has read its part of X."""
    return bytes_ / (L2_BYTES * CLOCK)


def unpacked(weights: int, bytes_per_weight: float, device: DeviceFacts) -> float:
    """Of a weight made dense."""
    return START + weights * (bytes_per_weight + 2) / (BANDWIDTH * device.sms)
