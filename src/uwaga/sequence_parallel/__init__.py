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
    from uwaga.sequence_parallel.diagnosis import Process, doctor
    from uwaga.sequence_parallel.exchange import ProcessGroupError
    from uwaga.sequence_parallel.models import forward, part
    from uwaga.sequence_parallel.sequence import attention, sequence_parallel
    from uwaga.sequence_parallel.sequence_map import SequenceMap, attention_map

__all__ = [
    "Process",
    "ProcessGroupError",
    "SequenceMap",
    "attention",
    "attention_map",
    "doctor",
    "forward",
    "part",
    "sequence_parallel",
]

_HOME = {
    "Process": "uwaga.sequence_parallel.diagnosis",
    "ProcessGroupError": "uwaga.sequence_parallel.exchange",
    "SequenceMap": "uwaga.sequence_parallel.sequence_map",
    "attention": "uwaga.sequence_parallel.sequence",
    "attention_map": "uwaga.sequence_parallel.sequence_map",
    "doctor": "uwaga.sequence_parallel.diagnosis",
    "forward": "uwaga.sequence_parallel.models",
    "part": "uwaga.sequence_parallel.models",
    "sequence_parallel": "uwaga.sequence_parallel.sequence",
}

__getattr__, __dir__ = names(__name__, _HOME)
