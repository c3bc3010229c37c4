"""A predictor's learning side alone, as a process that a test can kill or pause."""

import asyncio
import logging
import signal
import sys

from kserve import ModelRepository

from libra_predictor.learner import Predictor
from libra_predictor.settings import parse
from libra_predictor.store import end_process


async def main(lease_seconds: float, options: list[str]) -> None:
    predictor = Predictor(parse(options), ModelRepository(), lease_seconds)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, predictor.stop)
    await predictor.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(float(sys.argv[1]), sys.argv[2:]))
    end_process()
