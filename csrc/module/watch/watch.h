// SPDX-License-Identifier: Apache-2.0
//
// Watch: one list of tensors that is asked about from call to call. Python has one for each eager
// module, and a recorded program one for its weights. Thread-safe; usable in a forked child.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "module/watch/tensor_watch.h"
#include "module/watch/watched_contents.h"

namespace modcache::module {

class Watch : public torch::CustomClassHolder {
 public:
  // 32 hexadecimal digits over the contents of `tensors` in their order; hashes what may have
  // changed since the last call. Throws for a tensor that cannot be hashed, saying why.
  std::string digest(const std::vector<at::Tensor>& tensors);

  // The same for each tensor, 32 hexadecimal digits each.
  std::vector<std::string> digests(const std::vector<at::Tensor>& tensors);

  // Whether `tensors` are what was seen last, and had this digest. Hashes nothing.
  bool still_has(const std::vector<at::Tensor>& tensors, const std::string& digest) const;

  // The contents that the last digest was made of; null before the first.
  std::shared_ptr<const WatchedContents> contents() const;

  // The next digest hashes everything anew.
  void refresh();

 private:
  struct Seen {
    std::shared_ptr<const TensorWatch> tensors;
    std::string digest;
    std::uint64_t refreshes = 0;            // asked for so far
    std::uint64_t refreshes_when_made = 0;  // of these, before `tensors` was made

    bool is_suspect() const { return refreshes != refreshes_when_made; }
  };

  Seen seen() const;
  Seen up_to_date(const std::vector<at::Tensor>& tensors);

  Seen seen_;  // guarded by a mutex of all objects of this class
};

using WatchPtr = c10::intrusive_ptr<Watch>;

}  // namespace modcache::module
