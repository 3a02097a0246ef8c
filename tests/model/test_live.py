"""Captured models give the numbers of the plain model for any input, and notice every change of the model."""

import copy
import gc
import re
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cerebro_eeg import Cerebro
from cerebro_eeg.config import PatchConfig, SignalConfig
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.fast import eligible, linear_layer
from tiny_models import KINDS, small

ROOT = Path(__file__).parents[2]
NAMES = ["Fp1", "Cz", "O2", "T3", "C4"]
PHASE = PatchConfig(kind="time_bins", n_fft=16, hop=4, bins=8, reflect=4, phase="separated")


@pytest.fixture(autouse=True)
def ours():
    """Set the switch to its default for every test."""
    with eligible.use("auto"):
        yield


def make(n_outputs=3, device="cpu", **arguments):
    torch.manual_seed(0)
    settings = {"ch_names": NAMES, "config": small(width=48), **arguments}
    return Cerebro(n_outputs, **settings).eval().to(device)


def noise(windows=1, channels=5, samples=40, seed=0):
    return np.random.default_rng(seed).normal(size=(windows, channels, samples)) * 20


def plain(model, x, level="output", scale=None):
    """Return the result of the model without capture."""
    x = torch.as_tensor(np.asarray(x, np.float32), device=model.encoder.positions.device)
    with torch.no_grad():
        if level == "output":
            return model(x, scale=scale)
        found = model(x, return_features=True, scale=scale)
        return {"window": found["features"], "channel": found["tokens"].mean(2), "token": found["tokens"]}[level]


def worst(found, expected):
    """The largest error, relative to the largest value."""
    assert found.shape == expected.shape
    assert found.device == expected.device
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


# ---- the same numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["output", "window", "channel", "token"])
@pytest.mark.parametrize("windows", [1, 3])
def test_every_level_is_the_plain_models(level, windows):
    model = make()
    fast = model.captured(windows, level=level)
    for seed in range(5):
        x = noise(windows, seed=seed)
        found = fast(x)
        assert worst(found, plain(model, x, level)) < 1e-5
        assert found.dtype == torch.float32
        assert not found.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_attention(kind):
    model = make(None, config=small(width=48, attention=kind))
    assert worst(model.captured()(noise()), plain(model, noise())) < 1e-5


@pytest.mark.parametrize("attribute", [{"patches": PHASE}, {"norm": "post"}, {"window": 16}])
def test_other_models(attribute):
    """Phase has two rows per channel; a window longer than the table of positions needs interpolation."""
    model = make(None, config=small(width=48, **attribute))
    fast = model.captured(n_times=40, level="token")
    assert worst(fast(noise()), plain(model, noise(), "token")) < 1e-5


def test_features_are_those_of_embed():
    model = make(None)
    x = noise()
    for level in ("window", "channel", "token"):
        np.testing.assert_allclose(model.captured(level=level)(x).numpy(), model.embed(x, level=level), atol=1e-5)
    assert torch.equal(model.captured()(x), model.captured(level="window")(x))


def test_a_window_needs_no_axis_of_windows():
    fast = make().captured()
    assert torch.equal(fast(noise()[0]), fast(noise()))
    assert fast(noise()[0]).shape == (1, 3)
    with pytest.raises(InputError, match=r"expected \(windows, channels, samples\)"):
        make().captured(2)(noise()[0])


def test_outputs_are_not_overwritten():
    fast = make().captured(level="token")
    windows = [noise(seed=seed) for seed in range(4)]
    found = [fast(x) for x in windows]
    for x, kept in zip(windows, found, strict=True):
        assert torch.equal(fast(x), kept)
    found[0].zero_()
    assert fast(windows[0]).any()


