#include "engine/run/text_notice.h"

#include "engine/base/utf8.h"

#include <fmt/format.h>

namespace keyhole {

std::string notice_of_bytes(std::string_view text, const std::filesystem::path& file) {
    const std::size_t at = find_invalid_utf8(text);
    if (at == std::string_view::npos) return {};
    return fmt::format(
        "{} is not UTF-8 from byte {} (0x{:02X}) on; the model reads its bytes as they are. If it is "
        "Latin-1, convert it: iconv -f LATIN1 -t UTF-8 FILE > NEW",
        file.string(), at + 1, static_cast<unsigned char>(text[at]));
}

}  // namespace keyhole
