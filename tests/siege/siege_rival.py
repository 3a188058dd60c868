"""A program with its own Ray, which opens the attacked store.

    python siege_rival.py URL NAMESPACE LEAKS USER CHAT TOKEN

Prints one line of JSON: whether it was refused, and its acknowledged prompts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import ray
from siege_engine import SiegeEngine

from turnwise import ConfigError, Packed, SessionManager, TurnwiseError


def main(arguments: Sequence[str]) -> dict[str, object]:
    url, namespace, leaks, user, chat, token = arguments
    done: dict[str, object] = {"refused": "", "run_id": None}
    try:
        ray.init("local", num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    except Exception as error:  # noqa: BLE001 - Ray raises it bare, on a machine that has no time for one more
        return done | {"error": f"that did not start: {type(error).__name__}"}
    settings: dict[str, Any] = {"engine": SiegeEngine(leaks), "namespace": namespace}
    try:
        with SessionManager(url, placement=Packed(hosts=1), **settings) as manager:
            session = manager.open(chat, user_id=user)
            session.latest()
            handle = session.run(f"{token} say", if_busy="enqueue", idempotency_key=token)
            done["run_id"] = handle.run_id
            handle.wait(20.0)
    except ConfigError as error:
        done["refused"] = str(error)
        with SessionManager(url, read_only=True, **settings) as manager:
            done["read"] = len(manager.list(user_id=user))
    except TurnwiseError as error:
        done["error"] = type(error).__name__
    finally:
        ray.shutdown()
    return done


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
