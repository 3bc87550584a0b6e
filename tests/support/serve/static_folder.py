"""A web server for the files of a folder, with the headers of its `serve.json`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Files(SimpleHTTPRequestHandler):
    def guess_type(self, path: Any) -> str:
        return "text/javascript" if str(path).endswith(".mjs") else super().guess_type(path)

    def end_headers(self) -> None:
        settings = json.loads((Path(self.directory) / "serve.json").read_text())
        for header in settings["headers"][0]["headers"]:
            self.send_header(header["key"], header["value"])
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is logged."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of the folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
