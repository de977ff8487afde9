"""``python -m tests.report.take_pictures``: renew the pictures of the page in docs/pictures, of a mutant that sums.

It judges the mutant by two areas in the thread world, which takes minutes, or shows the run that is given::

    python -m tests.report.take_pictures [run.jsonl]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import FloatRect, sync_playwright

from harness.records.reader import read_run
from harness.report.page import render
from tests.browsing import chromium

ROOT = Path(__file__).resolve().parents[2]
#: Each picture, its theme, and with what of the page it begins.
PICTURES: tuple[tuple[str, Literal["light", "dark"], str], ...] = (
    ("page-light.png", "light", "body"),
    ("page-dark.png", "dark", "body"),
    ("page-failures.png", "light", "#failures"),
)
MUTANT = "tests.mutants.numbers.reductions:sums_for_averages"
#: No picture is taller, in pixels, so that what a document says beside it stays in view.
WIDTH, HEIGHT = 1200, 420


def main(record: Path | None) -> None:
    """Make the page of a run and take its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(render([read_run(record or _judged())]), encoding="utf-8")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            for name, theme, begin in PICTURES:
                tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)
                tab.goto(page.as_uri())
                y = tab.evaluate("(one) => document.querySelector(one).getBoundingClientRect().top", begin)
                area = FloatRect(x=0, y=y, width=WIDTH, height=HEIGHT)
                tab.screenshot(path=ROOT / "docs/pictures" / name, full_page=True, clip=area)
            browser.close()


def _judged() -> Path:
    record = ROOT / "reports/mutant.jsonl"
    record.parent.mkdir(exist_ok=True)
    command = ["-m", "pytest", "-q", "suites/training", "suites/gradients", "--world", "threads"]
    command += ["--implementation", MUTANT, "--record", str(record.relative_to(ROOT))]
    subprocess.run([sys.executable, *command], cwd=ROOT, stdout=sys.stderr)  # the mutant fails, as it must
    return record


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
