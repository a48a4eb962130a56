// SPDX-License-Identifier: Apache-2.0
#include "tensor/value_header.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"

namespace modcache::tensor {

std::uint64_t bits_of(double number) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

namespace {

constexpr std::uint8_t kBesideInput = 1;
constexpr std::uint8_t kHasDimOrder = 2;
constexpr std::uint8_t kHasPaddedDims = 4;
constexpr std::uint8_t kConstant = 8;
constexpr std::uint8_t kUnproven = 16;
constexpr std::uint8_t kUnprovenAlone = 32;
constexpr std::uint8_t kKnownFlags =
    kBesideInput | kHasDimOrder | kHasPaddedDims | kConstant | kUnproven | kUnprovenAlone;

class Writer {
 public:
  void add_u8(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void add_number(std::uint64_t value, int size_bytes) {
    for (int i = 0; i < size_bytes; ++i) add_u8(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void add_text(std::string_view text) {
    add_number(text.size(), 4);
    out_ += text;
  }
  void add_count(std::size_t count) { add_number(count, 4); }

  void add(const TensorLayout& tensor) {
    add_u8(tensor.dtype);
    add_u8(tensor.stored_dtype);
    const bool has_dim_order = !tensor.dim_order.empty() || tensor.batch_place != 0;
    add_u8(static_cast<std::uint8_t>(
        (tensor.is_beside_input ? kBesideInput : 0) | (has_dim_order ? kHasDimOrder : 0) |
        (tensor.padded_dims != 0 ? kHasPaddedDims : 0) | (tensor.is_constant ? kConstant : 0) |
        (tensor.is_unproven ? kUnproven : 0) | (tensor.is_unproven_alone ? kUnprovenAlone : 0)));
    add_u8(static_cast<std::uint8_t>(tensor.sizes.size()));
    for (const std::int64_t size : tensor.sizes) add_number(static_cast<std::uint64_t>(size), 8);
    if (tensor.padded_dims != 0) add_number(tensor.padded_dims, 8);
    if (!has_dim_order) return;
    add_u8(tensor.batch_place);
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      add_u8(tensor.dim_order.empty() ? static_cast<std::uint8_t>(d) : tensor.dim_order[d]);
    }
  }

  // Writes `node`. `tensor` is the layout of the next tensor node, and is advanced at each one.
  void add(const Node& node, const TensorLayout*& tensor) {
    add_u8(static_cast<std::uint8_t>(node.kind));
    switch (node.kind) {
      case Node::Kind::kTensor: add(*tensor++); return;
      case Node::Kind::kNone: return;
      case Node::Kind::kBool: add_u8(node.integer != 0 ? 1 : 0); return;
      case Node::Kind::kInt: add_number(static_cast<std::uint64_t>(node.integer), 8); return;
      case Node::Kind::kFloat: add_number(bits_of(node.real), 8); return;
      case Node::Kind::kComplex:
        add_number(bits_of(node.real), 8);
        add_number(bits_of(node.imaginary), 8);
        return;
      case Node::Kind::kString: add_text(node.text); return;
      default: break;
    }
    add_text(node.text);
    add_texts(node.names);
    add_texts(node.types);
    add_count(node.children.size());
    for (const Node& child : node.children) add(child, tensor);
  }

  std::string take() { return std::move(out_); }

 private:
  void add_texts(const std::vector<std::string>& texts) {
    add_count(texts.size());
    for (const std::string& text : texts) add_text(text);
  }

  std::string out_;
};

// Bounds every read by the bytes that are left, and every count by the bytes that so many items
// need at least. So a few hostile bytes cannot cause a large allocation. After the first failure
// all reads return 0.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool has_failed() const { return has_failed_; }
  bool is_at_end() const { return rest_.empty(); }

  std::uint64_t number(std::size_t size_bytes) {
    if (rest_.size() < size_bytes) return fail();
    std::uint64_t value = 0;
    for (std::size_t i = size_bytes; i-- > 0;) {
      value = (value << 8) | static_cast<unsigned char>(rest_[i]);
    }
    rest_.remove_prefix(size_bytes);
    return value;
  }
  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }

