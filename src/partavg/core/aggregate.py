"""What becomes of the workers' messages about a part: by default their weighted sum."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


class About(NamedTuple):
    """What the messages of an averaging are about."""

    part: int
    step: int
    seed: int
    """To draw from: another one for every part and step, the same in all processes."""
    last: Float[Tensor, "n"]
    """The parameters of the part as all workers last had them in common."""
    places: tuple[slice, ...]
    """Where those parameters lie in a message; nowhere if the solver sends something else."""
    share: float = 1.0
    """Of the numbers of all parts, those of this part."""

    def parameters(self, messages: Float[Tensor, "*m l"]) -> Float[Tensor, "*m n"]:
        """The parameters in messages, in the order of `last`."""
        if not self.places:
            raise ValueError(
                "the solver does not send its parameters, and this aggregate looks at them: use "
                "another solver, or an aggregate of whole messages"
            )
        found = [messages[..., place] for place in self.places]
        return found[0] if len(found) == 1 else torch.cat(found, -1)


@runtime_checkable
class Aggregate(Protocol):
    """Makes one message of all: a function that sees the whole messages of all workers.

    One that has an attribute `needs_parameters` which is true is only used where messages are the
    parameters, and the statistics that go with them, and nothing else.

    It is called in every process with the same arguments, and must return the same there. What
    comes out is what each worker decodes, in place of the weighted sum.
    """

    def __call__(
        self, messages: Float[Tensor, "m l"], weights: Float[Tensor, "m"], about: About, /
    ) -> Float[Tensor, "l"]:
        """From messages and p_i, which sum to 1."""
        ...


def weighted_sum(
    messages: Float[Tensor, "m l"], weights: Float[Tensor, "m"], about: About
) -> Float[Tensor, "l"]:
    """Σ p_i m_i: the default, for which messages are summed on their way and never collected."""
    return weights @ messages


def one_message(
    aggregate: Aggregate,
    messages: Float[Tensor, "m l"],
    weights: Float[Tensor, "m"],
    about: About,
) -> Float[Tensor, "l"]:
    """What an Aggregate makes of messages; a ValueError if that is no message."""
    made: object = aggregate(messages, weights, about)
    if isinstance(made, Tensor) and _described(made) == _described(messages[0]):
        return made.detach()
    given = _described(made) if isinstance(made, Tensor) else type(made).__name__
    raise ValueError(
        f"the aggregate made {given} of messages that are {_described(messages[0])} each: it must "
        f"be one of these"
    )


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
