"""What a model or a loss is, in a text that tells it from all others: its code and its settings.

Numbers of parameters and buffers are not in it, only their shapes. What is written in a text is
certain: whatever else could make a difference, like a closure, a hook, or an object that a function
finds outside of itself, makes it Unsure.
"""

import abc
import dis
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Generic, TypeVar
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from partavg.torch_internals import has_hooks, registered

_TRUSTED = ("torch", "partavg", "math", "operator", "_operator", "typing", "builtins", "abc")
"""Packages whose own code is known by their versions, and which keep nothing that changes."""
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented)),
    *(torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout),
)
_MOST = 200_000  # things to describe, a few seconds
_CHANGING = list, dict, set
_FIXED = (
    *(*_CHANGING, TypeVar, BuiltinFunctionType, ClassMethodDescriptorType, GetSetDescriptorType),
    *(MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType),
)
"""What classes of trusted packages have besides functions and values; none can stand for them."""
_ANYTHING = [eval, exec, globals, locals, vars, open, input, __import__, hash, id]
_OUTSIDE = {"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"}
_LOOKED_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_OF_PYTHON = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__abstractmethods__"),
    *("__annotations__", "__annotations_cache__", "__annotate__", "__annotate_func__"),
    *("__firstlineno__", "__static_attributes__", "__orig_bases__", "__parameters__", "_abc_impl"),
    "__constants__",
}
"""What Python adds to classes, and what is for TorchScript alone."""
_IMMUTABLE = 1 << 8
"""A flag of classes that are written in C, which nobody can change."""
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
        self._left = _MOST

    def of(self, thing: Any) -> object:
        self._left -= 1
        if self._left < 0:
            raise Unsure("more than a trial takes to describe")
        kind = type(thing)
        if kind in _PLAIN:
            return kind.__name__, repr(thing)
        if kind in (tuple, list):
            return kind.__name__, [self.of(one) for one in thing]
        if kind in (set, frozenset):
            return kind.__name__, [self.of(one) for one in sorted(thing, key=repr)]
        if kind in (dict, OrderedDict):
            return kind.__name__, [(self.of(key), self.of(value)) for key, value in thing.items()]
        if kind is slice:
            return "slice", self.of((thing.start, thing.stop, thing.step))
        if kind is partial:
            return "partial", self.of((thing.func, thing.args, thing.keywords, vars(thing)))
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
        if isinstance(thing, MethodDescriptorType) and _trusted(thing.__objclass__.__module__):
            return "method", thing.__objclass__.__module__, thing.__qualname__
        raise Unsure(f"a {type(thing).__name__}")  # whose repr may take long

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
        if type(tensor) not in (Tensor, nn.Parameter):
            raise Unsure(f"a tensor is a {type(tensor).__name__}")
        self._seen[id(tensor)] = len(self._seen), tensor
        lies = tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device)
        return type(tensor).__name__, tensor.requires_grad, lies, self.of(vars(tensor))

    def _layer(self, layer: nn.Module) -> object:
        own = {name: value for name, value in vars(layer).items() if name not in _OF_MODULES}
        names = registered(layer)
        if names is None:
            raise Unsure(f"what {type(layer).__name__} keeps")
        return self.of(type(layer)), self.of([layer.training, names, own])

    def _class(self, kind: type) -> object:
        if type(kind) not in (type, abc.ABCMeta) and not _trusted(kind.__module__):
            raise Unsure(f"class {kind.__name__} is a {type(kind).__name__}")
        if kind in (Tensor, Generic) or kind.__flags__ & _IMMUTABLE:
            return _called(kind)
        fixed = _FIXED if _trusted(kind.__module__) else ()  # somebody may have replaced the others
        members = [
            (name, type(value).__name__ if isinstance(value, fixed) else self._member(value))
            for name, value in vars(kind).items()
            if name not in _OF_PYTHON
        ]
        return _called(kind), [self.of(base) for base in kind.__mro__[1:]], members

    def _member(self, value: Any) -> object:
        if isinstance(value, staticmethod | classmethod):
            return type(value).__name__, self.of(value.__func__)
        if isinstance(value, property):
            return "property", [self.of(way) for way in (value.fget, value.fset, value.fdel)]
        if isinstance(value, _CHANGING):
            raise Unsure(f"a class keeps a {type(value).__name__}")
        return self.of(value)

    def _function(self, function: FunctionType) -> object:
        code, home = function.__code__, function.__globals__.get("__name__")
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        given = self.of((cells, function.__defaults__, function.__kwdefaults__))
        if _trusted(home) and _trusted(function.__module__):  # no wrapper of or in another one
            return _called(function), self._code(code), given
        if set(code.co_freevars) - {"__class__"}:
            raise Unsure(f"{_called(function)} is a closure")
        named = [(name, self._named(function, name)) for name in sorted(_globals(code))]
        return _called(function), self._code(code), given, self.of(vars(function)), named

    def _named(self, function: Any, name: str) -> object:
        """What a function finds outside of itself by a name."""
        value: Any = function.__globals__.get(name, function.__builtins__.get(name, {}))
        if isinstance(value, _CHANGING) or any(value is each for each in _ANYTHING):
            raise Unsure(f"{_called(function)} uses {name}")
        return self.of(value)

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


def _called(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__} {thing.__name__}"


def _globals(code: CodeType) -> Iterable[str]:
    """The names that a function looks up outside of itself, also in functions within it."""
    found: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname in _OUTSIDE:
            raise Unsure(f"{code.co_qualname} changes or imports {step.argval}")
        if step.opname in _LOOKED_UP:
            found.add(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(_globals(constant))
    return found
