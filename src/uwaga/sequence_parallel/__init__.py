"""Attention over several processes, each of which holds a part of the sequence: torch.distributed with gloo, on CPUs.

    output = uwaga.sequence_parallel.attention(query, key, value, mask=uwaga.Causal())     # of this process's queries
    with uwaga.sequence_parallel.sequence_parallel():
        layer(x, mask=uwaga.Causal())                                               # every uwaga.attention within
    logits = uwaga.sequence_parallel.forward(model, ids).logits                     # of this process's part of the tokens

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.sequence_parallel.diagnosis import Process as Process
    from uwaga.sequence_parallel.diagnosis import doctor as doctor
    from uwaga.sequence_parallel.exchange import ProcessGroupError as ProcessGroupError
    from uwaga.sequence_parallel.models import forward as forward
    from uwaga.sequence_parallel.models import part as part
    from uwaga.sequence_parallel.sequence import attention as attention
    from uwaga.sequence_parallel.sequence import sequence_parallel as sequence_parallel
    from uwaga.sequence_parallel.sequence_map import SequenceMap as SequenceMap
    from uwaga.sequence_parallel.sequence_map import attention_map as attention_map
else:
    __all__, __getattr__, __dir__ = names(__name__)