  TensorLayout tensor() {
    TensorLayout tensor;
    tensor.dtype = u8();
    tensor.stored_dtype = u8();
    const std::uint8_t flags = u8();
    if ((flags & ~kKnownFlags) != 0) fail();
    tensor.is_beside_input = (flags & kBesideInput) != 0;
    tensor.is_constant = (flags & kConstant) != 0;
    tensor.is_unproven = (flags & kUnproven) != 0;
    tensor.is_unproven_alone = (flags & kUnprovenAlone) != 0;
    const std::size_t dimensions = u8();
    if (dimensions > ValueHeader::kMostDimensions) fail();
    for (std::size_t d = 0; d < dimensions && !has_failed_; ++d) {
      const auto size = static_cast<std::int64_t>(number(8));
      if (size < 0) fail();
      tensor.sizes.push_back(size);
    }
    if ((flags & kHasPaddedDims) != 0) padded_dims(tensor);
    if ((flags & kHasDimOrder) != 0) dim_order(tensor);
    return tensor;
  }

  Node node(std::vector<TensorLayout>& tensors, int depth) {
    Node node;
    // An unknown kind is refused below.
    // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange)
    node.kind = static_cast<Node::Kind>(u8());
    switch (node.kind) {
      case Node::Kind::kTensor: tensors.push_back(tensor()); return node;
      case Node::Kind::kNone: return node;
      case Node::Kind::kBool:
        node.integer = u8();
        if (node.integer > 1) fail();
        return node;
      case Node::Kind::kInt: node.integer = static_cast<std::int64_t>(number(8)); return node;
      case Node::Kind::kFloat: node.real = real(); return node;
      case Node::Kind::kComplex:
        node.real = real();
        node.imaginary = real();
        return node;
      case Node::Kind::kString: node.text = text(); return node;
      case Node::Kind::kTuple:
      case Node::Kind::kNamedTuple:
      case Node::Kind::kList:
      case Node::Kind::kDict:
      case Node::Kind::kObject: container(node, tensors, depth); return node;
    }
    fail();
    return node;
  }

