"""attn_implementation="uwaga" for the models of transformers.

masks       what transformers asks once for all layers: a plan of what can be skipped, in the shape of a mask
attention   what it asks in every layer
"""
