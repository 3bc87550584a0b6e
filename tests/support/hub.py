"""A model hub on this machine, as far as the hub's client asks: repositories, commits, uploads."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = Mapping[str, bytes]
Answer = tuple[int, dict[str, str], bytes]
TOKEN = "hf_right"
LARGE = (".safetensors", ".onnx", ".data", ".bin")  # files for large-file storage, as in .gitattributes


@dataclass
class Repository:
    """`refs` lead from branches to commits. Answers with a file of `limits` break off after its bytes."""

    licence: str | None = "apache-2.0"
    is_gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    is_private: bool = False

    def commit(self, files: Files, branch: str = "main") -> str:
        """Moves a branch to a new commit with these files. Returns the commit."""
        name = hashlib.sha1(repr((sorted(files.items()), len(self.commits))).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.refs[branch] = name
        return name


class Hub:
    """`asked` has the method and the path of each request. `status` is an answer to all of them."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.stored: dict[str, bytes] = {}  # large files by hash
        self.status: int | None = None
        self.on_file: Callable[[str], None] = lambda path: None  # called before a file is sent
        self.url = ""

    def add(self, name: str, files: Files, **about: Any) -> Repository:
        repository = self.repositories[name] = Repository(**about)
        repository.commit(files)
        return repository

    def fetched(self) -> list[str]:
        """Paths of the files whose content was asked for."""
        return [
            line.split("/", 5)[5] for line in self.asked if line.startswith("GET ") and "/resolve/" in line
        ]


ROUTES = (
    ("GET", r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", "info"),
    ("GET", r"/api/models/([^/]+/[^/]+)/refs", "refs"),
    ("GET", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "file"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", r"/api/models/([^/]+/[^/]+)/branch/(.+)", "branch"),
    ("POST", r"/api/models/([^/]+/[^/]+)/preupload/(.+)", "preupload"),
    ("POST", r"/api/models/([^/]+/[^/]+)/commit/(.+)", "commit"),
    ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/stored/(.+)", "store"),
)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *values: object) -> None: ...

    def handle_any(self) -> None:
        path = urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {path}")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        method = "GET" if self.command == "HEAD" else self.command
        status, headers, content = self.answer(method, unquote(path))
        limit = int(headers.pop("limit", len(content)))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:limit])
            self.close_connection = self.close_connection or limit < len(content)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def answer(self, method: str, path: str) -> Answer:
        if self.hub.status:
            return refusal(self.hub.status, "", "the hub is tired")
        for expected, pattern, name in ROUTES:
            if method == expected and (found := re.fullmatch(pattern, path)):
                if method != "GET" and not name.startswith("stor") and not self.is_logged_in:
                    return refusal(401, "", "Invalid username or password.")
                answer: Answer = getattr(self, name)(*found.groups())
                return answer
        return refusal(404, "", f"{method} {path} is not part of this hub")

    @property
    def is_logged_in(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def find(self, name: str, revision: str | None) -> tuple[Repository, str] | Answer:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.is_private and not self.is_logged_in):
            return refusal(404 if self.is_logged_in else 401, "RepoNotFound", "Repository not found")
        commit = repository.refs.get(revision or "main", revision or "")
        if commit not in repository.commits:
            return refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit

    def info(self, name: str, revision: str | None) -> Answer:
        found = self.find(name, revision)
        if len(found) == 3:
            return found
        repository, commit = found
        siblings = [
            {"rfilename": path, "size": len(content), "blobId": etag(content)}  # as the ETag
            for path, content in repository.commits[commit].items()
        ]
        card = {"license": repository.licence} if repository.licence else {}
        about = {"id": name, "sha": commit, "siblings": siblings, "cardData": card, "tags": []}
        return as_json({**about, "private": repository.is_private, "gated": repository.is_gated})

    def refs(self, name: str) -> Answer:
        branches = [
            {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": commit}
            for branch, commit in self.hub.repositories[name].refs.items()
        ]
        return as_json({"branches": branches, "converts": [], "tags": []})

    def file(self, name: str, revision: str, path: str) -> Answer:
        found = self.find(name, revision)
        if len(found) == 3:
            return found
        repository, commit = found
        if repository.is_gated and not self.is_logged_in:
            return refusal(401, "GatedRepo", f"Access to model {name} is restricted.")
        content = repository.commits[commit].get(path)
        if content is None:
            return refusal(404, "EntryNotFound", "Entry not found")
        headers = {"ETag": f'"{etag(content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.command == "HEAD":
            return 200, headers | {"Content-Length": str(len(content))}, b""
        self.hub.on_file(path)
        status, start = 200, 0
        if asked := self.headers.get("Range"):
            self.hub.ranges.append(asked)
            status, start = 206, int(asked.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if path in repository.limits:
            headers["limit"] = str(repository.limits[path])
        return status, headers, content[start:]

    def create(self) -> Answer:
        about = json.loads(self.body)
        name = f"{about['organization']}/{about['name']}"
        if name in self.hub.repositories:
            return as_json({"error": "You already created this model repo", "url": name}, 409)
        is_private = about.get("private") or about.get("visibility") == "private"
        self.hub.add(name, {".gitattributes": b""}, licence=None, is_private=bool(is_private))
        return as_json({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def validate(self) -> Answer:
        return as_json({"errors": [], "warnings": []})

    def branch(self, name: str, branch: str) -> Answer:
        refs = self.hub.repositories[name].refs
        if branch in refs:
            return as_json({"error": "Reference already exists"}, 409)
        refs[branch] = refs["main"]
        return as_json({})

    def preupload(self, name: str, revision: str) -> Answer:
        modes = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
            }
            for each in json.loads(self.body)["files"]
        ]
        return as_json({"files": modes})

    def batch(self, name: str) -> Answer:
        def upload(each: dict[str, Any]) -> dict[str, Any]:
            href = f"{self.hub.url}/stored/{each['oid']}"
            return {**each, "actions": {"upload": {"href": href}}}

        objects = [upload(each) for each in json.loads(self.body)["objects"]]
        return as_json({"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> Answer:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.stored[oid] = self.body
        return 200, {}, b""

    def commit(self, name: str, revision: str) -> Answer:
        repository = self.hub.repositories[name]
        files = dict(repository.commits[repository.refs[revision]])
        for line in self.body.decode().splitlines():
            match json.loads(line):
                case {"key": "file", "value": {"path": path, "content": content}}:
                    files[path] = base64.b64decode(content)
                case {"key": "lfsFile", "value": {"path": path, "oid": oid}}:
                    files[path] = self.hub.stored[oid]
                case {"key": "deletedFile", "value": {"path": path}}:
                    del files[path]
                case {"key": "header"}:
                    pass
                case other:
                    raise ValueError(f"not part of this hub: {other}")
        commit = repository.commit(files, revision)
        url = f"{self.hub.url}/{name}/commit/{commit}"
        return as_json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})


def etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def as_json(content: object, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(content).encode()


def refusal(status: int, code: str, message: str) -> Answer:
    _, headers, content = as_json({"error": message})
    named = {"X-Error-Code": code} if code else {}
    return status, {**headers, **named, "X-Error-Message": message}, content


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
