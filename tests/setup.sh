# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Set-up and named stages for ./tests/run, ./examples/run and ./python_shim/make_wheel. Sourced by bash with
# `set -euo pipefail`. Everything it makes is in .venv/ and build/, except system packages.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
BUILD=$ROOT/build
LOGS=$BUILD/logs
# The supported versions of torch, the newest last; examples and tests run with the first.
TORCH_VERSIONS=(2.13.0 2.14.1 "$(sed -n 's/^torch==//p' "$ROOT/tests/requirements-newest.txt")")
PYTHON_MINIMUM=3.11
LIBVALKEY_VERSION=$(sed -n 's/^libvalkey==\([^ ]*\).*/\1/p' "$ROOT/tests/libvalkey.txt")
export MODCACHE_LIBVALKEY_SOURCE=$BUILD/libvalkey-$LIBVALKEY_VERSION/vendor/libvalkey # for CMake
# The base folder makes the paths of this tree relative, so that its build folders share objects.
export CCACHE_DIR=${CCACHE_DIR:-$BUILD/ccache} CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-1G} CCACHE_BASEDIR=$ROOT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
# The same for CMake and for scikit-build-core, as ccache goes by both: the name of the compiler,
# and the language of its messages, which Python would set where nobody else does.
export CXX=${CXX:-c++} LC_ALL=C.UTF-8
trap 'exit 130' INT

# --- Talking ---------------------------------------------------------------------------------

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
  BOLD=$'\e[1m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else
  BOLD='' RED='' GREEN='' PLAIN=''
fi

say() { printf '%s\n' "$*"; }
headline() { printf '\n%s== %s%s\n' "$BOLD" "$*" "$PLAIN"; }
give_up() {
  printf '\n%s%s%s\n' "$RED" "$*" "$PLAIN" >&2
  exit 1
}

# --- Stages ----------------------------------------------------------------------------------

STAGE_LINES=()
FAILED_LOGS=()

