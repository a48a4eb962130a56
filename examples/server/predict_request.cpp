// SPDX-License-Identifier: Apache-2.0
#include "predict_request.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "refusal.h"

namespace server {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kDeepestNesting = 8;
constexpr std::size_t kLongestId = 512;  // bytes
constexpr std::size_t kLongestReason = 300;
constexpr const char* kValid =
    "valid is an object with 'input' (a number, or lists of numbers) and, optionally, 'id' (a text "
    "or an integer) or 'ids' (one for each row)";

[[noreturn]] void refuse(const std::string& reason) { throw Refusal(400, reason); }

std::string of_shape(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) {
    text += (text.empty() ? "" : "x") + (size < 0 ? std::string("?") : std::to_string(size));
  }
  return text.empty() ? "one number" : text;
}

// Numbers in lists of lists, as they come: how long the lists of each depth are, and the numbers.
class NestedNumbers {
 public:
  NestedNumbers(at::ScalarType dtype, std::int64_t most_rows)
      : dtype_(dtype), most_rows_(most_rows) {}

  void open() {
    if (lengths_.size() == kDeepestNesting) {
      refuse("'input' is nested deeper than " + std::to_string(kDeepestNesting) + " lists");
    }
    count_in_list();
    if (has_number_ && lengths_.size() >= number_depth_) refuse_ragged();
    lengths_.push_back(0);
    if (shape_.size() < lengths_.size()) shape_.push_back(kUnknown);
  }
  void close() {
    std::int64_t& size = shape_[lengths_.size() - 1];
    if (size != kUnknown && size != lengths_.back()) refuse_ragged();
    size = lengths_.back();
    lengths_.pop_back();
  }

  void add(std::int64_t number) {
    begin_number();
    if (dtype_ == at::kLong) {
      integers_.push_back(number);
    } else {
      add_real(static_cast<double>(number));
    }
  }
  void add(double number, const std::string& text) {
    begin_number();
    if (dtype_ == at::kLong) refuse("'input' holds " + text + ", and this model takes integers");
    if (!std::isfinite(number) ||
        (dtype_ == at::kFloat && std::abs(number) > std::numeric_limits<float>::max())) {
      refuse("'input' holds " + text + ", which is no finite number of the model's dtype");
    }
    add_real(number);
  }

  at::Tensor tensor() const {
    at::Tensor made = at::empty(shape_, at::TensorOptions(dtype_));
    const auto fill = [&](const auto& numbers) {
      const std::size_t bytes = numbers.size() * sizeof(numbers[0]);
      if (bytes != made.nbytes()) refuse_ragged();
      if (bytes != 0) std::memcpy(made.mutable_data_ptr(), numbers.data(), bytes);
    };
    if (dtype_ == at::kLong) {
      fill(integers_);
    } else if (dtype_ == at::kFloat) {
      fill(floats_);
    } else {
      fill(doubles_);
    }
    return made;
  }

 private:
  static constexpr std::int64_t kUnknown = -1;

  [[noreturn]] static void refuse_ragged() {
    refuse("the lists in 'input' differ in length or depth; valid are lists of one shape");
  }
  void count_in_list() {
    if (lengths_.empty()) return;
    ++lengths_.back();
    if (lengths_.size() == 1 && lengths_[0] > most_rows_) {
      throw Refusal(413, "'input' has more than " + std::to_string(most_rows_) +
                             " rows; valid are at most so many, in one request");
    }
  }
  void begin_number() {
    count_in_list();
    if (has_number_ && number_depth_ != lengths_.size()) refuse_ragged();
    if (lengths_.size() < shape_.size()) refuse_ragged();
    has_number_ = true;
    number_depth_ = lengths_.size();
  }
  void add_real(double number) {
    if (dtype_ == at::kFloat) {
      floats_.push_back(static_cast<float>(number));
    } else {
      doubles_.push_back(number);
    }
  }

  at::ScalarType dtype_;
  std::int64_t most_rows_;
  std::vector<std::int64_t> lengths_;  // of the lists that are open, so far
  std::vector<std::int64_t> shape_;
  bool has_number_ = false;
  std::size_t number_depth_ = 0;
  std::vector<std::int64_t> integers_;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

constexpr char kBeyond64Bits[] = "an integer beyond 64 bits";

// Describes a number of JSON that is not an integer of 64 bits.
const char* kind_of_number(const std::string& text) {
  const bool is_integer = text.find_first_of(".eE") == std::string::npos;
  return is_integer ? kBeyond64Bits : "a number with a fraction or an exponent";
}

// The parser of nlohmann calls these. Every refusal is thrown, so all return true.
class Reader : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(const InputForm& form)
      : numbers_(form.dtype, form.most_rows), most_ids_(static_cast<std::size_t>(form.most_rows)) {}

