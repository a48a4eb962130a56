// SPDX-License-Identifier: Apache-2.0
#include "tensor/stored_format.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "tensor/layout.h"
#include "tensor/row_value.h"
#include "tensor/torch_version.h"
#include "tensor/whole_value.h"

namespace modcache::tensor {
namespace {

using ValuePtr = std::shared_ptr<const cache::Value>;

Result<LayoutPtr> layout_of(const cache::FoundRows::Header& header) {
  if (!header.is_sound) return Status::corruption("an entry's header is too short");
  return Layout::decode(header.value_header);
}

Result<ValuePtr> read_one(cache::Form form, const LayoutPtr& layout, const cache::FoundRows& found,
                          std::size_t row) {
  const std::size_t size_bytes = found.payload_size_bytes(row);
  MODCACHE_RETURN_IF_ERROR(check_payload_size(*layout, size_bytes));
  const auto read = [&](void* target) { return found.read(row, target); };
  if (form == cache::Form::kWhole) return WholeValue::read(layout, size_bytes, read);
  try {
    return RowValue::read(layout, size_bytes, read);
  } catch (const std::bad_alloc&) {
    return Status::io_error("no memory for a stored row");
  }
}

ValuePtr row_moved(const std::shared_ptr<const RowValue>& row, const cache::Place& place) {
  const bool goes_to_device = place.kind == cache::Place::Kind::kDevice;
  if (!goes_to_device) return row->is_on_device() ? row->on_host() : row;
  if (row->is_on_device()) {
    if (row->on_device().device() == at::Device(place.device)) return row;
    return row->on_host()->on(place.device);
  }
  return row->on(place.device);
}

}  // namespace

std::vector<Result<ValuePtr>> StoredFormat::read_all(cache::Form form,
                                                     const cache::FoundRows& found,
                                                     const std::vector<std::size_t>& rows) const {
  std::vector<Result<ValuePtr>> values;
  values.reserve(rows.size());
  // Decode each header once for all rows that share it.
  std::vector<Result<LayoutPtr>> layouts;
  for (const auto& header : found.headers()) {
    layouts.push_back(layout_of(header));
  }
  for (const std::size_t row : rows) {
    const std::size_t k = found.header_index(row);
    if (layouts[k].is_ok()) {
      values.push_back(read_one(form, layouts[k].value(), found, row));
    } else {
      values.emplace_back(layouts[k].status());
    }
  }
  return values;
}

Result<ValuePtr> StoredFormat::read_once(const cache::FoundRows& found, std::size_t row) const {
  MODCACHE_ASSIGN_OR_RETURN(auto layout, layout_of(found.header(row)));
  const std::size_t size_bytes = found.payload_size_bytes(row);
  MODCACHE_RETURN_IF_ERROR(check_payload_size(*layout, size_bytes));
  return WholeValue::read_once(
      std::move(layout), size_bytes, [&](void* target) { return found.read(row, target); },
      [&] { return found.map_copy(row); });
}

ValuePtr StoredFormat::moved(ValuePtr value, const cache::Place& place) const {
  try {
    ValuePtr there;
    if (const auto row = std::dynamic_pointer_cast<const RowValue>(value)) {
      there = row_moved(row, place);
    } else {
      const auto whole = std::dynamic_pointer_cast<const WholeValue>(value);
      const bool is_there =
          whole->place().kind == place.kind && whole->place().device == place.device;
      if (!is_there) there = whole->moved(place);
    }
    if (there != nullptr) return there;
  } catch (const std::exception& error) {
    log_once(LogLevel::kWarning, "moving a value",
             std::string("a stored value stays where it is: ") + text_of(error));
  }
  return value;
}

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
