"""Speed and capacity of AngelPTM beside torch, DeepSpeed, fio and plain training."""
