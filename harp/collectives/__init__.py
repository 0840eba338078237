"""Collectives as plans: compact programs that a simulator and the real collectives both execute.

Start at ``registry.make_plan(name, ranks=…, nbytes=…)``, which builds one, and at
``check.check(plan)``, which proves it right. ``ir`` describes the intermediate representation and
its semantics; the table of formulas is in docs/inside/collectives.md.
"""
