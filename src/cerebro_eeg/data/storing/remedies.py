"""Remedies: for the code of each reason why a recording is skipped, what a user can do about it."""

_AGAIN = "see that disk, network and memory are there, then run the same command again: it tries these again"
_MEND = "export or copy the file anew, then run with --retry"
_REMEDIES = {
    "unreadable": _AGAIN,
    "changed": "run the same command again when nothing writes to the file",
    "reader_oserror": _AGAIN,
    "reader_memoryerror": _AGAIN,
    "channels": "see --dry-run; --rename map.csv, --unknown drop or nearest, --too-many nearest",
    "unit": "say the unit with --unit uV (folder)",
    "quality": "use --quality keep or drop",
    "rate": "see `info FILE`; resample the recording, or leave it out; of an array say the real rate with --sfreq",
    "names": "say the names of the channels with --channels-from names.txt (folder)",
    "array": "save one matrix of numbers, channels and times; or leave the file out",
    "mixed_rates": "export the EEG channels with one rate",
    "missing_package": "install the package that the reason names, then run with --retry",
    "crash": "run with --retry and fewer --workers; if it comes again, export the file anew",
    "empty": "nothing was recorded: leave the file out, or copy it anew",
    "no_signal": "see `info FILE`; it has no EEG channel: leave it out",
    "sidecar": "mend the table or JSON file beside the recording, then run with --retry",
    "annotation": "mend or copy the annotation beside the recording, then run with --retry",
    "name": "rename the file as the corpus does",
    "subject": "mend the name of the subject in the corpus",
    "sessions": "copy the missing files of the corpus",
    "missing": "copy the missing files of the corpus, then run with --retry",
    "suffix": "convert the file to a format that is read, such as EDF",
}


def remedy_of(code: str) -> str:
    """Return what to do about recordings that were skipped for this reason."""
    if code.startswith("reader_") and code not in _REMEDIES:
        return "see `info FILE --debug`, and export the file anew; a reader that fails is a bug: please report it"
    return _REMEDIES.get(code, f"see `info FILE`; {_MEND}")
