// SPDX-License-Identifier: Apache-2.0
//
// What the Python package asks for its datasets: private operators, with values as tagged tuples
// (tensor/tree.h).
#include "module/samples.h"

#include <c10/util/Exception.h>

#include <utility>

#include "arguments.h"
#include "operators.h"

namespace modcache::ops {
namespace {

using torch::jit::Stack;

module::SampleNames names_of(const at::IValue& scope, const at::IValue& class_name) {
  check_scope(class_name.toStringRef().c_str(), scope.toStringRef());
  return {scope.toStringRef(), class_name.toStringRef()};
}

// `class_name` is who asks, for messages.
module::BatchKeys distinct_keys(const at::IValue& keys, const at::IValue& class_name) {
  const char* const asks = class_name.toStringRef().c_str();
  module::BatchKeys checked = checked_keys(asks, keys);
  TORCH_CHECK(checked.repeated().empty(), asks, ": a key comes twice");
  return checked;
}

}  // namespace

// (scope, keys, class_name) -> (is_off, missing, values): the places of keys that are not there,
// and a value or None for each key.
void lookup_samples(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 3);
  const module::BatchKeys keys = distinct_keys(arguments[1], arguments[2]);
  module::SamplesFound found =
      module::look_up_samples(names_of(arguments[0], arguments[2]), keys.distinct());
  c10::List<std::int64_t> missing;
  std::vector<at::IValue> values(found.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto& value = found.values[i]) {
      values[i] = tensor::rebuild_tagged(value->root, value->tensors);
    } else {
      missing.push_back(static_cast<std::int64_t>(i));
    }
  }
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, found.is_off);
  torch::jit::push(*stack, std::move(missing));
  torch::jit::push(*stack, c10::ivalue::Tuple::create(std::move(values)));
}

// (scope, keys, values, run_us, class_name) -> ()
void keep_samples(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 5);
  const module::BatchKeys keys = distinct_keys(arguments[1], arguments[4]);
  std::vector<tensor::Flat> values;
  for (const at::IValue& value : arguments[2].toTupleRef().elements()) {
    values.push_back(tensor::flatten_tagged(value));
  }
  module::keep_samples(names_of(arguments[0], arguments[4]), keys.distinct(), values,
                       arguments[3].toIntVector());
  torch::jit::drop(*stack, 5);
}

void forgo_memory() { cache::Cache::instance().forgo_memory(); }

}  // namespace modcache::ops
