"""Commands that tests invoke in their own process."""

from click.testing import CliRunner

from harp.cli.main import harp


def say(*words):
    done = CliRunner().invoke(harp, list(map(str, words)))
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    return done
