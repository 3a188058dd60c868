"""Ends a process at a fault, as a crash would."""

from __future__ import annotations

import asyncio
import os
import signal

from turnwise.errors import ConfigError
from turnwise.testing.process import Process


async def crash(*, for_real: bool = False) -> None:
    """Kill the process that this is called in; does not return.

    Args:
        for_real: with SIGKILL, and all of this operating system process. Else only the simulated one.

    Raises:
        ConfigError: no process is simulated here, and `for_real` is not set.
    """
    if process := Process.of():
        process.kill()
        await asyncio.Event().wait()
    if not for_real:
        raise ConfigError("for_real", for_real, "no process is simulated here: set it to kill this one, or use World")
    os.kill(os.getpid(), signal.SIGKILL)
