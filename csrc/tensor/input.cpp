// SPDX-License-Identifier: Apache-2.0
#include "tensor/input.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tensor/storable.h"
#include "tensor/torch_version.h"
#include "tensor/value_header.h"

namespace modcache::tensor {
namespace {

constexpr std::size_t kMaxDigits = 20;  // of -2^63

void append_number(std::string& out, std::int64_t number) {
  std::array<char, kMaxDigits> digits;
  const char* const end = std::to_chars(digits.begin(), digits.end(), number).ptr;
  out.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
}

constexpr char kTensorMark = '%';

class Summarizer {
 public:
  enum class Tensors { kDescribed, kMarked };

  Summarizer(InputSummary& summary, Per per, Tensors tensors = Tensors::kDescribed,
             const RowPadding* padding = nullptr)
      : summary_(summary), per_(per), tensors_(tensors), padding_(padding) {}

  // An outermost tuple holds the arguments of the method, so x and (x,) are one call.
  void summarize(const at::IValue& input) {
    const bool is_one_argument = input.isTuple() && input.toTupleRef().elements().size() == 1;
    visit(is_one_argument ? input.toTupleRef().elements()[0] : input);
    // The structure tells apart lists of numbers that differ only in their nesting.
    if (!summary_.arguments.empty()) summary_.arguments.insert(0, structure_);
    add_padding();
  }

  // Fills the summary as for an input of this form, with these tensors in place of its marks.
  void fill(const InputForm& form, const std::vector<at::Tensor>& tensors) {
    std::size_t next = 0;
    for (const char part : form.signature) {
      if (part != kTensorMark) {
        summary_.signature += part;
        continue;
      }
      TORCH_CHECK(next < tensors.size(), "modcache: an exported call lacks a tensor of its input");
      describe(tensors[next++]);
    }
    TORCH_CHECK(next == tensors.size(), "modcache: an exported call has ", tensors.size(),
                " tensors where its input has ", next);
    summary_.arguments = form.arguments;
    if (!form.why_not_cacheable.empty()) summary_.why_not_cacheable = form.why_not_cacheable;
    add_padding();
  }

 private:
  void add_padding() {
    if (padding_ == nullptr) return;
    summary_.arguments = arguments_of_padded(summary_.arguments, padding_->true_part);
    if (!padding_->why_not.empty() && summary_.why_not_cacheable.empty()) {
      summary_.why_not_cacheable = padding_->why_not;
    }
  }

  void visit(const at::IValue& value) {
    if (value.isTensor()) {
      visit_tensor(value.toTensor());
    } else if (value.isTuple()) {
      visit_sequence('(', value.toTupleRef().elements(), ')');
    } else if (value.isList()) {
      const std::size_t tensors = summary_.tensors.size();
      visit_sequence('<', value.toListRef(), '>');
      if (summary_.tensors.size() == tensors) {
        summary_.list_sizes.push_back(static_cast<std::int64_t>(value.toListRef().size()));
      }
    } else if (value.isGenericDict()) {
      visit_dict(value);
    } else {
      visit_plain(value);
    }
  }

  void visit_tensor(const at::Tensor& tensor) {
    ++leaves_;
    structure_ += 't';
    if (tensors_ == Tensors::kMarked) {
      summary_.signature += kTensorMark;
    } else {
      describe(tensor);
    }
  }

