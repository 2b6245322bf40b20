#include "engine/model/bpe.h"

#include "engine/base/index.h"
#include "engine/base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>

namespace keyhole {
namespace {

constexpr int kNoRank = std::numeric_limits<int>::max();

std::uint64_t key_of(int left, int right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
}

constexpr std::string_view kBlank = "▁";  // SentencePiece's, U+2581

/// Returns whether no merge joins a non-blank with a following blank. Pieces may then be cut before blanks.
bool merges_keep_blanks(const std::unordered_map<std::string, int>& tokens,
                        const std::vector<Bpe::Merge>& merges) {
    std::unordered_map<int, std::string_view> text_of;
    for (const auto& [text, id] : tokens) text_of.emplace(id, text);
    return std::all_of(merges.begin(), merges.end(), [&](const Bpe::Merge& merge) {
        return !text_of[merge.right].starts_with(kBlank) || text_of[merge.left].ends_with(kBlank);
    });
}

}  // namespace

/// A node of the list that merge_long() shortens; previous and next are indices of the array.
struct Bpe::Symbol {
    int id = 0;
    int previous = 0, next = 0;  // -1: none
};

Bpe::Bpe(Options options, std::unordered_map<std::string, int> tokens, const std::vector<Merge>& merges)
    : options_(options),
      cuts_at_blanks_(!options.byte_level && !options.ignore_merges &&
                      tokens.count(std::string(kBlank)) != 0 && merges_keep_blanks(tokens, merges)) {
    tokens_.reserve(tokens.size());
    for (auto& [text, id] : tokens) tokens_.emplace(text, id);
    pairs_.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
        const Merge& merge = merges[i];
        const int rank = merge.rank == kNone ? static_cast<int>(i) : merge.rank;
        pairs_[key_of(merge.left, merge.right)] = {rank, merge.merged};
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
        byte_tokens_[byte] = token_of(options_.byte_level ? std::string(1, static_cast<char>(byte))
                                                          : fmt::format("<0x{:02X}>", byte));
    }
}

int Bpe::token_of(std::string_view text) const {
    const auto found = tokens_.find(text);
    return found == tokens_.end() ? kNone : found->second;
}

const Bpe::Pair* Bpe::pair_of(int left, int right) const {
    const auto found = pairs_.find(key_of(left, right));
    return found == pairs_.end() ? nullptr : &found->second;
}

void Bpe::split(std::string_view piece, std::vector<int>& symbols) const {
    bool unk_pending = false;
    const auto flush = [&] {
        if (unk_pending) symbols.push_back(options_.unk);
        unk_pending = false;
    };
    while (!piece.empty()) {
        std::size_t length = options_.byte_level ? 1 : utf8_length(piece);
        if (length == 0) length = 1;  // a byte that begins no valid character
        const std::string_view character = piece.substr(0, length);
        piece.remove_prefix(length);
        const int id = options_.byte_level ? byte_tokens_[static_cast<unsigned char>(character[0])]
                                           : token_of(character);
        if (id != kNone) {
            flush();
            symbols.push_back(id);
            continue;
        }
        if (options_.byte_fallback) {
            bool known = true;
            for (char c : character) known = known && byte_tokens_[static_cast<unsigned char>(c)] != kNone;
            if (known) {
                // A pending unk stays pending, as in the Hugging Face package.
                for (char c : character) symbols.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
                continue;
            }
        }
        if (options_.unk == kNone) continue;
        if (!options_.fuse_unk) flush();
        unk_pending = true;
    }
    flush();
}

void Bpe::cut(std::string_view piece, std::vector<std::string_view>& parts) const {
    while (cuts_at_blanks_) {
        // Find the first blank after those at the front.
        std::size_t at = 0;
        while (piece.substr(at).starts_with(kBlank)) at += kBlank.size();
        at = piece.find(kBlank, at);
        if (at == std::string_view::npos) break;
        parts.push_back(piece.substr(0, at));
        piece.remove_prefix(at);
    }
    if (!piece.empty()) parts.push_back(piece);
}

void Bpe::encode(std::string_view piece, std::vector<int>& ids) const {
    if (piece.empty()) return;
    if (options_.ignore_merges) {
        if (const int id = token_of(piece); id != kNone) {
            ids.push_back(id);
            return;
        }
    }
    constexpr std::size_t kShort = 24;  // word length; above it the heap is faster
    std::vector<int> symbols;
    symbols.reserve(piece.size());
    split(piece, symbols);
    if (symbols.size() <= kShort) {
        merge_short(symbols);
    } else {
        merge_long(symbols);
    }
    ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::merge_short(std::vector<int>& symbols) const {
    std::vector<Pair> pairs;  // of symbols i and i + 1
    const auto look_up = [&](std::size_t i) {
        const Pair* pair = pair_of(symbols[i], symbols[i + 1]);
        return pair == nullptr ? Pair{kNoRank, kNone} : *pair;
    };
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) pairs.push_back(look_up(i));
    for (;;) {
        std::size_t best = 0;
        int rank = kNoRank;
        for (std::size_t i = 0; i < pairs.size(); ++i) {
            if (pairs[i].rank < rank) rank = pairs[best = i].rank;  // the leftmost of equal ranks
        }
        if (rank == kNoRank) return;
        symbols[best] = pairs[best].merged;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
        pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(best));
        if (best < pairs.size()) pairs[best] = look_up(best);
        if (best > 0) pairs[best - 1] = look_up(best - 1);
    }
}

void Bpe::merge_long(std::vector<int>& symbols) const {
    struct Candidate {
        int rank, at, merged;
        bool operator>(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : at > other.at;
        }
    };
    std::vector<Symbol> list(symbols.size());
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto symbol = [&](int i) -> Symbol& { return list[to_index(i)]; };
    const auto offer = [&](int at) {
        if (at < 0 || symbol(at).next < 0) return;
        if (const Pair* pair = pair_of(symbol(at).id, symbol(symbol(at).next).id)) {
            queue.push({pair->rank, at, pair->merged});
        }
    };
    const int n = static_cast<int>(symbols.size());
    for (int i = 0; i < n; ++i) symbol(i) = {symbols[to_index(i)], i - 1, i + 1 < n ? i + 1 : -1};
    for (int i = 0; i + 1 < n; ++i) offer(i);
    while (!queue.empty()) {
        const Candidate top = queue.top();
        queue.pop();
        Symbol& left = symbol(top.at);
        if (left.id == kNone || left.next < 0) continue;
        Symbol& right = symbol(left.next);
        // An earlier merge may have changed the offered pair.
        const Pair* pair = pair_of(left.id, right.id);
        if (pair == nullptr || pair->merged != top.merged) continue;
        left.id = top.merged;
        right.id = kNone;
        left.next = right.next;
        if (left.next >= 0) symbol(left.next).previous = top.at;
        offer(left.previous);
        offer(top.at);
    }
    symbols.clear();
    for (int i = 0; i >= 0; i = symbol(i).next) symbols.push_back(symbol(i).id);
}

}  // namespace keyhole
