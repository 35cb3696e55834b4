"""Floor 2: the attention weights as a virtual array. Start with spec.py, which says what every statistic means.

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.maps.attended import Attended, attend
    from uwaga.maps.base import WeightMap
    from uwaga.maps.difference import DifferenceMap
    from uwaga.maps.flow import rollout
    from uwaga.maps.heads import HeadTable, head_table
    from uwaga.maps.kept import KeptMap
    from uwaga.maps.map import AttentionMap
    from uwaga.maps.norms import ScaledMap, value_norms
    from uwaga.maps.results import Peak, Pooled, Sink, TopK
    from uwaga.maps.score_map import ScoreMap
    from uwaga.maps.scores import duplicate_token, induction, previous_token
    from uwaga.maps.spans import word_labels, word_spans
    from uwaga.maps.words import WordMap

__all__ = [
    "Attended",
    "AttentionMap",
    "DifferenceMap",
    "HeadTable",
    "KeptMap",
    "Peak",
    "Pooled",
    "ScaledMap",
    "ScoreMap",
    "Sink",
    "TopK",
    "WeightMap",
    "WordMap",
    "attend",
    "duplicate_token",
    "head_table",
    "induction",
    "previous_token",
    "rollout",
    "value_norms",
    "word_labels",
    "word_spans",
]

_HOME = {
    "Attended": "uwaga.maps.attended",
    "AttentionMap": "uwaga.maps.map",
    "DifferenceMap": "uwaga.maps.difference",
    "HeadTable": "uwaga.maps.heads",
    "KeptMap": "uwaga.maps.kept",
    "Peak": "uwaga.maps.results",
    "Pooled": "uwaga.maps.results",
    "ScaledMap": "uwaga.maps.norms",
    "ScoreMap": "uwaga.maps.score_map",
    "Sink": "uwaga.maps.results",
    "TopK": "uwaga.maps.results",
    "WeightMap": "uwaga.maps.base",
    "WordMap": "uwaga.maps.words",
    "attend": "uwaga.maps.attended",
    "duplicate_token": "uwaga.maps.scores",
    "head_table": "uwaga.maps.heads",
    "induction": "uwaga.maps.scores",
    "previous_token": "uwaga.maps.scores",
    "rollout": "uwaga.maps.flow",
    "value_norms": "uwaga.maps.norms",
    "word_labels": "uwaga.maps.spans",
    "word_spans": "uwaga.maps.spans",
}

__getattr__, __dir__ = names(__name__, _HOME)
