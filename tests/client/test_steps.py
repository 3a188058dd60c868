"""How requests are carried out for callers that block."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from turnwise.actors.client.requests import Portal


def test_a_wait_in_another_thread_is_answered_though_the_manager_is_closed() -> None:
    portal, began, goes_on = Portal(), threading.Event(), threading.Event()

    async def work() -> str:
        began.set()
        await asyncio.to_thread(goes_on.wait)
        return "done"

    threads = ThreadPoolExecutor(1)
    asked = threads.submit(lambda: portal.run(work()))
    assert began.wait(30)
    portal.close()
    goes_on.set()
    assert asked.result(30) == "done"
    threads.shutdown()
