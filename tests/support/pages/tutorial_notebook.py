"""The tutorial's pages as a notebook, `examples/tutorial/tutorial.ipynb`: `make tutorial` writes it.

A program becomes a cell that writes its file, and a command a cell that runs it. What only a terminal can do, such as
starting the nodes of a cluster, stays text.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / f"docs/tutorial/{name}.md" for name in ("chat", "agent", "memory", "service", "team", "cluster")]
NOTEBOOK = ROOT / "examples/tutorial/tutorial.ipynb"
SERVICE = "python step4_service.py"
START = """import socket
import subprocess
import sys
import time

service = subprocess.Popen([sys.executable, "step4_service.py"])
while socket.socket().connect_ex(("127.0.0.1", 8000)):  # until it listens
    time.sleep(0.1)
"""
STOP = """service.terminate()
service.wait()
"""


def program_of(page: Path) -> str:
    """Return the name of the file that a page says to save."""
    return str(re.findall(r"as `(step\w+\.py)`", page.read_text(encoding="utf-8"))[0])


def notebook() -> str:
    """Return the notebook as it is stored: without outputs."""
    cells = [cell for page in PAGES for cell in _cells(page)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _cells(page: Path) -> list[dict[str, Any]]:
    text = page.read_text(encoding="utf-8")
    parts = re.split(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    cells, is_saved = [_text(parts[0])], False
    for kind, block, following in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if kind.startswith("python") and not is_saved:
            cells.append(_code(f"%%writefile {program_of(page)}\n{block}"))
            is_saved = True
        elif kind == "python":
            cells.append(_code(block))
        elif kind == "console":
            cells += [_command(line.removeprefix("$ ")) for line in block.splitlines()]
        elif "$ " in block:
            cells.append(_text(f"```text\n{block}```"))
        if following.strip():
            cells.append(_text(following))
    return [*cells, _code(STOP)] if SERVICE in text else cells


def _command(command: str) -> dict[str, Any]:
    if command == SERVICE:
        return _code(START)
    return _code(f"%{command}" if command.startswith("pip ") else f"!{command}")


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": text.strip().splitlines(keepends=True),
    }


def _text(text: str) -> dict[str, Any]:
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)  # its links lead to other pages
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip().splitlines(keepends=True)}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
