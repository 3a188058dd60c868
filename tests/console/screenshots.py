"""Makes the pictures of the console in docs/images: `make screenshots`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/console"), str(ROOT / "tests/support")]

os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH")])])

import ray  # noqa: E402 - it and its processes find the modules below by these paths
from console_engine import TALKS, DemoEngine  # noqa: E402
from console_server import NAMESPACE, Console  # noqa: E402
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402

from processes.programs import path_to  # noqa: E402
from turnwise.actors.client.blocking.manager import SessionManager  # noqa: E402
from turnwise.actors.hosting.placement import Packed  # noqa: E402
from turnwise.memory.longterm.lexical import LexicalMemory  # noqa: E402

IMAGES = ROOT / "docs/images"
LAPTOP: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "color_scheme": "dark"}


def fill(manager: SessionManager) -> None:
    for n, (title, (user, agent, prompts)) in enumerate(TALKS.items()):
        session = manager.open(f"talk-{n}", user_id=user, agent=agent, title=title)
        for prompt in prompts:
            execution = session.run(prompt)
            if "refund" not in prompt:
                execution.wait()
    memory = manager.get("talk-1", user_id="ann").memory
    memory.save("Ann has moved to Lisbon.", topic="home")
    memory.pin(memory.save("Ann wants short answers."))


def take(page: Page, name: str) -> None:
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / f"console-{name}.png")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    address = ray.get_runtime_context().gcs_address
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        memory = f"sqlite:///{folder}/memory.db"
        with Console(Path(folder), address, memory=memory, engine="DemoEngine") as console:
            settings = {"engine": DemoEngine(), "placement": Packed(hosts=1), "memory": [LexicalMemory(memory)]}
            manager = SessionManager(console.store, namespace=NAMESPACE, **settings)  # type: ignore[arg-type]
            fill(manager)
            browser = playwright.chromium.launch(executable_path=path_to("chromium"), args=["--no-sandbox"])
            laptop, phone = (browser.new_context(**screen).new_page() for screen in (LAPTOP, PHONE))
            shoot(console, laptop, phone)
            browser.close()
            manager.close()
    ray.shutdown()


def shoot(console: Console, laptop: Page, phone: Page) -> None:
    laptop.goto(f"{console.url}/")
    expect(laptop.get_by_text("waits for a person").first).to_be_visible(timeout=20_000)
    take(laptop, "sessions")
    laptop.goto(f"{console.url}/usage")
    expect(laptop.get_by_role("region", name="Sessions")).to_be_visible()
    take(laptop, "usage")
    for page, name in ((laptop, "conversation"), (phone, "phone")):
        page.goto(f"{console.url}/session?id=talk-1&user=ann")
        expect(page.get_by_role("button", name="Approve")).to_be_visible(timeout=20_000)
        if page is laptop:
            page.get_by_role("button", name="Inspect").first.click()
            page.get_by_role("button", name="Steps").click()
            expect(page.get_by_text("Completed", exact=True)).to_be_visible()
        take(page, name)


if __name__ == "__main__":
    main()
