"""Models in folders and on the Hugging Face Hub: ``model.safetensors``, ``config.json`` and a model card.

Local folders and files are looked at first and need no network. Only a string of the form ``owner/model`` that does not
exist on the disk is looked up on the Hub, which is the caller's way of asking for it (a ``Path`` never is);
``HF_HUB_OFFLINE`` and ``local_files_only`` are honoured.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn

from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.files import write_text
from cerebro_eeg.model.checkpoint import FORMAT, VERSION, Header, read, save

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"
COMMIT = "Upload a cerebro-eeg model"
REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")


def find(
    source: str | Path,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Path:
    """The checkpoint file of a local file, a local folder or a repository on the Hub."""
    path = Path(os.path.expanduser(source))  # os.path: a name that cannot be looked up is no error here
    if os.path.isdir(path):
        return _in_folder(path)
    asked = isinstance(source, str) and REPO_ID.fullmatch(source) and source[0] != "." and path.suffix != ".safetensors"
    if not asked or os.path.exists(path):
        return path  # reading it says what is wrong with it
    from huggingface_hub import hf_hub_download

    with _one_line(f"{source} is not on this disk and could not be had from the Hub"):
        return Path(
            hf_hub_download(
                str(source),
                WEIGHTS,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
            )
        )


def load(
    source: str | Path,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors of a checkpoint, wherever it is, checked."""
    return read(find(source, revision, token, cache_dir, force_download, local_files_only))


def write_folder(folder: str | Path, module: nn.Module, header: Header) -> Path:
    """Write weights, config and, unless there is one already, a model card."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).unlink(missing_ok=True)  # killed at any point, no config is left that contradicts the weights
        save(folder / WEIGHTS, module, header)
        write_text(folder / CONFIG, json.dumps(_config(header), indent=2) + "\n")
        if not (folder / CARD).exists():
            write_text(folder / CARD, make_card(header))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written ({error.strerror or error}); give another folder") from error
    return folder


def push(
    repo_id: str,
    module: nn.Module,
    header: Header,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    commit_message: str = COMMIT,
) -> str:
    """Create the repository if it is not there and upload the model's folder; returns the commit's address."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, module, header)
        with _one_line(f"the model could not be uploaded to {repo_id}"):
            api = HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None and not revision.startswith("refs/pr/"):
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            written = api.file_exists(repo_id, CARD, revision=revision)  # by hand, maybe: it is kept, as in a folder
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message,
                ignore_patterns=[CARD] if written else None,
            )
    return str(commit.commit_url)


def make_card(header: Header) -> str:
    """A model card that says what the weights expect, what trained them and what they are not for."""
    model, signal, training = header.model, header.model.signal, header.training
    data = "\n".join(f"- {s.name}: {s.hours:g} h, {s.windows} windows. {s.licence}" for s in training.data)
    return f"""---
library_name: cerebro-eeg
pipeline_tag: feature-extraction
tags: [eeg, biosignal, neuroscience, foundation-model, cerebro]
---

# A CEReBrO model

Encoder of {model.depth} blocks, width {model.width}, {model.heads} heads, {model.attention} attention.

```python
from cerebro_eeg import Cerebro

model = Cerebro.from_pretrained("this folder or repository")
features = model.embed(x, ch_names=[...], sfreq={signal.sfreq:g}, unit="uV")  # x: (windows, channels, samples)
```

## Input

EEG in microvolts at {signal.sfreq:g} Hz, {signal.highpass:g} to {signal.lowpass:g} Hz ({signal.filter_phase} phase),
reference {signal.reference.replace("_", " ")}; windows of {model.window} samples; channels by electrode name;
normalisation {model.normalization}; {model.patches.kind.replace("_", " ")} patches.

## Training

{training.steps} steps, {training.windows} windows. {len(training.electrode_windows)} electrodes have trained rows.
{data or "No data is recorded."}

## Limits

For research. Not a medical device; not for diagnosis or treatment. An independent implementation, not affiliated with
the authors of the paper (Dimofte et al., CEReBrO, arXiv:2501.10885), which is what to cite for the method.
"""


def _in_folder(folder: Path) -> Path:
    """The weights in a folder, whose ``config.json`` must say the same as they do."""
    from cerebro_eeg.model.checkpoint import read_header

    path, config = folder / WEIGHTS, folder / CONFIG
    if not path.is_file():
        if (folder / "run.json").is_file() and (folder / "state.safetensors").is_file():
            raise CheckpointError(
                f"the run in {folder} is not finished, so has no {WEIGHTS}; start the same command again that began it"
            )
        raise CheckpointError(f"the folder {folder} holds no {WEIGHTS}; give a folder that save_pretrained wrote")
    if config.is_file():
        try:
            stated = json.loads(config.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise CheckpointError(f"{config} is not JSON ({error}); remove it or save the model again") from error
        if stated != _config(read_header(path)):
            raise CheckpointError(
                f"{config} differs from the config inside {WEIGHTS}, which is the one that counts; "
                "remove it or save the model again"
            )
    return path


def _config(header: Header) -> dict[str, object]:
    """What ``config.json`` says: the header, as the Hub and people like to read it."""
    return {"model_type": FORMAT, "version": VERSION, **header.to_dict()}


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Whatever the Hub's library raises as one line; its errors and those of its HTTP library share no base class."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except Exception as error:
        # "Not in the cache" is only half of the story: what kept us from downloading (offline, no network) says more.
        told = (isinstance(error, LocalEntryNotFoundError) and error.__cause__) or error
        reason = " ".join(str(told).split()) or type(told).__name__
        raise CheckpointError(f"{what}: {reason}") from error


class Shareable:
    """What every model can do with folders and the Hub, once it says what a checkpoint of it must know."""

    @property
    def header(self) -> Header:
        """What a checkpoint of this model says about it."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``model.safetensors``, ``config.json`` and a model card into ``folder``."""
        assert isinstance(self, nn.Module)
        return write_folder(folder, self, self.header)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str = COMMIT,
    ) -> str:
        """Upload the model to the Hugging Face Hub; returns the commit's address."""
        assert isinstance(self, nn.Module)
        return push(repo_id, self, self.header, private, token, revision, commit_message)
