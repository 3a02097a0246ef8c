"""What happens in a recording and when: eyes, hands, seizures, walking, blinks, muscles. Times in seconds.

Each task is a way to spend a recording. Its events are the truth that goes into the file as annotations; its labels are
the intervals that a model is trained on. Starts and lengths are whole or half seconds where a person would be told what
to do, so that windows of whole seconds fit.
"""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np

from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.data.simulation.subject import Subject, generator

Task = Literal["eyes", "hands", "seizure", "gait"]
TASKS: tuple[Task, ...] = get_args(Task)
LABELS: Mapping[Task, tuple[str, ...]] = {
    "eyes": ("eyes_closed", "eyes_open"),
    "hands": ("left_hand", "right_hand"),
    "seizure": ("background", "seizure"),
    "gait": (),
}
"""The events that are classes of a task; that of gait is regression."""
BLINK_SECONDS = 0.4


def schedule(seed: int, subject: Subject, task: Task, seconds: float) -> tuple[Event, ...]:
    """Every event of a recording, by onset."""
    rng = generator(seed, subject.number, task, "schedule")
    events = _SCHEDULES[task](rng, seconds)
    closed = [event for event in events if event.name == "eyes_closed"]
    events += _blinks(generator(seed, subject.number, task, "blinks"), subject, seconds, closed)
    events += _muscle(generator(seed, subject.number, task, "muscle"), seconds)
    return tuple(sorted(events, key=lambda event: (event.onset, event.name)))


def _eyes(rng: np.random.Generator, seconds: float) -> list[Event]:
    """Blocks of 12 to 18 s, at least one of each."""
    events, at, closed = [], 0.0, bool(rng.integers(2))
    while at < seconds:
        length = min(float(rng.integers(12, 19)), max(2.0, seconds // 2))
        if seconds - at - length < 6 and at > 0:  # no stub at the end
            length = seconds - at
        length = min(length, seconds - at)
        events.append(Event(at, length, "eyes_closed" if closed else "eyes_open"))
        at, closed = at + length, not closed
    return events


def _hands(rng: np.random.Generator, seconds: float) -> list[Event]:
    """Six seconds of movement, three or four of rest; of every two trials one is left and one right."""
    events = [Event(0.0, seconds, "eyes_open")]
    at = float(rng.integers(4, 7)) / 2
    pair: list[str] = []
    while at + 6 <= seconds:
        if not pair:
            pair = ["left_hand", "right_hand"] if rng.integers(2) else ["right_hand", "left_hand"]
        events.append(Event(at, 6.0, pair.pop()))
        at += 6 + float(rng.integers(6, 9)) / 2
    return events


def _seizure(rng: np.random.Generator, seconds: float) -> list[Event]:
    """One seizure a minute, 8 to 20 s long, each somewhere in its own stretch of the recording."""
    events = [Event(0.0, seconds, "eyes_closed")]
    count = max(1, round(seconds / 60))
    stretch = seconds / count
    end = 0.0
    for number in range(count):
        length = min(float(rng.integers(8, 21)), max(1.0, stretch // 3))
        first, last = number * stretch + stretch / 8, (number + 1) * stretch - stretch / 8 - length
        onset = round(float(rng.uniform(first, last)) * 2) / 2
        events += [Event(end, onset - end, "background"), Event(onset, length, "seizure")]
        end = onset + length
    return [*events, Event(end, seconds - end, "background")]


def _gait(rng: np.random.Generator, seconds: float) -> list[Event]:
    return [Event(0.0, seconds, "eyes_open"), Event(0.0, seconds, "walking")]


_SCHEDULES: Mapping[Task, Callable[[np.random.Generator, float], list[Event]]] = {
    "eyes": _eyes,
    "hands": _hands,
    "seizure": _seizure,
    "gait": _gait,
}


def _blinks(rng: np.random.Generator, subject: Subject, seconds: float, closed: list[Event]) -> list[Event]:
    """While the eyes are open, a second apart at least."""
    events: list[Event] = []
    at = 0.0
    while True:
        at = round(at + 1 + float(rng.exponential(60 / subject.blinks_per_minute)), 3)
        if at + BLINK_SECONDS > seconds:
            return events
        if not any(event.onset - 0.5 < at < event.onset + event.duration for event in closed):
            events.append(Event(at, BLINK_SECONDS, "blink"))


def _muscle(rng: np.random.Generator, seconds: float) -> list[Event]:
    """About two a minute."""
    events: list[Event] = []
    at = 0.0
    while True:
        at = round(at + 4 + float(rng.exponential(26)), 3)
        length = round(float(rng.uniform(0.5, 2.0)), 3)
        if at + length > seconds:
            return events
        events.append(Event(at, length, "muscle"))
