"""What a score of attention is the sum of.

streams    what writes into the residual stream of a model's stacks, with norms as the linear maps that they are at a token
reading    the same of a recorded text: the parts of a head's queries, keys and values at some tokens
scores     scores as sums of contributions, and where their parts came from
attribute  uwaga.inspect.score_attribution
"""
