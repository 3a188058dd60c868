"""Connects this process to Ray, and starts Ray if none is running."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import ray
from ray.exceptions import RayError

from turnwise.errors import ConfigError
from turnwise.memory.stores.sharing import RayId

_log = logging.getLogger(__name__)

_lock = threading.Lock()


def connect(*, logs: bool = True) -> None:
    """Connect this process to a running Ray, or start one that ends with this process. Takes seconds.

    Args:
        logs: whether this process prints what sessions' processes print; Ray's log files have it in any case.

    Raises:
        ConfigError: Ray cannot be joined or started.
    """
    with _lock:
        if ray.is_initialized():
            return
        with interruptible():
            if threading.current_thread() is threading.main_thread():
                _init(logs)
            else:
                _on_a_thread_that_stays(partial(_init, logs))


def this_ray() -> RayId:
    """Return the id of the Ray to which this process is connected."""
    context = ray.get_runtime_context()
    return RayId(context.gcs_address, context.get_session_name())


@contextmanager
def interruptible() -> Iterator[None]:
    """Have processes that are started in this block handle SIGINT, even if this process ignores it.

    A process that was started by `&` in a script, or by nohup, ignores SIGINT, and so would Ray's workers: `ray.cancel`
    could not interrupt tasks. Works on the main thread only; on other threads it logs a warning and does nothing.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
    elif threading.current_thread() is not threading.main_thread():
        _log.warning(
            "this process ignores SIGINT, and so will the Ray that it starts: tools that are Ray tasks cannot be"
            " cancelled; open the manager, or call ray.init(), on the main thread, or connect to a cluster"
        )
        yield
    else:
        # A handler, unlike SIG_IGN, is not inherited; this one ignores the signal all the same.
        signal.signal(signal.SIGINT, lambda *_: None)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _init(logs: bool) -> None:
    try:
        context = ray.init(logging_level=logging.WARNING, log_to_driver=logs)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        address = os.environ.get("RAY_ADDRESS")
        why = f"no Ray could be joined or started ({type(error).__name__}: {error}): correct or unset the variable"
        raise ConfigError("RAY_ADDRESS", address, why) from error
    session = str(getattr(context, "address_info", {}).get("session_dir"))
    if session.endswith(f"_{os.getpid()}"):  # it has the id of the process that started it
        _log.info(
            "started a Ray that ends with this process, together with the runs of its sessions;"
            " runs outlive this process in a Ray that was started before, by `ray start --head`"
        )


def _on_a_thread_that_stays(work: Callable[[], None]) -> None:
    """Call `work` on a thread that lives as long as the process: Linux ends a Ray with the thread that started it."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            done.set_exception(error)
        else:
            done.set_result(None)
            threading.Event().wait()

    threading.Thread(target=run, name="turnwise-ray", daemon=True).start()
    done.result()
