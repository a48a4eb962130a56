// SPDX-License-Identifier: Apache-2.0
//
// The backend that backend_contract_test.cpp holds to the contract.
#pragma once

#include <memory>

#include "remote/backend.h"

namespace modcache::testing {

// Makes a backend of the server that MODCACHE_TEST_REMOTE names; each call another one. Null: the
// variable is not set.
std::unique_ptr<remote::Backend> make_test_backend();

}  // namespace modcache::testing
