// SPDX-License-Identifier: Apache-2.0
//
// Converts a value's payload to the bytes of a record and back: unchanged, or through a codec.
#pragma once

#include <functional>

#include "base/bytes.h"
#include "cache/value.h"
#include "codec/codec.h"
#include "tensor/layout.h"

namespace modcache::tensor {

// Encodes the payload where that makes it smaller.
cache::Written write_payload(const Layout& layout, SharedBytes payload, codec::Codec codec);

// Returns whether the stored bytes are the payload as it is.
bool is_plain(const Layout& layout);

// Returns kCorruption when a stored payload of this size cannot belong to `layout`. Call it before
// taking memory for the value.
Status check_payload_size(const Layout& layout, std::size_t stored_size_bytes);

// Fills layout.payload_size_bytes() bytes at `target`. `read` fills its buffer with the stored
// bytes, whose checksum it has checked. REQUIRES: check_payload_size() is ok.
using ReadStored = std::function<Status(void* target)>;
Status read_payload(const Layout& layout, std::size_t stored_size_bytes, const ReadStored& read,
                    void* target);

}  // namespace modcache::tensor
