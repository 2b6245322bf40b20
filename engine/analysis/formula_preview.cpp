#include "engine/analysis/formula_preview.h"

#include "engine/analysis/competing.h"
#include "engine/analysis/record_env.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/policy/formula_names.h"
#include "engine/policy/row_formula.h"
#include "engine/policy/selection.h"
#include "engine/policy/win_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

/// A KV head after a row, and the unit that is selected together with it.
class PreviewedHead {
  public:
    PreviewedHead(const RunHistory& history, int lane, int kv_head, int row, const LaneRecord& record,
                  const Ranks* ranks)
        : history_(history),
          layout_(history.layout(lane)),
          lane_(lane),
          kv_head_(kv_head),
          row_(row),
          of_lane_(record.info->policy),
          policy_(policy_of(kv_head)),
          ranks_(ranks),
          unit_(unit_of(layout_, of_lane_.scope, kv_head)),
          held_(history.held_positions(lane, kv_head, row)) {
        const std::vector<Standing> standing = standings(history, lane, kv_head, row);
        for (std::size_t i = 0; i < standing.size(); ++i) {
            if (standing[i] == Standing::pinned) pinned_.push_back(held_[i]);
            if (standing[i] == Standing::pinned || standing[i] == Standing::protected_)
                guarded_.push_back(held_[i]);
        }
        if (ranks_ != nullptr) held_ = ranks_->of.positions;
        const KvHead& first = layout_.kv_head(unit_.first);
        facts_ = place_facts(policy_, row, static_cast<int>(held_.size()), first.owner_layer, 0, first.index);
    }

    FormulaPreview of_choose(const FormulaRef& typed) {
        if (ranks_ != nullptr) return as_ranked();
        if (const std::string lacks = lacks_protection(); !lacks.empty())
            return without(lacks, asking(typed, policy_.protect));
        return ranked_by(typed, recorded_scores());
    }
    FormulaPreview of_score(const FormulaRef& typed) {
        if (typed && !is_of_rows(*typed)) return of_choose(typed);  // as resolve() takes it
        if (const std::string lacks = lacks_protection(); !lacks.empty()) return without(lacks);
        if (const std::string lacks = lacks_ranks(); !lacks.empty()) return without(lacks);
        if (typed == policy_.score) return ranked_by(policy_.choose, recorded_scores());
        if (!typed) return without("The record holds what the lane's own formula made of the rows.");
        std::string lacks;
        const std::vector<float> scores = after_row(*typed, lacks);
        return scores.empty() ? without(lacks, asking_length(*typed))
                              : ranked_by(policy_.choose, scores, true);
    }
    FormulaPreview of_protect(const FormulaRef& typed) {
        if (ranks_ != nullptr) return as_ranked();
        guarded_ = pinned_;
        if (typed) {
            const RecordEnv env = env_of({}, typed);
            if (!env.knows_all(*typed))
                return without(lacks_names(*typed, env), asking(policy_.choose, typed));
            const std::vector<float> holds =
                env.evaluate(*typed, competing_tokens(held_, pinned_, policy_, row_));
            for (std::size_t i = 0; i < held_.size(); ++i)
                if (holds[i] != 0 && !std::ranges::binary_search(pinned_, held_[i]))
                    guarded_.push_back(held_[i]);
            std::ranges::sort(guarded_);
        }
        return ranked_by(policy_.choose, recorded_scores());
    }

  private:
    const RunHistory& history_;
    const KvLayout& layout_;
    int lane_, kv_head_, row_;
    const ResolvedPolicy &of_lane_, &policy_;
    const Ranks* ranks_;
    Unit unit_;
    std::vector<std::int32_t> held_, pinned_, guarded_;  // guarded: pinned and protected
    std::optional<std::vector<float>> win_;  // by index, once a formula names it; empty: not known
    PlaceFacts facts_;

