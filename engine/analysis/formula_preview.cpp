#include "engine/analysis/formula_preview.h"

#include "engine/analysis/competing.h"
#include "engine/analysis/record_env.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/policy/formula_names.h"
#include "engine/policy/row_formula.h"
#include "engine/policy/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace keyhole {

namespace {

/// A KV head after a row, and the unit that is selected together with it.
class PreviewedHead {
  public:
    PreviewedHead(const RunHistory& history, int lane, int kv_head, int row, const LaneRecord& record)
        : history_(history),
          layout_(history.layout(lane)),
          lane_(lane),
          kv_head_(kv_head),
          row_(row),
          of_lane_(record.info->policy),
          policy_(policy_of(kv_head)),
          held_(history.held_positions(lane, kv_head, row)) {
        for (const Unit& unit : units_of(layout_, of_lane_.scope))
            for (int i = 0; i < unit.n_heads(); ++i)
                if (unit.head(i) == kv_head) unit_ = unit;
        const std::vector<Standing> standing = standings(history, lane, kv_head, row);
        for (std::size_t i = 0; i < standing.size(); ++i) {
            if (standing[i] == Standing::pinned) pinned_.push_back(held_[i]);
            if (standing[i] == Standing::pinned || standing[i] == Standing::protected_)
                guarded_.push_back(held_[i]);
        }
        const KvHead& first = layout_.kv_head(unit_.first);
        facts_ = place_facts(policy_, row, static_cast<int>(held_.size()), first.owner_layer, 0, first.index);
    }

    FormulaPreview of_choose(const FormulaRef& typed) {
        if (const std::string lacks = lacks_protection(); !lacks.empty()) return without(lacks);
        return ranked_by(typed, recorded_scores());
    }
    FormulaPreview of_score(const FormulaRef& typed) {
        if (typed && !is_of_rows(*typed)) return of_choose(typed);  // as resolve() takes it
        if (const std::string lacks = lacks_protection(); !lacks.empty()) return without(lacks);
        if (typed == policy_.score) return ranked_by(policy_.choose, recorded_scores());
        if (!typed) return without("The record holds what the lane's own formula made of the rows.");
        std::string lacks;
        const std::vector<float> scores = after_row(*typed, lacks);
        return scores.empty() ? without(lacks) : ranked_by(policy_.choose, scores, true);
    }
    FormulaPreview of_protect(const FormulaRef& typed) {
        guarded_ = pinned_;
        if (typed) {
            const RecordEnv env = env_of({});
            if (!env.knows_all(*typed)) return without(lacks_names(*typed, env));
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
    std::vector<std::int32_t> held_, pinned_, guarded_;  // guarded: pinned and protected
    Unit unit_;
    PlaceFacts facts_;

    static FormulaPreview without(std::string why_not) { return {std::move(why_not), {}, 0, 0}; }

    const ResolvedPolicy& policy_of(int kv_head) const {
        const HeadRef& reader = layout_.kv_head(kv_head).readers.front();
        return of_lane_.at(reader.layer, reader.head);
    }
    RecordEnv env_of(std::span<const float> s) const { return {facts_, held_, s, policy_.seed}; }
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
        for (const QuantityName& name : kQuantityNames) {
            if (!formula.names(name.quantity) || env.knows(name.quantity)) continue;
            return name.quantity == Quantity::s
                       ? "The record holds what choose ranked, and not s: once in force, it is ranked."
                       : fmt::format("The record does not hold {} ({}): once in force, it is ranked.",
                                     name.name, name.help);
        }
        return "";
    }

    /// Ranks by a choice. scores: as recorded, which a choice in force has made, or those of a row.
    FormulaPreview ranked_by(const FormulaRef& choose, const std::vector<float>& scores,
                             bool are_of_row = false) const {
        const bool is_in_force = choose == policy_.choose && !are_of_row;
        if ((is_in_force || !choose) && scores.empty()) return without("The row's scores are not recorded.");
        if (!choose && policy_.choose && !are_of_row)
            return without("The record holds what choose ranked, and not s: once in force, it is ranked.");
        if (is_in_force || !choose) return selected(scores, {});
        const bool knows_s = are_of_row || !policy_.choose;
        const RecordEnv env = env_of(knows_s ? std::span<const float>(scores) : std::span<const float>());
        if (!env.knows_all(*choose)) return without(lacks_names(*choose, env));
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
                lacks = "The record holds what choose ranked, and not s: once in force, it is ranked.";
            else if (before = scores_at(row_ - 1); before.empty())
                lacks = "The scores of the row before are not recorded.";
        }
        for (const Quantity q :
             {Quantity::logit, Quantity::ptau, Quantity::knorm, Quantity::vnorm, Quantity::wvnorm})
            if (formula.names(q) && (q != Quantity::ptau || policy_.tempers()))
                lacks = lacks_names(formula, env_of(before));
        if (!lacks.empty()) return {};
        return pooled(formula, before, lacks);
    }
    std::vector<float> pooled(const FormulaTable& formula, std::span<const float> before,
                              std::string& lacks) const {
        const bool by_column = of_lane_.scope == Scope::column;
        std::vector<float> sum(held_.size(), 0), of_head;
        int n_readers = 0;
        for (int i = 0; i < unit_.n_heads(); ++i) {
            const auto& readers = layout_.kv_head(unit_.head(i)).readers;
            if (by_column) n_readers = 0;
            std::vector<float>& to = by_column ? of_head : sum;
            if (by_column) of_head.assign(held_.size(), 0);
            for (const HeadRef& reader : readers)
                if (!add_reader(formula, reader, before, n_readers++ == 0, to)) {
                    lacks = "The row's attention is not recorded.";
                    return {};
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
    bool add_reader(const FormulaTable& formula, const HeadRef& reader, std::span<const float> before,
                    bool is_first, std::vector<float>& to) const {
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
            const float value = score_after_row(
                formula, facts, {before[i], own_p, 0, own_p, held_[i], static_cast<std::int32_t>(i)});
            to[i] = is_first ? value : policy_.pool == Pool::max ? std::max(to[i], value) : add(to[i], value);
        }
        return true;
    }
};

}  // namespace

FormulaPreview preview_formula(const RunHistory& history, int lane, int kv_head, int row, FormulaUse use,
                               const FormulaRef& typed) {
    const LaneRecord* record = history.lane_record(row, lane);
    if (record == nullptr) return {"The lane has no record of this row.", {}, 0, 0};
    PreviewedHead head(history, lane, kv_head, row, *record);
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
