"""The Chromium of this machine, which tests drive: they download none."""

import shutil


def chromium() -> str:
    """Return its path."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "there is no Chromium on this machine: run `make browser`"
    return found