def test_arrays_of_every_kind():
    fast = make().captured()
    x = np.round(noise())
    expected = fast(x)
    read_only = x.copy()
    read_only.flags.writeable = False
    given = {
        "float32": x.astype(np.float32),
        "float16": x.astype(np.float16),
        "int16": x.astype(np.int16),
        "int64": x.astype(np.int64),
        "big-endian": x.astype(">f8"),
        "Fortran": np.asfortranarray(x),
        "backwards": x[..., ::-1].copy()[..., ::-1],
        "of a larger one": np.repeat(x, 2, -1)[..., ::2],
        "read-only": read_only,
        "list": x.tolist(),
        "tensor": torch.tensor(x),
        "tensor, bfloat16": torch.tensor(x).bfloat16(),
        "tensor, int": torch.tensor(x).int(),
        "parameter": nn.Parameter(torch.tensor(x), requires_grad=False),
    }
    for name, one in given.items():
        assert torch.equal(fast(one), expected), name


def test_channels_that_were_dropped_are_left_out_and_may_hold_anything():
    model = make(ch_names=["Fp1", "ECG", "Cz", "O2"], unknown="drop")
    fast = model.captured()
    assert fast.input_shape == (1, 4, 40)
    x = noise(channels=4)
    expected = plain(model, x)
    x[:, 1] = np.nan
    assert worst(fast(x), expected) < 1e-5


def test_the_scale_of_a_recording():
    model = make(config=small(width=48, normalization="recording", amplitude=True))
    fast = model.captured(2)
    for scale in ([8.0, 30.0], [8.0, 8.0]):
        assert worst(fast(noise(2), scale), plain(model, noise(2), scale=torch.tensor(scale))) < 1e-5
    assert torch.equal(fast(noise(2), 8), fast(noise(2), [8.0, 8.0]))
    with pytest.raises(InputError, match="needs the scale"):
        fast(noise(2))
    with pytest.raises(InputError, match="scale has 3 values for 2 windows"):
        fast(noise(2), [1, 2, 3])


def test_training_mode_is_of_no_consequence():
    model = make().train()
    model.encoder.set_drop_path(0.9, "constant")
    fast = model.captured()
    expected = plain(make(), noise())
    assert worst(fast(noise()), expected) < 1e-5
    assert model.training
    assert model.encoder.blocks[0].training
    assert not model.training_record.electrode_windows
    model.eval().train()
    assert worst(fast(noise()), expected) < 1e-5


def test_any_mode_of_torch_around_it():
    model = make()
    with torch.inference_mode():
        fast = model.captured()
        inside = fast(noise())
    expected = fast(noise())
    assert torch.equal(inside, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(noise()), expected)
    x = torch.tensor(noise(), requires_grad=True)
    with torch.no_grad():
        assert torch.equal(fast(x), expected)


