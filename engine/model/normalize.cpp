#include "engine/model/normalize.h"

#include "engine/base/error.h"
#include "engine/model/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace keyhole {
namespace {

/// NFC of valid UTF-8.
std::string composed(std::string_view text) {
    utf8proc_uint8_t* out = nullptr;
    const utf8proc_ssize_t size = utf8proc_map(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
        &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (size < 0) {
        fail(ErrorCode::no_memory, "cannot normalise a text of {} bytes: {}; shorten it", text.size(),
             utf8proc_errmsg(size));
    }
    std::string result(reinterpret_cast<const char*>(out), static_cast<std::size_t>(size));
    std::free(out);
    return result;
}

std::string nfc(std::string_view text) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
        return std::string(text);
    }
    std::string out;
    while (!text.empty()) {
        std::size_t valid = 0;
        while (const std::size_t length = utf8_length(text.substr(valid))) valid += length;
        if (valid > 0) out += composed(text.substr(0, valid));
        text.remove_prefix(valid);
        if (text.empty()) break;
        out += text.front();  // no character starts here
        text.remove_prefix(1);
    }
    return out;
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    if (from.empty()) return std::string(text);
    std::string out;
    for (;;) {
        const std::size_t at = text.find(from);
        out += text.substr(0, at);
        if (at == std::string_view::npos) return out;
        out += to;
        text.remove_prefix(at + from.size());
    }
}

void Normalizer::add_nfc() {
    steps_.push_back({Kind::nfc, {}, {}});
}
void Normalizer::add_prepend(std::string text) {
    steps_.push_back({Kind::prepend, {}, std::move(text)});
}
void Normalizer::add_replace(std::string from, std::string to) {
    steps_.push_back({Kind::replace, std::move(from), std::move(to)});
}

std::string Normalizer::apply(std::string_view text) const {
    std::string now(text);
    for (const Step& step : steps_) {
        switch (step.kind) {
            case Kind::nfc:
                now = nfc(now);
                break;
            case Kind::prepend:
                if (!now.empty()) now = step.to + now;
                break;
            case Kind::replace:
                now = replaced(now, step.from, step.to);
                break;
        }
    }
    return now;
}

}  // namespace keyhole
