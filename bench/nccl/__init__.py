"""Speed of the NCCL plugin against kernel TCP as NCCL uses it."""