def test_precisions():
    model, x = make(), noise()
    assert model.captured().precision == "fp32"
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(torch.tensor(x, dtype=torch.float32)).float()
    fast = model.captured(precision="bf16")
    assert (fast.precision, fast.how) == ("bf16", "cpu, eager")
    assert torch.equal(fast(x), expected)
    model.double()
    assert model.captured().precision == "fp64"
    assert model.captured()(x).dtype == torch.float64
    for precision in ("bf16", "fp32"):
        with pytest.raises(ConfigError, match=r"weights are torch.float64; call model.float"):
            model.captured(precision=precision)
    with pytest.raises(ConfigError, match=r"precision is 'bf16', but the weights are torch\.float16"):
        model.half().captured(precision="bf16")
    model.bfloat16()
    assert model.captured().precision == model.captured(precision="bf16").precision == "bf16"
    assert model.captured()(x).dtype == torch.float32


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"windows": 0}, "windows is 0"),
        ({"windows": 1.5}, "windows is 1.5"),
        ({"windows": True}, "windows is True"),
        ({"n_times": 41}, "n_times is 41; the model was made for n_times=40"),
        ({"level": "all"}, "level is 'all'; choose one of output, window, channel, token"),
        ({"precision": "fp8"}, "precision is 'fp8'; choose one of auto, bf16, fp32"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make(n_times=40).captured(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (noise(2), r"2 windows were given; captured\(windows=1\)"),
        (noise(channels=4), "have 4 channels, but 5 are named"),
        (noise(samples=39), "have 39 samples; the model was made for n_times=40"),
        (noise()[0, 0], r"expected \(windows, channels, samples\)"),
        (noise() * 1j, "expected real numbers"),
        (torch.tensor(noise() * 1j), "expected real numbers"),
        (np.ma.masked_array(noise(), noise() > 0), "masked array"),
        (np.full((1, 5, 40), "x"), "expected real numbers"),
        ("file.edf", "a file name was given"),
        (torch.tensor(noise(), requires_grad=True), "asks for gradients"),
        (np.where(noise() > 30, np.nan, noise()), "NaN or infinity, first in window 0, channel '"),
        (np.where(noise() > 30, np.inf, noise()), "NaN or infinity"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("first", [True, False])
def test_windows_that_cannot_be_used(x, message, first):
    """They are errors at the first call and later, and do not affect the next good window."""
    fast = make().captured()
    if not first:
        fast(noise())
    with pytest.raises(InputError, match=message) as caught:
        fast(x)
    assert "\n" not in str(caught.value)
    assert worst(fast(noise()), plain(make(), noise())) < 1e-5


@pytest.mark.filterwarnings("ignore")  # torch will give up this way of quantising
def test_a_model_whose_layers_are_quantised():
    model = torch.ao.quantization.quantize_dynamic(make().eval(), {nn.Linear}, dtype=torch.qint8)
    fast = model.captured()
    assert "packed" not in repr(fast)
    assert torch.equal(fast(noise()), plain(model, noise()))


def test_models_that_cannot_be_captured():
    with pytest.raises(InputError, match="channels are not named"):
        make(ch_names=None).captured()
    with pytest.raises(ConfigError, match="does not resample; bring the stream from 128 to 256 Hz"):
        make(sfreq=128, rate="resample").captured(n_times=40)
    with pytest.raises(ConfigError, match="at least 8 samples"):
        make().captured(n_times=7)
    with pytest.raises(ConfigError, match=r"n_times is 40\.5"):
        make().captured(n_times=40.5)
    model = make()
    hook = model.encoder.norm.register_forward_hook(lambda *given: None)
    with pytest.raises(ConfigError, match="hooks"):
        model.captured()
    hook.remove()
    model.captured()

    class Two(nn.Module):
        def forward(self, x):
            return x, x

    model.final_layer = Two()
    with pytest.raises(ConfigError, match="final_layer gives a tuple"):
        model.captured()
    model.captured(level="window")
    assert make(config=small(width=48, signal=SignalConfig(sfreq=200)), sfreq=250, rate="as_is").captured()


def test_the_unit_is_looked_at_with_the_first_window():
    fast = make().captured()
    with pytest.warns(UserWarning, match="looks like V: multiply by"):
        fast(noise() * 1e-6)
    fast(noise() * 1e-6)  # a warning would be an error here


# ---- models that change --------------------------------------------------------------------------------------------


def all_through_data(model):
    for p in model.parameters():
        p.data.mul_(1.5)


def one_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor(noise(), dtype=torch.float32)).square().sum().backward()
    optimizer.step()


def other_weights(model, assign=False):
    other = make(device=model.encoder.positions.device)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(0.7)
    model.load_state_dict(other.state_dict(), assign=assign)


def exchanged_weight(model):
    layer = model.encoder.blocks[1].mlp.up
    layer.weight = nn.Parameter(layer.weight * 2)


def set_data(model):
    model.encoder.positions.data = model.encoder.positions.data * 2


def appended_part(model):
    model.final_layer.extra = nn.Identity()


IN_PLACE = [one_step, other_weights, all_through_data]
REPLACED = {
    "blocks.1.mlp.up.weight was replaced": exchanged_weight,
    "positions was moved": set_data,
    "final_layer was replaced": lambda model: model.reset_head(3),
    "was replaced": lambda model: other_weights(model, assign=True),
    "moved, to another": lambda model: model.half().float(),
    "final_layer has got another part": appended_part,
    "blocks.0 was replaced": lambda model: model.encoder.blocks.__setitem__(0, copy.deepcopy(model.encoder.blocks[0])),
    "norm has got a hook": lambda model: model.encoder.norm.register_forward_pre_hook(lambda *given: None),
    "channels were set anew": lambda model: model.set_channels(NAMES[::-1]),
}


@pytest.mark.parametrize("change", IN_PLACE, ids=lambda change: change.__name__)
def test_numbers_that_change_in_place_are_seen(change):
    model = make()
    fast = model.captured()
    before = fast(noise())
    change(model)
    after = plain(model, noise())
    assert worst(before, after) > 1e-2
    assert worst(fast(noise()), after) < 1e-5
    assert worst(model.captured()(noise()), after) < 1e-5


@pytest.mark.parametrize("message", REPLACED)
def test_what_is_replaced_is_noticed(message):
    model = make()
    fast = model.captured()
    fast(noise())
    REPLACED[message](model)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=rf"not what was captured: .*{message}.*call model.captured\(\) again"
        ) as e:
            fast(noise())
        assert "\n" not in str(e.value)


def test_what_changes_nothing_is_no_change():
    model = make()
    fast = model.captured()
    expected = fast(noise())
    model.freeze().unfreeze().train().to("cpu", torch.float32).zero_grad()
    model.requires_grad_(False)
    model(torch.tensor(noise(), dtype=torch.float32))
    assert torch.equal(fast(noise()), expected)


# ---- side effects --------------------------------------------------------------------------------------------------


def test_packed_weights_are_the_objects_own_and_go_with_it():
    model = make()
    fast = model.captured()
    assert fast.how == "CPU, packed weights"
    assert not linear_layer._packed.get()
    fast(noise())
    assert not linear_layer._packed.get()
    layer = weakref.ref(fast._run._given.encoder.embed)
    all_through_data(model)
    fast(noise())  # lays the weights out anew
    gone = weakref.ref(fast)
    del fast
    assert gone() is None
    gc.collect()
    assert layer() is None


def test_packed_weights_are_used():
    """Setting the packed weights to zero changes the result, so they are used."""
    fast = make().captured()
    expected = fast(noise())
    for packed in fast._run._context[linear_layer._packed].values():
        packed.weight.zero_()
    assert worst(fast(noise()), expected) > 1e-2


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's compiler looks at it
def test_compiling_leaves_the_model_as_it_was(monkeypatch):
    """On CUDA only modules that share the model's tensors are compiled, never the model itself."""
    compile_function = torch.compile  # all of the tracing, none of the code generation
    monkeypatch.setattr(torch, "compile", lambda part, **given: compile_function(part, backend="eager", **given))
    torch._dynamo.reset()
    model = make()
    fast = model.captured()
    parts = fast._run._given
    parts.encoder.compile_parts(dynamic=False)
    for _ in range(2):
        assert worst(fast(noise()), plain(model, noise())) < 1e-5
        all_through_data(model)
    assert parts.encoder.blocks[0]._compiled_call_impl is not None
    assert all(block._compiled_call_impl is None for block in model.encoder.blocks)
    assert "finish" not in vars(model.encoder)
    torch._dynamo.reset()


def test_threads_may_share_it():
    model = make()
    shared, own = model.captured(), model.captured(2)
    windows = [noise(seed=seed) for seed in range(40)]
    expected = [shared(x) for x in windows]
    start = threading.Barrier(4)

    def work(number):
        start.wait()
        if number == 3:  # another object of the same model beside it
            return all(own(noise(2)).isfinite().all() for _ in range(20))
        return all(torch.equal(shared(x), e) for x, e in zip(windows, expected, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_it_says_what_it_is():
    said = repr(make().captured(2, level="window"))
    assert said == (
        "Captured(windows=2, channels=5, n_times=40, level='window', precision='fp32': CPU, packed weights)"
    )


@pytest.mark.docs
def test_the_example_of_the_docs(tmp_path):
    page = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8").partition("## Live")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\[\[0\.\d+ 0\.\d+\]\]", done.stdout)) == 15


# ---- on a GPU ------------------------------------------------------------------------------------------------------

BF16 = 2e-2  # of the largest value: two roundings in another order


def eager(model, x, precision, level="output"):
    with torch.autocast("cuda", torch.bfloat16, precision == "bf16"):
        return plain(model, x, level).float()


@pytest.mark.gpu
@pytest.mark.parametrize("level", ["output", "window", "channel", "token"])
@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-5), ("bf16", BF16)])
def test_cuda_many_windows(precision, limit, level):
    model = make(2, "cuda", config="tiny")
    fast = model.captured(n_times=1280, precision=precision, level=level)
    assert (fast.how, fast.precision) == ("CUDA graph", precision)
    windows = [noise(samples=1280, seed=seed) for seed in range(30)]
    found = [fast(x if seed % 2 else torch.tensor(x, device="cuda")) for seed, x in enumerate(windows)]
    for x, one in zip(windows, found, strict=True):
        assert one.dtype == torch.float32
        assert worst(one, eager(model, x, precision, level)) < limit
    for x, one in zip(windows, found, strict=True):  # kept, and the same again to the bit
        assert torch.equal(fast(x), one)


