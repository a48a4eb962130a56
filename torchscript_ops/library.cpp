// SPDX-License-Identifier: Apache-2.0
//
// The public schemas of namespace `cache`, those of the shim, and what registers them once in a
// process; explain.cpp, exported.cpp, lower.cpp and log_reader.cpp have the others. A model that
// was saved with a schema must load for ever: arguments may be added at the end with defaults,
// never changed or removed.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "base/log.h"
#include "cache/cache.h"
#include "define.h"
#include "explain.h"
#include "log_reader.h"
#include "lower.h"
#include "module/as_loaded.h"
#include "module/eager.h"
#include "module/model_file.h"
#include "operators.h"
#include "tensor/stored_format.h"
#include "tensor/torch_version.h"
#include "triton.h"

namespace modcache::ops {
namespace {

using torch::CppFunction;
using BoxedKernel = void(const c10::OperatorHandle&, torch::jit::Stack*);

// One key for the call, or one per row as texts or ids.
template <BoxedKernel* one_key, BoxedKernel* key_per_row>
void define_lookup_or_run(torch::Library& m, const std::string& name, const std::string& result,
                          const std::string& module = "Any module") {
  const auto schema = [&](const char* overload, const char* keys) {
    return name + overload + "(" + module + ", Any input, " + keys +
           ", *, str scope=\"\", str method=\"forward\") -> " + result;
  };
  define(m, schema("", "str key").c_str(), CppFunction::makeFromBoxedFunction<one_key>());
  define(m, schema(".keys", "str[] keys").c_str(),
         CppFunction::makeFromBoxedFunction<key_per_row>());
  define(m, schema(".ids", "Tensor ids").c_str(),
         CppFunction::makeFromBoxedFunction<key_per_row>());
}

void define_public(torch::Library& m) {
  define_lookup_or_run<&lookup_or_run, &lookup_or_run_rows>(m, "lookup_or_run", "Tensor");
  define_lookup_or_run<&lookup_or_run_any, &lookup_or_run_any_rows>(m, "lookup_or_run_any", "Any");
  define_lookup_or_run<&lookup_or_run_file, &lookup_or_run_file_rows>(m, "lookup_or_run_file",
                                                                      "Tensor", "str path");
  define(m, "fingerprint(Any module, *, str method=\"forward\") -> str",
         CppFunction::makeFromBoxedFunction<&fingerprint>());
  define(m, "refresh_fingerprint(Any module) -> str",
         CppFunction::makeFromBoxedFunction<&refresh_fingerprint>());
  define(m, "content_key(Any input) -> str", CppFunction::makeFromBoxedFunction<&content_key>());
  define(m, "content_keys(Any input) -> str[]",
         CppFunction::makeFromBoxedFunction<&content_keys>());
  define(m, "lookup(str scope, str key) -> (bool, Tensor)", &lookup);
  define(m, "store(str scope, str key, Tensor value) -> Tensor", &store);
  define(m, "contains(str scope, str key) -> bool", &contains);
  define(m, "prefetch(str scope, str[] keys, *, str method=\"forward\") -> int", &prefetch);
  define(m, "prefetch.ids(str scope, Tensor ids, *, str method=\"forward\") -> int", &prefetch_ids);
  define(m, "place(str scope, str place) -> str", &place);
  define(m, "configure(Dict(str, str) options) -> ()", &configure);
  define(m, "settings() -> Dict(str, str)", &settings);
  define(m, "set_mode(str mode) -> ()", &set_mode);
  define(m, "mode() -> str", &mode);
  define(m, "stats() -> Dict(str, int)", &stats);
  define(m, "reset_stats() -> ()", &reset_stats);
  define(m, "flush() -> ()", &flush);
  define(m, "clear(str scope=\"\", *, str prefix=\"\", str tier=\"all\") -> int", &clear);
  // An overload: hosts that were built before call the other with three arguments, boxed.
  define(m,
         "clear.older_than(str scope=\"\", *, str prefix=\"\", str tier=\"all\","
         " float older_than_s) -> int",
         &clear_older_than);
}

// The two halves of a call whose module Python runs: its values are tagged where they are
// structured (tensor/tree.h).
void define_halves(torch::Library& m) {
  define(m,
         "_begin(str scope, str method, Any input, str key, int params_grad_pattern, int watch, *, "
         "str class_name=\"module\") -> (int, Any, __torch__.torch.classes.cache.Run?)",
         CppFunction::makeFromBoxedFunction<&eager_begin>());
  define(m,
         "_finish(__torch__.torch.classes.cache.Run run, Any output, str impure_because, *, "
         "int requiring_grad=0) -> ()",
         CppFunction::makeFromBoxedFunction<&eager_finish>());
  define(m, "_abandon(__torch__.torch.classes.cache.Run run) -> ()",
         CppFunction::makeFromBoxedFunction<&eager_abandon>());
  define(m, "_restart(__torch__.torch.classes.cache.Run run, Any who) -> ()",
         CppFunction::makeFromBoxedFunction<&eager_restart>());
  define(m, "_restart_rows(__torch__.torch.classes.cache.RowsRun run, Any who) -> ()",
         CppFunction::makeFromBoxedFunction<&eager_restart_rows>());
  // The same with one key per row: str[] or ids.
  define(m,
         "_begin_rows(str scope, str method, Any input, Any keys, int params_grad_pattern, "
         "int watch, *, str class_name=\"module\") -> (int, int[], "
         "__torch__.torch.classes.cache.RowsRun?)",
         CppFunction::makeFromBoxedFunction<&eager_begin_rows>());
  define(m,
         "_finish_rows(__torch__.torch.classes.cache.RowsRun run, Any output, str impure_because, "
         "*, int requiring_grad=0) -> ()",
         CppFunction::makeFromBoxedFunction<&eager_finish_rows>());
  define(m, "_next_rows(__torch__.torch.classes.cache.RowsRun run) -> int[]?",
         CppFunction::makeFromBoxedFunction<&eager_next_rows>());
  define(m, "_rows(__torch__.torch.classes.cache.RowsRun run) -> (bool, Any)",
         CppFunction::makeFromBoxedFunction<&eager_rows>());
  define(m, "_abandon_rows(__torch__.torch.classes.cache.RowsRun run) -> ()",
         CppFunction::makeFromBoxedFunction<&eager_abandon_rows>());
  define(m,
         "_scripted_rows(Any module, Any input, Any keys, *, str scope=\"\", str "
         "method=\"forward\") -> (bool, Any)",
         CppFunction::makeFromBoxedFunction<&scripted_rows>());
}

void define_for_the_shim(torch::Library& m) {
  m.class_<module::Run>("Run");
  m.class_<module::RowsRun>("RowsRun");
  m.class_<module::AsLoaded>("AsLoaded");
  define(m, "_enter_mode(str mode) -> int", &enter_mode);
  define(m, "_leave_mode(int previous) -> ()", &leave_mode);
  define(m, "_follow_modes(str[] modes) -> ()", &follow_modes);
  define(m, "_mode_levels() -> (str, str, str)", &mode_levels);
  define(m, "_content_key(str structure, Any[] leaves) -> str",
         CppFunction::makeFromBoxedFunction<&content_key_of_parts>());
  define(m, "_content_keys(str structure, Any[] leaves) -> str[]",
         CppFunction::makeFromBoxedFunction<&content_keys_of_parts>());
  define(m, "_watch() -> int", &eager_watch);
  define(m, "_unwatch(int watch) -> ()", &eager_unwatch);
  define(m, "_refresh(int watch) -> ()", &eager_refresh);
  define(m, "_stepped(Tensor[] tensors) -> ()", &optimizer_stepped);
  define(m, "_tensors_digest(int watch, Tensor[] tensors) -> str", &eager_tensors_digest);
  // A plain hit in memory, else nothing (module/recall.h).
  define(m,
         "_recall(str scope, str method, Tensor input, str key, Tensor[] tensors, int watch, str "
         "weights) -> Tensor?",
         CppFunction::makeFromBoxedFunction<&eager_recall>());
  define(m, "_may_recall_address() -> int", &may_recall_address);
  define(m, "_recall_scripted(int number, str scope, str method, Tensor input, str key) -> Tensor?",
         CppFunction::makeFromBoxedFunction<&scripted_recall>());
  define(m, "_note_scripted(Any module) -> int",
         CppFunction::makeFromBoxedFunction<&note_scripted>());
  define(m, "_forget_scripted(int number) -> ()", &forget_scripted);
  // Samples of datasets (module/samples.h): tagged values, one for each distinct key.
  define(
      m,
      "_lookup_samples(str scope, str[] keys, *, str class_name=\"dataset\") -> (bool, int[], Any)",
      CppFunction::makeFromBoxedFunction<&lookup_samples>());
  define(m,
         "_keep_samples(str scope, str[] keys, Any values, int[] run_us, *, "
         "str class_name=\"dataset\") -> ()",
         CppFunction::makeFromBoxedFunction<&keep_samples>());
  define(m, "_forgo_memory() -> ()", &forgo_memory);
  define(m, "_file_digest(str path) -> str", &file_digest);
  define(m, "_noted_fingerprint(str digest, str method, str changes) -> str",
         &module::noted_fingerprint);
  define(m, "_note_fingerprint(str digest, str method, str changes, str fingerprint) -> ()",
         &module::note_fingerprint);
  define(m, "_as_loaded(Any module) -> __torch__.torch.classes.cache.AsLoaded",
         CppFunction::makeFromBoxedFunction<&as_loaded>());
  define(m,
         "_fingerprint_as_loaded(__torch__.torch.classes.cache.AsLoaded as_loaded, Any module, "
         "str method) -> str",
         CppFunction::makeFromBoxedFunction<&fingerprint_as_loaded>());
  define(m, "_select_rows(Tensor tensor, int[] rows) -> Tensor", &select_rows);
}

const tensor::StoredFormat kStoredFormat;

std::string path_of_this_copy() {
  Dl_info copy{};
  return dladdr(&kStoredFormat, &copy) != 0 ? copy.dli_fname : "this one";
}

// A process can load a library that was built for another torch: most symbols are the same.
bool is_for_this_torch() {
  const auto running = tensor::running_torch();
  const auto why_not = tensor::why_not_for_torch(tensor::kTorchVersion, running);
  if (!why_not.has_value()) return true;
  log(LogLevel::kError, "other torch",
      "'" + path_of_this_copy() + "' stays unused: " + *why_not +
          "; load the libmodcache.so for that torch (`modcache path --torch " + *running +
          "` prints it), or build one");
  return false;
}

// TORCH_LIBRARY by hand: torch ends a process that registers one namespace twice, and a process
// may well come to load a second copy of this library.
bool register_once() {
  if (!is_for_this_torch()) return false;
  if (c10::Dispatcher::singleton().findSchema({"cache::lookup_or_run", ""}).has_value()) {
    log(LogLevel::kError, "second copy",
        "another copy of libmodcache.so is loaded in this process, so '" + path_of_this_copy() +
            "' stays unused; load one of them only");
    return false;
  }
  cache::Cache::set_value_format(kStoredFormat);
  // Never destroyed: models may run while the process exits.
  auto* library = new torch::Library(torch::Library::DEF, "cache", /*k=*/{}, __FILE__, __LINE__);
  define_public(*library);
  define_for_the_shim(*library);
  define_halves(*library);
  define_explain(*library);
  define_log_reader(*library);
  define_lower(*library);
  define_triton(*library);
#if MODCACHE_TORCH_HAS_EXPORT
  define_exported(*library);
#endif
  return true;
}

// What the dispatcher throws while the library is loaded ends the process either way.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const bool kIsRegistered = register_once();

}  // namespace
}  // namespace modcache::ops
