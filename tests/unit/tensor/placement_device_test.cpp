// SPDX-License-Identifier: Apache-2.0
//
// Places and rows on an accelerator; placement_test.cpp has what every machine has.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "support/accelerator.h"
#include "support/value_tensors.h"
#include "tensor/input.h"
#include "tensor/input_sampler.h"
#include "tensor/placement.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

using modcache::testing::all_dtypes;
using modcache::testing::current_stream;
using modcache::testing::cut;
using modcache::testing::expect_same;
using modcache::testing::flat_of;
using modcache::testing::HeldBack;
using modcache::testing::kDevice;
using modcache::testing::matrix_of;
using modcache::testing::other_stream;
using modcache::testing::SlowedDown;
using modcache::testing::synchronize;
using ::testing::HasSubstr;

using Resident = std::vector<std::shared_ptr<const RowValue>>;

const std::string kName = "testdevice:0";

Resident on(const std::string& device, const std::vector<std::shared_ptr<const RowValue>>& rows) {
  Resident resident;
  for (const auto& row : rows) resident.push_back(row->on(device));
  return resident;
}

// --- Places ------------------------------------------------------------------------------------

TEST(PlacementDeviceTest, places_of_this_machine) {
  for (const char* text : {"accelerator", "testdevice", "testdevice:0"}) {
    EXPECT_EQ(place_name(parse_place(text).value()), kName) << text;
  }
  EXPECT_EQ(place_name(parse_place("testdevice:1").value()), "testdevice:1");
  EXPECT_EQ(place_name(parse_place("pinned").value()), "pinned");
  const c10::impl::VirtualGuardImpl guard(kDevice.type());
  guard.setDevice({kDevice.type(), 1});
  EXPECT_EQ(place_name(parse_place("accelerator").value()), "testdevice:1");
  guard.setDevice(kDevice);
}

TEST(PlacementDeviceTest, a_place_that_is_not_there_is_refused_with_those_that_are) {
  for (const char* text : {"testdevice:2", "cuda", "cuda:0", "xpu:0", "meta", "cpu:1:2"}) {
    const auto place = parse_place(text);
    ASSERT_FALSE(place.is_ok()) << text;
    EXPECT_THAT(place.status().message(), HasSubstr("\"testdevice:0\", \"testdevice:1\""));
  }
}

TEST(PlacementDeviceTest, pinned_tensors_are_pinned) {
  for (const at::ScalarType dtype : all_dtypes()) {
    EXPECT_TRUE(pinned_tensor({3, 2}, dtype).is_pinned()) << dtype;
  }
}

TEST(PlacementDeviceTest, a_copy_on_the_device_is_complete_for_every_stream) {
  const at::Tensor here = pinned_tensor({1000}, at::kFloat).fill_(1);
  at::Tensor there;
  {
    const SlowedDown slowly(5000);
    there = copy_to_device(here, kName);
  }
  here.fill_(2);  // its memory is used for something else
  const c10::StreamGuard guard(other_stream());
  expect_same(there.cpu(), at::ones({1000}));
}

TEST(PlacementDeviceTest, a_device_without_room_takes_nothing) {
  const at::Tensor huge = at::zeros({1}, at::kByte).expand({std::int64_t{9} << 30});
  EXPECT_FALSE(copy_to_device(huge, kName).defined());
  EXPECT_FALSE(copy_to_device(at::ones({3}), "testdevice:7").defined());
}

// --- Rows --------------------------------------------------------------------------------------

TEST(RowsOnDeviceTest, rows_of_every_dtype_come_together_where_the_input_lies) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    const auto rows = on(kName, cut(batch));
    const auto there = together_on_device(rows, kDevice);
    ASSERT_TRUE(there.has_value());
    EXPECT_EQ(there->tensors[0].device(), kDevice);
    expect_same(there->tensors[0].cpu(), batch);
    const auto here = together_on_device(rows, at::Device(at::kCPU));
    EXPECT_TRUE(here->tensors[0].is_cpu());
    expect_same(here->tensors[0], batch);
  }
}

TEST(RowsOnDeviceTest, rows_on_two_devices_do_not_come_together) {
  const auto rows = cut(at::ones({2, 3}));
  EXPECT_FALSE(
      together_on_device({rows[0]->on(kName), rows[1]->on("testdevice:1")}, kDevice).has_value());
}

TEST(RowsOnDeviceTest, a_result_on_the_device_is_cut_and_written_like_one_on_the_host) {
  const at::Tensor batch = at::randn({3, 4});
  const auto here = cut(batch);
  const SlowedDown slowly(1000);
  const at::Tensor transposed = batch.t().contiguous().to(kDevice).t();
  for (const at::Tensor& result : {batch.to(kDevice), transposed}) {
    const auto there = cut(flat_of({result}), cache::StoredDtype::kKeep, kDevice);
    for (std::size_t row = 0; row < 3; ++row) {
      const auto written = here[row]->write(codec::Codec::kNone);
      EXPECT_EQ(there[row]->write(codec::Codec::kNone).payload.view(), written.payload.view());
      const auto resident = there[row]->on(kName);
      EXPECT_EQ(resident->write(codec::Codec::kNone).payload.view(), written.payload.view());
    }
  }
}

