"""``python -m smg_fast.embedded.llamacpp``."""

from __future__ import annotations

import argparse
import logging
import sys

from smg_fast.embedded.llamacpp import add_arguments, options_from
from smg_fast.embedded.llamacpp.engine import run


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="llamacpp", description="llama.cpp as an engine, for TokenSpeed's wire.")
    add_arguments(parser)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return run(options_from(arguments))


if __name__ == "__main__":
    sys.exit(main())
