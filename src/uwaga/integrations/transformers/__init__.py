"""attn_implementation="uwaga" for the models of transformers.

register          register_with_transformers()
mask_plan         the mask function, called once for all layers; mask_functions reads the masks of transformers
attention         the attention function, called in every layer, and its map; layer_call gives the arguments of uwaga.attention
packed_states     hidden states without padding between two attentions
packed_conv1d     GPT-2's linear map as uwaga.integrations.pack_linear computes it
"""
