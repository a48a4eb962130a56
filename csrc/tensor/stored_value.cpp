// SPDX-License-Identifier: Apache-2.0
#include "tensor/stored_value.h"

#include "tensor/row_value.h"
#include "tensor/whole_value.h"

namespace modcache::tensor {

StoredValue stored_value(const cache::Value& value) {
  if (const auto* whole = dynamic_cast<const WholeValue*>(&value)) {
    return {whole->layout(), {whole->root(), whole->hand_out(std::nullopt), {}}};
  }
  const auto& row = dynamic_cast<const RowValue&>(value);
  if (row.is_on_device()) return stored_value(*row.on_host());
  const Layout& layout = row.layout();
  StoredValue stored{layout.shared_from_this(), {layout.root(), {}, {}}};
  for (std::size_t i = 0; i < layout.places().size(); ++i) {
    stored.value.tensors.push_back(tensor_at(layout, i, row.bytes()));
  }
  return stored;
}

}  // namespace modcache::tensor
