"""The documentation site: ``make docs`` builds it from the pages of this folder, without a network.

The gallery runs its examples. Links into MNE, scikit-learn, torch and others come from ``inventories.txt``, which lists
the names that our pages use, so that no inventory has to be downloaded.
"""

import os
import re
import zlib
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
os.environ.setdefault("OMP_NUM_THREADS", "2")

project = "cerebro-eeg"
author = "The cerebro-eeg contributors"
copyright = "The cerebro-eeg contributors, Apache-2.0"
release = re.search(r'__version__ = "(.+)"', (HERE.parent / "src/cerebro_eeg/__init__.py").read_text(encoding="utf-8"))[
    1
]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "figures/README.md", "gallery/*.py", "gallery/README.rst", "sg_execution_times.rst"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
nitpicky = False

myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "colon_fence"]
suppress_warnings = ["config.cache"]  # the gallery's settings hold a function, which cannot be kept between builds

html_theme = "furo"
html_title = "cerebro-eeg"
html_static_path: list[str] = []
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures are long; the text says what is taken
napoleon_google_docstring = True
napoleon_numpy_docstring = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"/plot_|/run_" if find_spec("moabb") else r"/plot_",
    "ignore_pattern": r"/_",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "min_reported_time": 1,
    "copyfile_regex": r".*\.md",
    "within_subsection_order": "FileNameSortKey",
}


def _inventories() -> dict[str, tuple[str, str]]:
    """Write an inventory for each project of ``inventories.txt``, and return where intersphinx finds them."""
    folder = HERE / "_build" / "inventories"
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for block in (HERE / "inventories.txt").read_text(encoding="utf-8").split("# ")[1:]:
        head, *rows = block.strip().splitlines()
        name, address = head.split()
        lines = (f"{object} py:{role} 1 {page}#$ -" for object, role, page in map(str.split, rows))
        packed = zlib.compress("".join(f"{line}\n" for line in lines).encode())
        words = ["Sphinx inventory version 2", f"Project: {name}", "Version: ", "The rest is compressed using zlib."]
        (folder / f"{name}.inv").write_bytes("".join(f"# {line}\n" for line in words).encode() + packed)
        found[name] = (address, str(folder / f"{name}.inv"))
    return found


intersphinx_mapping = _inventories()


def _without_links_out(app: object, page: str, source: list[str]) -> None:
    """Turn links to files of the repository that are not part of the site into their paths."""
    up = "../" * page.count("/")
    pattern = rf"\[([^\]]+)\]\({re.escape(up)}\.\./([^)#]+)(#[^)]*)?\)"
    source[0] = re.sub(pattern, lambda found: f"{found[1]} (`{found[2]}`)", source[0])


def _plain_docstring(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Make examples code, and keep names such as ``from_`` from being read as links."""
    found: list[str] = []
    for line in lines:
        example = line.strip() == "Try, for example:"
        is_code = bool(found) and line.startswith(" ") and "Try, for example::" in found[-8:]
        name_with_end = r"(?<![`\w\\])(\w*[A-Za-z0-9])_(?![\w`])"
        plain = re.sub(name_with_end, r"\1\\_", line.replace("]_", "]\\_"))
        found.append(f"{line}:" if example else line if is_code else plain)
        found += [""] if example else []
    lines[:] = found


def setup(app: object) -> None:
    app.connect("source-read", _without_links_out)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", _plain_docstring)  # type: ignore[attr-defined]
