"""A hub on localhost: as much of its protocol as the libraries need to fetch, and to commit, kept in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_tests"
_FILE = r"/(datasets/)?([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)"
_CALL = (
    r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info|preupload|commit|branch)/([^/]+)(?:/(.+))?)?"
)


@dataclass
class Repository:
    """Commits (hash to files), and the branches that point to them."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str) -> str:
        commit = _name([sorted(files), len(self.commits), *files.values()])
        self.commits[commit], self.branches[branch] = files, commit
        return commit


@dataclass
class Hub:
    """What it holds and how it fails.

    Attributes:
        url: where it listens.
        asked: method and path of every request.
        broken: of files whose name ends so, the line goes dead after a few bytes.
        status: if not 0, the answer to everything.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    broken: str = "\0"
    status: int = 0

    def put(self, name: str, files: Path | Mapping[str, bytes], branch: str = "main", **how: bool) -> str:
        """The hash of a commit that holds exactly these files; data sets are called `datasets/owner/name`."""
        if isinstance(files, Path):
            files = {str(path.relative_to(files)): path.read_bytes() for path in files.rglob("*") if path.is_file()}
        return self.repositories.setdefault(name, Repository(**how)).commit(dict(files), branch)


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub for as long as the block lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Answer,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _name(content: Any) -> str:
    return hashlib.sha1(content if isinstance(content, bytes) else repr(content).encode()).hexdigest()


class _Failed(Exception):
    def __init__(self, status: int, code: str = "", said: str = "no", **headers: str) -> None:
        self.status, self.headers = status, {"X-Error-Code": code, "X-Error-Message": said, **headers}


class _Answer(BaseHTTPRequestHandler):
    """One request."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.hub.asked.append(f"{self.command} {self.path}")
        try:
            if self.hub.status:
                raise _Failed(self.hub.status)
            self._route(unquote(parts.path), parse_qs(parts.query), body)
        except _Failed as failed:
            self._send(failed.status, b"{}", failed.headers)

    do_HEAD = do_POST = do_PUT = do_GET

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, content: Any, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _route(self, path: str, query: Mapping[str, list[str]], body: bytes) -> None:
        if (file := re.fullmatch(_FILE, path)) is not None:
            return self._file((file[1] or "") + file[2], file[3], file[4])
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if (call := re.fullmatch(_CALL, path)) is not None:
            kind, name, what, revision, inner = call.groups()
            return self._call(
                name if kind == "models" else f"datasets/{name}", what, revision, inner or "", query, body
            )
        raise _Failed(404)

    def _known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _at(self, name: str, revision: str) -> tuple[Repository, str]:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not self._known()):
            raise _Failed(404 if self._known() else 401, "RepoNotFound")
        commit = found.branches.get(revision, revision)
        if commit not in found.commits:
            raise _Failed(404, "RevisionNotFound")
        return found, commit

    def _file(self, name: str, revision: str, file: str) -> None:
        repository, commit = self._at(name, revision)
        if repository.gated and not self._known():
            raise _Failed(401, "GatedRepo")
        content = repository.commits[commit].get(file)
        if content is None:
            raise _Failed(404, "EntryNotFound", **{"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_name(content)}"', "Content-Length": str(len(content))}
        if self.command == "GET" and file.endswith(self.hub.broken):
            content, self.close_connection = content[:20], True
        self._send(200, content, headers)

    def _call(self, name: str, what: str | None, revision: str | None, inner: str, query: Any, body: bytes) -> None:
        if what == "branch":
            repository, commit = self._at(name, "main")
            repository.branches.setdefault(str(revision), commit)
            return self._json({})
        repository, commit = self._at(name, revision or "main")
        files = repository.commits[commit]
        if what == "preupload":
            how = {"uploadMode": "regular", "shouldIgnore": False}
            return self._json({"files": [{"path": one["path"], **how} for one in json.loads(body)["files"]]})
        if what == "commit":
            return self._commit(name, repository, str(revision), files, body)
        if what == "tree":
            if inner and not any(path.startswith(f"{inner}/") for path in files):
                raise _Failed(404, "EntryNotFound")
            return self._json([_entry(path, content) for path, content in files.items() if path.startswith(inner)])
        if what == "paths-info":
            paths = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode())["paths"]
            return self._json([_entry(path, files[path]) for path in paths if path in files])
        siblings = [{"rfilename": path} for path in files]
        return self._json({"id": name.removeprefix("datasets/"), "sha": commit, "siblings": siblings, "tags": []})

    def _create(self, asked: Mapping[str, Any]) -> None:
        if not self._known():
            raise _Failed(401)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if not name.startswith("me/"):
            raise _Failed(403, said="not yours")
        there = name in self.hub.repositories
        if not there:
            self.hub.put(name, {}, private=asked.get("visibility") == "private")
        self._json({"url": f"{self.hub.url}/{name}"}, 409 if there else 200)

    def _commit(self, name: str, repository: Repository, branch: str, files: Mapping[str, bytes], body: bytes) -> None:
        made = dict(files)
        for said in map(json.loads, body.splitlines()):
            value = said["value"]
            if said["key"] == "file":
                made[value["path"]] = base64.b64decode(value["content"])
        commit = repository.commit(made, branch)
        self._json({"success": True, "commitOid": commit, "commitUrl": f"{self.hub.url}/{name}/commit/{commit}"})


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": _name(content)}
