"""The site of the docs: its pages, its reference and the checks of `make docs`. Zensical itself is not needed here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import build_docs  # noqa: E402
import docs_reference  # noqa: E402

NAV = set(re.findall(r"[\w/-]+\.md\b", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]))
GENERATED = {f"reference/{page}.md" for page in [*docs_reference.PARTS, "index", "http"]}


def test_every_page_has_a_place_in_the_navigation():
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert pages | GENERATED | set(build_docs.OUTSIDE.values()) == NAV


def test_index_names_every_page():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\b", (ROOT / "docs/index.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


def test_every_adapter_is_named_wherever_adapters_are():
    packages = (ROOT / "src/backtrail/adapters").glob("*/__init__.py")
    adapters = {package.parent.name.replace("_", "-") for package in packages}
    assert {"langgraph", "openai", "a2a", "agent-framework"} <= adapters <= set(docs_reference.PARTS)
    for page in ("README.md", "CHANGELOG.md", "docs/index.md", "docs/compares.md", "docs/coming-from.md"):
        linked = set(re.findall(r"\]\((?:docs/)?([\w-]+)\.md\b", (ROOT / page).read_text()))
        assert adapters <= linked, page


def test_every_public_name_has_a_place_in_the_reference():
    assert docs_reference.Names().missing() == set()


def test_reference_has_signatures_docstrings_and_links(tmp_path):
    docs_reference.write(tmp_path)
    threads = (tmp_path / "thread.md").read_text()
    assert "## `Thread` {#Thread}" in threads
    assert "### `Thread.save` {#Thread.save}" in threads
    assert "    label: str | None = None,\n" in threads
    assert "Save a state as a new checkpoint" in threads
    assert "[`Conflict`](errors.md#Conflict)" in threads
    http = (tmp_path / "http.md").read_text()
    assert "{#thread_list}" in http
    assert "Only threads of this agent." in http


def test_pages_are_changed_for_the_site():
    page = (
        "[a](../examples/step.py) [b](docs/runs.md#in-doubt) [c](CHANGELOG.md) `[d](docs/x.md)`\n| `x\\|y` | z \\| |\n"
    )
    assert build_docs.for_site(page) == (
        "[a](examples/step.md) [b](runs.md#in-doubt) [c](changelog.md) `[d](docs/x.md)`\n| `x|y` | z \\| |\n"
    )


def test_commands_without_a_prompt_are_no_output():
    assert build_docs.for_site("```console\nmake docs\n```") == "```bash\nmake docs\n```"
    assert build_docs.for_site("```console\n$ make docs\ndone\n```") == "```console\n$ make docs\ndone\n```"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('<a href="b.html#there">b</a> <a href="https://example.org/">c</a> <img src="p.png">', []),
        ('<a href="c.html">c</a>', ["a.html: dead link c.html"]),
        ('<a href="b.html#away">b</a>', ["a.html: no such place b.html#away"]),
        ('<script src="https://example.org/x.js"></script>', ["a.html: loads https://example.org/x.js"]),
        ('<link rel="stylesheet" href="//example.org/x.css">', ["a.html: loads //example.org/x.css"]),
    ],
)
def test_dead_links_and_foreign_hosts_are_found(body, found, tmp_path):
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<h2 id="there">There</h2>')
    (tmp_path / "p.png").write_bytes(b"")
    assert build_docs.problems(tmp_path) == found


def test_styles_from_foreign_hosts_are_found(tmp_path):
    (tmp_path / "x.css").write_text("@font-face { src: url(https://example.org/f.woff2) } a { background: url(b.png) }")
    assert build_docs.problems(tmp_path) == ["x.css: loads https://example.org/f.woff2"]


# -- the release --------------------------------------------------------------------------------------


def test_files_of_a_release_name_the_same_version():
    versions = {
        "pyproject.toml": re.search(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text()),
        "CITATION.cff": re.search(r"(?m)^version: (.+)$", (ROOT / "CITATION.cff").read_text()),
    }
    assert len({found[1] for found in versions.values()}) == 1, versions


def test_installed_package_passes_its_smoke_test(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "smoke_test.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert " works on Python " in done.stdout


def test_publishing_needs_no_secret():
    workflow = (ROOT / ".github/workflows/publish.yml").read_text()
    assert "secrets." not in workflow
    assert "id-token: write" in workflow
