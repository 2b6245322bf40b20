#include "app/models/sha256.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <system_error>
#include <vector>

namespace keyhole {

namespace {

void check(int done) {
    if (done != 1)
        fail(ErrorCode::unsupported, "libcrypto computes no SHA-256 here; check the settings of OpenSSL");
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    check(context_ != nullptr ? EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) : 0);
}

void Sha256::add(std::span<const std::byte> bytes) {
    check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Sha256::digest() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
    unsigned n_bytes = 0;
    check(EVP_DigestFinal_ex(context_.get(), bytes.data(), &n_bytes));
    std::string text;
    for (unsigned i = 0; i < n_bytes; ++i) text += fmt::format("{:02x}", bytes[to_index(i)]);
    return text;
}

std::string sha256_of_file(const std::filesystem::path& file, const std::function<bool(double)>& go_on) {
    check_ordinary_file(file);
    std::error_code error;
    const auto size = static_cast<double>(std::filesystem::file_size(file, error));
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rbe"), std::fclose);
    if (in == nullptr || error)
        fail(ErrorCode::bad_file, "cannot read {}; check its permissions", file.string());
    Sha256 hash;
    std::vector<std::byte> block(1 << 20);
    double done = 0;
    while (const std::size_t n = std::fread(block.data(), 1, block.size(), in.get())) {
        hash.add(std::span(block).first(n));
        done += static_cast<double>(n);
        if (!go_on(done / size)) return {};
    }
    if (std::ferror(in.get()) != 0) fail(ErrorCode::bad_file, "cannot read {} to its end", file.string());
    return hash.digest();
}

}  // namespace keyhole
