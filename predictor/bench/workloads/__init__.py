"""The ten functions of the paper's Table 1 (LIBRA, HPDC '23), written anew.

The demand of five follows the size of their input. That of the other five follows what is in it.
Each imports what it needs when it is called, so that a container holds no other function's libraries.
"""

from bench.workloads import related, unrelated
from bench.workloads.workload import Workload

WORKLOADS: dict[str, Workload] = {w.name: w for w in (*related.WORKLOADS, *unrelated.WORKLOADS)}

__all__ = ["WORKLOADS", "Workload"]
