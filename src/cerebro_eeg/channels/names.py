"""Names: reads one channel label of a file as an electrode, a pair of electrodes, no EEG, or as not understood.

Nothing is guessed. First the wrapping is removed (``EEG ``, ``-REF``, dots, blanks). The rest must be exactly a name of
the vocabulary, a pair of such names, or an old name (T3 T4 T5 T6). Standard library only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cerebro_eeg.channels.electrodes import IDS, VOCABULARY
from cerebro_eeg.errors import ChannelError

ALIASES = {"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8"}
EARS = frozenset({"A1", "A2", "M1", "M2"})

_CANONICAL = {name.upper(): name for name in VOCABULARY} | ALIASES
# Second names that stand for a common reference. The MASS sleep files write CLE and LER (linked ears), CHB-MIT writes
# CS2 (second cervical vertebra), EGI writes VREF.
_REFERENCE = (
    r"REF|REFERENCE|(?:AVG|AVE|AVERAGE)(?:[ _]?REF)?|AR|AV|CAR|CS2|VREF|NOSE|LE|LER|CLE|LINKED[ _]?(?:EARS?|MASTOIDS)"
    r"|\(?(?:A1 ?[+/]? ?A2|A2 ?[+/]? ?A1|M1 ?[+/]? ?M2|M2 ?[+/]? ?M1)\)?(?: ?/ ?2)?"
)
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"
# One blank or mark only: a second one, as in "EEG -Fp1", would be a sign whose meaning is unknown.
_PREFIX = re.compile(r"(?:EEG|POL|RAW)[ ._:\-](?=[^ ._:\-])", re.IGNORECASE)
# MNE makes equal labels unique: T8-P8-0, T8-P8-1. After a single name only -0 and -1 count, since C3-4 may mean C3-C4.
_COPY = re.compile(r"(.+-.+)-\d{1,2}|(.+)-[01]")
_PLACEHOLDER = re.compile(r"(?:-|\.|--\d{1,2}|\.-\d{1,2})")  # CHB-MIT separates groups by channels named "-"
_BLOCK = re.compile(r"([A-H])([1-9]|[12]\d|3[0-2])", re.IGNORECASE)  # Biosemi: A1 to A32, B1 to B32 ... H32
_NUMBERED = re.compile(
    r"(?:E|EEG|(?:(?:EEG|EXG)[ _.\-]?)?(?:CH|CHAN|CHANNEL|ELECTRODE))?[ _.\-]?\d{1,4}\+?", re.IGNORECASE
)
_EAR_PAIR = re.compile(r"(.+?)(A1|A2|M1|M2)", re.IGNORECASE)  # C4A1, O1M2 of older sleep files
_EYE_E = re.compile(r"E[12][ /:_\-]+(?:A1|A2|M1|M2|FPZ)", re.IGNORECASE)  # the eye electrodes of sleep scoring, not EGI

# Labels that are known not to be EEG. Anything may follow long stems (ECGII, EMG-SM), only a non-letter short words.
_NOT_EEG = {
    "heart": r"EKG|ECG|(?:H\.?R\.?|PR|BPM|HEARTRATE|HEART)(?![A-Z])",
    "muscle": r"EMG|CHIN|TIBIAL|(?:LEG|ARM|LEGS|MASSETER|DELTOID)(?![A-Z])|[LR]AT$|[LR]LEG(?![A-Z])",
    "eye": r"EOG|[HVLR]EOG|[HV]EO[LRUD]?(?![A-Z])|(?:LEFT|RIGHT)[ _\-]?EYE"
    r"|(?:[LR]OC|LUC|RLC|LUOC|RLOC|[LR][IS]O|[IS]O)(?:[AM][12])?(?![A-Z])|EYE(?![A-Z])",
    "breathing": r"RESP|AIRFLOW|THOR|ABDO|NASAL|ORONASAL|CANNULA|THERM|CPAP|SNOR|RIB|EFFORT|ETCO2|CO2WAVE|CAPNO"
    r"|(?:FLOW|NEW AIR|NEW A/F|ABD|CHEST|CO2|SUM|LEAK|TIDAL|PTAF|PFLOW)(?![A-Z])",
    "blood": r"SPO2|SAO2|OXI|PULSE|PLET|PLESMO|(?:OX|OSAT|OSTAT|PPG|ABP|CVP|ICP|NIBP)(?![A-Z])",
    "stimulus or marker": r"PHOTIC|TRIG|STATUS|MARK(?:ER|S|\d|$)|EVENT|ANNOT|[EB]DF[ _]ANNOT|STIM"
    r"|(?:STI|MK|PH)(?![A-Z])",
    "burst suppression": r"BURST|SUPPR|IBI(?![A-Z])",
    "movement or body": r"GYRO|ACCEL|ACC[XYZ]?(?![A-Z])|POSITION|BODY|TEMPERATURE"
    r"|(?:MAG|QUAT|MOT|POS|TEMP|GSR|EDA|SCR|ERG)(?![A-Z])",
    "sound, light or input": r"SOUND|LIGHT|DC ?\d|EXG ?\d|AUX|(?:MIC|DC|MISC|MEG|VNS|LUE|RUE|LAE|RAE)(?![A-Z])",
    "housekeeping": r"COUNTER|INTERPOLATED|BATTERY|TIMESTAMP|SAMPLE|PACKET|RAWCQ"
    r"|(?:TIME|UNUSED|EMPTY|BLANK|DUMMY)(?![A-Z])|(?:CQ|EQ|POW|PM|HSI)[._]",
    "reference or ground": r"(?:REF|GND|GROUND|VREF|CMS|DRL|BN\d?)(?![A-Z])|E$",
}
_NOT_EEG_INSIDE = r"(?:^|[^A-Z0-9])(?:E[KCMO]G|[HV]EOG|AUX|ANNOTATIONS?)(?![A-Z])"


def clean(label: str) -> str:
    """Return the label with plain blanks and dashes in place of control characters, odd blanks and odd dashes."""
    if label.isascii() and label.isprintable():
        return " ".join(label.split())
    spaced = "".join("-" if c in _DASHES else c if c.isprintable() else " " for c in label)
    return " ".join(spaced.split())


def electrode(name: str) -> str | None:
    """Return the canonical name of an electrode written in any case (``FP1``, ``fp1``, ``Fc5``, ``T3``), or None.

    ``aF3`` and ``pO3`` are refused: in an older nomenclature a small first letter means another place than AF3 and PO3.
    """
    if not name.isascii() or (name[:1].islower() and not name.islower()):
        return None
    return _CANONICAL.get(name.upper())


def biosemi_blocks(labels: Sequence[str]) -> frozenset[str]:
    """Return the letters that number Biosemi's electrodes in this file, where A1 is no earlobe and C3 is another C3.

    These are A and B if the file has one of A3 to A32 or B1 to B32, and no more names such as Fp1, Cz or O2. Clinical
    files have an A3 beside all electrodes of the 10-20 system: there A1 and A2 are the ears. A letter from C to H
    counts if it also goes beyond the names of the 10-20 system (C7, D1, F13): once beside A or B, three times alone.
    """
    beyond: dict[str, set[str]] = {}
    named = set()
    for label in labels:
        first = _body(clean(label)).split("-")[0].strip()
        found = _BLOCK.fullmatch(first)
        if found and electrode(found[0]) is None:
            beyond.setdefault(found[1].upper(), set()).add(found[2])
        elif not found:
            named.add(electrode(first))
    numbered = sum(len(numbers) for letter, numbers in beyond.items() if letter in "AB")
    blocks = set("AB") if numbered and numbered >= len(named - {None}) else set()
    needed = 1 if blocks else 3
    return frozenset(blocks | {letter for letter, numbers in beyond.items() if len(numbers) >= needed})


def is_eye_e(label: str) -> bool:
    """Return whether the label is ``E1`` or ``E2``, an eye in sleep recordings or a number in EGI nets."""
    return _body(clean(label)).upper() in {"E1", "E2"}


def parse(label: str, *, biosemi: bool = False, bipolar_ears: bool = False) -> "Reading":
    """Read one label without the rest of its file; with ``biosemi`` A1 to H32 are numbered electrodes."""
    return read_label(label, frozenset("ABCDEFGH") if biosemi else frozenset(), bipolar_ears)


def read_label(label: str, blocks: frozenset[str], bipolar_ears: bool) -> "Reading":
    """Read one label as ``parse`` does; ``blocks`` are the letters of Biosemi in its file."""
    if not isinstance(label, str):
        raise ChannelError(f"a channel label must be text, got {label!r} of type {type(label).__name__}")
    text = clean(label)
    if not text:
        return Reading(text, "unknown", note="empty label")
    if _PLACEHOLDER.fullmatch(text):
        return Reading(text, "not_eeg", note="placeholder")
    if not text.isascii():
        odd = next(c for c in text if not c.isascii())
        return Reading(text, "unknown", note=f"has the character U+{ord(odd):04X}, which no electrode name has")
    body = _body(text)
    reading = _named(text, body, blocks, bipolar_ears)
    copy = _COPY.fullmatch(body)
    if reading is None and copy:
        original = copy[1] or copy[2]
        reading = _named(text, original, blocks, bipolar_ears)
        if reading is not None and reading.channel is not None:
            note = "; ".join(filter(None, [reading.note, f"copy {body[len(original) :]} of an equal label"]))
            reading = Reading(text, reading.outcome, reading.channel, reading.reference, note)
    if reading is not None:
        return reading
    kind = _not_eeg(body)
    if kind is not None:
        return Reading(text, "not_eeg", note=kind)
    if _is_positional(text.rstrip("."), blocks) or _is_positional(re.split("[ -]", body)[0], blocks):
        return Reading(text, "positional", note="a number, not a place")
    return Reading(text, "unknown", note="not a known name")


def _body(text: str) -> str:
    """Remove the dots at the end and one prefix: ``EEG Fp1-REF`` -> ``Fp1-REF``, ``Fc5.`` -> ``Fc5``."""
    return _PREFIX.sub("", text.rstrip(". "), count=1) if _PREFIX.match(text) else text.rstrip(". ")


def _is_positional(name: str, blocks: frozenset[str]) -> bool:
    found = _BLOCK.fullmatch(name)
    if found and (found[1].upper() in blocks or electrode(name) is None):
        return True
    return _NUMBERED.fullmatch(name) is not None


def _not_eeg(body: str) -> str | None:
    upper = body.upper()
    for kind, pattern in _NOT_EEG.items():  # re compiles each at its first use, which keeps the import fast
        if re.match(pattern, upper):
            return kind
    # "left EOG" and "Chin EMG" are not EEG; "Fp1 EOG" names an electrode, so it must not be dropped silently.
    if re.search(_NOT_EEG_INSIDE, upper) and not any(electrode(word) for word in re.split(r"[^A-Za-z0-9]+", body)):
        return "not EEG by its name"
    return None


def _is_reference(name: str) -> bool:
    return re.fullmatch(_REFERENCE, name, re.IGNORECASE) is not None


def _named(text: str, body: str, blocks: frozenset[str], bipolar_ears: bool) -> "Reading | None":
    """Return the reading of a body that is made of electrode names, otherwise None."""
    if _EYE_E.fullmatch(body):
        return Reading(text, "not_eeg", note="eye")

    def known(name: str) -> str | None:
        return None if _is_positional(name, blocks) else electrode(name)

    def against(first: str, second: str) -> Reading | None:
        """Return the reading if ``second`` is a reference."""
        anode, ear = known(first), known(second)
        if anode is None or anode == ear or not (_is_reference(second) or ear in EARS):
            return None
        if bipolar_ears and ear in EARS:
            return _reading(text, (first, second), Channel(anode, ear), None)
        return _reading(text, (first,), Channel(anode), ear or second.strip())

    whole = known(body)
    if whole is not None:
        return _reading(text, (body,), Channel(whole), None)
    parts = [part.strip() for part in body.split("-")]
    if len(parts) == 2:
        found = against(*parts)
        if found is not None:
            return found
        anode, cathode = known(parts[0]), known(parts[1])
        if anode is None or cathode is None:
            return None
        if anode == cathode:
            return Reading(text, "unknown", note=f"{anode} against itself")
        return _reading(text, parts, Channel(anode, cathode), None)
    # Any other mark between two names joins a reference (C3/A2, C4:M1, Fp1_REF) or two names of one place (T3/T7,
    # T7 (T3)), never a pair. An ear in front (A1/A2) would mean both ears, which is not understood.
    split = re.fullmatch(r"([A-Za-z0-9]+) ?(?:[/:_(]| ) ?(.+)", body)
    if split and "-" not in body:
        first, second = split[1], split[2]
        closed = second[:-1].strip() if second.endswith(")") and "(" not in second else second
        place = known(first)
        if place is None or place in EARS:
            return None
        if known(closed) == place and first.upper() != closed.upper():
            return Reading(text, "renamed", Channel(place), note=f"{first} and {closed} are both {place}")
        return against(first, closed)
    joined = _EAR_PAIR.fullmatch(body)
    if joined and not blocks and known(joined[1]) not in EARS:
        return against(joined[1], joined[2])
    return None


def _reading(text: str, names: Sequence[str], channel: "Channel", reference: str | None) -> "Reading":
    renamed = [f"{name.upper()}={ALIASES[name.upper()]}" for name in names if name.upper() in ALIASES]
    note = "; ".join([*renamed, *([f"reference {reference}"] if reference else [])])
    if channel.cathode is not None:
        outcome = "bipolar"
    elif reference in EARS:
        outcome = "reference"
    else:
        outcome = "renamed" if renamed else "matched"
    return Reading(text, outcome, channel, reference, note)


@dataclass(frozen=True)
class Channel:
    """An electrode against a common reference, or the difference of two; ``Fp1-F7`` differs from ``F7-Fp1``."""

    anode: str
    cathode: str | None = None

    def __post_init__(self) -> None:
        for name in (self.anode, self.cathode):
            if name is not None and name not in IDS:
                known = electrode(name) if isinstance(name, str) else None
                hint = f"write {known!r}" if known else "names are listed in cerebro_eeg.channels.match.VOCABULARY"
                raise ChannelError(f"{name!r} is not the canonical name of an electrode; {hint}")
        if self.anode == self.cathode:
            raise ChannelError(f"a channel needs two different electrodes, got {self.anode} twice")

    @property
    def name(self) -> str:
        return self.anode if self.cathode is None else f"{self.anode}-{self.cathode}"

    @property
    def ids(self) -> tuple[int, int]:
        """Ids of anode and cathode; 0 stands for no second electrode."""
        return IDS[self.anode], 0 if self.cathode is None else IDS[self.cathode]


@dataclass(frozen=True)
class Reading:
    """One label, read by itself.

    With a channel, ``outcome`` is matched, renamed (an old name), reference (against an ear or mastoid) or bipolar.
    Without one it is not_eeg, positional (a numbered electrode, which only its position can identify) or unknown.
    """

    label: str
    outcome: str
    channel: Channel | None = None
    reference: str | None = None
    note: str = ""
