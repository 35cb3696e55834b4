"""Keywords of PyTorch's and sentence-transformers' functions, and what our functions have in their place."""

import inspect
from collections.abc import Callable, Iterable, Mapping

_MASK = "give mask= if it is bool, or bias= if it is floating"
_RECORDED = "leave it out, since uwaga.watch(model) records the maps"
_ARRAY = "leave it out, since the result is a NumPy array, which torch.from_numpy takes"
_PROCESSES = "leave it out, since `uwaga encode --processes` runs several processes"
_INSTRUCTION = "give instruction= to Reranker.load"
_FILES = "leave it out, since the model's files say it"

INSTEAD = {
    # scaled_dot_product_attention and MultiheadAttention of PyTorch
    "attn_mask": _MASK,
    "is_causal": "give mask=uwaga.Causal(start=0)",
    "dropout_p": "give dropout=",
    "enable_gqa": "leave it out, since it follows from the shapes",
    "key_padding_mask": "give mask=uwaga.KeyLengths(lengths), or uwaga.Ragged sequences",
    "need_weights": _RECORDED,
    "average_attn_weights": _RECORDED,
    "embed_dim": "give d_model=",
    "kdim": "give key_dim=",
    "vdim": "give value_dim=",
    "batch_first": "leave it out, since tensors are (..., tokens, width)",
    # SentenceTransformer
    "batch_size": "give tokens_per_batch=, the tokens that the model reads at a time",
    "show_progress_bar": "give progress=",
    "convert_to_numpy": _ARRAY,
    "convert_to_tensor": _ARRAY,
    "normalize_embeddings": "give normalize=",
    "output_value": "give output='tokens' for the vectors of tokens",
    "precision": "leave it out, since vectors are float32",
    "device": "leave it out, since model.to(device) moves a model, such as encoder.model",
    "pool": _PROCESSES,
    "chunk_size": _PROCESSES,
    "inputs": "give the texts as the first argument",
    "sentences": "give the texts as the first argument",
    "model_kwargs": "give dtype=",
    "max_length": _FILES,
    # CrossEncoder
    "documents": "give passages=",
    "top_k": "give top=",
    "return_documents": "leave it out, since the indices of the result are places in passages",
    "activation_fn": _FILES,
    "apply_softmax": "leave it out, since a reranker has one label",
}
# Where a reranker has something else than an encoder, or nothing.
_OF_RERANKER = {
    "batch_size": "leave it out, since pairs are packed by their tokens",
    "show_progress_bar": "leave it out, since there is no progress bar",
    "prompt": _INSTRUCTION,
    "prompt_name": _INSTRUCTION,
}


def refuse(other: Mapping[str, object], function: Callable[..., object], names: Iterable[str] = ()) -> None:
    """Raise TypeError if there are keyword arguments that a function does not have.

    Args:
        other: what its parameter `**other: Never` took. Type checkers reject such a call too.
        function: the function, whose own keywords the message lists.
        names: those that it takes as `**options`.
    """
    if not other:
        return
    name = next(iter(other))
    owner = function.__qualname__.removesuffix(".__init__").removesuffix(".forward")
    instead = INSTEAD | _OF_RERANKER if owner.startswith("Reranker") else INSTEAD
    options = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    options += [option for option in names if option not in options]
    what = instead.get(name) or f"its options are {', '.join(options)}"
    raise TypeError(f"{owner}: {name} is not an option; {what}")
