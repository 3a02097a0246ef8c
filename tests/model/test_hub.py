"""Folders and the Hub by the conventions of Hugging Face, through the real huggingface_hub and a Hub on the loopback.

The library reads its environment when it is imported. Code that uses a Hub therefore runs in a separate process, which
does many things in a row and reports the results as JSON. Each test checks a part of the report.
"""

import base64
import hashlib
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest
import yaml

from cerebro_eeg.config import HeadConfig, Source, Training
from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.model import checkpoint, hub
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.masked import MaskedCerebro
from predict_files import edf
from tiny_models import randomized, small

FILES = ["README.md", "SHA256SUMS", "config.json", "model.safetensors"]


class Hub(http.server.ThreadingHTTPServer):
    """A server with the part of the Hub that creates repositories, commits to them and serves their files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos = {}  # {repository: {branch: {file: content}}}
        self.log = []
        self.unknown = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.server.log.append(f"{self.command} {self.path}")
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        if not match:
            self.server.unknown.append(self.path)
            return self.answer(404)
        repo, revision, name = match.groups()
        branches = self.server.repos.get(repo)
        if branches is None:
            return self.answer(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        if revision not in branches:
            return self.answer(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        commit = hashlib.sha1(json.dumps(sorted(branches[revision])).encode() + revision.encode()).hexdigest()
        if name not in branches[revision]:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        body = branches[revision][name]
        return self.answer(200, body, ETag=f'"{hashlib.sha256(body).hexdigest()}"', X_Repo_Commit=commit)

    do_HEAD = do_GET

    def do_POST(self):
        self.server.log.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            known = repo in self.server.repos
            self.server.repos.setdefault(repo, {"main": {}})
            return self.answer(409 if known else 200, {"url": f"{self.server.url}/{repo}"})
        if self.path == "/api/validate-yaml":
            yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            return self.answer(200, {"errors": [], "warnings": []})
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/([^/]+)", self.path)
        if not match:
            self.server.unknown.append(self.path)
            return self.answer(404)
        repo, what, revision = match.groups()
        branches = self.server.repos[repo]
        if what == "branch":
            known = revision in branches
            branches.setdefault(revision, dict(branches["main"]))
            return self.answer(409 if known else 200, {})
        if what == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                assert line["value"]["encoding"] == "base64"
                branches[revision][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        address = f"{self.server.url}/{repo}/commit/{'0' * 40}"
        return self.answer(200, {"success": True, "commitUrl": address, "commitOid": "0" * 40})


PRELUDE = """
import json, socket, sys, warnings
from pathlib import Path
warnings.simplefilter("error")
import torch
from cerebro_eeg import Cerebro
from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.model.checkpoint import hash_tensors
from tiny_models import randomized, small

folder = Path(sys.argv[1])
seen = {"imports hub": "huggingface_hub" in sys.modules}

def make(seed):
    return randomized(Cerebro(2, config=small()), seed).float()

def sum_of(model):
    return hash_tensors(model.state_dict())

def refusal(action, *arguments, **options):
    try:
        action(*arguments, **options)
    except CheckpointError as error:
        return str(error)

def without_network(action, *arguments):
    def refuse(*_, **__):
        raise AssertionError("the network was touched")
    kept = {name: getattr(socket, name) for name in ("socket", "create_connection", "getaddrinfo")}
    try:
        for name in kept:
            setattr(socket, name, refuse)
        return action(*arguments)
    finally:
        for name, value in kept.items():
            setattr(socket, name, value)

def local():
    make(0).save_pretrained(folder / "local")
    for source in (folder / "local", str(folder / "local"), folder / "local" / "model.safetensors"):
        assert sum_of(Cerebro.from_pretrained(source)) == sum_of(make(0))
    for source in ("./no/such", "no-such", "no/such.safetensors", Path("no/such"), folder / "none"):
        assert "there is no checkpoint" in refusal(Cerebro.from_pretrained, source)
    return "huggingface_hub" in sys.modules

