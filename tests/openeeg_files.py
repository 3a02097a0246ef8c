"""A tiny folder in the format of the open-EEG pack, with known answers."""

import json

import numpy as np

CODES = {"0": "rest", "1": "13Hz"}

# record, dataset, subject, names, rate, seconds, events
RECORDS = (
    ("a_01", "a", "01", ("Fp1", "Fp2", "Cz"), 250.0, 12, [[0, 500, 0], [1000, 250, 1], [2000, 1, 7]]),
    ("a_02", "a", "02", ("Fp1", "Fp2", "Cz"), 250.0, 9, []),
    ("b_01", "b", "01", ("AF7", "AF8"), 128.0, 6, []),  # the subject 01 of another dataset is another person
    ("neo_1", "neo", "x1", ("Fp2-F4", "F4-C4"), 64.0, 4, [[64 * i, 64, i % 2] for i in range(4)]),
    ("neo_2", "neo", "x2", ("Fp2-F4", "F4-C4"), 64.0, 3, [[64 * i, 64, 0] for i in range(3)]),
)
TASKS = {
    "eyes": [  # no validation rows
        "record,subject,split,t0,t1,label,label_name",
        "a_01,01,train,0.0,6.0,1,closed",
        "a_01,01,train,6.5,12.0,0,open",
        "a_02,02,test,1.25,8.0,1,closed",
    ],
    "motion_reg": [
        "record,subject,split,t0,t1,label,label_name,label2,label10",
        "b_01,01,train,0.0,2.0,0.5,log std,1.5,-7",
        "b_01,01,train,2.0,4.0,-1.25,log std,2.5,-8",
        "b_01,01,val,4.0,6.0,0.75,log std,3.5,-9",
    ],
    "seizure": [
        "record,subject,split,t0,t1,label,label_name",
        *(f"neo_1,x1,train,{t}.0,{t + 1}.0,1,seizure" for t in range(4)),
        *(f"neo_2,x2,hidden,{t}.0,{t + 1}.0,0,none" for t in range(3)),
    ],
}
PRETRAIN = ["record,split,duration_s", "a_01,train,12.0", "b_01,val,6.0"]


def counts_of(record, channels, samples):
    """Integer counts: a walk with steps of both signs, and one of nearly the whole range."""
    rng = np.random.default_rng([*record.encode()])
    counts = np.cumsum(rng.integers(-30, 31, (channels, samples)), axis=1)
    counts = np.clip(counts, -30_000, 30_000).astype(np.int16)
    counts[0, samples // 2] = 32_000
    return counts


def scales_of(channels):
    return np.array([0.1, 0.25, 0.5][:channels], np.float32)


def fields_of(record):
    """What the file of a record holds, by key; written from the format's description, not with our reader."""
    name, dataset, subject, names, rate, seconds, events = next(row for row in RECORDS if row[0] == record)
    counts = counts_of(name, len(names), round(rate * seconds)).astype(np.int64)
    difference = np.diff(counts, axis=1, prepend=0)
    difference = (difference + 32768) % 65536 - 32768  # as 16 bits wrap
    zigzag = np.where(difference >= 0, 2 * difference, -2 * difference - 1)
    meta = {"record": name, "dataset": dataset, "subject": subject, "unit": "uV", "event_codes": CODES}
    return {
        "lo": (zigzag & 255).astype(np.uint8),
        "hi": (zigzag >> 8).astype(np.uint8),
        "scale": scales_of(len(names)),
        "offset": np.full(len(names), 1000, np.float32),
        "ch_names": np.array(names),
        "ch_std": np.array(names),
        "sfreq": np.float64(rate),
        "events": np.array(events, np.int32).reshape(-1, 3),
        "meta": np.array(json.dumps(meta)),
    }


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def write_pack(folder):
    """A tiny folder in the format of the pack."""
    rows = ["record,file,dataset,subject,split"]
    for row in RECORDS:
        path = folder / "data" / row[1] / f"{row[0]}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **fields_of(row[0]))
        rows.append(f"{row[0]},data/{row[1]}/{row[0]}.npz,{row[1]},{row[2]},train")
    write_lines(folder / "index.csv", [rows[0], *reversed(rows[1:])])  # the order of the rows does not matter
    write_lines(folder / "pretrain.csv", PRETRAIN)
    for name, lines in TASKS.items():
        write_lines(folder / "tasks" / f"{name}.csv", lines)
    return folder


def write_record(path, record="a_01", **changes):
    fields = {**fields_of(record), **changes}
    np.savez(path, **{name: value for name, value in fields.items() if value is not None})
    return path
