"""The attention weights as a virtual array. Start with spec.py, which says what every statistic means.

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.maps.attended import Attended, attend
    from uwaga.maps.base import WeightMap
    from uwaga.maps.derived import DifferenceMap, SubsetMap, WordMap, word_labels, word_spans
    from uwaga.maps.map import AttentionMap, Peak, Pooled, ScoreMap, Sink, TopK
    from uwaga.maps.signals import RequestSignals, request_signals

__all__ = [
    "Attended",
    "AttentionMap",
    "DifferenceMap",
    "Peak",
    "Pooled",
    "RequestSignals",
    "ScoreMap",
    "Sink",
    "SubsetMap",
    "TopK",
    "WeightMap",
    "WordMap",
    "attend",
    "request_signals",
    "word_labels",
    "word_spans",
]

_HOME = {
    "Attended": "uwaga.maps.attended",
    "AttentionMap": "uwaga.maps.map",
    "DifferenceMap": "uwaga.maps.derived",
    "SubsetMap": "uwaga.maps.derived",
    "Peak": "uwaga.maps.map",
    "Pooled": "uwaga.maps.map",
    "RequestSignals": "uwaga.maps.signals",
    "ScoreMap": "uwaga.maps.map",
    "Sink": "uwaga.maps.map",
    "TopK": "uwaga.maps.map",
    "WeightMap": "uwaga.maps.base",
    "WordMap": "uwaga.maps.derived",
    "attend": "uwaga.maps.attended",
    "request_signals": "uwaga.maps.signals",
    "word_labels": "uwaga.maps.derived",
    "word_spans": "uwaga.maps.derived",
}

__getattr__, __dir__ = names(__name__, _HOME)