    static FormulaPreview without(std::string why_not, std::optional<RankFormulas> asks = std::nullopt) {
        return {std::move(why_not), {}, 0, 0, std::move(asks)};
    }
    FormulaPreview as_ranked() {
        if (const std::string lacks = lacks_ranks(); !lacks.empty()) return without(lacks);
        guarded_ = ranks_->of.guarded;
        return selected(ranks_->of.values, ranks_->of.ties);
    }
    /// Returns why the engine has ranked nothing; empty: it has, or was not asked.
    std::string lacks_ranks() const {
        if (ranks_ == nullptr) return "";
        if (ranks_->missing) return lacks_name(*ranks_->missing);
        return ranks_->why_not;
    }
    /// Returns what the engine is asked to rank by.
    RankFormulas asking(const FormulaRef& choose, const FormulaRef& protect) {
        RankFormulas by{choose, protect};
        const auto names_win = [](const FormulaRef& one) { return one && one->names(Quantity::win); };
        if (!names_win(choose) && !names_win(protect)) return by;
        const std::vector<float>& win = known_win();
        for (std::size_t i = 0; i < win.size(); ++i) {
            by.win.resize(to_index(held_[i]) + 1, 0.0f);
            by.win.back() = win[i];
        }
        return by;
    }
    /// Returns the lengths that a formula of rows names, as a choice: the engine knows them. None where it
    /// names more than one, or what the engine does not know either; where heads select together, since each
    /// has lengths of its own.
    std::optional<RankFormulas> asking_length(const FormulaTable& formula) const {
        std::optional<RankFormulas> asks;
        if (unit_.n_heads() > 1 || formula.names(Quantity::logit)) return asks;
        for (const auto& [quantity, name] : kLengths) {
            if (!formula.names(quantity)) continue;
            if (asks) return std::nullopt;
            asks = RankFormulas{choose_formula(name, nullptr)};
        }
        return asks;
    }
    static constexpr std::array<std::pair<Quantity, const char*>, 3> kLengths = {
        {{Quantity::knorm, "knorm"}, {Quantity::vnorm, "vnorm"}, {Quantity::wvnorm, "wvnorm"}}};

    const ResolvedPolicy& policy_of(int kv_head) const {
        const HeadRef& reader = layout_.kv_head(kv_head).readers.front();
        return of_lane_.at(reader.layer, reader.head);
    }
    /// typed: the formula that is to be evaluated.
    RecordEnv env_of(std::span<const float> s, const FormulaRef& typed = {}) {
        const bool names_win = typed && typed->names(Quantity::win);
        return {facts_, held_, s, policy_.seed, names_win ? known_win() : std::span<const float>()};
    }
    const std::vector<float>& known_win() {
        if (!win_) win_ = recorded_win();
        return *win_;
    }
    std::string lacks_protection() const {
        return knows_protected(policy_) ? "" : "What this lane protects is not in the record.";
    }

    /// Returns scores by index as they are recorded at a row, of the tokens held in the shown one; 0 for one
    /// that came later. Empty: not recorded.
    std::vector<float> scores_at(int row) const {
        std::vector<float> by_position(to_index(row) + 1), scores;
        if (row < history_.n_prompt() - 1 || !history_.score_row(lane_, row, kv_head_, by_position))
            return {};
        for (const std::int32_t p : held_) scores.push_back(p <= row ? by_position[to_index(p)] : 0.0f);
        return scores;
    }
    std::vector<float> recorded_scores() const { return scores_at(row_); }

    /// Names what a formula needs and the record lacks.
    static std::string lacks_names(const FormulaTable& formula, const RecordEnv& env) {
        for (const QuantityName& name : kQuantityNames)
            if (formula.names(name.quantity) && !env.knows(name.quantity)) return lacks_name(name.quantity);
        return "";
    }
    static std::string lacks_name(Quantity quantity) {
        if (quantity == Quantity::s)
            return "The record holds what choose ranked, and not s: once in force, it is ranked.";
        const auto* name = std::ranges::find(kQuantityNames, quantity, &QuantityName::quantity);
        return fmt::format("The record does not hold {} ({}): once in force, it is ranked.", name->name,
                           name->help);
    }

    /// Ranks by a choice. scores: as recorded, which a choice in force has made, or those of a row.
    FormulaPreview ranked_by(const FormulaRef& choose, const std::vector<float>& scores,
                             bool are_of_row = false) {
        const bool is_in_force = choose == policy_.choose && !are_of_row;
        if ((is_in_force || !choose) && scores.empty()) return without("The row's scores are not recorded.");
        if (!choose && policy_.choose && !are_of_row)
            return without(lacks_name(Quantity::s), asking(choose, policy_.protect));
        if (is_in_force || !choose) return selected(scores, {});
        const bool knows_s = are_of_row || !policy_.choose;
        const RecordEnv env =
            env_of(knows_s ? std::span<const float>(scores) : std::span<const float>(), choose);
        if (!env.knows_all(*choose))
            return without(lacks_names(*choose, env),
                           are_of_row ? std::nullopt : std::optional(asking(choose, policy_.protect)));
        const std::vector<std::uint8_t> competes = competing_tokens(held_, guarded_, policy_, row_);
        const FormulaTable* unsmoothed = choose.unsmoothed();
        return selected(env.evaluate(*choose, competes),
                        unsmoothed != nullptr ? env.evaluate(*unsmoothed, competes) : std::vector<float>());
    }

