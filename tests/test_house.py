"""House rules that a reader relies on: a short model without machinery, one meaning per class name, light imports."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "cerebro_eeg"
PAPER = ("model/patches.py", "model/attention.py", "model/encoder.py", "model/masked.py", "batch.py")
"""The paper in five files, which a stranger reads in one sitting."""
MACHINERY = re.compile("triton|is_cuda|hopper|mkldnn|onednn|hooks", re.IGNORECASE)


def test_the_paper_is_read_in_one_sitting():
    assert sum(len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in PAPER) < 1000


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_does_not_speak_of_machinery(name):
    """Kernels, devices and hooks are known to ``fast/`` alone; the plain formula stands beside each call of it."""
    lines = (PACKAGE / name).read_text(encoding="utf-8").splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if MACHINERY.search(line)] == []


def test_a_class_name_has_one_meaning():
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_nothing_imports_fcntl_at_import():
    """Windows lacks it: a module that needs it imports it inside the function that locks or asks for a limit."""

    def at_import(nodes):
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from at_import(ast.iter_child_nodes(node))

    guilty = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in at_import(ast.parse(path.read_text(encoding="utf-8")).body):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            guilty += [str(path.relative_to(PACKAGE)) for name in names if name == "fcntl"]
    assert guilty == []


# Where text leaves or enters the package.


def calls_of(*names: str) -> dict[str, set[str]]:
    """Files of the package that call a function or method of these names."""
    found = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in names:
                found[name].add(str(path.relative_to(PACKAGE)))
    return dict(found)


def test_text_leaves_through_few_doors():
    """Names come from files of others: what is printed or put into a cell is made safe there (``terminal.py``)."""
    found = calls_of("print", "csv.writer", "csv.DictWriter", "sys.stdout.write", "sys.stderr.write")
    assert found["print"] == {
        "cli.py",
        "progress.py",
        "model/inputs.py",
        "bench/__main__.py",
        "commands/simulate.py",  # counts only
    }
    assert {name: paths for name, paths in found.items() if name != "print"} == {"csv.writer": {"terminal.py"}}


def test_json_and_links_are_read_through_one_door():
    """Deep JSON is a RecursionError elsewhere, and a loop of links a RuntimeError."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert ".resolve()" not in text, path
        assert not re.search(r"json\.loads?\((?!json\.dumps)", text) or path.name == "files.py", path
