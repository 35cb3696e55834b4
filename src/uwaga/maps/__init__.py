"""Floor 2: the attention weights as a virtual array. Start with spec.py, which says what every statistic means.

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.maps.attended import Attended, attend
    from uwaga.maps.base import WeightMap
    from uwaga.maps.derived import DifferenceMap, SubsetMap, WordMap, word_labels, word_spans
    from uwaga.maps.interpretability.gradients import GradientMap, cross_gradient_rollout, gradient_rollout
    from uwaga.maps.interpretability.head_labels import head_labels
    from uwaga.maps.interpretability.head_scores import duplicate_token, induction, previous_token
    from uwaga.maps.interpretability.head_table import HeadTable, head_changes, head_table
    from uwaga.maps.interpretability.norms import ScaledMap, value_norms
    from uwaga.maps.interpretability.rollout import rollout
    from uwaga.maps.map import AttentionMap, Peak, Pooled, ScoreMap, Sink, TopK

__all__ = [
    "Attended",
    "AttentionMap",
    "DifferenceMap",
    "GradientMap",
    "HeadTable",
    "Peak",
    "Pooled",
    "ScaledMap",
    "ScoreMap",
    "Sink",
    "SubsetMap",
    "TopK",
    "WeightMap",
    "WordMap",
    "attend",
    "cross_gradient_rollout",
    "duplicate_token",
    "gradient_rollout",
    "head_changes",
    "head_labels",
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
    "DifferenceMap": "uwaga.maps.derived",
    "GradientMap": "uwaga.maps.interpretability.gradients",
    "HeadTable": "uwaga.maps.interpretability.head_table",
    "SubsetMap": "uwaga.maps.derived",
    "Peak": "uwaga.maps.map",
    "Pooled": "uwaga.maps.map",
    "ScaledMap": "uwaga.maps.interpretability.norms",
    "ScoreMap": "uwaga.maps.map",
    "Sink": "uwaga.maps.map",
    "TopK": "uwaga.maps.map",
    "WeightMap": "uwaga.maps.base",
    "WordMap": "uwaga.maps.derived",
    "attend": "uwaga.maps.attended",
    "cross_gradient_rollout": "uwaga.maps.interpretability.gradients",
    "duplicate_token": "uwaga.maps.interpretability.head_scores",
    "gradient_rollout": "uwaga.maps.interpretability.gradients",
    "head_changes": "uwaga.maps.interpretability.head_table",
    "head_labels": "uwaga.maps.interpretability.head_labels",
    "head_table": "uwaga.maps.interpretability.head_table",
    "induction": "uwaga.maps.interpretability.head_scores",
    "previous_token": "uwaga.maps.interpretability.head_scores",
    "rollout": "uwaga.maps.interpretability.rollout",
    "value_norms": "uwaga.maps.interpretability.norms",
    "word_labels": "uwaga.maps.derived",
    "word_spans": "uwaga.maps.derived",
}

__getattr__, __dir__ = names(__name__, _HOME)
