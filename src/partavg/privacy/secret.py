"""Draws that nobody can repeat: noise, and who takes part, from the operating system."""

import math
import os
import secrets

import numpy as np
import torch
from torch import Tensor

from partavg.core.aggregate import About


def secret_normal(about: About, what: str, like: Tensor) -> Tensor:
    """Numbers from N(0, 1) of 53 random bits each, by Box and Muller's transform."""
    count = like.numel()
    bits = np.frombuffer(os.urandom(16 * ((count + 1) // 2)), np.uint64).reshape(2, -1) >> 11
    uniform = (bits + 0.5) / 2.0**53
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * math.pi * uniform[1]
    drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(drawn).to(like).reshape(like.shape)


def secret_clients(clients: int, fraction: float) -> list[int]:
    """Each client with the same probability, by itself."""
    chance = secrets.SystemRandom()
    return [client for client in range(clients) if chance.random() < fraction]
