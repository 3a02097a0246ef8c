"""Channels that a call names itself: the numbers of a model that has them, counts, and refusals in one line."""

import copy
import pickle

import mne
import numpy as np
import pytest
import torch
from test_cerebro import make, noise

from cerebro_eeg import Cerebro, errors
from cerebro_eeg.batch import Batch
from cerebro_eeg.config import Training
from cerebro_eeg.model.montages import ABSENT
from tiny_models import small

TEN_TWENTY = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8 O1 O2".split()


def nameless(**arguments):
    torch.manual_seed(0)
    return Cerebro(**{"config": small(), **arguments}).eval()


def like(model, names, **arguments):
    """A model of the same weights whose own channels are these."""
    found = make(ch_names=names, config=model.config, n_outputs=model.n_outputs, **arguments)
    found.load_state_dict(model.state_dict())
    return found


def places(names):
    """Where MNE's template has these electrodes, in metres, in the frame of the head."""
    info = mne.create_info(names, 256.0, "eeg")
    info.set_montage("colin27_1005" if "colin27_1005" in mne.channels.get_builtin_montages() else "standard_1005")
    return np.array([channel["loc"][:3] for channel in info["chs"]])


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["Fp1", "Cz", "EEG T3-REF"], ["O2", "F7-T3"], ["C3"]])
def test_names_of_a_call_give_what_a_model_of_these_channels_gives(names):
    model = nameless(n_outputs=2)
    x = torch.tensor(noise(channels=len(names)))
    assert torch.equal(model(x, ch_names=names), like(model, names)(x))
    assert torch.equal(model(x, ch_names=tuple(names)), like(model, names)(x))  # now from what is kept
    found = model(x, return_features=True, ch_names=np.array(names))
    assert torch.equal(found["tokens"], like(model, names)(x, return_features=True)["tokens"])


def test_names_of_a_call_replace_those_of_the_model_for_this_call_only():
    model, x = make(), torch.tensor(noise())
    own, other = model(x), model(x, ch_names=["O1", "Oz", "O2"])
    assert not torch.allclose(own, other)
    assert torch.equal(model(x), own)
    assert [channel.name for channel in model.channels.channels] == ["Fp1", "Cz", "T7"]
    with pytest.raises(errors.InputError, match="the channels are not named"):
        nameless()(x)


def test_each_list_of_names_is_matched_once(monkeypatch):
    seen, match = [], Cerebro._match

    def counting(self, *given):
        seen.append(given[0])
        return match(self, *given)

    monkeypatch.setattr(Cerebro, "_match", counting)
    model, x = nameless(), torch.tensor(noise())
    for names in (["Fp1", "Cz", "O2"], ["Cz", "Fp1", "O2"], ["Fp1", "Cz", "O2"]):
        model(x, ch_names=names)
        model(x, ch_names=names, channel_positions=torch.randn(4, 3, 3))  # names are enough: nobody reads positions
    assert seen == [("Fp1", "Cz", "O2"), ("Cz", "Fp1", "O2")]


def test_the_rules_of_the_model_hold_for_names_of_a_call(tmp_path):
    x, odd = torch.tensor(noise()), ["Fp1", "Cz", "mystery"]
    with pytest.raises(errors.ChannelError, match="1 of 3 channel labels were not understood: 'mystery'"):
        nameless()(x, ch_names=odd)
    dropping = nameless(unknown="drop")
    assert torch.equal(dropping(x, ch_names=odd), like(dropping, ["Fp1", "Cz"])(x[:, :2]))
    with pytest.raises(errors.ChannelError, match="3 channels, at most 2 were expected"):
        nameless(max_channels=2)(x, ch_names=["Fp1", "Cz", "O2"])
    with pytest.raises(errors.ChannelError, match="'Fp1' and 'FP1-REF' are both Fp1"):
        nameless()(x, ch_names=["Fp1", "FP1-REF", "Cz"])
    model = make()
    model.training_record = Training(windows=9, electrode_windows={"Fp1": 9, "Cz": 9, "T7": 9})
    folder = model.save_pretrained(tmp_path)
    loaded = Cerebro.from_pretrained(folder)
    with pytest.raises(errors.ChannelError, match="1 of 3 channels have an electrode that the model never saw: 'Oz'"):
        loaded(x, ch_names=["Fp1", "Cz", "Oz"])
    loaded(x, ch_names=["Fp1", "Cz", "T3"])
    loaded = Cerebro.from_pretrained(folder, untrained="drop")
    assert torch.equal(loaded(x, ch_names=["Fp1", "Cz", "Oz"]), like(model, ["Fp1", "Cz"])(x[:, :2]))


