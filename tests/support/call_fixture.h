// SPDX-License-Identifier: Apache-2.0
//
// Calls of "Encoder.forward", and a driver that makes their runs.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "module/call/call.h"
#include "module/call/run.h"
#include "support/module_fixture.h"
#include "tensor/tree.h"

namespace modcache::testing {

// A call, with the parts and keys that it borrows.
class OwnCall {
 public:
  OwnCall(module::CallParts parts, module::CallKeys keys)
      : parts_(std::move(parts)), keys_(std::move(keys)), call_(parts_, keys_) {}

  module::Begun begin() { return call_.begin(); }
  std::unique_ptr<module::Run> reject(const std::string& why_apart = "") {
    return call_.reject(why_apart);
  }

 private:
  module::CallParts parts_;
  module::CallKeys keys_;
  module::Call call_;
};

class CallFixture : public ModuleTest {
 protected:
  using Names = std::vector<std::string_view>;
  using Numbers = std::vector<float>;

  static OwnCall call_of(std::string_view key, const at::IValue& input) {
    return {parts_of(input), module::CallKeys::whole(key)};
  }
  // The rows of its results are trusted; row_proof_test.cpp has the others.
  static OwnCall call_of(const Names& keys, const at::IValue& input) {
    module::CallParts parts = parts_of(input, tensor::Per::kRow);
    parts.are_rows_trusted = true;
    return {std::move(parts), module::CallKeys(keys)};
  }

  // The run of a call that does not find everything.
  template <typename Key>
  static std::unique_ptr<module::Run> run_of(const Key& keys, const at::IValue& input) {
    OwnCall call = call_of(keys, input);
    module::Begun begun = call.begin();
    EXPECT_FALSE(begun.value.has_value());
    EXPECT_NE(begun.run, nullptr);
    return std::move(begun.run);
  }
  // The value of a call that finds everything, if it is one tensor.
  template <typename Key>
  static std::optional<at::Tensor> hit_of(const Key& keys, const at::IValue& input) {
    OwnCall call = call_of(keys, input);
    module::Begun begun = call.begin();
    if (!begun.value.has_value() || !is_tensor(*begun.value)) return std::nullopt;
    return tensor_of(*begun.value);
  }

  static void finish(module::Run& run, tensor::Flat result, const module::RunFacts& facts = {}) {
    run.start();
    run.finish(std::move(result), facts);
  }
  static void finish(module::Run& run, const at::Tensor& result,
                     const module::RunFacts& facts = {}) {
    finish(run, tensor::flatten(result), facts);
  }
  template <typename Key, typename Result>
  static void store(const Key& keys, const at::IValue& input, const Result& result) {
    const auto run = run_of(keys, input);
    finish(*run, result);
    EXPECT_EQ(run->step(), nullptr);
  }

  static bool is_tensor(const module::CallValue& value) {
    return std::holds_alternative<at::Tensor>(value);
  }
  static at::Tensor tensor_of(const module::CallValue& value) {
    return std::get<at::Tensor>(value);
  }

  // What a call of the module x * 10 gives; `asked_` are then the rows of its runs.
  Numbers numbers(const Numbers& numbers_in, const Names& keys) {
    const at::Tensor input = at::tensor(numbers_in);
    OwnCall call = call_of(keys, input);
    module::Begun begun = call.begin();
    asked_.clear();
    at::Tensor last;
    while (begun.run != nullptr) {
      const module::Step* const step = begun.run->step();
      if (step == nullptr) {
        begun.value = begun.run->value();
        break;
      }
      asked_.push_back(step->rows);
      last = step->input_of(input).toTensor() * 10;
      finish(*begun.run, last);
    }
    const at::Tensor out = (begun.value.has_value() ? tensor_of(*begun.value) : last).contiguous();
    return {out.data_ptr<float>(), out.data_ptr<float>() + out.numel()};
  }

  std::vector<std::vector<std::int64_t>> asked_;
};

}  // namespace modcache::testing
