"""FastAPI with streamed answers, reconnects, a Stop button, edits, marks, search, costs, quotas, and several workers.

    pip install 'turnwise[http]'
    python examples/fastapi_chat.py --port 8000 --workers 2    then open http://127.0.0.1:8000

Without an OPENAI_API_KEY, a simulated model answers. Any worker answers for any chat, since chats are in the store and
in Ray. `turnwise.http.create_app` is an app as well, to be mounted: `app.mount("/api", create_app(manager, auth=...))`.
"""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header
from fastapi.responses import HTMLResponse, StreamingResponse

from turnwise import AsyncExecutionHandle, AsyncSessionManager, OpenAIEngine, SessionConfig
from turnwise.http import answer_errors
from turnwise.stores import Quota
from turnwise.testing import LocalProvider

PAGE = """<!doctype html><meta charset=utf-8><title>Chat</title>
<form><input name=prompt placeholder="Ask something" autofocus><button>Send</button></form>
<button id=stop>Stop</button><pre id=answer style="white-space:pre-wrap"></pre>
<script>
let run, form = document.forms[0], answer = document.getElementById("answer");
form.onsubmit = async event => {
  event.preventDefault(); answer.textContent = "";
  run = (await (await fetch("/chats/page?" + new URLSearchParams(new FormData(form)), {method: "POST"})).json()).run;
  const events = new EventSource("/runs/" + run);  // comes back by itself with Last-Event-ID, if it is cut off
  events.addEventListener("text_delta", event => answer.textContent += JSON.parse(event.data).text);
  events.addEventListener("end", () => events.close());
}; document.getElementById("stop").onclick = () => fetch("/runs/" + run + "/stop", {method: "POST"});
</script>"""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Each worker has a manager of the same store. The engine's settings travel to the sessions' processes."""
    engine = OpenAIEngine(os.environ.get("OPENAI_MODEL", "gpt-5-mini"), base_url=os.environ.get("OPENAI_BASE_URL"))
    store, config = os.environ.get("CHATS", "sqlite:///chats.db"), SessionConfig(title="auto")
    async with AsyncSessionManager(store, engine=engine, config=config) as manager:
        await manager.set_quota(Quota(user_id="*", runs=500, per="day"))  # of each user
        app.state.manager = manager
        yield


app = FastAPI(lifespan=lifespan)
answer_errors(app)  # a chat that is busy is 409, a quota that is used up 429, a run of somebody else 404


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@app.post("/chats/{chat_id}")
async def ask(chat_id: str, prompt: str, at: int | None = None) -> dict[str, str | int]:
    """Start an answer, or answer the turn `at` anew. When this returns it is durable: it goes on whoever leaves."""
    chat = await open_chat(chat_id)
    run = await (chat.run(prompt) if at is None else chat.rerun(prompt, at=at))  # or pass if_busy=
    return {"run": run.run_id, "worker": os.getpid()}


@app.get("/chats/{chat_id}")
async def messages(chat_id: str) -> list[Any]:
    return list(await (await open_chat(chat_id)).messages())


@app.post("/chats/{chat_id}/marks")
async def mark(chat_id: str, message: str, thumb: int) -> Any:
    return await (await open_chat(chat_id)).mark(message, "thumb", thumb)


@app.get("/search")
async def search(text: str) -> list[Any]:
    return list(await app.state.manager.search("sarah", text))


@app.get("/costs")
async def costs() -> list[Any]:
    return list(await app.state.manager.usage(user_id="sarah", by=["day", "model"]))


@app.get("/runs/{run_id}")
async def follow(run_id: str, last_event_id: Annotated[int, Header()] = 0) -> StreamingResponse:
    """Stream the events of an answer, live or replayed, behind the one that the client has seen last."""
    run = await find(run_id)
    return StreamingResponse(frames(run, last_event_id), media_type="text/event-stream")


@app.post("/runs/{run_id}/stop")
async def stop(run_id: str) -> dict[str, str]:
    """Cancel an answer, whichever worker started it. What the user has seen stays in the history."""
    run = await find(run_id)
    await run.cancel("the user pressed Stop")
    return {"state": await run.status()}


async def open_chat(chat_id: str) -> Any:
    return await app.state.manager.open(chat_id, user_id="sarah")  # the user comes from your login, never from the body


async def find(run_id: str) -> Any:
    return await app.state.manager.execution(run_id, user_id="sarah")


async def frames(run: AsyncExecutionHandle, after: int | None) -> AsyncIterator[str]:
    while after is not None:
        page = await run.event_page(after, wait_s=15.0)
        for event in page:
            yield f"id: {event.seq}\nevent: {event.kind}\ndata: {event.model_dump_json(exclude_none=True)}\n\n"
        yield "" if page else ": still here\n\n"  # so that proxies keep a stream that is silent
        after = page.next
    yield "event: end\ndata: {}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat with FastAPI.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as stack:
        if not os.environ.get("OPENAI_API_KEY"):
            provider = stack.enter_context(LocalProvider(token_delay_s=0.1))
            os.environ |= {"OPENAI_BASE_URL": provider.base_url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            os.environ["CHATS"] = f"sqlite:///{stack.enter_context(TemporaryDirectory(prefix='turnwise-'))}/chats.db"
        import ray  # here, since tests of the app need none

        ray.init(log_to_driver=False, logging_level=40)  # which the workers join; one that runs already outlives them
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        uvicorn.run(
            f"{Path(__file__).stem}:app",
            app_dir=str(Path(__file__).parent),
            **vars(options),
            timeout_worker_healthcheck=60,  # workers load for some seconds, in which they answer no health check
            timeout_graceful_shutdown=3,  # streams that are open do not end by themselves
        )


if __name__ == "__main__":
    main()
