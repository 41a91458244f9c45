"""Hub ids: what is fetched, what is kept, and what is said when it cannot be had.

A server of our own plays the hub.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import bass
from bass.checkpoints.hub import resolve
from bass.errors import CheckpointError
from unit.checkpoints import Pair, Said, shard

pytest.importorskip("huggingface_hub")
FIRST, SECOND = "a" * 40, "b" * 40
CODES = {
    "gated": ("GatedRepo", 403),
    "private": ("RepoNotFound", 401),
    "absent": ("RepoNotFound", 404),
}


@dataclass
class Hub:
    """Repositories: name -> commit -> files. `asked`: the files that were downloaded."""

    repositories: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def add(self, name: str, folder: Path, commit: str = FIRST, **more: bytes) -> None:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.repositories.setdefault(name, {})[commit] = files | {
            key.replace("__", "/"): value for key, value in more.items()
        }

    def commit(self, name: str, revision: str) -> str | None:
        commits = self.repositories[name]
        return (
            next(iter(commits)) if revision == "main" else revision if revision in commits else None
        )


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(True)

        def do_HEAD(self) -> None:
            self.answer(False)

        def log_message(self, *arguments: Any) -> None:
            pass

        def reply(self, status: int, content: bytes, body: bool, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def answer(self, body: bool) -> None:
            path = self.path.partition("?")[0].strip("/").split("/")
            api = path[:2] == ["api", "models"]
            name = "/".join(path[2:4] if api else path[:2])
            kind = name.partition("/")[2]
            if kind in CODES or name not in hub.repositories:
                code, status = CODES.get(kind, CODES["absent"])
                return self.reply(status, b"{}", body, X_Error_Code=code, X_Error_Message="no")
            what, revision, *rest = path[4:] if api else path[2:]
            commit = hub.commit(name, revision)
            if commit is None:
                return self.reply(
                    404, b"{}", body, X_Error_Code="RevisionNotFound", X_Error_Message="no"
                )
            files = hub.repositories[name][commit]
            if what == "revision":
                siblings = [{"rfilename": file} for file in files]
                return self.reply(
                    200,
                    json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode(),
                    body,
                )
            if what == "tree":
                tree = [
                    {"type": "file", "path": f, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                    for f, c in files.items()
                ]
                return self.reply(
                    200, json.dumps(tree).encode(), body, Content_Type="application/json"
                )
            file = "/".join(rest)
            if body:
                hub.asked.append(file)
            etag = hashlib.sha1(files[file]).hexdigest()
            return self.reply(200, files[file], body, ETag=f'"{etag}"', X_Repo_Commit=commit)

    return Handler


@pytest.fixture
def hub(pair: Pair, tmp_path: Path) -> Iterator[Hub]:
    found = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(found))
    found.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    others = {
        "pytorch_model.bin": b"x",
        "README.md": b"x",
        "consolidated.safetensors": b"x",
        "onnx__model.safetensors": b"x",
    }
    found.add("org/target", pair.target, **others)
    found.add("org/draft", shard(pair.copy(tmp_path).draft, 2), **{"chat_template.jinja": b"x"})
    found.repositories["org/target"][SECOND] = {"config.json": b"{}"}
    weightless = {
        name: content
        for name, content in found.repositories["org/target"][FIRST].items()
        if "safetensors" not in name
    }
    found.repositories["org/pickled"] = {FIRST: weightless}
    found.repositories["org/empty"] = {FIRST: {"config.json": b"{}"}}
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


SAY = """
import contextlib, io, json, sys
from bass.cli import main
for request in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(request)
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def commands(hub: Hub, home: Path, *requests: list[str], **environment: str) -> list[Said]:
    """Several `bass ARGUMENTS` in a process of their own: the library reads its settings when it is
    imported.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own |= {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "*",
    }
    command = [sys.executable, "-c", SAY, json.dumps(requests)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=own | environment, timeout=120, check=True
    )
    return [Said(*json.loads(line)) for line in done.stdout.splitlines()]


def test_an_existing_folder_and_any_path_are_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for spec in (
        "org/name",
        "/nonexistent",
        "./org/other",
        "../org/other",
        "name",
        "a/b/c",
        "~/x/y",
        Path("org/other"),
        "a\0/b",
    ):
        assert resolve(spec) == Path(spec)


def test_without_the_library_one_sentence_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        CheckpointError,
        match=r"`org/name` is no local folder.*`pip install 'bass-decoding\[hub\]'`\.$",
    ):
        resolve("org/name")


NOWHERE = "http://127.0.0.1:1"


@pytest.mark.nightly
def test_only_what_is_needed_is_fetched_once_and_serves_without_a_network(
    hub: Hub, pair: Pair, tmp_path: Path
) -> None:
    options = ["def f(", "--max_new_tokens", "4", "--json"]
    request = ["generate", "--target", "org/target", "--draft", f"org/draft@{FIRST}", *options]
    expected = (
        bass.load(pair.target, pair.draft)
        .generate("def f(", max_new_tokens=4)
        .completions[0]
        .token_ids
    )
    info = ["info", "org/target@main", "--draft", "org/draft"]
    first, second, described = commands(hub, tmp_path, request, request, info)
    shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    draft = ["config.json", "tokenizer.json", "chat_template.jinja", *shards]
    assert sorted(hub.asked) == sorted(
        ["config.json", "tokenizer.json", "model.safetensors", *draft]
    )
    assert "`org/draft` can draft for `org/target@main`." in described.out
    hub.asked.clear()
    others = [
        commands(hub, tmp_path, request, **by)[0]
        for by in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": NOWHERE})
    ]
    for said in (first, second, *others):
        assert said.status == 0, said.err
        assert said.lines[0]["token_ids"] == expected
    assert (first.err, hub.asked) == ("", [])
    assert list(tmp_path.glob("hub/models--org--target/snapshots/*/config.json"))
