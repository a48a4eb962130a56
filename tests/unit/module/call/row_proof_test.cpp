// SPDX-License-Identifier: Apache-2.0
#include "module/call/row_proof.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using Kind = RowCheck::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

tensor::Flat flat(std::vector<at::Tensor> tensors) {
  tensor::Node root;
  if (tensors.size() != 1) {
    root.kind = tensor::Node::Kind::kTuple;
    root.children.resize(tensors.size());
  }
  return {root, std::move(tensors), {}};
}

RowProof judge(const tensor::Flat& result, std::int64_t rows, const tensor::Flat& checked,
               const RowCheck& check, bool is_ragged = false) {
  return judge_row_check({"Encoder.forward", result, rows, {1e-4, 0}, is_ragged}, checked, check);
}

const RowCheck kAlone{Kind::kAlone, 2, 1};

TEST(RowCheckTest, RunsTheLastOfDifferentRowsAlone) {
  const auto checks = plan_row_checks({at::arange(6).reshape({3, 2})}, {0, 1, 2}, false);
  ASSERT_THAT(checks, SizeIs(1));
  EXPECT_EQ(checks[0].kind, Kind::kAlone);
  EXPECT_EQ(checks[0].row, 2);
}

TEST(RowCheckTest, RunsOneRowBesideAMadeOne) {
  const at::Tensor input = at::arange(1, 4).to(at::kFloat).unsqueeze(0);
  const auto checks = plan_row_checks({input}, {0}, false);
  ASSERT_THAT(checks, SizeIs(1));
  const at::Tensor made = check_rows_of(input, checks[0]);
  EXPECT_TRUE(at::equal(made[1], input[0]));
  EXPECT_TRUE(at::equal(made[0], at::tensor({1.75F, 1.25F, 0.75F})));
}

TEST(RowCheckTest, MakesNoRowThatEqualsItsReverse) {
  EXPECT_THAT(plan_row_checks({at::ones({1, 3})}, {0}, false), IsEmpty());
  EXPECT_THAT(plan_row_checks({at::ones({1})}, {0}, false), IsEmpty());
}

TEST(RowCheckTest, RunsEqualRowsAloneAndBesideMadeOnes) {
  for (const at::Tensor& input : {at::ones({2, 3}), at::ones({2, 3}, at::kLong)}) {
    const auto checks = plan_row_checks({input}, {0, 1}, false);
    ASSERT_THAT(checks, SizeIs(2));
    EXPECT_EQ(checks[1].rows, 3);  // another number than that of the batch
    EXPECT_FALSE(at::equal(check_rows_of(input, checks[1])[0], input[0]));
  }
}

TEST(RowCheckTest, KeepsTheShapeOfTheBatchWhereItMust) {
  const auto checks = plan_row_checks({at::arange(4).reshape({2, 2})}, {0, 1}, true);
  ASSERT_THAT(checks, SizeIs(1));
  EXPECT_EQ(checks[0].rows, 2);
  EXPECT_THAT(plan_row_checks({at::arange(2).reshape({1, 2})}, {0}, true), IsEmpty());
}

TEST(RowCheckTest, MakesRowsOfEveryDtype) {
  for (const at::ScalarType type : {at::kByte, at::kLong, at::kBool, at::kHalf, at::kFloat8_e5m2,
                                    at::kComplexFloat, at::kUInt16}) {
    const at::Tensor input = at::tensor({0, 1, 1}).unsqueeze(0).to(type);
    EXPECT_EQ(made_rows(input, /*exchanges_bits=*/true).scalar_type(), type) << type;
  }
}

TEST(RowProofTest, ProvesRowsThatAreTheSameAlone) {
  const at::Tensor result = at::rand({3, 4});
  const RowProof proof = judge(flat({result}), 3, flat({result.slice(0, 2)}), kAlone);
  EXPECT_TRUE(proof.is_proven());
  EXPECT_TRUE(proof.holds_for_one);
  EXPECT_THAT(proof.constants, IsEmpty());
}

TEST(RowProofTest, FindsConstantsBesideRows) {
  const at::Tensor rows = at::rand({3, 4});
  const at::Tensor scale = at::tensor(2.5);
  const at::Tensor three = at::rand({3});
  const RowProof proof =
      judge(flat({scale, rows, three}), 3, flat({scale, rows.slice(0, 2), three}), kAlone);
  EXPECT_TRUE(proof.is_proven());
  EXPECT_THAT(proof.constants, ElementsAre(0, 2));
}

