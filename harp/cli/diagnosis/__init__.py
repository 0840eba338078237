"""What is wrong with a running job: from counters of all its hosts to a suspect.

    snapshot.py   what a host says of itself, several times: the file that `harp diagnose` reads
    exchange.py   the same over a TCP port, to who knows a token
    legs.py       each direction of each path, as both its ends counted it
    symptoms.py   which legs and which receivers are not well, and why that is thought
    verdict.py    what all that is not well has in common: suspects, with how sure that is

In this order: a file uses those above it. Nothing but the first two touches the host.
"""
