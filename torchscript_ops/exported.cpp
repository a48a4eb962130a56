// SPDX-License-Identifier: Apache-2.0
//
// The operators that an exported or compiled program has in place of lookup_or_run, and what the
// shim asks while it records one. They are functional; Python has their shapes
// (modcache/_export_operators.py). Programs that were saved carry the schemas: as elsewhere they
// may grow defaults, and nothing else.
#include "module/exported.h"

#include "tensor/torch_version.h"

#if MODCACHE_TORCH_HAS_EXPORT

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "arguments.h"
#include "operators.h"
#include "tensor/tree.h"

namespace modcache::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

// AOTInductor hands over None for a list that is empty. So input and weights are one list, and the
// sizes of the result's tensors follow upon the number of these.
at::Tensor exported_probe(const std::optional<at::Tensor>& ids, const Tensors& tensors,
                          std::int64_t inputs, at::IntArrayRef sizes, const std::string& site) {
  TORCH_CHECK_VALUE(inputs >= 0 && inputs <= static_cast<std::int64_t>(tensors.size()),
                    "modcache.lookup_or_run: of ", tensors.size(), " tensors ", inputs,
                    " cannot be the input");
  TORCH_CHECK_VALUE(!sizes.empty(), "modcache.lookup_or_run: sizes begin with a number of tensors");
  const Tensors input(tensors.begin(), tensors.begin() + inputs);
  const Tensors weights(tensors.begin() + inputs, tensors.end());
  std::optional<at::Tensor> here;
  if (ids.has_value()) here = checked_ids("modcache.lookup_or_run", *ids);
  std::optional<module::ExportedSite> known;
  try {
    known = module::ExportedSite::parse(site);
  } catch (const c10::Error& error) {
    // The program is right without the cache, too.
    return module::no_ticket(error.what_without_backtrace());
  }
  return module::probe({here, input, weights, sizes.slice(1).vec(), *known});
}

Tensors exported_fetch(const at::Tensor& ticket, const at::Tensor& /*beside*/,
                       at::IntArrayRef /*sizes*/, const std::string& /*dtypes*/) {
  return module::fetch(ticket);
}

Tensors exported_put(const at::Tensor& ticket, const Tensors& values) {
  return module::put(ticket, values);
}

void exported_form(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  tensor::InputForm form = tensor::form_of_input(torch::jit::last(*stack, 1)[0]);
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, std::move(form.signature), std::move(form.arguments),
                   std::move(form.why_not_cacheable));
}

// In hexadecimal digits, for text is what a program can carry.
void exported_structure(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static constexpr const char* kDigits = "0123456789abcdef";
  const tensor::Flat flat = tensor::flatten_tagged(torch::jit::last(*stack, 1)[0]);
  tensor::ValueHeader header;
  header.root = flat.root;
  header.tensors.resize(flat.tensors.size());
  std::string digits;
  for (const char byte : tensor::encode_value_header(header)) {
    digits += kDigits[static_cast<unsigned char>(byte) >> 4];
    digits += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, std::move(digits), flat.why_not_storable);
}

std::string exported_digest(const Tensors& tensors) { return module::weights_digest(tensors); }
std::string exported_arithmetic() { return tensor::arithmetic_state(); }

}  // namespace

void define_exported(torch::Library& m) {
  constexpr auto kKernel = c10::DispatchKey::CompositeExplicitAutograd;
  // Its answer changes from call to call, so compilers may neither fold nor merge it: this tag is
  // how torch says so.
  m.def("_probe(Tensor? ids, Tensor[] tensors, int inputs, SymInt[] sizes, str site) -> Tensor",
        {at::Tag::nondeterministic_seeded});
  m.impl("_probe", torch::dispatch(kKernel, TORCH_FN(exported_probe)));
  m.def("_fetch(Tensor ticket, Tensor beside, SymInt[] sizes, str dtypes) -> Tensor[]");
  m.impl("_fetch", torch::dispatch(kKernel, TORCH_FN(exported_fetch)));
  // What comes from the cache has no gradient.
  for (const char* op : {"_probe", "_fetch"}) {
    m.impl(op, torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  }
  m.def("_put(Tensor ticket, Tensor[] values) -> Tensor[]");
  m.impl("_put", torch::dispatch(kKernel, TORCH_FN(exported_put)));
  m.def("_form_of_input(Any input) -> (str, str, str)",
        torch::CppFunction::makeFromBoxedFunction<&exported_form>());
  m.def("_structure(Any output) -> (str, str)",
        torch::CppFunction::makeFromBoxedFunction<&exported_structure>());
  m.def("_weights_digest(Tensor[] tensors) -> str", &exported_digest);
  m.def("_arithmetic_state() -> str", &exported_arithmetic);
}

}  // namespace modcache::ops

#endif  // MODCACHE_TORCH_HAS_EXPORT
