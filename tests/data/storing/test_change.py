"""Other options into the same folder: the store of a fresh preparation, and only what they concern is made anew."""

import errno
import functools
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.storing import store as store_module
from cerebro_eeg.data.storing import store_info, swap
from cerebro_eeg.data.storing.job import Job, PrepareChoices
from cerebro_eeg.data.storing.prepare import Prepared, prepare
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.workers import opened_shard
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import ConfigError, StoreBusyError, StoreError
from cerebro_eeg.runs.verify import verify
from edf_files import File, Notes, Wave, tal, timekeeping
from folder_files import write

RATE = 256
SECONDS = 6
TESTS = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
PATHS = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))


# A corpus in which every option concerns some recordings and not others


def edf(path: Path, seed: int, labels=("Fp1", "Cz", "O2"), units=None, line=50.0, flat=()) -> Path:
    """Noise with a line of the mains; units by label, and labels that are flat."""
    rng = np.random.default_rng(seed)
    times = np.arange(RATE * SECONDS) / RATE
    waves: list[Wave | Notes] = []
    for label in labels:
        values = rng.normal(0, 400, len(times)) + 1200 * np.sin(2 * np.pi * line * times)
        counts = np.zeros(len(times), int) if label in flat else np.clip(values, -2000, 2000).astype(int)
        waves.append(Wave(label, counts, RATE, (units or {}).get(label, "uV")))
    notes = tal("+1", "go", duration="2") + tal("+4", "stop", duration="1")
    waves.append(Notes(timekeeping([f"+{s}" for s in range(SECONDS)], {0: notes}), samples=120))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(File(waves, kind="EDF+C", records=SECONDS)))
    return path


def corpus(top: Path) -> Path:
    edf(top / "s0" / "plain.edf", 0)
    edf(top / "s1" / "plain.edf", 1)
    edf(top / "s2" / "plain.edf", 2)
    edf(top / "s3" / "nose.edf", 3, ("Fp1", "Nose", "O2"))
    edf(top / "s4" / "no_unit.edf", 4, units={"Fp1": "", "Cz": "", "O2": ""})
    edf(top / "s5" / "nose_without.edf", 5, ("Fp1", "Cz", "Nose"), units={"Nose": ""})
    edf(top / "s6" / "flat.edf", 6, flat=("Cz",))
    edf(top / "s7" / "many.edf", 7, ("Fp1", "Fp2", "Cz", "O1", "O2"))
    edf(top / "s8" / "american.edf", 8, line=60.0)
    cut = edf(top / "s9" / "cut.edf", 9)
    cut.write_bytes(cut.read_bytes()[:900])
    return top


NAMES = {
    name: f"s{number}/{name}.edf"
    for number, name in [(3, "nose"), (4, "no_unit"), (5, "nose_without"), (6, "flat"), (7, "many"), (8, "american")]
}
PLAIN = [f"s{number}/plain.edf" for number in range(3)]
SOUND = [*PLAIN, NAMES["flat"], NAMES["many"], NAMES["american"]]  # what is stored without any option
TABLES = {
    "a": ["file,label,start,stop", *(f"{name},{'ill' if n % 2 else 'well'},," for n, name in enumerate(SOUND))],
    "b": ["file,label,start,stop", "s0/plain.edf,up,0,2", "s0/plain.edf,down,2,4", f"{NAMES['flat']},up,1,5"],
    "late": ["file,label,start,stop", "s0/plain.edf,up,100,200", "s1/plain.edf,down,5.5,9", "s2/plain.edf,up,6,7"],
}


