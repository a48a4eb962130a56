// SPDX-License-Identifier: Apache-2.0
//
// The bytes that describe a stored value (FORMAT.md, "Value header"): a tree of plain values and
// containers whose leaves may be tensors, and the place of each tensor in the payload. Python and
// C++ share the format. This file needs no torch, so that it can be checked and fuzzed alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace modcache::tensor {

// A node of a value's tree.
struct Node {
  enum class Kind : char {
    kTensor = 't',  // the next tensor of the value, in the order of a walk through the tree
    kNone = 'n',
    kBool = 'b',     // integer: 0 or 1
    kInt = 'i',      // integer
    kFloat = 'd',    // real
    kComplex = 'c',  // real and imaginary
    kString = 's',   // text
    kTuple = '(',
    kNamedTuple = 'N',  // text: its class; names: its fields
    kList = '[',        // types: {of its elements}, as TorchScript writes types
    kDict = '{',        // types: {of its keys, of its values}; children: key, value, key, value;
                        // keys are kString or kInt
    kObject = 'o',      // text: a class that Python's pytree registry knows; types: {its context}
  };

  Kind kind = Kind::kTensor;
  std::int64_t integer = 0;
  double real = 0;
  double imaginary = 0;
  std::string text;
  std::vector<std::string> names;
  std::vector<std::string> types;  // "" where the type is not known
  std::vector<Node> children;

  // Compares numbers bit by bit: NaN equals itself, 0.0 differs from -0.0. Ignores what Python and
  // TorchScript describe differently: the types of lists and dicts, the classes of named tuples.
  bool operator==(const Node& other) const;
  // Returns whether both have the same containers with tensors in the same places; plain values may
  // differ.
  bool has_form_of(const Node& other) const;
};

// One tensor of a value.
struct TensorLayout {
  std::uint8_t dtype = 0;         // the dtype of a hit
  std::uint8_t stored_dtype = 0;  // the dtype of the bytes
  bool is_beside_input = false;   // the result lay on its input's device
  std::vector<std::int64_t> sizes;
  // The order of the dimensions in memory (dim_order.h); empty: row-major.
  std::vector<std::uint8_t> dim_order = {};
  // How many dimensions of a row lay outside of the rows in the batch that it was cut from.
  std::uint8_t batch_place = 0;
  // The dimensions in which a row was cut to its own length (row_padding.h), as bits.
  std::uint64_t padded_dims = 0;
  // The tensor has no rows: the whole of it is stored with each row of the result.
  bool is_constant = false;
  // The tensor is from a batch of one, and no check run proved that its first dimension is the
  // rows. It serves batches of one only.
  bool is_unproven = false;
  // The tensor is from a batch of several rows, and nothing shows the shape of a batch of one. It
  // serves batches of several rows only.
  bool is_unproven_alone = false;

  bool operator==(const TensorLayout&) const = default;
  bool has_order_of(const TensorLayout& other) const {
    return dim_order == other.dim_order && batch_place == other.batch_place;
  }
};

struct ValueHeader {
  static constexpr std::uint8_t kVersion = 2;
  static constexpr std::size_t kMostDimensions = 64;
  static constexpr int kMostDepth = 64;

  std::uint8_t codec = 0;  // the codec of the payload
  Node root;               // a lone tensor, where nothing else was stored
  std::vector<TensorLayout> tensors;

  bool operator==(const ValueHeader&) const = default;
};

// Returns the bits of an IEEE 754 number.
std::uint64_t bits_of(double number);

// REQUIRES: at most kMostDimensions sizes per tensor, none of them negative; a tree no deeper than
// kMostDepth, with as many tensor nodes as there are tensors; all text is UTF-8.
std::string encode_value_header(const ValueHeader& header);

// Returns kCorruption unless `bytes` are exactly one header of this version and all text in it is
// UTF-8, as Python raises an error for any other.
Result<ValueHeader> decode_value_header(std::string_view bytes);

// Returns whether an encoded header says that the value is a lone tensor, without looking at the
// rest, which may be broken.
bool is_of_lone_tensor(std::string_view bytes);

}  // namespace modcache::tensor
