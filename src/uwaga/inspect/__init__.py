"""What can be asked of a model: which weights it gives, what its heads do, what changes when it is changed.

watching     uwaga.watch: record the attention of every layer while the model runs
recordings   what is recorded, pass by pass; its maps and files
editing      uwaga.edit: run a model with changed attention
edits        the changes: which heads, which weights, whose values
adapters     models that read texts, of this package or of transformers
layers       the attention layers of a model of this package or of transformers
heads        of each head: activations, gradients, scores, labels, rollouts, the pronouns that it follows
logits       logit lens and direct logit attribution
attribution  a score of attention as the sum of what each pair of parts of the model contributes
patching     activation patching
cache        what a cache of keys may forget: policies, and what they lose
run_text     a text through a model, recorded
pictures     a picture through a vision transformer, recorded
patches      pictures as grids of patches, alone or among the tokens of a text

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.inspect.adapters.vision import patch_grid
    from uwaga.inspect.attribution.attribute import score_attribution
    from uwaga.inspect.attribution.scores import ScoreAttribution, Share, Source
    from uwaga.inspect.attribution.streams import Part
    from uwaga.inspect.cache.running import cache_edit
    from uwaga.inspect.cache.study import CacheStudy, cache_study
    from uwaga.inspect.editing import edit
    from uwaga.inspect.edits import Edits, Links, Patch
    from uwaga.inspect.heads.activations import Activations, HeadActivations, activations
    from uwaga.inspect.heads.coreference import WinogradPair, coreference_heads
    from uwaga.inspect.heads.gradients import GradientMap, cross_gradient_rollout, gradient_rollout
    from uwaga.inspect.heads.labels import head_labels
    from uwaga.inspect.heads.norms import ScaledMap, value_norms
    from uwaga.inspect.heads.rollout import rollout
    from uwaga.inspect.heads.scores import duplicate_token, induction, previous_token
    from uwaga.inspect.heads.table import HeadTable, head_changes, head_table
    from uwaga.inspect.logits import LogitAttribution, LogitLens, logit_attribution, logit_lens
    from uwaga.inspect.patches import PatchGrid, image_grids
    from uwaga.inspect.patching import PatchingResult, activation_patching
    from uwaga.inspect.recordings.recording import Recording
    from uwaga.inspect.watching import watch

_HOME = {
    "Activations": "uwaga.inspect.heads.activations",
    "CacheStudy": "uwaga.inspect.cache.study",
    "Edits": "uwaga.inspect.edits",
    "GradientMap": "uwaga.inspect.heads.gradients",
    "HeadActivations": "uwaga.inspect.heads.activations",
    "HeadTable": "uwaga.inspect.heads.table",
    "Links": "uwaga.inspect.edits",
    "LogitAttribution": "uwaga.inspect.logits",
    "LogitLens": "uwaga.inspect.logits",
    "Part": "uwaga.inspect.attribution.streams",
    "Patch": "uwaga.inspect.edits",
    "PatchGrid": "uwaga.inspect.patches",
    "PatchingResult": "uwaga.inspect.patching",
    "Recording": "uwaga.inspect.recordings.recording",
    "ScaledMap": "uwaga.inspect.heads.norms",
    "ScoreAttribution": "uwaga.inspect.attribution.scores",
    "Share": "uwaga.inspect.attribution.scores",
    "Source": "uwaga.inspect.attribution.scores",
    "WinogradPair": "uwaga.inspect.heads.coreference",
    "activation_patching": "uwaga.inspect.patching",
    "activations": "uwaga.inspect.heads.activations",
    "cache_edit": "uwaga.inspect.cache.running",
    "cache_study": "uwaga.inspect.cache.study",
    "coreference_heads": "uwaga.inspect.heads.coreference",
    "cross_gradient_rollout": "uwaga.inspect.heads.gradients",
    "duplicate_token": "uwaga.inspect.heads.scores",
    "edit": "uwaga.inspect.editing",
    "gradient_rollout": "uwaga.inspect.heads.gradients",
    "head_changes": "uwaga.inspect.heads.table",
    "head_labels": "uwaga.inspect.heads.labels",
    "head_table": "uwaga.inspect.heads.table",
    "image_grids": "uwaga.inspect.patches",
    "induction": "uwaga.inspect.heads.scores",
    "logit_attribution": "uwaga.inspect.logits",
    "logit_lens": "uwaga.inspect.logits",
    "patch_grid": "uwaga.inspect.adapters.vision",
    "previous_token": "uwaga.inspect.heads.scores",
    "rollout": "uwaga.inspect.heads.rollout",
    "score_attribution": "uwaga.inspect.attribution.attribute",
    "value_norms": "uwaga.inspect.heads.norms",
    "watch": "uwaga.inspect.watching",
}

__all__ = [
    "Activations",
    "CacheStudy",
    "Edits",
    "GradientMap",
    "HeadActivations",
    "HeadTable",
    "Links",
    "LogitAttribution",
    "LogitLens",
    "Part",
    "Patch",
    "PatchGrid",
    "PatchingResult",
    "Recording",
    "ScaledMap",
    "ScoreAttribution",
    "Share",
    "Source",
    "WinogradPair",
    "activation_patching",
    "activations",
    "cache_edit",
    "cache_study",
    "coreference_heads",
    "cross_gradient_rollout",
    "duplicate_token",
    "edit",
    "gradient_rollout",
    "head_changes",
    "head_labels",
    "head_table",
    "image_grids",
    "induction",
    "logit_attribution",
    "logit_lens",
    "patch_grid",
    "previous_token",
    "rollout",
    "score_attribution",
    "value_norms",
    "watch",
]

__getattr__, __dir__ = names(__name__, _HOME, ("cache",))
