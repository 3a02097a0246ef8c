"""Make weights that come with the package from a finished pre-training: the file, its card and the notice.

It writes into src/cerebro_eeg/weights:

- NAME.safetensors: the run's weights in half precision, with the record of their training and the licences of the data.
- NAME.md and NAME.svg: the card with manifest, command, seconds, curves and table, all from the files of the run.
- NOTICE.md: for each data set its authors, title, link, licence and what was changed, from the pack's LICENCES.md.

The pack must be the one that was prepared. Its rows of split train must be of exactly the subjects that the weights
record, and suffice for their windows; otherwise nothing is written. Equal runs give equal bytes. At the end the SHA-256
is printed, which belongs into src/cerebro_eeg/model/shipped.py.
Run: python tools/ship_weights.py RUN --name small-open --pack PACK
"""

import argparse
import csv
import dataclasses
import hashlib
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cerebro_eeg.config import PRESETS, ModelConfig, ObjectiveConfig, preset
from cerebro_eeg.files import file_sum, write_text
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.shipped import FOLDER, NOTICE
from cerebro_eeg.report.figures import draw_curves, drawing
from cerebro_eeg.schema import from_dict
from cerebro_eeg.train.log import read_lines

LARGEST = 10_000_000
"""Bytes of a file of the repository."""
COLUMNS = ("dataset", "licence", "read", "who", "title", "changed")
Rows = list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished pretrain")
    parser.add_argument("--name", required=True, help="the name of the weights, such as small-open")
    parser.add_argument("--pack", type=Path, required=True, help="the open-EEG pack that was prepared")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write into")
    parser.add_argument("--more", default="", help="flags of the command that run.json does not keep: '--readers 1'")
    parser.add_argument("--note", default="", help="a sentence for the card")
    parser.add_argument("--evaluated", type=Path, nargs="*", default=[], help="evaluated runs from these weights")
    args = parser.parse_args()

    settings = json.loads((args.run / "run.json").read_text(encoding="utf-8"))
    header, tensors = checkpoint.read(args.run / "model.safetensors")
    manifest = read_manifest(args.pack, header, settings)
    licences = read_licences(args.pack / "LICENCES.md", [row["dataset"] for row in manifest])
    header = with_licences(header, licences)
    path = args.out / f"{args.name}.safetensors"
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint.save_tensors(path, {name: tensor.half() for name, tensor in tensors.items()}, header)
    if path.stat().st_size >= LARGEST:
        sys.exit(f"the file has {path.stat().st_size:,} bytes; expected fewer than {LARGEST:,}")
    with drawing(args.out / f"{args.name}.svg", 9, 6) as figure:
        lines = read_lines(args.run / "metrics.jsonl")
        draw_curves(figure, {"": lines}, [("validation_loss", "loss"), ("validation_masked", "own")])
    known = checkpoint.hash_tensors(tensors)
    evaluated = [read_rivals(run, known) for run in args.evaluated]
    card = make_card(args.name, args.run, path, header, settings, manifest, licences, args.more, args.note, evaluated)
    write_text(args.out / f"{args.name}.md", wrapped(card))
    write_text(args.out / NOTICE, wrapped(make_notice(args.name, args.pack / "LICENCES.md", licences, header)))
    print(f"{path.name}: {path.stat().st_size:,} bytes, SHA-256 {file_sum(path)}")


