"""Dynamic embeddings: tables of rows by any 64-bit id, which grow, shrink and are trained at once.

`harp.ttf.embedding.modules` is the manual of the modules, `table_optimizer` of their training.
"""

from harp.ttf.embedding.exchange import Exchange
from harp.ttf.embedding.modules import DynamicEmbedding, DynamicEmbeddingBag, EmbeddingCollection
from harp.ttf.embedding.optimizers import FTRL, SGD, Adagrad, Adam
from harp.ttf.embedding.table_optimizer import TableOptimizer

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "DynamicEmbedding", "DynamicEmbeddingBag",
           "EmbeddingCollection", "Exchange", "TableOptimizer"]
