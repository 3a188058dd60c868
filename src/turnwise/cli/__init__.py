"""The command line: `turnwise`, or `python -m turnwise.cli`."""

from turnwise.cli.commands import app

__all__ = ["app"]
