"""Builds the site of the docs in build/site, without a network: `make docs`.

The pages of docs/ are written for a code host, too. So they are copied to build/docs first, and changed there: links
that leave docs/ get pages of their own (the examples, the changelog), and the reference is written from the docstrings
and from the OpenAPI document. Then Zensical builds the site, and every link of the result is checked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import docs_reference  # noqa: E402 - beside this file

PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages from the root of the project."""
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_FENCED = re.compile(r"(?ms)(^```.*?^```$)")
_CODE = re.compile(r"(`[^`\n]+`)")


# -- pages --------------------------------------------------------------------------------------------------------


def stage() -> None:
    """Write all pages of the site to build/docs."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name, page in OUTSIDE.items():
        shutil.copy(ROOT / name, PAGES / page)
    (PAGES / "examples").mkdir()
    for example in sorted((ROOT / "examples").glob("*.py")):
        text = f"# {example.name}\n\n```python\n{example.read_text().rstrip()}\n```\n"
        (PAGES / "examples" / f"{example.stem}.md").write_text(text)
    for page in PAGES.glob("*.md"):
        page.write_text(for_site(page.read_text()))
    docs_reference.write(PAGES / "reference")


def for_site(text: str) -> str:
    """Return the text of a page with the links and tables that the site needs."""
    parts = _FENCED.split(text)
    return "".join(_block(part) if part.startswith("```") else _prose(part) for part in parts)


def _block(text: str) -> str:
    """Name commands without a prompt "bash": as "console", they would be shown as output."""
    has_prompt = re.search(r"(?m)^\$ ", text) is not None
    return text if has_prompt else text.replace("```console\n", "```bash\n", 1)


def _prose(text: str) -> str:
    lines = [_row(line) if line.startswith("|") else line for line in text.split("\n")]
    return "".join(
        part if part.startswith("`") else _LINK.sub(lambda link: target(link[0]), part)
        for part in _CODE.split("\n".join(lines))
    )


def _row(line: str) -> str:
    r"""Write `a\|b` in code of a table as `a|b`: code hosts need the backslash, Python's Markdown shows it."""
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)


def target(link: str) -> str:
    """Return the link on the site for a link of a page in docs/ or in the root."""
    name, hash_, anchor = link.partition("#")
    place = name.removeprefix("../").removeprefix("docs/")
    if place in OUTSIDE:
        return OUTSIDE[place] + hash_ + anchor
    if place.startswith("examples/") and place.endswith(".py"):
        return place.removesuffix(".py") + ".md"
    return place + hash_ + anchor if name.startswith("docs/") else link


# -- checks -------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The ids and links of a page, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag names."""
        given = dict(attrs)
        self.ids.update(each for each in (given.get("id"), given.get("name")) if each)
        self.links.extend(each for each in (given.get("href"), given.get("src")) if each)
        loads = given.get("src") if tag != "link" else given.get("href")
        is_hint = tag == "link" and given.get("rel") in ("canonical", "prev", "next")
        if loads and not is_hint:
            self.loads.append(loads)


def problems(site: Path) -> list[str]:
    """Return the dead links of a site, and what its pages load from other hosts."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: loads {each}" for each in page.loads if urlsplit(each).netloc]
        if path.name == "404.html":
            continue  # its links begin at the site's address
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file():
                found.append(f"{name}: dead link {link}")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].ids:
                found.append(f"{name}: no such place {link}")
    for style in sorted(site.rglob("*.css")):
        found += [
            f"{style.name}: loads {each}"
            for each in re.findall(r"url\(\s*[\"']?((?:https?:)?//[^)]+)", style.read_text())
        ]
    return found


def not_in_nav() -> list[str]:
    """Return the pages that the navigation does not name; examples and pictures need no entry."""
    text = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/-]+\.md\b", text))
    return sorted(
        name
        for page in PAGES.rglob("*.md")
        if (name := str(page.relative_to(PAGES))) not in named and "examples/" not in name
    )


def main() -> int:
    """Build the site; fail at the first warning, dead link or foreign host."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--clean",
        "--strict",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    built = subprocess.run(command, check=False, cwd=ROOT)  # noqa: S603 - our own arguments
    if built.returncode:
        return built.returncode
    found = [*(f"{page}: not in the nav of mkdocs.yml" for page in not_in_nav()), *problems(SITE)]
    print("\n".join(found) or f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}, no dead links")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
