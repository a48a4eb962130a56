// SPDX-License-Identifier: Apache-2.0
//
// What the Python package asks for its datasets, with values as tagged tuples (tensor/tree.h).
#include "module/call/samples.h"

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "registration.h"

namespace modcache::ops {
namespace {

struct Samples : torch::CustomClassHolder {};

using Keys = c10::List<std::string>;

// `class_name` is who asks, for messages.
module::SampleNames names_of(const std::string& scope, const std::string& class_name) {
  check_scope(class_name.c_str(), scope);
  return {scope, class_name};
}

module::BatchKeys distinct_keys(const Keys& keys, const std::string& class_name) {
  module::BatchKeys checked = checked_keys(class_name.c_str(), at::IValue(keys));
  TORCH_CHECK(checked.repeated().empty(), class_name, ": a key comes twice");
  return checked;
}

// -> (is_off, missing, values): the places of keys that are not there, and a value or None for each
// key.
std::tuple<bool, c10::List<std::int64_t>, at::IValue> look_up(const std::string& scope,
                                                              const std::string& class_name,
                                                              const Keys& keys) {
  const module::BatchKeys checked = distinct_keys(keys, class_name);
  module::SamplesFound found =
      module::look_up_samples(names_of(scope, class_name), checked.distinct());
  c10::List<std::int64_t> missing;
  std::vector<at::IValue> values(found.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto& value = found.values[i]) {
      values[i] = tensor::rebuild_tagged(value->root, value->tensors);
    } else {
      missing.push_back(static_cast<std::int64_t>(i));
    }
  }
  return {found.is_off, std::move(missing), c10::ivalue::Tuple::create(std::move(values))};
}

void keep(const std::string& scope, const std::string& class_name, const Keys& keys,
          const at::IValue& values, const std::vector<std::int64_t>& run_us) {
  const module::BatchKeys checked = distinct_keys(keys, class_name);
  std::vector<tensor::Flat> flat;
  for (const at::IValue& value : values.toTupleRef().elements()) {
    flat.push_back(tensor::flatten_tagged(value));
  }
  module::keep_samples(names_of(scope, class_name), checked.distinct(), flat, run_us);
}

}  // namespace

void register_samples(torch::Library& m) {
  m.class_<Samples>("Samples").def_static("look_up", &look_up).def_static("keep", &keep);
}

}  // namespace modcache::ops
