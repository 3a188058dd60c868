"""Checks laws from the command line: `python -m turnwise.conformance store my_package:make [--json]`."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import get_args

from turnwise.conformance.reports import Kind, report


def main() -> int:
    """Check the laws of one object, and print the report; return 1 if a law is broken."""
    parser = argparse.ArgumentParser(prog="python -m turnwise.conformance", description=__doc__)
    parser.add_argument("kind", choices=get_args(Kind))
    parser.add_argument("make", metavar="module:function", help="makes what is checked")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("laws", nargs="*", help="only these laws")
    options = parser.parse_intermixed_args()
    sys.path.insert(0, str(Path.cwd()))
    module, _, name = options.make.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(f"{options.make} cannot be imported ({error})")
    result = report(options.kind, make, options.laws, subject=options.make)
    sys.stdout.write(f"{result.json() if options.json else result}\n")
    return 0 if result.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
