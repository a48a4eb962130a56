// SPDX-License-Identifier: Apache-2.0
#include "explain.h"

#include <torch/custom_class.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "define.h"
#include "module/eager.h"
#include "module/manifest.h"
#include "module/outlook.h"
#include "operators.h"
#include "tensor/rows.h"

namespace modcache::ops {
namespace {

using torch::CppFunction;
using torch::jit::Stack;

// -> (is the scope to be given a manifest, for what rule the result was not kept, the warning)
void outcome(const c10::OperatorHandle&, Stack* stack) {
  const at::IValue run = torch::jit::pop(*stack);
  const auto& rows_type = c10::getCustomClassType<c10::intrusive_ptr<module::RowsRun>>();
  const bool is_rows = *run.type() == *rows_type;
  const auto report = [&](const auto& call) {
    const module::Outcome& found = call.outcome();
    const bool lacks = found.has_stored && module::lacks_manifest(call.parts().scope);
    torch::jit::push(*stack, lacks);
    torch::jit::push(*stack, found.refused_for);
    torch::jit::push(*stack, found.refusal);
  };
  if (is_rows) {
    report(run.toCustomClass<module::RowsRun>()->call);
  } else {
    report(run.toCustomClass<module::Run>()->call);
  }
}

c10::List<std::string> scopes_of_class(const std::string& class_name, const std::string& method) {
  return c10::List<std::string>(module::scopes_of_class(class_name, method));
}

void describe(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  std::string text = module::describe_scripted(arguments[0].toObject(), arguments[1].toStringRef(),
                                               arguments[2].toStringRef(), arguments[3].toBool());
  torch::jit::drop(*stack, 4);
  torch::jit::push(*stack, std::move(text));
}

void push_sightings(Stack* stack, const module::Outlook& outlook) {
  c10::List<std::int64_t> places;
  c10::List<std::string> signatures;
  c10::List<std::int64_t> facts;  // bytes, run_us and stored_at_us of each
  for (const auto& entry : outlook.entries) {
    const cache::Sighting seen = entry.value_or(cache::Sighting{});
    const int tier = seen.is_in_memory ? 1 : 2;
    places.push_back(!entry.has_value() ? 0 : seen.matches ? tier : -tier);
    signatures.push_back(seen.signature);
    for (const std::int64_t fact : {seen.size_bytes, seen.run_us, seen.stored_at_us}) {
      facts.push_back(fact);
    }
  }
  torch::jit::push(*stack, outlook.why_not_cacheable);
  torch::jit::push(*stack, outlook.signature);
  torch::jit::push(*stack, outlook.grad_is_unknown);
  torch::jit::push(*stack, std::move(places));
  torch::jit::push(*stack, std::move(signatures));
  torch::jit::push(*stack, std::move(facts));
}

// One key, or one per row.
void look_ahead(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 5);
  module::CallParts parts;
  parts.scope = arguments[0].toStringRef();
  parts.method = arguments[1].toStringRef();
  const at::IValue& input = arguments[2];
  const at::IValue& key = arguments[3];
  const auto pattern = static_cast<std::uint64_t>(arguments[4].toInt());
  module::Outlook outlook;
  if (key.isString()) {
    check_key("modcache.explain", key.toStringRef());
    outlook = module::look_ahead(std::move(parts), {std::string_view(key.toStringRef())}, {}, input,
                                 pattern);
  } else {
    const module::BatchKeys keys = checked_keys("modcache.explain", key);
    tensor::check_rows(input, static_cast<std::int64_t>(keys.rows()));
    std::vector<std::size_t> rows;
    rows.reserve(keys.distinct().size());
    for (std::size_t i = 0; i < keys.distinct().size(); ++i) {
      rows.push_back(static_cast<std::size_t>(keys.first_row(i)));
    }
    outlook = module::look_ahead(std::move(parts), keys.distinct(), rows, input, pattern);
  }
  torch::jit::drop(*stack, 5);
  push_sightings(stack, outlook);
}

void scripted_outlook(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  const auto per = arguments[3].toBool() ? tensor::Per::kRow : tensor::Per::kCall;
  const module::ScriptedOutlook found =
      module::scripted_outlook(arguments[0], arguments[1].toStringRef(), arguments[2], per);
  torch::jit::drop(*stack, 4);
  torch::jit::push(*stack, static_cast<std::int64_t>(found.params_grad_pattern));
  torch::jit::push(*stack, found.requiring_grad);
  torch::jit::push(*stack, found.gave_grad);
  torch::jit::push(*stack, found.refused_for);
  torch::jit::push(*stack, found.refusal);
  torch::jit::push(*stack, found.refused_scope);
}

}  // namespace

void define_explain(torch::Library& m) {
  define(m, "_outcome(Any run) -> (bool, str, str)",
         CppFunction::makeFromBoxedFunction<&outcome>());
  define(m, "_tensor_digests(int watch, Tensor[] tensors) -> str[]", &module::tensor_digests);
  define(m, "_put_manifest(str scope, str class_name, str method, str text) -> ()",
         &module::put_manifest);
  define(m, "_manifest(str scope) -> str", &module::manifest_of);
  define(m, "_scopes_of_class(str class_name, str method) -> str[]", &scopes_of_class);
  define(m, "_describe(Any module, str scope, str method, bool with_weights) -> str",
         CppFunction::makeFromBoxedFunction<&describe>());
  define(m,
         "_look_ahead(str scope, str method, Any input, Any key, int params_grad_pattern) -> "
         "(str, str, bool, int[], str[], int[])",
         CppFunction::makeFromBoxedFunction<&look_ahead>());
  define(m,
         "_scripted_outlook(Any module, str method, Any input, bool is_rows) -> "
         "(int, int, bool, str, str, str)",
         CppFunction::makeFromBoxedFunction<&scripted_outlook>());
}

}  // namespace modcache::ops
