// SPDX-License-Identifier: Apache-2.0
//
// A cached module inside a program that torch.export or torch.compile recorded. Such a program has
// tensors and no modules, so the call is three functions of tensors, between which the program
// branches:
//
//     ticket = probe(call)              what is stored is looked up, and held by the ticket
//     if ticket >= 0: fetch(ticket)     and handed out,
//     else:           put(ticket, run)  or completed by what the module gave for the whole input
//
// What else there is to know of the call was written down when it was recorded: an ExportedSite. A
// ticket is a number in a tensor whose storage keeps what was found; copies of the number serve as
// long as that storage lives. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/input.h"
#include "tensor/value_header.h"

namespace modcache::module {

// How a scope follows the weights.
enum class ScopeKind : char {
  kNamed = 'n',  // it does not: the caller answers for it
  kBaked = 'b',  // it is that of the weights of `digest`; others make another scope of it
  kEager = 'e',  // `scope` is the digest of an eager module's structure, as Python hashes it
};

struct ExportedSite {
  ScopeKind scope_kind = ScopeKind::kNamed;
  std::string scope;
  std::string digest;  // of the weights when the call was recorded
  std::string method;
  std::string class_name;
  std::string key;  // empty: one per row
  tensor::InputForm input;
  bool is_compiled = false;  // by torch.compile, which leaves nothing of autocast to the run
  std::string arithmetic;    // tensor::arithmetic_state() then
  std::string dtypes;        // of the result's tensors: "float32:2,": a name, its dimensions
  tensor::Node root;         // what the result is; a lone tensor as a rule

  // The text in which a program carries its site: fields with their lengths before them. Throws
  // for any other text.
  static ExportedSite parse(const std::string& text);
};

struct ExportedCall {
  const std::optional<at::Tensor>& ids;  // none: the site's key
  const std::vector<at::Tensor>& input;
  const std::vector<at::Tensor>& weights;  // of the module; none where the scope is named
  const std::vector<std::int64_t>& sizes;  // of the result's tensors, one after the other
  const ExportedSite& site;
};

// Looks everything up. The ticket is negative where the module has to run. Throws for callers'
// mistakes: ids that do not name the rows.
at::Tensor probe(const ExportedCall& call);

// That of a call which is not cached since the cache fails: counted in `errors`, and logged once.
at::Tensor no_ticket(const std::string& why);

// The result. Throws for a ticket that holds none, or no longer.
std::vector<at::Tensor> fetch(const at::Tensor& ticket);

// Keeps what was missing, and gives the result: copies of `values`, in which rows that were found
// are the stored ones. Throws under strict=true where a rule forbids keeping.
std::vector<at::Tensor> put(const at::Tensor& ticket, const std::vector<at::Tensor>& values);

// The digest over `tensors` that ExportedSite::digest is compared with.
std::string weights_digest(const std::vector<at::Tensor>& tensors);

}  // namespace modcache::module
