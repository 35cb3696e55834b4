"""Research tools on models: heads' activations and gradients, heads that follow a pronoun, logit lens, direct logit attribution, activation patching.

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.integrations.coreference import WinogradPair, coreference_heads
    from uwaga.interpret.heads import Activations, HeadActivations, activations
    from uwaga.interpret.logits import LogitAttribution, LogitLens, logit_attribution, logit_lens
    from uwaga.interpret.patching import PatchingResult, activation_patching

__all__ = [
    "Activations",
    "HeadActivations",
    "LogitAttribution",
    "LogitLens",
    "PatchingResult",
    "WinogradPair",
    "activation_patching",
    "activations",
    "coreference_heads",
    "logit_attribution",
    "logit_lens",
]

_HOME = {
    "Activations": "uwaga.interpret.heads",
    "HeadActivations": "uwaga.interpret.heads",
    "LogitAttribution": "uwaga.interpret.logits",
    "LogitLens": "uwaga.interpret.logits",
    "PatchingResult": "uwaga.interpret.patching",
    "WinogradPair": "uwaga.integrations.coreference",
    "activation_patching": "uwaga.interpret.patching",
    "activations": "uwaga.interpret.heads",
    "coreference_heads": "uwaga.integrations.coreference",
    "logit_attribution": "uwaga.interpret.logits",
    "logit_lens": "uwaga.interpret.logits",
}

__getattr__, __dir__ = names(__name__, _HOME)
