// SPDX-License-Identifier: Apache-2.0
//
// Structured values apart and together again, and how two of them differ (difference.h).
#include "tensor/tree.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/difference.h"

namespace modcache::tensor {
namespace {

using at::IValue;
using c10::TypePtr;
using modcache::testing::dtypes_named;
using modcache::testing::tuple_of;
using Kind = Node::Kind;

TypePtr type_of(const std::string& text) { return torch::jit::ScriptTypeParser().parseType(text); }

IValue list_of(const std::string& element, const std::vector<IValue>& items) {
  c10::impl::GenericList list(type_of(element));
  for (const IValue& item : items) list.push_back(item);
  return list;
}
IValue dict_of(const std::string& key, const std::string& value,
               const std::vector<std::pair<IValue, IValue>>& items) {
  c10::impl::GenericDict dict(type_of(key), type_of(value));
  for (const auto& [k, v] : items) dict.insert(k, v);
  return dict;
}
TypePtr point_type(const std::string& name = "__torch__.Point",
                   const std::vector<std::string>& fields = {"x", "label"},
                   const std::string& element = "int") {
  return c10::TupleType::createNamed(c10::QualifiedName(name), fields,
                                     {c10::TensorType::get(), type_of("List[" + element + "]")});
}
IValue point(const TypePtr& type = point_type(), const std::string& element = "int") {
  return c10::ivalue::Tuple::createNamed({at::ones({2}), list_of(element, {})},
                                         type->cast<c10::TupleType>());
}

// As prim::isinstance sees it; the shapes of tensors are no part of it.
std::string type_text(const IValue& value) {
  return c10::unshapedType(value.type())->annotation_str();
}

// What is the same for equal values.
std::string text_of(const Flat& flat) {
  ValueHeader header;
  header.root = flat.root;
  header.tensors.resize(flat.tensors.size());
  return encode_value_header(header);
}

// Through the bytes that are stored.
std::optional<IValue> rebuilt(const Flat& flat, const TypePtr& type) {
  const auto decoded = decode_value_header(text_of(flat));
  EXPECT_TRUE(decoded.is_ok()) << decoded.status().message();
  return rebuild(decoded.value().root, flat.tensors, type);
}

void expect_rebuilt(const IValue& original, const TypePtr& type) {
  const Flat flat = flatten(original);
  ASSERT_EQ(flat.why_not_storable, "");
  const auto again = rebuilt(flat, type);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(type_text(*again), type_text(original));
  const Flat flat_again = flatten(*again);
  EXPECT_EQ(text_of(flat_again), text_of(flat));
  ASSERT_EQ(flat_again.tensors.size(), flat.tensors.size());
  for (std::size_t i = 0; i < flat.tensors.size(); ++i) {
    EXPECT_TRUE(flat_again.tensors[i].is_same(flat.tensors[i]));
  }
}

// ----- TorchScript

TEST(TreeTest, a_value_comes_back_with_the_type_that_it_had) {
  const IValue x = at::ones({2, 3});
  const std::vector<std::pair<IValue, std::string>> cases{
      {x, "Tensor"},
      {IValue(), "Optional[Tensor]"},
      {x, "Optional[Tensor]"},
      {true, "bool"},
      {7, "int"},
      {0.5, "float"},
      {c10::complex<double>(1, 2), "complex"},
      {"text", "str"},
      {7, "Optional[int]"},
      {7, "Union[int, str]"},
      {"7", "Union[int, str]"},
      {7, "number"},
      {tuple_of({}), "Tuple[()]"},
      {tuple_of({x, 3, "a", IValue()}), "Tuple[Tensor, int, str, Optional[Tensor]]"},
      {list_of("Tensor", {x, x}), "List[Tensor]"},
      {list_of("Tensor", {}), "List[Tensor]"},
      {list_of("int", {}), "List[int]"},
      {list_of("Optional[Tensor]", {x, IValue()}), "List[Optional[Tensor]]"},
      {list_of("Optional[int]", {}), "List[Optional[int]]"},
      {list_of("Tuple[Tensor, int]", {tuple_of({x, 1})}), "List[Tuple[Tensor, int]]"},
      {list_of("List[str]", {list_of("str", {}), list_of("str", {"a"})}), "List[List[str]]"},
      {dict_of("str", "Tensor", {{"b", x}, {"a", x}}), "Dict[str, Tensor]"},
      {dict_of("str", "Tensor", {}), "Dict[str, Tensor]"},
      {dict_of("int", "List[Tensor]", {{-1, list_of("Tensor", {})}}), "Dict[int, List[Tensor]]"},
      {dict_of("str", "Optional[Tensor]", {{"a", IValue()}}), "Dict[str, Optional[Tensor]]"},
      {dict_of("str", "Dict[int, float]", {{"a", dict_of("int", "float", {})}}),
       "Dict[str, Dict[int, float]]"}};
  for (const auto& [value, type] : cases) {
    SCOPED_TRACE(type);
    expect_rebuilt(value, type_of(type));
    expect_rebuilt(value, nullptr);
    expect_rebuilt(value, type_of("Any"));
  }
}

TEST(TreeTest, a_named_tuple_comes_back_as_its_class) {
  expect_rebuilt(point(), point_type());
  expect_rebuilt(point(), nullptr);
  const auto again = rebuilt(flatten(point()), nullptr);
  const auto schema = again->toTupleRef().type<c10::TupleType>()->schema();
  ASSERT_NE(schema, nullptr);
  EXPECT_EQ(schema->arguments()[1].name(), "label");
}

TEST(TreeTest, a_declared_class_wins_over_another_name_of_the_stored_one) {
  // Compiled again in another process, a class is called ___torch_mangle_3.Point.
  const TypePtr mangled = point_type("__torch__.___torch_mangle_3.Point");
  const auto again = rebuilt(flatten(point()), mangled);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*again->toTupleRef().type<c10::TupleType>(), *mangled);
}

TEST(TreeTest, of_a_union_the_choice_that_it_was_comes_back) {
  const IValue x = at::ones({2});
  const auto check = [](const IValue& value, const std::string& type) {
    SCOPED_TRACE(type);
    expect_rebuilt(value, type_of(type));
  };
  for (const std::string element : {"int", "str", "Tensor"}) {
    check(list_of(element, {}), "Union[List[int], List[str], List[Tensor]]");
    check(dict_of("str", element, {}), "Union[Dict[str, int], Dict[str, str], Dict[str, Tensor]]");
    check(dict_of("str", element, {}),
          "Optional[Union[Dict[str, Tensor], Dict[str, str], Dict[str, int]]]");
    check(tuple_of({list_of(element, {})}),
          "Union[Tuple[List[Tensor]], Tuple[List[str]], Tuple[List[int]]]");
  }
  check(list_of("Tensor", {x}), "Union[Tensor, List[Tensor]]");
  check(x, "Union[Tensor, List[Tensor]]");
  check(IValue(), "Union[Tensor, List[Tensor], None]");
}

TEST(TreeTest, of_several_classes_in_a_union_the_one_that_it_was_comes_back) {
  // torch makes no union of classes that hold the same types.
  const TypePtr other = point_type("__torch__.Other", {"x", "label"}, "str");
  for (const auto& choices :
       std::vector<std::vector<TypePtr>>{{point_type(), other}, {other, point_type()}}) {
    const TypePtr either = c10::UnionType::create(choices);
    expect_rebuilt(point(), either);
    expect_rebuilt(point(other, "str"), either);
  }
}

TEST(TreeTest, what_is_no_value_of_the_declared_type_is_not_rebuilt) {
  const IValue x = at::ones({2});
  const std::vector<std::pair<IValue, std::string>> cases{
      {x, "int"},
      {1, "Tensor"},
      {1, "float"},
      {true, "int"},
      {IValue(), "Tensor"},
      {1, "Optional[str]"},
      {1.5, "Union[int, str]"},
      {x, "Tuple[Tensor]"},
      {tuple_of({x}), "Tensor"},
      {tuple_of({x, x}), "Tuple[Tensor]"},
      {tuple_of({x}), "Tuple[int]"},
      {list_of("Tensor", {x}), "List[int]"},
      {list_of("Tensor", {x}), "Tuple[Tensor]"},
      {list_of("Tensor", {x}), "Dict[str, Tensor]"},
      {dict_of("str", "Tensor", {{"a", x}}), "Dict[int, Tensor]"},
      {dict_of("str", "Tensor", {{"a", x}}), "Dict[str, int]"},
      {dict_of("str", "Tensor", {{"a", x}}), "List[Tensor]"}};
  for (const auto& [value, type] : cases) {
    EXPECT_FALSE(rebuilt(flatten(value), type_of(type)).has_value()) << type;
  }
  EXPECT_FALSE(rebuilt(flatten(point()), point_type("__torch__.Point", {"x", "y"})).has_value());
}

TEST(TreeTest, what_no_tier_can_hold_is_named) {
  EXPECT_NE(flatten(at::Device(at::kCPU)).why_not_storable, "");
  EXPECT_NE(flatten(tuple_of({1, at::Device(at::kCPU)})).why_not_storable, "");
  EXPECT_NE(flatten(dict_of("float", "int", {{0.5, 1}})).why_not_storable, "");
  EXPECT_EQ(flatten(tuple_of({at::ones({2}).to_sparse()})).why_not_storable, "");
  EXPECT_NE(why_not_storable(flatten(tuple_of({at::ones({2}).to_sparse()}))), "");
  EXPECT_EQ(why_not_storable(flatten(tuple_of({at::ones({2})}))), "");
}

TEST(TreeTest, what_is_nested_deeper_than_can_be_read_back_is_not_stored) {
  const auto nested = [](int depth, IValue innermost) {
    for (int i = 0; i < depth; ++i) innermost = tuple_of({innermost});
    return innermost;
  };
  const auto tagged = [](int depth, IValue innermost) {
    for (int i = 0; i < depth; ++i) innermost = tuple_of({"(", tuple_of({innermost})});
    return innermost;
  };
  expect_rebuilt(nested(ValueHeader::kMostDepth, 1), nullptr);
  expect_rebuilt(nested(ValueHeader::kMostDepth - 1, tuple_of({})), nullptr);
  EXPECT_NE(flatten(nested(ValueHeader::kMostDepth, tuple_of({}))).why_not_storable, "");
  EXPECT_NE(flatten(nested(ValueHeader::kMostDepth + 1, 1)).why_not_storable, "");
  EXPECT_EQ(flatten_tagged(tagged(ValueHeader::kMostDepth, 1)).why_not_storable, "");
  EXPECT_NE(flatten_tagged(tagged(ValueHeader::kMostDepth + 1, 1)).why_not_storable, "");
}

// ----- Python's tagged tuples

const IValue kEmpty = tuple_of({});

TEST(TaggedTest, every_container_comes_back_as_it_was_handed_over) {
  const IValue x = at::ones({2});
  for (const IValue& value : std::vector<IValue>{
           x, IValue(), true, 7, 0.5, c10::complex<double>(1, 2), "(", "text",
           tuple_of({"(", kEmpty}), tuple_of({"(", tuple_of({x, 7, "("})}),
           tuple_of({"[", tuple_of({x, "a", IValue()})}), tuple_of({"{", kEmpty, kEmpty}),
           tuple_of({"{", tuple_of({"a", 7}), tuple_of({x, tuple_of({"[", kEmpty})})}),
           tuple_of({"N", "module:Point", tuple_of({"x", "y"}), tuple_of({x, 1})}),
           tuple_of({"o", "module:Output", "[\"a\"]", tuple_of({x})})}) {
    const Flat flat = flatten_tagged(value);
    EXPECT_EQ(flat.why_not_storable, "");
    const auto decoded = decode_value_header(text_of(flat));
    ASSERT_TRUE(decoded.is_ok());
    const IValue again = rebuild_tagged(decoded.value().root, flat.tensors);
    EXPECT_EQ(text_of(flatten(again)), text_of(flatten(value)));
  }
}

TEST(TaggedTest, what_is_no_tagged_tuple_is_an_error) {
  const IValue x = at::ones({2});
  for (const IValue& value : std::vector<IValue>{
           kEmpty, tuple_of({x}), tuple_of({"?", kEmpty}), tuple_of({"("}), tuple_of({"(", x}),
           tuple_of({"((", kEmpty}), tuple_of({"(", kEmpty, kEmpty}), tuple_of({"t"}),
           tuple_of({"{", kEmpty}), tuple_of({"{", tuple_of({"a"}), kEmpty}),
           tuple_of({"{", tuple_of({x}), tuple_of({x})}), tuple_of({"N", "c", kEmpty}),
           tuple_of({"N", 1, kEmpty, kEmpty}), tuple_of({"o", "c", 1, kEmpty}),
           tuple_of({"[", tuple_of({kEmpty})}), list_of("int", {1})}) {
    EXPECT_ANY_THROW(flatten_tagged(value));
  }
}

TEST(TaggedTest, what_python_stored_torchscript_reads_as_its_declared_type) {
  const IValue x = at::ones({2});
  const auto read = [](const IValue& tagged, const TypePtr& type) {
    const auto value = rebuilt(flatten_tagged(tagged), type);
    return value.has_value() ? type_text(*value) : "none";
  };
  const IValue dict = tuple_of({"{", tuple_of({"a"}), tuple_of({x})});
  EXPECT_EQ(read(dict, type_of("Dict[str, Tensor]")), "Dict[str, Tensor]");
  EXPECT_EQ(read(dict, type_of("Dict[str, Optional[Tensor]]")), "Dict[str, Optional[Tensor]]");
  EXPECT_EQ(read(tuple_of({"[", kEmpty}), type_of("List[int]")), "List[int]");
  EXPECT_EQ(read(tuple_of({"[", kEmpty}), type_of("Union[List[int], Tensor]")), "List[int]");
  const IValue named = tuple_of(
      {"N", "module:Point", tuple_of({"x", "label"}), tuple_of({x, tuple_of({"[", kEmpty})})});
  EXPECT_EQ(read(named, point_type()), "__torch__.Point");
}

TEST(TaggedTest, what_python_stored_has_the_types_of_its_parts_where_none_is_declared) {
  const IValue x = at::ones({2});
  const IValue y = at::ones({3}, at::kLong);
  const auto read = [](const IValue& tagged) {
    const auto value = rebuilt(flatten_tagged(tagged), nullptr);
    return value.has_value() ? value->type()->annotation_str() : "none";
  };
  const auto list = [](std::vector<IValue> items) {
    return tuple_of({"[", tuple_of(std::move(items))});
  };
  const auto pair = [](const IValue& a, const IValue& b) {
    return tuple_of({"(", tuple_of({a, b})});
  };
  EXPECT_EQ(read(list({1, 2})), "List[int]");
  EXPECT_EQ(read(list({x, y})), "List[Tensor]");
  EXPECT_EQ(read(list({})), "List[Tensor]");
  EXPECT_EQ(read(list({1, "a"})), "List[Any]");
  EXPECT_EQ(read(list({pair(x, 1), pair(y, 2)})), "List[Tuple[Tensor, int]]");
  EXPECT_EQ(read(tuple_of({"{", tuple_of({"a", "b"}), tuple_of({x, y})})), "Dict[str, Tensor]");
  EXPECT_EQ(read(tuple_of({"{", tuple_of({1}), tuple_of({"a"})})), "Dict[int, str]");
  EXPECT_EQ(read(tuple_of({"{", tuple_of({1, "a"}), tuple_of({x, x})})), "none")
      << "TorchScript has no dict with keys of two types";
  EXPECT_EQ(read(tuple_of({"o", "c", "d", tuple_of({x})})), "none");
}

TEST(TaggedTest, names_that_torch_does_not_take_are_no_value_rather_than_an_error) {
  const auto read = [](const std::string& name, const std::string& field) {
    return rebuilt(flatten_tagged(tuple_of({"N", name, tuple_of({field, "b"}), tuple_of({1, 2})})),
                   nullptr);
  };
  EXPECT_TRUE(read("module.Point", "a").has_value());
  for (const std::string name : {"", ".", "a..b", "module:<locals>.Point"}) {
    EXPECT_NO_THROW(read(name, "a")) << name;
  }
  for (const std::string field : {"", "b", "a.b", "1"}) {
    EXPECT_NO_THROW(read("module.Point", field)) << field;
  }
}

// ----- difference

std::string between(const at::Tensor& fresh, const at::Tensor& stored, Tolerance tolerance = {}) {
  return difference(flatten(IValue(fresh)), flatten(IValue(stored)), tolerance);
}
at::Tensor doubles(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(DifferenceTest, numbers_may_differ_by_the_tolerance_times_the_largest_of_their_tensor) {
  const at::Tensor stored = doubles({100, 1, 0});
  EXPECT_EQ(between(stored, stored), "");
  EXPECT_EQ(between(doubles({100, 1, 0.09}), stored, {0.001}), "");
  EXPECT_NE(between(doubles({100, 1, 0.11}), stored, {0.001}), "");
  EXPECT_NE(between(doubles({100, 1, 1e-300}), stored), "");
  EXPECT_EQ(between(doubles({100, 1, 0.11}), stored, {0.001, 0.02}), "");
  EXPECT_EQ(between(doubles({0.01}), doubles({0}), {0.5, 0.01}), "");
  EXPECT_NE(between(doubles({0.01}), doubles({0}), {0.5}), "");
  EXPECT_NE(between(doubles({1e308}), doubles({-1e308}), {0.1}), "");
}

TEST(DifferenceTest, nan_is_nan_and_an_infinity_is_the_same_infinity) {
  EXPECT_EQ(between(doubles({kNan, kInfinity, -kInfinity}), doubles({kNan, kInfinity, -kInfinity})),
            "");
  for (const auto& [fresh, stored] : std::vector<std::pair<double, double>>{{kNan, 1},
                                                                            {1, kNan},
                                                                            {kInfinity, 1},
                                                                            {1, kInfinity},
                                                                            {kInfinity, -kInfinity},
                                                                            {kNan, kInfinity}}) {
    EXPECT_NE(between(doubles({fresh, 1}), doubles({stored, 1}), {1e9, 1e9}), "");
  }
  EXPECT_NE(between(doubles({kInfinity, 1}), doubles({kInfinity, 2}), {0.1}), "")
      << "an infinity is not the largest number";
}

TEST(DifferenceTest, integers_and_bools_have_no_tolerance) {
  for (const at::ScalarType dtype : dtypes_named({"uint8", "int64", "uint16", "uint64", "bool"})) {
    const at::Tensor ones = at::ones({3}).to(dtype);
    EXPECT_EQ(between(ones, ones.clone()), "") << dtype;
    EXPECT_NE(between(ones, at::zeros({3}).to(dtype), {10, 10}), "") << dtype;
  }
  const at::Tensor large = at::full({1}, std::int64_t{1} << 60, at::kLong);
  EXPECT_NE(between(large, large + 1), "") << "equal as doubles";
}

TEST(DifferenceTest, every_dtype_can_be_compared) {
  for (const at::ScalarType dtype :
       dtypes_named({"float16", "bfloat16", "complex32", "complex64", "complex128", "float8_e4m3fn",
                     "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2", "uint4", "int1"})) {
    const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
    const at::Tensor zeros = at::zeros({2 * size}, at::kByte).view(dtype);
    const at::Tensor other = at::full({2 * size}, 0x11, at::kByte).view(dtype);
    EXPECT_EQ(between(zeros, at::zeros({2 * size}, at::kByte).view(dtype)), "") << dtype;
    EXPECT_NE(between(zeros, other), "") << dtype;
  }
}

TEST(DifferenceTest, another_dtype_or_shape_is_named) {
  EXPECT_NE(between(doubles({1}), doubles({1}).to(at::kFloat), {1, 1}), "");
  const std::string found = between(at::ones({2, 3}), at::ones({3, 2}), {1, 1});
  EXPECT_NE(found.find("[2, 3]"), std::string::npos) << found;
  EXPECT_NE(found.find("[3, 2]"), std::string::npos) << found;
  EXPECT_EQ(between(at::ones({0, 3}), at::ones({0, 3})), "");
  EXPECT_NE(between(at::ones({0, 3}), at::ones({3, 0})), "");
}

TEST(DifferenceTest, plain_values_and_structure_are_compared_exactly_and_all_tensors_are) {
  const IValue x = at::ones({2});
  const auto between_values = [](const IValue& a, const IValue& b) {
    return difference(flatten(a), flatten(b), {1, 1});
  };
  EXPECT_EQ(between_values(tuple_of({x, 0.5, "a"}), tuple_of({x, 0.5, "a"})), "");
  EXPECT_NE(between_values(tuple_of({x, 0.5}), tuple_of({x, 0.25})), "");
  EXPECT_NE(between_values(tuple_of({x}), tuple_of({x, x})), "");
  EXPECT_NE(between_values(tuple_of({x}), x), "");
  EXPECT_NE(between_values(tuple_of({x, x}), tuple_of({x, at::full({2}, 9)})), "");
}

}  // namespace
}  // namespace modcache::tensor
