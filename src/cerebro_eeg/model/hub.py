"""Models in folders and on the Hugging Face Hub: ``model.safetensors``, ``config.json`` and a model card.

Local folders and files come first and need no network. Then come names of weights that are part of the package, such
as ``small-open``. The Hub is asked only for a string of the form ``owner/model`` that does not exist on the disk, never
for a ``Path``. ``HF_HUB_OFFLINE`` and ``local_files_only`` are respected.
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
from cerebro_eeg.files import begin_sums, parse_json, remove, write_text
from cerebro_eeg.model.checkpoint import FORMAT, READS, VERSION, Header, check_savable, complete, read, save
from cerebro_eeg.model.shipped import SHIPPED, is_shipped, shipped_names, shipped_weights
from cerebro_eeg.schema import did_you_mean

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
    """Return the path of the checkpoint in a local file, a local folder, the package or a repository on the Hub."""
    path = Path(os.path.expanduser(source))  # unlike Path.expanduser, it does not raise for an unknown user
    if os.path.isdir(path):
        return _in_folder(path)
    asked = isinstance(source, str) and REPO_ID.fullmatch(source) and source[0] != "." and path.suffix != ".safetensors"
    if is_shipped(source):
        return shipped_weights(str(source))
    if path.name == str(source) and not path.suffix and not os.path.lexists(path):
        raise CheckpointError(
            f"there is no checkpoint {source}{did_you_mean(path.name, SHIPPED)}; give a .safetensors file or a folder "
            f"that holds one, or a name of weights that come with the package: {shipped_names()}"
        )
    if not asked or os.path.exists(path):
        return path  # if it does not exist, reading it raises a clear error
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
    """Return header and tensors of a checkpoint in a file, a folder, the package or on the Hub, both checked."""
    return read(find(source, revision, token, cache_dir, force_download, local_files_only))


def write_folder(folder: str | Path, module: nn.Module, header: Header) -> Path:
    """Write weights, config and, unless there is one already, a model card."""
    folder = Path(folder)
    check_savable(module.state_dict(), header)  # a refusal leaves a folder as it was
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove(folder / CONFIG)  # a killed process must not leave an old config with new weights
        save(folder / WEIGHTS, module, header)
        write_text(folder / CONFIG, json.dumps(_config(header), indent=2) + "\n")
        if not (folder / CARD).exists():
            write_text(folder / CARD, make_card(header), summed=False)  # made for people to edit
        begin_sums(folder, [WEIGHTS, CONFIG])
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
    """Create the repository if it does not exist, upload the model's folder, and return the address of the commit."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, module, header)
        with _one_line(f"the model could not be uploaded to {repo_id}"):
            api = HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None and not revision.startswith("refs/pr/"):
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            written = api.file_exists(repo_id, CARD, revision=revision)  # a person may have edited it: keep it
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message,
                ignore_patterns=[CARD] if written else None,
            )
    return str(commit.commit_url)


def make_card(header: Header) -> str:
    """Return the text of a model card: expected input, training data and limits."""
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
import cerebro_eeg

found = cerebro_eeg.embed("recording.edf", "this folder or repository")  # or an MNE Raw; it is filtered as below
print(found.features.shape, found.start)
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
    """Return the path of the weights in a folder; raise if its ``config.json`` contradicts them."""
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
            stated = parse_json(config.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise CheckpointError(f"{config} is not JSON ({error}); remove it or save the model again") from error
        if not _is_config_of(stated, read_header(path)):
            raise CheckpointError(
                f"{config} differs from the config inside {WEIGHTS}, which is the one that counts; "
                "remove it or save the model again"
            )
    return path


def _is_config_of(stated: object, header: Header) -> bool:
    """Return whether a ``config.json``, which an older release may have written, describes this checkpoint."""
    if not isinstance(stated, dict) or stated.get("model_type") != FORMAT or str(stated.get("version")) not in READS:
        return False
    found = {name: value for name, value in stated.items() if name not in ("model_type", "version")}
    return complete(found, str(stated["version"])) == header.to_dict()


def _config(header: Header) -> dict[str, object]:
    """Return the content of ``config.json``: the header of the checkpoint with its format and version."""
    return {"model_type": FORMAT, "version": VERSION, **header.to_dict()}


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turn every error of the Hub's library into one line. Its errors and its HTTP library's share no base class."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except Exception as error:
        # The cause ("offline", "no network") explains more than the error itself, which says "not in the cache".
        shown = (isinstance(error, LocalEntryNotFoundError) and error.__cause__) or error
        reason = " ".join(str(shown).split()) or type(shown).__name__
        raise CheckpointError(f"{what}: {reason}") from error


class Shareable:
    """A model that can be saved to a folder and uploaded to the Hub. Subclasses describe themselves by ``header``."""

    @property
    def header(self) -> Header:
        """The description of this model in a checkpoint."""
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
        """Upload the model to the Hugging Face Hub, and return the address of the commit."""
        assert isinstance(self, nn.Module)
        return push(repo_id, self, self.header, private, token, revision, commit_message)
