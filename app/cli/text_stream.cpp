#include "app/cli/text_stream.h"

#include "app/cli/output.h"
#include "engine/base/json_text.h"

namespace keyhole {

namespace {

/// Returns how many bytes at the end of the text may be the beginning of a character.
std::size_t unfinished_bytes(std::string_view text) {
    constexpr std::size_t kLongestCharacter = 4;
    for (std::size_t n = 1; n < kLongestCharacter && n <= text.size(); ++n) {
        const auto byte = static_cast<unsigned char>(text[text.size() - n]);
        if ((byte & 0xC0) == 0x80) continue;  // inside of a character
        const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
        return length > n ? n : 0;
    }
    return 0;
}

}  // namespace

void TextStream::add(std::string_view bytes) {
    waiting_ += bytes;
    const std::size_t n_whole = waiting_.size() - unfinished_bytes(waiting_);
    write_output(printable_text(std::string_view(waiting_).substr(0, n_whole), true));
    waiting_.erase(0, n_whole);
    flush_output();
}

void TextStream::end() {
    write_output(printable_text(waiting_, true));
    waiting_.clear();
    flush_output();
}

}  // namespace keyhole
