"""Whether a reader finds his way: names that stand for one thing, and a README in each folder that tells of its files.

python .ci/check_rooms.py

Ends with status 1 and a line for each fault. Of both packages: no two classes have the same name (those that begin with
`_` do not count), no two files, no folder has more than 24 Python files, and each has a README.md of at most 25 lines
that tells of each of its files and folders, at the beginning of a line: "- `order.py`: ...".
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("sophon_loader", "storage_agent")
MAX_FILES = 24
MAX_LINES = 25
MAX_COLUMNS = 120
NAME = r"`([\w.]+(?:\.py|/))`"
OF_PACKAGES = ("__init__.py", "__main__.py")
"""Files that many folders have."""


def faults() -> Iterator[str]:
    """A sentence for each."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    yield from doubled_names(files)
    for folder in sorted({path.parent for path in files}):
        yield from faults_of(folder)


def doubled_names(files: list[Path]) -> Iterator[str]:
    """Of files, and of classes at the top of one."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in files:
        where = path.relative_to(ROOT).as_posix()
        if path.name not in OF_PACKAGES:
            places[f"file {path.name}"].append(where)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[f"class {node.name}"].append(where)
    for name, found in places.items():
        if len(found) > 1:
            yield f"{name} stands in {' and '.join(found)}; give each a name of its own"


def faults_of(folder: Path) -> Iterator[str]:
    """Of one folder and its README."""
    where = folder.relative_to(ROOT).as_posix()
    modules = sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")
    if len(modules) + 1 > MAX_FILES:
        yield f"{where} has {len(modules) + 1} Python files, at most {MAX_FILES} are allowed; make a folder of some"
    readme = folder / "README.md"
    if not readme.exists():
        yield f"{where}/README.md is missing; say there what the folder is for, and a line for each file"
        return
    lines = readme.read_text().splitlines()
    if len(lines) > MAX_LINES:
        yield f"{where}/README.md has {len(lines)} lines, at most {MAX_LINES} are allowed"
    if any(len(line) > MAX_COLUMNS for line in lines):
        yield f"{where}/README.md has lines of more than {MAX_COLUMNS} columns"
    inner = sorted(f"{path.parent.name}/" for path in folder.glob("*/__init__.py"))
    told = [name for line in lines if line.startswith("- `") for name in re.findall(NAME, line.partition(":")[0])]
    wanted = [*inner, *modules]
    for name in sorted({*wanted} - {*told}):
        yield f"{where}/README.md must have a line that begins with - `{name}`"
    for name in sorted({name for name in told if not (folder / name).exists()}):
        yield f"{where}/README.md tells of {name}, which is not there"


def main() -> int:
    """Print what there is to mend; returns the exit status."""
    found = list(faults())
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
