/// Scores and kept sets of the eviction policies as the papers give them, in double, by sets and sorting.
/// Tests compare the engine with them. Shares no code with the engine; the noise generator is written again
/// from its paper.
#pragma once

#include "tests/reference/reference_model.h"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace reference {

enum class Noise { none, gumbel, gaussian, constant };
enum class Unit { head, layer, shared, column };
enum class PoolOver { mean, sum, max };
enum class TauShape { linear, cosine };
/// Field's policies 1 to 5, 8, 9 and 15.
enum class RanksBy { score, random, knorm, keydiff, future, observed, likeness, expected, tri };
enum class Phase { always, prompt, decode };
enum class Shares { none, layer, model };  ///< whose heads share their budgets

/// What a formula sees of a stored token (field's section 23).
struct Seen {
    double s = 0, p = 0, logit = 0, knorm = 0, vnorm = 0, u = 0;
    int row = 0, age = 0, position = 0, slot = 0;
    int n = 0, count = 0, budget = 0, layer = 0, kv_head = 0, head = 0;
    bool competes = true;  ///< functions over tokens see these alone
};
/// A formula: the value of each token of a unit, in text order.
using Formula = std::function<Vector(const std::vector<Seen>& tokens)>;
/// The formulas of a KV head and its query heads; empty: as Policy says.
struct HeadFormulas {
    Formula score, choose, protect;
};

/// Counts in tokens, after clamping.
struct Policy {
    int budget = 0;  ///< k; 0: never evicts
    int recent = 0;
    int sinks = 0;
    double alpha = 1, gain = 1, damping = 1;
    double tau_begin = 1, tau_end = 1;
    TauShape tau_shape = TauShape::linear;
    int horizon = 1;  ///< T
    Noise noise = Noise::none;
    bool noise_per_row = false;
    std::uint64_t seed = 1;
    Unit unit = Unit::head;
    PoolOver pool = PoolOver::mean;
    bool stepwise = false;  ///< prompt rows evict too
    int every = 1;
    Places places = Places::original;
    RanksBy ranks = RanksBy::score;
    int protect_from = 0, protect_to = -1;  ///< positions that never compete, both ends included
    int buffer = 0;  ///< evicts only what stores budget + buffer tokens or more; 0: more than the budget
    double threshold = 0;  ///< competing tokens that rank below it leave, field's section 17; 0: none
    Phase phase = Phase::always;
    int window = 32;          ///< rows observed
    int kernel = 0;           ///< width of the smoothing; 0: none
    bool kernel_max = false;  ///< of a maximum, else of an average
    double mix = 0.1;         ///< lambda of R-KV
    Shares shares = Shares::none;
    double floor = 0.2;        ///< of its own budget that a head keeps where those of a layer share
    double beta = 0;           ///< of PyramidKV; 0: layers are alike
    bool as_rkv_code = false;  ///< R-KV as its released code ranks
    int ahead = 512;           ///< positions that Expected Attention looks at
    /// Spans that share the budget, first and last position of each; behind the last one its tokens go on.
    std::vector<std::pair<int, int>> spans{};
    std::map<std::pair<int, int>, HeadFormulas> formulas{};  ///< by layer and KV head
    int calibrated = 0;  ///< its queries, and TriAttention's, are those of the rows from 4 to this one
};

struct Gone {
    int layer = 0;
    int kv_head = 0;
    int position = 0;
    auto operator<=>(const Gone&) const = default;
};

/// What one row did before its eviction, and the eviction that the policy requests.
struct LaneRow {
    Row model;
    double tau = 1;
    PositionSets attended;                   ///< includes this row
    std::vector<std::vector<Vector>> noise;  ///< [layer][query head][position]; NaN where masked or not drawn
    std::vector<std::vector<Vector>>
        scores;                   ///< [layer][KV head][position] pooled, after the row; NaN where masked
    std::vector<Gone> evictions;  ///< ascending
    /// Relative gap between the worst kept and the best evicted score, the least over all units; infinite
    /// when nothing competes.
    double margin = 0;
};

/// One policy applied to one text.
class Lane {
  public:
    Lane(const Weights& weights, const Policy& policy, int n_prompt);

    /// Attends (stored positions and the token itself), scores and selects; evicts the selection.
    LaneRow feed(int token);

    /// Changes the policy. Evicts at once when the new budget is exceeded. Accumulated scores stay as they
    /// are.
    std::vector<Gone> change(const Policy& policy);

    /// Sets what comes: the attention on a position after a row, for RanksBy::future.
    using Future = std::function<double(int layer, int kv_head, int row, int position)>;
    void set_future(Future future) { future_ = std::move(future); }

    /// Takes over another selection where a margin is within rounding.
    void set_stored(const PositionSets& stored) { stored_ = stored; }
    const PositionSets& stored() const { return stored_; }

