#include "engine/model/model_identity.h"

#include "engine/base/mapped_file.h"
#include "engine/model/digest.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>
#include <system_error>

namespace keyhole {

namespace {

/// What read_tokenizer_folder() reads.
constexpr std::array kTokenizerFiles = {"tokenizer.json",     "vocab.json",
                                        "merges.txt",         "special_tokens_map.json",
                                        "added_tokens.json",  "tokenizer_config.json",
                                        "chat_template.jinja"};

}  // namespace

std::string model_identity(const Model& model) {
    std::error_code ignored;
    std::uint64_t digest = kDigestSeed;
    for (const char* name : kTokenizerFiles) {
        const std::filesystem::path file = model.path() / name;
        if (!std::filesystem::exists(file, ignored)) continue;
        digest = digest_bytes(digest, std::as_bytes(std::span(std::string_view(name))));
        const std::string text = read_text_file(file);
        digest = digest_bytes(digest, std::as_bytes(std::span(text)));
    }
    return digest == kDigestSeed ? model.hash() : fmt::format("{} tokenizer={:016x}", model.hash(), digest);
}

}  // namespace keyhole
