"""`python -m turnwise` is the command `turnwise`."""

from turnwise.cli.commands import app

if __name__ == "__main__":
    app(prog_name="turnwise")
