"""A made-up job with a fault, and runs of ``harp diagnose`` on it."""

from click.testing import CliRunner

from harp.cli.diagnose import diagnose
from tests.support.diagnosis_cluster import all_to_all

TOKEN = b"0123456789abcdef0123456789abcdef"


def invoke(*words):
    return CliRunner().invoke(diagnose, [str(word) for word in words])


def faulty():
    cluster = all_to_all(4)
    for way in cluster.touching(1, 0):
        way.open = False
    return cluster.reports()
