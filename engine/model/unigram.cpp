#include "engine/model/unigram.h"

#include "engine/base/index.h"
#include "engine/base/utf8.h"

#include <algorithm>
#include <deque>

namespace keyhole {

/// The best way to the end of a step: the token that ends there.
struct Unigram::Step {
    double score = 0;
    int begin = kNone;  // kNone: no way ends here
    int token = kNone;  // kNone: an unknown character
};

Unigram::Unigram(Options options, std::vector<Token> tokens, const std::array<int, 256>& byte_tokens)
    : options_(options), tokens_(std::move(tokens)), byte_tokens_(byte_tokens) {
    std::stable_sort(tokens_.begin(), tokens_.end(),
                     [](const Token& a, const Token& b) { return a.text < b.text; });
    // Of equal texts the last stays.
    std::vector<Token> kept;
    for (std::size_t i = 0; i < tokens_.size(); ++i)
        if (!tokens_[i].text.empty() && (i + 1 == tokens_.size() || tokens_[i].text != tokens_[i + 1].text))
            kept.push_back(std::move(tokens_[i]));
    tokens_ = std::move(kept);
    build();
}

void Unigram::build() {
    struct Range {
        int node = 0;
        std::size_t begin = 0, end = 0;  // tokens with this beginning
        std::size_t length = 0;          // of the beginning
    };
    nodes_.emplace_back();
    std::deque<Range> left = {{0, 0, tokens_.size(), 0}};
    while (!left.empty()) {
        const Range range = left.front();
        left.pop_front();
        std::size_t at = range.begin;
        // The shorter text comes first, so only the first token may end here.
        if (at < range.end && tokens_[at].text.size() == range.length)
            nodes_[to_index(range.node)].token = static_cast<int>(at++);
        nodes_[to_index(range.node)].first_child = static_cast<int>(nodes_.size());
        while (at < range.end) {
            const char byte = tokens_[at].text[range.length];
            std::size_t end = at;
            while (end < range.end && tokens_[end].text[range.length] == byte) ++end;
            left.push_back({static_cast<int>(nodes_.size()), at, end, range.length + 1});
            nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
            ++nodes_[to_index(range.node)].n_children;
            at = end;
        }
    }
}

const Unigram::Node* Unigram::child_of(const Node& node, unsigned char byte) const {
    const auto begin = nodes_.begin() + node.first_child, end = begin + node.n_children;
    const auto found = std::lower_bound(
        begin, end, byte, [](const Node& child, unsigned char wanted) { return child.byte < wanted; });
    return found == end || found->byte != byte ? nullptr : &*found;
}

int Unigram::id_of(std::string_view text) const {
    const Node* node = &nodes_.front();
    for (const char c : text)
        if (node = child_of(*node, static_cast<unsigned char>(c)); node == nullptr) return kNone;
    return node->token == kNone ? kNone : tokens_[to_index(node->token)].id;
}

void Unigram::append(std::string_view text, bool is_known, int token, std::vector<int>& ids) const {
    if (is_known) {
        ids.push_back(tokens_[to_index(token)].id);
        return;
    }
    // Unknown neighbours together may be a token all the same.
    if (const int id = id_of(text); id != kNone) {
        ids.push_back(id);
        return;
    }
    const auto has_byte = [this](char c) { return byte_tokens_[static_cast<unsigned char>(c)] != kNone; };
    if (options_.byte_fallback && std::all_of(text.begin(), text.end(), has_byte)) {
        for (const char c : text) ids.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
        return;
    }
    ids.push_back(options_.unk);
}

void Unigram::encode(std::string_view text, std::vector<int>& ids) const {
    std::vector<Step> best(text.size() + 1);  // by the byte behind the step
    const auto offer = [&](std::size_t begin, std::size_t end, int token, double score) {
        double sum = best[begin].score + score;
        if (options_.sums_in_float) sum = static_cast<float>(sum);
        if (best[end].begin == kNone || sum > best[end].score)
            best[end] = {sum, static_cast<int>(begin), token};
    };
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t length = std::max<std::size_t>(utf8_length(text.substr(begin)), 1);
        bool is_known = false;  // the character alone
        const Node* node = &nodes_.front();
        for (std::size_t end = begin; end < text.size();) {
            node = child_of(*node, static_cast<unsigned char>(text[end++]));
            if (node == nullptr) break;
            if (node->token == kNone) continue;
            offer(begin, end, node->token, tokens_[to_index(node->token)].score);
            is_known = is_known || end - begin == length;
        }
        if (!is_known) offer(begin, begin + length, kNone, options_.unk_score);
        begin += length;
    }
    std::vector<std::size_t> ends;
    for (std::size_t end = text.size(); end > 0; end = to_index(best[end].begin)) ends.push_back(end);
    std::size_t begin = 0;
    for (std::size_t i = ends.size(); i-- > 0;) {
        const int token = best[ends[i]].token;
        const auto is_unk = [&](std::size_t end) {
            return best[end].token == kNone || tokens_[to_index(best[end].token)].id == options_.unk;
        };
        if (is_unk(ends[i]) && i > 0 && is_unk(ends[i - 1])) continue;  // one with the next
        append(text.substr(begin, ends[i] - begin), !is_unk(ends[i]), token, ids);
        begin = ends[i];
    }
}

}  // namespace keyhole
