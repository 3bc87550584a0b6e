# dependencies: playwright
"""A page of another origin in Chromium: it reads speech and transcripts by `fetch`."""

import base64
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from playwright.sync_api import sync_playwright

from tools.clients.checks import ADDRESS, KEY, RECORDING, TEXT, WORD, check

PORT = 18439  # of the origin that the server allows
CALL = """async ([url, key, body, recording]) => {
  const headers = {authorization: `Bearer ${key}`};
  let form = body && JSON.stringify(body);
  if (body) headers["content-type"] = "application/json";
  if (recording) {
    const bytes = Uint8Array.from(atob(recording), each => each.charCodeAt());
    form = new FormData();
    form.append("file", new Blob([bytes], {type: "audio/wav"}), "audio.wav");
    form.append("model", "whisper-1");
  }
  const answer = await fetch(url, {method: "POST", headers, body: form});
  const bytes = await answer.clone().arrayBuffer();
  return {length: bytes.byteLength, text: recording ? await answer.text() : "", id: answer.headers.get("x-request-id")};
}"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!doctype html>")

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def page() -> Iterator[Any]:
    """A page in a browser, without checks of its own."""
    with HTTPServer(("127.0.0.1", PORT), Page) as server, sync_playwright() as runner:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = runner.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            found = browser.new_page()
            found.goto(f"http://localhost:{PORT}/")
            yield found
        finally:
            browser.close()
            server.shutdown()


def called(path: str, body: object, recording: str = "") -> Any:
    with page() as found:
        return found.evaluate(CALL, [f"{ADDRESS}/v1/audio/{path}", KEY, body, recording])


def speech() -> object:
    found = called("speech", {"model": "tts-1", "voice": "alloy", "input": TEXT})
    return found["length"] > 5000 and found["id"]


def transcription() -> object:
    return WORD in called("transcriptions", None, base64.b64encode(RECORDING.read_bytes()).decode())["text"]


check("playwright", speech, transcription)
