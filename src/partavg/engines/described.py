"""What a model or a loss is, in a text that tells it from all others: its code and its settings.

Numbers of parameters and buffers are not in it, only their shapes. What is written in a text is
certain: whatever else could make a difference, like a closure, a hook, or an object that a function
finds outside of itself, makes it Unsure.
"""

import abc
import builtins
import dis
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from partavg.torch_internals import has_hooks

_TRUSTED = ("torch", "partavg", "math", "operator", "_operator", "typing", "builtins", "abc")
"""Packages whose own code is known by their versions, and which keep nothing that changes."""
_PLAIN = (
    *(bool, int, float, complex, str, bytes, slice, type(None), type(...)),
    *(torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout),
)
_CHANGING = list, dict, set
_ANYTHING = {"eval", "exec", "globals", "locals", "vars", "open", "input", "__import__"}
_BUILT_IN = vars(builtins).keys() - _ANYTHING
_OUTSIDE = {"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"}
_OF_PYTHON = {"__annotate__", "__annotate_func__", "__class_getitem__", "_abc_impl"}
_OF_MODULES = vars(nn.Module()).keys()


class Unsure(Exception):
    """Something that cannot be described with certainty."""


def described(thing: Any) -> str:
    """The text of a module, a function or a value; raises Unsure.

    >>> described(nn.Linear(3, 2)) == described(nn.Linear(3, 2)) != described(nn.Linear(2, 3))
    True
    """
    return repr(_Describer().of(thing))


class _Describer:
    """Describes each thing once, and then by its number."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, thing: Any) -> object:
        kind = type(thing)
        if kind in _PLAIN:
            return kind.__name__, repr(thing)
        if kind in (tuple, list):
            return kind.__name__, [self.of(one) for one in thing]
        if kind in (set, frozenset):
            return kind.__name__, sorted(repr(self.of(one)) for one in thing)
        if kind in (dict, OrderedDict):
            return kind.__name__, [(self.of(key), self.of(value)) for key, value in thing.items()]
        if kind is partial:
            return "partial", self.of(thing.func), self.of(thing.args), self.of(thing.keywords)
        if kind is ReferenceType:
            return "reference", self.of(thing())
        if id(thing) in self._seen:
            return "number", self._seen[id(thing)][0]
        self._seen[id(thing)] = len(self._seen), thing  # which holds it, so that no other is there
        return self._new(thing)

    def _new(self, thing: Any) -> object:
        if isinstance(thing, nn.Module):
            return self._module(thing)
        if isinstance(thing, type):
            return self._class(thing)
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, ModuleType) and _trusted(thing.__name__):
            return "module", thing.__name__
        if isinstance(thing, BuiltinFunctionType) and _trusted(_home(thing)):
            return "builtin", _home(thing), thing.__qualname__
        raise Unsure(f"{type(thing).__name__} {thing!r:.60}")

    def _module(self, module: nn.Module) -> object:
        layers = list(module.named_modules(remove_duplicate=False))
        if any(has_hooks(layer) for _, layer in layers):
            raise Unsure(f"hooks of {type(module).__name__}")
        for _, layer in layers:
            self._seen.setdefault(id(layer), (len(self._seen), layer))
        tensors = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        return (
            [(name, self._tensor(tensor)) for name, tensor in tensors],
            sorted(module.state_dict()),
            [(name, self._seen[id(layer)][0], self._layer(layer)) for name, layer in layers],
        )

    def _tensor(self, tensor: Tensor) -> object:
        """A parameter or buffer: all but its numbers."""
        if id(tensor) in self._seen:
            return self.of(tensor)
        self._seen[id(tensor)] = len(self._seen), tensor
        lies = tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device)
        return type(tensor).__name__, tensor.requires_grad, lies

    def _layer(self, layer: nn.Module) -> object:
        own = [(name, value) for name, value in vars(layer).items() if name not in _OF_MODULES]
        return self.of(type(layer)), layer.training, [(name, self.of(value)) for name, value in own]

    def _class(self, kind: type) -> object:
        if type(kind) not in (type, abc.ABCMeta) and not _trusted(kind.__module__):
            raise Unsure(f"class {kind.__name__} is a {type(kind).__name__}")
        own = vars(kind)
        if _trusted(kind.__module__):  # somebody may have replaced some of its functions
            members = [
                (n, self.of(f) if _is_function(f) else repr(type(f))) for n, f in own.items()
            ]
        else:
            members = [(name, self._member(value)) for name, value in _members(own)]
        return _called(kind), [self.of(base) for base in kind.__mro__[1:]], members

    def _member(self, value: Any) -> object:
        if isinstance(value, staticmethod | classmethod):
            return type(value).__name__, self.of(value.__func__)
        if isinstance(value, property):
            return "property", [self.of(way) for way in (value.fget, value.fset, value.fdel)]
        if isinstance(value, _CHANGING):
            raise Unsure(f"a class keeps {value!r:.60}")
        return self.of(value)

    def _function(self, function: FunctionType) -> object:
        code, home = function.__code__, function.__globals__.get("__name__")
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        if _trusted(home) and _trusted(function.__module__):  # no wrapper of or in another one
            inner = [self.of(cell) for cell in cells if _is_function(cell)]
            return _called(function), self._code(code), inner
        if set(code.co_freevars) - {"__class__"}:
            raise Unsure(f"{_called(function)} is a closure")
        given = cells, function.__defaults__, function.__kwdefaults__, vars(function)
        named = [(name, self._named(function, name)) for name in sorted(_globals(code))]
        return _called(function), self._code(code), self.of(given), named

    def _named(self, function: FunctionType, name: str) -> object:
        """What a function finds outside of itself by a name."""
        known = name in function.__globals__
        value = function.__globals__.get(name)
        if isinstance(value, _CHANGING) or (not known and name not in _BUILT_IN):
            raise Unsure(f"{_called(function)} uses {name}")
        return self.of(value) if known else None

    def _code(self, code: CodeType) -> object:
        inner = [self._code(c) if isinstance(c, CodeType) else self.of(c) for c in code.co_consts]
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        return code.co_code.hex(), code.co_exceptiontable.hex(), counts, names, inner


def _trusted(name: str | None) -> bool:
    return (name or "").partition(".")[0] in _TRUSTED


def _home(builtin: BuiltinFunctionType) -> str | None:
    """Where a function that is not written in Python belongs; none to a value, as a method does."""
    owner = builtin.__self__
    if isinstance(owner, ModuleType):
        return owner.__name__
    return (
        owner.__module__
        if isinstance(owner, type)
        else builtin.__module__
        if owner is None
        else None
    )


def _is_function(thing: Any) -> bool:
    return isinstance(thing, FunctionType)


def _called(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__} {thing.__name__}"


def _members(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a class of a user's own has, without what Python adds to every class."""
    for name, value in own.items():
        made = isinstance(value, FunctionType | staticmethod | classmethod | property)
        of_python = name.startswith("__") and name.endswith("__") and not made
        if not of_python and name not in _OF_PYTHON:
            yield name, value


def _globals(code: CodeType) -> Iterable[str]:
    """The names that a function looks up outside of itself, also in functions within it."""
    found: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname in _OUTSIDE:
            raise Unsure(f"{code.co_qualname} changes or imports {step.argval}")
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(_globals(constant))
    return found
