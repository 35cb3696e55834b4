"""Attention over several processes, each of which holds a part of the sequence: torch.distributed with gloo, on CPUs.

    output = uwaga.distributed.attention(query, key, value, mask=uwaga.Causal())     # of this process's queries
    with uwaga.distributed.sequence_parallel():
        layer(x, mask=uwaga.Causal())                                               # every uwaga.attention within

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.distributed.diagnosis import Process, doctor
    from uwaga.distributed.exchange import ProcessGroupError
    from uwaga.distributed.sequence import attention, sequence_parallel
    from uwaga.distributed.sequence_map import SequenceMap, attention_map

__all__ = ["Process", "ProcessGroupError", "SequenceMap", "attention", "attention_map", "doctor", "sequence_parallel"]

_HOME = {
    "Process": "uwaga.distributed.diagnosis",
    "ProcessGroupError": "uwaga.distributed.exchange",
    "SequenceMap": "uwaga.distributed.sequence_map",
    "attention": "uwaga.distributed.sequence",
    "attention_map": "uwaga.distributed.sequence_map",
    "doctor": "uwaga.distributed.diagnosis",
    "sequence_parallel": "uwaga.distributed.sequence",
}

__getattr__, __dir__ = names(__name__, _HOME)
