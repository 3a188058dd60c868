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

from turnwise.actors.cluster import ray_address
from turnwise.errors import ConfigError
from turnwise.memory.stores.store_owner import StoreOwner

_log = logging.getLogger(__name__)

_lock = threading.Lock()


def connect(*, logs: bool = True) -> None:
    """Connect this process to a running Ray, or start one that ends with this process, which takes seconds and is said.

    A Ray that is started so has no dashboard: call `ray.init(include_dashboard=True)` first, or run `ray start --head`.

    Args:
        logs: whether this process prints what sessions' processes print, and Ray's warnings; Ray's log files have the
            former in any case.

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


def will_start() -> bool:
    """Return whether `connect` would start a Ray of this process."""
    return not ray.is_initialized() and ray_address.starts_own_ray()


def this_ray() -> StoreOwner:
    """Return the id of the Ray to which this process is connected."""
    context = ray.get_runtime_context()
    return StoreOwner(context.gcs_address, context.get_session_name())


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
    ray_address.check_ray_address()
    init = partial(ray.init, logging_level=logging.WARNING if logs else logging.ERROR, log_to_driver=logs)
    if ray_address.starts_own_ray():
        _log.warning("starting Ray, which takes some seconds; `ray start --head` keeps one running for all programs")
        # Sessions need no dashboard, which takes processes and seconds.
        init = partial(init, include_dashboard=False, _system_config={"preload_python_modules": ["turnwise.preload"]})
    try:
        with _without_notices():
            try:
                context = init()
            except Exception as error:  # Ray raises no class of its own
                if not _is_late(error):
                    raise
                _log.warning("Ray did not start within 30 s, so it is started once more: is this machine too busy?")
                context = init()
    except Exception as error:
        if not isinstance(error, ConnectionError | RuntimeError | ValueError | RayError) and not _is_late(error):
            raise
        address = os.environ.get("RAY_ADDRESS")
        reason = f"no Ray could be joined or started ({type(error).__name__}: {error}): {_remedy(error)}"
        raise ConfigError("RAY_ADDRESS", address, reason) from error
    session = str(getattr(context, "address_info", {}).get("session_dir"))
    if session.endswith(f"_{os.getpid()}"):  # it has the id of the process that started it
        _log.info(
            "started a Ray that ends with this process, together with the runs of its sessions;"
            " runs outlive this process in a Ray that was started before, by `ray start --head`"
        )


def _is_late(error: Exception) -> bool:
    """Return whether a Ray of this process did not start in time. Its processes, if any, end with this process."""
    return "timed out during startup" in str(error)


def _remedy(error: Exception) -> str:
    if _is_late(error):
        return "try again when this machine is less busy, or run `ray start --head` before"
    cause: BaseException | None = error
    while cause is not None:
        if "AuthenticationError" in f"{type(cause).__name__} {cause}":  # Ray names it in a text only
            return (
                "it asks for its token, so set RAY_AUTH_MODE=token and, unless the file ~/.ray/auth_token has the"
                " token, RAY_AUTH_TOKEN"
            )
        cause = cause.__cause__ or cause.__context__
    return "correct or unset the variable"


@contextmanager
def _without_notices() -> Iterator[None]:
    """Keep Ray from saying how it authenticates its own processes, unless it cannot, and that it handles no SIGTERM.

    It handles none where it is connected on another thread, as by `AsyncSessionManager`; nothing here needs it.
    """
    authentication = logging.getLogger("ray._private.authentication.authentication_token_setup")
    worker, before = logging.getLogger("ray._private.worker"), authentication.level
    authentication.setLevel(logging.ERROR)
    worker.addFilter(_says_more)
    try:
        yield
    finally:
        authentication.setLevel(before)
        worker.removeFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("SIGTERM handler is not set")


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