TEST(RowsOnDeviceTest, a_row_may_leave_the_tier_while_a_stream_reads_it) {
  const at::Tensor batch = at::randn({2, 1000});
  auto rows = on(kName, cut(batch));
  auto alone = on(kName, cut(batch.slice(0, 0, 1)));
  const c10::Stream owner = current_stream();
  const c10::Stream reader = other_stream();
  at::Tensor read;
  {
    const HeldBack held(reader);
    const c10::StreamGuard guard(reader);
    read = together_on_device(alone, kDevice)->tensors[0];  // a lone row is copied: no host waits
    alone.clear();
    owner.synchronize();
  }
  synchronize();
  expect_same(read.cpu(), batch.slice(0, 0, 1));
}

TEST(RowsOnDeviceTest, stored_rows_in_pinned_memory_are_sent_while_the_host_continues) {
  const at::Tensor batch = at::randn({3, 1000});
  const auto rows = cut(batch);
  at::Tensor sent;
  {
    const HeldBack held(current_stream());
    RowsOutput output(3, /*is_pinned=*/true);
    for (std::size_t row = 0; row < 3; ++row) {
      StoredRow stored;
      stored.row = row;
      stored.layout = &rows[row]->layout();
      stored.bytes = rows[row]->bytes();
      output.add_stored({stored}, [](std::size_t, void*) { return Status::ok(); });
    }
    sent = output.together(kDevice)->tensors[0];
  }  // the pinned block has gone before the copy began
  EXPECT_EQ(sent.device(), kDevice);
  expect_same(sent.cpu(), batch);
}

TEST(RowsOnDeviceTest, stored_resident_computed_and_repeated_rows_mix) {
  const at::Tensor batch = at::randn({5, 3});
  const auto rows = cut(batch);
  for (const bool is_pinned : {false, true}) {
    const SlowedDown slowly(500);
    RowsOutput output(6, is_pinned);
    StoredRow stored;
    stored.row = 3;
    stored.layout = &rows[3]->layout();
    stored.bytes = rows[3]->bytes();
    output.add_stored({stored}, [](std::size_t, void*) { return Status::ok(); });
    output.add_computed({0, 2}, *together_on_device(on(kName, {rows[0], rows[2]}), kDevice));
    output.add_computed({1, 4}, flat_of({at::stack({batch[1], batch[4]}).to(kDevice)}));
    output.repeat(5, 2);
    const auto together = output.together(kDevice);
    ASSERT_TRUE(together.has_value());
    EXPECT_EQ(together->tensors[0].device(), kDevice);
    expect_same(together->tensors[0].cpu(), at::cat({batch, batch.slice(0, 2, 3)}));
  }
}

// --- Samples of inputs -------------------------------------------------------------------------

std::string sample_of(const at::Tensor& tensor, std::size_t row, Per per) {
  const InputSampler sampler({&tensor, 1}, per);
  return std::string(sampler.measure(row).sample().bytes());
}

TEST(InputOnDeviceTest, it_has_the_sample_that_it_has_on_the_host) {
  const SlowedDown slowly(200);
  for (const at::Tensor& input :
       {at::randn({5, 7}), at::randn({5, 40000}), at::randn({40, 5}).t(),
        at::randn({5, 300}).to(at::kHalf), at::randn({5, 40}, at::kComplexFloat),
        at::randn({5, 40}, at::kComplexFloat).conj(), at::randint(1000, {5, 12}, at::kLong),
        at::randint(255, {5, 20000}, at::kByte), at::randn({5, 33}) > 0}) {
    const at::Tensor there = input.to(kDevice);
    EXPECT_NE(sample_of(there, 3, Per::kRow), "");
    EXPECT_EQ(sample_of(there, 3, Per::kRow), sample_of(input, 3, Per::kRow)) << input.dtype();
    EXPECT_EQ(sample_of(there, 0, Per::kCall), sample_of(input, 0, Per::kCall)) << input.dtype();
    EXPECT_TRUE(InputSampler({&there, 1}, Per::kCall).is_costly());
  }
}

TEST(InputOnDeviceTest, every_dtype_is_sampled_there) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor input = matrix_of(dtype);
    EXPECT_EQ(sample_of(input.to(kDevice), 0, Per::kRow), sample_of(input, 0, Per::kRow)) << dtype;
  }
}

// --- Arithmetic --------------------------------------------------------------------------------

TEST(ArithmeticTest, autocast_of_every_kind_of_device_is_part_of_it) {
  EXPECT_EQ(arithmetic_state(), "");
  EXPECT_TRUE(autocast_devices().empty());
  for (const at::DeviceType kind : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    at::autocast::set_autocast_enabled(kind, true);
    EXPECT_EQ(arithmetic_state().rfind(c10::DeviceTypeName(kind, true) + "=", 0), 0) << kind;
    at::autocast::set_autocast_enabled(kind, false);
  }
  EXPECT_EQ(arithmetic_state(), "");
}

}  // namespace
}  // namespace modcache::tensor
