"""Chromium for tests of the page, and the scripts that watch it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"),
    "--host-resolver-rules=MAP voxport.test 127.0.0.1",
)
# Records what the page schedules, reads and plays. A context closes 0.5 s late, so that the silence after the
# last sample is measured too.
WATCH = """
window.watched = {pieces: [], bytes: 0, responseEnd: null, levels: []};
const {start} = AudioBufferSourceNode.prototype;
AudioBufferSourceNode.prototype.start = function (when) {
  const samples = Array.from(this.buffer.getChannelData(0), sample => Math.round(32768 * sample));
  watched.pieces.push({at: performance.now(), when, samples});
  return start.call(this, when);
};
const {connect} = AudioNode.prototype;
AudioNode.prototype.connect = function (target, ...rest) {
  if (target instanceof AudioDestinationNode) {
    const {context} = this;
    if (!context.watcher) {
      const watcher = context.watcher = new AnalyserNode(context, {fftSize: 1024});
      const data = new Float32Array(1024);
      setInterval(() => {
        watcher.getFloatTimeDomainData(data);
        const rms = Math.sqrt(data.reduce((sum, each) => sum + each * each, 0) / data.length);
        watched.levels.push([context.currentTime, rms]);
      }, 20);
    }
    connect.call(this, context.watcher);
  }
  return connect.call(this, target, ...rest);
};
const {close} = AudioContext.prototype;
AudioContext.prototype.close = function () { setTimeout(() => close.call(this), 500); };
const {read} = ReadableStreamDefaultReader.prototype;
ReadableStreamDefaultReader.prototype.read = async function () {
  const result = await read.call(this);
  if (result.done) watched.responseEnd = performance.now();
  else if (result.value instanceof Uint8Array) watched.bytes += result.value.length;
  return result;
};
"""
# Names of controls without a label, ids that are used twice, and labels that belong to nothing.
UNLABELLED = """() => {
  const faults = [];
  for (const each of document.querySelectorAll("input, select, textarea")) {
    if (!each.labels.length && !each.ariaLabel) faults.push(`no label: ${each.outerHTML}`);
  }
  for (const each of document.querySelectorAll("button, summary, th")) {
    if (!each.textContent.trim()) faults.push(`no text: ${each.outerHTML}`);
  }
  for (const each of document.querySelectorAll("canvas")) if (!each.ariaLabel) faults.push("canvas");
  const ids = [...document.querySelectorAll("[id]")].map(each => each.id);
  faults.push(...ids.filter((id, index) => ids.indexOf(id) !== index));
  for (const each of document.querySelectorAll("[for], [aria-labelledby], [aria-describedby]")) {
    for (const name of ["for", "aria-labelledby", "aria-describedby"]) {
      const id = each.getAttribute(name);
      if (id && !document.getElementById(id)) faults.push(`${name}=${id}`);
    }
  }
  return faults;
}"""
# Texts whose contrast is under 4.5 (WCAG AA). Disabled controls are exempt.
LOW_CONTRAST = """() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(value => value / 255);
    const [r, g, b] = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = each => {
    for (; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = [...document.querySelectorAll("body *")].filter(each => each.checkVisibility()
    && !each.disabled && [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  return texts.map(each => {
    const [a, b] = [light(getComputedStyle(each).color), light(background(each))].sort((x, y) => y - x);
    return [each.outerHTML.slice(0, 80), (a + 0.05) / (b + 0.05)];
  }).filter(([, contrast]) => contrast < 4.5);
}"""


@contextmanager
def chromium(microphone: Path, *flags: str) -> Iterator[Any]:
    """A browser of playwright, whose microphone plays a WAV file once. Skips if there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        assert "CI" not in os.environ, "chromium is missing; .ci/run installs it"
        pytest.skip("needs chromium, to use the page")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, to use the page")
    file = f"--use-file-for-fake-audio-capture={microphone}%noloop"
    with playwright.sync_playwright() as runner:
        browser = runner.chromium.launch(executable_path=found, args=[*FLAGS, file, *flags])
        try:
            yield browser
        finally:
            browser.close()
