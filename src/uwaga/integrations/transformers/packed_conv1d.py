"""Conv1D, the linear map of GPT-2 in transformers, computed by uwaga.linear.

Letters: K input width, N output width.
"""

from torch import Tensor
from transformers.pytorch_utils import Conv1D

from uwaga.integrations.transformers.packed_states import linear_of_tokens


class PackedConv1D(Conv1D):
    """Conv1D, computed by uwaga.linear; its weight is stored as (K, N). Made by uwaga.integrations.pack_linear."""

    def forward(self, x: Tensor) -> Tensor:
        return linear_of_tokens(x, self.weight.t(), self.bias)
