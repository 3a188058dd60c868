"""Builds the docs site and checks its links: `make docs`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import nicegui

ROOT = Path(__file__).parents[3]
MERMAID = Path(nicegui.__file__).parent / "elements/mermaid/dist"
"""The console's dependency has it as modules, so no script comes from elsewhere."""


class BrokenSiteError(Exception):
    """The site could not be built, or has links that lead nowhere."""


def build(root: Path = ROOT) -> Path:
    """Build the site of the docs in this folder; return where it is.

    Raises:
        BrokenSiteError: there were warnings, or there are broken links.
    """
    site = root / "site"
    shutil.rmtree(site, ignore_errors=True)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=root,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = re.sub(r"\x1b\[[0-9;]*m", "", built.stdout)
    if built.returncode or "griffe: " in output or "Warning" in output:
        raise BrokenSiteError(output)
    shutil.copytree(MERMAID, site / "assets/mermaid", ignore=shutil.ignore_patterns("*.map"))
    copy_linked_files(root, site)
    if broken := list(broken_links(site)):
        raise BrokenSiteError("links that lead nowhere:\n" + "\n".join(broken))
    return site


def copy_linked_files(root: Path, site: Path) -> None:
    """Copy the files outside of docs/ that pages link to, as texts, and let the links lead to the copies."""
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        folder = root / "docs" / page.relative_to(site).parent

        def copied(match: re.Match[str], page: Path = page, folder: Path = folder) -> str:
            linked = os.path.relpath(folder / unquote(match[1]), root)
            if linked.startswith("docs/") or not (ROOT / linked).is_file():
                return match[0]
            target = site / "files" / f"{linked}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / linked, target)
            return f'href="{os.path.relpath(target, page.parent)}"'

        page.write_text(re.sub(r'href="(\.\./[^"#?]*)"', copied, text), encoding="utf-8")


class Links(HTMLParser):
    """What a page links to or loads, and the places that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {str(values[name]) for name in ("id", "name") if values.get(name)}
        attribute = "href" if tag in ("a", "link") else "src"
        if (link := values.get(attribute)) is not None:
            self.links.append(link)


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links of all pages that lead to no file or no place of the site, and what is loaded from elsewhere."""
    pages = {page: Links(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))}
    for page, document in pages.items():
        page_path = page.relative_to(site).as_posix()
        if page_path == "404.html":
            continue  # its links begin at the root of the server
        for link in document.links:
            target = urlsplit(urljoin(f"http://site/{page_path}", link))
            if target.hostname != "site":
                continue
            file = site / unquote(target.path).lstrip("/")
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                yield f"{page_path}: {link} is not there"
            elif target.fragment and file in pages and unquote(target.fragment) not in pages[file].ids:
                yield f"{page_path}: {link}: no such place in {file.relative_to(site)}"


if __name__ == "__main__":
    try:
        print(f"{build()}/index.html")
    except BrokenSiteError as error:
        sys.exit(f"error: {error}")
