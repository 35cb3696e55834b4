"""What a score of attention is the sum of.

streams    what writes into the residual stream of a model's stacks, with norms as the linear maps that they are at a token, and the parts
           of a head's queries, keys and values at some tokens of a recorded text
attribute  uwaga.inspect.score_attribution: scores as sums of contributions, and where their parts came from
"""
