"""Networks under the collectives: paths of messages, and the fidelities that move their bytes.

Where to look:

    interface.py      what a training step knows of any network
    fidelity.py       makes a network by the name of its fidelity: flow/, packet/, lab/
    transport.py      which resources a message uses, and what it costs there by its host stack
                      (the figures of a stack, such as kernel TCP, are in sim/stacks/)
    message_paths.py  the arrays that transport.py gives
    nccl.py, nvls.py  which algorithm and protocol NCCL takes, by its own model
    corrections.py    known errors of `flow`, by cause
"""
