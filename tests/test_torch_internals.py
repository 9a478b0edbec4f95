"""What torch does not promise: each thing is taken away, and training goes on without it."""

import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from tests.backends.distributed import sharded_loops as loops
from tests.ranks import started
from torch import distributed, nn
from torch.distributed import distributed_c10d
from torch.nn.modules import batchnorm, dropout

import partavg
from partavg import torch_internals
from partavg.backends.distributed import shard_groups
from partavg.backends.rank_failure import RollCall
from partavg.engines.dropout import refused
from partavg.engines.fused.recurrent.operation import weight_names
from partavg.evaluation import recompute_statistics_

SOURCE = Path(partavg.__file__).parent
PRIVATE = re.compile(
    r"\b(?:torch|nn|fx|distributed|dist|functional|cuda)(?:\.\w+)*\._[a-z]\w*"
    r"|from torch[\w.]* import [^\n]*\b_[a-z]\w*|from torch[\w.]*\._\w+|import torch[\w.]*\._\w+"
    r"|\._flat_weights\w*|\b(?!self)\w+\._buffers\b"
)


def test_nothing_private_is_used_elsewhere() -> None:
    assert PRIVATE.findall("torch.cuda._compile_kernel(x)\nfrom torch.utils import _pytree as p")
    for path in SOURCE.rglob("*.py"):
        if path.name != "torch_internals.py":
            assert not PRIVATE.findall(path.read_text()), path


def _roll_call(rank: int, private: bool) -> tuple[str, list[list[str]]]:
    """The kind of store, and who answers in the group of all ranks and in one of the last two."""
    own = distributed_c10d._get_default_store
    last = distributed.new_group([1, 2])
    if not private:
        del distributed_c10d._get_default_store
    try:
        store, found = torch_internals.store_of(None), []
        for group in (None, last) if rank else (None,):
            with RollCall.of(group) as roll, roll.naming_lost("at step 1"):
                found.append([member["pid"] for member in roll.facts])
                distributed.barrier(group)
        return type(store).__name__, found
    finally:
        distributed_c10d._get_default_store = own


@pytest.mark.parametrize("private", [True, False], ids=["private", "public"])
def test_ranks_find_a_store(private: bool) -> None:
    with started(3) as ranks:
        answers = ranks(_roll_call, private)
    pids = [str(process.pid) for process in ranks.processes]
    assert [found[0] for _, found in answers] == [pids] * 3
    assert [found[1:] for _, found in answers] == [[], [pids[1:]], [pids[1:]]]
    assert {kind == "TCPStore" for kind, _ in answers} == {not private}


def _own_group(rank: int, private: bool) -> tuple[bool, float]:
    """Whether an averager has a group of its own, and the mean that it makes."""
    make = distributed_c10d._new_process_group_helper
    if not private:
        del distributed_c10d._new_process_group_helper
    try:
        for _ in range(2):  # a name must not come back
            net = nn.Linear(1, 1)
            averager = partavg.attach(net, interval=1)
            own = averager._connections.groups != [distributed.group.WORLD]
            nn.init.constant_(net.weight, rank)
            averager.step()
            averager.detach()
    finally:
        distributed_c10d._new_process_group_helper = make
    return own, net.weight.item()


@pytest.mark.parametrize("private", [True, False], ids=["private", "public"])
def test_attach_makes_groups_of_its_own(private: bool) -> None:
    with started(2) as ranks:
        assert ranks(_own_group, private) == [(private, 0.5)] * 2


NORMS = nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.BatchNorm3d(3), nn.SyncBatchNorm(3)
DROPOUTS = nn.Dropout(), nn.Dropout1d(), nn.Dropout2d(), nn.Dropout3d(), nn.AlphaDropout()


