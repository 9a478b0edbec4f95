"""MuLoCo: DiLoCo whose workers train with Muon.

Thérien, Huang, Defazio, Rish, Belilovsky, MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo,
2025.
"""

from partavg.solvers.muon import NOT_HIDDEN, AdjustLR, Muon
from partavg.solvers.outer import Outer
from partavg.solvers.sgd import SGD


def muloco(
    *,
    lr: float = 0.7,
    momentum: float = 0.9,
    muon_momentum: float = 0.95,
    weight_decay: float = 0.1,
    adjust_lr: AdjustLR = "match_rms_adamw",
    adamw: tuple[str, ...] = NOT_HIDDEN,
    adamw_rate: float = 1.0,
    bfloat16: bool = False,
) -> Outer:
    """Nesterov momentum on the averages of workers that train with Muon."""
    local = Muon(
        momentum=muon_momentum,
        weight_decay=weight_decay,
        adjust_lr=adjust_lr,
        bfloat16=bfloat16,
        adamw=adamw,
        adamw_rate=adamw_rate,
    )
    return Outer(SGD(momentum=momentum, nesterov=True), lr, base=local)
