"""python -m libra_predictor"""

import sys

from libra_predictor.settings import parse


def main() -> None:
    settings = parse(sys.argv[1:])
    # Imported after the options are parsed: a mistake in an option should not wait for KServe's import.
    from kserve import ModelRepository

    from libra_predictor.learner import Predictor
    from libra_predictor.server import serve
    from libra_predictor.store import end_process

    repository = ModelRepository()
    serve(settings, repository, Predictor(settings, repository))
    end_process()


if __name__ == "__main__":
    main()