class Bench:
    """The corpus, a store that is changed, and fresh stores to compare it with."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.top = corpus(tmp / "eeg")
        for name, rows in TABLES.items():
            write(tmp / name / "lab.csv", *rows)
        self.fresh = functools.cache(self._fresh)

    def run(self, store: str, *, anew=False, workers=0, todo=None, say=None, **options) -> Prepared:
        choices = {name: options.pop(name) for name in list(options) if name in PrepareChoices.__annotations__}
        if "labels" in options:
            options["labels"] = self.tmp / options["labels"] / "lab.csv"

        def before(items, _):
            if todo is not None:
                todo.extend(sorted(item.name for item in items))

        return prepare(
            folder(self.top, **options), self.tmp / store, PrepareChoices(**choices), key_file=self.tmp / "key",
            anew=anew, workers=workers, before=before, say=say,
        )  # fmt: skip

    def _fresh(self, text: str) -> dict[str, object]:
        self.run(f"fresh-{len(list(self.tmp.iterdir()))}", **read(text))
        return self.state(sorted(self.tmp.glob("fresh-*"), key=lambda path: int(path.name[6:]))[-1])

    def state(self, store: Path) -> dict[str, object]:
        """Everything that two equal stores have in common."""
        found = Store(store)
        found.verify(full=True)
        files = {
            n: (store / n).read_bytes() for n in ("store.json", "mains.json", "skipped.csv") if (store / n).exists()
        }
        return {"hash": found.hash(), "records": list(found.recordings), **files}


def text_of(options: dict) -> str:
    return json.dumps(options, sort_keys=True)


def read(text: str) -> dict:
    values = json.loads(text)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("change"))


@pytest.fixture
def own(tmp_path):
    return Bench(tmp_path)


OPTIONS = {
    "unit": (None, None, "uV", "mV"),
    "unknown": (None, None, "drop"),
    "quality": ("keep", "keep", "drop", "refuse"),
    "mains": (None, None, 50.0, 0.0),
    "max_channels": (None, None, 3),
    "too_many": (None, "nearest"),
    "labels": (None, "a", "b", "late"),
    "subject": (None, "parent"),
    "split": (None, "none", "recording"),
    "events": ((), (), ("go",), ("go", "stop")),
    "positive": (None, None, "up"),
    "causal": (False, False, False, False, True),
}


def draw(rng: random.Random, before: dict | None) -> dict:
    """Other options than before in one or two places, that fit together."""
    chosen = dict(before or {name: values[0] for name, values in OPTIONS.items()})
    for name in rng.sample(list(OPTIONS), rng.randint(1, 2)):
        chosen[name] = rng.choice(OPTIONS[name])
    if chosen["labels"] is None:
        chosen["split"] = chosen["positive"] = None
    if chosen["labels"] == "a":
        chosen["positive"] = None
    return chosen


def given(options: dict) -> dict:
    return {name: value for name, value in options.items() if value not in (None, ())}


# The property


@pytest.mark.parametrize("seed", range(3))
def test_any_change_gives_the_store_of_a_fresh_preparation(bench, seed):
    rng = random.Random(seed)
    store, options, changes = f"walk-{seed}", None, 0
    for _ in range(12):
        options = draw(rng, options)
        found = bench.run(store, anew=True, **given(options))
        assert bench.state(bench.tmp / store) == bench.fresh(text_of(given(options))), options
        assert found.hash == bench.fresh(text_of(given(options)))["hash"]
        changes += found.changed is not None
    assert changes > 4
    assert not (bench.tmp / store / swap.STAGE).exists()


def test_worker_processes_find_the_same(bench):
    options = {"unknown": "drop", "unit": "uV", "labels": "a", "subject": "parent"}
    bench.run("spread")
    bench.run("spread", workers=2, anew=True, **options)
    assert bench.state(bench.tmp / "spread") == bench.fresh(text_of(options))


# What is prepared again, and what is kept

SKIPPED = [NAMES["nose"], NAMES["no_unit"], NAMES["nose_without"], "s9/cut.edf"]


@pytest.mark.parametrize(
    ("before", "after", "again", "rewritten", "todo"),
    [
        ({}, {"unit": "uV"}, {}, 0, []),
        ({}, {"unknown": "drop"}, {}, 0, []),
        ({"unit": "uV"}, {"unit": "mV"}, {"unit": 1}, 0, [NAMES["no_unit"]]),
        ({"unit": "uV"}, {}, {"unit": 1}, 0, [NAMES["no_unit"]]),
        ({"unknown": "drop"}, {"unit": "uV", "unknown": "drop"}, {}, 0, []),
        ({"unknown": "drop"}, {}, {"channels": 2}, 0, [NAMES["nose"], NAMES["nose_without"]]),
        ({}, {"too_many": "nearest"}, {}, 0, []),
        ({}, {"too_many": "nearest", "max_channels": 3}, {"channels": 1}, 0, [NAMES["many"]]),
        ({}, {"quality": "drop"}, {"bad channels": 1}, 0, [NAMES["flat"]]),
        ({"quality": "drop"}, {"quality": "keep"}, {"bad channels": 1}, 0, [NAMES["flat"]]),
        ({"quality": "refuse"}, {"quality": "drop"}, {}, 0, []),
        ({}, {"mains": 50.0}, {"mains": 1}, 0, [NAMES["american"]]),
        ({}, {"labels": "a"}, {}, 6, []),
        ({"labels": "a"}, {"labels": "a", "split": "recording"}, {}, 6, []),
        ({"labels": "a"}, {"labels": "b"}, {}, 6, []),
        ({"labels": "b"}, {"labels": "b", "positive": "down"}, {}, 0, []),
        ({"labels": "a"}, {}, {}, 6, []),
        ({}, {"subject": "parent"}, {}, 6, []),
        ({}, {"events": ("go",)}, {}, 6, []),
    ],
    ids=str,
)
def test_only_what_an_option_concerns_is_prepared_again(own, before, after, again, rewritten, todo):
    first, tried, said = own.run("store", **before), [], []
    shards = {path.name: (path.stat().st_ino, path.stat().st_size) for path in (own.tmp / "store").glob("*.bin")}
    found = own.run("store", todo=tried, say=said.append, **after)
    changed = found.changed
    assert (changed.again, changed.left, changed.rewritten) == (again, 0, rewritten)
    assert (changed.recordings, changed.hash_before) == (first.recordings, first.hash)
    assert changed.kept == first.recordings - len(todo)
    others = set(first.sources.values())
    assert set(tried) == {*others, *todo}
    if not again:
        now = {path.name: (path.stat().st_ino, path.stat().st_size) for path in (own.tmp / "store").glob("*.bin")}
        assert all(now[name][0] == inode and now[name][1] >= size for name, (inode, size) in shards.items())
    assert any(changed.text() in line for line in said)
    assert own.run("store", **after).changed is None


@pytest.mark.parametrize("options", [{"causal": True}, {"reference": "average"}, {"unknown": "drop", "causal": True}])
def test_what_concerns_all_samples_is_done_on_request_only(own, options):
    own.run("store")
    before = {path.name: path.read_bytes() for path in (own.tmp / "store").iterdir()}
    with pytest.raises(ConfigError) as caught:
        own.run("store", **options)
    text = str(caught.value)
    assert "they concern the samples of 6 of 6 stored recordings, " in text
    assert "take about" in text
    assert "give --anew to do so in this folder, prepare into another folder" in text
    assert "\n" not in text
    now = {path.name: path.read_bytes() for path in (own.tmp / "store").iterdir()}
    assert {**before, swap.LOCK: b""} == now
    found = own.run("store", anew=True, **options)
    assert found.changed.kept == 0
    assert own.state(own.tmp / "store") == own.fresh(text_of(options))


def test_recordings_that_were_never_finished_do_not_stop_a_change(own):
    """A store that was interrupted goes on with other options, too."""
    prepare(folder(own.top), own.tmp / "store", part=(1, 3), key_file=own.tmp / "key")
    own.run("store", unknown="drop", unit="uV")
    assert own.state(own.tmp / "store") == own.fresh(text_of({"unknown": "drop", "unit": "uV"}))


# Who else is there


def test_a_store_that_is_written_to_is_not_changed(own):
    own.run("store")
    store = own.tmp / "store"
    before = own.state(store)
    with ShardWriter(store, "other"), pytest.raises(StoreBusyError, match="another process writes recordings"):
        own.run("store", unit="uV")
    assert own.state(store) == before
    assert own.run("store", unit="uV").changed is not None


def test_a_writer_with_other_options_than_the_store_has_now_is_refused(own):
    own.run("store")
    job = Job(own.tmp / "store", folder(own.top), PrepareChoices(), mark=store_info.mark(own.tmp / "store"))
    own.run("store", unit="uV")
    with pytest.raises(StoreError, match="another prepare has changed the options"), opened_shard(job, "late"):
        pass


def test_a_store_that_is_changed_while_it_is_opened_is_no_mixture(own, monkeypatch):
    own.run("store")
    real, turns = store_module.read_shard, []

    def meanwhile(place, name):
        if not turns:
            turns.append(name)
            own.run("store", labels="a")
        return real(place, name)

    monkeypatch.setattr(store_module, "read_shard", meanwhile)
    with pytest.raises(StoreError, match="changed while it was opened"):
        Store(own.tmp / "store")
    assert Store(own.tmp / "store").recordings[0].labels


def test_samples_that_are_still_read_are_never_others(own):
    """A training that has opened the store reads what it opened, or gets an error."""
    own.run("store", unit="uV")
    store = Store(own.tmp / "store")
    names = {path.name: path.read_bytes() for path in (own.tmp / "store").glob("*.bin")}
    for options in ({"unit": "mV"}, {}, {"unit": "uV", "quality": "drop"}):
        own.run("store", anew=True, **options)
        for name, data in names.items():
            path = own.tmp / "store" / name
            assert not path.exists() or path.read_bytes().startswith(data)
    with pytest.raises(StoreError, match=r"cannot be opened|could not be read"):
        store.read(0, 0, 10)


def test_the_jobs_of_an_array_change_a_store_once(own):
    """They begin at the same moment, and wait for the one that does it."""
    own.run("store", labels="a")
    lines = f"""
        import sys
        from pathlib import Path
        from cerebro_eeg.data.datasets.folder import folder
        from cerebro_eeg.data.storing.job import PrepareChoices
        from cerebro_eeg.data.storing.prepare import prepare

        tmp = Path({str(own.tmp)!r})
        recipe = folder(tmp / "eeg", labels=tmp / "b" / "lab.csv")
        choices = PrepareChoices(quality="drop", unknown="drop")
        sys.stdin.readline()
        found = prepare(recipe, tmp / "store", choices, part=(int(sys.argv[1]), 3), key_file=tmp / "key")
        print(found.changed is not None)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(lines)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen([*command, str(part)], env=os.environ, **pipes) for part in (1, 2, 3)]
    said = [job.communicate("go\n") for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], said
    assert sorted(out for out, _ in said) == ["False\n", "False\n", "True\n"]
    options = {"labels": "b", "quality": "drop", "unknown": "drop"}
    own.run("store", **options)
    assert own.state(own.tmp / "store") == own.fresh(text_of(options))


