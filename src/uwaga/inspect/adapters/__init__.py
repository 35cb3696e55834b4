"""Models that read texts and pictures, whichever library they are of: what `uwaga.inspect.run_text` needs of a model, and patches.

adapter       the interface
builtin       models of this package
huggingface   models of transformers
loading       models of transformers from directories
vision        models of transformers that read pictures
"""
