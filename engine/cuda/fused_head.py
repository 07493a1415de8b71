"""The MTP head's entry in two launches: each half of its weight multiplies what that half is for.

fc(concat[norm(embeddings), norm(hidden)]) = norm(embeddings) @ left.T + norm(hidden) @ right.T
"""

import mlx.core as mx
from mlx import nn

from ..drafting.mtp import MTPHead
from . import fusing
from .product import Norm, norm_of, takes


class FusedHead(MTPHead):
    """What a loaded head becomes: in place of ``fc`` it has halves, for both would take double."""

    entry_norms: tuple[Norm, Norm]

    def enter(self, embeddings: mx.array, hidden: mx.array) -> mx.array:
        if not fusing.is_few(hidden):
            beside = self.pre_fc_norm_hidden(hidden) @ self.right.T
            return mx.addmm(beside, self.pre_fc_norm_embedding(embeddings), self.left.T)
        norm, hidden_norm = self.entry_norms
        beside = fusing.multiply(hidden, self.right, norm=hidden_norm)
        return fusing.multiply(embeddings, self.left, norm=norm, residual=beside)


def bind(head: object) -> bool:
    """Give ``head`` its class if it is an MTP head whose products the kernels take."""
    if type(head) is not MTPHead:
        return False
    norms = (head.pre_fc_norm_embedding, head.pre_fc_norm_hidden)
    if not isinstance(head.fc, nn.Linear) or any(type(norm) is not nn.RMSNorm for norm in norms):
        return False
    left, right = (mx.contiguous(half) for half in mx.split(head.fc.weight, 2, axis=1))
    if not (takes(left) and takes(right)):
        return False
    mx.eval(left, right)
    del head.fc
    head.left, head.right = left, right
    head.__class__ = FusedHead
    # a Module would take a tuple for parameters
    object.__setattr__(head, "entry_norms", tuple(map(norm_of, norms)))
    return True
