"""Networks on one machine: namespaces, shaped links, BPF programs, an emulated machine."""