# Kills

POINTS = ("staged", "noted", "put", "all-put", "removed", "all-removed", "done")
FROM = {"unit": "uV", "labels": "a"}
TO = {"unknown": "drop", "labels": "b", "subject": "parent", "quality": "drop"}


def kill_main(tmp: str) -> None:
    """Change a store and be killed at each point; then go on with the new or with the old options."""
    own = Bench(Path(tmp))
    fresh = {text: own.fresh(text) for text in (text_of(FROM), text_of(TO))}
    states = []
    for number, where in enumerate(POINTS * 2):
        store = f"store-{number}"
        own.run(store, **FROM)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ["CEREBRO_FAULT"] = f"swap:{where}"
                own.run(store, anew=True, **TO)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, where
        try:
            found = Store(own.tmp / store)
            found.verify(full=True)
            whole = (own.tmp / store / "skipped.csv").exists()
            assert whole == (found.hash() == fresh[text_of(FROM)]["hash"]), where
            states.append("old" if whole else "unfinished")
        except store_info.ChangingStoreError:
            states.append("changing")
        wanted = TO if number < len(POINTS) else FROM
        own.run(store, anew=True, **wanted)
        assert own.state(own.tmp / store) == fresh[text_of(wanted)], (where, wanted)
        assert not (own.tmp / store / swap.STAGE).exists()
    print(json.dumps(states))


