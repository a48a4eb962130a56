// SPDX-License-Identifier: Apache-2.0
//
// Rows as a tier finds them, to be put together by a RowsOutput.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensor/row_value.h"
#include "tensor/rows.h"

namespace modcache::testing {

// In memory, or to be read.
class StoredRows {
 public:
  enum class Where { kInMemory, kToBeRead, kEncoded };

  void add(std::size_t row, std::shared_ptr<const tensor::RowValue> value, Where where) {
    tensor::StoredRow stored;
    stored.row = row;
    if (where == Where::kInMemory) {
      stored.layout = &value->layout();
      stored.bytes = value->bytes();
      values_.push_back(std::move(value));
    } else {
      cache::Written written =
          value->write(where == Where::kEncoded ? codec::Codec::kZstd : codec::Codec::kNone);
      layouts_.push_back(tensor::Layout::decode(written.header).value());
      stored.layout = layouts_.back().get();
      stored.index = payloads_.size();
      stored.stored_size_bytes = written.payload.size_bytes;
      payloads_.emplace_back(written.payload.view());
    }
    rows_.push_back(stored);
  }
  void fail(std::size_t index) { failing_ = index; }

  std::vector<tensor::RowsOutput::Failure> add_to(tensor::RowsOutput& output) const {
    return output.add_stored(rows_, [this](std::size_t index, void* target) {
      if (index == failing_) return Status::corruption("checksum");
      std::memcpy(target, payloads_[index].data(), payloads_[index].size());
      return Status::ok();
    });
  }

 private:
  std::vector<tensor::StoredRow> rows_;
  std::vector<std::shared_ptr<const tensor::RowValue>> values_;
  std::vector<tensor::LayoutPtr> layouts_;
  std::vector<std::string> payloads_;
  std::size_t failing_ = ~std::size_t{0};
};

}  // namespace modcache::testing
