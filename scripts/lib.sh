# What scripts/demo, scripts/test and scripts/bench share: progress lines, the virtual environment, the cache folder.
# Sourced, never run. Everything that it makes lies inside the clone: .venv and .cache, both ignored by git.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
mkdir -p .cache/tmp
# Temporary files stay in the clone too: Python's and the tests' by TMPDIR, Java's by its own options.
export TMPDIR="$root/.cache/tmp"
export JAVA_TOOL_OPTIONS="${JAVA_TOOL_OPTIONS:-} -XX:-UsePerfData -Djava.io.tmpdir=$TMPDIR -Djna.tmpdir=$TMPDIR"
# Of Rust, where cargo is: beside the servers, so that a clone builds each crate once.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/.cache/cargo-target}"
export PIP_CACHE_DIR="$root/.cache/pip" PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
# Each daemon that a test starts would else compile every module again.
unset PYTHONDONTWRITEBYTECODE
name=$(basename "$0")
begun=$SECONDS

step() { printf '%s: [%3d s] %s\n' "$name" "$((SECONDS - begun))" "$*"; }

die() { printf '%s: %s\n' "$name" "$*" >&2; exit 2; }

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.11 or later is needed: apt-get install python3"
}

# Debian ships Python without ensurepip unless python3-venv is installed: then pip comes out of its package, unpacked
# into the cache, so that nothing has to be installed into the system.
make_venv() {
    local python=$1 venv=${2:-.venv} wheel
    if "$python" -c 'import ensurepip, venv' 2>/dev/null && [ -z "${HEADRACE_NO_ENSUREPIP:-}" ]; then
        "$python" -m venv "$venv"
        return
    fi
    step "this Python has no ensurepip: taking pip from Debian's package"
    mkdir -p .cache/pip-wheel
    (cd .cache/pip-wheel && apt-get download -q python3-pip-whl >/dev/null && dpkg-deb -x python3-pip-whl_*.deb .) ||
        die "pip can't be had: apt-get install python3-venv, then run this again"
    wheel=$(echo "$root"/.cache/pip-wheel/usr/share/python-wheels/pip-*.whl)
    "$python" -m venv --without-pip "$venv"
    PYTHONPATH=$wheel "$venv/bin/python" -m pip install -q --no-index --find-links "$(dirname "$wheel")" pip
}

# Installs what the lock files name into a Python's environment, each file by its hash, and then this clone. What builds
# comes first: pip would fetch it by itself otherwise, whatever its hash.
install_locked() {
    local pip=("$1" -m pip install -q --no-deps)
    "${pip[@]}" --require-hashes --only-binary :all: -r requirements-build.lock
    "${pip[@]}" --require-hashes --no-build-isolation -r requirements-dev.lock
    "${pip[@]}" --no-build-isolation -e .
}

# Makes .venv when it is missing, or when pyproject.toml or the lock file ask for something else than it was made from.
ensure_venv() {
    local wanted
    wanted=$(cksum pyproject.toml requirements-build.lock requirements-dev.lock)
    if [ -x .venv/bin/python ] && [ "$(cat .venv/.made-from 2>/dev/null)" = "$wanted" ]; then
        step "virtual environment: ready"
        return
    fi
    step "virtual environment: installing the dependencies (a few minutes on a cold machine)"
    [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv "$(find_python)"
    install_locked .venv/bin/python
    rm -f .venv/.native-from
    echo "$wanted" >.venv/.made-from
}

# Builds native code into .venv when its sources have changed; says so where it can't be built.
ensure_native() {
    local wanted
    if ! command -v cargo >/dev/null; then
        step "native code: no Rust tool chain, so Python makes the rows, which takes about five times the CPU"
        return
    fi
    wanted=$(find native -name target -prune -o -type f -print | sort | xargs cksum | cksum)
    if [ "$(cat .venv/.native-from 2>/dev/null)" = "$wanted" ]; then
        step "native code: ready"
        return
    fi
    step "native code: building (a minute or two on a cold machine)"
    # It was a distribution of its own, which Python would find first.
    rm -rf .venv/lib/python3.*/site-packages/headrace_native{,-*}
    HEADRACE_NATIVE=require .venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .
    .venv/bin/python -c 'from headrace.native import find; raise SystemExit(find().reason or 0)'
    echo "$wanted" >.venv/.native-from
}
