// SPDX-License-Identifier: Apache-2.0
//
// The functions that the Python package's compiled part (python_shim/native) calls in the library,
// for plain calls: a call through torch costs microseconds for the conversion of its arguments.
// Both sides include this header, which needs neither torch nor Python. Python hands the address of
// library_calls() over, and the compiled part refuses another version.
//
// Tensors are c10::TensorImpl*. None of the functions throws. After an error a lookup has no
// answer, and the ordinary way of the call reports it; what a run raises is kept for
// Run.take_result(). Those that may wait or read files say so: they are called without the GIL, and
// the caller has retained every tensor that it passes, since another thread may exchange the tensor
// behind a Python object meanwhile. The others are called with the GIL, which keeps the tensors
// where they are: retaining hundreds of them takes as long as a hit.
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
  void* const* inputs;
  std::size_t input_count;  // several: a tuple of tensors; a tuple of one is that tensor
  // One key for the whole input, or one for each row: texts, or else ids, or else a tensor of ids.
  const Text* texts;
  const std::int64_t* ids;
  void* id_tensor;
  std::size_t key_count;
  bool is_rows;
};

// All tensors of an eager module, in order, as its snapshot just had them.
struct Weights {
  void* const* tensors;
  std::size_t count;
};

enum class Answer : int {
  kNothing = 0,  // the ordinary way has to handle it, and nothing was counted
  kFound = 1,    // `found` is the stored value, which the caller owns and has to release
  // The mode is `off`, or the scope is switched off (cache/verify_watch.h): it was counted, and
  // is to be run without the cache.
  kBypassed = 2,
  kMade = 3,    // the whole call was made, a run included: Run.take_result() gives its result
  kBegun = 4,   // `found` is the call's module::EagerRun, which the caller owns, and has to drop
  kTagged = 5,  // Run.take_result() gives the stored value, tagged (tensor/tree.h)
  kApart = 6,   // the same, a tuple of rows that do not fit together
};

// These are module::RunFacts: only the code that ran the module knows them.
struct Facts {
  Text impure_because;
  std::int64_t requiring_grad;
  bool is_training;
  bool is_checkpointed;
};

enum class Finished : int {
  kQuietly = 0,      // nothing was refused, and no manifest is lacking
  kWithOutcome = 1,  // Run.outcome() says what is to be done
  kRaised = 2,       // Run.take_result() raises what it raised, as under strict=true
};

struct LibraryCalls {
  static constexpr std::uint32_t kVersion = 7;
  std::uint32_t version;

  // Returns whether no mode of torch functions or of torch dispatch, no transform of functorch and
  // no tracing is in force in this thread.
  bool (*is_plain_here)();
  bool (*is_grad_enabled)();
  // Returns whether this process or thread is in mode `off`. The directory's mode is not read.
  bool (*is_off_here)();
  // Counts a call that bypasses the cache in mode `off`; it may have no key. Returns false, and
  // counts nothing, in another mode and for a call with mistakes.
  bool (*bypass)(const PlainCall& call);
  // Returns whether a module::Watch has ever hashed tensors, so that there is something to forget.
  bool (*has_hashed)(const void* watch);
  bool (*requires_grad)(const Weights& weights);  // any of them
  // Returns whether the tensors are what this module::Watch saw last, with this digest. Reads at
  // most 4 MiB of them.
  bool (*still_has)(const void* watch, const Weights& weights, const Text& digest);
  void (*retain)(void* tensor);
  void (*release)(void* tensor);
  // Makes a call of a module that is what `call.scope` says, and of which nothing requires grad
  // while gradients are recorded: looks it up, and where something is missing begins the run.
  // Without a scope it only answers in mode `off`. `watch`: the module::Watch of the weights that
  // the scope is the fingerprint of; null where the caller gave the scope. Without `may_begin`
  // there is an answer only where all is stored. May wait and read files.
  Answer (*begin_eager)(const PlainCall& call, const Text& class_name, const void* watch,
                        bool may_begin, void** found);
  // Gives a run its result, a tensor, which is copied. Once for each run. May wait and write files;
  // nothing else may be done with the run meanwhile.
  Finished (*finish_run)(void* run, void* output, const Facts& facts);
  // Releases the caller's share of a run, which is abandoned if it was the last one.
  void (*drop_run)(void* run);
  // Makes the whole call, and runs the module if it has to. A result that is no tensor, or an
  // exception, is kMade.
  Answer (*look_up_scripted)(const PlainCall& call, const void* scripted_module, void** found);
};

}  // namespace modcache::ops
