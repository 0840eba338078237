#!/bin/sh
# Prepare .venv. `setup.sh run` gets what `make run` needs, a compiler and the Python packages;
# `setup.sh test` gets what the tests and the linters need as well, emulators and other compilers.
# System packages are installed where we are root on Debian; else the missing ones are named.
set -eu
cd "$(dirname "$0")/.."
venv=.venv
stage=${1:-test}
case $stage in
run) extras= ;;
test) extras='[dev]' ;;
*)
    echo "setup: $stage is no stage; allowed: run, test" >&2
    exit 2
    ;;
esac

# One line a missing package: its Debian name, and what works without it.
missing() {
    if ! command -v python3 >/dev/null; then
        echo "python3 python3-venv python3-dev: nothing works without them"
        return
    fi
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        echo "python3: version 3.10 or newer is needed, this is $(python3 -V)"
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        echo "python3-venv: nothing works without it"
    command -v cc >/dev/null ||
        echo "gcc: without it \`python3 -m sim.schema\` still prints the schema of the topology file, if pydantic and PyYAML are installed; nothing can be simulated"
    header=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
    [ -e "$header" ] ||
        echo "python3-dev: as for gcc, the C parts cannot be built without it"
}

# Tools that only tests need, in the same form.
lacking() {
    [ "$stage" = test ] || return 0
    command -v strace >/dev/null ||
        echo "strace: without it the test of the data path's system calls is skipped"
    command -v ip >/dev/null && command -v tc >/dev/null ||
        echo "iproute2: without it tests between network namespaces are skipped"
    command -v ethtool >/dev/null ||
        echo "ethtool: without it the test of harp setup on a real link is skipped"
    command -v chromium >/dev/null && command -v chromedriver >/dev/null ||
        echo "chromium chromium-driver: without them the page of --html is not opened by a test"
    command -v ssh >/dev/null ||
        echo "openssh-client: without it the test of ssh's own bounds is skipped"
    command -v iperf3 >/dev/null ||
        echo "iperf3: without it the test of its output is skipped"
    command -v tshark >/dev/null ||
        echo "tshark: without it the test of the Wireshark dissector is skipped"
    command -v systemd-analyze >/dev/null ||
        echo "systemd: without it the unit of deploy/ is not checked"
    command -v buildah >/dev/null && command -v debootstrap >/dev/null ||
        echo "buildah debootstrap: without them the images of deploy/ are not built by a test"
    [ -e "$(clang -print-file-name=libclang_rt.fuzzer-x86_64.a 2>/dev/null)" ] ||
        echo "clang libclang-rt-dev: without them only the stored inputs of the fuzzers are tried"
    command -v qemu-system-x86_64 >/dev/null && command -v busybox >/dev/null ||
        echo "qemu-system-x86 busybox-static: without them \`make test-vm\` is skipped"
}

need=$(missing)
if [ -n "$need$(lacking)" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    packages="python3 python3-venv python3-dev gcc libc6-dev"
    [ "$stage" = run ] ||
        packages="$packages tshark qemu-system-x86 busybox-static clang libclang-rt-dev strace iproute2 ethtool systemd openssh-client iperf3 chromium chromium-driver buildah debootstrap"
    echo "setup: installing $packages"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # shellcheck disable=SC2086
    apt-get -qq install -y --no-install-recommends $packages >/dev/null
    need=$(missing)
fi
if [ -n "$need" ]; then
    echo "setup: these Debian packages are missing, and there is no right to install them:" >&2
    echo "$need" | sed 's/^/  /' >&2
    echo "setup: ask for \`apt-get install$(echo "$need" | cut -d: -f1 | tr '\n' ' ' | sed 's/^/ /')\`" >&2
    exit 1
fi

lacking | sed 's/^/setup: not installed: /' >&2

# Up to date when neither the build nor its requirements changed since the last time.
stamp=$(cat pyproject.toml meson.build .ci/setup.sh | cksum; python3 -V; pwd)
[ -e "$venv/stamp-$stage" ] && [ "$(cat "$venv/stamp-$stage")" = "$stamp" ] && exit 0
echo "setup: preparing $venv (up to a minute or two the first time)"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
PATH="$PWD/$venv/bin:$PATH"
export PATH PIP_DISABLE_PIP_VERSION_CHECK=1
# An editable build runs without isolation, so its own requirements come first.
pip install -q meson-python meson ninja cffi
# Each import of an editable build runs ninja, and two at once in one folder break each other. Where
# it runs meson, that runs ninja again, within the same turn.
cat >"$venv/bin/ninja-in-turn" <<END
#!/bin/sh
[ "\${1-}" = --version ] || [ "\${NINJA_TURN-}" ] || { exec 9>.ninja_turn && flock 9; }
export NINJA_TURN=mine
exec "$PWD/$venv/bin/ninja" "\$@"
END
chmod +x "$venv/bin/ninja-in-turn"
NINJA="$PWD/$venv/bin/ninja-in-turn" pip install -q --no-build-isolation -e ".$extras"
# An editable build reads bytecode, but never writes it: each command would compile what it imports.
python -m compileall -q harp lab sim
echo "$stamp" >"$venv/stamp-run"
[ "$stage" = run ] || echo "$stamp" >"$venv/stamp-test"
