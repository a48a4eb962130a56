// SPDX-License-Identifier: Apache-2.0
//
// A call of a module in a TorchScript file, which is loaded when it has to run: from then on it is
// a call of a TorchScript module (scripted.h). Without a scope it shares the entries of the same
// module loaded by anybody else: the directory has a note of its fingerprint from the first load.
//
// Throws when the file is missing or is not a TorchScript file; with a scope, only when it has to
// run.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

#include "module/call/call_keys.h"
#include "module/call/declared.h"
#include "tensor/row_padding.h"

namespace modcache::module {

struct FileCall {
  const std::string& path;   // a relative one starts at the current working directory
  const at::IValue& input;   // the module is loaded onto the device of its first tensor
  const std::string& scope;  // empty: the fingerprint
  const std::string& method;
  std::optional<tensor::RowPadding> padding = {};  // of rows with lengths of their own
};

// Returns a Tensor.
at::IValue lookup_or_run_file(const FileCall& call, CallKeys keys);

}  // namespace modcache::module