@pytest.mark.gpu
@pytest.mark.parametrize("windows", [1, 7])
@pytest.mark.parametrize(
    "settings",
    [{"attention": kind} for kind in KINDS] + [{"patches": PHASE}, {"norm": "post"}, {"amplitude": True}],
    ids=lambda settings: str(next(iter(settings.values())))[:12],
)
def test_cuda_every_model_can_be_captured(settings, windows):
    model = make(None, "cuda", config=small(width=48, **settings))
    scale = 12.0 if settings.get("amplitude") else None
    fast = model.captured(windows, precision="fp32")
    for seed in range(3):
        x = noise(windows, seed=seed)
        assert worst(fast(x, scale), plain(model, x, scale=scale)) < 1e-5


@pytest.mark.gpu
def test_cuda_inputs():
    model = make(2, "cuda", ch_names=["Fp1", "ECG", "Cz", "O2"], unknown="drop")
    fast = model.captured(precision="fp32")
    x = np.round(noise(channels=4))
    expected = plain(model, x)
    x[:, 1] = np.nan
    on_gpu = torch.tensor(x, device="cuda")
    for one in (x, x[0], x.astype(np.float32), torch.tensor(x), on_gpu, on_gpu.float(), on_gpu[0], on_gpu.mT.mT):
        assert worst(fast(one), expected) < 1e-5
    x[:, 2, 5] = np.nan
    with pytest.raises(InputError, match="channel 'Cz', sample 5"):
        fast(x)
    assert fast(torch.tensor(x, device="cuda")).isnan().all()
    assert worst(fast(on_gpu), expected) < 1e-5
    with pytest.raises(InputError, match="39 samples"):
        fast(on_gpu[..., 1:])
    with pytest.raises(ConfigError, match=r"positions for 5; load it with from_pretrained\(..., window=48\)"):
        model.captured(n_times=48)


