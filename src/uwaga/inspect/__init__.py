"""Record a model's attention, change it, and measure its heads. Public names are imported when first used.

watching     uwaga.watch: record the attention of every layer while the model runs
recordings   recorded passes, their maps and files
editing      uwaga.edit: run a model with changed attention
edits        descriptions of changes
heads        activations, gradients, scores, labels, rollouts and coreference of heads
logits       logit lens and direct logit attribution
attribution  attention scores as sums over pairs of parts of the model
patching     activation patching
cache        policies of KV-cache eviction, and their losses
run_text     record a model over a text
images       record a vision transformer over an image
patches      grids of image patches among the tokens of a sequence
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.inspect import cache as cache
    from uwaga.inspect.attribution.attribute import ScoreAttribution as ScoreAttribution
    from uwaga.inspect.attribution.attribute import Share as Share
    from uwaga.inspect.attribution.attribute import Source as Source
    from uwaga.inspect.attribution.attribute import score_attribution as score_attribution
    from uwaga.inspect.attribution.streams import Part as Part
    from uwaga.inspect.cache.running import cache_edit as cache_edit
    from uwaga.inspect.cache.study import CacheStudy as CacheStudy
    from uwaga.inspect.cache.study import cache_study as cache_study
    from uwaga.inspect.editing import edit as edit
    from uwaga.inspect.edits import Edits as Edits
    from uwaga.inspect.edits import Links as Links
    from uwaga.inspect.edits import Patch as Patch
    from uwaga.inspect.heads.activations import Activations as Activations
    from uwaga.inspect.heads.activations import HeadActivations as HeadActivations
    from uwaga.inspect.heads.activations import activations as activations
    from uwaga.inspect.heads.coreference import WinogradPair as WinogradPair
    from uwaga.inspect.heads.coreference import coreference_heads as coreference_heads
    from uwaga.inspect.heads.gradients import GradientMap as GradientMap
    from uwaga.inspect.heads.gradients import cross_gradient_rollout as cross_gradient_rollout
    from uwaga.inspect.heads.gradients import gradient_rollout as gradient_rollout
    from uwaga.inspect.heads.labels import head_labels as head_labels
    from uwaga.inspect.heads.norms import ScaledMap as ScaledMap
    from uwaga.inspect.heads.norms import value_norms as value_norms
    from uwaga.inspect.heads.rollout import rollout as rollout
    from uwaga.inspect.heads.scores import duplicate_token as duplicate_token
    from uwaga.inspect.heads.scores import induction as induction
    from uwaga.inspect.heads.scores import previous_token as previous_token
    from uwaga.inspect.heads.table import HeadTable as HeadTable
    from uwaga.inspect.heads.table import head_changes as head_changes
    from uwaga.inspect.heads.table import head_table as head_table
    from uwaga.inspect.logits import LogitAttribution as LogitAttribution
    from uwaga.inspect.logits import LogitLens as LogitLens
    from uwaga.inspect.logits import logit_attribution as logit_attribution
    from uwaga.inspect.logits import logit_lens as logit_lens
    from uwaga.inspect.patches import PatchGrid as PatchGrid
    from uwaga.inspect.patches import image_grids as image_grids
    from uwaga.inspect.patching import PatchingResult as PatchingResult
    from uwaga.inspect.patching import activation_patching as activation_patching
    from uwaga.inspect.recordings.recording import Recording as Recording
    from uwaga.inspect.vision import patch_grid as patch_grid
    from uwaga.inspect.watching import watch as watch
else:
    __all__, __getattr__, __dir__ = names(__name__)
