#include "engine/model/charsmap.h"

#include "engine/base/error.h"
#include "engine/base/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>

namespace keyhole {
namespace {

std::uint32_t unit_at(std::string_view bytes) {
    std::uint32_t unit = 0;
    for (std::size_t i = 0; i < 4; ++i)
        unit |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return unit;
}

// The parts of a unit.
bool has_leaf(std::uint32_t unit) {
    return (unit >> 8 & 1) != 0;
}
std::uint32_t value_of_unit(std::uint32_t unit) {
    return unit & 0x7fffffffu;
}
std::uint32_t label_of(std::uint32_t unit) {
    return unit & 0x800000ffu;
}
std::size_t offset_of(std::uint32_t unit) {
    return std::size_t{unit >> 10} << ((unit & 0x200u) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view blob, Cut cut) : cut_(cut) {
    if (blob.empty()) return;
    const auto broken = [] {
        fail(ErrorCode::bad_file, "its table of characters (precompiled_charsmap) is damaged");
    };
    if (blob.size() < 4) broken();
    const std::size_t size = unit_at(blob);
    if (size % 4 != 0 || size == 0 || size > blob.size() - 4) broken();
    for (std::size_t at = 4; at < 4 + size; at += 4) units_.push_back(unit_at(blob.substr(at)));
    texts_ = blob.substr(4 + size);
}

Charsmap::Found Charsmap::find(std::string_view text, bool longest) const {
    Found found;
    if (units_.empty()) return found;
    std::size_t at = offset_of(units_.front());
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        at ^= byte;
        if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) break;
        const std::uint32_t unit = units_[at];
        at ^= offset_of(unit);
        if (at >= units_.size()) break;
        if (!has_leaf(unit)) continue;
        const std::size_t begin = std::min<std::size_t>(value_of_unit(units_[at]), texts_.size());
        found = {i + 1, std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin)};
        if (!longest) break;
    }
    return found;
}

std::string Charsmap::apply(std::string_view text) const {
    return cut_ == Cut::longest ? by_longest(text) : by_graphemes(text);
}

std::string Charsmap::by_longest(std::string_view text) const {
    std::string out;
    while (!text.empty()) {
        const Found found = find(text, true);
        const std::size_t length =
            found.length > 0 ? found.length : std::max<std::size_t>(utf8_length(text), 1);
        out += found.length > 0 ? found.to : text.substr(0, length);
        text.remove_prefix(length);
    }
    return out;
}

void Charsmap::append_cluster(std::string_view cluster, std::string& out) const {
    constexpr std::size_t kShort = 6;
    if (cluster.size() < kShort) {
        if (const Found found = find(cluster, false); found.length > 0) {
            out += found.to;
            return;
        }
    }
    while (!cluster.empty()) {
        const std::size_t length = std::max<std::size_t>(utf8_length(cluster), 1);
        const std::string_view character = cluster.substr(0, length);
        const Found found = find(character, false);
        out += found.length > 0 ? found.to : character;
        cluster.remove_prefix(length);
    }
}

std::string Charsmap::by_graphemes(std::string_view text) const {
    std::string out;
    std::size_t begin = 0;
    utf8proc_int32_t state = 0, before = -1;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = utf8_length(text.substr(at));
        const utf8proc_int32_t now =
            length == 0 ? -1 : static_cast<utf8proc_int32_t>(utf8_decode(text.substr(at, length)));
        if (at > begin && (now < 0 || before < 0 || utf8proc_grapheme_break_stateful(before, now, &state))) {
            append_cluster(text.substr(begin, at - begin), out);
            begin = at;
        }
        if (now < 0 || before < 0) state = 0;
        before = now;
        at += std::max<std::size_t>(length, 1);
    }
    append_cluster(text.substr(begin), out);
    return out;
}

}  // namespace keyhole
