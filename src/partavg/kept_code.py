"""Python of the user's own in a run folder: kept with its sha256, compared when a run goes on."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from partavg import own_code
from partavg.named import own_names, renamed

_FOLDER, _INDEX = "code", "code.json"
Index = dict[str, dict[str, str]]
"""What is known of each kept file: its sha256, and the `file` or `module` that it was."""


def digests(tables: Mapping[str, Any]) -> dict[str, str]:
    """The sha256 of all files of the user's own that settings name, for ranks to compare."""
    found: dict[str, str] = {}
    for name in own_names(tables).values():
        code = own_code.executed(name)
        found |= {f"sha256 of {code.folder / file}": sha for file, sha in code.digests.items()}
    return found


def keep(folder: Path, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Write what settings name into a run folder; the settings that name what was kept."""
    index: Index = {}
    homes: dict[Path, str] = {}

    def kept(name: str) -> str:
        if not own_code.is_own(name):
            return name
        code = own_code.executed(name)
        if not own_code.is_file(name):
            module = own_code.place(name)
            for content in code.files.values():
                _write(folder, index, f"{_FOLDER}/modules/{module}.py", content, module=module)
            return name
        home = homes.setdefault(code.folder, f"{_FOLDER}/{len(homes) + 1}" if homes else _FOLDER)
        for file, content in code.files.items():
            _write(folder, index, f"{home}/{file}", content, file=str(code.folder / file))
        return f"{home}/{code.main}:{name.rpartition(':')[2]}"

    changed = renamed(tables, kept)
    if index:
        text = json.dumps(index, indent=2, ensure_ascii=False)
        (folder / _INDEX).write_text(text + "\n", encoding="utf-8")
    return changed


def restored(folder: Path, tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run folder, naming the files that they were made of.

    Files that are not what they were are replaced by their copies, with a warning.
    """
    homes = _homes(folder, tables, ())
    for home, (place, origin) in homes.items():
        if place == (folder / home).resolve() != origin:
            warnings.warn(
                f"{origin} does not hold what it held when {folder} was started: going on with the "
                f"copies in {place}",
                stacklevel=2,
            )
    return _moved(folder, tables, homes)


def as_wanted(folder: Path, tables: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The same to go on with settings that are wanted; a ValueError if code of theirs changed."""
    index = _read_index(folder)
    stored, ours = own_names(tables), own_names(wanted)
    for key in stored.keys() & ours.keys():
        if own_code.without_folder(stored[key]) == own_code.without_folder(ours[key]):
            _check_unchanged(folder, index, stored[key], ours[key])
    files = (Path(own_code.place(name)) for name in ours.values() if own_code.is_file(name))
    return _moved(folder, tables, _homes(folder, tables, [file.parent for file in files]))


def _homes(
    folder: Path, tables: Mapping[str, Any], others: Sequence[Path]
) -> dict[str, tuple[Path, Path]]:
    """Where the files of each folder of kept ones are as they were, and where they were."""
    index = _read_index(folder)
    named: dict[str, list[str]] = {}
    for file in map(own_code.place, own_names(tables).values()):
        if "file" in index.get(file, {}):
            named.setdefault(file.rpartition("/")[0], []).append(file)
    found = {}
    for home, kept in named.items():
        origin, copies = Path(index[kept[0]]["file"]).parent, (folder / home).resolve()
        for place in (*others, origin, copies):
            if not any(_changed(place / Path(one).name, index, one) for one in kept):
                break
        else:
            raise ValueError(
                f"{copies} does not hold what was kept with the run: begin again with --force"
            )
        found[home] = place, origin
    return found


def _moved(
    folder: Path, tables: Mapping[str, Any], homes: Mapping[str, tuple[Path, Path]]
) -> dict[str, Any]:
    """The settings with the files of kept names where they are."""

    def found(name: str) -> str:
        home, _, last = name.rpartition("/")
        return f"{homes[home][0]}/{last}" if home in homes else own_code.anchored(name, folder)

    return renamed(tables, found)


def _check_unchanged(folder: Path, index: Index, kept: str, name: str) -> None:
    """Raise a ValueError if what a name stands for is not what was kept."""
    if own_code.is_file(name):
        path = Path(own_code.place(name))
        changed = _changed(path, index, own_code.place(kept))
    else:
        record = index.get(f"{_FOLDER}/modules/{own_code.place(name)}.py", {})
        now = list(own_code.executed(name).digests.values())
        changed = own_code.place(name) if now and now != [record.get("sha256")] else ""
    if changed:
        raise ValueError(
            f"{changed} has changed since {folder} was started: put it back ({folder / _FOLDER} "
            f"has it as it was), go on with the copy by partavg run {folder / 'config.toml'} --out "
            f"{folder} --resume, or begin again with --force"
        )


def _changed(path: Path, index: Index, kept: str) -> str:
    """Which file of what one consists of is not as it was kept; empty if none."""
    home = kept.rpartition("/")[0]
    try:
        files = own_code.read_files(path)
    except ValueError:  # it is gone, or no Python any more
        return str(path)
    for file, content in files.items():
        if index.get(f"{home}/{file}", {}).get("sha256") != own_code.digest(content):
            return str(path.parent / file)
    return ""


def _write(folder: Path, index: Index, name: str, content: bytes, **origin: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    index[name] = {"sha256": own_code.digest(content), **origin}


def _read_index(folder: Path) -> Index:
    path = folder / _INDEX
    if not path.exists():
        return {}
    try:
        index: Index = json.loads(path.read_text(encoding="utf-8"))
        known = all(
            PurePosixPath(name).parts[0] == _FOLDER
            and ".." not in PurePosixPath(name).parts
            and isinstance(about["sha256"], str)
            and isinstance(about.get("file", about.get("module")), str)
            for name, about in index.items()
        )
    except (ValueError, AttributeError, LookupError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path} is damaged: mend it, or begin again in another folder")
    return index


def forget(folder: Path) -> None:
    """Remove what an old run kept here."""
    for name in _read_index(folder):
        (folder / name).unlink(missing_ok=True)
    (folder / _INDEX).unlink(missing_ok=True)
