"""Hub ids: what is fetched, and what is kept. A server of our own plays the hub."""

import hashlib
import json
import os
import re
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
from bass.checkpoints.hub import WANTED, resolve
from bass.errors import CheckpointError
from unit.checkpoints import Pair, Said, shard

pytest.importorskip("huggingface_hub")
COMMIT = "a" * 40
NOWHERE = "http://127.0.0.1:1"


@dataclass
class Hub:
    """Repositories: name -> files. `asked`: the files that were downloaded."""

    repositories: dict[str, dict[str, bytes]]
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(True)

        def do_HEAD(self) -> None:
            self.answer(False)

        def log_message(self, *arguments: Any) -> None:
            pass

        def reply(self, content: Any, body: bool, **headers: str) -> None:
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(200)
            for name, value in {"Content-Length": str(len(sent)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if body:
                self.wfile.write(sent)

        def answer(self, body: bool) -> None:
            path = self.path.partition("?")[0].strip("/").split("/")
            api = path[:2] == ["api", "models"]
            name = "/".join(path[2:4] if api else path[:2])
            what, _, *rest = path[4:] if api else path[2:]
            files = hub.repositories[name]
            digests = {file: hashlib.sha1(content).hexdigest() for file, content in files.items()}
            if what == "revision":
                siblings = [{"rfilename": file} for file in files]
                return self.reply({"id": name, "sha": COMMIT, "siblings": siblings}, body)
            if what == "tree":
                tree = [
                    {"type": "file", "path": f, "size": len(c), "oid": digests[f]}
                    for f, c in files.items()
                ]
                return self.reply(tree, body, Content_Type="application/json")
            file = "/".join(rest)
            if body:
                hub.asked.append(file)
            return self.reply(files[file], body, ETag=f'"{digests[file]}"', X_Repo_Commit=COMMIT)

    return Handler


@pytest.fixture
def hub(pair: Pair, tmp_path: Path) -> Iterator[Hub]:
    def files(folder: Path, *others: str) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in folder.iterdir()} | dict.fromkeys(others, b"x")

    unused = (
        "pytorch_model.bin",
        "README.md",
        "consolidated.safetensors",
        "onnx/model.safetensors",
    )
    draft = shard(pair.copy(tmp_path).draft, 2)
    found = Hub(
        {
            "org/target": files(pair.target, *unused),
            "org/draft": files(draft, "chat_template.jinja"),
        }
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(found))
    found.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
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
    own |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "NO_PROXY": "*"}
    own |= {"HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    own |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
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
    for spec in ("org/name", "/nonexistent", "./org/other", "name", "~/x/y", Path("org/other")):
        assert resolve(spec) == Path(spec)


def test_without_the_library_one_sentence_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"`pip install 'bass-decoding\[hub\]'`\.$"):
        resolve("org/name")


def test_every_file_that_is_read_is_fetched() -> None:
    source = Path(bass.__file__).parent
    for path in (*source.glob("checkpoints/*.py"), *source.glob("text/*.py")):
        named = re.findall(r'"(\w+\.(?:json|jinja|model|txt))"', path.read_text(encoding="utf-8"))
        assert {*named} <= {*WANTED}, path


@pytest.mark.nightly
def test_only_what_is_needed_is_fetched_once_and_serves_without_a_network(
    hub: Hub, pair: Pair, tmp_path: Path
) -> None:
    options = ["def f(", "--max_new_tokens", "4", "--json"]
    request = ["generate", "--target", "org/target", "--draft", f"org/draft@{COMMIT}", *options]
    llm = bass.load(pair.target, pair.draft)
    expected = llm.generate("def f(", max_new_tokens=4).completions[0].token_ids
    info = ["info", "org/target@main", "--draft", "org/draft"]
    first, second, described = commands(hub, tmp_path, request, request, info)
    shards = [
        *(f"model-0000{i}-of-00002.safetensors" for i in (1, 2)),
        "model.safetensors.index.json",
    ]
    draft = ["config.json", "tokenizer.json", "chat_template.jinja", *shards]
    target = ["config.json", "tokenizer.json", "model.safetensors"]
    assert sorted(hub.asked) == sorted([*target, *draft])
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