def test_contradictions_are_refused_in_one_line():
    model, x = nameless(unknown="nearest"), torch.tensor(noise())
    names = ["Fp1", "Cz", "O2"]
    for given, line in [
        ({"ch_names": names[:2]}, "ch_names has 2 names for windows of 3 channels; give one name a channel"),
        ({"ch_names": "Fp1"}, "ch_names is 'Fp1'; give a list of one name a channel"),
        ({"ch_names": 3}, "ch_names is 3; give a list of one name a channel"),
        ({"ch_names": [{"ch_name": "Fp1"}] * 3}, "ch_names is [{'ch_name': 'Fp1'}"),
        ({"ch_names": names, "channel_positions": np.zeros((2, 3))}, "has the shape (2, 3); expected (3, 3) or (4, 3,"),
        ({"ch_names": names, "channel_positions": np.zeros((5, 3, 3))}, "has the shape (5, 3, 3); expected (3, 3) or"),
        ({"ch_names": names, "channel_positions": "head"}, "channel_positions is not an array of numbers"),
        ({"ch_names": [1, 2, 3]}, "ch_names is [1, 2, 3]; give a list of one name a channel"),
    ]:
        with pytest.raises(errors.CerebroError) as error:
            model(x, **given)
        assert line in str(error.value)
        assert "\n" not in str(error.value)
    model(x, ch_names=names)
    with pytest.raises(errors.InputError, match="the windows have 2 channels, but 3 are named"):  # names that are kept
        model(x[:, :2], ch_names=names)
    with pytest.raises(errors.InputError, match=r"the array has the shape \(3, 40\); expected \(windows, channels"):
        model(x[0], ch_names=["F3", "F4", "Pz"])
    with pytest.raises(errors.InputError, match="without ch_names, to a model that knows channels by name"):
        nameless()(x, channel_positions=torch.randn(4, 3, 3))
    batch = Batch.dense(x, torch.tensor([(1, 0), (2, 0), (3, 0)]))
    with pytest.raises(errors.InputError, match=r"a Batch carries its channels itself \(channels_R2\)"):
        model(batch, ch_names=names)


# ---- positions -----------------------------------------------------------------------------------------------------


def test_positions_without_names_give_the_electrodes_at_these_places():
    model = nameless(unknown="nearest")
    x = torch.tensor(noise(channels=19))
    expected = like(model, TEN_TWENTY)(x)
    for given in (places(TEN_TWENTY), np.tile(places(TEN_TWENTY), (4, 1, 1)), torch.tensor(places(TEN_TWENTY)).float()):
        assert torch.equal(model(x, channel_positions=given), expected)


def test_a_model_with_channels_of_its_own_needs_no_positions():
    model, x = make(unknown="nearest"), torch.tensor(noise())
    assert torch.equal(model(x, channel_positions=torch.randn(4, 3, 3)), model(x))


def test_positions_place_only_the_labels_that_are_not_understood():
    model = nameless(unknown="nearest")
    x = torch.tensor(noise(channels=19))
    labels = [name if number % 3 else f"X{number}" for number, name in enumerate(TEN_TWENTY)]
    assert torch.equal(model(x, ch_names=labels, channel_positions=places(TEN_TWENTY)), like(model, TEN_TWENTY)(x))
    with pytest.raises(errors.ChannelError, match="unknown='nearest' needs a position in metres for each"):
        model(x, ch_names=labels)
    turned = places(TEN_TWENTY) * [-1, -1, 1]
    with pytest.raises(errors.ChannelError, match="positions of the named electrodes are 168 degrees off"):
        model(x, ch_names=labels, channel_positions=turned)
    with pytest.raises(errors.ChannelError, match="positions must be in metres"):
        model(x, ch_names=labels, channel_positions=places(TEN_TWENTY) * 1000)