seen["imports hub for local files"] = without_network(local)
"""

ONLINE = """
seen["commit"] = make(1).push_to_hub("user/model", private=True, token="hf_test")
seen["pushed"] = sum_of(make(1))
back = Cerebro.from_pretrained("user/model")
seen["pulled"], seen["report"] = sum_of(back), str(back.load_report)
make(2).push_to_hub("user/model", revision="second", token="hf_test")
make(2).push_to_hub("user/model", revision="second", token="hf_test")
seen["second"] = sum_of(make(2))
seen["revision"] = sum_of(Cerebro.from_pretrained("user/model", revision="second"))
seen["main"] = sum_of(Cerebro.from_pretrained("user/model", revision="main"))
seen["cached"] = sum_of(without_network(lambda: Cerebro.from_pretrained("user/model", local_files_only=True)))
seen["other cache"] = refusal(
    Cerebro.from_pretrained, "user/model", local_files_only=True, cache_dir=folder / "other"
)
seen["forced"] = sum_of(Cerebro.from_pretrained("user/model", force_download=True, cache_dir=folder / "other"))
make(1).push_to_hub("user/carded", token="hf_test")
seen["no repository"] = refusal(Cerebro.from_pretrained, "user/none")
seen["no revision"] = refusal(Cerebro.from_pretrained, "user/model", revision="none")
seen["no weights"] = refusal(Cerebro.from_pretrained, "user/empty")
seen["damaged"] = refusal(Cerebro.from_pretrained, "user/damaged")
seen["bad name"] = refusal(Cerebro.from_pretrained, "user/-a--b-")
"""

OFFLINE = """
seen["cached"], seen["pushed"] = sum_of(Cerebro.from_pretrained("user/model")), sum_of(make(1))
seen["not cached"] = refusal(Cerebro.from_pretrained, "user/other")
seen["push"] = refusal(make(1).push_to_hub, "user/model", token="hf_test")
"""

UNREACHABLE = """
import time
time.sleep = lambda _: None  # the library tries again and again, ever more slowly
seen["pull"] = refusal(Cerebro.from_pretrained, "user/other")
seen["push"] = refusal(make(1).push_to_hub, "user/other", token="hf_test")
"""


def play(code, folder, endpoint, offline):
    """Run a script in a separate process, and return its report."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment = {name: value for name, value in environment.items() if not name.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = f"{PRELUDE}\n{code}\nprint('seen', json.dumps(seen))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(re.search("^seen (.*)$", done.stdout, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def server():
    with Hub() as found:
        yield found
        found.shutdown()


@pytest.fixture(scope="module")
def online(server, tmp_path_factory):
    """Return the report of a process that pushes to the Hub and pulls from it."""
    folder = tmp_path_factory.mktemp("online")
    server.repos["user/empty"] = {"main": {}}
    server.repos["user/carded"] = {"main": {"README.md": b"by hand"}}
    server.repos["user/damaged"] = {"main": {"model.safetensors": b"\x80\x02}q\x00."}}
    return {"folder": folder, **play(ONLINE, folder, server.url, offline=False)}


@pytest.fixture(scope="module")
def offline(server, online):
    """Return the report of a process in offline mode, and the number of requests to the Hub meanwhile."""
    before = len(server.log)
    seen = play(OFFLINE, online["folder"], server.url, offline=True)
    return {"requests": len(server.log) - before, **seen}


def one_line(text, *words):
    assert text is not None, "no CheckpointError was raised"
    assert "\n" not in text
    for word in words:
        assert word in text
    return True


def test_push_creates_the_repository_and_commits_the_files(server, online):
    assert sorted(server.repos["user/model"]["main"]) == FILES
    assert re.fullmatch(re.escape(server.url) + r"/user/model/commit/0{40}", online["commit"])
    assert server.log[0] == "POST /api/repos/create"
    assert [line for line in server.log if line.startswith("POST") and "/commit/" in line] == [
        "POST /api/models/user/model/commit/main",
        "POST /api/models/user/model/commit/second",
        "POST /api/models/user/model/commit/second",
        "POST /api/models/user/carded/commit/main",
    ]
    assert server.unknown == []


def test_pull_gives_the_pushed_weights(online):
    assert online["pulled"] == online["pushed"] == online["main"] == online["forced"]
    assert online["report"].startswith("user/model: all 34 tensors loaded")


def test_revision_is_pushed_to_and_pulled_from(server, online):
    assert online["revision"] == online["second"] != online["pushed"]
    assert sorted(server.repos["user/model"]) == ["main", "second"]
    assert server.repos["user/model"]["second"] != server.repos["user/model"]["main"]


def test_local_files_only_takes_the_cache_and_no_network(online):
    assert online["cached"] == online["pushed"]
    assert one_line(online["other cache"], "user/model is not on this disk and could not be had from the Hub")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no repository", ["user/none is not on this disk and could not be had from the Hub: ", "404"]),
        ("no revision", ["user/model is not on this disk and could not be had from the Hub: ", "404"]),
        ("no weights", ["user/empty is not on this disk and could not be had from the Hub: ", "404"]),
        ("damaged", ["model.safetensors is a pickle"]),
        ("bad name", ["user/-a--b- is not on this disk and could not be had from the Hub: ", "Repo id"]),
    ],
)
def test_what_cannot_be_pulled_is_one_line(online, what, words):
    assert one_line(online[what], *words)


def test_card_on_the_hub_is_kept(server, online):
    """People edit model cards, so a push to a repository with a card does not change it."""
    found = server.repos["user/carded"]["main"]
    assert sorted(found) == FILES
    assert found["README.md"] == b"by hand"


def test_local_models_touch_no_network_and_load_no_hub(online, offline):
    for seen in (online, offline):
        assert seen["imports hub"] is False
        assert seen["imports hub for local files"] is False


def test_offline_takes_the_cache_without_requests(offline):
    assert offline["requests"] == 0
    assert offline["cached"] == offline["pushed"]
    assert one_line(
        offline["not cached"], "user/other is not on this disk and could not be had from the Hub: ", "offline"
    )
    assert one_line(offline["push"], "the model could not be uploaded to user/model: ", "offline")


