// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "module/exported/exported.h"

namespace modcache::module {
namespace {

constexpr const char* kProgram = "modcache: an exported program";
constexpr const char* kTitle = "modcache site 3";
constexpr const char* kTitleOfPadded = "modcache site 4";  // with the fields of a RecordedPadding

// Reads fields such as "5:hello", one after another.
class Fields {
 public:
  explicit Fields(std::string_view text) : rest_(text) {}

  std::string next() {
    std::size_t size = 0;
    const char* const end = rest_.data() + rest_.size();
    const auto number = std::from_chars(rest_.data(), end, size);
    const auto digits = static_cast<std::size_t>(number.ptr - rest_.data());
    const bool is_sound = number.ec == std::errc() && number.ptr != end && *number.ptr == ':' &&
                          size <= rest_.size() - digits - 1;
    TORCH_CHECK_VALUE(is_sound, kProgram, " has a call of the cache that this version cannot read");
    const std::string field(rest_.substr(digits + 1, size));
    rest_.remove_prefix(digits + 1 + size);
    return field;
  }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

std::string from_hex(const std::string& digits) {
  std::string bytes(digits.size() / 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned char byte = 0;
    std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, byte, 16);
    bytes[i] = static_cast<char>(byte);
  }
  return bytes;
}

template <typename Number>
Number read_number(std::string_view text) {
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  TORCH_CHECK_VALUE(read.ec == std::errc() && read.ptr == text.data() + text.size(), kProgram,
                    " has '", text, "' where a number is");
  return number;
}

RecordedPadding read_padding(Fields& fields) {
  RecordedPadding padding;
  const std::string kind = fields.next();
  TORCH_CHECK_VALUE(kind == "mask" || kind == "lengths", kProgram,
                    " has padding of a kind that this version does not know: '", kind, "'");
  padding.has_lengths = kind == "lengths";
  const auto bits = read_number<std::uint64_t>(fields.next());
  std::memcpy(&padding.value, &bits, sizeof bits);
  const std::string dims = fields.next();
  for (std::string_view rest = dims; !rest.empty();) {
    const std::size_t end = rest.find(',');
    TORCH_CHECK_VALUE(end != std::string_view::npos, kProgram, " has no ',' after '", rest, "'");
    padding.dims.push_back(read_number<tensor::DimSet>(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  padding.digest = fields.next();
  padding.signature = fields.next();
  return padding;
}

tensor::Node read_root(const std::string& field) {
  if (field.empty()) return {};
  auto header = tensor::decode_value_header(from_hex(field));
  TORCH_CHECK_VALUE(header.is_ok(), kProgram,
                    " has a structured result that cannot be read: ", header.status().message());
  return std::move(header).value().root;
}

}  // namespace

RecordedCall RecordedCall::parse(const std::string& text) {
  Fields fields(text);
  RecordedCall recorded;
  const std::string title = fields.next();
  TORCH_CHECK_VALUE(title == kTitle || title == kTitleOfPadded, kProgram,
                    " was recorded by another version of modcache");
  const std::string kind = fields.next();
  TORCH_CHECK_VALUE(kind == "n" || kind == "b" || kind == "e", kProgram,
                    " has a scope of a kind that this version does not know: '", kind, "'");
  recorded.scope_kind = static_cast<ScopeKind>(kind[0]);
  recorded.scope = fields.next();
  recorded.digest = fields.next();
  recorded.method = fields.next();
  recorded.class_name = fields.next();
  recorded.key = fields.next();
  recorded.input.signature = fields.next();
  recorded.input.arguments = fields.next();
  recorded.is_compiled = fields.next() == "compiled";
  recorded.arithmetic = fields.next();
  recorded.dtypes = fields.next();
  recorded.root = read_root(fields.next());
  recorded.are_rows_proven = fields.next() == "rows";
  if (title == kTitleOfPadded) recorded.padding = read_padding(fields);
  TORCH_CHECK_VALUE(fields.is_at_end(), kProgram, " was recorded by a newer version of modcache");
  return recorded;
}

}  // namespace modcache::module