def test_windows_of_one_batch_may_lack_other_channels():
    """NeuralBench marks a channel that a recording lacks with -0.1; NaN says the same."""
    model = nameless(unknown="nearest_or_drop", n_outputs=3)
    x = torch.tensor(noise(channels=19))
    given = np.tile(places(TEN_TWENTY), (4, 1, 1))
    given[1, 4:7], given[3, 4:7], given[2, 0] = ABSENT, np.nan, 0
    found = model(x, channel_positions=given)
    whole, partly = like(model, TEN_TWENTY), [n for k, n in enumerate(TEN_TWENTY) if not 4 <= k < 7]
    kept = [k for k in range(19) if not 4 <= k < 7]
    rest = like(model, partly)
    expected = torch.stack(
        [
            whole(x[:1])[0],
            rest(x[1:2][:, kept])[0],
            like(model, TEN_TWENTY[1:])(x[2:3][:, 1:])[0],
            rest(x[3:4][:, kept])[0],
        ]
    )
    torch.testing.assert_close(found, expected)


def test_heads_that_differ_by_a_millimetre_share_one_montage():
    model, x = nameless(unknown="nearest"), torch.tensor(noise(channels=19))
    heads = places(TEN_TWENTY) + np.random.default_rng(0).normal(0, 0.0005, (4, 19, 3))
    assert torch.equal(model(x, channel_positions=heads), like(model, TEN_TWENTY)(x))
    assert len(model._named.all()) == 1


# ---- training, copies, compiled code -------------------------------------------------------------------------------


def test_windows_are_counted_for_the_electrodes_that_the_call_named():
    model, x = make().train(), torch.tensor(noise())
    model(x)
    model(x, ch_names=["O1", "Oz", "O2-Cz"])
    record = model.training_record
    assert record.windows == 8
    assert record.electrode_windows == {"Fp1": 4, "Cz": 8, "T7": 4, "O1": 4, "Oz": 4, "O2": 4}
    model.eval()(x, ch_names=["O1", "Oz", "O2-Cz"])
    assert model.training_record == record


def test_copies_keep_what_was_matched():
    model, x = nameless(), torch.tensor(noise())
    expected = model(x, ch_names=["O1", "Oz", "O2"])
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.double().float()):
        assert torch.equal(again(x, ch_names=["O1", "Oz", "O2"]), expected)


def test_compiled_code_takes_names_and_counts():
    names, others = ["O1", "Oz", "O2"], ["F3", "Fz", "F4-Cz"]
    model, x = nameless(), torch.tensor(noise())
    expected = [model(x, ch_names=names), model(x, ch_names=others)]
    compiled = torch.compile(model, backend="eager", fullgraph=True)  # known names need no break of the graph
    torch.testing.assert_close(compiled(x, ch_names=names), expected[0])
    torch.testing.assert_close(compiled(x, ch_names=others), expected[1])
    torch._dynamo.reset()
    breaking = torch.compile(model, backend="eager")
    assert breaking(x, ch_names=["P3", "P4", "P7"]).shape == (4, 12)
    model.train()
    for chosen in (names, names, others):
        breaking(x, ch_names=chosen).sum().backward()
    assert model.training_record.windows == 12
    assert model.training_record.electrode_windows == {"O1": 8, "Oz": 8, "O2": 8, "F3": 4, "Fz": 4, "F4": 4, "Cz": 4}
    torch._dynamo.reset()


def test_an_exported_model_keeps_the_names_of_the_call():
    names = ["O1", "Oz", "O2"]
    model, x = nameless(), torch.tensor(noise())
    exported = torch.export.export(model, (x,), {"ch_names": names}).module()
    torch.testing.assert_close(exported(x, ch_names=names), model(x, ch_names=names))
    searching = nameless(unknown="nearest")
    with pytest.raises(errors.InputError, match="channel_positions cannot be read while a model is exported"):
        torch.export.export(searching, (x,), {"channel_positions": torch.randn(3, 3)})