# stage <name> <command...>: runs the command with its output shown and kept in build/logs, and
# remembers how it ended. Goes on after a failure; conclude() tells. REQUIRES: not called inside
# a condition, where bash would ignore `set -e` in the command.
stage() {
  local name=$1 started=$SECONDS status log
  shift
  log=$LOGS/$(tr -c 'a-z0-9\n' '-' <<<"${name,,}").log
  mkdir -p "$LOGS"
  headline "$name"
  set +e
  (
    set -e
    "$@"
  ) </dev/null 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  set -e
  local spent=$((SECONDS - started))
  if ((status == 0)); then
    STAGE_LINES+=("$(printf '%s  ok  %s %5d s  %s' "$GREEN" "$PLAIN" "$spent" "$name")")
  else
    FAILED_LOGS+=("$log")
    STAGE_LINES+=("$(printf '%s FAIL %s %5d s  %s  (%s)' "$RED" "$PLAIN" "$spent" "$name" "${log#"$ROOT"/}")")
    say "${RED}failed: $name${PLAIN}"
  fi
  LAST_STATUS=$status
}

# The same, but ends the run after a failure.
vital_stage() {
  stage "$@"
  ((LAST_STATUS == 0)) || conclude
}

skipped_stage() { STAGE_LINES+=("$(printf ' skip          %s  (%s)' "$1" "$2")"); }

conclude() {
  headline "Summary"
  printf '%s\n' "${STAGE_LINES[@]}"
  printf '        %5d s  in all\n' "$SECONDS"
  ((${#FAILED_LOGS[@]} > 0)) || exit 0
  say "${RED}${#FAILED_LOGS[@]} stage(s) failed${PLAIN}"
  # Once more, where nobody has to look for it: what failed stands at the end of most logs.
  local log
  for log in "${FAILED_LOGS[@]}"; do
    say "the end of ${log#"$ROOT"/}:"
    tail -n 8 "$log"
  done
  exit 1
}

# --- System packages -------------------------------------------------------------------------

have_command() { command -v "$1" >/dev/null 2>&1; }
have_file() {
  local folder
  for folder in /usr/include /usr/local/include /usr/include/*-linux-gnu; do
    [[ -e $folder/$1 ]] && return 0
  done
  return 1
}

# Prints those of the arguments ("package:check:what") that this machine lacks.
missing_of() {
  local item package check what
  for item in "$@"; do
    IFS=: read -r package check what <<<"$item"
    "have_$check" "$what" || printf '%s\n' "$package"
  done
}

SYSTEM_PACKAGES=(
  g++:command:c++
  cmake:command:cmake
  ninja-build:command:ninja
  ccache:command:ccache
  libsqlite3-dev:file:sqlite3.h
  libsodium-dev:file:sodium.h
  libxxhash-dev:file:xxhash.h
  libcereal-dev:file:cereal/cereal.hpp
  libzstd-dev:file:zstd.h
  nlohmann-json3-dev:file:nlohmann/json.hpp
  libcli11-dev:file:CLI/CLI.hpp
  libssl-dev:file:openssl/ssl.h
)
# install_packages <package...>: through apt, or says what a person would have to do.
install_packages() {
  local as_root=()
  local command="apt-get update && apt-get install -y --no-install-recommends $*"
  have_command apt-get || give_up "This machine lacks: $*
These are the names of Debian's packages; here there is no apt-get. Please install them or their
like, then start this command again."
  if ((EUID != 0)); then
    if have_command sudo && sudo -n true 2>/dev/null; then
      as_root=(sudo -n env)
    else
      give_up "This machine lacks: $*
Installing them needs rights that this user has not. Please run, as root:
    $command"
    fi
  else
    as_root=(env)
  fi
  say "installing with apt: $*"
  local log=$LOGS/apt.log
  mkdir -p "$LOGS"
  if ! { "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -q update &&
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive \
      apt-get -q install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    give_up "apt could not install: $*
Its whole output is in ${log#"$ROOT"/}. By hand, as root:
    $command"
  fi
}

# --- Python ----------------------------------------------------------------------------------

is_good_python() {
  "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$PYTHON_MINIMUM'.split('.'))))" \
    >/dev/null 2>&1
}

has_headers() {
  "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' >/dev/null 2>&1
}

# Sets BASE_PYTHON to the Python of the active environment, or another that is new enough.
find_base_python() {
  local candidate
  BASE_PYTHON=''
  for candidate in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python3}" python3 python3.13 python3.12 \
    python3.11 /usr/bin/python3; do
    [[ -n $candidate ]] && is_good_python "$candidate" || continue
    # An active .venv of this tree is what gets made here, not what it is made from.
    if [[ $("$candidate" -c 'import os, sys; print(os.path.realpath(sys.prefix))') == "$VENV" ]]; then
      candidate=$("$candidate" -c 'import sys; print(sys._base_executable)')
      is_good_python "$candidate" || continue
    fi
    BASE_PYTHON=$(command -v "$candidate")
    return 0
  done
  return 1
}

# Prints "<version> <folder>..." of the torch that the base Python sees, or nothing. The folders
# are where it and what it imports were installed.
torch_of_base_python() {
  "$BASE_PYTHON" - 2>/dev/null <<'PYTHON' || true
import importlib.metadata, importlib.util, os, sys

spec = importlib.util.find_spec("torch")
if spec and spec.submodule_search_locations:
    home = os.path.dirname(os.path.abspath(spec.submodule_search_locations[0]))
    sites = [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
    print(importlib.metadata.version("torch"))
    print("\n".join(dict.fromkeys([home, *sites])))
PYTHON
}

make_venv() {
  local mark=$VENV/.made-for made_for
  made_for="$ROOT $("$BASE_PYTHON" -c 'import sys; print(sys.version)')"
  if [[ -x $PYTHON ]] && "$PYTHON" -m pip --version >/dev/null 2>&1; then
    [[ ! -e $mark || $(<"$mark") == "$made_for" ]] && return 0
    say "making .venv anew: it was made for another place or another Python"
  fi
  rm -rf "$VENV"
  say "making .venv with $BASE_PYTHON"
  "$BASE_PYTHON" -m venv "$VENV"
  printf '%s' "$made_for" >"$mark"
}

# pip_of <python> [arguments]: deaf to settings that would make it write elsewhere.
pip_of() {
  env -u PIP_USER -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT -u PIP_REQUIRE_VIRTUALENV \
    "$1" -m pip "${@:2}"
}
pip_of_venv() { pip_of "$PYTHON" "$@"; }

# fetch_with_pip <python> [arguments]: as pip_of, for what comes from a package index. Tried again,
# since pip takes an index that does not answer for a moment for one that lacks the package.
fetch_with_pip() {
  local pause_s
  for pause_s in 10 60; do
    if pip_of "$@"; then return 0; fi
    say "pip failed; once more in $pause_s s"
    sleep "$pause_s"
  done
  pip_of "$@"
}

# is_supported_torch <version>: of a minor version that modcache is made for.
is_supported_torch() {
  local version
  for version in "${TORCH_VERSIONS[@]}"; do [[ $1 != "${version%.*}".* ]] || return 0; done
  return 1
}

# provide_torch [<version> <folder>...]: makes torch importable in .venv: the one given (of the
# active environment), lent through a .pth file, or one installed here. Writes the version to
# constraints.txt, so that no other package brings another.
provide_torch() {
  local site lent borrowed=("$@") version
  site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  lent=$site/torch-of-the-active-environment.pth
  version=$("$PYTHON" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true)
  # An installation that was interrupted has a folder or a version, not both.
  [[ -n $version ]] || rm -rf "$site/torch"
  if is_supported_torch "$version" &&
    [[ -d $site/torch || (-e $lent && ${#borrowed[@]} -eq 0) ]]; then
    : # .venv's own stays, and without an offer, what was borrowed before.
  elif [[ ! -d $site/torch ]] && ((${#borrowed[@]} > 0)) && is_supported_torch "${borrowed[0]}"; then
    say "taking torch ${borrowed[0]} from ${borrowed[1]}"
    printf '%s\n' "${borrowed[@]:1}" >"$lent"
  else
    ((${#borrowed[@]} == 0)) || is_supported_torch "${borrowed[0]}" ||
      say "the active environment has torch ${borrowed[0]}, and modcache is made for ${TORCH_VERSIONS[*]}"
    say "installing torch ${TORCH_VERSIONS[0]} into .venv"
    rm -f "$lent"
    fetch_with_pip "$PYTHON" install --force-reinstall "torch==${TORCH_VERSIONS[0]}"
  fi
  version=$("$PYTHON" -c 'import importlib.metadata as m; print(m.version("torch"))')
  printf 'torch==%s\n' "$version" >"$VENV/constraints.txt"
}

# install_python_packages <requirements file>: again when its content or the torch has changed.
install_python_packages() {
  local file=$1 mark wanted
  shift
  mark=$VENV/.installed-${file//\//-}
  wanted=$(cat "$ROOT/$file" "$VENV/constraints.txt")
  [[ ! -e $mark || $(<"$mark") != "$wanted" ]] || return 0
  say "installing into .venv what $file lists"
  fetch_with_pip "$PYTHON" install --quiet --constraint "$VENV/constraints.txt" --requirement "$ROOT/$file" "$@"
  printf '%s' "$wanted" >"$mark"
}

# Fetches the sources of libvalkey, unless the system has the library.
provide_libvalkey() {
  ! have_file valkey/valkey.h && [[ ! -e $MODCACHE_LIBVALKEY_SOURCE/src/cluster.c ]] || return 0
  say "fetching the sources of libvalkey $LIBVALKEY_VERSION"
  mkdir -p "$BUILD"
  fetch_with_pip "$PYTHON" download --quiet --no-deps --no-binary :all: --require-hashes \
    --requirement "$ROOT/tests/libvalkey.txt" --dest "$BUILD"
  tar -xzf "$BUILD/libvalkey-$LIBVALKEY_VERSION.tar.gz" -C "$BUILD"
}

# System packages, .venv, torch, libvalkey.
set_up() {
  local missing active_torch
  mapfile -t missing < <(missing_of "${SYSTEM_PACKAGES[@]}")
  if ! find_base_python; then
    missing+=(python3 python3-venv python3-dev)
  elif [[ ! -x $PYTHON ]] && ! "$BASE_PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    # Debian keeps part of the venv module in a package of its own.
    missing+=("$("$BASE_PYTHON" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
  fi
  # The Python package has a compiled part.
  if [[ -n $BASE_PYTHON ]] && ! has_headers "$BASE_PYTHON"; then
    missing+=("$("$BASE_PYTHON" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
  fi
  ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
  find_base_python || give_up "No Python $PYTHON_MINIMUM or newer here. Tried: \$VIRTUAL_ENV, python3, \
python3.11 to python3.13."
  mapfile -t active_torch < <(torch_of_base_python)
  enter_venv
  make_venv
  provide_torch "${active_torch[@]}"
  provide_libvalkey
}

# From here on .venv is the active environment, and PYTHONPATH would only hide what it has.
enter_venv() {
  unset PYTHONPATH PYTHONHOME
  export VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH
}

# --- Building --------------------------------------------------------------------------------

# A compiler of torch's headers takes some 2 GB.
jobs_of_this_machine() {
  local cores memory_gb
  cores=$(nproc)
  memory_gb=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  local by_memory=$((memory_gb / 2 > 0 ? memory_gb / 2 : 1))
  echo $((cores < by_memory ? cores : by_memory))
}
JOBS=$(jobs_of_this_machine)
export CMAKE_BUILD_PARALLEL_LEVEL=$JOBS

# configure <preset> [arguments of cmake]
configure() {
  local launcher=()
  ! have_command ccache || launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  (cd "$ROOT" && cmake --preset "$1" -DPython_EXECUTABLE="$PYTHON" "${launcher[@]}" --log-level=NOTICE \
    --no-warn-unused-cli "${@:2}")
}

# show_progress <log> <command...>: runs a build and writes its output to the log. Shows every ten seconds
# how many objects are done, and other lines unless QUIET is set; the end of the log after a failure.
show_progress() {
  mkdir -p "$(dirname "$1")"
  "${@:2}" 2>&1 | tee "$1" | progress_lines && return 0
  say "the end of ${1#"$ROOT"/}:"
  tail -n 60 "$1"
  return 1
}

progress_lines() {
  local line shown=$((SECONDS - 10)) started=$SECONDS
  while IFS= read -r line; do
    if [[ $line =~ ^\ *\[([0-9]+)/([0-9]+)\]\  ]]; then
      if ((SECONDS - shown >= 10 || BASH_REMATCH[1] == BASH_REMATCH[2])); then
        shown=$SECONDS
        say "built ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} files ($((SECONDS - started)) s)"
      fi
    elif [[ -z ${QUIET:-} ]]; then
      say "$line"
    fi
  done
}

# build <preset> [arguments of cmake --build]
build() {
  local preset=$1
  shift
  configure "$preset"
  (cd "$ROOT" && show_progress "$LOGS/build-$preset-output.log" cmake --build --preset "$preset" "$@")
}

# Into .venv, the way a user installs it, unless it is up to date. pip shows the build only with -v.
install_package() {
  local mark=$VENV/.modcache-installed sources
  sources=("$ROOT"/{CMakeLists.txt,pyproject.toml,cmake,csrc,command_line,triton_cache,torchscript_ops,python_shim})
  # The mark holds the torch that the package was built against.
  if [[ -e $mark ]] && cmp -s "$mark" "$VENV/constraints.txt" && [[ -z $(find "${sources[@]}" -name __pycache__ -prune -o -newer "$mark" -print -quit) ]] &&
    "$PYTHON" -m pip show --quiet modcache 2>/dev/null; then
    say "modcache in .venv is up to date"
    return 0
  fi
  cp "$VENV/constraints.txt" "$mark.new"
  QUIET=on show_progress "$LOGS/package-output.log" pip_that_builds install --force-reinstall -v
  mv "$mark.new" "$mark"
}

# pip_that_builds <command> [arguments of pip]: `pip install --no-build-isolation .`, or `pip wheel`.
pip_that_builds() {
  local launcher=()
  ! have_command ccache ||
    launcher=(--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # Warnings as errors here as in the other build: then ccache has each object already.
  (cd "$ROOT" && pip_of_venv "$1" --no-build-isolation --no-deps "${launcher[@]}" \
    --config-settings=cmake.define.MODCACHE_WARNINGS_AS_ERRORS=ON "${@:2}" .)
}