  bool start_object(std::size_t) override {
    if (depth_ != 0) refuse(std::string("there is an object inside of the body; ") + kValid);
    depth_ = 1;
    return true;
  }
  bool end_object() override {
    depth_ = 0;
    return true;
  }
  bool key(string_t& name) override {
    for (const auto& [member, valid] : kMembers) {
      if (name != valid) continue;
      const auto bit = 1U << static_cast<unsigned>(member);
      if ((seen_ & bit) != 0) refuse(std::string("'") + valid + "' is there twice");
      seen_ |= bit;
      member_ = member;
      return true;
    }
    refuse("there is no '" + name.substr(0, kLongestReason / 4) + "'; " + kValid);
  }
  bool start_array(std::size_t) override {
    require_member();
    if (member_ == Member::kInput) {
      numbers_.open();
    } else if (member_ == Member::kIds && !is_in_ids_) {
      is_in_ids_ = true;
    } else {
      refuse_type("a list");
    }
    return true;
  }
  bool end_array() override {
    if (member_ == Member::kInput) {
      numbers_.close();
    } else {
      is_in_ids_ = false;
    }
    return true;
  }
  bool number_integer(number_integer_t number) override {
    require_member();
    if (member_ == Member::kInput) {
      numbers_.add(number);
    } else {
      add_id(std::to_string(number));
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (number <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return number_integer(static_cast<number_integer_t>(number));
    }
    require_member();
    if (member_ != Member::kInput) refuse_type(kBeyond64Bits);
    return number_float(static_cast<double>(number), std::to_string(number));
  }
  bool number_float(number_float_t number, const string_t& text) override {
    require_member();
    if (member_ != Member::kInput) refuse_type(kind_of_number(text));
    numbers_.add(number, text.substr(0, kLongestReason / 4));
    return true;
  }
  bool string(string_t& text) override {
    require_member();
    if (member_ == Member::kInput) refuse_type("a text");
    add_id(text);
    return true;
  }
  bool null() override { refuse_type("null"); }
  bool boolean(bool) override { refuse_type("true or false"); }
  bool binary(binary_t&) override { refuse_type("binary"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    refuse("the body is not JSON, at byte " + std::to_string(position) + ": " +
           std::string(error.what()).substr(0, kLongestReason) + "; " + kValid);
  }

  PredictRequest request() const {
    if (!has(Member::kInput)) refuse(std::string("there is no 'input'; ") + kValid);
    if (has(Member::kId) && has(Member::kIds)) {
      refuse("'id' and 'ids' are both there; valid is one of them");
    }
    return {numbers_.tensor(), ids_, has(Member::kId), has(Member::kIds)};
  }

 private:
  enum class Member { kInput, kId, kIds };
  static constexpr std::pair<Member, const char*> kMembers[] = {
      {Member::kInput, "input"}, {Member::kId, "id"}, {Member::kIds, "ids"}};

  bool has(Member member) const { return (seen_ & (1U << static_cast<unsigned>(member))) != 0; }
  void require_member() const {
    if (depth_ == 0) refuse(std::string("the body is no object; ") + kValid);
  }
  [[noreturn]] void refuse_type(const std::string& given) const {
    require_member();
    refuse(std::string("'") + kMembers[static_cast<std::size_t>(member_)].second + "' holds " +
           given + "; " + kValid);
  }
  void add_id(const std::string& id) {
    if (member_ == Member::kIds && !is_in_ids_) refuse_type("no list");
    if (id.empty()) refuse("an id is empty; valid is a text of at least one character");
    if (id.size() > kLongestId) {
      refuse("an id has " + std::to_string(id.size()) + " bytes; valid are at most " +
             std::to_string(kLongestId));
    }
    for (const char character : id) {
      const auto code = static_cast<unsigned char>(character);
      if (code < 0x20 || code == 0x7f) {
        refuse("an id holds the control character " + std::to_string(code) +
               "; valid is text without such");
      }
    }
    if (ids_.size() == most_ids_) {
      throw Refusal(413, "there are more than " + std::to_string(most_ids_) + " ids");
    }
    ids_.push_back(id);
  }

  NestedNumbers numbers_;
  const std::size_t most_ids_;
  std::vector<std::string> ids_;
  Member member_ = Member::kInput;
  unsigned seen_ = 0;
  int depth_ = 0;
  bool is_in_ids_ = false;
};

void require_shape(const at::Tensor& input, const InputForm& form) {
  if (form.shape.empty()) return;
  bool is_valid = input.sizes().size() == form.shape.size();
  for (std::size_t i = 0; is_valid && i < form.shape.size(); ++i) {
    is_valid = form.shape[i] < 0 || form.shape[i] == input.sizes()[i];
  }
  if (!is_valid) {
    refuse("'input' is " + of_shape(input.sizes().vec()) + "; this model takes " +
           of_shape(form.shape));
  }
}

}  // namespace

InputForm input_form_of(const Configuration& configuration) {
  const at::ScalarType dtype = configuration.dtype == "int64"     ? at::kLong
                               : configuration.dtype == "float64" ? at::kDouble
                                                                  : at::kFloat;
  const std::vector<std::int64_t>& shape = configuration.shape;
  return {dtype, shape, std::max(configuration.rows, shape.empty() ? 0 : shape[0])};
}

PredictRequest parse_predict_request(const std::string& body, const InputForm& form) {
  Reader reader(form);
  Json::sax_parse(body, &reader);
  PredictRequest request = reader.request();
  require_shape(request.input, form);
  if (request.has_ids && (request.input.dim() == 0 ||
                          request.input.size(0) != static_cast<std::int64_t>(request.ids.size()))) {
    refuse("there are " + std::to_string(request.ids.size()) + " ids, and 'input' is " +
           of_shape(request.input.sizes().vec()) + "; valid is one id for each row");
  }
  return request;
}

}  // namespace server