def test_a_kill_leaves_the_old_store_or_one_that_goes_on(tmp_path):
    code = f"import test_change; test_change.kill_main({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["old", *["changing"] * 5, "unfinished"] * 2


def test_a_note_that_leads_out_of_the_store_is_refused(own):
    """A store may come from elsewhere."""
    own.run("store")
    victim = write(own.tmp / "victim", "x")
    for names in (["../victim"], ["/etc/passwd"], [".hidden/x"], ["a/b"], [""]):
        (own.tmp / "store" / "store.json").write_text(store_info.changing_text([], names))
        with pytest.raises(StoreError, match="damaged"):
            own.run("store")
    assert victim.exists()


def test_a_change_that_was_interrupted_is_said_and_is_no_damage(own):
    own.run("store")
    text = (own.tmp / "store" / "store.json").read_text()
    (own.tmp / "store" / "store.json").write_text(store_info.changing_text([], []))
    with pytest.raises(StoreError, match="run its prepare command again, which ends it"):
        Store(own.tmp / "store")
    (found,) = verify([own.tmp / "store"]).things
    assert found.damaged == []
    assert "run its prepare command again" in found.uncovered[0]
    with pytest.raises(StoreError, match="was copied while it was changed"):  # the hidden folder is not there
        own.run("store")
    (own.tmp / "store" / "store.json").write_text(text)


