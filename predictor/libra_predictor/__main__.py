"""python -m libra_predictor"""

import sys

from libra_predictor.settings import parse


def main() -> None:
    settings = parse(sys.argv[1:])
    # After the options: it imports KServe, and a mistake in an option should not wait for that.
    from libra_predictor.server import serve

    serve(settings)


if __name__ == "__main__":
    main()
