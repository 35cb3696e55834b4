"""Attention weights as a virtual array; spec.py defines every statistic. Public names are imported when first used."""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.maps.attended import Attended as Attended
    from uwaga.maps.attended import attend as attend
    from uwaga.maps.base import WeightMap as WeightMap
    from uwaga.maps.derived import DifferenceMap as DifferenceMap
    from uwaga.maps.derived import SubsetMap as SubsetMap
    from uwaga.maps.derived import WordMap as WordMap
    from uwaga.maps.derived import word_labels as word_labels
    from uwaga.maps.derived import word_spans as word_spans
    from uwaga.maps.map import AttentionMap as AttentionMap
    from uwaga.maps.map import Peak as Peak
    from uwaga.maps.map import Pooled as Pooled
    from uwaga.maps.map import ScoreMap as ScoreMap
    from uwaga.maps.map import Sink as Sink
    from uwaga.maps.map import TopK as TopK
else:
    __all__, __getattr__, __dir__ = names(__name__)
