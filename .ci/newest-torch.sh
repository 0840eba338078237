#!/bin/sh
# Run the tests of what binds torch with the newest torch that README names, or, as
# `newest-torch.sh nightly`, with last night's; .venv has the oldest that README names.
# The other environment has torch alone and takes all else from .venv.
set -eu
cd "$(dirname "$0")/.."
case ${1:-named} in
named)
    venv=.venv-torch torch=torch==2.14.1 made=torch==2.14.1
    options='' where=PyPI mark=2.14.1
    ;;
nightly)  # builds for the CPU, which are a tenth of the size; made anew each day
    venv=.venv-nightly torch=torch made="nightly $(date -u +%F)"
    where=https://download.pytorch.org/whl/nightly/cpu mark=.dev
    options="--pre --upgrade --retries 1 --timeout 30 --index-url $where"
    ;;
*)
    echo "newest-torch: there is no torch '$1'; allowed are named and nightly" >&2
    exit 2
    ;;
esac
if [ ! -e "$venv/stamp" ] || [ "$(cat "$venv/stamp")" != "$made $PWD" ]; then
    echo "newest-torch: preparing $venv (some minutes the first time: PyPI's torch brings CUDA)"
    python3 -m venv "$venv"
    # shellcheck disable=SC2086  # options are words
    "$venv/bin/pip" install -q --disable-pip-version-check $options "$torch" || :
    found=$("$venv/bin/pip" show torch 2>&1 | sed -n 's/^Version: //p')
    case $found in  # pip takes a release from another place that its settings name
    *"$mark"*) ;;
    *)
        rm -rf "$venv"
        echo "newest-torch: $where gave no torch of version *$mark*, but '$found';" \
            "these tests need the network to it" >&2
        exit 2
        ;;
    esac
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$below')" >"$site/below.pth"
    echo "$made $PWD" >"$venv/stamp"
fi
"$venv/bin/python" -c 'import torch; print("newest-torch: torch", torch.__version__)'
PATH="$PWD/.venv/bin:$PATH"  # the editable build's ninja
export PATH
# torch 2.14 leaves files open when it is imported, and only torch can mend that. A file's tests
# share what they import and compile.
test_with_it() {
    "$venv/bin/python" -m pytest -n auto --dist loadfile \
        -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning "$@"
}
# The rest of tests/harp/lightcc knows no torch.
test_with_it -m 'not long' tests/harp/lightcc/torch tests/harp/lightcc/horovod \
    tests/harp/lightcc/outer tests/harp/lightcc/torch_base \
    tests/harp/lightcc/test_imports.py tests/harp/lightcc/test_hook.py \
    tests/harp/lightcc/test_torchft.py \
    tests/harp/angelptm tests/harp/ttf
# Of the long tests the features of torch.distributed, where torch moves most.
test_with_it -m long tests/harp/lightcc/torch/test_features.py
