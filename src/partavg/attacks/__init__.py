"""Clients that attack, by name, to see what an aggregate is worth."""

from collections.abc import Callable

from partavg.attacks.attack import Attack
from partavg.attacks.changes import Constant, LittleIsEnough, Noise, Scaled, SignFlip
from partavg.attacks.labels import LabelFlip
from partavg.registry import Names

__all__ = [
    "ATTACKS",
    "Attack",
    "Constant",
    "LabelFlip",
    "LittleIsEnough",
    "Noise",
    "Scaled",
    "SignFlip",
]


def none() -> None:
    """Nobody attacks."""


ATTACKS: Names[Callable[..., Attack | None]] = Names(
    "attack",
    {
        "constant": Constant,
        "label_flip": LabelFlip,
        "little_is_enough": LittleIsEnough,
        "noise": Noise,
        "none": none,
        "scaled": Scaled,
        "sign_flip": SignFlip,
    },
)
