"""AngelPTM: train a model whose states do not fit into the device's memory.

`harp.angelptm.adam` has the optimizer's step over raw memory.
"""
