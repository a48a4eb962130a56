// SPDX-License-Identifier: Apache-2.0
//
// The operators that an exported or compiled program has in place of lookup_or_run, and what the
// shim asks while it records one. They are functional; Python has their shapes
// (modcache/_export/operators.py). Programs that were saved carry the schemas: as elsewhere they
// may grow defaults, and nothing else.
#include "module/exported/exported.h"

#include <torch/custom_class.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/hash.h"
#include "module/call/row_proof.h"
#include "registration.h"
#include "tensor/input.h"
#include "tensor/torch_version.h"
#include "tensor/tree.h"

namespace modcache::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

// AOTInductor hands over None for a list that is empty. So input and weights are one list, with the
// mask or the lengths between them where the recorded call has such, and the sizes of the result's
// tensors follow upon the number of these.
at::Tensor exported_probe(const std::optional<at::Tensor>& ids, const Tensors& tensors,
                          std::int64_t inputs, at::IntArrayRef sizes, const std::string& recorded) {
  TORCH_CHECK_VALUE(inputs >= 0 && inputs <= static_cast<std::int64_t>(tensors.size()),
                    "modcache.lookup_or_run: of ", tensors.size(), " tensors ", inputs,
                    " cannot be the input");
  TORCH_CHECK_VALUE(!sizes.empty(), "modcache.lookup_or_run: sizes begin with a number of tensors");
  std::optional<at::Tensor> here;
  if (ids.has_value()) here = checked_ids("modcache.lookup_or_run", *ids);
  std::optional<module::RecordedCall> known;
  try {
    known = module::RecordedCall::parse(recorded);
  } catch (const c10::Error& error) {
    // The program is right without the cache, too.
    return module::no_handle(error.what_without_backtrace());
  }
  const auto end_of_input = tensors.begin() + inputs;
  const auto masks = known->padding.has_value() ? 1 : 0;
  TORCH_CHECK_VALUE(
      tensors.end() - end_of_input >= masks && (masks == 0 || here.has_value()),
      "modcache.lookup_or_run: a mask or lengths, or the ids of their rows, are missing");
  const Tensors input(tensors.begin(), end_of_input);
  const Tensors weights(end_of_input + masks, tensors.end());
  const at::Tensor mask = masks == 0 ? at::Tensor() : *end_of_input;
  return module::probe({here, input, weights, sizes.slice(1).vec(), *known, mask});
}

Tensors exported_fetch(const at::Tensor& handle, const at::Tensor& /*beside*/,
                       at::IntArrayRef /*sizes*/, const std::string& /*dtypes*/) {
  return module::fetch(handle);
}

Tensors exported_put(const at::Tensor& handle, const Tensors& values) {
  return module::put(handle, values);
}

// The questions that the Python package asks while it records a call.
struct Recording : torch::CustomClassHolder {};

// The input's signature, its arguments, why it is not cacheable; and the state of torch's
// arithmetic.
std::tuple<std::string, std::string, std::string, std::string> recorded_form(
    const at::IValue& input) {
  tensor::InputForm form = tensor::form_of_input(input);
  return {std::move(form.signature), std::move(form.arguments), std::move(form.why_not_cacheable),
          tensor::arithmetic_state()};
}

// The padded dimensions of each tensor of a result, as bits; the signature of the input that they
// were seen with; and why they may not be recorded.
std::tuple<std::vector<std::int64_t>, std::string, std::string> recorded_padding(
    const std::string& scope, const std::string& method, const std::string& arguments,
    const std::string& arithmetic) {
  module::SeenPadding seen = module::seen_padding(scope, method, arguments, arithmetic);
  return {std::vector<std::int64_t>(seen.dims.begin(), seen.dims.end()), std::move(seen.signature),
          std::move(seen.why_not)};
}

// Whether its rows are proven, and why they are not cached.
std::tuple<bool, std::string> recorded_rows(const std::string& scope, const std::string& method,
                                            const std::string& arguments,
                                            const std::string& arithmetic) {
  module::SeenRows seen = module::seen_rows(scope, method, arguments, arithmetic);
  return {seen.are_proven, std::move(seen.why_not)};
}

// Judges a run of two made rows and one of the second alone: whether the result consists of rows,
// and why not.
std::tuple<bool, std::string> judge_recorded_rows(const std::string& who, const at::IValue& both,
                                                  const at::IValue& alone,
                                                  const std::string& arithmetic) {
  module::CallParts parts;
  parts.arithmetic = arithmetic;
  const tensor::Flat result = tensor::flatten_tagged(both);
  const module::RowProof proof = module::judge_row_check(
      {who, result, 2, module::row_tolerance(parts, result)}, tensor::flatten_tagged(alone),
      {module::RowCheck::Kind::kAlone, 1, 1});
  return {proof.is_proven() && proof.constants.empty(), proof.why_not};
}

// The tree of a result in hexadecimal digits, for text is what a program can carry; and why it
// cannot be stored.
std::tuple<std::string, std::string> recorded_structure(const at::IValue& output) {
  const tensor::Flat flat = tensor::flatten_tagged(output);
  tensor::ValueHeader header;
  header.root = flat.root;
  header.tensors.resize(flat.tensors.size());
  return {hex_of(tensor::encode_value_header(header)), flat.why_not_storable};
}

}  // namespace

void register_exported(torch::Library& m) {
  constexpr auto kKernel = c10::DispatchKey::CompositeExplicitAutograd;
  // Its answer changes from call to call, so compilers may neither fold nor merge it: this tag is
  // how torch says so.
  m.def("_probe(Tensor? ids, Tensor[] tensors, int inputs, SymInt[] sizes, str site) -> Tensor",
        {at::Tag::nondeterministic_seeded});
  m.impl("_probe", torch::dispatch(kKernel, TORCH_FN(exported_probe)));
  m.def("_fetch(Tensor ticket, Tensor beside, SymInt[] sizes, str dtypes) -> Tensor[]");
  m.impl("_fetch", torch::dispatch(kKernel, TORCH_FN(exported_fetch)));
  // A value from the cache has no gradient.
  for (const char* op : {"_probe", "_fetch"}) {
    m.impl(op, torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  }
  m.def("_put(Tensor ticket, Tensor[] values) -> Tensor[]");
  m.impl("_put", torch::dispatch(kKernel, TORCH_FN(exported_put)));
  m.class_<Recording>("Recording")
      .def_static("form_of_input", &recorded_form)
      .def_static("seen_padding", &recorded_padding)
      .def_static("seen_rows", &recorded_rows)
      .def_static("judge_rows", &judge_recorded_rows)
      .def_static("structure", &recorded_structure)
      .def_static("weights_digest", &module::weights_digest);
}

}  // namespace modcache::ops
