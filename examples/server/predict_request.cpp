// SPDX-License-Identifier: Apache-2.0
#include "predict_request.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "errors.h"

namespace server {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDimensions = 8;
const std::string kValidBody =
    "valid is an object with 'input' (a number, or lists of numbers) and, optionally, 'id' (a "
    "string or an integer) or 'ids' (one for each row)";

std::string format_shape(at::IntArrayRef shape) {
  std::string text;
  for (const std::int64_t size : shape) {
    text += (text.empty() ? "" : "x") + (size < 0 ? std::string("?") : std::to_string(size));
  }
  return text.empty() ? "one number" : text;
}

Json parse_object(const std::string& body) {
  Json parsed;
  try {
    parsed = Json::parse(body);
  } catch (const Json::exception& error) {
    throw HttpError(400, "the body is not JSON: " + std::string(error.what()) + "; " + kValidBody);
  }
  if (!parsed.is_object()) {
    throw HttpError(400, "the body is not an object; " + kValidBody);
  }
  for (const auto& [name, value] : parsed.items()) {
    if (name == "input" || name == "id" || name == "ids") continue;
    throw HttpError(400, "unknown member '" + name.substr(0, 100) + "'; " + kValidBody);
  }
  return parsed;
}

// Returns the sizes that the first list of each depth has.
std::vector<std::int64_t> shape_of(const Json& input) {
  std::vector<std::int64_t> shape;
  for (const Json* list = &input; list->is_array(); list = &list->front()) {
    if (shape.size() == kMaxDimensions) {
      throw HttpError(400,
                      "'input' is nested deeper than " + std::to_string(kMaxDimensions) + " lists");
    }
    shape.push_back(static_cast<std::int64_t>(list->size()));
    if (list->empty()) break;
  }
  return shape;
}

template <typename Number>
Number number_of(const Json& json) {
  if constexpr (std::is_integral_v<Number>) {
    const bool fits = !json.is_number_unsigned() || json.get<Number>() >= 0;
    if (json.is_number_integer() && fits) return json.get<Number>();
  } else if (json.is_number()) {
    const auto number = json.get<double>();
    if (std::abs(number) <= std::numeric_limits<Number>::max()) return static_cast<Number>(number);
  }
  const std::string given = json.is_number() ? json.dump() : json.type_name();
  throw HttpError(400, "'input' contains " + given + "; this model takes numbers of dtype " +
                           c10::toString(c10::CppTypeToScalarType<Number>::value));
}

template <typename Number>
void append_numbers(const Json& json, at::IntArrayRef shape, std::vector<Number>& numbers) {
  if (shape.empty() != !json.is_array() ||
      (!shape.empty() && json.size() != static_cast<std::size_t>(shape[0]))) {
    throw HttpError(400, "the lists in 'input' differ in length or depth");
  }
  if (shape.empty()) {
    numbers.push_back(number_of<Number>(json));
    return;
  }
  for (const Json& item : json) append_numbers(item, shape.slice(1), numbers);
}

template <typename Number>
at::Tensor tensor_as(const Json& input) {
  const std::vector<std::int64_t> shape = shape_of(input);
  std::vector<Number> numbers;
  append_numbers(input, shape, numbers);
  return at::tensor(numbers).view(shape);
}

void check_shape(const at::Tensor& input, const InputSpec& spec) {
  bool is_valid = spec.shape.empty() || input.sizes().size() == spec.shape.size();
  for (std::size_t i = 0; is_valid && i < spec.shape.size(); ++i) {
    is_valid = spec.shape[i] < 0 || spec.shape[i] == input.sizes()[i];
  }
  if (!is_valid) {
    throw HttpError(400, "'input' is " + format_shape(input.sizes()) + "; this model takes " +
                             format_shape(spec.shape) + " (--shape)");
  }
  const bool has_fixed_rows = !spec.shape.empty() && spec.shape[0] >= 0;
  if (input.dim() > 0 && !has_fixed_rows && input.size(0) > spec.max_rows) {
    throw HttpError(413, "'input' has " + std::to_string(input.size(0)) +
                             " rows; valid are up to " + std::to_string(spec.max_rows) +
                             " (--max-rows)");
  }
}

// Integers are identified by their digits, as in training.
std::string parse_id(const Json& json) {
  if (json.is_number_integer()) return json.dump();
  if (!json.is_string() || json.get_ref<const std::string&>().empty()) {
    const std::string given = json.is_string()   ? "an empty string"
                              : json.is_number() ? "a number that is not a 64-bit integer"
                                                 : json.type_name();
    throw HttpError(400, "an id is " + given + "; valid is a non-empty string or an integer");
  }
  return json.get<std::string>();
}

}  // namespace

at::ScalarType scalar_type(const InputSpec& spec) {
  if (spec.dtype == "int64") return at::kLong;
  return spec.dtype == "float64" ? at::kDouble : at::kFloat;
}

PredictRequest parse_predict_request(const std::string& body, const InputSpec& spec) {
  const Json parsed = parse_object(body);
  if (!parsed.contains("input")) throw HttpError(400, "there is no 'input'; " + kValidBody);
  if (parsed.contains("id") && parsed.contains("ids")) {
    throw HttpError(400, "'id' and 'ids' are both present; valid is one of them");
  }
  PredictRequest request;
  const Json& input = parsed["input"];
  switch (scalar_type(spec)) {
    case at::kLong: request.input = tensor_as<std::int64_t>(input); break;
    case at::kDouble: request.input = tensor_as<double>(input); break;
    default: request.input = tensor_as<float>(input);
  }
  check_shape(request.input, spec);
  if (parsed.contains("id")) request.id = parse_id(parsed["id"]);
  if (parsed.contains("ids")) {
    const Json& ids = parsed["ids"];
    const std::int64_t num_rows = request.input.dim() == 0 ? 0 : request.input.size(0);
    if (!ids.is_array() || static_cast<std::int64_t>(ids.size()) != num_rows) {
      throw HttpError(400, "'ids' is " + std::string(ids.type_name()) + " of size " +
                               std::to_string(ids.size()) + "; valid is a list of " +
                               std::to_string(num_rows) + ", one id for each row of 'input'");
    }
    for (const Json& id : ids) request.ids.push_back(parse_id(id));
  }
  return request;
}

}  // namespace server
