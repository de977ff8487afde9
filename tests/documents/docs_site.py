"""``python -m tests.documents.docs_site``: the docs as a site; code that a page links to is a page, too."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests import ROOT

CONFIG = ROOT / "docs/site/zensical.toml"
FIRST = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
PICTURES = (".png", ".svg")
_CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r'(\]\(|(?:href|src|srcset)=")(?!\w+:)([^)\s"#]+)')


def main() -> int:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports/docs", help="the folder of the site")
    return build(parser.parse_args().output)


def build(output: Path, instead: Mapping[str, str] | None = None) -> int:
    """Write the site into a folder and return 0, or nothing and what zensical returned: 1 for a broken link.

    ``instead`` has other text for pages, by name.
    """
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder, "pages"), instead or {})
        shutil.copy(CONFIG, folder)
        line = [sys.executable, "-m", "zensical", "build", "--strict"]
        plain = {**os.environ, "NO_COLOR": "1"}
        status = subprocess.run(line, cwd=folder, env=plain, check=False).returncode
        if status == 0:
            shutil.copytree(Path(folder, "site"), output, dirs_exist_ok=True)
    return status


def stage(folder: Path, instead: Mapping[str, str]) -> None:
    """Write all pages, and what they link to, as they lie in the project."""
    waiting = list(FIRST)
    seen = set(waiting)
    while waiting:
        origin = waiting.pop()
        path = folder / _page(origin)
        path.parent.mkdir(parents=True, exist_ok=True)
        if origin.suffix in PICTURES:
            shutil.copy(origin, path)
        elif origin.suffix != ".md":
            path.write_text(_shown(origin), "utf-8")
        else:
            text = instead.get(origin.relative_to(ROOT).as_posix()) or origin.read_text("utf-8")
            prose = (parts := _CODE.split(text))[::2]  # between them, code
            linked = {_target(origin, name) for part in prose for _, name in _LINK.findall(part)}
            waiting += [each for each in linked - seen if each.exists()]
            seen |= linked
            parts[::2] = [_LINK.sub(partial(_to_page, origin), part) for part in prose]
            path.write_text("".join(parts), "utf-8")


def _target(origin: Path, name: str) -> Path:
    return Path(os.path.normpath(origin.parent / name))


def _page(origin: Path) -> Path:
    """Where the page of a file or folder is, relative to the first. No folder of the site begins with a dot."""
    if origin.is_dir():
        readme = origin / "README.md"
        page = readme if readme.exists() else origin / "index.md"
    else:
        page = origin if origin.suffix in (".md", *PICTURES) else origin.with_name(f"{origin.name}.md")
    return Path(*(part.lstrip(".") for part in page.relative_to(ROOT).parts))


def _to_page(origin: Path, link: re.Match[str]) -> str:
    """The link to the page of what is linked to, also if it is not there: zensical finds that."""
    return link[1] + os.path.relpath(_page(_target(origin, link[2])), _page(origin).parent)


def _shown(origin: Path) -> str:
    """A page of a file's text, or of the names in a folder."""
    if origin.is_dir():
        names = sorted(path.name for path in origin.iterdir() if not path.name.startswith(("_", ".")))
        text = "\n".join(names)
    else:
        text = origin.read_text("utf-8")
    kind = "python" if origin.suffix == ".py" else "text"
    return f"---\nsearch:\n  exclude: true\n---\n\n# {origin.name}\n\n~~~~ {kind}\n{text}\n~~~~\n"


if __name__ == "__main__":
    sys.exit(main())
