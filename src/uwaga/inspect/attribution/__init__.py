"""Split attention scores into contributions of the parts of a model.

streams    the parts that write into residual streams, and a head's queries, keys and values as sums of parts
attribute  uwaga.inspect.score_attribution: scores as sums of contributions, and the sources of their parts
"""
