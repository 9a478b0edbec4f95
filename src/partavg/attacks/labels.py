"""Attackers that train on wrong labels, and send what they learned."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from partavg.attacks.attack import Attack


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Class c becomes class C − 1 − c, of C classes."""

    def mislabel(self, targets: Int[Tensor, "a n"], classes: int) -> Int[Tensor, "a n"]:
        """The classes in reverse."""
        return classes - 1 - targets
