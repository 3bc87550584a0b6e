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
from support.export.short_verification import shorten_verification

from voxport.export.__main__ import main as export

PHONE, DESKTOP = 390, 1280  # pixels
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
    results: JSON.parse(page.querySelector("#results").textContent),
    components: [...page.querySelectorAll(".components tr")].map(row => row.cells[0].innerText)};
  document.body.replaceChildren(JSON.stringify(found));
}, 3000);
</script></body>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        assert "CI" not in os.environ, "chromium is missing; .ci/run installs it"
        pytest.skip("needs chromium, to draw the page")
    return found


@pytest.fixture(scope="module", params=["voxtral_tts", "voxtral_realtime"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The bundle of a family, and its page."""
    bundles = request.getfixturevalue("bundles" if request.param == "voxtral_tts" else "realtime_bundles")
    folder = tmp_path_factory.mktemp("page")
    bundle = Path(shutil.copytree(bundles / "onnx", folder / "bundle"))
    page = folder / "report.html"
    with shorten_verification():
        assert export(["verify", str(bundle), "--steps", "20", "--report", str(page)]) == 0
    return bundle, page


def measured(browser: str, page: str, width: int, folder: Path) -> dict[str, Any]:
    (folder / "frame.html").write_text(MEASURE % (width, html.escape(page)), encoding="utf-8")
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Content Security Policy" not in done.stderr and "Uncaught" not in done.stderr
    found: dict[str, Any] = json.loads(
        html.unescape(done.stdout.partition("<body>")[2].partition("</body>")[0])
    )
    return found


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_everything_is_drawn_within_the_width(
    browser: str, made: tuple[Path, Path], tmp_path: Path, width: int
) -> None:
    bundle, page = made
    found = measured(browser, page.read_text(encoding="utf-8"), width, tmp_path)
    assert found["width"] <= width
    labels = [svg["label"].partition(":")[0] for svg in found["sizes"]]
    assert labels[:4] == [
        "Lowering error of each output against its bar",
        "Lowering error of each decode step",
        "Relative error of each quantised weight",
        "Size of each graph",
    ]
    assert all(svg["width"] > 250 and svg["height"] > 80 and svg["marks"] > 10 for svg in found["sizes"])
    is_speech = labels[4:] == ["Spectrogram"] * 3
    assert is_speech == (len(found["sounds"]) == 3) and all(0 < seconds < 10 for seconds in found["sounds"])
    assert found["verdict"].startswith("passed: ") and "\nClosest: " in found["verdict"]
    stored = json.loads((bundle / "verify.json").read_text())
    assert found["results"] == stored
    assert set(found["components"][1:]) == {row["component"] for row in stored["rows"] if "component" in row}


def test_a_page_that_is_too_wide_or_loads_something_is_found(
    browser: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    """The faults that the test above is for, planted in the page."""
    text = made[1].read_text(encoding="utf-8")
    wide = text.replace("<h1>", '<div style="width: 900px">wide</div><h1>', 1)
    assert measured(browser, wide, PHONE, tmp_path)["width"] == pytest.approx(900, abs=40)
    with pytest.raises(AssertionError):
        measured(
            browser, text.replace("<h1>", '<img src="http://127.0.0.1:9/a.png"><h1>', 1), PHONE, tmp_path
        )


def test_the_page_names_no_address_outside(made: tuple[Path, Path]) -> None:
    text = made[1].read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text)


def test_a_report_of_several_targets_or_without_verification_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = str(tmp_path / "a.html")
    for more in (["--target", "onnx,coreml"], ["--target", "onnx", "--no-verify"]):
        assert export([*more, "--report", page, "--out", str(tmp_path / "out")]) == 2
        assert "--report is for one target" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
