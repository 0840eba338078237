#!/bin/sh
# Run the tests of what binds torch with the newest torch that README names; .venv has the oldest.
# The second environment has torch alone and takes all else from .venv.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-torch
torch=torch==2.14.1
if [ ! -e "$venv/stamp" ] || [ "$(cat "$venv/stamp")" != "$torch $PWD" ]; then
    echo "newest-torch: preparing $venv (some minutes the first time: PyPI's torch brings CUDA)"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "$torch"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$below')" >"$site/below.pth"
    echo "$torch $PWD" >"$venv/stamp"
fi
PATH="$PWD/.venv/bin:$PATH"  # the editable build's ninja
export PATH
# torch 2.14 leaves files open when it is imported, which is not for us to tell.
"$venv/bin/python" -m pytest -n auto -m 'not long' \
    -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
    tests/harp/lightcc/test_torch.py tests/harp/lightcc/test_torch_features.py \
    tests/harp/lightcc/test_torch_failures.py tests/harp/lightcc/test_torch_own.py \
    tests/harp/lightcc/test_hook.py tests/harp/lightcc/test_staging.py \
    tests/harp/lightcc/test_tensors.py tests/harp/angelptm/test_engine.py \
    tests/harp/ttf/embedding tests/harp/ttf/amp
