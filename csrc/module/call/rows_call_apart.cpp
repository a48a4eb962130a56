// SPDX-License-Identifier: Apache-2.0
//
// RowsCall: results whose rows differ in shape, such as those of the nodes of graphs.
#include <c10/util/Exception.h>

#include <string>
#include <utility>
#include <vector>

#include "module/call/rows_call.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"

namespace modcache::module {
namespace {

// Returns all of them as one, which rules that know nothing of rows judge.
tensor::Flat joined(const std::vector<tensor::Flat>& apart) {
  tensor::Flat all = apart[0];
  for (std::size_t i = 1; i < apart.size(); ++i) {
    all.tensors.insert(all.tensors.end(), apart[i].tensors.begin(), apart[i].tensors.end());
    if (all.why_not_storable.empty()) all.why_not_storable = apart[i].why_not_storable;
  }
  return all;
}

}  // namespace

void RowsCall::finish_run(std::vector<tensor::Flat> apart, const RunFacts& facts) {
  try {
    judge_apart(std::move(apart), facts);
  } catch (...) {
    abandon();
    throw;
  }
}

void RowsCall::judge_apart(std::vector<tensor::Flat> apart, const RunFacts& facts) {
  run_->end();
  const std::size_t count = running_.size();
  TORCH_CHECK(apart.size() == count && !parts_.padding.has_value(), "modcache: ", parts_.who(),
              " was run on ", count, " rows, and gave ", apart.size());
  for (const tensor::Flat& row : apart) {
    const std::string why = tensor::why_no_rows(row, 1);
    TORCH_CHECK(why.empty(), "modcache: a row of ", parts_.who(), " is ", why);
  }
  is_refused_ = true;
  const auto rows = static_cast<std::int64_t>(count);
  if (run_->may_keep(parts_, *session_, joined(apart), facts, rows, outcome_)) {
    is_refused_ = false;
    const auto row_of_run = [&](std::size_t k) {
      const tensor::Flat& kept = apart[place_in_run(k)];
      tensor::Flat row{kept.root, {}, {}};
      for (const at::Tensor& tensor : kept.tensors) row.tensors.push_back(tensor.select(0, 0));
      return row;
    };
    const auto cut = [&](std::size_t k) {
      const tensor::RowCutter cutter(apart[place_in_run(k)], parts_.input.device,
                                     session_->settings().dtype);
      return cutter.cut(0);
    };
    take(row_of_run, cut, facts);
  }
  for (std::size_t i = 0; i < count; ++i) {
    output_.add_computed({running_[i]}, std::move(apart[i]));
  }
}

}  // namespace modcache::module
