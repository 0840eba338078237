"""Names in C: a static function is found by grep, which one word does not allow."""

import re

from tests.support import ROOT

STATIC = re.compile(r"^static\b[^;={]*?\b(\w+)\(", re.MULTILINE)


def test_static_functions_have_names_of_several_words() -> None:
    files = [file for folder in ("cnet", "sim", "tests", "bench")
             for file in (ROOT / folder).rglob("*.[ch]")]
    names = [(str(file.relative_to(ROOT)), name) for file in files
             for name in STATIC.findall(file.read_text())]
    assert len(names) > 1000
    assert [name for name in names if "_" not in name[1]] == []