@pytest.mark.gpu
@pytest.mark.parametrize("change", IN_PLACE, ids=lambda change: change.__name__)
@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-5), ("bf16", BF16)])
def test_cuda_numbers_that_change_in_place_are_seen(change, precision, limit):
    model = make(3, "cuda")
    fast = model.captured(precision=precision)
    before = fast(noise())
    if change is one_step:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
        model(torch.tensor(noise(), dtype=torch.float32, device="cuda")).square().sum().backward()
        optimizer.step()
    else:
        change(model)
    after = eager(model, noise(), precision)
    assert worst(before, after) > 5e-2
    assert worst(fast(noise()), after) < limit


@pytest.mark.gpu
@pytest.mark.parametrize("message", REPLACED)
def test_cuda_what_is_replaced_is_noticed(message):
    model = make(3, "cuda")
    fast = model.captured()
    fast(noise())
    REPLACED[message](model)
    with pytest.raises(ConfigError, match=f"not what was captured: .*{message}"):
        fast(noise())


@pytest.mark.gpu
def test_cuda_a_model_that_left_the_gpu():
    """The graph still reads the memory of the old weights, which must not be reused meanwhile."""
    model = make(3, "cuda")
    fast = model.captured()
    fast(noise())
    model.to("cpu")
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(16)]
    with pytest.raises(ConfigError, match="was moved"):
        fast(noise())
    torch.cuda.synchronize()  # no illegal access
    assert all(other.isnan().all() for other in others)
    assert worst(model.captured()(noise()), plain(model, noise())) < 1e-5


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of inductor
def test_cuda_compiled():
    torch._dynamo.reset()
    model = make(2, "cuda", config="tiny", n_times=1280)
    fast = model.captured(compile=True)
    assert fast.how == "CUDA graph, compiled"
    assert all(block._compiled_call_impl is None for block in model.encoder.blocks)  # the model is as it was
    assert "finish" not in vars(model.encoder)
    for seed in range(10):
        x = noise(samples=1280, seed=seed)
        assert worst(fast(x), eager(model, x, "bf16")) < BF16
    with torch.no_grad():
        model.final_layer.weight.mul_(-2)
        model.encoder.blocks[0].mlp.up.weight.mul_(2)
    assert worst(fast(x), eager(model, x, "bf16")) < BF16
    model.reset_head(2)
    with pytest.raises(ConfigError, match="final_layer was replaced"):
        fast(x)
    torch._dynamo.reset()