TEST(RowProofTest, RefutesFirstSizesThatDoNotFollow) {
  const RowProof proof = judge(flat({at::rand({3, 3, 5})}), 3, flat({at::rand({3, 1, 5})}), kAlone);
  ASSERT_TRUE(proof.is_refuted());
  EXPECT_THAT(proof.why_not, HasSubstr("its output has the shape [3, 3, 5] for 3 rows"));
  EXPECT_THAT(proof.why_not, HasSubstr("[3, 1, 5] for one row"));
}

TEST(RowProofTest, RefutesRowsThatDependOnOthers) {
  const at::Tensor result = at::rand({3, 4});
  EXPECT_TRUE(judge(flat({result}), 3, flat({result.slice(0, 2) * 1.01}), kAlone).is_refuted());
  EXPECT_TRUE(
      judge(flat({result}), 3, flat({result.slice(0, 2) * (1 + 1e-6)}), kAlone).is_proven());
}

TEST(RowProofTest, RefutesAResultWithoutAnyRows) {
  const at::Tensor constant = at::rand({4});
  EXPECT_TRUE(judge(flat({constant}), 3, flat({constant}), kAlone).is_refuted());
}

TEST(RowProofTest, LetsRaggedRowsDifferInShape) {
  const auto result = flat({at::rand({3, 4})});
  const auto alone = flat({at::rand({1, 7})});
  EXPECT_TRUE(judge(result, 3, alone, kAlone).is_refuted());
  EXPECT_TRUE(judge(result, 3, alone, kAlone, /*is_ragged=*/true).is_proven());
}

TEST(RowProofTest, ProvesNothingByAResultThatStaysInTheSameShape) {
  const RowCheck check{Kind::kSameShape, 2, 3};
  const at::Tensor result = at::rand({3, 4});
  EXPECT_FALSE(judge(flat({result}), 3, flat({result}), check).is_known());
  const RowProof proof = judge(flat({result}), 3, flat({result.slice(0, 2).expand({3, 4})}), check);
  EXPECT_TRUE(proof.is_proven());
  EXPECT_FALSE(proof.holds_for_one);
}

class RowProofNoteTest : public testing::ModuleTest {
 protected:
  RowProofNoteTest() {
    parts_.scope = "scope";
    parts_.method = "forward";
    context_ = parts_.context(tensor::Per::kRow);
  }
  RowProof known() const { return row_proof_of(parts_, *context_); }

  CallParts parts_;
  cache::ContextPtr context_;
};

TEST_F(RowProofNoteTest, IsRememberedUntilItsScopeIsCleared) {
  EXPECT_FALSE(known().is_known());
  RowProof proof;
  proof.verdict = RowProof::Verdict::kProven;
  proof.constants = {0, 12};
  note_row_proof(parts_, *context_, proof);
  EXPECT_THAT(known().constants, ElementsAre(0, 12));
  forget_row_proofs(parts_, "another");
  EXPECT_TRUE(known().is_proven());
  forget_row_proofs(parts_, "scope");
  EXPECT_FALSE(known().is_known());
}

TEST_F(RowProofNoteTest, IsReadFromTheDirectory) {
  for (RowProof proof : {RowProof::refuted("Encoder.forward: no\nrows"), RowProof()}) {
    if (!proof.is_known()) {
      proof.verdict = RowProof::Verdict::kProven;
      proof.holds_for_one = false;
      proof.constants = {3};
    }
    note_row_proof(parts_, *context_, proof);
    // Another process would have only the note.
    const std::string about = "rows \nscope";
    const auto note = test_cache().find_note(about, cache::Mode::kRead);
    ASSERT_TRUE(note.has_value());
    forget_row_proofs(parts_, "scope");
    EXPECT_FALSE(known().is_known());
    forget_row_proofs(parts_, "");  // in this process
    test_cache().keep_note(about, *note, cache::Mode::kOn);
    const RowProof found = known();
    EXPECT_EQ(found.verdict, proof.verdict);
    EXPECT_EQ(found.holds_for_one, proof.holds_for_one);
    EXPECT_EQ(found.constants, proof.constants);
    EXPECT_EQ(found.why_not.empty(), proof.why_not.empty());
  }
}

}  // namespace
}  // namespace modcache::module
