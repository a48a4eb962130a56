// SPDX-License-Identifier: Apache-2.0
//
// A value's payload on its way to a record and back: plain, or through a codec.
#pragma once

#include <functional>

#include "base/bytes.h"
#include "cache/value.h"
#include "codec/codec.h"
#include "tensor/layout.h"

namespace modcache::tensor {

// Encoded where that makes it smaller.
cache::Written write_payload(const Layout& layout, SharedBytes payload, codec::Codec codec);

// kCorruption when a payload of this many bytes cannot be that of `layout`: asked before memory
// for it is taken.
Status check_payload_size(const Layout& layout, std::size_t stored_size_bytes);

// Fills layout.payload_size_bytes() bytes at `target`. `read` fills the stored bytes, checked.
// REQUIRES: check_payload_size().
using ReadStored = std::function<Status(void* target)>;
Status read_payload(const Layout& layout, std::size_t stored_size_bytes, const ReadStored& read,
                    void* target);
Status read_payload(const Layout& layout, const store::FoundEntry& found, void* target);

}  // namespace modcache::tensor
