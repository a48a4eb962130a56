// SPDX-License-Identifier: Apache-2.0
#include "command_line/value_text.h"

#include <array>
#include <cstdint>
#include <cstdio>

#include "cache/entry_header.h"
#include "codec/codec.h"
#include "tensor/value_header.h"

namespace modcache::command_line {
namespace {

using tensor::Node;
using tensor::TensorLayout;

constexpr std::size_t kMostText = 2000;
constexpr std::size_t kMostString = 40;

// The names of dtypes in the order of c10::ScalarType.
constexpr std::array<const char*, 46> kDtypes{"uint8",
                                              "int8",
                                              "int16",
                                              "int32",
                                              "int64",
                                              "float16",
                                              "float32",
                                              "float64",
                                              "complex32",
                                              "complex64",
                                              "complex128",
                                              "bool",
                                              "qint8",
                                              "quint8",
                                              "qint32",
                                              "bfloat16",
                                              "quint4x2",
                                              "quint2x4",
                                              "bits1x8",
                                              "bits2x4",
                                              "bits4x2",
                                              "bits8",
                                              "bits16",
                                              "float8_e5m2",
                                              "float8_e4m3fn",
                                              "float8_e5m2fnuz",
                                              "float8_e4m3fnuz",
                                              "uint16",
                                              "uint32",
                                              "uint64",
                                              "uint1",
                                              "uint2",
                                              "uint3",
                                              "uint4",
                                              "uint5",
                                              "uint6",
                                              "uint7",
                                              "int1",
                                              "int2",
                                              "int3",
                                              "int4",
                                              "int5",
                                              "int6",
                                              "int7",
                                              "float8_e8m0fnu",
                                              "float4_e2m1fn_x2"};

std::string dtype_name(std::uint8_t dtype) {
  return dtype < kDtypes.size() ? kDtypes[dtype] : "dtype " + std::to_string(dtype);
}

std::string number_text(double number) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.6g", number);
  return text.data();
}

class Writer {
 public:
  explicit Writer(const std::vector<TensorLayout>& tensors) : tensors_(tensors) {}

  void add(const Node& node) {
    if (text_.size() > kMostText) return;
    switch (node.kind) {
      case Node::Kind::kTensor: add_tensor(); return;
      case Node::Kind::kNone: text_ += "None"; return;
      case Node::Kind::kBool: text_ += node.integer != 0 ? "True" : "False"; return;
      case Node::Kind::kInt: text_ += std::to_string(node.integer); return;
      case Node::Kind::kFloat: text_ += number_text(node.real); return;
      case Node::Kind::kComplex:
        text_ += number_text(node.real) + '+' + number_text(node.imaginary) + 'j';
        return;
      case Node::Kind::kString: add_string(node.text); return;
      case Node::Kind::kTuple:
        add_children(node, "(", node.children.size() == 1 ? ",)" : ")");
        return;
      case Node::Kind::kList: add_children(node, "[", "]"); return;
      case Node::Kind::kDict: add_dict(node); return;
      case Node::Kind::kNamedTuple:
      case Node::Kind::kObject: add_children(node, node.text + '(', ")"); return;
    }
  }

  std::string take() {
    if (text_.size() <= kMostText) return std::move(text_);
    text_.resize(kMostText);
    return text_ + " ...";
  }

 private:
  void add_tensor() {
    if (next_ == tensors_.size()) return;
    const TensorLayout& layout = tensors_[next_++];
    text_ += dtype_name(layout.dtype) + '[';
    for (std::size_t i = 0; i < layout.sizes.size(); ++i) {
      text_ += (i > 0 ? ", " : "") + std::to_string(layout.sizes[i]);
    }
    text_ += ']';
    if (layout.stored_dtype != layout.dtype) {
      text_ += " stored as " + dtype_name(layout.stored_dtype);
    }
  }

  void add_string(const std::string& string) {
    text_ += '\'' + string.substr(0, kMostString);
    text_ += string.size() > kMostString ? "...'" : "'";
  }

  void add_children(const Node& node, const std::string& before, const char* after) {
    text_ += before;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (i > 0) text_ += ", ";
      if (i < node.names.size()) text_ += node.names[i] + '=';
      add(node.children[i]);
    }
    text_ += after;
  }

  void add_dict(const Node& node) {
    text_ += '{';
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (i > 0) text_ += i % 2 == 0 ? ", " : ": ";
      add(node.children[i]);
    }
    text_ += '}';
  }

  const std::vector<TensorLayout>& tensors_;
  std::size_t next_ = 0;
  std::string text_;
};

}  // namespace

Result<ValueText> describe_value(std::string_view header) {
  std::string_view signature;
  std::string_view value_header;
  if (!cache::unpack_header(header, signature, value_header)) {
    return Status::corruption("it has no header of modcache");
  }
  MODCACHE_ASSIGN_OR_RETURN(auto decoded, tensor::decode_value_header(value_header));
  Writer writer(decoded.tensors);
  writer.add(decoded.root);
  ValueText text;
  text.value = writer.take();
  text.signature = signature;
  text.codec = codec::codec_name(static_cast<codec::Codec>(decoded.codec));
  return text;
}

}  // namespace modcache::command_line
