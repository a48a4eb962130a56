// SPDX-License-Identifier: Apache-2.0
//
// The functions that the Python package's compiled part (python_shim/native) calls in the library,
// for plain hits: a call through torch costs microseconds for the conversion of its arguments. Both
// sides include this header, which needs neither torch nor Python. Python hands the address of
// library_calls() over, and the compiled part refuses another version.
//
// Tensors are c10::TensorImpl*, borrowed for the length of a call. No function throws; after any
// error a call has no answer, and the ordinary way of the call reports it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace modcache::ops {

// UTF-8, borrowed for the length of a call.
struct Text {
  const char* data;
  std::size_t size_bytes;
};

struct PlainCall {
  Text scope;  // of an eager module: the fingerprint where the caller gave none
  Text method;
  void* input;
  // One key for the whole input, or one for each row: texts, or else ids, or else a tensor of ids.
  const Text* texts;
  const std::int64_t* ids;
  void* id_tensor;
  std::size_t key_count;
  bool is_rows;
  bool only_memory;  // no file is read; for one key only
};

// The state of an eager module, as its snapshot just had it.
struct EagerModule {
  void* const* tensors;  // all of it, in order; not needed with grad mode off and no watch
  std::size_t tensor_count;
  const void* watch;  // module::Watch; null: the caller named the scope
  Text weights;       // the digest that the watch must find again
};

struct LibraryCalls {
  static constexpr std::uint32_t kVersion = 1;
  std::uint32_t version;

  // Returns whether the mode of this thread allows to return a stored value without a run.
  bool (*may_take_fast_path)();
  bool (*is_grad_enabled)();
  // Counts a call that the mode `off` has run without the cache. Returns false, and counts nothing,
  // in any other mode, and where the input has not one row for each key.
  bool (*bypass)(const PlainCall& call);
  bool (*requires_grad)(const void* tensor);
  // Return the stored value, which the caller owns and hands to release(); null: it is no plain
  // hit, and nothing was counted.
  void* (*find_eager)(const PlainCall& call, const EagerModule& module);
  void* (*find_scripted)(const PlainCall& call, const void* scripted_module);
  void (*release)(void* tensor);
};

}  // namespace modcache::ops