@pytest.mark.parametrize("fault", ["full disk", "damage", "gone"])
def test_a_change_that_fails_leaves_the_old_store(own, monkeypatch, fault):
    own.run("store", unit="uV", labels="a")
    store = own.tmp / "store"
    before = own.state(store)
    flipped = {}
    if fault == "full disk":
        monkeypatch.setattr("cerebro_eeg.data.storing.rewrite.replacing", full_disk)
    elif fault == "damage":
        (path,) = store.glob("*-0000.bin")
        flipped[path] = path.read_bytes()
        path.write_bytes(b"\1" + flipped[path][1:])
    else:
        (own.top / "s7").rename(own.tmp / "away")
    words = {"full disk": "No space left", "damage": "are damaged", "gone": "the source is not there any more"}[fault]
    with pytest.raises((StoreError, ConfigError), match=words):
        own.run("store", unit="mV", labels="b")
    for path, data in flipped.items():
        path.write_bytes(data)
    assert own.state(store) == before
    assert not (store / swap.STAGE).exists()


def full_disk(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Stores of before


@pytest.mark.parametrize("format", [1, 2])
def test_stores_of_earlier_formats_keep_their_rules(own, monkeypatch, format):
    monkeypatch.setattr(store_info, "FORMAT", format)
    own.run("store")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="made with other settings: quality is 'keep'"):
        own.run("store", quality="drop")
    with pytest.raises(ConfigError, match="another subject"):
        own.run("store", subject="parent")
    assert own.run("store").changed is None


def test_a_store_of_an_earlier_recipe_is_neither_changed_nor_continued(own, monkeypatch):
    monkeypatch.setattr("cerebro_eeg.data.storing.job.RECIPE_VERSION", 2)
    own.run("store")
    monkeypatch.undo()
    before = own.state(own.tmp / "store")
    with pytest.raises(ConfigError, match=r"made with other settings: .*version is 2 in the store, 3 was asked for"):
        own.run("store", quality="drop", anew=True)
    assert own.state(own.tmp / "store") == before


def test_what_is_said_of_arrays_concerns_arrays_alone(own):
    np.save(own.top / "s0" / "array.npy", np.random.default_rng(0).normal(0, 30, (3, 2000)).astype(np.float32))
    said = {"channels_from": write(own.tmp / "names" / "names.txt", "Fp1", "Cz", "O2"), "unit": "uV"}
    own.run("store", sfreq=200.0, **said)
    tried: list[str] = []
    changed = own.run("store", sfreq=250.0, todo=tried, **said).changed
    assert changed.again == {"arrays": 1}
    assert "s0/array.npy" in tried
    own.run("fresh", sfreq=250.0, **said)
    assert own.state(own.tmp / "store") == own.state(own.tmp / "fresh")
    assert next(r for r in Store(own.tmp / "store").recordings if r.native_sfreq == 250).seconds == 8


def test_other_names_concern_the_recordings_that_have_them(own):
    own.run("store")
    changed = own.run("store", names={"Fp2": "F4"}).changed
    assert changed.again == {"channels": 1}
    own.run("fresh", names={"Fp2": "F4"})
    assert own.state(own.tmp / "store") == own.state(own.tmp / "fresh")