 private:
  std::uint64_t fail() {
    has_failed_ = true;
    rest_ = {};
    return 0;
  }
  // Refuses dimensions that the tensor lacks, and sizes that differ from those of other padded
  // dimensions of the value.
  void padded_dims(TensorLayout& tensor) {
    tensor.padded_dims = number(8);
    if (tensor.padded_dims == 0) fail();
    for (std::size_t d = 0; d < ValueHeader::kMostDimensions; ++d) {
      if (((tensor.padded_dims >> d) & 1) == 0) continue;
      const bool fits =
          d < tensor.sizes.size() && (padded_length_ < 0 || tensor.sizes[d] == padded_length_);
      if (!fits) {
        fail();
        return;
      }
      padded_length_ = tensor.sizes[d];
    }
  }
  void dim_order(TensorLayout& tensor) {
    tensor.batch_place = u8();
    if (tensor.batch_place > tensor.sizes.size()) fail();
    std::vector<bool> is_seen(tensor.sizes.size());
    for (std::size_t d = 0; d < tensor.sizes.size() && !has_failed_; ++d) {
      const std::uint8_t dimension = u8();
      if (dimension >= is_seen.size() || is_seen[dimension]) {
        fail();
        return;
      }
      is_seen[dimension] = true;
      tensor.dim_order.push_back(dimension);
    }
    if (!std::is_sorted(tensor.dim_order.begin(), tensor.dim_order.end())) return;
    tensor.dim_order.clear();
    if (tensor.batch_place == 0) fail();  // there is nothing to say
  }
  double real() {
    const std::uint64_t bits = number(8);
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  std::string text() {
    const std::uint64_t size = number(4);
    if (size > rest_.size()) fail();
    if (has_failed_) return {};
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    if (!is_utf8(text)) fail();
    return text;
  }
  std::uint64_t count(std::uint64_t least_size_bytes) {
    const std::uint64_t count = number(4);
    return count * least_size_bytes > rest_.size() ? fail() : count;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> texts(count(4));
    for (std::string& text : texts) text = this->text();
    return texts;
  }

  void container(Node& node, std::vector<TensorLayout>& tensors, int depth) {
    if (depth >= ValueHeader::kMostDepth) fail();
    node.text = text();
    node.names = texts();
    node.types = texts();
    const std::uint64_t children = count(1);
    for (std::uint64_t i = 0; i < children && !has_failed_; ++i) {
      node.children.push_back(this->node(tensors, depth + 1));
    }
    if (!is_well_formed(node)) fail();
  }

  // Returns whether the node has the form that the encoder writes, on which all readers rely.
  static bool is_well_formed(const Node& node) {
    if (node.kind != Node::Kind::kNamedTuple && !node.names.empty()) return false;
    switch (node.kind) {
      case Node::Kind::kTuple: return node.text.empty() && node.types.empty();
      case Node::Kind::kNamedTuple:
        return node.names.size() == node.children.size() && node.types.empty();
      case Node::Kind::kList: return node.text.empty() && node.types.size() == 1;
      case Node::Kind::kDict:
        return node.text.empty() && node.types.size() == 2 && has_well_formed_keys(node);
      case Node::Kind::kObject: return node.types.size() == 1;
      default: return true;
    }
  }
  static bool has_well_formed_keys(const Node& dict) {
    if (dict.children.size() % 2 != 0) return false;
    for (std::size_t i = 0; i < dict.children.size(); i += 2) {
      const Node::Kind kind = dict.children[i].kind;
      if (kind != Node::Kind::kString && kind != Node::Kind::kInt) return false;
    }
    return true;
  }

  std::string_view rest_;
  std::int64_t padded_length_ = -1;  // of all padded dimensions; -1: none was read
  bool has_failed_ = false;
};

}  // namespace

bool Node::operator==(const Node& other) const {
  const bool has_same_text = kind == Kind::kNamedTuple || text == other.text;
  const bool has_same_types = kind != Kind::kObject || types == other.types;
  return kind == other.kind && integer == other.integer && bits_of(real) == bits_of(other.real) &&
         bits_of(imaginary) == bits_of(other.imaginary) && has_same_text && names == other.names &&
         has_same_types && children == other.children;
}

bool Node::has_form_of(const Node& other) const {
  const auto is_plain = [](Kind one) {
    return one == Kind::kNone || one == Kind::kBool || one == Kind::kInt || one == Kind::kFloat ||
           one == Kind::kComplex || one == Kind::kString;
  };
  if (kind != other.kind) return is_plain(kind) && is_plain(other.kind);
  if (children.size() != other.children.size() || names != other.names) return false;
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (!children[i].has_form_of(other.children[i])) return false;
  }
  return true;
}

std::string encode_value_header(const ValueHeader& header) {
  Writer writer;
  writer.add_u8(ValueHeader::kVersion);
  writer.add_u8(header.codec);
  const TensorLayout* tensor = header.tensors.data();
  writer.add(header.root, tensor);
  return writer.take();
}

bool is_of_lone_tensor(std::string_view bytes) {
  constexpr std::size_t kRoot = 2;  // behind the version and the codec
  return bytes.size() > kRoot && bytes[kRoot] == static_cast<char>(Node::Kind::kTensor);
}

Result<ValueHeader> decode_value_header(std::string_view bytes) {
  Reader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (!reader.has_failed() && version != ValueHeader::kVersion) {
    return Status::corruption("a value header has the unknown version " + std::to_string(version));
  }
  ValueHeader header;
  header.codec = reader.u8();
  header.root = reader.node(header.tensors, 0);
  if (reader.has_failed() || !reader.is_at_end()) {
    return Status::corruption("a value header of " + std::to_string(bytes.size()) +
                              " bytes is malformed");
  }
  return header;
}

}  // namespace modcache::tensor
