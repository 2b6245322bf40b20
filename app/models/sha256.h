/// SHA-256 of bytes that come in pieces (FIPS 180-4), by libcrypto. One thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

// A type of libcrypto.
struct evp_md_ctx_st;

namespace keyhole {

class Sha256 {
  public:
    /// Throws Error(unsupported) if the library offers no SHA-256.
    Sha256();
    void add(std::span<const std::byte> bytes);
    /// Returns 64 lower-case hexadecimal digits. Call it once, last.
    std::string digest();

  private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// Hashes an ordinary file. go_on: called with the share that is done, 0..1; false stops, and the result is
/// empty. Throws Error(bad_file).
std::string sha256_of_file(const std::filesystem::path& file, const std::function<bool(double)>& go_on);

}  // namespace keyhole
