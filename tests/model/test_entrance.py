"""The entrance of a model that torch compiles or exports: it refuses and counts the same as in eager code."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from cerebro_eeg import Batch, Cerebro, MaskedCerebro, errors
from tiny_models import small

CONFIG = small(depth=1, attention="standard")  # one block, because every test traces it
NAMES = ["Fp1", "Fz", "T7", "C4", "O2"]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(n_outputs=2, **arguments):
    torch.manual_seed(0)
    return Cerebro(n_outputs, **{"ch_names": NAMES, "config": CONFIG, "n_times": 40, **arguments})


def noise(*shape):
    return 20 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


WAYS = {
    "torch.compile(model)": torch.compile,
    "inside a step": lambda model, **how: torch.compile(lambda x: model(x) * 1, **how),  # as Lightning does
}

WRONG = [
    ((4, 7, 40), "the windows have 7 channels, but 5 are named"),
    ((4, 5, 48), "the windows have 48 samples; the model was made for n_times=40"),
    ((5, 40), r"expected \(windows, channels, samples\)"),
    ((0, 5, 40), "the array is empty"),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_refuses_wrong_shapes_and_counts_windows_without_a_new_compilation(way):
    model, backend = make().train(), CompileCounter()
    compiled = WAYS[way](model, backend=backend, fullgraph=True)
    for windows in (4, 4, 6, 3, 5, 2, 16):
        compiled(noise(windows, 5, 40)).sum().backward()
    assert backend.frame_count <= 2  # for one number of windows, and for any
    assert model.training_record.windows == 40
    assert model.training_record.electrode_windows == dict.fromkeys(NAMES, 40)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="do not have the model's channels or length"):
        compiled(noise(4, 7, 40))  # torch's own error, because fullgraph was asked for


def test_one_graph_for_all_numbers_of_windows_refuses_wrong_shapes_in_one_line():
    model, backend = make().eval(), CompileCounter()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for windows in (4, 5, 9):
            x = noise(windows, 5, 40)
            torch.testing.assert_close(compiled(x), model(x))
        assert backend.frame_count == 1
        for shape, message in WRONG:
            with pytest.raises(errors.InputError, match=message):
                compiled(noise(*shape))
        assert compiled(noise(4, 5, 40) * torch.nan).isnan().all()  # it is still compiled: eager code would refuse this


def test_a_checkpoint_of_compiled_training_loads_its_own_channels(tmp_path):
    compiled = make().train()
    compiled.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    for _ in range(3):
        torch.nn.functional.cross_entropy(compiled(noise(4, 5, 40)), torch.arange(4) % 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    compiled.save_pretrained(tmp_path)
    again = Cerebro.from_pretrained(tmp_path, ch_names=NAMES)
    assert again.training_record.electrode_windows == dict.fromkeys(NAMES, 12)
    with pytest.raises(errors.ChannelError, match="Pz"):
        again.set_channels(["Pz", *NAMES[1:]])


def test_windows_are_counted_for_the_channels_that_they_had():
    model = make().train()
    compiled = torch.compile(model, backend="eager")
    compiled(noise(4, 5, 40))
    model.set_channels(["Cz", "Pz", "Oz", "T7-T8", "O2"])
    compiled(noise(3, 5, 40))
    assert model.training_record.windows == 7
    model.freeze()
    compiled(noise(3, 5, 40))
    assert model.training_record.electrode_windows == (
        dict.fromkeys(["Fp1", "Fz", "C4"], 4) | dict.fromkeys(["Cz", "Pz", "Oz", "T8"], 3) | {"T7": 7, "O2": 7}
    )


def test_compiled_training_can_be_copied_and_moved_and_starts_anew_with_a_new_record():
    model = make().train()
    compiled = torch.compile(model, backend="eager")
    compiled(noise(2, 5, 40))
    assert copy.deepcopy(model).training_record.windows == 2
    compiled(noise(2, 5, 40))
    assert pickle.loads(pickle.dumps(model)).training_record.windows == 4
    compiled(noise(2, 5, 40))
    assert model.double().training_record.windows == 6  # moved and converted
    compiled(noise(2, 5, 40))
    model.training_record = type(model.training_record)()
    assert model.training_record.windows == 0


def test_nan_stays_nan_in_a_graph_and_embed_refuses_it():
    model = make(None).eval()
    x = noise(4, 5, 40)
    x[1, 2, 3] = np.nan
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        assert compiled(x).isnan().any(1).tolist() == [False, True, False, False]
    with pytest.raises(errors.InputError, match="NaN or infinity, first in window 1, channel 'T7', sample 3"):
        compiled.embed(x)


def test_an_exported_model_takes_only_its_channels_and_length():
    model, x = make().eval(), noise(4, 5, 40)
    windows, channels = torch.export.Dim("windows", min=2, max=64), torch.export.Dim("channels", min=2)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: windows},))
    torch.testing.assert_close(exported.module()(noise(9, 5, 40)), model(noise(9, 5, 40)))
    for shape in ((4, 7, 40), (4, 5, 48)):
        with pytest.raises((AssertionError, RuntimeError)):
            exported.module()(noise(*shape))
    with pytest.raises(Exception, match="channels"):
        torch.export.export(model, (x,), dynamic_shapes=({0: windows, 1: channels},))
    with pytest.raises(errors.InputError, match="7 channels, but 5 are named"):
        torch.export.export(model, (noise(4, 7, 40),))


def test_a_model_of_any_length_exports_with_any_length_and_counts_no_window():
    model = make(n_times=None).train()
    patches = torch.export.Dim("patches", min=2, max=64)
    exported = torch.export.export(model, (noise(4, 5, 40),), dynamic_shapes=({2: 8 * patches},))
    assert model.training_record.windows == 0
    torch.testing.assert_close(exported.module()(noise(4, 5, 24)), model(noise(4, 5, 24)))


def test_pre_training_refuses_the_same_when_compiled():
    model = MaskedCerebro(CONFIG)
    compiled = torch.compile(model, backend="eager")
    batch = Batch.dense(noise(3, 4, 40), torch.tensor([[n, 0] for n in range(1, 5)]))
    mask = torch.rand(12, 5)
    torch.testing.assert_close(compiled(batch, mask).loss, model(batch, mask).loss)
    for wrong in ((noise(3, 4, 40), mask), (batch, mask[:-1]), (batch, mask[:, :-1])):
        with pytest.raises(errors.InputError) as eager:
            model(*wrong)
        with pytest.raises(errors.InputError) as found:
            compiled(*wrong)
        assert str(found.value) == str(eager.value)
