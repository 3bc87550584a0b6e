"""The page of charts in a browser: everything is drawn, nothing is loaded, and it fits a phone."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from voxport.export.__main__ import main as export

pytestmark = pytest.mark.slow
PHONE = 390  # pixels
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    *("--virtual-time-budget=10000", "--dump-dom"),
)
# Holds the page in a frame of the given width, and measures it. The page itself has no scripts.
MEASURE = """<!doctype html><body><iframe width="%d" height="800" srcdoc="%s"></iframe><script>
onload = () => setTimeout(() => {
  const page = document.querySelector("iframe").contentDocument;
  const sizes = [...page.querySelectorAll(".figure svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    const marks = svg.querySelectorAll("path, use, image").length;
    return {label: svg.getAttribute("aria-label"), width: box.width, height: box.height, marks};
  });
  const sounds = [...page.querySelectorAll("audio")].map(audio => audio.duration);
  const found = {sizes, sounds, width: page.scrollingElement.scrollWidth,
    verdict: page.querySelector(".verdict").innerText,
    results: JSON.parse(page.querySelector("#results").textContent)};
  document.body.replaceChildren(JSON.stringify(found));
}, 3000);
</script></body>"""


@pytest.fixture
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        assert "CI" not in os.environ, "chromium is missing; .ci/run installs it"
        pytest.skip("needs chromium, to draw the page")
    return found


def measured(browser: str, page: str, folder: Path) -> dict[str, Any]:
    (folder / "frame.html").write_text(MEASURE % (PHONE, html.escape(page)), encoding="utf-8")
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Content Security Policy" not in done.stderr and "Uncaught" not in done.stderr
    content = done.stdout.partition("<body>")[2].partition("</body>")[0]
    found: dict[str, Any] = json.loads(html.unescape(content))
    return found


@pytest.mark.parametrize("family", ["voxtral_tts", "voxtral_realtime"])
def test_the_page_is_drawn_within_the_width_of_a_phone_and_loads_nothing(
    browser: str, request: pytest.FixtureRequest, tmp_path: Path, short_verification: None, family: str
) -> None:
    """Speech has a spectrogram and a player for eager, the artifact and full precision."""
    is_speech = family == "voxtral_tts"
    bundles = request.getfixturevalue("bundles" if is_speech else "realtime_bundles")
    bundle, path = Path(shutil.copytree(bundles / "onnx", tmp_path / "bundle")), tmp_path / "report.html"
    assert export(["verify", str(bundle), "--steps", "20", "--report", str(path)]) == 0
    page = path.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page)
    found = measured(browser, page, tmp_path)
    assert found["width"] <= PHONE
    labels = [svg["label"].partition(":")[0] for svg in found["sizes"]]
    assert labels == [
        "Lowering error of each output against its bar",
        "Lowering error of each decode step",
        "Relative error of each quantised weight",
        *(["Spectrogram"] * 3 if is_speech else []),
    ]
    assert all(svg["width"] > 250 and svg["height"] > 80 and svg["marks"] > 10 for svg in found["sizes"])
    assert len(found["sounds"]) == 3 * is_speech and all(0 < seconds < 10 for seconds in found["sounds"])
    assert found["verdict"].startswith("passed: ") and "\nClosest: " in found["verdict"]
    assert found["results"] == json.loads((bundle / "verify.json").read_text())