  void describe(const at::Tensor& tensor) {
    if (const char* why = why_not_storable(tensor)) {
      summary_.why_not_cacheable = why;
      summary_.signature += '?';
      return;
    }
    if (tensor._fw_grad(/*level=*/0).defined()) {
      summary_.why_not_cacheable = "a dual tensor of forward-mode differentiation";
      return;
    }
    const bool has_length = padding_ != nullptr && is_padded(tensor, padding_->longest);
    std::array<char, 2 + ValueHeader::kMostDimensions*(kMaxDigits + 1)> shape;
    char* end = shape.data();
    *end++ = '[';
    const at::IntArrayRef sizes = tensor.sizes();
    const std::size_t first = per_ == Per::kRow ? 1 : 0;
    for (std::size_t dim = first; dim < sizes.size(); ++dim) {
      if (dim > first) *end++ = ',';
      if (dim == first && has_length) {
        *end++ = InputSummary::kLength;
      } else {
        end = std::to_chars(end, end + kMaxDigits, sizes[dim]).ptr;
      }
    }
    *end++ = ']';
    summary_.signature += dtype_name(tensor.scalar_type());
    summary_.signature.append(shape.data(), static_cast<std::size_t>(end - shape.data()));
    if (padding_ != nullptr) {
      summary_.padded_dims.push_back(has_length ? 1 : 0);
      if (is_ambiguous(tensor, padding_->longest)) {
        summary_.why_not_cacheable =
            "as wide in another dimension as the batch is long, so that nothing tells which of "
            "them is "
            "padded; pad the batch to another length";
      }
    }
    summary_.tensors.push_back(tensor);
    if (!summary_.device.has_value()) summary_.device = tensor.device();
    summary_.requiring_grad.add(tensor);
  }

  template <typename Elements>
  void visit_sequence(char open, const Elements& elements, char close) {
    summary_.signature += open;
    structure_ += open;
    bool first = true;
    for (const at::IValue& element : elements) {
      if (!first) summary_.signature += ',';
      first = false;
      visit(element);
    }
    summary_.signature += close;
    structure_ += close;
  }

  // Dicts keep their order, as a module may iterate over them.
  void visit_dict(const at::IValue& value) {
    summary_.signature += '{';
    structure_ += '{';
    bool first = true;
    for (const auto& item : value.toGenericDict()) {
      if (!first) summary_.signature += ',';
      first = false;
      visit_plain(item.key());
      summary_.signature += ':';
      visit(item.value());
    }
    summary_.signature += '}';
    structure_ += '}';
  }

  // Writes the value with its place among the leaves, so that (x, 1) and (1, x) differ.
  void visit_plain(const at::IValue& value) {
    std::string& out = summary_.arguments;
    out += '@';
    append_number(out, leaves_++);
    summary_.signature += '_';
    structure_ += '_';
    if (value.isNone()) {
      out += 'n';
    } else if (value.isBool()) {
      out += value.toBool() ? "b1" : "b0";
    } else if (value.isInt()) {
      out += 'i';
      append_number(out, value.toInt());
    } else if (value.isDouble()) {
      append_bits('d', value.toDouble());
    } else if (value.isComplexDouble()) {
      append_bits('c', value.toComplexDouble().real());
      append_bits(',', value.toComplexDouble().imag());
    } else if (value.isString()) {
      const std::string& text = value.toStringRef();
      out += 's';
      append_number(out, static_cast<std::int64_t>(text.size()));
      out += ':';
      out += text;
    } else if (value.isDevice()) {
      out += 'v' + value.toDevice().str();
    } else {
      summary_.why_not_cacheable = "a value of type " + value.tagKind();
    }
  }

  void append_bits(char tag, double number) {
    summary_.arguments += tag + std::to_string(bits_of(number));
  }

  InputSummary& summary_;
  const Per per_;
  const Tensors tensors_;
  const RowPadding* const padding_;
  std::int64_t leaves_ = 0;
  std::string structure_;  // one character per leaf and bracket
};

template <typename Body>
void for_each_tensor(const at::IValue& value, const Body& body) {
  if (value.isTensor()) {
    body(value.toTensor());
  } else if (value.isTuple()) {
    for (const at::IValue& item : value.toTupleRef().elements()) for_each_tensor(item, body);
  } else if (value.isList()) {
    for (const at::IValue& item : value.toListRef()) for_each_tensor(item, body);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) for_each_tensor(item.value(), body);
  }
}

}  // namespace

