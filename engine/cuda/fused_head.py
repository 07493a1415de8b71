"""The MTP head's entry in two launches: each half of its weight multiplies what that half is for.

fc(concat[norm(embeddings), norm(hidden)]) = norm(embeddings) @ left.T + norm(hidden) @ right.T
"""

import mlx.core as mx
from mlx import nn

from ..drafting.mtp import MTPHead
from . import fusing
from .product import Norm, norm_of, takes


class FusedHead(MTPHead):
    """What a loaded head becomes; its parameters stay where they are, and halves beside them."""

    halves: tuple[mx.array, mx.array]
    entry_norms: tuple[Norm, Norm]

    def enter(self, embeddings: mx.array, hidden: mx.array) -> mx.array:
        if not fusing.is_few(hidden):
            return super().enter(embeddings, hidden)
        (left, right), (norm, hidden_norm) = self.halves, self.entry_norms
        beside = fusing.multiply(hidden, right, norm=hidden_norm)
        return fusing.multiply(embeddings, left, norm=norm, residual=beside)


def bind(head: object) -> bool:
    """Give ``head`` its class if it is an MTP head whose products the kernels take."""
    if type(head) is not MTPHead:
        return False
    norms = (head.pre_fc_norm_embedding, head.pre_fc_norm_hidden)
    if not isinstance(head.fc, nn.Linear) or any(type(norm) is not nn.RMSNorm for norm in norms):
        return False
    halves = tuple(mx.contiguous(half) for half in mx.split(head.fc.weight, 2, axis=1))
    if not all(takes(half) for half in halves):
        return False
    mx.eval(halves)
    head.__class__ = FusedHead
    for name, value in {"halves": halves, "entry_norms": tuple(map(norm_of, norms))}.items():
        object.__setattr__(head, name, value)  # a Module would take a tuple for parameters
    return True
