"""A peer of benchmarks/peers.py: one user after another, as one writes it without a library."""

import torch
from peer_work import Clock, given, judged, say
from torch.nn import functional as F


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    work, device = told.work, told.device
    x, y = (t.to(device).split(work.samples) for t in told.samples)
    x_test, y_test = (t.to(device) for t in told.test)
    common = told.model().to(device)
    local = told.model().to(device).train()
    clock = Clock(device)
    for done in range(1, told.rounds + 1):
        total = [torch.zeros_like(p) for p in common.parameters()]
        for user in torch.randperm(work.users)[: work.cohort].tolist():
            local.load_state_dict(common.state_dict())
            solver = torch.optim.SGD(local.parameters(), lr=work.lr)
            for batch in torch.randperm(work.samples, device=device).split(work.batch):
                solver.zero_grad()
                F.cross_entropy(local(x[user][batch]), y[user][batch]).backward()
                solver.step()
            torch._foreach_add_(total, [p.detach() for p in local.parameters()])
        with torch.no_grad():
            for parameter, added in zip(common.parameters(), total, strict=True):
                parameter.copy_(added / work.cohort)
        if told.due(done):
            judged(common, (x_test, y_test))
        clock.end()
    say(common, clock, told, f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
