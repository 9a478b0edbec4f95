"""Python of the user's own that a name stands for: `file.py:name` or `package.module:name`.

A file is executed once in a process, with its folder on Python's path while that lasts; what it was
at that time, and what it imports from its folder, is known afterwards. Nothing here imports torch.
"""

import ast
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import ModuleType

_PACKAGE = "partavg_own_code_"


@dataclass(frozen=True, slots=True)
class OwnCode:
    """A file or a module that was executed, and the files that it consists of."""

    module: ModuleType
    folder: Path
    main: str
    """The file that is named, below the folder; empty for a module that is no Python file."""
    files: Mapping[str, bytes]
    """What was executed: that file, and those of its folder that it imports."""

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each file."""
        return {name: digest(content) for name, content in self.files.items()}


_EXECUTED: dict[str, OwnCode] = {}
"""By the resolved path of a file, or the name of a module."""


def is_own(name: object) -> bool:
    """Whether a name stands for Python of the user's own."""
    return isinstance(name, str) and ":" in name


def place(name: str) -> str:
    """The file or module of a name.

    >>> place("models/mine.py:Net")
    'models/mine.py'
    """
    return name.rpartition(":")[0]


def is_file(name: str) -> bool:
    """Whether a name stands for something in a file, rather than in a module."""
    return place(name).endswith(".py")


def anchored(name: str, folder: Path) -> str:
    """A name with the whole path of its file, which is relative to a folder; others as they are."""
    if not (is_own(name) and is_file(name)):
        return name
    path = (folder / Path(place(name)).expanduser()).resolve()
    return f"{path}:{name.rpartition(':')[2]}"


def without_folder(thing: object) -> object:
    """A name of the user's own wherever its file lies; anything else as it is.

    >>> without_folder("/home/me/mine.py:thirds")
    'mine.py:thirds'
    """
    if isinstance(thing, str) and is_own(thing) and is_file(thing):
        return thing.rpartition("/")[2]
    return thing


def executed(name: str) -> OwnCode:
    """The file or module of a name, executed if that was not done yet."""
    key = place(anchored(name, Path.cwd()))
    if key not in _EXECUTED:
        importlib.invalidate_caches()
        _EXECUTED[key] = _execute_file(Path(key)) if is_file(name) else _import_module(key)
    return _EXECUTED[key]


def look_again(name: str) -> None:
    """Forget the file of a name if it is not what it was, so that it will be executed anew."""
    key = place(anchored(name, Path.cwd()))
    known = _EXECUTED.get(key)
    if not is_file(name) or known is None or known.files == read_files(Path(key)):
        return
    ours = {str(known.folder / file) for file in known.files}
    for module, loaded in list(sys.modules.items()):
        if getattr(loaded, "__file__", None) in ours:
            del sys.modules[module]
    del _EXECUTED[key]


def digest(content: bytes) -> str:
    """The sha256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def read_files(path: Path) -> dict[str, bytes]:
    """A file and what it imports from its folder, in turn: read, not executed."""
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "is not there"
        raise ValueError(
            f"{path} {kind}: a file named in a recipe is looked for beside it, one after --set "
            f"where the command is run"
        )
    found: dict[str, bytes] = {}
    waiting = [path.name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _read(path.parent / name)
            waiting += _neighbors(path.parent, name, found[name])
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _neighbors(folder: Path, name: str, content: bytes) -> Iterator[str]:
    """The files of a folder that one of them imports."""
    for imported in _imports(folder / name, PurePosixPath(name), content):
        for depth in range(1, len(imported) + 1):
            stem = "/".join(imported[:depth])
            files = [
                file for file in (f"{stem}.py", f"{stem}/__init__.py") if (folder / file).is_file()
            ]
            if not files and not (folder / stem).is_dir():
                break
            yield from files


def _imports(path: Path, name: PurePosixPath, content: bytes) -> Iterator[tuple[str, ...]]:
    """The modules that a file may import, as paths below the folder."""
    try:
        tree = ast.parse(content, str(path))
    except (SyntaxError, ValueError) as error:
        raise ValueError(_failed(path, error)) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_own(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (_own(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and len(name.parts) >= node.level:
            above = name.parts[: len(name.parts) - node.level]
            module = node.module.split(".") if node.module else ()
            yield from ((*above, *module, alias.name) for alias in node.names)


def _own(module: str) -> tuple[str, ...]:
    """A module as a path; none for one of Python's own."""
    parts = tuple(module.split("."))
    return () if parts[0] in sys.stdlib_module_names else parts


def _execute_file(path: Path) -> OwnCode:
    files = read_files(path)
    _check_neighbors(path, files)
    package = ModuleType(_PACKAGE + digest(str(path.parent).encode())[:12])
    package.__path__ = [str(path.parent)]  # so that it can import its neighbors relatively
    name = f"{package.__name__}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(package.__name__, package)
    sys.modules[name] = module
    try:
        with _on_path(path.parent, first=True):
            exec(compile(files[path.name], str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(_failed(path, error)) from error
    return OwnCode(module, path.parent, path.name, files)


def _check_neighbors(path: Path, files: Mapping[str, bytes]) -> None:
    """Raise a ValueError if a file would get another module than the one beside it."""
    for name in files.keys() - {path.name}:
        module = ".".join(PurePosixPath(name.removesuffix("/__init__.py")).with_suffix("").parts)
        loaded = getattr(sys.modules.get(module), "__file__", None)
        if loaded and Path(loaded).resolve() != path.parent / name:
            raise ValueError(
                f"{path} imports {module}, and {loaded} goes by this name already: rename "
                f"{path.parent / name}"
            )


def _import_module(name: str) -> OwnCode:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(
            f"{name!r} is neither a Python file nor a module: write file.py:name or "
            f"package.module:name"
        )
    try:
        with _on_path(Path.cwd(), first=False):
            module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or f"{name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"there is no module {error.name or name!r}: install it, or name the file, "
                f"{name.rpartition('.')[2]}.py:…"
            ) from None
        raise ValueError(_failed(name, error)) from error
    except (Exception, SystemExit) as error:
        raise ValueError(_failed(name, error)) from error
    path = Path(getattr(module, "__file__", None) or "")
    if path.suffix != ".py":
        return OwnCode(module, Path(), "", {})
    return OwnCode(module, path.parent, path.name, {path.name: _read(path)})


@contextmanager
def _on_path(folder: Path, *, first: bool) -> Iterator[None]:
    """Let Python find the modules of a folder for a while."""
    entry = str(folder)
    added = first or entry not in sys.path
    if added:
        sys.path.insert(0 if first else len(sys.path), entry)
    try:
        yield
    finally:
        if added and entry in sys.path:
            sys.path.remove(entry)


def _failed(what: Path | str, error: BaseException) -> str:
    """Why a file or module could not be executed, and where in it."""
    said = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
    if isinstance(error, SyntaxError):
        return f"{error.filename or what}, line {error.lineno}, is no Python: {said}"
    return f"{what} cannot be executed: {said}{where(error)}"


def where(error: BaseException) -> str:
    """The line of the user's own code that an error came from."""
    others = "<", str(Path(importlib.util.__file__).parent.parent), str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if not f.filename.startswith(others) and "site-packages" not in f.filename
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