    FormulaPreview selected(std::span<const float> values, std::span<const float> ties) const {
        FormulaPreview out;
        for (std::size_t i = 0; i < held_.size(); ++i) out.tokens.push_back({held_[i], values[i]});
        rank(out, ties);
        ResolvedPolicy own = policy_;
        if (own.alloc != Alloc::uniform && own.evicts()) {  // as many as the heads' shares left here
            own.stored = static_cast<int>(std::ranges::count_if(
                held_, [&](std::int32_t p) { return history_.evicted_at(lane_, kv_head_, p) != row_; }));
            own.buffer = 0;
        }
        std::vector<int> victims;
        if (own.evicts_after(row_)) select_victims(held_, values, guarded_, own, row_, victims, ties);
        for (const int i : victims) out.tokens[to_index(i)].stays = false;
        out.n_leaving = static_cast<int>(victims.size());
        return out;
    }
    void rank(FormulaPreview& out, std::span<const float> ties) const {
        const std::vector<std::uint8_t> competes = competing_tokens(held_, guarded_, policy_, row_);
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < competes.size(); ++i)
            if (competes[i] != 0) order.push_back(i);
        std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
            const float x = lowest_if_nan(out.tokens[a].value), y = lowest_if_nan(out.tokens[b].value);
            if (x != y) return x > y;
            const float own = ties.empty() ? 0 : lowest_if_nan(ties[a]),
                        other = ties.empty() ? 0 : lowest_if_nan(ties[b]);
            return own != other ? own > other : a > b;  // of equal ones the newer stays
        });
        out.n_competing = static_cast<int>(order.size());
        for (std::size_t i = 0; i < order.size(); ++i) out.tokens[order[i]].rank = static_cast<int>(i) + 1;
    }

    /// Returns the scores after the row by a formula of rows, pooled over the unit's query heads; empty, with
    /// what the record lacks.
    std::vector<float> after_row(const FormulaTable& formula, std::string& lacks) const {
        std::vector<float> before(held_.size(), 0);
        if (formula.names(Quantity::s)) {
            if (row_ < history_.n_prompt())
                lacks = "The record begins with the prompt's last row: s before it is not known. Step on.";
            else if (policy_.choose)
                lacks = lacks_name(Quantity::s);
            else if (before = scores_at(row_ - 1); before.empty())
                lacks = "The scores of the row before are not recorded.";
        }
        for (const Quantity q : {Quantity::logit, Quantity::ptau})
            if (formula.names(q) && (q == Quantity::logit || policy_.tempers())) lacks = lacks_name(q);
        if (lacks.empty() && ranks_ == nullptr)
            for (const auto& length : kLengths)
                if (formula.names(length.first)) lacks = lacks_name(length.first);
        if (!lacks.empty()) return {};
        std::vector<float> scores = pooled_over_readers([&](const HeadRef& reader, std::span<float> out) {
            return score_reader(formula, reader, before, out);
        });
        if (scores.empty()) lacks = "The row's attention is not recorded.";
        return scores;
    }
    /// Returns `win` as the record has it, by index: means over the newest rows of attention, which is fp16
    /// there; empty where a row is not recorded.
    std::vector<float> recorded_win() const {
        const PromptRows* image = prompt_image_of(history_, lane_);
        const std::vector<WinRows> spans = win_rows(policy_, row_);
        for (const WinRows& own : spans)
            if (own.n() == 0 ||
                (own.first < history_.n_prompt() - 1 && (image == nullptr || image->reduction > 1)))
                return {};
        if (policy_.ranks_as_rkv_code || !hold_the_same(history_, lane_, unit_, row_)) return {};
        std::vector<float> of_row(to_index(row_) + 1), at(held_.size());
        return pooled_over_readers([&](const HeadRef& reader, std::span<float> out) {
            bool is_recorded = true;
            const std::vector<float> means =
                means_of_rows(spans, held_.data(), static_cast<int>(held_.size()), [&](int row) {
                    is_recorded = is_recorded &&
                                  attention_values(history_, lane_, row, reader.layer, reader.head, of_row);
                    for (std::size_t i = 0; i < held_.size(); ++i)
                        at[i] = held_[i] <= row ? std::max(of_row[to_index(held_[i])], 0.0f) : 0.0f;
                    return at.data();
                });
            std::ranges::copy(means, out.begin());
            return is_recorded;
        });
    }
    /// Pools values of the unit's query heads; empty where fill(reader, out), out by index, returns false.
    template <class Fill>
    std::vector<float> pooled_over_readers(Fill fill) const {
        const bool by_column = of_lane_.scope == Scope::column;
        std::vector<float> sum(held_.size(), 0), of_head(by_column ? held_.size() : 0), own(held_.size());
        int n_readers = 0;
        for (int i = 0; i < unit_.n_heads(); ++i) {
            if (by_column) n_readers = 0;
            std::vector<float>& to = by_column ? of_head : sum;
            for (const HeadRef& reader : layout_.kv_head(unit_.head(i)).readers) {
                if (!fill(reader, own)) return {};
                const bool is_first = n_readers++ == 0;
                for (std::size_t t = 0; t < own.size(); ++t)
                    to[t] = is_first                    ? own[t]
                            : policy_.pool == Pool::max ? std::max(to[t], own[t])
                                                        : add(to[t], own[t]);
            }
            if (by_column) finish(Pool::mean == policy_.pool ? n_readers : 1, of_head);
            for (std::size_t t = 0; by_column && t < sum.size(); ++t) sum[t] = add(sum[t], of_head[t]);
        }
        finish(by_column ? unit_.n_heads() : policy_.pool == Pool::mean ? n_readers : 1, sum);
        return sum;
    }
    static void finish(int n, std::vector<float>& values) {
        for (float& x : values) x /= static_cast<float>(n);
    }
    bool score_reader(const FormulaTable& formula, const HeadRef& reader, std::span<const float> before,
                      std::span<float> out) const {
        std::vector<float> p(to_index(row_) + 1);
        if (!history_.attention_row(lane_, row_, reader.layer, reader.head, p)) return false;
        const ResolvedPolicy& own = of_lane_.at(reader.layer, reader.head);
        PlaceFacts facts =
            place_facts(own, row_, static_cast<int>(held_.size()), reader.layer, reader.head, facts_.kv_head);
        const float sink = formula.names(Quantity::sinkmass)
                               ? learned_sink_share(history_, lane_, row_, reader.layer, reader.head)
                               : 0.0f;
        facts.sinkmass = std::isnan(sink) ? 0.0f : sink;
        for (std::size_t i = 0; i < held_.size(); ++i) {
            const float own_p = p[to_index(held_[i])];
            const float length = ranks_ != nullptr ? ranks_->of.values[i] : 0.0f;  // the one that is named
            out[i] = score_after_row(
                formula, facts,
                {before[i], own_p, 0, own_p, held_[i], static_cast<std::int32_t>(i), length, length, length});
        }
        return true;
    }
};

}  // namespace

FormulaPreview preview_formula(const RunHistory& history, int lane, int kv_head, int row, FormulaUse use,
                               const FormulaRef& typed, const Ranks* ranks) {
    const int last = history.lanes()[to_index(lane)].last_row;
    if (last >= 0 && row > last && row <= history.last_row())
        return {"The lane has ended before this step.", {}, 0, 0};
    const LaneRecord* record = history.lane_record(row, lane);
    if (record == nullptr) return {"The lane has no record of this row.", {}, 0, 0};
    if (ranks != nullptr && ranks->info != nullptr && !(ranks->info->policy == record->info->policy))
        return {"The lane's new settings are in force with the next step: then it is ranked.", {}, 0, 0};
    PreviewedHead head(history, lane, kv_head, row, *record, ranks);
    switch (use) {
        case FormulaUse::choose:
            return head.of_choose(typed);
        case FormulaUse::protect:
            return head.of_protect(typed);
        case FormulaUse::score:
            break;
    }
    return head.of_score(typed);
}

}  // namespace keyhole
