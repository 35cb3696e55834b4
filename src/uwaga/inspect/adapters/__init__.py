"""Models that read texts, whichever library they are of: what `uwaga.inspect.run_text` needs of a model.

adapter       the interface
builtin       models of this package
huggingface   models of transformers
loading       models of transformers from directories
"""
