"""What a measured function consists of."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

THREADS = 2  # of the functions that use several


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    size_related: bool
    make: Callable[[random.Random], bytes]  # draws the body of a request
    run: Callable[[bytes], int]  # the function; its answer tells that it did its work


def log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def log_uniform_int(rng: random.Random, least: int, most: int) -> int:
    return round(log_uniform(rng, least, most))
