"""``python -m smg_fast.embedded.simulator``."""

from __future__ import annotations

import argparse
import logging
import sys

from smg_fast.embedded.simulator import add_arguments, options_from, run


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="simulator", description="An engine without a model.")
    add_arguments(parser)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return run(options_from(arguments))


if __name__ == "__main__":
    sys.exit(main())
