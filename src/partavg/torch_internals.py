"""All that this package uses of torch without a promise that it stays, and what to do without it.

Another release of torch may rename such a thing. Then nothing here fails: each function says below
what it falls back on, and tests take each thing away to see it do so.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed, nn
from torch.nn.modules import batchnorm, dropout

if TYPE_CHECKING:  # not every torch is built with it
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.distributed_c10d import ProcessGroup, Store


def cuda_compiler() -> Callable[[str, str, str], Any] | None:
    """From a kernel's source, its name and the GPU's to the kernel; None without one.

    A GPU is called by its capability, as nvcc calls it: "90a".
    """
    return getattr(torch.cuda, "_compile_kernel", None)


class Binary(NamedTuple):
    """A kernel for one kind of GPU, and what it is called there."""

    content: bytes
    name: str


def cuda_in_two_steps() -> tuple[Callable[[str, str, str], Binary], Callable[[Binary], Any]] | None:
    """What `cuda_compiler` does: from source and names to a binary, and from there to the kernel.

    None where torch has no such steps; then nothing can be kept between them.
    """
    try:
        from torch.cuda._utils import _cuda_load_module, _nvrtc_compile
    except ImportError:
        return None

    def compiled(source: str, name: str, device: str) -> Binary:
        content, called = _nvrtc_compile(source, name, device)
        if not (isinstance(content, bytes) and isinstance(called, str)):
            raise TypeError("torch returns something else than a binary and a name")
        return Binary(content, called)

    def load(binary: Binary) -> Any:
        loaded: Any = _cuda_load_module(binary.content, [binary.name])
        return loaded[binary.name]

    return compiled, load


def store_of(group: "ProcessGroup | None") -> "Store":
    """A store that all ranks of a group reach: the one that the process group began with.

    Otherwise the group's first rank opens one and tells the others where; all must take part.
    """
    found = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return _opened(group) if found is None else found()


def _opened(group: "ProcessGroup | None") -> "Store":
    from torch.distributed import TCPStore

    size, first = distributed.get_world_size(group), distributed.get_rank(group) == 0
    hosts: list[Any] = [None] * size
    distributed.all_gather_object(hosts, socket.gethostname(), group)
    host = "localhost" if len(set(hosts)) == 1 else hosts[0]
    port: list[Any] = [None]
    store: Store
    if first:
        store = TCPStore(host, 0, size, is_master=True, wait_for_workers=False)
        port = [store.port]
    distributed.broadcast_object_list(port, group=group, group_src=0)
    if not first:
        store = TCPStore(host, port[0], size, wait_for_workers=False)
    return store


def group_alike(group: "ProcessGroup", name: str, kind: str) -> "ProcessGroup | None":
    """Another group of the same ranks, by a name that none had; all must take part."""
    return group_of(distributed.get_process_group_ranks(group), name, kind, group)


def group_of(ranks: list[int], name: str, kind: str, like: Any = None) -> "ProcessGroup | None":
    """A group of some ranks by a name that none had, as patient as another; they must take part.

    Its kind is that of its backend, like "gloo". None where torch gives names itself: it would give
    that of a group which is gone to the next one, who finds its addresses and nobody there.
    """
    known = distributed.distributed_c10d
    make, world = (getattr(known, key, None) for key in ("_new_process_group_helper", "_world"))
    if make is None or world is None:
        return None
    place = ranks.index(distributed.get_rank())
    given = len(ranks), place, ranks, kind, store_of(like), name
    made: ProcessGroup = make(*given, timeout=_timeout(like or distributed.group.WORLD))[0]
    world.pg_group_ranks[made] = {rank: at for at, rank in enumerate(ranks)}
    return made


def _timeout(group: Any) -> timedelta:
    """How long a group waits; otherwise as long as torch does where nobody says anything."""
    for device in map(torch.device, ("cuda", "cpu")):
        with suppress(AttributeError, RuntimeError):
            found: timedelta = group._get_backend(device).options._timeout
            return found
    return timedelta(minutes=30)


def root_ranks(mesh: "DeviceMesh") -> list[int]:
    """The ranks of the mesh that a mesh is a dimension of; without that name, all there are."""
    found = getattr(mesh, "_get_root_mesh", None)
    if found is None:
        return list(range(distributed.get_world_size()))
    ranks: list[int] = found().mesh.flatten().tolist()
    return ranks


def batch_norms() -> tuple[type[nn.Module], ...]:
    """BatchNorm layers; with the class that other libraries derive theirs from, if there is one."""
    public = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
    return *public, *_base(batchnorm, "_BatchNorm")


def dropouts() -> tuple[type[nn.Module], ...]:
    """Dropout layers, likewise."""
    plain = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d
    return *plain, nn.AlphaDropout, nn.FeatureAlphaDropout, *_base(dropout, "_DropoutNd")


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile made it; without that name, it is taken for an ordinary module."""
    return hasattr(module, "_orig_mod")


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that torch.compile was given; without that name, the module itself."""
    inner: nn.Module = getattr(module, "_orig_mod", module)
    return inner


def hooked_norm(layer: nn.Module) -> str:
    """The norm that an old hook computes the layer's weight with; "" if none, or none is seen."""
    names = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}
    for hook in getattr(layer, "_forward_pre_hooks", {}).values():
        if type(hook).__module__.startswith("torch.nn.utils."):
            return names.get(type(hook).__name__, "")
    return ""


def has_hooks(layer: nn.Module) -> bool:
    """Whether others' functions run with a layer; without the name of those of all, they may."""
    everywhere = getattr(nn.modules.module, "_has_any_global_hook", None)
    own = any(value for name, value in vars(layer).items() if name.endswith("_hooks"))
    return own or everywhere is None or bool(everywhere())


def registered(layer: nn.Module) -> list[list[str]] | None:
    """The names of a layer's parameters, buffers and layers, of None too; None if nobody tells."""
    kept = [getattr(layer, name, None) for name in ("_parameters", "_buffers", "_modules")]
    return None if None in kept else [[*(some or ())] for some in kept]


See = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Told of an operation: itself, its arguments, those by name, its result."""


@contextmanager
def operations(see: See) -> Iterator[None]:
    """Tell of each operation on tensors, also in a backward pass, once it has been done.

    Nothing is told where torch lets nobody see them.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        yield
        return

    class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # to skip it means to import it: a second, and more on a busy machine

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            see(func, args, kwargs or {}, result)
            return result

    with Watching():  # type: ignore[no-untyped-call]
        yield


def changes_arguments(operation: Any) -> bool:
    """Whether an operation writes into what it is given; without its schema, it may."""
    schema = getattr(operation, "_schema", None)
    return bool(getattr(schema, "is_mutable", True))


@contextmanager
def random_calls() -> Iterator[list[str]]:
    """The operations that draw from torch's generators, also in a backward pass.

    None is seen where torch lets nobody see them.
    """
    seen: list[str] = []

    def see(operation: Any, *_: Any) -> None:
        if torch.Tag.nondeterministic_seeded in operation.tags:
            seen.append(str(operation))

    with operations(see):
        yield seen


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch.nn.functional without its question whether somebody overrides it.

    A mode that runs it again with itself switched on then sees the calls inside it. Where the
    question goes by another name, the function itself.
    """
    known = getattr(function, "__globals__", {})
    if "has_torch_function" not in known:
        return function
    own = {**known, "has_torch_function": lambda tensors: False}
    body = FunctionType(function.__code__, own, function.__name__, function.__defaults__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _base(module: Any, name: str) -> tuple[type[nn.Module], ...]:
    return (getattr(module, name),) if hasattr(module, name) else ()
