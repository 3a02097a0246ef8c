"""Loading a checkpoint returns exactly the saved weights or raises a one-line error, and never other weights."""

import ast
import dataclasses
import functools
import hashlib
import io
import json
import logging
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import cerebro_eeg
import reference as ref
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.commands.info_model import info_model
from cerebro_eeg.config import HeadConfig, ObjectiveConfig, PatchConfig, Source, Training
from cerebro_eeg.errors import CheckpointError, ConfigError
from cerebro_eeg.model import checkpoint, hub
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.checkpoint import Header, LoadReport, hash_tensors, load_into, read, read_header, save
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.schema import from_dict
from tiny_models import randomized, small

WEIGHTS = "model.safetensors"
OLD = {
    "style": "simmim",
    "mask_ratio": 0.5,
    "alpha": 0.1,
    "patch_error": "mean",
    "decoder_depth": 2,
    "decoder_width": None,
    "decoder_heads": None,
}
"""The fields of an objective in files of older releases."""
TRAINING = Training(7, 350, {"Cz": 350, "Fp1": 20}, (Source("open", 350, 0.5, "ab12", "CC0"),))
HEAD = ("final_layer.weight", "final_layer.bias")


def classifier(n_outputs=3, **changes):
    """Return a Cerebro with different values in every weight, names for its outputs, and a training record."""
    model = randomized(Cerebro(n_outputs, config=small(**changes))).float().eval()
    model.head = HeadConfig(n_outputs, names=tuple("abcdefgh"[:n_outputs]))
    model.training_record = TRAINING
    return model


def masked(style="simmim", **changes):
    """Return a MaskedCerebro of that kind, with a decoder of another width."""
    model = randomized(MaskedCerebro(small(**changes), ObjectiveConfig(style=style, decoder_width=8, decoder_heads=2)))
    model.training_record = TRAINING
    return model.float()


def same_state(model, other):
    """Return whether two models have the same types, shapes and bytes."""
    return hash_tensors(model.state_dict()) == hash_tensors(other.state_dict())


def rewritten(path, source, change):
    """Copy a checkpoint, apply ``change(parts, tensors)``, and correct its SHA-256 sums unless ``change`` sets them."""
    header, tensors = read(source)
    parts = {"format": "cerebro-eeg", "version": "3", "config": header.to_dict()}
    change(parts, tensors)
    if not isinstance(parts["config"], str):
        parts["config"] = json.dumps(parts["config"])
    parts.setdefault("config_sha256", hashlib.sha256(parts["config"].encode()).hexdigest())
    parts.setdefault("tensors_sha256", hash_tensors(tensors))
    save_file(tensors, path, parts)
    return path


def refused(path, *words):
    """Return the one-line error for ``path``, the same for every function that opens it."""
    with pytest.raises(CheckpointError) as error:
        Cerebro.from_pretrained(path)
    line = str(error.value)
    assert "\n" not in line
    assert str(path) in line
    assert len(line) - len(str(path)) < 300
    assert any(advice in line for advice in ("get the file again", "give a", "ask for", "install", "save the model"))
    for word in words:
        assert word in line
    with pytest.raises(CheckpointError):
        MaskedCerebro.from_pretrained(path)
    return line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a classifier; tests must not change it."""
    return classifier().save_pretrained(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Return the folder of a ViTMAE model; tests must not change it."""
    return masked("vitmae").save_pretrained(tmp_path_factory.mktemp("masked"))


# --- 1. Round trip ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        classifier,
        functools.partial(classifier, attention="two_axis", norm="post", amplitude=True),
        functools.partial(classifier, bias=False, attention="standard"),
        functools.partial(classifier, patches=PatchConfig(kind="squares", phase="separated"), window=320),
        functools.partial(Cerebro, config=small()),
        masked,
        functools.partial(masked, "vitmae", attention="bottleneck"),
    ],
    ids=["classifier", "two-axis", "no bias", "squares", "headless", "simmim", "vitmae"],
)
@pytest.mark.parametrize("whole_folder", [True, False], ids=["folder", "file"])
def test_round_trip_is_bitwise(make, whole_folder, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    source = tmp_path if whole_folder else tmp_path / WEIGHTS
    back = type(model).from_pretrained(source)
    assert same_state(model, back)
    assert list(back.state_dict()) == list(model.state_dict())
    assert back.header == model.header
    assert back.training_record == model.training_record
    assert back.load_report == LoadReport(str(source), tuple(model.state_dict()))
    assert back.load_report.exact
    assert read_header(tmp_path / WEIGHTS) == model.header


def test_round_trip_keeps_what_the_model_computes(folder):
    model = classifier()
    back = Cerebro.from_pretrained(folder)
    x = np.random.default_rng(0).normal(size=(2, 2, 40)) * 20
    assert (model.embed(x, ch_names=["Cz", "Fp1"]) == back.embed(x, ch_names=["Cz", "Fp1"])).all()
    assert not back.training


@pytest.mark.parametrize("make", [classifier, masked])
def test_float64_is_not_rounded(make, tmp_path):
    model = randomized(make(), seed=3)
    back = type(model).from_pretrained(model.save_pretrained(tmp_path))
    assert same_state(model, back)
    assert {t.dtype for t in back.state_dict().values()} == {torch.float64}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [classifier, masked])
