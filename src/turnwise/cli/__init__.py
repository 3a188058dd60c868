"""The command line: `turnwise`, or `python -m turnwise`.

`commands.py` puts the commands together; `common.py` has what they share: how they get a store, and how errors end;
`output.py` prints. Each command imports what it needs when it runs. Nothing here can do what the Python API cannot.
"""

from turnwise.cli.commands import app

__all__ = ["app"]
