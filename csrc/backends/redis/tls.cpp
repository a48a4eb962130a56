// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <valkey/tls.h>
#include <valkey/valkey.h>

#include <cstdio>
#include <string>
#include <utility>

namespace modcache::backends {
namespace {

using SslPtr = std::unique_ptr<SSL, decltype(&SSL_free)>;

std::string last_error() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown";
}

Status cannot_use(const std::string& what, const std::string& file) {
  return Status::invalid_argument(
      "the " + what + " '" + file +
      "' (parameters ca, cert and key of remote) cannot be used: " + last_error());
}

Status load_files(SSL_CTX& context, const remote::Address& address) {
  const std::string ca(address.parameter("ca"));
  const std::string certificate(address.parameter("cert"));
  const std::string key(address.parameter("key"));
  if (ca.empty()) {
    SSL_CTX_set_default_verify_paths(&context);
  } else if (SSL_CTX_load_verify_locations(&context, ca.c_str(), nullptr) != 1) {
    return cannot_use("authority's certificate", ca);
  }
  if (certificate.empty() != key.empty()) {
    return Status::invalid_argument(
        "a certificate of one's own needs both parameters of remote, cert and key");
  }
  if (certificate.empty()) return Status::ok();
  if (SSL_CTX_use_certificate_chain_file(&context, certificate.c_str()) != 1) {
    return cannot_use("certificate", certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(&context, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return cannot_use("key", key);
  }
  return Status::ok();
}

bool is_ip(const char* host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

// The certificate has to be of this host.
bool expect_host(SSL& ssl, const char* host, bool verifies) {
  if (host == nullptr) return true;
  if (!is_ip(host) && SSL_set_tlsext_host_name(&ssl, host) != 1) return false;
  if (!verifies) return true;
  if (is_ip(host)) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(&ssl), host) == 1;
  return SSL_set1_host(&ssl, host) == 1;
}

void set_error(valkeyContext& connection, const std::string& text) {
  connection.err = VALKEY_ERR_OTHER;
  std::snprintf(connection.errstr, sizeof connection.errstr, "%s", text.c_str());
}

}  // namespace

Result<TlsSettings> TlsSettings::of(const remote::Address& address) {
  TlsSettings settings;
  if (!address.uses_tls) return settings;
  settings.verifies_ = address.parameter("verify") != "0";
  SSL_CTX* const made = SSL_CTX_new(TLS_client_method());
  if (made == nullptr) return Status::io_error("TLS cannot be used: " + last_error());
  settings.context_ = {made, [](SSL_CTX* owned) { SSL_CTX_free(owned); }};
  SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION);
  SSL_CTX_set_verify(made, settings.verifies_ ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  MODCACHE_RETURN_IF_ERROR(load_files(*made, address));
  return settings;
}

int TlsSettings::start(valkeyContext& connection) const {
  if (context_ == nullptr) return VALKEY_OK;
  if (connection.err != 0) return VALKEY_ERR;
  SslPtr ssl(SSL_new(context_.get()), &SSL_free);
  if (ssl == nullptr || !expect_host(*ssl, connection.tcp.host, verifies_)) {
    set_error(connection, "TLS cannot be started: " + last_error());
    return VALKEY_ERR;
  }
  if (valkeyInitiateTLS(&connection, ssl.get()) != VALKEY_OK) {
    const long verdict = SSL_get_verify_result(ssl.get());
    if (verdict != X509_V_OK) {
      set_error(connection, std::string("its certificate is refused: ") +
                                X509_verify_cert_error_string(verdict));
    }
    return VALKEY_ERR;
  }
  ssl.release();  // NOLINT(bugprone-unused-return-value): the connection owns it now
  return VALKEY_OK;
}

}  // namespace modcache::backends