@pytest.mark.parametrize("private", [True, False], ids=["private", "public"])
def test_layers_are_told_apart(private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not private:
        monkeypatch.delattr(batchnorm, "_BatchNorm")
        monkeypatch.delattr(dropout, "_DropoutNd")
    assert all(isinstance(layer, torch_internals.batch_norms()) for layer in NORMS)
    assert all(isinstance(layer, torch_internals.dropouts()) for layer in DROPOUTS)
    for other in (nn.InstanceNorm2d(3, track_running_stats=True), nn.ReLU(), nn.GroupNorm(1, 3)):
        assert not isinstance(other, torch_internals.batch_norms())
        assert not isinstance(other, torch_internals.dropouts())
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    recompute_statistics_(module, torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert module[0].running_mean.tolist() == [2.0, 4.0]
    module.train()
    with pytest.raises(ValueError, match="dropout is computed again"), refused(module):
        module(torch.ones(2, 2))


def test_the_class_that_other_libraries_derive_from_counts() -> None:
    class Own(batchnorm._BatchNorm):
        pass

    assert isinstance(Own(3), torch_internals.batch_norms())


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_names_of_an_lstms_weights(bias: bool, bidirectional: bool) -> None:
    layer = nn.LSTM(3, 4, num_layers=2, bias=bias, bidirectional=bidirectional)
    assert weight_names(layer) == [name for name, _ in layer.named_parameters()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_module_and_an_old_norm_are_recognized() -> None:
    plain = nn.Linear(2, 2)
    assert not torch_internals.is_compiled(plain)
    assert torch_internals.is_compiled(torch.compile(nn.Linear(2, 2)))
    assert torch_internals.hooked_norm(plain) == ""
    old = nn.utils.spectral_norm(nn.Linear(2, 2))
    assert torch_internals.hooked_norm(old) == "spectral_norm"
    plain.register_forward_pre_hook(lambda *_: None)
    assert torch_internals.hooked_norm(plain) == ""


def test_hooks_of_a_layer_and_of_all_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = nn.Linear(2, 2)
    hooked.register_forward_pre_hook(lambda *_: None)
    assert torch_internals.has_hooks(hooked)
    assert not torch_internals.has_hooks(nn.Linear(2, 2))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert torch_internals.has_hooks(nn.Linear(2, 2))
    handle.remove()
    monkeypatch.delattr(nn.modules.module, "_has_any_global_hook")
    assert torch_internals.has_hooks(nn.Linear(2, 2))


def test_names_in_a_layer_are_told_or_nobody_knows() -> None:
    layer = nn.Linear(2, 2, bias=False)
    layer.register_buffer("nothing", None)
    assert torch_internals.registered(layer) == [["weight", "bias"], ["nothing"], []]
    del layer._buffers
    assert torch_internals.registered(layer) is None


def test_calls_inside_a_function_are_seen_or_it_stays_itself() -> None:
    def asks(x: int, *, more: int = 1) -> int:
        return -1 if has_torch_function((x,)) else x + more

    body = torch_internals.body_of(asks)
    assert body is asks, "its module has no such name"
    asks.__globals__["has_torch_function"] = lambda tensors: True
    try:
        assert asks(1) == -1
        assert torch_internals.body_of(asks)(1) == 2
        assert torch_internals.body_of(asks)(1, more=5) == 6
    finally:
        del asks.__globals__["has_torch_function"]


@pytest.mark.parametrize("there", [True, False])
def test_random_calls_are_seen_where_torch_shows_them(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not there:
        monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    with torch_internals.random_calls() as calls:
        torch.ones(3).add_(1)
        assert calls == []
        torch.rand(3)
    assert bool(calls) is there


def _sharded(rank: int) -> list[int]:
    """The ranks that there are without a mesh's root, and a mesh whose group torch names."""
    mesh = loops.mesh_of(1, 1, 2)
    with patch.object(shard_groups, "group_of", lambda *_: None):
        for _ in range(2):
            net = loops.both(rank, mesh)
            averager = partavg.attach(net, interval=1, mesh=mesh["replicate"])
            averager.step()
            averager.detach()
    return torch_internals.root_ranks(object())


def test_sharded_models_do_without_private_names() -> None:
    with started(2) as ranks:
        assert ranks(_sharded) == [[0, 1]] * 2