InputSummary summarize_input(const at::IValue& input, Per per, const RowPadding* padding) {
  InputSummary summary;
  summarize_input(summary, input, per, padding);
  return summary;
}

void summarize_input(InputSummary& summary, const at::IValue& input, Per per,
                     const RowPadding* padding) {
  Summarizer(summary, per, Summarizer::Tensors::kDescribed, padding).summarize(input);
}

std::string signature_of_length(const std::string& signature, std::int64_t length) {
  std::string text;
  for (const char part : signature) {
    if (part == InputSummary::kLength) {
      append_number(text, length);
    } else {
      text += part;
    }
  }
  return text;
}

InputForm form_of_input(const at::IValue& input) {
  InputSummary summary;
  Summarizer(summary, Per::kCall, Summarizer::Tensors::kMarked).summarize(input);
  return {std::move(summary.signature), std::move(summary.arguments),
          std::move(summary.why_not_cacheable)};
}

InputSummary summarize_form(const InputForm& form, const std::vector<at::Tensor>& tensors, Per per,
                            const RowPadding* padding) {
  InputSummary summary;
  Summarizer(summary, per, Summarizer::Tensors::kDescribed, padding).fill(form, tensors);
  return summary;
}

// Entries without their padding are entries of their own, and so are those of each side.
std::string arguments_of_padded(const std::string& arguments, TruePart part) {
  return std::string(part == TruePart::kLast ? 2 : 1, InputSummary::kLength) + arguments;
}

at::Device device_of(const at::IValue& input) {
  std::optional<at::Device> device;
  for_each_tensor(input, [&](const at::Tensor& tensor) {
    if (!device.has_value() && tensor.defined()) device = tensor.device();
  });
  return device.value_or(at::kCPU);
}

bool have_rows(const std::vector<at::Tensor>& tensors, std::int64_t rows) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.dim() > 0 && tensor.size(0) == rows;
  });
}

void check_rows(const at::IValue& input, std::int64_t rows) {
  std::int64_t tensors = 0;
  for_each_tensor(input, [&](const at::Tensor& tensor) {
    ++tensors;
    // A call with such a tensor runs uncached, and the tensor need not even have sizes.
    if (why_not_storable(tensor) != nullptr) return;
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) == rows, "cache::lookup_or_run: ", rows,
                      " keys were given, but a tensor of the input has the shape ", tensor.sizes(),
                      "; with one key per row, the first size of every tensor is the number of "
                      "keys (for one key for the whole input, pass it as a str)");
  });
  TORCH_CHECK_VALUE(tensors > 0, "cache::lookup_or_run: ", rows,
                    " keys were given, but there is no tensor in the input whose rows they name");
}

std::string_view dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kByte: return "uint8";
    case at::kChar: return "int8";
    case at::kShort: return "int16";
    case at::kInt: return "int32";
    case at::kLong: return "int64";
    case at::kHalf: return "float16";
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kBFloat16: return "bfloat16";
    case at::kBool: return "bool";
    case at::kComplexHalf: return "complex32";
    case at::kComplexFloat: return "complex64";
    case at::kComplexDouble: return "complex128";
    default: return new_dtype_name(type).value_or(c10::toString(type));
  }
}

std::string arithmetic_state() {
  std::string state;
  for (const at::DeviceType device : autocast_devices()) {
    const auto dtype = autocast_dtype(device);
    if (!dtype.has_value()) continue;
    state += c10::DeviceTypeName(device, /*lower_case=*/true);
    state += '=';
    state += dtype_name(*dtype);
    state += ';';
  }
  const auto default_dtype = c10::get_default_dtype_as_scalartype();
  if (default_dtype != at::kFloat) {
    state += "default=";
    state += dtype_name(default_dtype);
    state += ';';
  }
  return state;
}

bool is_of_few_bits(const std::string& arithmetic_state) {
  return arithmetic_state.find("float16") != std::string::npos;  // and bfloat16
}

}  // namespace modcache::tensor