  private:
    double tau_at(int row) const;
    bool evicts_after(int row) const;
    double pooled(int layer, int kv_head, int position) const;
    std::vector<std::pair<int, int>> kv_heads_with(int layer, int kv_head) const;
    double quantity(int layer, int kv_head, int position) const;
    std::map<int, double> ranks(int layer, int kv_head) const;
    std::map<int, double> ranks_by_queries(int layer, int kv_head) const;
    Vector by_query_head(int layer, int head, int owner, int kv_head) const;
    bool ranks_late() const;
    double rank(int layer, int kv_head, int position) const;
    const HeadFormulas& formulas_of(int layer, int kv_head) const;
    Seen seen_at(int position, std::size_t slot, std::size_t count, int row, int layer, int kv_head) const;
    std::vector<Seen> seen_by_selection(int layer, int kv_head, bool marks_competing) const;
    std::vector<double> lengths_of(int layer, int kv_head, int position) const;
    double joined(const std::vector<double>& values, bool over_layers) const;
    void score_row(const Row& row, int layer, int head);
    double observed(int layer, int kv_head, int position) const;
    double mean_of_column(int kv_head, const std::function<double(int l, int h)>& of) const;
    double observed_by_code(int layer, int kv_head, int position) const;
    std::vector<int> competing(int layer, int kv_head) const;
    int budget_of(int layer) const;
    using Rooms = std::map<std::pair<int, int>, int>;
    Rooms rooms(double* margin) const;
    bool is_due(int group) const;
    Rooms shared_rooms(const Rooms& own, double* margin) const;
    std::vector<Gone> select(double* margin) const;
    std::vector<Gone> select_fairly(double* margin) const;
    void keep_best(const std::map<int, double>& value, int layer, int kv_head, int room,
                   std::vector<int>& free, std::vector<Gone>& gone, double* margin) const;
    std::size_t span_of(int position) const;
    /// Fair spans count their own rows where scores are ranked.
    bool scores_by_span() const { return policy_.ranks == RanksBy::score && !policy_.spans.empty(); }
    int part_of(int window, std::size_t span) const;
    Vector smoothed_in_spans(const std::vector<int>& all, const Vector& importance,
                             const std::vector<std::size_t>& indices) const;
    /// Of a fair span: its competing tokens, and how many of them leave.
    struct SpanRoom {
        std::vector<int> free{};
        int n_leave = 0;
    };
    std::vector<SpanRoom> rooms_of_spans(int layer, int kv_head) const;
    std::vector<int> shares_of_spans(int total, const std::vector<int>& least,
                                     const std::vector<int>& most) const;

    const Weights& weights_;
    Policy policy_;
    int n_prompt_;
    Sequence sequence_;
    PositionSets stored_;
    std::vector<std::vector<Vector>> score_;                // [layer][query head][position]
    std::vector<std::vector<Vector>> sum_;                  // the same, plain sums over all rows
    std::vector<std::vector<std::vector<Vector>>> keys_;    // [layer][KV head][position][channel], rotated
    std::vector<std::vector<std::vector<Vector>>> seen_;    // [row][layer][query head][position] attention
    std::vector<std::vector<std::vector<Vector>>> logits_;  // the same of logits
    int row_ = -1;                                          // the last one
    Future future_;
};

/// Returns u of a token for a selection after a row. The counter words are (position, row, layer, KV head
/// with the highest bit set); the key is the seed.
double uniform_at(std::uint64_t seed, int layer, int kv_head, int row, int position);

/// Returns the cosine of each vector and the mean of all unit vectors; a vector of length 0 has none.
Vector cosines_to_mean(const std::vector<Vector>& keys);
double length_of(const Vector& x);

/// Smooths the values of the competing tokens, given by ascending index, over `width` neighbours among them;
/// others are 0. An average divides by the whole width at the borders.
Vector smoothed(const Vector& values, const std::vector<std::size_t>& competing, int width, bool is_max);
/// Returns R-KV's redundancy of each key: in the matrix of cosines, with 0 on its diagonal, the last entry of
/// each row that is above 1/2 is set to 0; means of columns, then softmax. Empty where an entry is so near to
/// 1/2 that rounding decides. spares_first: a row without such an entry has 0 in its first.
Vector redundancies(const std::vector<Vector>& keys, bool spares_first = false);

/// Returns a vector as it is at a place of the text.
using TurnTo = std::function<Vector(const Vector& x, double place)>;
/// Returns Expected Attention's share of each key, by queries before and keys after the rotation: places
/// [first, first + n) come.
Vector expected_shares(const std::vector<Vector>& queries, const std::vector<Vector>& keys,
                       const TurnTo& turn, int first, int n, double scale);
/// Returns TriAttention's score of each key by queries and keys before the rotation, the keys at `places`.
/// next: the place of the next token; pairs: channels that turn together.
Vector tri_values(const std::vector<Vector>& queries, const std::vector<Vector>& keys,
                  const std::vector<int>& places, const TurnTo& turn, int next,
                  const std::vector<double>& offsets,
                  const std::vector<std::pair<std::size_t, std::size_t>>& pairs);
/// Returns how many deviations each value lies above the mean of those that compete.
Vector deviations(const Vector& values, const std::vector<bool>& competes);

/// Returns the attention that comes on a text that is fed whole and evicts nothing: the sum, over the rows
/// after a row, of the mean over the query heads of the KV head.
Lane::Future future_of(const Weights& weights, const std::vector<int>& tokens);

/// Returns zeta of (layer, query head, row, position). The counter words are (position, row or all ones,
/// layer, head); the key is the seed.
double noise_at(Noise noise, bool per_row, std::uint64_t seed, int layer, int head, int row, int position);

/// Philox-4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

}  // namespace reference
