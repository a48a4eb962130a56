// SPDX-License-Identifier: Apache-2.0
//
// Whether a directory verifies clean.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "store/verify/verify.h"

namespace modcache::testing {

inline void expect_clean(fs::FileSystem& file_system, const std::string& directory) {
  store::VerifyOptions options;
  options.directory = directory;
  auto verification = store::verify_directory(file_system, options);
  ASSERT_TRUE(verification.is_ok()) << verification.status().message();
  for (const store::Finding& finding : verification.value().findings) {
    EXPECT_FALSE(finding.is_damage) << store::finding_name(finding.kind) << ": " << finding.file
                                    << ": " << finding.what << ", key '" << finding.key << "'";
  }
}

}  // namespace modcache::testing
