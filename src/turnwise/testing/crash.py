"""`crash`: kills the current process, simulated or real."""

from __future__ import annotations

import asyncio
import os
import signal

from turnwise.errors import ConfigError
from turnwise.testing.process import Process


async def crash(*, for_real: bool = False) -> None:
    """Kill the simulated process that this is called in, if there is one; does not return.

    Args:
        for_real: without a simulated process, kill this operating system process by SIGKILL.

    Raises:
        ConfigError: there is no simulated process, and `for_real` is not set.
    """
    if process := Process.of():
        process.kill()
        await asyncio.Event().wait()
    if not for_real:
        raise ConfigError(
            "for_real", for_real, "there is no simulated process: use World, or set it to kill the real process"
        )
    os.kill(os.getpid(), signal.SIGKILL)
