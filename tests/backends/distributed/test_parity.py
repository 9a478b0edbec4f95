"""Against what users have today: torch's PeriodicModelAverager and PostLocalSGDOptimizer."""

import copy

import torch
from tests.backends.distributed.loops import LR, STEPS, model, samples
from tests.ranks import Ranks
from torch import Tensor
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn import functional as F

import partavg
from partavg.backends.distributed import TorchAverager


def states(rank: int, how: str) -> list[dict[str, Tensor]]:
    """A float32 model after every step of a loop that averages it every three steps."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # warns, where warnings are errors

    net = model().float()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    inputs, targets = samples()
    ours = how != "torch" and partavg.attach(net, interval=3, parts=1, buffers="local")
    averager = TorchAverager(ours) if ours else PeriodicModelAverager(3, warmup_steps=2)
    wrapped = PostLocalSGDOptimizer(optimizer, averager)
    seen = []
    for step in range(STEPS):
        mine = torch.arange(4) + 20 * rank + step
        wrapped.zero_grad()
        F.cross_entropy(net(inputs[mine % 60].float()), targets[mine % 60]).backward()
        wrapped.step()
        seen.append({k: v.clone() for k, v in net.state_dict().items()})
        if how == "resumed" and step == 4:
            saved = copy.deepcopy(wrapped.state_dict())
            averager.step = 0
            wrapped.load_state_dict(saved)
    return seen


def test_periodic_averaging_is_that_of_torch_step_for_step(ranks: Ranks) -> None:
    theirs, ours, resumed = (ranks(states, how) for how in ("torch", "ours", "resumed"))
    for rank in range(len(ranks)):
        for one, other, third in zip(theirs[rank], ours[rank], resumed[rank], strict=True):
            for name in one:
                torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=1e-7)
                assert torch.equal(other[name], third[name])
