// SPDX-License-Identifier: Apache-2.0
//
// Values put together again: rebuild() of tree.h.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/script_values.h"
#include "support/value_tensors.h"
#include "tensor/tree.h"

namespace modcache::tensor {
namespace {

using at::IValue;
using c10::TypePtr;
using testing::dict_of;
using testing::expect_rebuilt;
using testing::list_of;
using testing::point;
using testing::point_type;
using testing::rebuilt;
using testing::tuple_of;
using testing::type_of;
using testing::type_text;

const IValue kNoItems = tuple_of({});

TEST(TreeRebuildTest, a_value_comes_back_with_the_type_that_it_had) {
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

TEST(TreeRebuildTest, a_named_tuple_comes_back_as_its_class) {
  expect_rebuilt(point(), point_type());
  expect_rebuilt(point(), nullptr);
  const auto again = rebuilt(flatten(point()), nullptr);
  const auto schema = again->toTupleRef().type<c10::TupleType>()->schema();
  ASSERT_NE(schema, nullptr);
  EXPECT_EQ(schema->arguments()[1].name(), "label");
}

TEST(TreeRebuildTest, a_declared_class_wins_over_another_name_of_the_stored_one) {
  // Compiled again in another process, a class is called ___torch_mangle_3.Point.
  const TypePtr mangled = point_type("__torch__.___torch_mangle_3.Point");
  const auto again = rebuilt(flatten(point()), mangled);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*again->toTupleRef().type<c10::TupleType>(), *mangled);
}

TEST(TreeRebuildTest, of_a_union_the_choice_that_it_was_comes_back) {
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

TEST(TreeRebuildTest, of_several_classes_in_a_union_the_one_that_it_was_comes_back) {
  // torch makes no union of classes that hold the same types.
  const TypePtr other = point_type("__torch__.Other", {"x", "label"}, "str");
  for (const auto& choices :
       std::vector<std::vector<TypePtr>>{{point_type(), other}, {other, point_type()}}) {
    const TypePtr either = c10::UnionType::create(choices);
    expect_rebuilt(point(), either);
    expect_rebuilt(point(other, "str"), either);
  }
}

TEST(TreeRebuildTest, what_is_no_value_of_the_declared_type_is_not_rebuilt) {
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

TEST(TreeRebuildTest, what_python_stored_torchscript_reads_as_its_declared_type) {
  const IValue x = at::ones({2});
  const auto read = [](const IValue& tagged, const TypePtr& type) {
    const auto value = rebuilt(flatten_tagged(tagged), type);
    return value.has_value() ? type_text(*value) : "none";
  };
  const IValue dict = tuple_of({"{", tuple_of({"a"}), tuple_of({x})});
  EXPECT_EQ(read(dict, type_of("Dict[str, Tensor]")), "Dict[str, Tensor]");
  EXPECT_EQ(read(dict, type_of("Dict[str, Optional[Tensor]]")), "Dict[str, Optional[Tensor]]");
  EXPECT_EQ(read(tuple_of({"[", kNoItems}), type_of("List[int]")), "List[int]");
  EXPECT_EQ(read(tuple_of({"[", kNoItems}), type_of("Union[List[int], Tensor]")), "List[int]");
  const IValue named = tuple_of(
      {"N", "module:Point", tuple_of({"x", "label"}), tuple_of({x, tuple_of({"[", kNoItems})})});
  EXPECT_EQ(read(named, point_type()), "__torch__.Point");
}

TEST(TreeRebuildTest, what_python_stored_has_the_types_of_its_parts_where_none_is_declared) {
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

TEST(TreeRebuildTest, names_that_torch_does_not_take_are_no_value_rather_than_an_error) {
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

}  // namespace
}  // namespace modcache::tensor
