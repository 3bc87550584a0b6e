"""The modules of `examples/web` and their page, in Node and in Chromium."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.commands import error_line
from support.paths import ROOT
from support.programs import need
from support.runners import (
    DONE,
    PAGE_FAMILIES,
    READY,
    TEXT,
    bundle_url,
    check_refused,
    check_vectors,
    run_script,
)
from support.serve.static_folder import served

from voxport.__main__ import main
from voxport.bundle.manifest import Bundle
from voxport.runtime.text.preparation import TextRules, prepare

EXAMPLE = ROOT / "examples" / "web"
MOST_LINES = 1085  # three families had 900; each has about 100 of its own, and Qwen3-ASR 135
WORDS = "Seven green bottles."  # what the embedded model hears of it
HEARD = "document.getElementById('status').textContent.includes('s of sound in')"
FAILED = "document.getElementById('error').textContent"
TEXTS = (
    "Seven green bottles are on the wall",
    "A line\nis broken. The next sentence is here  and has two blanks",
    "A heading of some words\n\nIts text. And more\n\nA title\n\n\nIt is longer than that, with a comma. End",
)
DIVIDE = """import {sentences} from "./speech.js";
console.log(JSON.stringify(JSON.parse(process.argv[1]).map(text => sentences(text, +process.argv[2]))));
"""
COMPUTE = """async path => {
  const ort = await import("./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs");
  const {open} = await import("./runner.js"), {urlSource} = await import("./bundle.js");
  const {vectors} = await import("./vectors.js");
  const runner = await open(ort, urlSource(path), {executionProviders: ["wasm"]});
  const {request} = await (await fetch(`${path}/vectors.json`)).json();
  return JSON.stringify(await vectors(runner, request));
}"""


def test_the_example_is_short() -> None:
    count = sum(
        len(path.read_text().splitlines()) for path in EXAMPLE.iterdir() if path.suffix in (".js", ".html")
    )
    assert count <= MOST_LINES


@pytest.mark.parametrize("family", PAGE_FAMILIES)
def test_node_computes_the_vectors(
    folder: Path, family_bundles: dict[str, Path], family: str, tmp_path: Path
) -> None:
    bundle, out = family_bundles[family], tmp_path / "out.json"
    subprocess.run([need("node"), "node.js", str(bundle), str(out)], cwd=folder, check=True)
    check_vectors(bundle, out.read_text(), tmp_path)


@pytest.mark.parametrize("least", [0, 60])
def test_it_divides_a_text_as_voxport(folder: Path, least: int) -> None:
    found = run_script(folder, DIVIDE, json.dumps(TEXTS), least)
    rules = TextRules(least_characters=least)
    expected = [list(prepare(text, "en", lambda text: True, rules=rules)) for text in TEXTS]
    assert found == expected


def test_a_number_beyond_its_limits_is_one_line(
    folder: Path, hostile: tuple[Path, str], tmp_path: Path
) -> None:
    check_refused(folder, *hostile, tmp_path)


@pytest.mark.parametrize("family", PAGE_FAMILIES)
def test_chromium_computes_the_vectors(
    url: str, page: Any, family_bundles: dict[str, Path], family: str, tmp_path: Path
) -> None:
    page.goto(f"{url}/package.json")
    check_vectors(
        family_bundles[family], page.evaluate(COMPUTE, bundle_url(url, family_bundles, family)), tmp_path
    )


def test_the_page_speaks_and_does_so_again_without_a_network(folder: Path, page: Any) -> None:
    with served(folder) as url:
        page.goto(url)
        page.wait_for_function(READY)
        assert page.evaluate("crossOriginIsolated")
        page.wait_for_function("navigator.serviceWorker.controller")
        page.reload()
        page.wait_for_function(READY)
        page.wait_for_function("caches.match('worklets.js')")
    page.reload()
    page.wait_for_function(READY)
    page.fill("#text", TEXT)
    page.click("text=Speak")
    page.wait_for_function("document.getElementById('status').textContent.includes('first sound')")
    page.wait_for_function(DONE)
    assert not page.inner_text("#error")


def test_the_page_writes_what_it_hears(
    url: str, page: Any, family_bundles: dict[str, Path], speech: Path
) -> None:
    page.goto(f"{url}/?bundle={bundle_url(url, family_bundles, 'voxtral_realtime')}")
    page.wait_for_function(READY)
    page.set_input_files("#recording", str(speech))
    page.wait_for_function(HEARD)
    assert page.inner_text("#transcript") == WORDS
    page.click("text=Listen to the microphone")
    page.wait_for_function("document.getElementById('transcript').textContent.includes('bottles')")
    page.click("#stop")
    page.wait_for_function(DONE)
    assert page.inner_text("#transcript").strip() == WORDS and not page.inner_text("#error")


def test_the_page_opens_a_folder_stops_and_opens_another_bundle(
    url: str, page: Any, family_bundles: dict[str, Path]
) -> None:
    page.goto(f"{url}/?bundle={bundle_url(url, family_bundles, 'voxtral_tts')}")
    page.wait_for_function(READY)
    page.set_input_files("#folder", str(family_bundles["qwen3_tts"]))
    name = json.dumps(Bundle(family_bundles["qwen3_tts"]).job.source.name)
    page.wait_for_function(f"{READY} && document.getElementById('status').textContent.includes({name})")
    page.fill("#text", f"{TEXT} " * 200)
    page.click("text=Speak")
    page.wait_for_function("document.getElementById('status').textContent.includes('first sound')")
    page.click("#stop")
    page.wait_for_function(DONE)
    page.fill("#url", bundle_url(url, family_bundles, "voxtral_realtime"))
    page.click("#bundle button")
    page.wait_for_selector("#listen", state="visible")
    assert page.is_hidden("#speak") and not page.inner_text("#error")


def test_a_damaged_bundle_leaves_the_last_one_open_and_stop_ends_a_download(
    folder: Path, url: str, page: Any, family_bundles: dict[str, Path]
) -> None:
    page.goto(f"{url}/?bundle={bundle_url(url, family_bundles, 'voxtral_tts')}")
    page.wait_for_function(READY)
    damaged = shutil.copytree(family_bundles["voxtral_realtime"], folder / "damaged")
    (damaged / "embed_tokens.onnx.data").write_bytes(b"x")
    page.fill("#url", "damaged")
    page.click("#bundle button")
    page.wait_for_function(FAILED)
    page.click("text=Speak")
    page.wait_for_function("document.getElementById('status').textContent.includes('first sound')")
    page.click("#stop")
    page.wait_for_function(DONE)
    page.route("**/embed_tokens.onnx.data*", lambda route: None)  # never answered
    page.fill("#url", bundle_url(url, family_bundles, "voxtral_realtime"))
    page.click("#bundle button")
    page.wait_for_function("document.getElementById('status').textContent.includes(' %')")
    page.click("#stop")
    page.wait_for_function(DONE)
    assert not page.inner_text("#error") and page.is_visible("#speak")


def test_the_page_works_without_its_service_worker(
    url: str, page: Any, family_bundles: dict[str, Path]
) -> None:
    page.route("**/service_worker.js", lambda route: route.abort())
    page.goto(f"{url}/?bundle={bundle_url(url, family_bundles, 'voxtral_realtime')}")
    page.wait_for_function(READY)


def test_bundles_that_the_page_cannot_run_are_one_line_each(
    folder: Path, url: str, page: Any, family_bundles: dict[str, Path], tmp_path: Path
) -> None:
    page.goto(f"{url}/?bundle=none")
    page.wait_for_function(FAILED)
    assert "no manifest.json of a bundle" in page.inner_text("#error")
    bundle = family_bundles["voxtral_realtime"]
    manifest = json.loads((bundle / "manifest.json").read_text())
    data = (bundle / "embed_tokens.onnx.data").read_bytes()
    changed = bytes([data[0] ^ 1]) + data[1:]
    for number, (change, content, text) in enumerate(
        (
            ({}, changed, "embed_tokens.onnx.data: damaged"),
            ({}, data[:-1], "copy the bundle again"),
            ({"target": "coreml"}, data, "made for coreml; export it with --target onnx"),
            ({"family": "other"}, data, "family other is unknown"),
        )
    ):
        broken = shutil.copytree(bundle, folder / f"broken-{number}")
        (broken / "embed_tokens.onnx.data").write_bytes(content)
        (broken / "manifest.json").write_text(json.dumps(manifest | {"job": manifest["job"] | change}))
        page.goto(f"{url}/?bundle={broken.name}")
        page.wait_for_function(FAILED)
        assert text in page.inner_text("#error") and "\n" not in page.inner_text("#error")


def test_web_refuses_other_targets_and_used_folders(
    family_bundles: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = family_bundles["voxtral_tts"]
    twice = tmp_path / "twice"
    assert main(["web", str(bundle), str(bundle), str(twice)]) == 0
    assert [path.name for path in sorted((twice / "bundles").iterdir())] == [bundle.name, f"{bundle.name}-2"]
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    assert main(["web", str(bundle), str(tmp_path / "used")]) == 2
    assert "exists and is not an empty folder" in error_line(capsys)


@pytest.mark.parametrize(
    ("family", "path", "value", "text"),
    [
        ("voxtral_tts", "job/target", "coreai", "made for coreai; export it with --target onnx"),
        ("voxtral_tts", "job/family", "other", "family other has no page"),
        ("voxtral_tts", "job/compute_precision", "float16", "computes in float16"),
        ("qwen3_tts", "job/constants/kind", "base", "neither clones voices"),
        ("qwen3_tts", "job/options/split", "six", "neither clones voices"),
        ("qwen3_asr", "job/constants/kind", "aligner", "the page gives no times to words"),
    ],
)
def test_web_refuses_what_the_page_cannot_run(
    family_bundles: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    family: str,
    path: str,
    value: str,
    text: str,
) -> None:
    other = shutil.copytree(family_bundles[family], tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    *keys, last = path.split("/")
    place = manifest
    for key in keys:
        place = place[key]
    place[last] = value
    if last in manifest["job"]["request"]:
        manifest["job"]["request"][last] = value
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert main(["web", str(other), str(tmp_path / "out")]) == 2
    assert text in error_line(capsys)
    assert not (tmp_path / "out").exists()
