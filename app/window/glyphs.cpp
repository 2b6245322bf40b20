#include "app/window/glyphs.h"

#include "engine/model/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

/// Calls each(character, code point) for the characters of a text, code point 0 for a byte that is none.
template <class Each>
void for_characters(std::string_view text, Each each) {
    while (!text.empty()) {
        const std::size_t n = utf8_length(text);
        each(text.substr(0, std::max<std::size_t>(n, 1)),
             n == 0 ? char32_t{0} : utf8_decode(text.substr(0, n)));
        text.remove_prefix(std::max<std::size_t>(n, 1));
    }
}

}  // namespace

std::string legible(std::string_view text, const std::set<char32_t>& missing) {
    std::string out;
    for_characters(text, [&](std::string_view character, char32_t c) {
        if (c != 0 && c <= Glyphs::kMost && !missing.contains(c)) {
            out += character;
            return;
        }
        for (const char byte : character) out += fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte));
    });
    return out;
}

bool Glyphs::learn_token(const RunInfo& run, int id) {
    const auto i = static_cast<std::size_t>(id);
    if (i >= known_id_.size() || known_id_[i]) return false;
    known_id_[i] = true;
    return learn_text(run.token_display[i]);
}

bool Glyphs::learn_text(std::string_view text) {
    const std::size_t before = wanted_.size();
    for_characters(text, [&](std::string_view, char32_t c) {
        if (c > kCommon && c <= kMost) wanted_.insert(c);
    });
    return wanted_.size() != before;
}

bool Glyphs::learn(const RunHistory& history) {
    if (history.empty()) return false;
    const RunInfo& run = history.run();
    bool fresh = false;
    if (run_id_ != run.id) {
        fresh = learn_text(run.prompt);  // its tokens may be single bytes
        run_id_ = run.id;
        known_id_.assign(run.token_display.size(), false);
        drawn_.assign(run.token_display.size(), -2);
        texts_.clear();
    }
    if (generation_ != history.generation()) {
        generation_ = history.generation();
        n_seen_.clear();
        row_seen_ = -1;
    }
    n_seen_.resize(history.lanes().size(), 0);
    for (std::size_t lane = 0; lane < n_seen_.size(); ++lane)
        for (const std::vector<int>& tokens = history.lanes()[lane].tokens; n_seen_[lane] < tokens.size();)
            fresh = learn_token(run, tokens[n_seen_[lane]++]) || fresh;
    if (row_seen_ == history.last_row()) return fresh;
    const int seen = std::exchange(row_seen_, history.last_row());
    for (auto step = history.steps().rbegin(); step != history.steps().rend() && (*step)->row > seen; ++step)
        for (const LaneRecord& record : (*step)->lanes)
            for (const TopToken& top : record.top) fresh = learn_token(run, top.id) || fresh;
    return fresh;
}

void Glyphs::set_missing(std::set<char32_t> missing) {
    if (missing == missing_) return;
    missing_ = std::move(missing);
    drawn_.assign(drawn_.size(), -2);
    texts_.clear();
}

const std::string& Glyphs::token(const RunInfo& run, int id) {
    const auto i = static_cast<std::size_t>(id);
    const std::string& text = run.token_display[i];
    if (run.id != run_id_ || i >= drawn_.size()) return text;
    if (drawn_[i] == -2) {
        std::string drawn = legible(text, missing_);
        drawn_[i] = -1;
        if (drawn != text) {
            drawn_[i] = static_cast<std::int32_t>(texts_.size());
            texts_.push_back(std::move(drawn));
        }
    }
    return drawn_[i] < 0 ? text : texts_[static_cast<std::size_t>(drawn_[i])];
}

}  // namespace keyhole
