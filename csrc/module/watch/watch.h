// SPDX-License-Identifier: Apache-2.0
//
// Watch: the digest of one list of tensors, from call to call. Python has one for each eager
// module, and a recorded program one for its weights. Thread-safe; usable in a forked child.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "module/watch/tensor_watch.h"

namespace modcache::module {

class Watch : public torch::CustomClassHolder {
 public:
  // Returns 32 hexadecimal digits over the contents of `tensors` in their order. Hashes what may
  // have changed since the last call. Throws for a tensor that cannot be hashed, saying why.
  std::string digest(const std::vector<at::Tensor>& tensors);

  // Returns the same for each tensor, 32 hexadecimal digits each.
  std::vector<std::string> digests(const std::vector<at::Tensor>& tensors);

  // Returns whether `tensors` are unchanged since the last digest, and that was `digest`. Hashes
  // nothing.
  bool still_has(const std::vector<at::Tensor>& tensors, const std::string& digest) const;

  // Returns the watch that the last digest came from; null before the first.
  std::shared_ptr<const TensorWatch> tensors() const { return seen().tensors; }

  // Makes the next digest hash everything again.
  void refresh();

 private:
  struct Seen {
    std::shared_ptr<const TensorWatch> tensors;
    std::string digest;
    std::uint64_t refreshes = 0;            // calls of refresh() so far
    std::uint64_t refreshes_when_made = 0;  // the number of them before `tensors` was made

    bool is_suspect() const { return refreshes != refreshes_when_made; }
  };

  Seen seen() const;
  Seen up_to_date(const std::vector<at::Tensor>& tensors);

  Seen seen_;  // guarded by a mutex of all objects of this class
};

using WatchPtr = c10::intrusive_ptr<Watch>;

}  // namespace modcache::module
