// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tensor/tree.h"

namespace modcache::tensor {
namespace {

using c10::DictType;
using c10::ListType;
using c10::OptionalType;
using c10::TupleType;
using c10::TypePtr;

TEST(TypeTextTest, is_read_as_torch_writes_it) {
  const TypePtr tensor = c10::TensorType::get();
  const TypePtr text = c10::StringType::get();
  const TypePtr number = c10::IntType::get();
  const TypePtr list = ListType::create(tensor);
  const std::vector<TypePtr> types{
      tensor,
      text,
      number,
      c10::FloatType::get(),
      c10::BoolType::get(),
      c10::ComplexType::get(),
      c10::NumberType::get(),
      c10::NoneType::get(),
      c10::AnyType::get(),
      c10::DeviceObjType::get(),
      list,
      ListType::create(list),
      OptionalType::create(list),
      DictType::create(text, OptionalType::create(tensor)),
      DictType::create(number, DictType::create(text, list)),
      TupleType::create({}),
      TupleType::create({tensor}),
      TupleType::create({tensor, TupleType::create({number, text}), list}),
      c10::UnionType::create({tensor, text}),
      ListType::create(c10::UnionType::create({list, c10::NoneType::get(), number})),
  };
  for (const TypePtr& type : types) {
    const TypePtr read = parse_type(type->annotation_str());
    ASSERT_NE(read, nullptr) << type->annotation_str();
    EXPECT_EQ(*read, *type) << type->annotation_str();
  }
}

TEST(TypeTextTest, that_is_none_gives_nothing) {
  for (const char* text :
       {"", " ", "Tensor ", "tensor", "__torch__.Pair", "List", "List[", "List[]", "List[Tensor",
        "List[Tensor]]", "List[Tensor, int]", "Dict[str]", "Dict[str,Tensor]", "Tuple[", "[int]",
        "Dict[List[int], int]", "List[__torch__.Pair]", "Union[()]extra", "Wrong[int]"}) {
    EXPECT_EQ(parse_type(text), nullptr) << text;
  }
}

TEST(TypeTextTest, that_nests_without_end_gives_nothing) {
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "List[";
  EXPECT_EQ(parse_type(text), nullptr);
}

}  // namespace
}  // namespace modcache::tensor