def read_manifest(pack: Path, header: checkpoint.Header, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return recordings, subjects and hours of each data set; exit unless the weights learned from train rows alone."""
    (source,) = header.training.data
    index = {row["record"]: row for row in read_table(pack / "index.csv")}
    left_out = [text for text in settings["settings"]["choices"]["without"] if ":" not in text]
    rows = [row | index[row["record"]] | {"split": row["split"]} for row in read_table(pack / "pretrain.csv")]
    rows = [row for row in rows if row["dataset"] not in left_out]
    train = [row for row in rows if row["split"] == "train"]
    if {mark_of(row) for row in train} != set(source.subjects):
        sys.exit("the weights record other subjects than those of the pack's train rows")
    if {mark_of(row) for row in rows if row["split"] != "train"} & set(source.subjects):
        sys.exit("the weights record a subject of another split")
    choices, model = settings["settings"]["choices"], header.model
    seconds = choices["seconds"] or model.window / model.signal.sfreq
    stride = choices["stride"] or seconds
    possible = sum(int((float(row["duration_s"]) - seconds) / stride + 1e-6) + 1 for row in train)
    if source.windows > possible:
        sys.exit(f"the weights record {source.windows:,} windows and the train rows give at most {possible:,}")
    tests = [row | index[row["record"]] | {"task": path.stem} for path, row in test_rows(pack)]
    if {row["record"] for row in tests} & {row["record"] for row in train}:
        sys.exit("a recording of a test split is among the train rows")
    known = {mark_of(row) for row in train}
    found = []
    for name in sorted({row["dataset"] for row in train}):
        mine = [row for row in train if row["dataset"] == name]
        hours = sum(float(row["duration_s"]) for row in mine) / 3600
        subjects = {row["subject"] for row in mine}
        tasks = sorted({row["task"] for row in tests if row["dataset"] == name and mark_of(row) in known})
        found.append(
            {"dataset": name, "recordings": len(mine), "subjects": len(subjects), "hours": hours, "tested": tasks}
        )
    return found


def test_rows(pack: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the rows of test splits, with the table of their task."""
    for path in sorted((pack / "tasks").glob("*.csv")):
        yield from ((path, row) for row in read_table(path) if row["split"] == "test")


def mark_of(row: dict[str, str]) -> str:
    """Return the mark of a row's subject, as the weights record it (``runs/provenance.py``)."""
    return "s" + hashlib.sha256(f"own\0subject\0{row['dataset']}_{row['subject']}".encode()).hexdigest()[:11]


def read_table(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def read_licences(path: Path, names: list[str]) -> Rows:
    """Return the rows of the table of licences for these data sets; exit if one has none."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [dict(zip(COLUMNS, (cell.strip() for cell in line.strip("|").split("|")), strict=True)) for line in lines]
    links = {short(row["licence"]): row["licence"] for row in reversed(rows) if "(" in row["licence"]}
    rows = [row | {"licence": links.get(row["licence"], row["licence"])} for row in rows]  # it is said once only
    found = {row["dataset"]: row for row in rows}
    if missing := [name for name in names if name not in found]:
        sys.exit(f"LICENCES.md has no row for {', '.join(missing)}")
    return [found[name] for name in names]


def with_licences(header: checkpoint.Header, licences: Rows) -> checkpoint.Header:
    """Return the header with the licence of each data set in the record of its training."""
    (source,) = header.training.data
    text = "; ".join(f"{row['dataset']} {short(row['licence'])}" for row in licences)
    data = (dataclasses.replace(source, licence=text),)
    return dataclasses.replace(header, training=dataclasses.replace(header.training, data=data))


def short(licence: str) -> str:
    """Return the name of a licence without its link."""
    return re.split(r" \(|, text below", licence)[0]


def read_rivals(run: Path, weights: str) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the task of an evaluated run and its scores beside simple rivals; exit if it began from other weights."""
    settings = json.loads((run / "run.json").read_text(encoding="utf-8"))["settings"]
    if settings["from"] != weights:
        sys.exit("an evaluated run did not begin from these weights")
    how = "a linear probe on frozen features has" if settings["choices"]["freeze"] else "fine-tuned it has"
    return settings["task"]["task"], how, json.loads((run / "rivals.json").read_text(encoding="utf-8"))["rivals"]


def command_of(settings: dict[str, Any], more: str) -> str:
    """Return the command that makes a run with these settings."""
    choices, table, engine = settings["settings"]["choices"], settings["settings"]["pretrain"], settings["engine"]
    model = from_dict(ModelConfig, settings["settings"]["model"])
    objective = from_dict(ObjectiveConfig, settings["settings"]["objective"], ObjectiveConfig())
    same = [
        name
        for name, one in PRESETS.items()
        if dataclasses.replace(one.model, signal=model.signal) == model and one.objective == objective
    ]
    if not same:
        sys.exit("model and objective are no preset's, so the command is not known")
    usual = preset(same[0]).pretrain
    words = [f"--preset {same[0]}"]
    for flag in ("stride", "seconds", "steps"):
        if choices[flag] is not None:
            words.append(f"--{flag} {choices[flag]:g}")
    if table["batch_size"] != usual.batch_size:
        words.append(f"--batch-size {table['batch_size']}")
    if table["peak_lr"] != usual.peak_lr:
        words.append(f"--lr {table['peak_lr']:g}")
    words += [f"--seed {choices['seed']}"] if choices["seed"] else []
    words += ["--without " + " ".join(choices["without"])] if choices["without"] else []
    words += ["--paper"] if choices["paper"] else []
    words += [f"--threads {engine['threads']}"] if engine["device"] == "cpu" else []
    return " ".join(["cerebro-eeg pretrain store", *words, *([more] if more else []), "--out run"])


def make_card(
    name: str,
    run: Path,
    path: Path,
    header: checkpoint.Header,
    settings: dict[str, Any],
    manifest: list[dict[str, Any]],
    licences: Rows,
    more: str,
    note: str,
    evaluated: list[tuple[str, str, list[dict[str, Any]]]],
) -> str:
    """Return the text of the card."""
    training, signal, model = header.training, header.model.signal, header.model
    lines = read_lines(run / "metrics.jsonl")
    steps = [line for line in lines if "loss" in line]
    seconds = sum(line["seconds"] for line in steps)
    error = [line["validation_masked"] for line in lines if "validation_masked" in line][-1]
    found = json.loads((run / "reconstruction.json").read_text(encoding="utf-8"))["found"]
    engine, versions = settings["engine"], settings["versions"]
    device = f"{engine['threads']} CPU cores" if engine["device"] == "cpu" else f"{engine['device']}"
    choices = settings["settings"]["choices"]
    length = choices["seconds"] or model.window / signal.sfreq
    hours, people = sum(row["hours"] for row in manifest), sum(row["subjects"] for row in manifest)
    (source,) = training.data
    total = found["total"]
    lacking = [row["dataset"] for row in licences if not row["read"].startswith("yes")]
    tables = {
        "manifest": [
            f"| {row['dataset']} | {row['recordings']} | {row['subjects']} | {row['hours']:.2f} | "
            f"{short(of['licence'])} | {of['read'].partition(' ')[0]} |"
            for row, of in zip(manifest, licences, strict=True)
        ],
        "curve": [curve_row(steps[k : k + 100]) for k in range(0, len(steps), 100)],
        "errors": [error_row(group["dataset"], len(group["montage"]), group["errors"]) for group in found["groups"]],
    }
    remarks = "".join(f" {row['dataset']}: {row['read'][5:-1]}." for row in licences if row["read"].startswith("yes ("))
    shared = "".join(
        f" Exception: the test rows of {', '.join(row['tested'])} are other recordings of a person in {row['dataset']}."
        for row in manifest
        if row["tested"]
    )
    points = [
        f"Small: {count_parameters(path):,} numbers in half precision, {path.stat().st_size / 1e6:.1f} MB; they become "
        "float32 on loading.",
        f"Learned from {hours:.1f} h of EEG of {people} subjects from {len(manifest)} data sets: rows `train` of "
        "`pretrain.csv` of the open-EEG pack, nothing else.",
        f"{training.steps:,} steps, {training.windows:,} windows; {seconds:,.0f} s on {device}.",
        f"Masked error on subjects that were not trained on: {error:.3f} of the variance; on {total['windows']} of the "
        f"windows it is {total['model']:.3f}, and ridge regression from the other channels has {total['ridge']:.3f}.",
        f"{len(training.electrode_windows)} electrodes have trained rows; other electrodes need `--untrained`.",
        f"Expects microvolts at {signal.sfreq:g} Hz, {signal.highpass:g} to {signal.lowpass:g} Hz, "
        f"windows of {length:g} s.",
        f"Licence: Apache-2.0; the data have licences of their own, see {NOTICE}.",
        "For research. Not a medical device.",
    ]
    listed = "\n".join(f"- {point}" for point in points)
    return f"""# {name}: open weights of CEReBrO

```python
from cerebro_eeg import Cerebro

model = Cerebro.from_pretrained("{name}")  # in the package; no network is needed
```

## In short

{listed}
{f"{chr(10)}{note}{chr(10)}" if note else ""}
## Data

| data set | recordings | subjects | hours | licence | licence read at its source |
| --- | --- | --- | --- | --- | --- |
{chr(10).join(tables["manifest"])}
| all | {sum(row["recordings"] for row in manifest)} | {people} | {hours:.2f} | | |

Windows of {length:g} s begin every {choices["stride"] or length:g} s, so they overlap:
{source.windows:,} windows are {source.hours:.1f} h of windows, which is what `info` prints.
The subjects are recorded in the file as hashes that name nobody.
So `finetune` and `evaluate` can warn when a test subject was learned from.
No test recording of the pack's tasks was learned from, and no test subject.{shared}

[{NOTICE}]({NOTICE}) names authors, titles, links and changes.
For {", ".join(lacking) or "no data set"} the licence is known from the landing page and was not read at its
source.{remarks}
`cerebro-eeg pretrain store --without muse` and the other flags below repeat the run without that data set.

## How it was trained

```sh
cerebro-eeg prepare openeeg path/to/pack --out store
{command_of(settings, more)}
```

{seconds:,.0f} s of training steps on {device}; torch {versions["torch"]}, {engine["precision"]}.
The store has the SHA-256 `{source.sha256}`. The file was made by `tools/ship_weights.py`.

![Loss, validation error, learning rate and gradient norm over the steps]({name}.svg)

Means over the steps, of the training windows:

| steps | loss | masked error | visible error |
| --- | --- | --- | --- |
{chr(10).join(tables["curve"])}

## What it can do

Masked error as a share of the variance, on {total["windows"]} of {found["available"]:,} windows of validation subjects.
Rivals on the same masked patches: the mean, interpolation in time, ridge regression from the other channels
at the same instant.

| data set (channels) | windows | model | mean | interpolation | ridge |
| --- | --- | --- | --- | --- | --- |
{chr(10).join(tables["errors"])}
{error_row("all", None, total)}
{"".join(rivals_text(*one) for one in evaluated)}
## Limits

For research. Not a medical device; not for diagnosis or treatment. An independent implementation,
not affiliated with the authors of the paper (Dimofte et al., CEReBrO, arXiv:2501.10885),
which is what to cite for the method.
"""


def wrapped(page: str) -> str:
    """Return a page with the lines of its plain paragraphs filled; code, tables, lists and titles stay."""
    parts = page.split("```")
    for number in range(0, len(parts), 2):
        blocks = parts[number].split("\n\n")
        for place, block in enumerate(blocks):
            if block.strip() and not block.lstrip().startswith(("#", "|", "- ", "![")):
                ends = block[: len(block) - len(block.lstrip())], block[len(block.rstrip()) :]
                blocks[place] = ends[0] + textwrap.fill(block.strip(), 120, break_on_hyphens=False) + ends[1]
        parts[number] = "\n\n".join(blocks)
    return "```".join(parts)


def curve_row(lines: list[dict[str, Any]]) -> str:
    means = [sum(line[key] for line in lines) / len(lines) for key in ("loss", "masked", "visible")]
    return f"| {lines[0]['step']:,} to {lines[-1]['step']:,} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |"


def error_row(name: str, channels: int | None, errors: dict[str, Any]) -> str:
    values = " | ".join(f"{errors[key]:.3f}" for key in ("model", "mean", "interpolation", "ridge"))
    return f"| {name}{'' if channels is None else f' ({channels})'} | {errors['windows']} | {values} |"


def rivals_text(task: str, how: str, rivals: list[dict[str, Any]]) -> str:
    """Return the paragraph on one evaluated task."""
    first = rivals[0]
    others = ", ".join(f"{one['name']} {one['rival']:.3f}" for one in rivals)
    best = max(one["rival"] for one in rivals)
    verdict = "Simple features do better here." if best > first["ours"] else "It does better than simple features here."
    return f"""
Task {task}, {first["metric"].upper()} on {first["subjects"]} test subjects: {how} {first["ours"]:.3f},
with the weights before they were rounded; {others}. {verdict}
"""


def count_parameters(path: Path) -> int:
    return sum(tensor.numel() for tensor in checkpoint.read(path)[1].values() if tensor.dtype == torch.float16)


def make_notice(name: str, path: Path, licences: Rows, header: checkpoint.Header) -> str:
    """Return the attributions of the data that the weights learned from."""
    signal = header.model.signal
    blocks = "\n".join(
        f"""## {row["dataset"]}

- Authors: {row["who"]}
- Title and link: {row["title"]}
- Licence: {row["licence"]}
- Licence read at its source: {row["read"]}
- Changed in the pack: {row["changed"]}
"""
        for row in licences
    )
    text = path.read_text(encoding="utf-8")
    ends = [
        f"## Licence of {row['dataset']}\n\n" + text.partition(f"Licence of `{row['dataset']}`:\n\n")[2].strip() + "\n"
        for row in licences
        if "text below" in row["licence"]
    ]
    return f"""# Notice: the data behind the weights {name}

The weights are licensed under Apache-2.0, as the package is. They were learned from the recordings below,
which have licences of their own. No recording is part of the package.

What was changed, in all data sets: recordings were band-passed from {signal.highpass:g} to {signal.lowpass:g} Hz,
resampled to {signal.sfreq:g} Hz, rounded to half precision and cut into windows, which were scaled.
Where mains were found, a notch of {signal.notch_width:g} Hz removed them.
Only weights that were learned from the recordings are here.
What the pack had changed before is said with each data set.

"Licence read at its source" says whether the licence was read at a primary source when the pack was made.
"no" means that it is known from the landing page and could not be opened again.
The rows are those of the pack's LICENCES.md.

{blocks}{"".join(chr(10) + end for end in ends)}"""


if __name__ == "__main__":
    main()
