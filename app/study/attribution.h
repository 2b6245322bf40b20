/// What eviction costs, part by part: one KV head, query head, layer, or group of tokens gets its tokens back
/// while the rest evicts as before, or loses them while the rest keeps all, and the answers say what that
/// changed. Then a budget spent where it changed most. Pure functions, for any thread; knows no backend.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/figure/value_map.h"
#include "engine/model/kv_layout.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Tokens of a prompt, both ends included.
struct TokenRange {
    int first = 0, last = -1;
    int size() const { return last - first + 1; }
    bool operator==(const TokenRange&) const = default;
};

/// A part of the cache that is given back or taken: a KV head, all those of a layer, what one query head
/// reads, or some tokens in all.
struct CachePart {
    int layer = 0;                          ///< which owns it
    int kv_head = -1;                       ///< within its layer; -1: the layer
    int first_reader = 0, n_readers = 0;    ///< query heads of the layer that read it
    std::string words = {};                 ///< of tokens: their text, or the name of the group
    std::optional<TokenRange> tokens = {};  ///< of a token part; a group has others in each question
    int query_head = -1;                    ///< within its layer; -1: all that read the KV head
    bool operator==(const CachePart&) const = default;
};

enum class PartKind { head, query_head, layer, group, token };
/// The words of `attribute --by` and of attribution.json.
std::string_view part_kind_word(PartKind kind);
std::optional<PartKind> part_kind_from_word(std::string_view word);
enum class Intervention {
    give_back,  ///< the part keeps all tokens, the rest evicts
    take,       ///< the part evicts, the rest keeps all tokens
};

/// Returns the parts in order of layer and KV head.
std::vector<CachePart> cache_parts(const KvLayout& layout, PartKind kind);
/// Returns the tokens of a prompt in parts of `chunk`, as CachePart::tokens.
std::vector<CachePart> token_parts(const Tokenizer& tokenizer, std::span<const int> prompt, int chunk);
/// Returns the groups: the first tokens (`sinks`), the newest (`recent`), and those that state the answer
/// (`answer`), where the questions know them.
std::vector<CachePart> group_parts(bool has_answer);
/// Returns the tokens of a group in a prompt, in which they follow one another. answer: those that state the
/// answer, for the group of that name.
TokenRange group_tokens(const CachePart& group, int n_prompt, const TokenRange& answer);
/// How many tokens the groups `sinks` and `recent` have.
inline constexpr int kGroupSinks = 4, kGroupRecent = 32;

/// Returns a lane whose query heads each have a copy of the KV head that they read, so that each evicts for
/// itself: kv=mha. What it computes is the same as long as nothing is evicted. Throws Error(wrong_use) for a
/// lane that shares KV heads in a way of its own.
LaneSpec lane_by_query_head(const LaneSpec& lane);

/// Returns "L5.G2" for a KV head, "L5.H7" for a query head, "L5" for a layer, "12..19" for tokens, or the
/// name of a group.
std::string part_name(const CachePart& part);

/// Returns the lane that the parts' lanes are compared with: the lane itself, or with a budget of all.
LaneSpec start_lane(const LaneSpec& lane, Intervention intervention);
/// Returns start_lane() with one part's budget changed. Throws Error(wrong_use) for a lane without a budget.
LaneSpec lane_with_part(const LaneSpec& lane, const CachePart& part, Intervention intervention);

/// Returns the lane with these tokens kept in all heads, beside its budget and its newest tokens. Throws
/// Error(wrong_use) for a lane whose budget is no number of tokens, or that protects tokens already.
LaneSpec lane_with_tokens(const LaneSpec& lane, const TokenRange& tokens);

/// What one part changed, over all questions. All values are above 0 where the part helps the answer: what
/// giving it back gained, or what taking it cost.
struct PartEffect {
    CachePart part;
    Estimate nats;   ///< -ln p of the answer, a question
    Estimate right;  ///< share of right answers
    Estimate kl{};   ///< KL to the full cache, summed over the answer, a question; NaN: not known
    double p = 1;    ///< of sign flips on nats, corrected for all parts
    bool is_sure = false;
};

struct Attribution {
    PartKind kind = PartKind::head;
    Intervention intervention = Intervention::give_back;
    LaneSpec lane;
    Estimate lost;                    ///< nats a question that the lane's eviction costs, all parts together
    Estimate full_right, lane_right;  ///< shares of right answers of the full cache and of the lane
    std::vector<PartEffect> effects;  ///< in the order of cache_parts()
    int n_questions = 0;
    std::vector<std::vector<double>> gains;  ///< [part][question], as PartEffect::nats
};

/// What parts are ranked by.
enum class RankBy { nats, right, kl };
/// Returns nats for any other word than `right` and `kl`.
RankBy rank_from_word(std::string_view word);

/// outcomes: [lane][question] of the full cache, the lane, and the lane of each part; with Intervention::take
/// the full cache is also what these are compared with.
Attribution attribute(const LaneSpec& lane, PartKind kind, Intervention intervention,
                      std::span<const CachePart> parts, std::span<const std::vector<Outcome>> outcomes);

/// Returns the indices of the effects, largest first; equal ones in the order of parts.
std::vector<std::size_t> ranked(const Attribution& found, RankBy by = RankBy::nats);
/// Returns a table of the `most` parts with the largest effects, and lines on what it says.
std::string attribution_text(const Attribution& found, bool is_task, std::size_t most,
                             RankBy by = RankBy::nats);
/// Returns attribution.csv: a line for each part.
std::string attribution_csv(const Attribution& found);
nlohmann::json attribution_json(const Attribution& found);
/// Returns a map of the nats: layers by KV heads, or by one column. Needs heads or layers.
ValueMap attribution_map(const Attribution& found);
/// Returns a page with the text, each part shaded by its nats, and what made it. Needs parts of tokens.
std::string attribution_page(const Attribution& found, const std::string& title, const std::string& made_by);

/// How many parts can keep all tokens of a context, so that all parts together store as many tokens as with
/// `budget` in each, where the others have `rest`:
///
///     n = floor(n_parts (budget - rest) / (context - rest))
///
/// Throws Error(wrong_use) unless rest < budget < context; both at least 1.
int whole_parts(int n_parts, int budget, int rest, int context);

/// Returns the lane with `rest` tokens a head, and all tokens in these parts. Adjacent heads of a layer share
/// an override.
LaneSpec lane_with_whole_parts(const LaneSpec& lane, std::span<const CachePart> parts, int rest);

/// Returns n parts that are none of the chosen, spread evenly over the others: what a budget spent without
/// measuring would give. Fewer if there are no more.
std::vector<CachePart> other_parts(std::span<const CachePart> all, std::span<const CachePart> chosen, int n);

}  // namespace keyhole