def test_hub_that_cannot_be_reached_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    seen = play(UNREACHABLE, tmp_path, f"http://127.0.0.1:{port}", offline=False)
    assert one_line(seen["pull"], "user/other is not on this disk and could not be had from the Hub: ", "refused")
    assert one_line(seen["push"], "the model could not be uploaded to user/other: ", "refused")


# --- Folders ----------------------------------------------------------------------------------------------------------


def make_model():
    model = randomized(Cerebro(2, config=small())).float()
    model.training_record = Training(5, 10, {"Cz": 4}, (Source("open: #1", 10, 0.5, "", "CC-BY 4.0"),))
    return model


@pytest.mark.parametrize("model", [make_model(), MaskedCerebro(small())], ids=lambda m: type(m).__name__)
def test_folder_holds_weights_config_and_card_and_nothing_else(model, tmp_path):
    folder = model.save_pretrained(tmp_path / "a" / "b")
    assert sorted(file.name for file in folder.iterdir()) == FILES
    model.save_pretrained(str(folder))
    assert sorted(file.name for file in folder.iterdir()) == FILES


def test_a_run_that_is_not_finished_is_no_model_yet(tmp_path):
    for name in ("run.json", "state.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"is not finished.*start the same command again"):
        Cerebro.from_pretrained(tmp_path)


def test_config_json_says_what_the_weights_say(tmp_path):
    model = make_model()
    model.head = HeadConfig(2, names=("a", "b"))
    stated = json.loads((model.save_pretrained(tmp_path) / "config.json").read_text())
    assert stated == {"model_type": "cerebro-eeg", "version": 5, **json.loads(json.dumps(model.header.to_dict()))}
    assert stated["model"]["signal"]["sfreq"] == 256.0
    assert stated["head"]["names"] == ["a", "b"]


def test_config_json_of_an_older_release_is_no_contradiction(tmp_path):
    """It has another version and fewer fields, and describes the same weights."""
    path = make_model().save_pretrained(tmp_path) / "config.json"
    stated = json.loads(path.read_text()) | {"version": 3}
    for source in stated["training"]["data"]:
        for name in checkpoint.SOURCES:
            del source[name]
    path.write_text(json.dumps(stated))
    Cerebro.from_pretrained(tmp_path)
    for change in ({"version": "x"}, {"version": 3, "model": {**stated["model"], "depth": 8}}, {"training": 1}):
        path.write_text(json.dumps(stated | change))
        with pytest.raises(CheckpointError, match="differs from the config inside"):
            Cerebro.from_pretrained(tmp_path)


def test_card_is_a_card(tmp_path):
    model = make_model()
    card = (model.save_pretrained(tmp_path) / "README.md").read_text(encoding="utf-8")
    _, front, text = card.split("---\n", 2)
    matter = yaml.safe_load(front)
    assert matter["library_name"] == "cerebro-eeg"
    assert "eeg" in matter["tags"]
    for words in (
        "Not a medical device",
        "not affiliated with",
        "arXiv:2501.10885",
        "5 steps, 10 windows. 1 electrodes",
        "open: #1: 0.5 h, 10 windows. CC-BY 4.0",
        "windows of 40 samples",
        "256 Hz",
        "in microvolts",
    ):
        assert words in text


def test_card_that_is_there_is_kept(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    assert (make_model().save_pretrained(tmp_path) / "README.md").read_text() == "mine"


def test_code_of_the_card_runs(tmp_path, monkeypatch):
    model = make_model()
    model.training_record = Training(1, 1, {"Cz": 1})
    model.save_pretrained(tmp_path / "this folder or repository")
    edf(tmp_path / "recording.edf", ["Cz"])
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(
        "```python\n(.*?)```", (tmp_path / "this folder or repository/README.md").read_text(), re.DOTALL
    )
    names = {}
    exec(code, names)
    assert names["found"].features.shape == (21 * 256 // 40, 12)


def test_model_saved_again_takes_the_place_of_the_old(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    model.training_record = Training(6)
    model.reset_head(4)
    model.save_pretrained(tmp_path)
    assert Cerebro.from_pretrained(tmp_path).header == model.header


@pytest.mark.parametrize("stop", ["save", "write_text"])
def test_save_that_stops_anywhere_leaves_a_folder_that_loads(stop, tmp_path, monkeypatch):
    """Above all between weights and config: an old config must not remain beside new weights."""
    model = make_model()
    model.save_pretrained(tmp_path)
    old, model.training_record = model.header, Training(6)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, stop, die)
    with pytest.raises(KeyboardInterrupt):
        model.save_pretrained(tmp_path)
    assert Cerebro.from_pretrained(tmp_path).header == (old if stop == "save" else model.header)


def test_folder_is_taken_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_model().save_pretrained("user/model")
    assert Cerebro.from_pretrained("user/model").load_report.exact
    with pytest.raises(CheckpointError, match=r"user/other is not on this disk and could not be had from the Hub: "):
        Cerebro.from_pretrained("user/other")  # conftest.py says HF_HUB_OFFLINE