@pytest.mark.gpu
def test_cuda_mixed_use_on_threads_and_streams():
    """Several graphs, eager passes and a capture at the same time; each thread has its own stream."""
    model = make(2, "cuda", config="tiny")
    graphs = {n: model.captured(n, n_times=1280, precision="fp32") for n in (1, 2, 5)}
    data = {n: [noise(n, samples=1280, seed=seed) for seed in range(12)] for n in graphs}
    expected = {n: [plain(model, x) for x in data[n]] for n in graphs}
    torch.cuda.synchronize()

    def work(number):
        n = (1, 2, 5, 1, 2)[number]
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(5):
                fast = model.captured(n, n_times=1280, precision="fp32") if number == 3 and turn < 2 else graphs[n]
                found = [fast(x if number % 2 else torch.tensor(x, device="cuda")) for x in data[n]]
                again = plain(model, data[n][turn])
                assert worst(again, expected[n][turn]) < 1e-5
                assert max(worst(f, e) for f, e in zip(found, expected[n], strict=True)) < 1e-5
        return True

    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(work, range(5)))


@pytest.mark.gpu
def test_cuda_memory_goes_with_the_object():
    model = make(2, "cuda", config="tiny")

    def allocated():
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def use():
        fast = model.captured(4, n_times=1280)
        return fast(noise(4, samples=1280)).cpu()

    use()  # the workspace of cuBLAS stays
    before = allocated()
    for _ in range(3):
        use()
    assert allocated() == before


@pytest.mark.gpu
def test_cuda_the_benchmark_has_all_its_rows():
    from cerebro_eeg.bench import latency, options

    (table,) = latency.run(options.LatencyBench(presets=("tiny",), rounds=2, eager=True), print)
    assert [row[1] for row in table.rows] == ["eager", "eager, CUDA graph"]
    assert all(isinstance(row[2], float) for row in table.rows)
    assert not table.notes
