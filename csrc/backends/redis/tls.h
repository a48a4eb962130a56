// SPDX-License-Identifier: Apache-2.0
//
// TlsSettings: what connections with TLS are made with. A server's certificate has to be of an
// authority that is trusted and of the name that was asked for, unless the address says `verify=0`.
#pragma once

#include <memory>

#include "base/result.h"
#include "remote/address.h"

struct ssl_ctx_st;
struct valkeyContext;  // NOLINT(readability-identifier-naming): libvalkey's

namespace modcache::backends {

class TlsSettings {
 public:
  // Nothing inside for an address without TLS. kInvalidArgument: a file cannot be used.
  static Result<TlsSettings> of(const remote::Address& address);

  // Makes the connection a TLS one; does nothing where none are given. Returns VALKEY_OK, or
  // VALKEY_ERR with the error in the connection.
  int start(valkeyContext& connection) const;

 private:
  std::shared_ptr<ssl_ctx_st> context_;
  bool verifies_ = true;
};

}  // namespace modcache::backends