def test_half_precision_is_kept_to_the_bit_in_float32(make, dtype, tmp_path):
    model = make().to(dtype)
    back = type(model).from_pretrained(model.save_pretrained(tmp_path))
    assert {t.dtype for t in read(tmp_path / WEIGHTS)[1].values()} == {dtype}
    assert {t.dtype for t in back.state_dict().values()} == {torch.float32}
    assert same_state(model, back.to(dtype))
    for name, tensor in model.state_dict().items():
        assert (tensor.float() == back.state_dict()[name]).all()


def test_file_is_the_same_whenever_the_model_is(folder, tmp_path):
    again = Cerebro.from_pretrained(folder).save_pretrained(tmp_path)
    for name in (WEIGHTS, "config.json", "README.md"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_numpy_numbers_can_be_saved(tmp_path):
    model = classifier()
    model.head = HeadConfig(np.int64(3))
    model.training_record = Training(electrode_windows={"Cz": np.int64(4)})
    assert Cerebro.from_pretrained(model.save_pretrained(tmp_path)).training_record == model.training_record


def test_a_record_that_could_not_be_loaded_cannot_be_made():
    with pytest.raises(ConfigError, match=r"Source\.hours is nan; expected a finite number"):
        Source("s", hours=float("nan"))
    with pytest.raises(ConfigError, match="Fp1 is counted -1"):
        Training(electrode_windows={"Fp1": -1})


def test_head_that_its_config_does_not_describe_is_not_saved(tmp_path):
    model = classifier(3)
    model.final_layer = torch.nn.Linear(12, 7)
    with pytest.raises(
        ConfigError, match=r"final_layer\.weight has the shape \(7, 12\); expected \(3, 12\); use reset"
    ):
        model.save_pretrained(tmp_path)
    assert not (tmp_path / WEIGHTS).exists()


class Adapted(torch.nn.Module):
    """A layer with an adapter beside it, with the names that peft gives them."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(layer.in_features, 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(2, layer.out_features, bias=False)})


def adapt_attention(model):
    model.encoder.blocks[1].attention.qkv = Adapted(model.encoder.blocks[1].attention.qkv)


def adapt_last_layer(model):
    name = "final_layer" if isinstance(model, Cerebro) else "reconstruct"
    setattr(model, name, Adapted(getattr(model, name)))


def parametrize(model):
    torch.nn.utils.parametrizations.weight_norm(model.encoder.blocks[0].mlp.up)


def compile_part(model):
    model.encoder.blocks[0] = torch.compile(model.encoder.blocks[0], backend="eager")


def replace_norm(model):
    model.encoder.norm = torch.nn.Identity()


def add_part(model):
    model.extra = torch.nn.Linear(2, 2)


def add_buffer(model):
    model.encoder.register_buffer("seen", torch.zeros(3))


def widen(model):
    model.encoder.blocks[0].mlp.up = torch.nn.Linear(12, 25)


def quantize(model):
    model.encoder.mask_token = torch.nn.Parameter(model.encoder.mask_token.to(torch.int8), requires_grad=False)


@pytest.mark.parametrize("make", [classifier, masked])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (adapt_attention, "adapters that are not merged (encoder.blocks.1.attention.qkv.base_layer.weight); save the "),
        (adapt_last_layer, ".base_layer.weight); save the model that merge_and_unload() returns"),
        (parametrize, "remove_parametrizations first"),
        (compile_part, "torch.compile has replaced a part of it (encoder.blocks.0._orig_mod."),
        (replace_norm, "encoder.norm.weight is missing; put its own parts back"),
        (add_part, "extra.weight is not part of it"),
        (add_buffer, "encoder.seen is not part of it"),
        (widen, "encoder.blocks.0.mlp.up.weight has the shape (25, 12); expected (24, 12)"),
        (quantize, "encoder.mask_token is torch.int8"),
    ],
)
def test_a_model_that_could_not_be_loaded_is_not_saved(change, words, make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    change(model)
    for write in (lambda: model.save_pretrained(tmp_path), lambda: save(tmp_path / WEIGHTS, model, model.header)):
        with pytest.raises(ConfigError) as error:
            write()
        line = str(error.value)
        assert line.startswith("the model cannot be saved: ")
        assert words in line
        assert "\n" not in line
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before  # a sound folder stays whole


@pytest.mark.parametrize("make", [classifier, masked])
def test_adapters_of_peft_are_saved_only_after_they_were_merged(make, tmp_path):
    peft = pytest.importorskip("peft")
    model = make()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["qkv", "up"], init_lora_weights=False))
    with pytest.raises(ConfigError, match=r"adapters that are not merged .* merge_and_unload\(\)"):
        model.save_pretrained(tmp_path)
    merged = wrapped.merge_and_unload()
    assert same_state(type(model).from_pretrained(merged.save_pretrained(tmp_path)), merged)


def test_saving_draws_no_random_number(tmp_path):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model = classifier()
    torch.manual_seed(0)
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_head_taken_off_is_said_to_be_new(tmp_path):
    model = classifier(3)
    model.final_layer = torch.nn.Identity()
    assert Cerebro.from_pretrained(model.save_pretrained(tmp_path)).load_report.missing == HEAD


def test_length_of_the_header_is_not_taken_for_a_pickle(tmp_path):
    """A header of 128 bytes more than a multiple of 256 starts the file with 0x80, as a pickle does."""
    path = tmp_path / WEIGHTS
    model = classifier()
    for length in range(0, 264, 8):
        model.training_record = Training(data=(Source("x" * length),))
        save(path, model, model.header)
        if path.read_bytes()[0] == 0x80:
            break
    assert path.read_bytes()[0] == 0x80
    assert same_state(Cerebro.from_pretrained(path), model)


# --- 2. What became of each tensor ------------------------------------------------------------------------------------


def test_report_counts_and_names():
    report = LoadReport("f", ("a", "b"), ("c",), ("d", "e"), ("b",), tuple("ghijkl"))
    assert str(report) == (
        "f: 2 tensors loaded; 1 reshaped: b; 1 missing (new, random): c; 6 replaced by new, random ones: g, h, i, j "
        "and 2 more; 2 unexpected (left aside): d, e"
    )
    assert not report.exact
    assert LoadReport("f", ("a",), unexpected=("b",)).exact


@pytest.mark.parametrize("style", ["simmim", "vitmae"])
@pytest.mark.parametrize("n_outputs", [None, 2])
def test_classifier_from_a_masked_model_leaves_the_objective_aside(style, n_outputs, tmp_path, caplog):
    model = masked(style)
    path = model.save_pretrained(tmp_path)
    caplog.set_level(logging.INFO, "cerebro_eeg")
    back = Cerebro.from_pretrained(path, n_outputs)
    rest = {name for name in model.state_dict() if not name.startswith("encoder.")}
    assert rest >= {"reconstruct.weight", "reconstruct.bias"}
    assert any(name.startswith("decoder.") for name in rest) == (style == "vitmae")
    report = back.load_report
    assert set(report.unexpected) == rest
    assert set(report.loaded) == set(model.state_dict()) - rest
    assert report.missing == (() if n_outputs is None else HEAD)
    assert report.reshaped == report.replaced == ()
    assert same_state(model.encoder, back.encoder)
    assert back.training_record == TRAINING
    assert back.head == (None if n_outputs is None else HeadConfig(n_outputs))
    (record,) = [r for r in caplog.records if "tensors loaded" in r.getMessage()]
    assert record.name == "cerebro_eeg"
    assert record.levelno == (logging.INFO if n_outputs is None else logging.WARNING)
    assert record.getMessage() == str(report)
    assert str(report).endswith(f"; {len(rest)} that only pre-training needs were left aside")


def test_same_number_of_outputs_keeps_the_head_and_its_names(folder, caplog):
    back = Cerebro.from_pretrained(folder, 3)
    assert back.head == HeadConfig(3, names=("a", "b", "c"))
    assert same_state(back, classifier())
    assert back.load_report.exact
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_other_number_of_outputs_replaces_the_head_and_says_so(folder, caplog):
    back = Cerebro.from_pretrained(folder, 5)
    assert back.head == HeadConfig(5)
    assert back.final_layer.weight.shape == (5, 12)
    assert back.load_report.replaced == HEAD
    assert set(back.load_report.loaded) == {n for n in back.state_dict() if n.startswith("encoder.")}
    assert back.load_report.missing == back.load_report.unexpected == back.load_report.reshaped == ()
    assert same_state(back.encoder, classifier().encoder)
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert (record.name, record.levelno) == ("cerebro_eeg", logging.WARNING)
    assert "2 replaced by new, random ones: final_layer.weight, final_layer.bias" in record.getMessage()


def test_objective_from_a_classifier_is_new_and_says_so(folder, caplog):
    back = MaskedCerebro.from_pretrained(folder)
    assert back.load_report.missing == ("reconstruct.weight", "reconstruct.bias")
    assert set(back.load_report.unexpected) == set(HEAD)
    assert same_state(back.encoder, classifier().encoder)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_other_objective_keeps_the_encoder(pretrained, caplog):
    back = MaskedCerebro.from_pretrained(pretrained, ObjectiveConfig())
    assert set(back.load_report.replaced) == {"reconstruct.weight"}  # the decoder of the file is narrower
    assert back.load_report.unexpected
    assert all(n.startswith("decoder.") for n in back.load_report.unexpected)
    assert same_state(back.encoder, masked("vitmae").encoder)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    ("patches", "window", "other"),
    [
        (PatchConfig(length=8, stride=8), 40, 16),
        (PatchConfig(length=8, stride=8), 40, 41 + 7),
        (PatchConfig(length=8, stride=8), 40, 800),
        (PatchConfig(kind="squares"), 640, 256),
        (PatchConfig(kind="squares"), 512, 1280),
    ],
)
def test_other_window_slices_or_interpolates_positions_and_says_so(patches, window, other, tmp_path, caplog):
    model = randomized(Cerebro(2, config=small(patches=patches, window=window)))
    back = Cerebro.from_pretrained(model.save_pretrained(tmp_path), window=other)
    table = model.encoder.positions.detach().numpy()
    expected = ref.positions(table, patches.count(other), patches.bands)
    assert len(expected) != len(table)
    np.testing.assert_allclose(back.encoder.positions.detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    assert back.config == dataclasses.replace(model.config, window=other)
    assert back.load_report.reshaped == ("encoder.positions",)
    assert set(back.load_report.loaded) == set(model.state_dict())
    assert "1 reshaped: encoder.positions" in caplog.text
    rest = {n for n in model.state_dict() if n != "encoder.positions"}
    assert all((model.state_dict()[n] == back.state_dict()[n]).all() for n in rest)


def test_positions_in_half_precision_are_interpolated_in_full(tmp_path):
    model = classifier().bfloat16()
    back = Cerebro.from_pretrained(model.save_pretrained(tmp_path), window=88)
    expected = ref.positions(model.encoder.positions.detach().float().numpy(), 11)
    np.testing.assert_allclose(back.encoder.positions.detach().numpy(), expected, rtol=1e-6, atol=1e-6)


def test_window_with_as_many_patches_reshapes_nothing(folder):
    assert Cerebro.from_pretrained(folder, window=47).load_report.exact


def test_rows_of_another_vocabulary_land_by_name(folder, tmp_path, caplog):
    gone, new = VOCABULARY[5], ("X97", "X98")
    names = [n for n in VOCABULARY if n != gone] + list(new)
    random.Random(0).shuffle(names)
    old = read(folder / WEIGHTS)[1]["encoder.electrodes"]
    values = dict(zip(VOCABULARY, old[1:], strict=True)) | {n: torch.ones(12) * 9 for n in new}

    def change(parts, tensors):
        parts["config"]["electrodes"] = names
        tensors["encoder.electrodes"] = torch.stack([torch.zeros(12), *(values[n] for n in names)])

    path = rewritten(tmp_path / WEIGHTS, folder / WEIGHTS, change)
    back = Cerebro.from_pretrained(path)
    table = back.encoder.electrodes.detach()
    assert table.shape == (len(VOCABULARY) + 1, 12)
    for row, name in enumerate(VOCABULARY, 1):
        assert torch.equal(table[row], values[name]) == (name != gone)
    assert (table[0] == 0).all()
    assert (table[1 + VOCABULARY.index(gone)].abs() <= 2 * back.config.init_std).all()  # new, not from the file
    assert back.load_report.reshaped == ("encoder.electrodes",)
    assert sorted(back.load_report.forgotten) == list(new)
    assert "2 electrodes unknown here (left aside): X9" in caplog.text
    assert "1 reshaped: encoder.electrodes" in caplog.text
    again = Cerebro.from_pretrained(back.save_pretrained(tmp_path / "again"))
    assert again.load_report.exact
    assert same_state(back, again)


# --- 3. An encoder that is not whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(classifier().encoder.state_dict()))
def test_missing_encoder_tensor_is_refused_by_name(name, folder, tmp_path):
    path = rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, lambda _, tensors: tensors.pop(f"encoder.{name}"))
    refused(path, f"encoder.{name}", "whole")


@pytest.mark.parametrize("name", ["blocks.2.norm1.weight", "phase", "amplitude.weight", "anything"])
def test_further_encoder_tensor_is_refused_by_name(name, folder, tmp_path):
    def change(_, tensors):
        tensors[f"encoder.{name}"] = torch.zeros(12)

    refused(rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, change), f"encoder.{name}", "whole")


@pytest.mark.parametrize("name", ["embed.weight", "positions", "electrodes", "mask_token", "blocks.1.mlp.up.weight"])
@pytest.mark.parametrize("alter", [lambda t: t[:-1], lambda t: t[None], lambda t: t.to(torch.int32)])
def test_encoder_tensor_of_another_shape_or_type_is_refused_by_name(name, alter, folder, tmp_path):
    def change(_, tensors):
        tensors[f"encoder.{name}"] = alter(tensors[f"encoder.{name}"]).contiguous()

    refused(rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, change), f"encoder.{name}", "whole")


def test_refusal_leaves_the_module_as_it_was(folder):
    header, tensors = read(folder / WEIGHTS)
    del tensors["encoder.norm.weight"]
    model = Cerebro(3, config=small())
    before = hash_tensors(model.state_dict())
    with pytest.raises(CheckpointError, match=r"encoder\.norm\.weight"):
        load_into(model, header, tensors, "here")
    assert hash_tensors(model.state_dict()) == before


def test_decoder_must_be_the_one_that_the_config_describes(pretrained, tmp_path):
    path = rewritten(
        tmp_path / "m.safetensors", pretrained / WEIGHTS, lambda _, t: t.pop("decoder.blocks.1.mlp.up.weight")
    )
    refused(path, "decoder.blocks.1.mlp.up.weight is missing")


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_small_file_cannot_describe_a_huge_model(part, pretrained, tmp_path):
    """The last block of many is there, and none before it."""

    def change(parts, tensors):
        place, name = ("model", "depth") if part == "encoder" else ("objective", "decoder_depth")
        parts["config"][place][name] = 1000
        tensors[f"{part}.blocks.999.mlp.up.weight"] = tensors[f"{part}.blocks.1.mlp.up.weight"].clone()

    path = rewritten(tmp_path / "m.safetensors", pretrained / WEIGHTS, change)
    refused(path, "whole", "tensors for 100")


def test_a_small_file_cannot_ask_for_a_huge_head(folder, tmp_path):
    def change(parts, tensors):
        parts["config"]["head"].update(n_outputs=10**11, names=[])
        for name in HEAD:
            del tensors[name]

    refused(rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, change), "n_outputs is 100000000000")


def test_sizes_are_compared_before_a_tensor_is_read(folder, tmp_path, monkeypatch):
    path = rewritten(
        tmp_path / "m.safetensors", folder / WEIGHTS, lambda parts, _: parts["config"]["model"].update(depth=4)
    )
    monkeypatch.setattr("cerebro_eeg.model.checkpoint.hash_tensors", lambda _: pytest.fail("tensors were read"))
    refused(path, "encoder.blocks.3.mlp.up.weight is missing")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["encoder.positions", "encoder.blocks.1.mlp.down.bias", "final_layer.weight"])
def test_weights_that_are_not_finite_are_neither_loaded_nor_saved(name, number, folder, tmp_path):
    def change(_, tensors):
        tensors[name].view(-1)[-1] = number

    refused(rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, change), f"NaN or infinity, first in {name}")
    model = Cerebro.from_pretrained(folder)
    change(None, model.state_dict())
    with pytest.raises(ConfigError, match=f"cannot be saved: its weights hold NaN or infinity, first in {name}"):
        model.save_pretrained(tmp_path)


# --- 4. Files that are damaged, altered or something else -------------------------------------------------------------


def test_file_cut_anywhere_is_refused(folder, tmp_path):
    data = (folder / WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    cuts = {*range(0, 12), start // 2, start - 1, start, start + 1, len(data) - 1}
    cuts |= set(random.Random(1).sample(range(len(data)), 100))
    path = tmp_path / "cut.safetensors"
    for cut in cuts:
        path.write_bytes(data[:cut])
        refused(path)
    path.write_bytes(data + b"\0")
    refused(path)


@pytest.mark.parametrize("where", ["length", "header", "tensors"])
def test_no_flipped_bit_gives_other_weights(where, folder, tmp_path):
    """A flipped bit is an error. The only harmless one turns the space before the tensors into another white space."""
    data = (folder / WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header, tensors = read(folder / WEIGHTS)
    chance = random.Random(2)
    bounds = {"length": (0, 8), "header": (8, start), "tensors": (start, len(data))}[where]
    flips = [(chance.randrange(*bounds), 1 << chance.randrange(8)) for _ in range(400)]
    flips += [
        (at, chance.randrange(1, 256)) for at in (*bounds, *range(start - 8, start)) if bounds[0] <= at < bounds[1]
    ]
    path, lines = tmp_path / "flipped.safetensors", []
    for at, bits in flips:
        path.write_bytes(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
        try:
            other_header, other = read(path)
        except CheckpointError as error:
            lines.append(str(error))
        else:
            assert data[at : at + 1] == b" "
            assert other_header == header
            assert hash_tensors(other) == hash_tensors(tensors)
    assert len(lines) >= 0.95 * len(flips)
    assert not [line for line in lines if "\n" in line]


def test_bytes_between_two_tensors_cannot_be_swapped(folder, tmp_path):
    """If two tensors of one shape are exchanged, the file has all its bytes, but it is another model."""

    def change(parts, tensors):
        parts["tensors_sha256"] = hash_tensors(tensors)
        one, two = "encoder.norm.weight", "encoder.norm.bias"
        tensors[one], tensors[two] = tensors[two], tensors[one]

    refused(rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, change), "altered", "tensors", "SHA-256")


def test_altered_config_does_not_match_its_sum(folder, tmp_path):
    data = (folder / WEIGHTS).read_bytes()
    before, after = rb"\"heads\": 3", rb"\"heads\": 4"
    assert data.count(before) == 1
    path = tmp_path / "m.safetensors"
    path.write_bytes(data.replace(before, after))
    refused(path, "altered", "config", "SHA-256", "get the file again")
    with pytest.raises(CheckpointError, match="altered: its config"):
        read_header(path)


@pytest.mark.parametrize("name", ["config_sha256", "tensors_sha256"])
@pytest.mark.parametrize("value", ["", "0" * 64])
def test_wrong_sum_is_refused(name, value, folder, tmp_path):
    path = rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, lambda parts, _: parts.update({name: value}))
    refused(path, "altered", "SHA-256")


@pytest.mark.parametrize("name", ["config", "config_sha256", "tensors_sha256"])
def test_missing_part_of_the_metadata_is_refused(name, folder, tmp_path):
    with safe_open(folder / WEIGHTS, "pt") as file:
        metadata = file.metadata()
    del metadata[name]
    save_file(read(folder / WEIGHTS)[1], tmp_path / "m.safetensors", metadata)
    refused(tmp_path / "m.safetensors", "altered", "SHA-256")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["model"].update(depht=3), "ModelConfig has no field 'depht' (did you mean 'depth'?)"),
        (lambda c: c["model"].pop("width"), "ModelConfig lacks the field 'width'"),
        (lambda c: c["model"].update(width="12"), "ModelConfig.width is '12'; expected int"),
        (lambda c: c["model"].update(heads=5), "width 12 does not divide into 5 heads"),
        (lambda c: c["model"].update(norm_eps=float("nan")), "norm_eps is nan; expected a finite number"),
        (lambda c: c["model"].update(norm_eps=10**400), "expected a finite number"),
        (lambda c: c["model"]["patches"].update(kind="wavelet"), "patches.kind is 'wavelet'; choose one of waveform"),
        (lambda c: c["model"].update(signal=None), "signal is NoneType"),
        (lambda c: c.update(model=[]), "ModelConfig is list"),
        (lambda c: c.update(head={"n_outputs": True, "task": "classification", "names": []}), "n_outputs is True"),
        (lambda c: c["head"].update(names=["a"]), "1 names for 3 outputs"),
        (lambda c: c.update(objective={"style": "simmim"}), "ObjectiveConfig lacks the field 'mask_ratio'"),
        (lambda c: c.update(objective={"maskin": "blocks"}), "has no field 'maskin' (did you mean 'masking'?)"),
        (lambda c: c.update(objective={"spectrum": -1.0, **OLD}), "spectrum is -1.0; it must not be negative"),
        (lambda c: c.update(objective={"hide_amplitude": 0.5, **OLD}), "the model has no amplitude to hide"),
        (lambda c: c["training"]["electrode_windows"].update(Cz=1.5), "electrode_windows['Cz'] is 1.5; expected int"),
        (lambda c: c.pop("training"), "expected the parts model, objective, head, training, electrodes; found"),
        (lambda c: c.update(extra=1), "expected the parts"),
        (lambda c: [c.pop(k) for k in list(c)], "found none"),
        (lambda c: c.update({f"a\nb{i}": 1 for i in range(1000)}), "expected the parts"),
        (lambda c: c.update(electrodes="Cz"), "electrodes is not a list of names"),
        (lambda c: c.update(electrodes=[1]), "electrodes is not a list of names"),
        (lambda c: c["electrodes"].__setitem__(1, c["electrodes"][0]), "electrodes names a row twice"),
        # Fields that are sound by themselves, but not what the tensors are; some would build a model without end.
        (lambda c: c["electrodes"].append("X97"), "encoder.electrodes has the shape (363, 12); expected (364, 12)"),
        (lambda c: c["electrodes"].pop(), "encoder.electrodes has the shape (363, 12); expected (362, 12)"),
        (lambda c: c["model"].update(depth=4), "encoder.blocks.3.mlp.up.weight is missing"),
        (lambda c: c["model"].update(depth=1000), "encoder.blocks.999.mlp.up.weight is missing"),
        (lambda c: c["model"].update(depth=2 * 10**7), "depth is 20000000; it must not exceed 1000"),
        (lambda c: c["model"].update(depth=10**400), "depth is 1000"),
        (lambda c: c["model"].update(width=3000), "encoder.embed.weight has the shape (12, 8)"),
        (lambda c: c["model"].update(width=3 * 10**12), "weights; a model has at most 1e+10"),
        (lambda c: c["model"].update(mlp_ratio=100.0), "encoder.blocks.1.mlp.up.weight has the shape (24, 12)"),
        (lambda c: c["model"].update(mlp_ratio=1.7e308), "mlp_ratio is 1.7e+308; it must not exceed 1000"),
        (lambda c: c["model"].update(window=10**7), "encoder.positions has the shape (5, 12)"),
        (lambda c: c["model"].update(window=10**15), "window is 1000000000000000; it must not exceed"),
        (lambda c: c["model"]["signal"].update(sfreq=1e9), "sfreq is 1e+09; it must not exceed 100000 Hz"),
        (lambda c: c["model"]["signal"].update(highpass=1e-12), "highpass is 1e-12; it must be 0 (none) or at least"),
        (lambda c: c["model"]["patches"].update(length=9, stride=7), "encoder.embed.weight has the shape (12, 8)"),
        (lambda c: c["head"].update(n_outputs=10**5, names=[]), "final_layer.weight has the shape (3, 12)"),
        (
            lambda c: c["head"].update(n_outputs=10**11, names=[]),
            "n_outputs is 100000000000; it must not exceed 100000",
        ),
        (
            lambda c: c.update(
                objective=dataclasses.asdict(ObjectiveConfig("vitmae", decoder_depth=1000, decoder_width=9))
            ),
            "decoder.blocks.999.mlp.up.weight is missing",
        ),
        (
            lambda c: c.update(objective={**dataclasses.asdict(ObjectiveConfig("vitmae")), "decoder_depth": 10**12}),
            "decoder_depth is 1000000000000; it must not exceed 1000",
        ),
        (
            lambda c: c.update(objective={**dataclasses.asdict(ObjectiveConfig("vitmae")), "decoder_width": 10**12}),
            "has a config that does not fit",
        ),
    ],
)
def test_config_that_does_not_fit_is_refused_though_its_sum_matches(change, words, folder, tmp_path):
    path = rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, lambda parts, _: change(parts["config"]))
    refused(path, words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "3",
        '"model"',
        "[1, 2]",
        "[{}]",
        "{}",
        "[" * 100_000,
        "1" * 5000,
        "nan",
        "\N{GREEK SMALL LETTER MU}",
    ],
    ids=lambda text: text[:9],
)
def test_config_that_is_no_object_is_refused_though_its_sum_matches(text, folder, tmp_path):
    path = rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, lambda parts, _: parts.update(config=text))
    refused(path, "has a config that does not fit")


def test_version_1_has_no_threshold(tmp_path):
    """Files of the first release can be read; their head is unchanged and has no threshold."""
    model = Cerebro(2, config=small(), n_times=40)
    model.save_pretrained(tmp_path / "new")

    def older(parts, _):
        parts["version"] = "1"
        del parts["config"]["head"]["threshold"], parts["config"]["head"]["threshold_level"]

    path = rewritten(tmp_path / "old.safetensors", tmp_path / "new" / WEIGHTS, older)
    again = Cerebro.from_pretrained(path)
    assert again.head == model.header.head
    assert same_state(again, model)

    def newer(parts, _):
        del parts["config"]["head"]["threshold"]

    path = rewritten(tmp_path / "bad.safetensors", tmp_path / "new" / WEIGHTS, newer)
    refused(path, "threshold")


def test_version_2_has_a_threshold_of_unknown_level(tmp_path):
    model = Cerebro(2, config=small(), n_times=40)
    model.head = dataclasses.replace(model.head, threshold=0.593, threshold_level="window")
    model.save_pretrained(tmp_path / "new")
    whole = Cerebro.from_pretrained(tmp_path / "new")
    assert (whole.head.threshold, whole.head.threshold_level) == (0.593, "window")

    def older(parts, _):
        parts["version"] = "2"
        del parts["config"]["head"]["threshold_level"]

    path = rewritten(tmp_path / "old.safetensors", tmp_path / "new" / WEIGHTS, older)
    again = Cerebro.from_pretrained(path)
    assert (again.head.threshold, again.head.threshold_level) == (0.593, "unknown")
    assert same_state(again, model)
    assert "threshold 0.593 (chosen on validation, unknown level)" in info_model(str(path)).text()

    def newer(parts, _):
        del parts["config"]["head"]["threshold_level"]

    refused(rewritten(tmp_path / "bad.safetensors", tmp_path / "new" / WEIGHTS, newer), "threshold_level")


@pytest.mark.parametrize("version", ["1", "3", "5"])
def test_objectives_of_older_files_are_the_papers(version, tmp_path):
    """The first files of version 5, small-open among them, lack the fields of further targets, masks and views."""
    model = masked()
    model.save_pretrained(tmp_path / "new")

    def older(parts, _):
        parts["version"] = version
        parts["config"]["objective"] = {name: parts["config"]["objective"][name] for name in OLD}

    path = rewritten(tmp_path / "old.safetensors", tmp_path / "new" / WEIGHTS, older)
    again = MaskedCerebro.from_pretrained(path)
    assert again.objective == model.objective == ObjectiveConfig(**{**OLD, "decoder_width": 8, "decoder_heads": 2})
    assert same_state(again, model)
    assert read_header(hub.find("small-open")).objective == ObjectiveConfig()


@pytest.mark.parametrize("version", ["6", "0", "", "1.0", "next\nline" * 50])
def test_other_version_is_refused(version, folder, tmp_path):
    path = rewritten(tmp_path / "m.safetensors", folder / WEIGHTS, lambda parts, _: parts.update(version=version))
    line = refused(path, "this cerebro-eeg reads versions 1, 2, 3", "install the release that wrote it")
    assert f"of version {version!r:.20};" in line


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_safetensors_of_another_program_is_refused(metadata, tmp_path):
    save_file({"encoder.embed.weight": torch.zeros(3)}, tmp_path / "m.safetensors", metadata)
    refused(tmp_path / "m.safetensors", "no cerebro-eeg config", "give a file that cerebro-eeg saved")


class Canary:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def pickles(thing):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield f"pickle {protocol}", pickle.dumps(thing, protocol)
    for new in (True, False):
        buffer = io.BytesIO()
        torch.save({"state_dict": thing}, buffer, _use_new_zipfile_serialization=new)
        yield f"torch.save {'zip' if new else 'legacy'}", buffer.getvalue()


def test_pickle_is_refused_and_never_run(tmp_path):
    canary = tmp_path / "ran"
    path = tmp_path / "m.safetensors"
    for kind, data in pickles(Canary(canary)):
        path.write_bytes(data)
        line = refused(path)
        if kind not in ("pickle 0", "pickle 1"):  # those have no mark of their own
            assert "is a pickle" in line, kind
            assert "ask for a .safetensors file" in line
        assert not canary.exists(), kind
        pickle.loads(pickle.dumps(Canary(canary)))  # the canary would have sung
        canary.rmdir()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"{}",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        b"<!DOCTYPE html><html></html>",
        b"\x02" + b"\0" * 7 + b"{}",
        b"\x02" + b"\0" * 7 + b"[]",
        b"\x08" + b"\0" * 7 + b"{{{{{{{{",
        b"\xff" * 8 + b"{",
        b"\0" * 4096,
    ],
)
def test_other_file_is_refused(data, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(data)
    refused(tmp_path / "m.safetensors")


def test_type_that_torch_does_not_know_is_refused(folder, tmp_path):
    text = json.dumps(
        {
            "__metadata__": {"format": "cerebro-eeg", "version": "2", **_config_of(folder)},
            "t": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]},
        }
    ).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0\0\0")
    refused(tmp_path / "m.safetensors")


def _config_of(folder):
    with safe_open(folder / WEIGHTS, "pt") as file:
        return {name: value for name, value in file.metadata().items() if name.startswith("config")}


# --- 5. Places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nothing.safetensors", "no/such/folder/here", "a" * 300, "~nobody_of_this_name/m/n"])
def test_place_without_a_file_is_refused(name):
    refused(Path(name), "there is no checkpoint", "give a .safetensors file or a folder that holds one")
    refused(name, "there is no checkpoint")


def test_folder_without_weights_is_refused(tmp_path):
    refused(tmp_path, "holds no model.safetensors", "give a folder that save_pretrained wrote")
    (tmp_path / WEIGHTS).mkdir()
    refused(tmp_path, "holds no model.safetensors")


def test_file_that_may_not_be_read_is_refused(folder, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint, "safe_open", refuse)
    refused(folder / WEIGHTS, "cannot be read (Permission denied)", "give a file you may read")
    monkeypatch.setattr(Path, "open", refuse)
    refused(folder / WEIGHTS, "cannot be read (Permission denied)")


def copied(folder, into):
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    return into


def test_folder_whose_config_differs_is_refused(folder, tmp_path):
    config = copied(folder, tmp_path) / "config.json"
    stated = json.loads(config.read_text())
    stated["model"]["first_axis"] = "time"
    config.write_text(json.dumps(stated))
    refused(tmp_path, "config.json differs from the config inside model.safetensors", "remove it or save the model")
    config.unlink()
    assert Cerebro.from_pretrained(tmp_path).config == classifier().config


@pytest.mark.parametrize("data", [b"{", b"", b"\xff\xfe", b"[" * 100_000])
def test_folder_whose_config_is_no_json_is_refused(data, folder, tmp_path):
    (copied(folder, tmp_path) / "config.json").write_bytes(data)
    refused(tmp_path, "config.json")


def test_folder_with_damaged_weights_is_refused(folder, tmp_path):
    weights = copied(folder, tmp_path) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    refused(tmp_path, "cut off or damaged")


# --- 6. No pickle -----------------------------------------------------------------------------------------------------

PICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "pickletools"}
FORBIDDEN = {("torch", "load"), ("torch", "save"), ("torch", "package"), ("checkpoint", "load"), ("checkpoint", "save")}


def uses_of_pickle(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in PICKLERS)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")
            if module[0] in PICKLERS or node.module in ("torch.serialization", "torch.distributed.checkpoint"):
                yield str(node.module)
            yield from (f"{node.module}.{a.name}" for a in node.names if (node.module, a.name) in FORBIDDEN)
        elif isinstance(node, ast.Attribute):
            owner = node.value
            last = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if (last, node.attr) in FORBIDDEN and last == "torch":
                yield f"torch.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import joblib.memory",
        "import torch\ntorch.load('x')",
        "f = torch.save",
        "from torch import load",
        "from torch.serialization import load",
        "from torch.distributed.checkpoint import save",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=anything)",
    ],
)
def test_search_for_pickle_finds_it(code):
    assert list(uses_of_pickle(ast.parse(code)))


def test_no_pickle_in_the_package():
    files = sorted(Path(cerebro_eeg.__file__).parent.rglob("*.py"))
    assert len(files) > 15
    assert {
        str(file): found for file in files if (found := list(uses_of_pickle(ast.parse(file.read_text("utf-8")))))
    } == {}


def test_header_of_a_model_says_everything(folder):
    header, _ = read(folder / WEIGHTS)
    assert header == Header(classifier().config, None, HeadConfig(3, names=("a", "b", "c")), TRAINING, VOCABULARY)
    assert Header.from_dict(json.loads(json.dumps(header.to_dict()))) == header


def test_an_objective_without_later_fields_is_described_as_before():
    plain = checkpoint.early_fields(ObjectiveConfig())
    assert set(plain).isdisjoint(checkpoint.OBJECTIVE)
    assert from_dict(ObjectiveConfig, {**checkpoint.OBJECTIVE, **plain}) == ObjectiveConfig()
    further = ObjectiveConfig(spectrum=1.0)
    assert checkpoint.early_fields(further) == {**plain, "spectrum": 1.0}
