// SPDX-License-Identifier: Apache-2.0
//
// Batches of numbers through a RowsCall, in which the module is x * 10.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "module/call/rows_call.h"
#include "support/module_fixture.h"
#include "tensor/rows.h"
#include "tensor/tree.h"

namespace modcache::testing {

class RowsCallTest : public ModuleTest {
 protected:
  using Keys = std::vector<std::string_view>;
  using Numbers = std::vector<float>;

  static std::unique_ptr<module::RowsCall> call_of(const at::Tensor& input, const Keys& keys) {
    auto call = std::make_unique<module::RowsCall>(parts_of(input, tensor::Per::kRow),
                                                   module::BatchKeys(keys));
    call->trust_rows();  // row_proof_test.cpp has the others
    return call;
  }
  static std::unique_ptr<module::RowsCall> call_of(const Numbers& input, const Keys& keys) {
    return call_of(at::tensor(input), keys);
  }
  static void run(module::RowsCall& call, const at::Tensor& result) {
    call.begin_run();
    call.finish_run(tensor::flatten(result), module::RunFacts{});
  }

  // What a call of the module gives; `asked_` are then the rows of its runs.
  Numbers numbers(const Numbers& numbers_in, const Keys& keys) {
    const at::Tensor input = at::tensor(numbers_in);
    const auto call = call_of(input, keys);
    asked_.clear();
    at::Tensor last;
    while (const auto rows = call->next_rows()) {
      asked_.push_back(*rows);
      last = tensor::select_rows(input, *rows) * 10;
      run(*call, last);
    }
    const auto together = call->together();
    const at::Tensor out = together->tensors[0].contiguous();
    return {out.data_ptr<float>(), out.data_ptr<float>() + out.numel()};
  }

  std::vector<std::vector<std::int64_t>> asked_;
};

}  // namespace modcache::testing
